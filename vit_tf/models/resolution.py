"""Models at another resolution: position embeddings resampled on their grid, all else kept."""

import dataclasses
from collections.abc import Callable, Sequence
from functools import partial
from typing import cast

import numpy as np
from scipy.interpolate import make_interp_spline
from scipy.optimize import brentq

from vit_tf.common.names import as_image_shape, lookup
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.beit import BEiT
from vit_tf.models.mixer import Mixer
from vit_tf.models.model import VisionModel, weights_by_name


def resample_positions(
    positions: np.ndarray, grid_from: TokenGrid, grid_to: TokenGrid, method: str = "bilinear"
) -> np.ndarray:
    """Positions of shape (..., token, channel) of one grid, interpolated on another.

    The methods are those of the code that published each model:

    * `"bilinear"` aligns the corner tokens of both grids. It is `scipy.ndimage.zoom` of order 1 in
      Google's vision_transformer and big_vision.
    * `"bicubic"` aligns the corners of the image, with Keys' kernel (a = -1/2) and antialiasing
      where the grid shrinks, as Pillow does. timm (`resample_abs_pos_embed`) and DINOv2 with
      registers use it.
    * `"torch"` aligns the corners of the image, with a = -3/4, no antialiasing and a repeated
      border. It is `torch.nn.functional.interpolate` in the models of Hugging Face.
    * `"dino"` is `"torch"` with the scale (n + 0.1) / m along an axis that is resized from `m` to
      `n` tokens, so that the last tokens fall short of the edge. DINO, DINOv2 without registers
      (`interpolate_pos_encoding`) and Walmer et al. 2023 use it.

    Prefix tokens are kept, and all tokens where both grids have the same rows and columns.
    """
    positions = np.asarray(positions)
    if positions.shape[-2] != grid_from.num_tokens or grid_from.prefix != grid_to.prefix:
        raise ValueError(
            f"Expected positions of shape (..., {grid_from.num_tokens}, channel) and grids with "
            f"equal prefixes. Received: {positions.shape}, {grid_from} and {grid_to}"
        )
    weights = lookup("method", method, METHODS)
    prefix, spatial = np.split(positions, [grid_from.prefix], axis=-2)
    shape_from, shape_to = ((grid.rows, grid.columns) for grid in (grid_from, grid_to))
    return np.concatenate([prefix, _resample(spatial, shape_from, shape_to, weights)], axis=-2)


def resample_relative_positions(
    table: np.ndarray, grid_from: TokenGrid, grid_to: TokenGrid, method: str = "bilinear"
) -> np.ndarray:
    """A BEiT's table (entry, head) of relative positions of one grid, interpolated for another.

    With `"torch"` the entries are all stretched, as in transformers (`BeitRelativePositionBias`:
    `torch.nn.functional.interpolate`, bilinear). Otherwise neighbours keep their biases and far
    tokens are stretched, as in the code of BEiT (`run_class_finetuning.py`) and in timm
    (`resize_rel_pos_bias_table`): along an axis of `m` tokens that becomes one of `n`, the entry of
    offset `k` moves to the new offset

        1 + q + ... + q**(k - 1),    with q such that offset m - 1 moves to n - 1,

    q being kept between 1.01 and 1.5; those of negative offsets move likewise. What lies
    beyond the outermost entry is equal to it. `"bilinear"` draws lines between the entries as in
    timm, `"bicubic"` a cubic spline through them as in the code of BEiT, of a lower degree where an
    axis has fewer than four. An axis of as many tokens as before, and the last three entries, are
    untouched.
    """
    table = np.asarray(table)
    shape_from, shape_to = (
        (2 * grid.rows - 1, 2 * grid.columns - 1) for grid in (grid_from, grid_to)
    )
    entries = shape_from[0] * shape_from[1]
    if table.ndim != 2 or len(table) != entries + 3:
        raise ValueError(
            f"Expected a table of shape ({entries + 3}, head) for {grid_from}. "
            f"Received: {table.shape}"
        )
    offsets, rest = np.split(table, [entries])
    weights = lookup("method", method, TABLE_METHODS)
    return np.concatenate([_resample(offsets, shape_from, shape_to, weights), rest])


