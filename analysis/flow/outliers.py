"""Outlier tokens: those of a norm far above the others', their attention, content and effect."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import combinations, product
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import xarray as xr
from scipy.special import bdtrc, ndtri

from vit_tf import edits
from vit_tf.common.names import last_part
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail
from vit_tf.features.noise import draw_for_images
from vit_tf.features.preprocessed import to_own_units
from vit_tf.features.tokens import TokenGrid

from ..engine.least_squares import fit_rows
from ..engine.measurements import labels_after_images, measurement, statistic_of
from ..engine.pooling import PartialGrid, require_grid, tokens_of
from ..engine.preparation import ImagesLike, prepare, prepare_scored
from ..engine.results import SPATIAL, ResultDataset, dataset_of, facts_of, require_finite, variable
from ..engine.stream import Statistic, Totals, evaluate, row_statistic
from ..engine.traces import keep, reusable
from ..statistics.intervals import mean_and_error
from .ablation import (
    CHANGES,
    MEAN,
    REPLACEMENTS,
    RESAMPLE,
    effects_statistic,
    layers_to_edit,
    means_to_insert,
    measure_effects,
    replacement_of,
)

OUTLIER, ORDINARY, PREFIX = "outlier", "ordinary", "prefix"
CLASS, POSITION = "class", "position"
LOWER, UPPER = 0.5, 0.75  # the quantiles from which the upper tail is extrapolated
MIN_RATIO = 2.0  # of an outlier's norm to the median
MIN_TOKENS = 16  # of a layer, for its quantiles
BIN = 0.5  # width of the bins of norms that show a second mode, as a power of two
FOLDS = 5
PENALTY = 0.1  # of the probes, relative to the variance of a channel
MIN_IMAGES = 20  # with outliers, for their roles
ESTIMATOR = "chi-squared tail extrapolated from the median and upper quartile of squared norms"

# One boolean or random number for each spatial token, of shape (example, token), by layer.
ByToken: TypeAlias = dict[str, tf.Tensor]


@measurement("outliers")
def outlier_tokens(
    model: ModelLike,
    images: ImagesLike | None = None,
    grid: PartialGrid = None,
    level: float = 0.01,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Tokens of unusually large norm in every layer, and the attention that they receive.

        threshold^2 = Q(3/4) + (Q(3/4) - Q(1/2)) (q(p) - q(3/4)) / (q(3/4) - q(1/2)),
        (1 - p) * tokens * layers = level

    Here, `Q` are the quantiles of the squared norms of all spatial tokens of all images, and `q`
    are the quantiles of the chi-squared distribution with one degree of freedom. The squared norm
    of a Gaussian vector, whatever its dimension and covariance, never has a longer tail than this
    distribution. If all tokens are Gaussian, the probability that at least one layer has an outlier
    is therefore at most `level`.

    A token is an outlier if its norm is above the threshold and at least twice the median norm. In
    addition, the distribution of norms must have a second mode, since a long tail alone holds no
    outliers. A second mode exists if a bin of large norms holds significantly more tokens than a
    bin between it and the first mode (sign test over images at the same `level`, corrected for the
    number of pairs of bins). This test needs at least about 15 images.

    Outliers do not change the threshold as long as they are fewer than a quarter of the tokens.
    Darcet et al. 2024 (https://arxiv.org/abs/2309.16588) find outliers in large ViTs, with about
    ten times the norm of other tokens.

    Args:
        model, images, grid: as in `vit_tf.analysis`. Each layer holds tokens on the grid, or is
            a feature map. Attention weights are assigned to the layer whose tokens are the input of
            the attention.
        level: upper bound on the probability that at least one layer has an outlier if all tokens
            are Gaussian.

    Returns:
        Dataset with variables of shape (layer,) and of shape (layer, tokens). The dim `tokens`
        lists `"outlier"`, `"ordinary"` (the other spatial tokens) and `"prefix"` (tokens such as
        CLS). Values are NaN for a kind of token that a layer does not have.

        * `share`, of shape (layer,): the share of spatial tokens that are outliers.
        * `stderr`, of shape (layer,): the standard error of `share` over images.
        * `images`, of shape (layer,): the share of images with an outlier.
        * `threshold`, of shape (layer,): the norm above which a token is an outlier; infinite
          without a second mode.
        * `median_norm`, of shape (layer,): the median norm of the spatial tokens.
        * `norm_ratio`, of shape (layer,): the median norm of the outliers divided by the median
          norm of the ordinary tokens.
        * `attention`, of shape (layer, tokens): the attention that a token receives in the
          attention that follows the layer, averaged over heads and queries. A value of 1
          corresponds to uniform attention.
        * `attention_stderr`, of shape (layer, tokens): the standard error of `attention` over
          images.

    Raises:
        ValueError: if `level` is not in (0, 1), if a layer has fewer than 16 tokens or no tokens on
            a known grid, or if activations are not finite.

    Examples:
        >>> result = analysis.outlier_tokens(vit, images)
        >>> result.share.values.tolist()
        [0.0, 0.0, 0.0]
        >>> ax = analysis.plot(result)

    See also:
        `plots.plot_outlier_tokens`, `outlier_roles`, `token_ablation`; page
        measurements/flow/outlier-tokens.md.
    """
    features, batches = prepare(model, images, kind="outliers", layers=layers, detail=detail)
    return evaluate(
        outlier_tokens_statistic(features, grid, level),
        batches,
        features,
        description="outlier tokens",
    )


