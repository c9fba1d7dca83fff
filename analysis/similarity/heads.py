"""CKA of local and global attention heads with the layers of another model."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr
from scipy.linalg import block_diag

from vit_tf import TokenGrid
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps, pick_taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import PartialGrid, complete_grid, require_grid
from ..engine.preparation import ImagesLike, prepare_images, read_model
from ..engine.results import mean_of, require_finite, variable
from ..engine.stream import Statistic, Totals, evaluate
from ..heads.attention_distance import (
    LEFT_OUT,
    attention_weights,
    num_attended,
    summed_distance,
)
from .cka import (
    LEAST_EXAMPLES,
    hsic_terms,
    labelled_similarity,
    layer_kernels,
    names_of_layers,
    similarity,
    unbiased_kernels,
    unscaled,
)

ORDERS = ("local", "global")


@measurement(arguments="{model}, {other}, {images}")
def head_similarity(
    features_vit: ModelLike,
    features_other: ModelLike,
    images: ImagesLike,
    grid: PartialGrid = None,
    block: str = "block00",
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """CKA between subsets of a ViT block's heads and the layers of another model.

    Two values are computed for each subset of heads (Raghu et al. 2021, section 5, figure 5). The
    first is the minibatch CKA, as in `cka`, between the outputs of these heads at all tokens and
    each layer of the other model. The second is the mean attention distance of these heads. The
    linear kernel of a subset is the sum of the kernels of its heads, so the HSIC of two subsets S
    and T follows from the HSIC of single heads:

        HSIC(S, T) = sum over s in S and t in T of HSIC(s, t)

    Args:
        features_vit: a ViT, or a callable from images to `{layer: tensor}`. The layer
            `"{block}/attention/weights"` has the shape (example, head, query, key), and the layer
            `"{block}/attention/heads"` has the shape (example, token, head, channel).
        features_other: the other model, or a callable from images to `{layer: tensor}`, such as the
            lower layers of a ResNet.
        images: as in `vit_tf.analysis`.
        grid: `TokenGrid` of the ViT's tokens, or a pair (rows, columns). By default, the grid of
            the ViT.
        block: name of the block.

    Returns:
        Dataset with the following coordinates and variables.

        * `order` is `"local"` or `"global"`. The order `"local"` adds heads with the smallest
          attention distance first. The order `"global"` adds heads with the largest attention
          distance first.
        * `subset` is the number of heads in the subset, up to all heads.
        * `cka` and `stderr`, of shape (order, subset, layer): CKA and its standard error.
        * `distance`, of shape (order, subset): mean attention distance in pixels.
        * `left_out`, of shape (order, subset): number of queries that have no attention distance,
          as for `attention_distance`.

    Raises:
        ValueError: if there is no grid, if a layer does not exist or has another shape, or if a
            head attends to prefix tokens only. Other errors are as for `attention_distance` and
            `cka`.

    Examples:
        >>> similarity = analysis.head_similarity(vit, bit, images, block="block01")
        >>> similarity.cka.dims
        ('order', 'subset', 'layer')
        >>> similarity.order.values.tolist()
        ['local', 'global']

    See also:
        `plots.plot_head_similarity`, `cka`, `attention_distance`; page
        measurements/similarity/head-similarity.md.
    """
    # `detail` selects layers of the other model: those of the ViT are the heads of one block.
    read = [
        read_model(features_vit, "block_heads", layers, block=block, images=images),
        read_model(features_other, "representations", layers, detail, images=images),
    ]
    (vit, other), (batches,) = prepare_images(read, {"images": images})
    grid = complete_grid(vit, batches, grid, num_attended)
    statistic = head_similarity_statistic(vit, other, grid, block)
    return evaluate(statistic, batches, vit, other, description="heads")


@statistic_of(head_similarity)
def head_similarity_statistic(
    features_vit: Features,
    features_other: Features,
    grid: PartialGrid = None,
    block: str = "block00",
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `head_similarity`."""
    grid = require_grid(features_vit, grid)
    tap = f"{block}/attention/heads"

    def step(images: tf.Tensor, vit: Taps, other: Taps) -> dict[str, Any]:
        weights, heads = _weights_and_heads(vit, block, grid)
        by_head = tf.transpose(heads, (2, 0, 1, 3))
        by_head = tf.reshape(by_head, (heads.shape[2], tf.shape(images)[0], -1))
        pairs = zip(unbiased_kernels(by_head), layer_kernels(other.values()), strict=True)
        kernels, scales = (tf.concat(pair, axis=0) for pair in pairs)
        terms = hsic_terms(images, kernels, scales) | {"layers": names_of_layers([other])}
        return terms | {"distance": summed_distance(weights, grid)}

    def finish(totals: Totals) -> xr.Dataset:
        layers = list(totals["layers"][0])
        distance, left_out = _distance(totals, grid, f"{block}/attention/weights")
        hsic, squares = unscaled(totals["rows"]["hsic"], totals["rows"]["scales"])
        # Subsets hold the first heads of each order, such as those with the shortest distances.
        members = subset_members(distance)
        parts = similarity_of_subsets(hsic, squares, members, tap, layers)
        count = np.arange(1, len(distance) + 1)
        shape = len(ORDERS), len(count)
        value, stderr = (part.reshape(*shape, len(layers)) for part in parts)
        coords = {"order": list(ORDERS), "subset": count, "layer": layers}
        models = features_vit, features_other
        result = labelled_similarity(value, stderr, coords, models, totals)
        of_subsets = (members @ distance).reshape(shape) / count
        words = "mean attention distance of the heads", "pixels"
        result["distance"] = variable(("order", "subset"), of_subsets, *words)
        missing = (members @ left_out).astype(int).reshape(shape)
        result["left_out"] = (("order", "subset"), missing, LEFT_OUT)
        return result.assign_attrs(block=block)

    return Statistic(step, finish, min_batch=LEAST_EXAMPLES)


