"""Models at another resolution: position embeddings resampled on their grid, all else kept."""

import dataclasses

import numpy as np

from vit_tf.models.beit import BEiT
from vit_tf.models.mixer import Mixer
from vit_tf.models.model import VisionModel
from vit_tf.names import choose


def resample_positions(positions, grid_from, grid_to, method="bilinear"):
    """Position embeddings of one grid of tokens, interpolated on another.

    `"bilinear"` lays the corner tokens of both grids on each other, as Google's models do
    (`scipy.ndimage.zoom` of order 1 in vision_transformer and big_vision). `"bicubic"` lays the
    corners of the image on each other, as timm does (`resample_abs_pos_embed`): the cubic of
    Keys with a = -1/2, stretched to antialias where the grid shrinks, which is Pillow's.

    Args:
        positions: array of shape (..., token, channel), prefix tokens first.
        grid_from, grid_to: the `TokenGrid` of the positions and the one wanted.
        method: `"bilinear"` or `"bicubic"`.

    Returns:
        float array of shape (..., token, channel) of `grid_to`; the prefix tokens are untouched,
        and so is everything where the grids have the same rows and columns.

    Raises:
        ValueError: for positions or grids that do not fit each other, or another method.
    """
    positions = np.asarray(positions)
    if positions.shape[-2] != grid_from.num_tokens or grid_from.prefix != grid_to.prefix:
        raise ValueError(
            f"Expected positions of shape (..., {grid_from.num_tokens}, channel) and grids with "
            f"equal prefixes. Received: {positions.shape}, {grid_from} and {grid_to}"
        )
    prefix, spatial = np.split(positions, [grid_from.prefix], axis=-2)
    shapes = [(grid.rows, grid.columns) for grid in (grid_from, grid_to)]
    return np.concatenate([prefix, _resample(spatial, *shapes, method)], axis=-2)


def at_resolution(model, image_shape=None, num_classes=None, method="bilinear"):
    """A fresh model with the weights of another, at another image size or with a new head.

    Position embeddings are resampled as by `resample_positions`. Of a BEiT the tables of relative
    positions are, each as a grid of distances in rows and columns (as timm does); the three
    entries of the class token are untouched. All other weights are copied.

    Args:
        model: a `ViT`, `BiT`, `CLIPViT`, `BEiT` or `Mixer`.
        image_shape: (height, width, channels) of the images, or only (height, width), in pixels;
            None keeps that of the model.
        num_classes: number of logits of a new head that starts at zero; of a ViT it reads the
            pooled token (Dosovitskiy et al. 2020, section 3.2: a layer of tanh before the old
            head goes with it). None keeps the head.
        method: `"bilinear"` or `"bicubic"`.

    Raises:
        ValueError: for another kind of model, a size that does not fit its patches, a number of
            channels that is not the model's, or a Mixer whose number of tokens would change.
    """
    if not isinstance(model, VisionModel):
        raise ValueError(
            "Expected model to be a ViT, BiT, CLIPViT, BEiT or Mixer. "
            f"Received: {type(model).__name__}"
        )
    channels = model.image_shape[2]
    image_shape = tuple(image_shape or model.image_shape)
    if len(image_shape) == 2:
        image_shape = (*image_shape, channels)
    if len(image_shape) != 3 or image_shape[2] != channels:
        raise ValueError(
            f"Expected image_shape to be (height, width) or (height, width, {channels}). "
            f"Received: image_shape={image_shape}"
        )
    size = dataclasses.replace(model.preprocessing, size=image_shape[:2])
    config = model.get_config() | {"image_shape": image_shape, "preprocessing": size}
    if num_classes is not None:
        config |= {"num_classes": num_classes}
        config.pop("representation_dim", None)
    fresh = type(model).from_config(config)
    _check_tokens(model, fresh)
    _copy_weights(model, fresh, new_head=num_classes is not None, method=method)
    return fresh


def _copy_weights(model, fresh, new_head, method):
    old = {_path(weight): weight for weight in model.weights}
    grids = model.token_grid, fresh.token_grid
    for weight in fresh.weights:
        path = _path(weight)
        if new_head and path.startswith("head/"):
            continue
        array = np.asarray(old[path])
        if path == "embedding/positions":
            array = resample_positions(array, *grids, method)
        elif isinstance(model, BEiT) and path.endswith("bias/table"):
            array = _resample_table(array, *grids, method)
        weight.assign(array)


def _check_tokens(model, fresh):
    """Raises a ValueError where a Mixer would get other tokens."""
    old, new = ((grid.rows, grid.columns) for grid in (model.token_grid, fresh.token_grid))
    if isinstance(model, Mixer) and old != new:
        raise ValueError(
            "Expected image_shape to keep the tokens of a Mixer, whose weights across tokens "
            f"cannot be resampled: {old} rows and columns. "
            f"Received: image_shape={fresh.image_shape}, {new} rows and columns"
        )


def _resample_table(table, grid_from, grid_to, method):
    """A table of shape (entry, head) of relative positions, as `beit.relative_index` orders it."""
    shapes = [(2 * grid.rows - 1, 2 * grid.columns - 1) for grid in (grid_from, grid_to)]
    places, rest = np.split(table, [shapes[0][0] * shapes[0][1]])
    return np.concatenate([_resample(places, *shapes, method), rest])


def _resample(values, shape_from, shape_to, method):
    """Values of shape (..., place, channel) on a grid of (rows, columns), row by row."""
    make = choose("method", method, {"bilinear": linear_weights, "bicubic": cubic_weights})
    if shape_from == shape_to:
        return values
    down, right = (make(old, new) for old, new in zip(shape_from, shape_to, strict=True))
    channels = values.shape[-1]
    maps = values.reshape(*values.shape[:-2], *shape_from, channels)
    maps = np.einsum("ar,bc,...rcd->...abd", down, right, maps, optimize=True)
    return maps.reshape(*values.shape[:-2], -1, channels).astype(values.dtype)


def linear_weights(old, new):
    """Linear interpolation with ends on ends: float64 array of shape (new, old)."""
    places = np.linspace(0, old - 1, new)
    return np.maximum(1 - np.abs(places[:, None] - np.arange(old)), 0)


def cubic_weights(old, new):
    """Antialiased cubic interpolation with edges on edges: float64 array of shape (new, old)."""
    stretch = max(old / new, 1)
    places = (np.arange(new) + 0.5) * old / new
    x = np.abs(places[:, None] - np.arange(old) - 0.5) / stretch
    near, far = 1.5 * x**3 - 2.5 * x**2 + 1, -0.5 * x**3 + 2.5 * x**2 - 4 * x + 2
    weights = np.where(x < 1, near, np.where(x < 2, far, 0))
    return weights / weights.sum(axis=1, keepdims=True)


def _path(weight):
    """The path of a weight inside its model."""
    return weight.path.partition("/")[2]