@statistic_of(outlier_tokens)
def outlier_tokens_statistic(
    features: Features, grid: PartialGrid = None, level: float = 0.01
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `outlier_tokens`."""
    if not 0 < level < 1:
        raise ValueError(f"Expected level to be in (0, 1). Received: level={level}")
    grid = features.facts.grid if grid is None else require_grid(features, grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        norms, received = {}, {}
        for tap, values in taps.items():
            if last_part(tap) == "weights" and values.shape.rank == 4:
                if norms:  # the layer that this attention reads
                    # Attention to each token, over heads and queries, relative to uniform.
                    weights, prefix = tf.cast(values, tf.float32), grid.prefix if grid else 0
                    mean = tf.reduce_mean(weights, axis=(1, 2)) * values.shape[-1]
                    of_tokens = {"received": mean[:, prefix:], "prefix": mean[:, :prefix]}
                    received.setdefault(next(reversed(norms)), of_tokens)
            elif values.shape.rank in (3, 4):
                norms[tap] = tf.norm(tokens_of(tap, values, SPATIAL, grid), axis=-1)
        if not norms:
            raise ValueError(
                "Expected tokens on a known grid, or maps. "
                f"Received: { {tap: tuple(x.shape) for tap, x in taps.items()} }, grid={grid}"
            )
        rows = {layer: {"norm": norm} | received.get(layer, {}) for layer, norm in norms.items()}
        return {"rows": rows, "examples": tf.shape(images)[0], "batches": 1}

    def finish(totals: Totals) -> xr.Dataset:
        rows = totals["rows"]
        require_finite("outlier tokens", [x["norm"] for x in rows.values()], list(rows))
        outliers_by_layer = [outliers_of(values, level / len(rows)) for values in rows.values()]
        words = {
            "share": "share of spatial tokens that are outliers",
            "stderr": "standard error of the share over images",
            "images": "share of images with outlier tokens",
            "threshold": "norm from which a token is an outlier",
            "median_norm": "median norm of spatial tokens",
            "norm_ratio": "median norm of outliers over that of the others",
        }
        variables = {
            name: variable(("layer",), [layer[name] for layer in outliers_by_layer], text)
            for name, text in words.items()
        }
        dims = ("layer", "tokens")
        # Attention that outliers, ordinary tokens and prefix tokens receive, with errors.
        attention = np.array([layer["attention"] for layer in outliers_by_layer])
        variables |= {
            "attention": variable(
                dims, attention[..., 0], "attention received relative to uniform"
            ),
            "attention_stderr": variable(
                dims, attention[..., 1], "standard error of the attention received over images"
            ),
        }
        return dataset_of(
            variables,
            facts_of(features, totals, ESTIMATOR, level=level),
            layer=list(rows),
            tokens=[OUTLIER, ORDINARY, PREFIX],
        )

    return Statistic(step, finish)


def norm_threshold(norms: np.ndarray, level: float) -> float:
    """Norm that any Gaussian token exceeds with a probability of at most `level`.

    The quantiles are taken one standard error to the safe side.
    """
    squares = np.sort(np.asarray(norms, np.float64).ravel()) ** 2
    count = len(squares)
    if count < MIN_TOKENS:
        raise ValueError(
            f"Expected at least {MIN_TOKENS} tokens, to estimate quantiles of their norms: use "
            f"more images. Received: {count}"
        )

    def quantile(share: float, side: int) -> float:
        rank = count * share + side * np.sqrt(count * share * (1 - share))
        return squares[int(np.clip(rank, 0, count - 1))]

    def chi_squared(upper: float) -> float:
        """The quantile of one degree of freedom, by the probability above it."""
        return ndtri(upper / 2) ** 2

    # A scaled and shifted chi-squared distribution is fitted to two quantiles of the squared norms.
    # The threshold is its quantile beyond which `level` of so many tokens are expected.
    lower, upper = quantile(LOWER, -1), quantile(UPPER, 1)
    expected_lower, expected_upper = chi_squared(1 - LOWER), chi_squared(1 - UPPER)
    scale = (upper - lower) / (expected_upper - expected_lower)
    threshold = upper + scale * (chi_squared(level / count) - expected_upper)
    return max(np.sqrt(threshold), MIN_RATIO * np.sqrt(np.median(squares)))


def second_mode(norms: np.ndarray, level: float) -> float:
    """The norm from which a second mode of norms (example, token) begins; infinite without one.

    If the density of the log norms has one mode, then of two bins above it the upper one holds more
    tokens of an image at most as often as the lower one. The sign test over images of each pair of
    bins is corrected for their number (Bonferroni).
    """
    norms = np.asarray(norms, np.float64)
    median = np.median(norms)
    if not median > 0:
        return np.inf
    with np.errstate(divide="ignore"):
        bins = np.floor(np.log2(norms / median).clip(-100) / BIN).astype(int)
    values, counts = np.unique(bins, return_counts=True)
    above = range(values[counts.argmax()] + 1, values[-1] + 1)
    of_images = [(bins == number).sum(axis=1) for number in above]
    best, start = 1.0, np.inf
    for lower, upper in combinations(range(len(above)), 2):
        more, fewer = (
            (of_images[a] > of_images[b]).sum() for a, b in ((upper, lower), (lower, upper))
        )
        # The probability of as many images or more, if half of them are expected.
        p_value = bdtrc(more - 1, more + fewer, 0.5) if more else 1.0
        if p_value < best:
            best, start = p_value, median * 2.0 ** (BIN * above[lower] + BIN)
    return start if best * len(above) * (len(above) - 1) / 2 < level else np.inf


def outliers_of(rows: dict[str, np.ndarray], level: float) -> dict[str, Any]:
    """What `outlier_tokens` returns of a layer, from norms and attention (example, token)."""
    norms = rows["norm"].astype(np.float64)
    threshold = max(norm_threshold(norms, level), second_mode(norms, level))
    is_outlier = norms > threshold
    share, error = mean_and_error(is_outlier.mean(axis=1))
    ratio = np.nan
    if is_outlier.any():
        ratio = np.median(norms[is_outlier]) / np.median(norms[~is_outlier])
    # Attention that outliers, other spatial tokens and prefix tokens receive.
    attention = [(np.nan, np.nan)] * 3
    if "received" in rows:
        received, prefix = (rows[name].astype(np.float64) for name in ("received", "prefix"))
        attention = [
            mean_over_images(received, is_outlier),
            mean_over_images(received, ~is_outlier),
            mean_over_images(prefix, np.ones(prefix.shape, bool)),
        ]
    return {
        "share": share,
        "stderr": error,
        "images": is_outlier.any(axis=1).mean(),
        "threshold": threshold,
        "median_norm": np.median(norms),
        "norm_ratio": ratio,
        "attention": attention,
    }


def mean_over_images(values: np.ndarray, is_counted: np.ndarray) -> tuple[Any, Any]:
    """Mean over images of the mean of the tokens (example, token) that count, and its error."""
    counts = is_counted.sum(axis=1)
    means = (np.where(is_counted, values, 0).sum(axis=1) / np.maximum(counts, 1))[counts > 0]
    return mean_and_error(means) if len(means) else (np.nan, np.nan)


@measurement("patching")
@labels_after_images
def outlier_roles(
    model: ModelLike,
    images: ImagesLike,
    scores: str | None = None,
    level: float = 0.01,
    seed: int = 0,
    outliers: xr.Dataset | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """What outlier tokens encode, and how the output changes if they are replaced.

    The outliers of an image (see `outlier_tokens`) are compared with the same number of ordinary
    tokens of this image, chosen at random. There are two comparisons.

    * Probes: a ridge classifier predicts the class of the image, or the position of the token, from
      a single token (Darcet et al. 2024, section 2.2, https://arxiv.org/abs/2309.16588).
    * Replacement: the tokens are replaced, as in `token_ablation`, by zero, by the mean over the
      images at their position, or by the token at their position in another image. A single kind of
      replacement may mislead: the model never received zero in training, and the mean keeps the
      information that all images share.

    Args:
        model: a model, or a submodel that returns layers of tokens and the class scores.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays.
        scores: name of the layer that returns the class scores before a softmax. By default, it is
            found in the model.
        level: as for `outlier_tokens`.
        seed: seed of the random choices. The choices for an image depend on the seed and on the
            values of the image, not on its batch.
        outliers: result of `outlier_tokens` for the same layers, which holds the threshold of each
            layer. If None, `outlier_tokens` is first computed on `images`.

    Returns:
        Dataset with the variables below. The dim `content` lists `"class"` and `"position"`, and
        the dim `tokens` lists `"outlier"` and `"ordinary"`. Values are NaN for layers with outliers
        in fewer than 20 images.

        * `probe_accuracy`, of shape (layer, content, tokens): the accuracy of the probe,
          cross-validated over five folds of the images.
        * `probe_accuracy_stderr`, of shape (layer, content, tokens): the standard error of
          `probe_accuracy` over images.
        * `chance`, of shape (layer, content, tokens): the share of the most frequent class, or of
          the most frequent position, among the probed tokens.
        * `probe_difference`, of shape (layer, content): the accuracy for outliers minus the
          accuracy for ordinary tokens of the same images.
        * `probe_difference_stderr`, of shape (layer, content): the standard error of
          `probe_difference` over images.
        * `accuracy_change`, `loss_change` and `output_change`, of shape (layer, tokens,
          replacement): the changes of the output after replacement, as in `token_ablation`.
        * `accuracy_change_stderr`, `loss_change_stderr` and `output_change_stderr`, of shape
          (layer, tokens, replacement): the standard errors of the three changes over images.

    Raises:
        ValueError: if the submodel does not return layers of tokens and class scores, if `outliers`
            lacks one of the layers, or if activations are not finite.

    Examples:
        >>> result = analysis.outlier_roles(vit, (images, labels))
        >>> result.probe_accuracy.dims
        ('layer', 'content', 'tokens')
        >>> ax = analysis.plot(result)

    See also:
        `plots.plot_outlier_roles`, `outlier_tokens`, `token_ablation`; page
        measurements/flow/outlier-tokens.md.
    """
    features, images, scores = prepare_scored(
        model, images, scores, kind="patching", layers=layers, detail=detail, labelled=True
    )
    read_layers = list(layers_to_edit(features, scores))
    grid = require_grid(features, None)
    if outliers is None:
        tokens = keep(features, ("tokens", *read_layers), lambda: features.select(read_layers))
        statistic = outlier_tokens_statistic(tokens, level=level)
        outliers = evaluate(statistic, images, tokens, description="outlier tokens")
    if missing := sorted(set(read_layers) - set(outliers["layer"].values)):
        raise ValueError(
            f"outliers= lacks the layers {missing}: measure outlier_tokens at the same layers."
        )
    outliers = outliers.sel(layer=read_layers)
    # Layers with outliers in too few images are left out.
    thresholds = {
        layer: float(outliers["threshold"].sel(layer=layer))
        for layer in read_layers
        if outliers["images"].sel(layer=layer) * outliers.attrs["examples"] > MIN_IMAGES - 0.5
    }
    if not thresholds:
        return without_effects(
            read_layers,
            {name: outliers.attrs[name] for name in ("model", "examples", "batch_size")},
        ).assign(probe_variables(read_layers, {}))
    # One pass replaces the tokens, and another one collects those that are probed.
    means = means_to_insert(features, images, list(thresholds), MEAN, "means of tokens")
    statistic = _replacement_statistic(features, scores, tuple(thresholds.items()), grid, seed)
    changes = measure_effects(
        features,
        replace(statistic, state=means),
        product(thresholds, (OUTLIER, ORDINARY), REPLACEMENTS),
        ("layer", "tokens", "replacement"),
        images,
        scores=scores,
        description="replacement of outlier tokens",
        level=level,
        seed=seed,
    )
    statistic = _content_statistic(features, tuple(thresholds.items()), grid, seed)
    rows = evaluate(statistic, images, features, description="content of outliers")
    probes = {}
    for layer, pairs in rows["layers"].items():
        if (has_both := pairs["has_both"]).sum() >= MIN_IMAGES:
            probes[layer] = probe_both(
                pairs["vectors"][has_both],
                pairs["positions"][has_both],
                rows["labels"][has_both],
                seed,
            )
    return changes.reindex(layer=read_layers).assign(probe_variables(read_layers, probes))


def outliers_and_others(
    values: tf.Tensor, threshold: float, grid: TokenGrid, order: tf.Tensor
) -> tuple[tf.Tensor, tf.Tensor]:
    """Which spatial tokens are outliers, and as many others of each image, in a random order."""
    norms = tf.norm(grid.spatial(tf.cast(values, tf.float32)), axis=-1)
    is_outlier = norms > threshold
    last = tf.where(is_outlier, order + 1, order)
    rank = tf.argsort(tf.argsort(last, stable=True), stable=True)
    count = tf.reduce_sum(tf.cast(is_outlier, tf.int32), axis=1, keepdims=True)
    return is_outlier, (rank < count) & ~is_outlier


def random_order(features: Features, images: tf.Tensor, num_tokens: int, seed: int) -> tf.Tensor:
    """Uniform random numbers (example, token) that follow from the levels of each image."""
    _, _, levels = to_own_units(features, tf.cast(images, tf.float32))
    spec = tf.TensorSpec((num_tokens,), tf.float32)
    return draw_for_images(
        levels, seed, lambda key: tf.random.stateless_uniform((num_tokens,), key), spec
    )


@reusable
def _replacement_statistic(
    features: Features,
    scores: str,
    thresholds: Sequence[tuple[str, float]],
    grid: TokenGrid,
    seed: int,
) -> Statistic[Totals]:
    """The `effects_statistic` of replaced tokens; its state is the mean of each layer."""
    cells = list(product(dict(thresholds), (OUTLIER, ORDINARY), REPLACEMENTS))

    def interventions(taps: Taps, images: tf.Tensor, state: Taps) -> list[dict[str, Callable]]:
        order = random_order(features, images, grid.num_spatial, seed)
        masks = {}
        for layer, threshold in thresholds:
            both = outliers_and_others(taps[layer], threshold, grid, order)
            for tokens, mask in zip((OUTLIER, ORDINARY), both, strict=True):
                # The prefix stays.
                masks[layer, tokens] = tf.pad(mask, ((0, 0), (grid.prefix, 0)))[..., None]
        return [
            {layer: edits.where(masks[layer, tokens], replacement_of(replacement, layer, state))}
            for layer, tokens, replacement in cells
        ]

    return effects_statistic(features, interventions, scores, len(cells), RESAMPLE)


@reusable
def _content_statistic(
    features: Features, thresholds: Sequence[tuple[str, float]], grid: TokenGrid, seed: int
) -> Statistic[dict[str, Any]]:
    """`Statistic` with one outlier and one ordinary token of each image, by layer."""

    def step(images: tf.Tensor, labels: tf.Tensor, taps: Taps) -> dict[str, Any]:
        order = random_order(features, images, grid.num_spatial, seed)
        rows = {}
        for layer, threshold in thresholds:
            tokens = grid.spatial(tf.cast(taps[layer], tf.float32))
            masks = outliers_and_others(taps[layer], threshold, grid, order)
            # The first outlier and the first ordinary token in the random order.
            positions = [tf.argmin(tf.where(mask, order, 2.0), axis=1) for mask in masks]
            rows[layer] = {
                "has_both": tf.reduce_any(masks[0], axis=1) & tf.reduce_any(masks[1], axis=1),
                "positions": tf.stack(positions, axis=1),
                "vectors": tf.gather(tokens, tf.stack(positions, axis=1), axis=1, batch_dims=1),
            }
        return {"layers": rows, "labels": labels}

    return row_statistic(step, with_labels=True)


def probe_both(
    vectors: np.ndarray, positions: np.ndarray, labels: np.ndarray, seed: int
) -> dict[str, np.ndarray]:
    """Accuracy of ridge classifiers of the class and of the position from two tokens of images.

    `vectors` are of shape (example, tokens, channel), `positions` of (example, tokens). Returns
    arrays of shape (content, tokens) or (content,).
    """
    correct, largest = [], []
    for targets in (np.repeat(labels[:, None], 2, axis=1), positions):
        pairs = list(zip(vectors.swapaxes(0, 1), targets.T, strict=True))
        correct.append([cross_validated(x, y, seed) for x, y in pairs])
        largest.append([np.unique(y, return_counts=True)[1].max() for _, y in pairs])
    correct = np.array(correct, np.float64)  # (content, tokens, example)
    accuracy, error = mean_and_error(np.moveaxis(correct, -1, 0))
    difference, difference_error = mean_and_error((correct[:, 0] - correct[:, 1]).T)
    return {
        "probe_accuracy": accuracy,
        "probe_accuracy_stderr": error,
        "chance": np.array(largest) / len(labels),
        "probe_difference": difference,
        "probe_difference_stderr": difference_error,
    }


def cross_validated(x: np.ndarray, targets: np.ndarray, seed: int) -> np.ndarray:
    """Whether a ridge classifier of rows (example, channel) is right on each, fitted on others."""
    x = x.astype(np.float64)
    _, classes = np.unique(targets, return_inverse=True)
    one_hot = np.eye(classes.max() + 1)[classes]
    fold = np.random.default_rng(seed).permutation(len(x)) % FOLDS
    is_correct = np.zeros(len(x), bool)
    for number in range(FOLDS):
        train, held_out = fold != number, fold == number
        mean, deviation = x[train].mean(axis=0), x[train].std(axis=0)
        target = one_hot[train].mean(axis=0)
        scaled = (x - mean) / np.where(deviation > 0, deviation, 1)
        (weights,) = fit_rows(scaled[train], one_hot[train] - target, [PENALTY * train.sum()])
        scores = scaled[held_out] @ weights + target
        is_correct[held_out] = scores.argmax(axis=1) == classes[held_out]
    return is_correct


PROBES = {
    "probe_accuracy": "accuracy of a ridge classifier of one token",
    "probe_accuracy_stderr": "standard error of the accuracy over images",
    "chance": "share of the most frequent class or position",
    "probe_difference": "accuracy on outlier minus ordinary tokens of the same images",
    "probe_difference_stderr": "standard error of the difference over images",
}


def probe_variables(layers: list[str], probes: dict[str, dict[str, np.ndarray]]) -> xr.Dataset:
    """The probes of all layers, NaN for those without."""
    dims, variables = ("layer", "content", "tokens"), {}
    for name, words in PROBES.items():
        own_dims = dims[:2] if name.startswith("probe_difference") else dims
        values = np.full((len(layers), *(2 for _ in own_dims[1:])), np.nan)
        for number, layer in enumerate(layers):
            if layer in probes:
                values[number] = probes[layer][name]
        variables[name] = variable(own_dims, values, words)
    return ResultDataset(
        variables, {"layer": layers, "content": [CLASS, POSITION], "tokens": [OUTLIER, ORDINARY]}
    )


def without_effects(layers: list[str], facts: dict[str, Any]) -> xr.Dataset:
    """The changes by replacement, all NaN, of layers that have no outliers."""
    dims = ("layer", "tokens", "replacement")
    nothing = np.full((len(layers), 2, len(REPLACEMENTS)), np.nan)
    variables = {}
    for name, (words, units) in CHANGES.items():
        variables[name] = variable(dims, nothing, words, units)
        variables[f"{name}_stderr"] = variable(dims, nothing, f"standard error of {name}", units)
    return ResultDataset(
        variables,
        {"layer": layers, "tokens": [OUTLIER, ORDINARY], "replacement": list(REPLACEMENTS)},
        facts,
    )
