"""Ridge probes: how well a linear map from a layer tells the classes apart."""

import numpy as np
import tensorflow as tf
import xarray as xr

from .results import provenance, require_finite
from .stream import accumulate, as_dataset, collect, first_batch
from .tokens import as_tokens

TOKENS = ("mean", "first", "rest", "each")
L2 = tuple(float(f"1e{power}") for power in range(-3, 4))


def ridge_probe(features, train, test, num_classes, l2=L2, tokens="mean"):
    """Test accuracy of a regularised least-squares classifier on every layer.

    Targets are 1 for the class and -1 elsewhere; the intercept is not penalised:

        W = argmin |Xc W - Yc|^2 + l2 |W|^2,    prediction = argmax((x - mean) W + mean target)

    with Xc, Yc centred (Raghu et al. 2021, appendix A, figures 11 and 13). One eigendecomposition
    per layer serves every `l2`: of Xc' Xc, or of Xc Xc' where there are fewer examples than
    channels. Solved in float64. Choose `l2` on held-out training images, not on the test set.

    Args:
        features: callable from images to `{layer: tensor}` of shape (example, token, channel),
            (example, row, column, channel) or (example, channel).
        train, test: batched `tf.data.Dataset` of (images, labels), or pairs of arrays; labels are
            integers from 0 to `num_classes - 1`.
        num_classes: number of classes.
        l2: strengths of the penalty, above 0.
        tokens: what is probed: `"mean"` of all tokens, the `"first"`, the mean of the `"rest"`
            without the first, or `"each"` token by itself.

    Returns:
        DataArray accuracy of shape (layer, l2), and (layer, l2, token) for `"each"`, where layers
        with fewer tokens hold NaN.

    Raises:
        ValueError: for unknown `tokens`, an `l2` that is not above 0, labels that do not fit
            `num_classes` or activations that are not finite.
    """
    return fit_ridge_probe(features, train, num_classes, l2, tokens)(test)


def fit_ridge_probe(features, train, num_classes, l2=L2, tokens="mean"):
    """The probes of `ridge_probe`, fitted once to be scored on several data sets.

    Arguments and errors are those of `ridge_probe`.

    Returns:
        Function of a data set of (images, labels) that returns the accuracy on it.
    """
    if tokens not in TOKENS:
        raise ValueError(f"Expected tokens to be one of {TOKENS}. Received: tokens={tokens!r}")
    l2 = np.atleast_1d(np.asarray(l2, np.float64))
    if not l2.size or not (l2 > 0).all():
        raise ValueError(f"Expected every l2 to be above 0. Received: l2={l2.tolist()}")
    probed = _probed(features, tokens)
    moments = _moments(probed, train, num_classes)
    weights = {layer: _solve(moment, l2) for layer, moment in moments.items()}
    train_examples = int(next(iter(moments.values()))["examples"])

    def score(data):
        accuracy, examples, batches = _accuracies(probed, weights, data, num_classes, len(l2))
        result = xr.DataArray(
            accuracy,
            dims=("layer", "l2", "token"),
            coords={"layer": list(weights), "l2": l2, "token": np.arange(accuracy.shape[2])},
            name="accuracy",
            attrs=provenance(
                features,
                examples,
                batches,
                long_name="test accuracy of a ridge probe",
                units="1",
                estimator="regularised least squares on {-1, 1} targets, float64",
                train_examples=train_examples,
                num_classes=num_classes,
                tokens=tokens,
            ),
        )
        return result if tokens == "each" else result.isel(token=0, drop=True)

    return score


def select_l2(validation, test):
    """Test accuracy of each layer at the `l2` that is best for it on held-out images.

    Args:
        validation: accuracy on held-out images, of dims (layer, l2).
        test: accuracy on the test set, with the same coordinates.

    Returns:
        DataArray of dims (layer,), with the chosen `l2` as a coordinate of each layer; of equally
        good ones the strongest.
    """
    strongest_first = validation.sortby("l2", ascending=False)
    chosen = test.sel(l2=strongest_first.idxmax("l2"))
    chosen.attrs = test.attrs | {"l2": "chosen on held-out images"}
    return chosen


def _probed(features, tokens):
    """The features reduced to the tokens that are probed, of shape (example, token, channel)."""
    choose = {
        "mean": lambda x: tf.reduce_mean(x, axis=1, keepdims=True),
        "first": lambda x: x[:, :1],
        "rest": lambda x: tf.reduce_mean(x[:, 1:], axis=1, keepdims=True),
        "each": lambda x: x,
    }[tokens]

    def probed(images):
        taps = features(images)
        return {
            layer: tf.cast(choose(as_tokens(layer, x)), tf.float64) for layer, x in taps.items()
        }

    return probed


def _moments(probed, train, num_classes):
    """What each layer's solution needs of the training set, by layer.

    A layer with more channels than there are examples keeps its rows, of shape (example, token,
    channel); the others only their sums and products.
    """
    shapes = {layer: x.shape for layer, x in probed(first_batch(train)[:1]).items()}
    limit = _most_examples(train)
    wide = [layer for layer, shape in shapes.items() if shape[2] > limit]
    narrow = [layer for layer in shapes if layer not in wide]

    def rows(images, labels):
        taps = probed(images)
        return {layer: taps[layer] for layer in wide} | {"targets": _targets(labels, num_classes)}

    def sums(images, labels):
        taps = probed(images)
        targets = _targets(labels, num_classes)
        products = {layer: _products(taps[layer], targets) for layer in narrow}
        return products | {
            "targets": tf.reduce_sum(targets, axis=0),
            "examples": tf.shape(images)[0],
        }

    moments = {}
    if narrow:
        total = accumulate(sums, train, with_labels=True, description="ridge probes: train")
        _require_labels(total["targets"].sum(), total["examples"], num_classes)
        for layer in narrow:
            moments[layer] = _centred_moments(total[layer], total["targets"], total["examples"])
    if wide:
        kept = collect(rows, train, with_labels=True, description="ridge probes: train")
        targets = kept["targets"]
        _require_labels(targets.sum(), len(targets), num_classes)
        for layer in wide:
            moments[layer] = _rows_moments(kept[layer], targets)
    moments = {layer: moments[layer] for layer in shapes}
    finite = [np.append(m["mean"].sum(), m["scale"]) for m in moments.values()]
    require_finite("ridge probes", finite, moments)
    return moments