def at_resolution(
    model: VisionModel,
    image_shape: Sequence[int] | None = None,
    num_classes: int | None = None,
    method: str = "bilinear",
) -> VisionModel:
    """A copy of a model for another image size or with a new head.

    Position embeddings are resampled by `resample_positions`. The tables of relative position
    biases of a BEiT are resampled by `resample_relative_positions`. All other weights are copied.

    Args:
        model: a `ViT`, `BiT`, `CLIPViT`, `SigLIPViT`, `BEiT` or `Mixer`.
        image_shape: new image size in pixels, (height, width) or (height, width, channels). None
            keeps the size of the model.
        num_classes: number of logits of a new head, which is initialized with zeros. None keeps the
            head of the model. In a ViT, the new head is applied to the pooled token. If the old
            head has a tanh layer before it, this layer is removed (Dosovitskiy et al. 2020, section
            3.2).
        method: resampling method, `"bilinear"`, `"bicubic"`, `"torch"` or `"dino"`. A BEiT does not
            support `"dino"`.

    Raises:
        ValueError: if the class of the model is not listed under `model`, if the new size is not a
            multiple of the patch size, or if the number of channels would change. It is also raised
            if the number of tokens of a Mixer would change.
    """
    if not isinstance(model, VisionModel):
        raise ValueError(
            "Expected model to be a ViT, BiT, CLIPViT, SigLIPViT, BEiT or Mixer. "
            f"Received: {type(model).__name__}"
        )
    channels = model.image_shape[2]
    shape = model.image_shape if image_shape is None else as_image_shape(image_shape, (2, 3))
    if len(shape) == 2:
        shape = (*shape, channels)
    if len(shape) != 3 or shape[2] != channels:
        raise ValueError(
            f"Expected image_shape to be (height, width) or (height, width, {channels}). "
            f"Received: image_shape={shape}"
        )
    size = dataclasses.replace(model.preprocessing, size=shape[:2])
    config = model.get_config() | {"image_shape": shape, "preprocessing": size}
    if num_classes is not None:
        config |= {"num_classes": num_classes}
        config.pop("representation_dim", None)
        config.pop("text_head", None)
        # A quantized head would not learn.
        replaced = ("head", "pre_logits")
        config["quantized"] = [x for x in config.get("quantized", ()) if x not in replaced]
        config.pop("class_names", None)
    target = type(model).from_config(config)
    old, new = ((grid.rows, grid.columns) for grid in (model.token_grid, target.token_grid))
    if isinstance(model, Mixer) and old != new:
        raise ValueError(
            "Expected image_shape to keep the tokens of a Mixer, whose weights across tokens "
            f"cannot be resampled: {old} rows and columns. "
            f"Received: image_shape={target.image_shape}, {new} rows and columns"
        )
    copy_weights(model, target, new_head=num_classes is not None, method=method)
    return target


def copy_weights(
    model: VisionModel, target: VisionModel, new_head: bool, method: str = "bilinear"
) -> None:
    """Assigns the weights of a model to a fresh one, positions resampled, but for a new head."""
    old = weights_by_name(model)
    grids = model.token_grid, target.token_grid
    for path, weight in weights_by_name(target).items():
        if new_head and path.startswith(("head/", "distillation_head/")):
            continue
        array = np.asarray(old[path])
        if path == "embedding/positions":
            grid_from, grid_to = (part.embedding.position_grid for part in (model, target))
            array = resample_positions(array, grid_from, grid_to, method)
        elif isinstance(model, BEiT) and path.endswith("bias/table"):
            array = resample_relative_positions(array, *grids, method)
        weight.assign(array)


