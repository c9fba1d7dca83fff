"""Stitching: how well does one model go on from another model's representations?"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf import edits
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.tokens import TokenGrid

from ..engine.least_squares import ridge_inverse
from ..engine.measurements import labels_after_images, measurement
from ..engine.pooling import as_maps, require_grid
from ..engine.preparation import ImagesLike, prepare_images, read_model, score_layer
from ..engine.results import layer_names, model_name, require_finite
from ..engine.stream import Statistic, evaluate, sum_statistic
from ..engine.traces import keep, reusable
from .ablation import effects_statistic, layers_to_edit, measure_effects

# The tensors of the parts of a sequence, by layer.
Parts: TypeAlias = dict[str, dict[str, tf.Tensor]]

SPATIAL, PREFIX = "spatial", "prefix"
UNTRAINED, PIXELS = "untrained ", "pixels"  # what nulls are called among the layers


@measurement("lens", arguments="{model}, {other}, train, {images}")
@labels_after_images
def stitching(
    features_x: ModelLike,
    features_y: ModelLike,
    train: ImagesLike,
    images: ImagesLike,
    scores: str | None = None,
    l2: float = 1e-4,
    *,
    layers: LayerSelection = None,
) -> xr.Dataset:
    """Loss of a model in which a layer is replaced by a linear map of another model's layer.

        W = argmin sum over tokens of |x W + b - y|^2 + l2 (mean of x's variances) tokens |W|^2

    Here, `x` are the tokens of a layer of the first model, and `y` are the tokens at the same
    positions of a layer of the second model. The second model continues from `x W + b` (Lenc and
    Vedaldi 2015, https://arxiv.org/abs/1411.5908). Csiszarik et al. 2021
    (https://arxiv.org/abs/2110.14633) call this direct matching. Bansal et al. 2021
    (https://arxiv.org/abs/2106.07682) train the map by gradient descent to minimise the loss of the
    stitched model. A loss alone is hard to interpret, so two baselines are measured too: maps from
    an untrained copy of the first model, and maps from the pixels.

    CKA compares directions of large variance. Stitching shows which information the second model
    can use, even if this information lies in directions of small variance. If the second model has
    prefix tokens such as CLS, two linear maps are fitted for each pair of layers. One map predicts
    the spatial tokens of the second model from the spatial tokens of the first model. The other map
    predicts the prefix tokens of the second model, from the prefix tokens of the first model if
    both models have equally many, and otherwise from the mean of the first model's spatial tokens.

    Args:
        features_x: the first model, whose layers are mapped.
        features_y: the second model, which continues from the mapped layers, or a submodel of its
            layers and scores.
        train: images on which the maps are fitted, as in `vit_tf.analysis`. If there are prefix
            tokens, use more images than a layer has channels.
        images: images and labels on which the loss is measured, a batched `tf.data.Dataset` of
            (images, labels) or a pair of arrays.
        scores: name of the layer of the second model that returns the class scores. By default, it
            is found in the model.
        l2: ridge penalty, relative to the mean variance of the channels of x.

    Returns:
        Dataset with three changes, each of shape (layer_x, layer_y). A change compares the second
        model with and without stitching on the same images.

        * `loss_change`: the cross-entropy with stitching minus the cross-entropy without it, in
          nats.
        * `accuracy_change`: the accuracy with stitching minus the accuracy without it.
        * `output_change`: the mean KL divergence between the class probabilities without stitching
          and the class probabilities of the stitched model, in nats.
        * `loss_change_stderr`, `accuracy_change_stderr` and `output_change_stderr`: the standard
          errors of the three changes over images.
        * `untrained_loss_change`, of shape (layer_x, layer_y): `loss_change` for the layers of a
          randomly initialized copy of the first model, if that is a Keras model or a PyTorch
          module whose weights can be drawn anew. A warning states why there is none.
        * `pixels_loss_change`, of shape (layer_y,): `loss_change` if the spatial tokens are mapped
          from the pixels of their patches.
        * `loss` and `accuracy`, scalars: the cross-entropy and the accuracy of the second model
          without stitching.

    Raises:
        ValueError: if the second model cannot be run from its layers, if a layer has no positions
            on the grid of the second model, if activations are not finite, or if `l2` is negative.

    Examples:
        >>> result = analysis.stitching(bit, vit, images, (images, labels), l2=0.1)
        >>> result.loss_change.dims
        ('layer_x', 'layer_y')
        >>> ax = analysis.plot(result)

    See also:
        `plots.plot_stitching`, `cka`, `activation_patching`; page measurements/flow/stitching.md.
    """
    read = [
        read_model(features_x, "stitched", layers, images=images),
        read_model(features_y, "lens", layers, images=images),
    ]
    (x, y), (train, images) = prepare_images(
        read, {"train": train, "images": images}, scores=[scores], labelled=["images"]
    )
    scores = score_layer(y, scores)
    if l2 < 0:
        raise ValueError(f"Expected l2 to be at least 0. Received: l2={l2}")
    layers_y = list(layers_to_edit(y, scores))
    grid_x = x.facts.grid
    grid = require_grid(y, None)
    sources = {"": x}
    if x.source is not None:
        try:
            sources[UNTRAINED] = keep(
                x, ["untrained copy"], lambda: x.with_model(vit_tf.reinitialize(x.source))
            )
        except ValueError as error:  # a module may hold weights that cannot be drawn anew
            warnings.warn(f"No untrained copy is stitched: {error}", stacklevel=2)

    # A first pass sums what the linear maps between all pairs of layers are fitted on.
    statistic = _moments_statistic(y, sources, layers_y, grid_x, grid)
    totals = evaluate(statistic, train, description="stitching maps", checked=(x, y))
    names_x = list(totals["x"])
    sums = [np.concatenate([p["sum"] for p in parts.values()]) for parts in totals["x"].values()]
    require_finite("stitching", sums, names_x)
    # A second pass replaces each layer of the second model by a mapped layer of the first.
    cells = [(layer, other) for layer in names_x for other in layers_y]
    statistic = _stitched_statistic(y, sources, cells, grid_x=grid_x, grid=grid, scores=scores)
    result = measure_effects(
        y,
        replace(statistic, state=fitted_maps(totals, l2)),
        cells,
        ("layer_x", "layer_y"),
        images,
        scores=scores,
        description="stitching",
        l2=l2,
        model_x=model_name(x),
        model_y=model_name(y),
    )
    return _with_nulls(result)


def _with_nulls(result: xr.Dataset) -> xr.Dataset:
    """The effects of the layers of the first model, next to the changes in loss of the nulls."""
    names = layer_names(result, "layer_x")
    untrained = [name for name in names if name.startswith(UNTRAINED)]
    layers = [name for name in names if name != PIXELS and name not in untrained]
    loss, selected = result["loss_change"], result.sel(layer_x=layers)
    words = {"units": loss.attrs["units"]}
    if untrained:
        of_copy = loss.sel(layer_x=untrained).assign_coords(layer_x=layers)
        of_copy = of_copy.assign_attrs(words, long_name="change in loss, untrained copy")
        selected = selected.assign(untrained_loss_change=of_copy)
    of_pixels = loss.sel(layer_x=PIXELS, drop=True)
    of_pixels = of_pixels.assign_attrs(words, long_name="change in loss, pixels")
    return selected.assign(pixels_loss_change=of_pixels)


def _parts_of_sources(
    sources: Mapping[str, Features], images: tf.Tensor, grid_x: TokenGrid | None, grid: TokenGrid
) -> Parts:
    """The `parts_of` the layers of the first model, of its untrained copy, and of the pixels.

    The names of a copy's layers begin with that of the copy.
    """
    parts = {}
    for name, features in sources.items():
        own = parts_of(features(images), grid_x, grid)
        parts |= {f"{name}{layer}": values for layer, values in own.items()}
    window = [
        size // cells
        for size, cells in zip(images.shape[1:3], (grid.rows, grid.columns), strict=True)
    ]
    sizes, strides = [1, *window, 1], [1, *window, 1]
    patches = tf.image.extract_patches(images, sizes, strides, [1] * 4, "VALID")
    patches = patches[:, : grid.rows, : grid.columns]
    return parts | parts_of({PIXELS: patches}, None, grid)


@reusable
def _moments_statistic(
    features_y: Features,
    sources: Mapping[str, Features],
    layers_y: Sequence[str],
    grid_x: TokenGrid | None,
    grid: TokenGrid,
) -> Statistic[dict[str, Any]]:
    """`Statistic` over images with the `moments` of all layers of two models."""

    def step(batch: tf.Tensor) -> dict[str, Any]:
        batch = tf.cast(batch, tf.float32)
        x = _parts_of_sources(sources, batch, grid_x, grid)
        taps = features_y(batch)
        y = parts_of({layer: taps[layer] for layer in layers_y}, grid, grid)
        return moments(x, y)

    return sum_statistic(step)


@reusable
def _stitched_statistic(
    features_y: Features,
    sources: Mapping[str, Features],
    cells: Sequence[tuple[str, str]],
    *,
    grid_x: TokenGrid | None,
    grid: TokenGrid,
    scores: str,
) -> Statistic[dict[str, Any]]:
    """The `effects_statistic` of `stitching`; its state are the `fitted_maps`."""

    def interventions(taps: Taps, images: tf.Tensor, state: Any) -> list[dict[str, Callable]]:
        x = _parts_of_sources(sources, tf.cast(images, tf.float32), grid_x, grid)
        runs = []
        for layer, other in cells:
            mapped = {
                part: values @ state[layer, other, part][0] + state[layer, other, part][1]
                for part, values in x[layer].items()
            }
            runs.append({other: edits.constant(joined(mapped, taps[other]))})
        return runs

    return effects_statistic(features_y, interventions, scores, len(cells))


def parts_of(taps: Taps, token_grid: TokenGrid | None, grid: TokenGrid) -> Parts:
    """Spatial tokens, and as many prefix tokens as the grid has, (example, token, channel).

    They lie on the grid: a map of more positions is averaged over whole multiples of it.
    """
    parts = {}
    for layer, x in as_maps(taps, token_grid).items():
        rows, columns = x.shape[1:3]
        if rows % grid.rows or columns % grid.columns:
            raise ValueError(
                f"Expected layers whose positions are multiples of {grid.rows} x {grid.columns}, "
                f"the grid of the second model. Received: {layer!r} of {rows} x {columns}"
            )
        # Maps with more positions are averaged down to the grid of the second model.
        window = (rows // grid.rows, columns // grid.columns)
        x = tf.nn.avg_pool2d(x, window, window, "VALID") if window != (1, 1) else x
        spatial = tf.reshape(x, (-1, grid.num_spatial, x.shape[-1]))
        parts[layer] = {SPATIAL: spatial}
        # Prefix tokens are those of the layer, or the mean of its spatial tokens.
        if grid.prefix:
            is_sequence = taps[layer].shape.rank == 3
            if is_sequence and token_grid is not None and token_grid.prefix == grid.prefix:
                prefix = tf.cast(taps[layer][:, : grid.prefix], tf.float32)
            else:
                prefix = tf.repeat(tf.reduce_mean(spatial, 1, keepdims=True), grid.prefix, axis=1)
            parts[layer][PREFIX] = prefix
    return parts


def moments(x: Parts, y: Parts) -> dict[str, Any]:
    """Sums over the tokens of a batch from which linear maps of layers x to layers y follow."""

    def flat(parts: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """All tokens (token, channel) of each part of the sequence, in float64."""
        return {
            part: tf.cast(tf.reshape(values, (-1, values.shape[-1])), tf.float64)
            for part, values in parts.items()
        }

    flat_x, flat_y = ({layer: flat(parts) for layer, parts in side.items()} for side in (x, y))
    return {
        "x": {
            layer: {
                part: {
                    "sum": tf.reduce_sum(values, axis=0),
                    "products": tf.matmul(values, values, transpose_a=True),
                    "count": tf.shape(values)[0],
                }
                for part, values in parts.items()
            }
            for layer, parts in flat_x.items()
        },
        "y": {
            layer: {part: tf.reduce_sum(values, axis=0) for part, values in parts.items()}
            for layer, parts in flat_y.items()
        },
        "both": {
            layer: {
                other: {
                    part: tf.matmul(values, parts_y[part], transpose_a=True)
                    for part, values in parts.items()
                }
                for other, parts_y in flat_y.items()
            }
            for layer, parts in flat_x.items()
        },
    }


def fitted_maps(
    totals: dict[str, Any], l2: float
) -> dict[tuple[str, str, str], tuple[np.ndarray, np.ndarray]]:
    """Ridge regressions, matrix and intercept, by layer x, layer y and part of the sequence."""
    maps = {}
    for layer, parts in totals["x"].items():
        for part, own in parts.items():
            count, mean = own["count"], own["sum"] / own["count"]
            covariance = own["products"] - count * np.outer(mean, mean)
            inverse = ridge_inverse(covariance, l2)
            for other, sums in totals["both"][layer].items():
                mean_y = totals["y"][other][part] / count
                matrix = inverse @ (sums[part] - count * np.outer(mean, mean_y))
                fitted = matrix, mean_y - mean @ matrix
                maps[layer, other, part] = tuple(x.astype(np.float32) for x in fitted)
    return maps


def joined(parts: dict[str, tf.Tensor], like: tf.Tensor) -> tf.Tensor:
    """The sequence or map, like that of a layer, of its parts."""
    x = tf.concat([parts[part] for part in (PREFIX, SPATIAL) if part in parts], axis=1)
    return tf.cast(tf.reshape(x, tf.shape(like)), like.dtype)
