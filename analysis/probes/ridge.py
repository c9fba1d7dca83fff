"""Ridge probes: accuracy of regularised least-squares classifiers of every layer."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import TokenGrid
from vit_tf.data.any_images import as_images
from vit_tf.data.labels import batch_labels, require_counted, require_labels
from vit_tf.features.conversion import LayerSelection, ModelLike, as_features, choose
from vit_tf.features.features import Features, Taps, pick_taps
from vit_tf.features.layers import Detail

from ..engine.least_squares import BIAS, classify, fit_classifier, ridge_weights
from ..engine.measurements import labels_after_images, measurement, statistic_of
from ..engine.pooling import Pooled, pool, pooled_statistic_of, tokens_of
from ..engine.preparation import Batches, ImagesLike, match_labels, prepare_labelled
from ..engine.results import (
    ALL,
    EACH,
    PROBED,
    ResultDataset,
    array_of,
    facts_of,
    pack_correct,
    provenance,
    require_finite,
    require_word,
)
from ..engine.stream import Statistic, Totals, as_dataset, evaluate, first_batch
from ..engine.traces import reusable

L2 = tuple(float(f"1e{power}") for power in range(-3, 4))
FEW_SHOT_L2 = tuple(2.0**power for power in range(-10, 21))
SHOTS = (1, 5, 10, 25)

# The float64 sums of a pass of `fit_ridge_probe` are at most so large. Batches and solution come on
# top and take as much.
MAX_SUM_BYTES = 2 * 2**30
# Rows of blocks of a symmetric product, of which those below the diagonal are left out.
BLOCKS = 4


@dataclass(frozen=True)
class Probe:
    """Ridge probes, fitted to every layer."""

    # A layer has weights (token, l2, channel, class) and intercepts (token, l2, class).
    weights: dict[str, tuple[np.ndarray, np.ndarray]]
    l2: np.ndarray
    tokens: str
    num_classes: int
    examples: int


@measurement(arguments="{model}, train, {images}")
@labels_after_images
def ridge_probe(
    model: ModelLike,
    train: ImagesLike,
    test: ImagesLike | None = None,
    num_classes: int | None = None,
    l2: Sequence[float] = L2,
    tokens: str = ALL,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Test accuracy of a regularised least-squares classifier on every layer.

        W = argmin |Xc W - Yc|^2 + l2 |W|^2,    prediction = argmax((x - mean) W + mean target)

    Xc are the centred features of the training images, and Yc are the centred targets: 1 for the
    class of the image and -1 for other classes (Raghu et al. 2021, appendix A, figures 11 and 13).
    The intercept is not penalised. For each layer, one eigendecomposition in float64 gives the
    solutions for all values of `l2`. The decomposed matrix is Xc' Xc, or Xc Xc' if there are fewer
    examples than channels. Choose `l2` on held-out training images, not on the test set.

    Args:
        model, train, test, num_classes: as in `vit_tf.analysis`.
        l2: strengths of the penalty, each above 0.
        tokens: the tokens whose features are classified. `"cls"` is the CLS token, `"spatial"` is
            the mean of the spatial tokens, `"all"` is the mean of all tokens (the default), and
            `"each"` fits a probe to each token separately.

    Returns:
        DataArray of test accuracies of shape (layer, l2), or of shape (layer, l2, token) for
        `tokens="each"`. With `"each"`, values are NaN for tokens that a layer does not have, and
        the attribute `prefix` is the number of prefix tokens. If the grid of the spatial tokens is
        known, the attributes `rows` and `columns` are its size.

    Raises:
        ValueError: if `tokens` is unknown, if a value of `l2` is not above 0, if labels are not
            classes, or if activations are not finite.

    Examples:
        >>> train, test = (images[:16], labels[:16]), (images[16:], labels[16:])
        >>> accuracy = analysis.ridge_probe(vit, train, test, l2=[0.1, 10.0])
        >>> accuracy.dims
        ('layer', 'l2')
        >>> accuracy.l2.values.tolist()
        [0.1, 10.0]
        >>> ax = analysis.plot(accuracy)

    See also:
        `plots.plot_ridge_probe`, `select_l2`, `linear_probe`; page
        measurements/probes/ridge-probe.md.
    """
    features, (train, test), num_classes = prepare_labelled(
        model,
        {"train": train, "test": test},
        num_classes,
        layers=layers,
        detail=detail,
        keep_order=True,
    )
    return _fit_probe(features, train, num_classes, l2, tokens)(test)


