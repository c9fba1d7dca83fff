"""Saliency of attention: overlap of the most attended tokens with a mask of the object."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import TokenGrid
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.masks import count_out_of_range, patch_cover, require_in_range
from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import PartialGrid, require_grid
from ..engine.preparation import ImagesLike
from ..engine.results import (
    PARTS,
    SPATIAL,
    dataset_of,
    facts_of,
    mean_over_batches,
    require_finite,
    variable,
)
from ..engine.stream import Statistic, Totals, evaluate
from .attention_distance import (
    LEFT_OUT,
    attention_weights,
    prepare_attention,
    spatial_shares,
)

# Largest rounding error of float32 sums of shares: it must not decide about a token at the bound.
ROUNDING = 1e-6


@measurement("attention")
def attention_saliency(
    model: ModelLike,
    images_and_masks: ImagesLike,
    grid: PartialGrid = None,
    mass: float = 0.6,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Overlap of the most attended tokens of each image with a mask of its object (IoU).

        IoU = sum_t kept_t covered_t / sum_t (kept_t + covered_t - kept_t covered_t)

    * `kept_t` is 1 if token t is kept, and 0 otherwise. The kept tokens are the smallest set of
      spatial tokens that together receive the share `mass` of the attention. The query of this
      attention is CLS, or the attention is averaged over the spatial queries. Prefix keys are
      excluded.
    * `covered_t` is the share of the patch of token t that the mask covers. If masks are given per
      pixel, the result is therefore the IoU in pixels (Walmer et al. 2023, section 4.4, appendix
      C.3, figures 5 and 16).

    The IoU is averaged over the images with a non-empty mask. The mean of a head excludes images in
    which the query attends to prefix tokens only (its attention to the spatial tokens is 0 in
    float32). Walmer et al. count a patch as covered if the mask touches it. To use this definition,
    pass masks at the size of the token grid that are 1 for every patch that the object touches.

    Args:
        model: a model, or a callable that maps images to a dict of attention weights, as for
            `mean_attention`.
        images_and_masks: batched `tf.data.Dataset` of (images, masks), or a pair of arrays. Masks
            have shape (example, row, column), at the size of the images or of the token grid. A
            mask marks all objects of its image. The values of masks are booleans, or numbers in [0,
            1]: the share of each pixel or patch that belongs to an object.
        grid: as in `vit_tf.analysis`.
        mass: share of the attention that the kept tokens receive, more than 0 and at most 1.

    Returns:
        Dataset with seven variables. The dim `query` lists `"spatial"` and, if there are prefix
        tokens, `"cls"`. The attribute `left_out` is the number of images with an empty mask, which
        the variable `left_out` does not count.

        * `iou`, of shape (query, layer, head): the IoU of a head with the masks, averaged over
          images. It is NaN if no image remains for the head.
        * `best_iou` and `best_head`, of shape (query, layer): the largest `iou` among the heads of
          a layer, and the index of the head that has it. If `iou` is NaN for all heads of the
          layer, `best_iou` is NaN and `best_head` is -1.
        * `other_iou`, of shape (query, layer, head): a baseline. It is the mean IoU of a head's
          attention in one image with the mask of the preceding image in the batch, and shows how
          much attention overlaps with the usual positions of objects.
        * `leave_one_out` and `other_leave_one_out`, of shape (batch, query, layer, head): `iou` and
          `other_iou` computed without each batch of images in turn.
        * `left_out`, of shape (query, layer, head): the number of images with a non-empty mask that
          `iou` excludes, because the query of the head attends to prefix tokens only.

    Raises:
        ValueError: if `mass` is not in (0, 1], if masks have the wrong size or values outside [0,
            1], or if all masks are empty. The errors of `mean_attention` apply as well.

    Examples:
        >>> masks = np.zeros((24, 32, 32), bool)
        >>> masks[:, 8:24, 8:24] = True
        >>> saliency = analysis.attention_saliency(vit, (images, masks))
        >>> saliency.iou.dims
        ('query', 'layer', 'head')

    See also:
        `plots.plot_attention_saliency`, `attention_maps`; page measurements/attention/saliency.md.
    """
    features, batches, grid = prepare_attention(
        model, images_and_masks, grid, layers=layers, detail=detail, masked=True
    )
    return evaluate(
        attention_saliency_statistic(features, grid, mass),
        batches,
        features,
        description="attention saliency",
    )