def _resample(
    values: np.ndarray,
    shape_from: tuple[int, int],
    shape_to: tuple[int, int],
    make_weights: Callable[[int, int], np.ndarray],
) -> np.ndarray:
    """Values of shape (..., position, channel) on a grid of (rows, columns), row by row."""
    if shape_from == shape_to:
        return values
    sizes = zip(shape_from, shape_to, strict=True)
    down, right = (make_weights(old, new) for old, new in sizes)
    channels = values.shape[-1]
    maps = values.reshape(*values.shape[:-2], *shape_from, channels)
    maps = np.einsum("ar,bc,...rcd->...abd", down, right, maps, optimize=True)
    return maps.reshape(*values.shape[:-2], -1, channels).astype(values.dtype)


def linear_weights(old: int, new: int) -> np.ndarray:
    """Linear interpolation with ends on ends: float64 array of shape (new, old)."""
    coordinates = np.linspace(0, old - 1, new)
    return np.maximum(1 - np.abs(coordinates[:, None] - np.arange(old)), 0)


def cubic_weights(old: int, new: int) -> np.ndarray:
    """Antialiased cubic interpolation with edges on edges: float64 array of shape (new, old)."""
    stretch = max(old / new, 1)
    coordinates = (np.arange(new) + 0.5) * old / new
    weights = keys_cubic((coordinates[:, None] - np.arange(old) - 0.5) / stretch, -0.5)
    return weights / weights.sum(axis=1, keepdims=True)


def torch_weights(old: int, new: int, more: float = 0.0) -> np.ndarray:
    """Cubic interpolation as torch's, the border repeated: float64 array of shape (new, old)."""
    coordinates = (np.arange(new) + 0.5) * old / (new + more) - 0.5
    # Two tokens beyond either end, which are equal to the last.
    weights = keys_cubic(coordinates[:, None] - np.arange(-2, old + 2), -0.75)
    ends = np.clip(np.arange(-2, old + 2), 0, old - 1)
    return weights @ np.eye(old)[ends]


def stretched_weights(old: int, new: int) -> np.ndarray:
    """Linear interpolation as torch's, edges on edges: float64 array of shape (new, old)."""
    coordinates = np.clip((np.arange(new) + 0.5) * old / new - 0.5, 0, old - 1)
    return np.maximum(1 - np.abs(coordinates[:, None] - np.arange(old)), 0)


def keys_cubic(x: np.ndarray, a: float) -> np.ndarray:
    """The cubic kernel of Keys 1981 (equation 4) at distances `x`, of slope `a` at 1."""
    x = np.abs(x)
    near = (a + 2) * x**3 - (a + 3) * x**2 + 1
    far = a * (x**3 - 5 * x**2 + 8 * x - 4)
    return np.where(x < 1, near, np.where(x < 2, far, 0))


METHODS = {"bilinear": linear_weights, "bicubic": cubic_weights}
METHODS |= {"torch": torch_weights, "dino": partial(torch_weights, more=0.1)}


def geometric_weights(old: int, new: int, degree: int) -> np.ndarray:
    """Spline interpolation of geometrically spaced offsets: array of shape (new, old)."""
    if old == new:
        return np.eye(old)
    if old == 1:
        return np.ones((new, 1))
    powers = np.arange(old // 2)

    def excess(ratio: float) -> float:
        return float(np.sum(ratio**powers)) - new // 2

    least, most = 1.01, 1.5
    if excess(least) >= 0:
        ratio = least
    elif excess(most) <= 0:
        ratio = most
    else:
        # It returns only the root, unless `full_output` is set.
        ratio = cast(float, brentq(excess, least, most, xtol=1e-15))
    offsets = np.cumsum(ratio**powers)
    offsets = np.concatenate([-offsets[::-1], [0], offsets])
    spline = make_interp_spline(offsets, np.eye(old), k=min(degree, old - 1))
    wanted = np.arange(new) - new // 2
    return spline(np.clip(wanted, offsets[0], offsets[-1]))


TABLE_METHODS = {
    "bilinear": partial(geometric_weights, degree=1),
    "bicubic": partial(geometric_weights, degree=3),
    "torch": stretched_weights,
}
