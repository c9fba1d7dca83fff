"""Attention followed through the layers to the input: rollout, and weighted by gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import TokenGrid
from vit_tf.common.names import format_list, is_part
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.class_scores import ClassesLike, class_coords, class_gradients, class_positions
from ..engine.measurements import measurement, statistic_of
from ..engine.pictures import with_pictures
from ..engine.pooling import PartialGrid, complete_grid, pooled_tokens, require_grid
from ..engine.preparation import ImagesLike, prepare_scored
from ..engine.results import array_of, facts_of, provenance, require_finite, stack_layers
from ..engine.stream import Statistic, Totals, evaluate, row_statistic
from ..engine.traces import reusable
from .attention_distance import attention_weights, num_attended, prepare_attention

# Share of the squared norm of a site's sum by which the next site's skip may differ from it.
UNCHANGED = 1e-6
DIMS, NAME_AND_UNITS = ("query", "key"), ("attention rollout", "1")
ESTIMATOR = "product through the layers of mean over heads + identity, rows divided by their sum"


@measurement("rollout")
def attention_rollout(
    model: ModelLike,
    images: ImagesLike | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Attention rollout from each layer to the input tokens, averaged over examples.

        R_l = A_l R_(l-1),  A_l = (mean over heads of a_l) / 2 + I / 2,  R_0 = I

    Each row of A_l is divided by its sum, which is 1 unless the weights of a query do not sum to 1.
    R_l(q, k) is the share of the embedding of token k in token q after layer l (Abnar and Zuidema
    2020, https://arxiv.org/abs/2005.00928, section 3). The factor 1/2 assumes that the skip and the
    branch have equal weight. Values and MLPs are ignored. Attention to prefix tokens counts like
    any other attention, so no query is excluded.

    Args:
        model: a model, or a callable that maps images to a dict from layer name to tensor. The dict
            must include `"block*/attention/weights"` of shape (example, head, query, key), and
            `"block*/*/skip"` and `"block*/*/sum"` for the attention and the MLP of each of these
            blocks. The skips and sums are used only to verify that the model has skips.
        images, grid: as in `vit_tf.analysis`.

    Returns:
        DataArray of shape (layer, query, key) over all tokens, prefix tokens included. Values sum
        to 1 over the keys.

    Raises:
        ValueError: if the attention or MLP of a block has no skip, or if the sum after one sublayer
            (attention or MLP) is not the skip of the next sublayer. Rollout is not defined for such
            models, for example post-norm models. The errors of `mean_attention` apply as well.

    Examples:
        >>> rollout = analysis.attention_rollout(vit, images)
        >>> rollout.dims
        ('layer', 'query', 'key')
        >>> bool(np.allclose(rollout.sum("key"), 1))
        True
        >>> ax = analysis.plot(rollout, query="cls")

    See also:
        `plots.plot_attention_rollout`, `rollout_of_images`, `gradient_attention`; page
        measurements/attention/rollout.md.
    """
    features, batches, grid = prepare_attention(
        model, images, grid, kind="rollout", layers=layers, detail=detail
    )
    result = evaluate(
        attention_rollout_statistic(features, grid),
        batches,
        features,
        description="attention rollout",
    )
    return with_pictures(result, features, batches)