def _most_examples(data):
    """The largest number of examples that a data set can hold, infinite where it is unknown."""
    dataset = as_dataset(data)
    cardinality = int(dataset.cardinality())
    return cardinality * len(first_batch(data)) if cardinality >= 0 else np.inf


def _targets(labels, num_classes):
    """Targets in {-1, 1} of shape (example, class); -1 throughout for a label out of range."""
    return 2.0 * tf.one_hot(tf.cast(labels, tf.int64), num_classes, dtype=tf.float64) - 1.0


def _require_labels(target_sum, examples, num_classes):
    """Each row of targets sums to 2 - num_classes, and to -num_classes for a bad label."""
    outside = round(float(examples - (target_sum + num_classes * examples) / 2))
    if outside:
        raise ValueError(
            f"Expected integer labels from 0 to num_classes - 1 = {num_classes - 1}. "
            f"Received: {outside} of {int(examples)} labels outside"
        )


def _products(x, targets):
    """Sums of x, x x' and x y' over a batch, each with a leading token axis."""
    by_token = tf.transpose(x, (1, 0, 2))
    return {
        "x": tf.reduce_sum(x, axis=0),
        "xx": tf.matmul(by_token, by_token, transpose_a=True),
        "xy": tf.einsum("etc,ek->tck", x, targets),
    }


def _centred_moments(total, targets, examples):
    mean, target = total["x"] / examples, targets / examples
    xx = total["xx"] - examples * mean[:, :, None] * mean[:, None, :]
    return {
        "xx": xx,
        "xy": total["xy"] - examples * mean[:, :, None] * target,
        "scale": np.trace(xx, axis1=1, axis2=2),
        "mean": mean,
        "target": target,
        "examples": examples,
    }


def _rows_moments(rows, targets):
    mean, target = rows.mean(axis=0), targets.mean(axis=0)
    centred = np.moveaxis(rows - mean, 1, 0)
    return {
        "rows": centred,
        "targets": targets - target,
        "scale": (centred**2).sum(axis=(1, 2)),
        "mean": mean,
        "target": target,
        "examples": len(rows),
    }


def _solve(moments, l2):
    """Weights and intercepts of one layer for every `l2`.

        primal: Xc' Xc = Q diag(s) Q',  W = Q diag(1 / (s + l2)) Q' Xc' Yc
        dual:   Xc Xc' = Q diag(s) Q',  W = Xc' Q diag(1 / (s + l2)) Q' Yc

    Returns:
        Two arrays of shape (token, l2, channel, class) and (token, l2, class).
    """
    rows = moments.get("rows")
    if rows is None:
        values, vectors = np.linalg.eigh(moments["xx"])
        right = np.swapaxes(vectors, 1, 2) @ moments["xy"]
        left = vectors
    else:
        values, vectors = np.linalg.eigh(rows @ np.swapaxes(rows, 1, 2))
        right = np.swapaxes(vectors, 1, 2) @ moments["targets"]
        left = np.swapaxes(rows, 1, 2) @ vectors
    shrunk = right[:, None] / (np.maximum(values, 0.0)[:, None, :, None] + l2[:, None, None])
    weights = left[:, None] @ shrunk
    mean = moments["mean"][:, None, None, :]
    intercept = moments["target"] - (mean @ weights)[:, :, 0]
    return weights, intercept


def _accuracies(probed, weights, test, num_classes, num_l2):
    """Accuracy of shape (layer, l2, token), and the numbers of examples and batches."""
    flat = {}
    for layer, (weight, intercept) in weights.items():
        token, _, channel, _ = weight.shape
        by_token = np.moveaxis(weight, 2, 1).reshape(token, channel, num_l2 * num_classes)
        flat[layer] = tf.constant(by_token), tf.constant(intercept)

    def step(images, labels):
        labels = tf.cast(labels, tf.int64)
        inside = tf.logical_and(labels >= 0, labels < num_classes)
        correct = {}
        for layer, x in probed(images).items():
            weight, intercept = flat[layer]
            scores = tf.matmul(tf.transpose(x, (1, 0, 2)), weight)
            scores = tf.reshape(scores, (len(weight), -1, num_l2, num_classes))
            guess = tf.argmax(scores + intercept[:, None], axis=-1)
            hit = tf.cast(guess == labels[:, None], tf.float32)
            correct[layer] = tf.transpose(tf.reduce_sum(hit, axis=1))
        outside = tf.reduce_sum(tf.cast(~inside, tf.int32))
        return {
            "correct": correct,
            "outside": outside,
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    sums = accumulate(step, test, with_labels=True, description="ridge probes: test")
    inside = sums["examples"] - sums["outside"]
    _require_labels(2 * inside - num_classes * sums["examples"], sums["examples"], num_classes)
    tokens = max(weight.shape[0] for weight, _ in weights.values())
    accuracy = np.full((len(weights), num_l2, tokens), np.nan)
    for index, layer in enumerate(weights):
        correct = sums["correct"][layer]
        accuracy[index, :, : correct.shape[1]] = correct / sums["examples"]
    return accuracy, sums["examples"], sums["batches"]