@measurement(arguments="{model}, train")
@labels_after_images
def fit_ridge_probe(
    model: ModelLike,
    train: ImagesLike,
    num_classes: int | None = None,
    l2: Sequence[float] = L2,
    tokens: str = ALL,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> Callable[[ImagesLike], xr.DataArray]:
    """Fits the probes of `ridge_probe` once, to compute their accuracy on several data sets.

    Arguments and errors are the same as for `ridge_probe`.

    Returns:
        Function that takes a data set of (images, labels) and returns the accuracy on it, a
        DataArray as from `ridge_probe`.

    Examples:
        >>> probe = analysis.fit_ridge_probe(vit, (images[:16], labels[:16]))
        >>> probe((images[16:], labels[16:])).dims
        ('layer', 'l2')

    See also:
        `ridge_probe`, `select_l2`; page measurements/probes/ridge-probe.md.
    """
    features, (train,), num_classes = prepare_labelled(
        model, {"train": train}, num_classes, layers=layers, detail=detail
    )
    return _fit_probe(features, train, num_classes, l2, tokens)


def select_l2(validation: xr.DataArray, test: xr.DataArray) -> xr.DataArray:
    """Test accuracy at the `l2` that is best on held-out images, selected for each layer and token.

    Args:
        validation: accuracy on held-out images, a DataArray of dims (layer, l2) or (layer, l2,
            token).
        test: accuracy on the test set, a DataArray with the same coordinates.

    Returns:
        DataArray of test accuracies of dims (layer,) or (layer, token), with two coordinates of the
        same dims. Values are NaN for tokens that a layer does not have.

        * `l2`: the selected value. If several values are equally good, it is the largest of them.
        * `validation_accuracy`: the accuracy on the held-out images at this value.

    Examples:
        >>> probe = analysis.fit_ridge_probe(vit, (images[:12], labels[:12]))
        >>> validation = probe((images[12:18], labels[12:18]))
        >>> test = probe((images[18:], labels[18:]))
        >>> analysis.select_l2(validation, test).dims
        ('layer',)

    See also:
        `ridge_probe`, `fit_ridge_probe`, `plots.plot_ridge_probe`; page
        measurements/probes/ridge-probe.md.
    """
    strongest_first = validation.sortby("l2", ascending=False)
    best = strongest_first.fillna(-1.0).argmax("l2")
    selected = test.sel(l2=strongest_first["l2"]).isel(l2=best)
    selected = selected.assign_coords(
        l2=selected["l2"].where(selected.notnull()),
        validation_accuracy=validation.max("l2").variable,
    )
    return selected.assign_attrs(test.attrs | {"l2": "chosen on held-out images"})


@measurement(arguments="{model}, draws, {images}")
@labels_after_images
def few_shot(
    model: ModelLike,
    draws: Sequence[tuple],
    test: ImagesLike,
    num_classes: int | None = None,
    shots: Sequence[int] = SHOTS,
    l2: Sequence[float] = FEW_SHOT_L2,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Test accuracy of least-squares classifiers fitted on a few images of each class.

    This is the protocol of big_vision (`evaluators/fewshot_lsr.py`; Dosovitskiy et al. 2020,
    section 4.1):

        x = [(f - mean) / (std + 1e-5), 100],  W = argmin |x W - y|^2 + l2 |W|^2,  argmax(x W)

    The mean and the standard deviation of the features f are over the few images, in float64. The
    constant channel of 100 serves as an intercept that is hardly penalised. Targets y are 1 for the
    class and -1 for other classes. `draws` are pairs of data sets, as from `vit_tf.data.few_shot`:
    images to fit on, and held-out images to choose `l2` on, or None. Each number of shots uses the
    first images of every class in a draw. Returns a Dataset with `accuracy` on the test images, of
    shape (layer, draw, shots, l2), and `held_out`, the accuracy on the held-out images.
    """
    features, (test,), num_classes = prepare_labelled(
        model, {"test": test}, num_classes, layers=layers, detail=detail
    )
    if not len(l2) or min(l2) <= 0:
        raise ValueError(f"Expected every l2 to be above 0. Received: l2={list(l2)}")
    # The features of the test images are kept, and each draw is scored on them.
    tested = _pool(features, test, num_classes, "test")
    drawn = []
    for drawn_images, held_out in draws:
        fitted = _pool(features, drawn_images, num_classes, "few-shot")
        scored = {"accuracy": tested}
        if held_out is not None:
            scored["held_out"] = _pool(features, held_out, num_classes, "held-out")
        drawn.append(_score(fitted, scored, num_classes, shots, l2))
    result = xr.concat(drawn, "draw").transpose("layer", "draw", "shots", "l2")
    facts = provenance(
        features,
        len(tested.labels),
        1,
        estimator="regularised least squares on whitened features, {-1, 1} targets, float64",
        units="1",
        num_classes=num_classes,
        bias_constant=BIAS,
    )
    result = result.assign_coords(layer=list(tested.layers), draw=np.arange(len(drawn)))
    return result.assign_attrs(facts)


def select_few_shot(result: xr.Dataset) -> xr.DataArray:
    """Test accuracy at the `l2` with the best mean accuracy on held-out images over the draws."""
    ordered = result.sortby("l2", ascending=False)
    best = ordered["held_out"].mean("draw").argmax("l2")
    return ordered["accuracy"].isel(l2=best).assign_attrs(result.attrs)


def _fit_probe(
    features: Features, train: Batches, num_classes: int, l2: Sequence[float], tokens: str
) -> Callable[[ImagesLike], xr.DataArray]:
    """The probe of `fit_ridge_probe`, of features and batches."""
    groups = _layers_of_passes(features, train, tokens)
    probes = []
    for layers in groups:
        read = features if len(groups) == 1 else choose(features, layers)
        statistic = probe_statistic(read, train, num_classes, l2, tokens)
        probes.append(evaluate(statistic, train, read, description="ridge probes: train"))
    weights = {layer: fitted for probe in probes for layer, fitted in probe.weights.items()}
    statistic = score_statistic(features, replace(probes[0], weights=weights))
    expects = features.facts.preprocessing
    return lambda data: evaluate(
        statistic,
        match_labels(as_images(data, expects), train),
        features,
        description="ridge probes: test",
    )


def _layers_of_passes(features: Features, train: Batches, tokens: str) -> list[tuple[str, ...]]:
    """The layers whose probes are fitted in a pass, so that their sums fit into `MAX_SUM_BYTES`.

    Probes of each token sum products for all tokens, which takes 1 GiB for a layer of a ViT-B/16. A
    layer that needs more by itself has a pass of its own; layers of unknown shape share one. A
    single empty group stands for a pass with all layers.
    """
    layers, shapes = features.facts.layers, features.facts.shapes
    known = [layer for layer in layers if layer in shapes and None not in shapes[layer]]
    if tokens != EACH or not layers or len(known) < len(layers):
        return [()]
    examples = _most_examples(train)
    groups, used = [], np.inf  # no layer fits, so that the first one starts a group
    for layer in layers:
        *tokens_of_layer, channels = cast(tuple[int, ...], shapes[layer])
        size = 8 * math.prod(tokens_of_layer) * channels * min(channels, examples)
        if used + size > MAX_SUM_BYTES:
            groups, used = [*groups, ()], 0
        groups[-1] += (layer,)
        used += size
    return groups


def _most_examples(train: ImagesLike) -> float:
    """The largest number of examples that a data set can hold; only its first batch is read."""
    dataset = as_dataset(train)
    cardinality = int(dataset.cardinality())
    return cardinality * len(first_batch(dataset)) if cardinality >= 0 else np.inf


@statistic_of(ridge_probe)
def probe_statistic(
    features: Features,
    train: ImagesLike,
    num_classes: int,
    l2: Sequence[float] = L2,
    tokens: str = ALL,
) -> Statistic[Probe]:
    """The `Statistic` that fits the probes of `ridge_probe`.

    For a layer with more channels than examples, all features are stored; for others, only sums.
    The first batch of `train` is read here, to infer the largest possible number of examples. Other
    arguments and errors are those of `ridge_probe`.

    Returns:
        `Statistic` over images and labels whose result is a `Probe`.
    """
    require_word(tokens, PROBED)
    strengths: list[float] = np.atleast_1d(np.asarray(l2, np.float64)).tolist()
    if not strengths or not all(strength > 0 for strength in strengths):
        raise ValueError(f"Expected every l2 to be above 0. Received: l2={strengths}")
    grid, limit = features.facts.grid, _most_examples(train)
    return _probe_statistic(features, limit, int(num_classes), tuple(strengths), tokens, grid)


@reusable
def _probe_statistic(
    features: Features,
    limit: float,
    num_classes: int,
    strengths: tuple[float, ...],
    tokens: str,
    grid: TokenGrid | None,
) -> Statistic[Probe]:
    """`probe_statistic` of at most `limit` examples."""
    l2 = np.array(strengths)

    def step(images: tf.Tensor, labels: tf.Tensor, taps: Taps) -> dict[str, Any]:
        labels, outside = batch_labels(labels, num_classes, "training")
        targets = 2.0 * tf.one_hot(labels, num_classes, dtype=tf.float64) - 1.0
        layers = _probed_tokens(taps, tokens, grid)
        # Layers with more channels than examples; an unknown number of channels counts as few.
        wide_layers = {layer: x for layer, x in layers.items() if (x.shape[2] or 0) > limit}
        return {
            "x": {layer: tf.reduce_sum(x, axis=0) for layer, x in layers.items()},
            "products": {
                layer: _products(x, targets)
                for layer, x in layers.items()
                if layer not in wide_layers
            },
            "targets": tf.reduce_sum(targets, axis=0),
            "outside": outside,
            "examples": tf.shape(images)[0],
        } | ({"rows": {"x": wide_layers, "targets": targets}} if wide_layers else {})

    def finish(totals: Totals) -> Probe:
        require_counted(totals["outside"], totals["examples"], num_classes, "training")
        # Sums that are finite if and only if all activations of a layer are.
        layers, squares = list(totals["x"]), {}
        for layer in layers:
            products = totals["products"].get(layer)
            squares[layer] = products["xx"][0] if products else totals["rows"]["x"][layer]
        sums = [totals["x"][layer].sum() + squares[layer].sum() for layer in layers]
        require_finite("ridge probes", sums, layers)
        # One layer at a time, as each is large for probes of many tokens.
        weights = {layer: _solve(totals, layer, l2) for layer in layers}
        return Probe(weights, l2, tokens, num_classes, int(totals["examples"]))

    return Statistic(step, finish, with_labels=True)


def _probed_tokens(taps: Taps, tokens: str, grid: TokenGrid | None) -> dict[str, tf.Tensor]:
    """Taps reduced to the tokens that are probed, in float64 of shape (example, token, channel)."""
    if tokens != EACH:
        return {layer: x[:, None] for layer, x in pool(taps, tokens, grid).items()}
    every = {layer: tokens_of(layer, x, tokens, grid) for layer, x in taps.items()}
    return {layer: tf.cast(x, tf.float64) for layer, x in every.items()}


def _products(x: tf.Tensor, targets: tf.Tensor) -> dict[str, Any]:
    """Sums of x x', the upper triangle of blocks, and of x y', with a leading token axis."""
    by_token = tf.transpose(x, (1, 0, 2))
    width = -(-x.shape[2] // BLOCKS)
    return {
        "xx": tuple(
            tf.matmul(by_token[..., i : i + width], by_token[..., i:], transpose_a=True)
            for i in range(0, x.shape[2], width)
        ),
        "xy": tf.einsum("etc,ek->tck", x, targets),
    }


def _join_blocks(blocks: Sequence[np.ndarray]) -> np.ndarray:
    """Symmetric matrices (token, channel, channel) from the blocks of `_products`."""
    channels = blocks[0].shape[2]
    matrices = np.empty((len(blocks[0]), channels, channels))
    for row in blocks:
        start, stop = channels - row.shape[2], channels - row.shape[2] + row.shape[1]
        matrices[:, start:stop, start:] = row
        matrices[:, start:, start:stop] = np.swapaxes(row, 1, 2)
    return matrices


def _solve(totals: Totals, layer: str, l2: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Weights (token, l2, channel, class) and intercepts (token, l2, class) of a layer."""
    examples = totals["examples"]
    mean, target = totals["x"][layer] / examples, totals["targets"] / examples
    if layer in totals["products"]:
        products = totals["products"][layer]
        xx = _join_blocks(products["xx"])
        for token, token_mean in enumerate(mean):  # one at a time, as all together are large
            xx[token] -= examples * np.outer(token_mean, token_mean)
        centred = {"xx": xx, "xy": products["xy"] - examples * mean[:, :, None] * target}
    else:
        rows = totals["rows"]
        centred = {"rows": np.moveaxis(rows["x"][layer] - mean, 1, 0)}
        centred["targets"] = rows["targets"] - target
    weights = ridge_weights(l2, **centred)
    return weights, target - (mean[:, None, None, :] @ weights)[:, :, 0]


def score_statistic(features: ModelLike, probe: Probe) -> Statistic[xr.DataArray]:
    """Creates a `Statistic` over images and labels: the accuracy of a fitted `Probe`."""
    model_features = as_features(features)
    state = {}
    for layer, (weight, intercept) in probe.weights.items():
        by_token = np.moveaxis(weight, 2, 1)  # (token, channel, l2, class)
        state[layer] = by_token.reshape(*by_token.shape[:2], -1), intercept
    return replace(
        _score_statistic(features, len(probe.l2), probe.num_classes, probe.tokens),
        finish=lambda totals: _accuracy(totals, model_features, probe),
        state=state,
    )


@reusable
def _score_statistic(
    features: Features, num_l2: int, num_classes: int, tokens: str
) -> Statistic[Any]:
    """`Statistic` over images and labels with the correct predictions of fitted probes.

    Its state are the weights (token, channel, l2 class) and intercepts of each layer.
    """
    grid = features.facts.grid

    def step(
        fitted: dict[str, tuple[tf.Tensor, tf.Tensor]],
        images: tf.Tensor,
        labels: tf.Tensor,
        taps: Taps,
    ) -> dict[str, Any]:
        labels, outside = batch_labels(labels, num_classes, "test")
        correct, rows = {}, {}
        for layer, x in _probed_tokens(pick_taps(taps, fitted), tokens, grid).items():
            weight, intercept = fitted[layer]
            # One product scores the images with the classifiers of all penalties.
            scores = tf.matmul(tf.transpose(x, (1, 0, 2)), weight)
            scores = tf.reshape(scores, (weight.shape[0], -1, num_l2, num_classes))
            is_correct = tf.argmax(scores + intercept[:, None], axis=-1) == labels[:, None]
            correct[layer] = tf.transpose(tf.reduce_sum(tf.cast(is_correct, tf.float32), axis=1))
            rows[layer] = is_correct[0]
        return {
            "correct": correct,
            "outside": outside,
            "examples": tf.shape(images)[0],
            "batches": 1,
        } | ({} if tokens == EACH else {"rows": rows})

    return Statistic(step, lambda totals: totals, with_labels=True)


def _accuracy(totals: Totals, features: Features, probe: Probe) -> xr.DataArray:
    """The result of `ridge_probe`, from what the steps of scoring add up to."""
    examples = totals["examples"]
    require_counted(totals["outside"], examples, probe.num_classes, "test")
    tokens = max(len(weight) for weight, _ in probe.weights.values())
    # Layers may differ in their numbers of tokens: the accuracy is NaN where a layer has none.
    accuracy = np.full((len(probe.weights), len(probe.l2), tokens), np.nan)
    for index, correct in enumerate(totals["correct"].values()):
        accuracy[index, :, : correct.shape[1]] = correct / examples
    # Where tokens lie, if each has a probe.
    is_each_token, positions = probe.tokens == EACH, {}
    if is_each_token:
        sizes, grid = {len(weight) for weight, _ in probe.weights.values()}, features.facts.grid
        positions["prefix"] = grid.prefix if grid and grid.num_tokens in sizes else 0
        if grid and sizes == {positions["prefix"] + grid.num_spatial}:
            positions |= {"rows": grid.rows, "columns": grid.columns}
    widths = [weight.shape[2] for weight, _ in probe.weights.values()]
    result = array_of(
        "accuracy",
        accuracy,
        ("layer", "l2", "token"),
        ("test accuracy of a ridge probe", "1"),
        facts_of(
            features,
            totals,
            "regularised least squares on {-1, 1} targets, float64",
            num_classes=probe.num_classes,
            tokens=probe.tokens,
            train_examples=probe.examples,
            **positions,
        ),
        layer=list(probe.weights),
        l2=probe.l2,
        channels=("layer", widths, {"long_name": "channels that a probe is fitted on"}),
    )
    if is_each_token:
        return result
    correct = pack_correct(np.stack([np.moveaxis(x, 0, -1) for x in totals["rows"].values()]))
    return result.isel(token=0, drop=True).assign_coords(correct=(("layer", "l2"), correct))


def _pool(features: Features, data: ImagesLike, num_classes: int, subset: str) -> Pooled:
    """The mean of all tokens of each layer, for the images of a data set, and the labels."""
    pooled = evaluate(
        pooled_statistic_of(features, ALL), data, features, description=f"few-shot: {subset} images"
    )
    require_labels(pooled.labels, num_classes, subset)
    return pooled


def _score(
    fitted: Pooled,
    scored: dict[str, Pooled],
    num_classes: int,
    shots: Sequence[int],
    l2: Sequence[float],
) -> xr.Dataset:
    """Accuracy (layer, shots, l2) on several sets of features of classifiers fitted on one."""
    # Larger numbers of shots add images to those of smaller ones.
    rows_of_shots = [_first_of_each(fitted.labels, count, num_classes) for count in shots]
    hits = {name: np.empty((len(fitted.layers), len(shots), len(l2))) for name in scored}
    for i, (layer, x) in enumerate(fitted.layers.items()):
        for j, rows in enumerate(rows_of_shots):
            few = x[rows].astype(np.float64)
            classifier = fit_classifier(few, fitted.labels[rows], num_classes, l2)
            for name, pooled in scored.items():
                predicted = classify(pooled.layers[layer], *classifier)
                hits[name][i, j] = (predicted == pooled.labels).mean(axis=1)
    dims = ("layer", "shots", "l2")
    return ResultDataset(
        {name: (dims, values) for name, values in hits.items()},
        {"shots": list(shots), "l2": list(l2)},
    )


def _first_of_each(labels: np.ndarray, count: int, num_classes: int) -> np.ndarray:
    """Rows of the first `count` examples of each class: int array of shape (class * count,)."""
    members = [np.flatnonzero(labels == label)[:count] for label in range(num_classes)]
    fewest = min(len(rows) for rows in members)
    if fewest < count:
        raise ValueError(
            f"Expected at least {count} images of each class, the number of shots. "
            f"Received: {fewest} of one class"
        )
    return np.concatenate(members)