@statistic_of(attention_rollout)
def attention_rollout_statistic(
    features: Features, grid: PartialGrid = None
) -> Statistic[xr.DataArray]:
    """The `Statistic` of `attention_rollout`."""
    grid = require_grid(features, grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        rollouts = _rollouts(taps, grid)
        return {
            "rollout": {layer: tf.reduce_sum(r, axis=0) for layer, r in rollouts.items()},
            "changes": {pair: tf.reduce_sum(c) for pair, c in _skip_changes(taps).items()},
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.DataArray:
        layers, summed = stack_layers("attention rollout", totals["rollout"])
        _require_same_skips(totals["changes"], totals["examples"])
        rollout = summed / totals["examples"]
        return array_of(
            "attention_rollout",
            rollout,
            ("layer", *DIMS),
            NAME_AND_UNITS,
            facts_of(features, totals, ESTIMATOR, **vars(grid)),
            layer=layers,
        )

    return Statistic(step, finish)


@measurement("rollout")
def rollout_of_images(
    model: ModelLike,
    images: ImagesLike | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Attention rollout through all layers, separately for each of a few images.

    Arguments and errors are the same as for `attention_rollout`.

    Returns:
        DataArray of shape (example, query, key).

    Examples:
        >>> rollout = analysis.rollout_of_images(vit, images[:2])
        >>> rollout.dims
        ('example', 'query', 'key')

    See also:
        `plots.plot_rollout_of_images`, `attention_rollout`; page measurements/attention/rollout.md.
    """
    features, batches, grid = prepare_attention(
        model, images, grid, kind="rollout", layers=layers, detail=detail, keep_order=True
    )
    result = evaluate(
        rollout_of_images_statistic(features, grid),
        batches,
        features,
        description="rollout of images",
    )
    return with_pictures(result, features, batches)


@statistic_of(rollout_of_images)
def rollout_of_images_statistic(
    features: Features, grid: PartialGrid = None
) -> Statistic[xr.DataArray]:
    """The `Statistic` of `rollout_of_images`."""
    grid = require_grid(features, grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        rollouts = _rollouts(taps, grid)
        return {"rows": {"rollout": list(rollouts.values())[-1], "changes": _skip_changes(taps)}}

    def finish(totals: Totals) -> xr.DataArray:
        rows = totals["rows"]
        rollout = rows["rollout"].astype(np.float64)
        examples = [f"example {number}" for number in range(len(rollout))]
        require_finite("attention rollout", rollout, examples)
        _require_same_skips({pair: c.sum() for pair, c in rows["changes"].items()}, len(rollout))
        return array_of(
            "attention_rollout",
            rollout,
            ("example", *DIMS),
            NAME_AND_UNITS,
            provenance(features, len(rollout), 1, estimator=ESTIMATOR, **vars(grid)),
        )

    return Statistic(step, finish)


def _rollouts(taps: Taps, grid: TokenGrid) -> dict[str, tf.Tensor]:
    """Rollout after each layer: dict from layer to tensor of shape (example, query, key)."""
    weights_of = attention_weights(taps, grid, equal_heads=False)
    # Attentions of one site before its sum are parallel: as one with the heads of all.
    parallel: dict[tuple[str, int], list[str]] = {}
    num_sums = 0
    for tap in taps:
        num_sums += is_part(tap, "sum")
        if tap in weights_of:
            parallel.setdefault((tap.rpartition("/")[0], num_sums), []).append(tap)
    rollouts, last = {}, None
    for layer, *others in parallel.values():
        heads = [tf.cast(weights_of[tap], tf.float32) for tap in (layer, *others)]
        mixed = tf.reduce_mean(tf.concat(heads, axis=-3), axis=-3)
        mixed += tf.eye(mixed.shape[-1])
        mixed /= tf.reduce_sum(mixed, axis=-1, keepdims=True)
        last = rollouts[layer] = mixed if last is None else tf.matmul(mixed, last)
    return rollouts


def _skip_changes(taps: Taps) -> dict[str, tf.Tensor]:
    """By how much of its squared norm each skip differs from the sum before it: (example,)."""
    # The sites of the blocks that have attention weights, in the order of the taps.
    sites_and_kinds = [(tap.rpartition("/")[0], tap.rpartition("/")[2]) for tap in taps]
    blocks = {site.rpartition("/")[0] for site, kind in sites_and_kinds if kind == "weights"}
    sites = [site for site, kind in sites_and_kinds if kind in ("weights", "skip", "branch", "sum")]
    sites = [site for site in dict.fromkeys(sites) if site.rpartition("/")[0] in blocks]
    required = [f"{site}/{end}" for site in sites for end in ("skip", "sum")]
    missing = [tap for tap in required or ["block*/attention/weights"] if tap not in taps]
    if missing:
        raise ValueError(
            "Expected attention weights, and the layers 'skip' and 'sum' of each sublayer of the "
            "same blocks. Attention rollout does not apply to models without skip connections, and "
            "only sums of two tensors are found to be such. "
            f"Missing: {format_list(missing)}"
        )
    changes = {}
    # Without a norm between sites, the sum of one site is the skip of the next.
    pairs = [(f"{before}/sum", f"{after}/skip") for before, after in itertools.pairwise(sites)]
    for pair in pairs:
        before, after = (tf.cast(taps[tap], tf.float32) for tap in pair)
        changed, *squares = (
            tf.reduce_sum(x**2, axis=(1, 2)) for x in (before - after, before, after)
        )
        changes[" and ".join(pair)] = tf.math.divide_no_nan(changed, squares[0] + squares[1])
    return changes


def _require_same_skips(changes: dict[str, float], examples: int) -> None:
    """Raises a `ValueError` that names the pairs of sites between which tokens change."""
    changed = [pair for pair, total in changes.items() if total / examples > UNCHANGED]
    if changed:
        raise ValueError(
            "Attention rollout needs the output ('sum') of each sublayer to be the input ('skip') "
            "of the next. It does not apply to post-norm models. If layers= omits a sublayer, add "
            "it. "
            f"Received a difference between {format_list(changed, '; ')}"
        )


@measurement("class_attention")
def gradient_attention(
    model: ModelLike,
    images: ImagesLike,
    classes: ClassesLike = None,
    grid: PartialGrid = None,
    scores: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Relevance of tokens for a class: attention times its gradient, accumulated through the
    layers.

        R_l = R_(l-1) + A_l R_(l-1),  A_l = mean over heads of max(0, a_l * d y_c / d a_l),  R_0 = I

    Here, y_c is the score of class c, and R(q, k) is the relevance of token k of the embedding to
    query q of the last layer (Chefer et al. 2021, "Generic Attention-Model Explainability",
    https://arxiv.org/abs/2103.15679, equations 5 and 6). Unlike rollout, the relevance depends on
    the class. Values and MLPs are ignored, and rows do not sum to 1.

    The relevance to the prediction is the mean over the queries that the classification head pools.
    The attribute `pooled_tokens` of the result lists these queries. If they are unknown, the CLS
    token is used if there are prefix tokens, and all tokens otherwise.

    Args:
        model: a model, or a callable that maps images to a dict from layer name to tensor, through
            which gradients flow. The tensors are attention weights of shape (example, head, query,
            key) and the class scores, as in `vit_tf.submodel(vit, "block*/attention/weights",
            "logits")`.
        images, classes, grid: as in `vit_tf.analysis`.
        scores: name of the layer that returns the class scores, of shape (example, class). By
            default, it is found in the model.

    Returns:
        DataArray of shape (example, class, query, key) over all tokens, prefix tokens included.

    Raises:
        ValueError: if the classes or the scores do not exist, if there is no grid, or if TensorFlow
            finds that the scores do not depend on the attention weights. The errors of
            `attention_distance` apply as well.

    Examples:
        >>> relevance = analysis.gradient_attention(vit, images[:2], classes=[0, 2])
        >>> relevance.dims
        ('example', 'class', 'query', 'key')
        >>> relevance["class"].values.tolist()
        [0, 2]

    See also:
        `plots.plot_gradient_attention`, `attention_rollout`, `grad_cam`; page guides/one-image.md.
    """
    features, images, scores = prepare_scored(
        model, images, scores, kind="class_attention", layers=layers, detail=detail, keep_order=True
    )
    positions = class_positions(features, images, classes, scores)

    def without_scores(taps: Taps) -> Taps:
        return {tap: x for tap, x in taps.items() if tap != scores}

    grid = complete_grid(features, images, grid, lambda taps: num_attended(without_scores(taps)))
    # Relevance is computed of each image and each class, one backward pass for all classes.
    rows = evaluate(
        _relevance_statistic(features, positions, scores, grid),
        images,
        description="gradient-weighted attention",
        checked=(features,),
    )
    require_finite("gradient-weighted attention", np.moveaxis(rows, 1, 0), map(str, positions))
    # The result names the queries that the classification head pools.
    pooled = pooled_tokens(features.facts.pooled_tokens, grid)
    result = array_of(
        "gradient_attention",
        rows,
        ("example", "class", *DIMS),
        ("gradient-weighted attention", "1"),
        provenance(
            features,
            len(rows),
            1,
            estimator="sum through the layers of positive attention times gradient",
            scores=scores,
            pooled_tokens=list(pooled),
            **vars(grid),
        ),
        **class_coords(features, positions),
    )
    return with_pictures(result, features, images)


@reusable
def _relevance_statistic(
    features: Features, classes: Sequence[int], scores: str, grid: TokenGrid
) -> Statistic[np.ndarray]:
    """`Statistic` over images with the relevance of each."""

    def weights(_: tf.Tensor, taps: Taps) -> Taps:
        return attention_weights({tap: x for tap, x in taps.items() if tap != scores}, grid)

    def step(batch: tf.Tensor) -> tf.Tensor:
        pairs = class_gradients(features, batch, classes, scores, weights)
        return relevance(list(pairs.values()))

    return row_statistic(step)


def relevance(layers: Iterable[tuple[tf.Tensor, tf.Tensor]]) -> tf.Tensor:
    """Relevance (..., query, key) after the last layer, from weights and their gradients."""
    total: Any = None
    for weights, gradient in layers:
        positive = tf.nn.relu(tf.cast(weights, tf.float32) * tf.cast(gradient, tf.float32))
        mixed = tf.reduce_mean(positive, axis=-3) + tf.eye(weights.shape[-1])
        total = mixed if total is None else mixed @ total
    return total