def _distance(totals: Totals, grid: TokenGrid, tap: str) -> tuple[np.ndarray, np.ndarray]:
    """The distance of each head, and the number of its queries that have none."""
    summed, counted = totals["distance"]
    require_finite("attention distance", [summed], [tap])
    distance = mean_of(summed, counted)
    unknown = np.flatnonzero(np.isnan(distance)).tolist()
    if unknown:
        raise ValueError(
            "Expected every head to attend to spatial tokens, to order heads by distance. "
            f"Received: {tap!r}, whose heads {unknown} attend to prefix tokens only"
        )
    return distance, totals["examples"] * grid.num_spatial - counted


def subset_members(distance: np.ndarray) -> np.ndarray:
    """Which heads (subset of each order, head) each subset holds, from their distances (head,)."""
    nearest = np.argsort(distance, kind="stable")
    # The place of each head in an order: `argsort` of a permutation is its inverse.
    ranks = [np.argsort(order) for order in (nearest, nearest[::-1])]
    sizes = np.arange(1, len(distance) + 1)[:, None]
    return np.concatenate([rank < sizes for rank in ranks]).astype(np.float64)


def similarity_of_subsets(
    hsic: np.ndarray, squares: np.ndarray, members: np.ndarray, tap: str, layers: list[str]
) -> tuple[np.ndarray, np.ndarray]:
    """CKA of subsets of heads and layers, and its error, (subset, layer): HSIC is additive."""
    subsets, heads = members.shape
    self_similarity = np.diagonal(hsic, axis1=1, axis2=2).T
    require_finite("CKA", self_similarity, [f"{tap}/head{head}" for head in range(heads)] + layers)
    # Sums of the heads of each subset, followed by the layers as they are.
    add = block_diag(members, np.eye(len(layers)))
    names = [f"{tap}/{order}{size + 1}" for order in ORDERS for size in range(heads)] + layers
    value, stderr = similarity(add @ hsic @ add.T, add @ squares, names)
    return value[:subsets, subsets:], stderr[:subsets, subsets:]


def _weights_and_heads(taps: Taps, block: str, grid: TokenGrid) -> tuple[tf.Tensor, tf.Tensor]:
    """The attention weights of a block (example, head, query, key), and its heads' outputs."""
    names = [f"{block}/attention/weights", f"{block}/attention/heads"]
    weights, heads = pick_taps(taps, names).values()
    weights = attention_weights({names[0]: weights}, grid)[names[0]]
    count = weights.shape[1]
    if heads.shape.rank != 4 or heads.shape[2] != count:
        raise ValueError(
            f"Expected heads of shape (example, token, head, channel) with {count} heads, as in "
            f"the weights. Received: {names[1]!r} of shape {tuple(heads.shape)}"
        )
    return weights, heads
