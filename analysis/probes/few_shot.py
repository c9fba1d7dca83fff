"""Few-shot accuracy: a ridge classifier on the features of a few images of each class."""

import numpy as np
import tensorflow as tf
import xarray as xr

from ..engine.features import taps_of
from ..engine.front import measurement
from ..engine.pooling import require_labels
from ..engine.results import provenance, require_finite
from ..engine.stream import collect
from ..engine.tokens import as_tokens
from .least_squares import ridge_weights

BIAS = 100.0
L2 = tuple(2.0**power for power in range(-10, 21))
SHOTS = (1, 5, 10, 25)


@measurement()
def few_shot(features, draws, test, num_classes=None, shots=SHOTS, l2=L2):
    """Test accuracy of least-squares classifiers fitted on a few images of each class.

    The protocol of big_vision (`evaluators/fewshot_lsr.py`; Dosovitskiy et al. 2020, section 4.1):
    features are whitened channel by channel, a constant channel of 100 takes the place of an
    intercept, so that it is hardly penalised, and targets are 1 for the class and -1 elsewhere:

        x = [(f - mean) / (std + 1e-5), 100],  W = argmin |x W - y|^2 + l2 |W|^2,  argmax(x W)

    with mean and standard deviation over the few images. In float64. Fewer shots are the first
    images of each class among more shots.

    Args:
        features: callable from images to `{layer: tensor}` of shape (example, channel), or with
            axes of places between, over which the mean is taken.
        draws: list of pairs of `tf.data.Dataset` of (images, labels), one pair for each draw, as
            `vit_tf.data.few_shot` gives them: images of each class to fit on, at least as many as
            the most shots, and others to choose `l2` on, or None.
        test: data set of (images, labels).
        num_classes: number of classes.
        shots: numbers of images of each class to fit on.
        l2: strengths of the penalty, above 0.

    Returns:
        Dataset of `accuracy` of dims (layer, draw, shots, l2) on the test images, and of
        `held_out`, that on the others, where there are others.

    Raises:
        ValueError: for a class with fewer images than shots, labels outside the classes, an `l2`
            that is not above 0 or features that are not finite.
    """
    if not len(l2) or min(l2) <= 0:
        raise ValueError(f"Expected every l2 to be above 0. Received: l2={list(l2)}")
    tested = _rows(features, test, "few-shot: test images")
    drawn = []
    for drawn_images, held_out in draws:
        fitted = _rows(features, drawn_images, "few-shot: draws")
        scored = {"accuracy": tested}
        if held_out is not None:
            scored["held_out"] = _rows(features, held_out, "few-shot: held-out images")
        drawn.append(_score(fitted, scored, num_classes, shots, l2))
    coords = {"layer": list(tested[0]), "draw": np.arange(len(drawn))}
    result = xr.concat(drawn, "draw").transpose("layer", "draw", "shots", "l2")
    return result.assign_coords(coords).assign_attrs(
        provenance(
            features,
            len(tested[1]),
            1,
            units="1",
            estimator="regularised least squares on whitened features, {-1, 1} targets, float64",
            num_classes=num_classes,
            bias_constant=BIAS,
        )
    )


def select_few_shot(result):
    """Accuracy of each layer, draw and number of shots at the `l2` best on the other images.

    One `l2` serves all draws of a number of shots: the best on average, of equally good ones the
    strongest. It becomes a coordinate.

    Args:
        result: what `few_shot` returned, with `held_out`.
    """
    ordered = result.sortby("l2", ascending=False)
    best = ordered["held_out"].mean("draw").argmax("l2")
    return ordered["accuracy"].isel(l2=best).assign_attrs(result.attrs)


def fit_classifier(x, labels, num_classes, l2):
    """The whitening and the weights of `few_shot`, for every `l2`.

    Args:
        x: array of shape (example, channel).
        labels: int array of shape (example,).
        num_classes, l2: as for `few_shot`.

    Returns:
        `mean` and `scale` of shape (channel,), and weights of shape (l2, channel + 1, class).
    """
    mean, scale = x.mean(axis=0), x.std(axis=0) + 1e-5
    x = _whitened(x, mean, scale)
    y = 2.0 * np.eye(num_classes)[labels] - 1.0
    if len(x) >= x.shape[1]:
        terms = {"xx": (x.T @ x)[None], "xy": (x.T @ y)[None]}
    else:
        terms = {"rows": x[None], "targets": y}
    return mean, scale, ridge_weights(np.asarray(l2), **terms)[0]


def classify(x, mean, scale, weights):
    """Labels that `fit_classifier` gives to x of shape (example, channel): (l2, example)."""
    return (_whitened(x, mean, scale) @ weights).argmax(axis=-1)


def _whitened(x, mean, scale):
    return np.pad((x - mean) / scale, ((0, 0), (0, 1)), constant_values=BIAS)


def _rows(features, data, description):
    """The features of a data set, dict of arrays of shape (example, channel), and the labels."""

    def step(images, labels):
        taps = {layer: as_tokens(layer, x) for layer, x in taps_of(features, images).items()}
        return {k: tf.reduce_mean(tf.cast(x, tf.float64), axis=1) for k, x in taps.items()}, labels

    taps, labels = collect(
        step, data, with_labels=True, description=description, checked=(features,)
    )
    require_finite("few-shot accuracy", list(taps.values()), taps)
    return taps, labels


def _score(fitted, scored, num_classes, shots, l2):
    """Accuracy of classifiers of each layer and number of shots on several sets of rows.

    Args:
        fitted: rows to fit on, as `_rows` returns them.
        scored: dict from name to rows to score on.
        num_classes, shots, l2: as for `few_shot`.

    Returns:
        Dataset of a variable of dims (layer, shots, l2) for each name.
    """
    words = {"accuracy": "test", "held_out": "held-out"}
    require_labels(fitted[1], num_classes, "few-shot")
    for name, (_, labels) in scored.items():
        require_labels(labels, num_classes, words[name])
    chosen = [_first_of_each(fitted[1], count, num_classes) for count in shots]
    hits = {name: np.empty((len(fitted[0]), len(shots), len(l2))) for name in scored}
    for i, (layer, x) in enumerate(fitted[0].items()):
        for j, rows in enumerate(chosen):
            classifier = fit_classifier(x[rows], fitted[1][rows], num_classes, l2)
            for name, (taps, labels) in scored.items():
                hits[name][i, j] = (classify(taps[layer], *classifier) == labels).mean(axis=1)
    dims = ("layer", "shots", "l2")
    coords = {"shots": list(shots), "l2": list(l2)}
    return xr.Dataset({name: (dims, values) for name, values in hits.items()}, coords)


def _first_of_each(labels, count, num_classes):
    """Rows of the first `count` examples of each class: int array of shape (class * count,)."""
    members = [np.flatnonzero(labels == label)[:count] for label in range(num_classes)]
    scarce = min(len(rows) for rows in members)
    if scarce < count:
        raise ValueError(
            f"Expected at least {count} images of each class, for as many shots. "
            f"Received: {scarce} of one class"
        )
    return np.concatenate(members)