@statistic_of(attention_saliency)
def attention_saliency_statistic(
    features: Features, grid: PartialGrid = None, mass: float = 0.6
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `attention_saliency`."""
    grid = require_grid(features, grid)
    if not 0 < mass <= 1:
        raise ValueError(f"Expected mass in (0, 1]. Received: mass={mass}")

    def step(images: tf.Tensor, masks: tf.Tensor, taps: Taps) -> dict[str, Any]:
        covered = patch_cover(masks, grid)
        counted = tf.cast(tf.reduce_any(covered > 0, axis=-1), tf.float32)
        weights = attention_weights(taps, grid)
        queries = {layer: query_maps(values, grid) for layer, values in weights.items()}
        # Objects of other images show how far attention overlaps with wherever objects are.
        other_covered, other_counted = tf.roll(covered, 1, axis=0), tf.roll(counted, 1, axis=0)
        truths = {"iou": (covered, counted), "other_iou": (other_covered, other_counted)}
        return {
            "rows": {
                name: {x: _summed_iou(maps, *truth, mass)[None] for x, maps in queries.items()}
                for name, truth in truths.items()
            },
            "attention": {x: tf.reduce_sum(maps, (1, 3)) for x, maps in queries.items()},
            "counted": tf.reduce_sum(counted),
            "out_of_range": count_out_of_range(masks),
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    return Statistic(step, lambda totals: _overlap(totals, features, grid, mass), with_labels=True)


def query_maps(weights: tf.Tensor, grid: TokenGrid) -> tf.Tensor:
    """Maps (query, example, head, spatial_key) of CLS, if any, and of the mean query; or zeros."""
    weights = tf.cast(weights, tf.float32)
    # A product reads all queries once, where a mean of some of them would copy these first.
    share = [[0.0] * grid.prefix + [1.0 / grid.num_spatial] * grid.num_spatial]
    queries = [weights[:, :, :1]] if grid.prefix else []
    queries = tf.stack([*queries, tf.matmul(tf.constant(share), weights)])
    return spatial_shares(queries[:, :, :, 0], grid)[0]


def query_names(grid: TokenGrid) -> list[str]:
    """Names of the maps of `query_maps`."""
    return list(PARTS) if grid.prefix else [SPATIAL]


def most_attended(maps: tf.Tensor, mass: float) -> tf.Tensor:
    """Which tokens hold `mass` of a map, as few as do: ones and zeros of its shape (..., token)."""
    order = tf.argsort(maps, direction="DESCENDING", stable=True)
    ranked = tf.gather(maps, order, axis=-1, batch_dims=maps.shape.rank - 1)
    before = tf.cumsum(ranked, axis=-1, exclusive=True)
    is_kept = tf.cast(before < mass - ROUNDING, tf.float32)
    rank = tf.argsort(order)
    return tf.gather(is_kept, rank, axis=-1, batch_dims=maps.shape.rank - 1)


def has_attention(maps: tf.Tensor) -> tf.Tensor:
    """Whether a map of shape (..., token) has any attention: ones and zeros of shape (...)."""
    return tf.cast(tf.reduce_any(maps != 0, axis=-1), tf.float32)


def _summed_iou(maps: tf.Tensor, covered: tf.Tensor, counted: tf.Tensor, mass: float) -> tf.Tensor:
    """IoU of maps (query, example, head, token) and numbers of images: (2, query, head)."""
    most = most_attended(maps, mass)
    both = tf.einsum("qeht,et->qeh", most, covered)
    either = tf.reduce_sum(most, axis=-1) + tf.reduce_sum(covered, axis=-1)[:, None] - both
    with_iou = has_attention(maps) * counted[:, None]
    return tf.stack([tf.reduce_sum(x, axis=1) for x in (with_iou * both / either, with_iou)])


def _overlap(totals: Totals, features: Features, grid: TokenGrid, mass: float) -> xr.Dataset:
    """The result of `attention_saliency`, from what the steps add up to."""
    layers = list(totals["attention"])
    require_finite("saliency", totals["attention"].values(), layers)
    require_in_range(totals["out_of_range"])
    if not totals["counted"]:
        raise ValueError("All masks are empty: at least one must mark an object.")
    # Sums and counts of each batch, of shape (batch, 2, query, layer, head).
    batches, other_batches = (
        np.stack(list(totals["rows"][name].values()), axis=3) for name in ("iou", "other_iou")
    )
    iou, counted, rest = mean_over_batches(batches)
    other_iou, _, other_rest = mean_over_batches(other_batches)
    best_iou = np.fmax.reduce(iou, axis=-1)  # of heads that have one
    best_head = np.where(np.isnan(best_iou), -1, np.nan_to_num(iou, nan=-1.0).argmax(axis=-1))
    dims = ("query", "layer")
    words = "mean IoU of attention and mask"
    variables = {
        "iou": variable((*dims, "head"), iou, words),
        "best_iou": variable(dims, best_iou, words),
        "best_head": (dims, best_head, {"long_name": "head of the largest IoU"}),
        "other_iou": variable((*dims, "head"), other_iou, f"{words} of another image"),
        "leave_one_out": variable(("batch", *dims, "head"), rest, f"{words} without each batch"),
        "other_leave_one_out": variable(
            ("batch", *dims, "head"), other_rest, "the same of masks of other images"
        ),
        "left_out": ((*dims, "head"), (totals["counted"] - counted).astype(int), LEFT_OUT),
    }
    left_out = int(totals["examples"] - totals["counted"])
    return dataset_of(
        variables,
        facts_of(
            features,
            totals,
            "mean over examples of the IoU of the fewest tokens that hold the mass",
            mass=mass,
            left_out=left_out,
            **vars(grid),
        ),
        query=query_names(grid),
        layer=layers,
    )
