"""Propagation of object masks through videos by the similarity of features, and its scores."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr
from scipy import ndimage

from vit_tf.data.files import write_whole
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement
from ..engine.pooling import PartialGrid, require_grid
from ..engine.preparation import read_model
from ..engine.results import ResultDataset, provenance, require_finite, variable
from .dense_features import dense_features, token_maps

# The first colours of the palette of DAVIS 2017; the others are greys.
PALETTE = (
    *((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128), (128, 0, 128)),
    *((0, 128, 128), (128, 128, 128), (64, 0, 0), (191, 0, 0), (64, 128, 0), (191, 128, 0)),
    *((64, 0, 128), (191, 0, 128), (64, 128, 128), (191, 128, 128), (0, 64, 0), (128, 64, 0)),
    *((0, 191, 0), (128, 191, 0), (0, 64, 128), (128, 64, 128)),
)


def region_similarity(masks: np.ndarray, truth: np.ndarray, objects: Sequence[int]) -> np.ndarray:
    """Region similarity J: the intersection over union of each object in each frame.

    If an object is neither in the predicted mask nor in the true mask of a frame, J is 1.

    Args:
        masks, truth: predicted and true index masks, int arrays of shape (frame, height, width).
            Objects have the values 1, 2, ...
        objects: numbers of the objects.

    Returns:
        float64 array of shape (frame, object).

    Examples:
        >>> truth = np.kron([[0, 1], [2, 0]], np.ones((16, 16), int))[None]
        >>> found = np.where(truth == 2, 0, truth)
        >>> analysis.region_similarity(found, truth, objects=[1, 2])
        array([[1., 0.]])

    See also:
        `boundary_accuracy`, `label_propagation`; page measurements/objects/label-propagation.md.
    """

    def iou(mask: np.ndarray, true_mask: np.ndarray) -> float:
        union = (mask | true_mask).sum()
        return (mask & true_mask).sum() / union if union else 1.0

    return _each_object(iou, masks, truth, objects)


def boundary_accuracy(
    masks: np.ndarray, truth: np.ndarray, objects: Sequence[int], tolerance: float = 0.008
) -> np.ndarray:
    """Boundary accuracy F: the agreement of the outlines of each object in each frame.

        F = 2 P R / (P + R)

    The precision P is the fraction of the predicted outline that lies near the true outline. The
    recall R is the fraction of the true outline that lies near the predicted outline. A pixel is
    near an outline if its distance is at most `tolerance` times the diagonal of the image, rounded
    up to whole pixels (Perazzi et al. 2016; Pont-Tuset et al. 2017). F is 1 if neither the
    predicted nor the true mask has an outline, and 0 if only one of them has an outline.

    Args:
        masks, truth, objects: as for `region_similarity`.
        tolerance: largest distance between matching outline pixels, as a fraction of the image
            diagonal.

    Returns:
        float64 array of shape (frame, object).

    Examples:
        >>> masks = np.kron([[0, 1], [2, 0]], np.ones((16, 16), int))[None]
        >>> analysis.boundary_accuracy(masks, masks, objects=[1, 2])
        array([[1., 1.]])

    See also:
        `region_similarity`, `label_propagation`; page measurements/objects/label-propagation.md.
    """
    reach = int(np.ceil(tolerance * np.hypot(*np.shape(truth)[1:])))

    def outline_f(mask: np.ndarray, true_mask: np.ndarray) -> float:
        found, true = outline(mask), outline(true_mask)
        if not found.any() or not true.any():
            return float(found.any() == true.any())
        precision = widen(true, reach)[found].mean()
        recall = widen(found, reach)[true].mean()
        return 2 * precision * recall / (precision + recall) if precision + recall else 0.0

    return _each_object(outline_f, masks, truth, objects)


def _each_object(
    score: Callable[[np.ndarray, np.ndarray], float],
    masks: np.ndarray,
    truth: np.ndarray,
    objects: Sequence[int],
) -> np.ndarray:
    """`score` of the two masks of each object in each frame: array of shape (frame, object)."""
    masks, truth = np.asarray(masks), np.asarray(truth)
    if masks.ndim != 3 or masks.shape != truth.shape:
        raise ValueError(
            "Expected masks of equal shapes (frame, height, width). "
            f"Received: {masks.shape} and {truth.shape}"
        )
    pairs = zip(masks, truth, strict=True)
    return np.array([[score(a == number, b == number) for number in objects] for a, b in pairs])


def outline(mask: np.ndarray) -> np.ndarray:
    """Pixels that differ from the one to the right, below or both: bool of the mask's shape."""
    padded = np.pad(np.asarray(mask, bool), ((0, 1), (0, 1)), mode="edge")
    here, right, below = padded[:-1, :-1], padded[:-1, 1:], padded[1:, :-1]
    return (here != right) | (here != below) | (here != padded[1:, 1:])


def widen(mask: np.ndarray, reach: int) -> np.ndarray:
    """Pixels at most `reach` pixels from one of a mask: bool of its shape (height, width)."""
    steps = np.arange(-reach, reach + 1)
    disk = steps[:, None] ** 2 + steps**2 <= reach**2
    return ndimage.binary_dilation(mask, disk)


def write_masks(folder: str | os.PathLike, masks: np.ndarray) -> None:
    """Writes index masks as PNG files with the palette of DAVIS 2017: 00000.png, 00001.png, ...

    Args:
        folder: output folder, created if missing.
        masks: int array of shape (frame, height, width), with values from 0 to 255.

    Returns:
        None. One file for each frame is written.

    Raises:
        ValueError: if `masks` does not have three axes, or has values outside 0 to 255.

    Examples:
        >>> masks = np.zeros((2, 32, 32), np.uint8)
        >>> analysis.write_masks("masks", masks)
        >>> sorted(os.listdir("masks"))
        ['00000.png', '00001.png']

    See also:
        `follow_masks`, `label_propagation`; page measurements/objects/label-propagation.md.
    """
    from PIL import Image

    masks = np.asarray(masks)
    if masks.ndim != 3 or masks.dtype.kind not in "iu" or masks.min() < 0 or masks.max() > 255:
        raise ValueError(
            "Expected masks of integers from 0 to 255 of shape (frame, height, width). "
            f"Received: {masks.dtype} of shape {masks.shape}"
        )
    greys = [(grey,) * 3 for grey in range(len(PALETTE), 256)]
    palette = np.array([*PALETTE, *greys], np.uint8).tobytes()
    for number, mask in enumerate(masks.astype(np.uint8)):
        image = Image.fromarray(mask)
        image.putpalette(palette)
        write_whole(os.path.join(folder, f"{number:05}.png"), image.save)


VOID = 255
# Largest spread of a constant label by rounding in float32, as a share of its value.
ROUNDING = 1e-6


def propagate(
    tokens: np.ndarray,
    first: np.ndarray,
    *,
    num_last: int = 7,
    temperature: float = 0.1,
    top: int = 5,
    radius: int = 12,
) -> np.ndarray:
    """Propagates the labels of the tokens of the first frame to all frames.

        label[t, i] = sum_j w_ij label_j,    w_ij ~ exp(cosine(token[t, i], token_j) / temperature)

    The label of token i in frame t is a weighted mean over the `top` tokens j that are most similar
    to token i. The candidates for j are the tokens of the first frame and of the `num_last` frames
    before t. A candidate is at most `radius` rows and at most `radius` columns away from i. The
    weights sum to 1. This is the protocol of Walmer et al. 2023, section 6.2, which follows DINO's
    protocol for DAVIS (Caron et al. 2021). Propagated labels are not rounded.

    Args:
        tokens: array of shape (frame, row, column, channel).
        first: labels of the first frame, a float array of shape (row, column, label).
        num_last: number of previous frames that are used in addition to the first frame.
        temperature: divisor of the cosines.
        top: number of tokens whose labels are averaged.
        radius: largest distance between two compared tokens, in rows and in columns.

    Returns:
        float32 array of labels, of shape (frame, row, column, label). The labels of the first frame
        are `first`.

    Raises:
        ValueError: if the shapes of `tokens` and `first` do not match, or if another argument is
            out of range.

    Examples:
        >>> tokens = np.random.default_rng(0).normal(size=(3, 4, 4, 8))
        >>> first = np.eye(2)[np.arange(16).reshape(4, 4) % 2]
        >>> analysis.propagate(tokens, first, radius=1).shape
        (3, 4, 4, 2)

    See also:
        `propagate_masks`, `label_propagation`; page measurements/objects/label-propagation.md.
    """
    tokens, first = np.asarray(tokens, np.float32), np.asarray(first, np.float32)
    if tokens.ndim != 4 or first.ndim != 3 or tokens.shape[1:3] != first.shape[:2]:
        raise ValueError(
            "Expected tokens of shape (frame, row, column, channel) and first labels of shape "
            f"(row, column, label). Received: shapes {tokens.shape} and {first.shape}"
        )
    if num_last < 0 or temperature <= 0 or top < 1 or radius < 0:
        raise ValueError(
            "Expected num_last >= 0, temperature > 0, top >= 1 and radius >= 0. Received: "
            f"num_last={num_last}, temperature={temperature}, top={top}, radius={radius}"
        )
    norms = np.linalg.norm(tokens, axis=-1, keepdims=True)
    tokens = tokens / np.where(norms > 0, norms, 1)
    labels = np.empty((*tokens.shape[:3], first.shape[-1]), np.float32)
    labels[0] = first
    for frame in range(1, len(tokens)):
        sources = [0, *range(max(1, frame - num_last), frame)]
        for row in range(tokens.shape[1]):
            near = slice(max(0, row - radius), row + radius + 1)
            cosines = [_cosines(tokens[frame, row], tokens[s, near], radius) for s in sources]
            values = labels[sources, near].reshape(-1, labels.shape[-1])
            labels[frame, row] = _best_mean(np.concatenate(cosines, 1), values, top, temperature)
    return labels


def _cosines(tokens: np.ndarray, source: np.ndarray, radius: int) -> np.ndarray:
    """Cosines of a row of tokens and of a source frame (column, token), -inf if far."""
    columns = np.arange(len(tokens))
    cosines = (tokens @ source.reshape(-1, source.shape[-1]).T).reshape(
        len(tokens), -1, len(tokens)
    )
    far = np.abs(columns[:, None] - columns) > radius
    return np.where(far[:, None], -np.inf, cosines).reshape(len(tokens), -1)


def _best_mean(cosines: np.ndarray, values: np.ndarray, top: int, temperature: float) -> np.ndarray:
    """Weighted mean of values (token, label) of the tokens of largest cosines (column, token)."""
    count = min(top, cosines.shape[1])
    best = np.argpartition(-cosines, count - 1, axis=1)[:, :count]
    nearest = np.take_along_axis(cosines, best, axis=1)
    weights = np.exp((nearest - nearest.max(axis=1, keepdims=True)) / temperature)
    weights /= weights.sum(axis=1, keepdims=True)
    return np.einsum("ik,ikl->il", weights, values[best])


def propagate_masks(tokens: np.ndarray, first: np.ndarray, **options: Any) -> np.ndarray:
    """Index masks of all frames of a video, propagated from the mask of the first frame.

    The steps are those of DINO's protocol. First, the mask of the first frame is sampled at the
    centre of each token, and `propagate` computes the labels of all frames. Then the labels are
    enlarged bilinearly. In each frame, the values of each object, and of the background, are
    rescaled to [0, 1]. Each pixel gets the label with the largest value. Values that differ only by
    rounding errors, as when an object fills the frame, are not rescaled.

    Args:
        tokens: array of shape (frame, row, column, channel).
        first: mask of the first frame, an int array of shape (height, width). Its values are 0 for
            the background, 1, 2, ... for objects, and 255 for void pixels, which count as
            background.
        **options: as for `propagate`.

    Returns:
        uint8 array of masks, of shape (frame, height, width). The mask of the first frame is
        `first`, with void pixels as background.

    Raises:
        ValueError: if `first` is not an index mask with at least one object. Other errors are as
            for `propagate`.

    Examples:
        >>> tokens = np.random.default_rng(0).normal(size=(3, 4, 4, 8))
        >>> first = np.kron([[0, 1], [1, 0]], np.ones((16, 16), int))
        >>> analysis.propagate_masks(tokens, first).shape
        (3, 32, 32)

    See also:
        `propagate`, `follow_masks`; page measurements/objects/label-propagation.md.
    """
    first = np.asarray(first)
    if first.ndim != 2 or first.dtype.kind not in "iu" or first.min() < 0 or first.max() > VOID:
        raise ValueError(
            f"Expected the first mask to be integers from 0 to {VOID} of shape (height, width). "
            f"Received: {first.dtype} of shape {first.shape}"
        )
    first = without_void(first)
    rows, columns = np.shape(tokens)[1:3]
    at_rows = ((np.arange(rows) + 0.5) * first.shape[0] / rows).astype(int)
    at_columns = ((np.arange(columns) + 0.5) * first.shape[1] / columns).astype(int)
    first_labels = np.eye(first.max() + 1, dtype=np.float32)[first[at_rows][:, at_columns]]
    masks = [
        _as_mask(labels, first.shape) for labels in propagate(tokens, first_labels, **options)[1:]
    ]
    return np.stack([first, *masks]).astype(np.uint8)


def _as_mask(labels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """The index mask of soft labels of shape (row, column, label), of `size` (height, width)."""
    large = tf.image.resize(labels, size).numpy()
    low, high = large.min(axis=(0, 1)), large.max(axis=(0, 1))
    varies = high - low > ROUNDING * high
    stretched = (large - low) / np.where(varies, high - low, 1)
    return np.where(varies, stretched, large).argmax(axis=-1)


def without_void(masks: np.ndarray) -> np.ndarray:
    """Index masks with void as ground."""
    return np.where(masks == VOID, 0, masks)


@measurement("tokens", arguments="{model}, frames, first")
def follow_masks(
    model: ModelLike,
    frames: np.ndarray,
    first: np.ndarray,
    grid: PartialGrid = None,
    dense: bool = True,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
    **options: Any,
) -> dict[str, np.ndarray]:
    """Masks that each layer propagates from the first frame to all frames of a video.

    `label_propagation` computes the scores of these masks. For the official evaluation of DAVIS,
    save them with `write_masks`, in one folder per video.

    Args:
        model, grid, dense, **options: as for `label_propagation`.
        frames: normalised images of shape (frame, height, width, channel).
        first: index mask of the first frame, of shape (height, width), as for `propagate_masks`.

    Returns:
        dict from layer to masks, a uint8 array of shape (frame, height, width). The values are 0
        for the background and 1, 2, ... for objects. The mask of the first frame is `first`, with
        void pixels as background.

    Raises:
        ValueError: if features are not finite. Other errors are as for `propagate_masks` and
            `dense_features`.

    Examples:
        >>> shapes = vit_tf.data.load_shape_videos(1, num_frames=4, image_size=32)
        >>> frames, masks = shapes["image"][0], shapes["index"][0]
        >>> found = analysis.follow_masks(vit, frames, masks[0], dense=False, layers="norm")
        >>> found["norm"].shape
        (4, 32, 32)

    See also:
        `label_propagation`, `propagate_masks`, `write_masks`; page
        measurements/objects/label-propagation.md.
    """
    # Dense tokens are those of windows of the model's own size.
    features = read_model(model, "tokens", layers, detail, images=None if dense else frames)
    return _follow(features, frames, first, grid, dense, options)


def _follow(
    features: Features,
    frames: np.ndarray,
    first: np.ndarray,
    grid: PartialGrid,
    dense: bool,
    options: dict[str, float],
) -> dict[str, np.ndarray]:
    """The masks of `follow_masks` by layer."""
    grid = require_grid(features, grid)
    maps = (dense_features if dense else token_maps)(features, frames, grid)
    require_finite("label propagation", list(maps.values()), list(maps))
    return {layer: propagate_masks(tokens, first, **options) for layer, tokens in maps.items()}


@measurement("tokens", arguments="{model}, videos")
def label_propagation(
    model: ModelLike,
    videos: Iterable[tuple[np.ndarray, np.ndarray]],
    grid: PartialGrid = None,
    dense: bool = True,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
    **options: Any,
) -> xr.Dataset:
    """Accuracy of object masks that each layer propagates from the first frame through videos.

    Each token gets a mean of the labels of the most similar tokens in earlier frames (see
    `propagate`). The region similarity J and the boundary accuracy F of each object are averaged
    over frames, except the first frame, whose mask is given, and the last frame, which the
    evaluation of DAVIS excludes (Walmer et al. 2023, section 6.2, figures 10 and 30, table 4;
    Pont-Tuset et al. 2017). The `score` of a layer is (J + F) / 2, averaged over objects.
    `follow_masks` returns the masks themselves.

    Args:
        model: a model, or a callable from images to `{layer: tensor}`. A tensor holds either
            tokens at the positions of `grid` or a feature map with the rows and columns of `grid`.
        videos: iterable of pairs (frames, masks), which is read once. `frames` are normalised
            images of shape (frame, height, width, channel). `masks` are int index masks of shape
            (frame, height, width). Mask values are 0 for the background, 1, 2, ... for objects, and
            255 for void pixels, which count as background. Objects that are not in the first frame
            are ignored.
        grid: `TokenGrid` of the model's tokens, with as many rows as columns. By default,
            the grid of the model.
        dense: whether to compute tokens with `dense_features`. If False, frames must have the
            model's input size.
        **options: as for `propagate`.

    Returns:
        Dataset with `region` (J) and `boundary` (F), both of shape (layer, object), and `score`, of
        shape (layer,). Objects are ordered by video. The coordinate `video` holds the index of each
        object's video.

    Raises:
        ValueError: if a video has fewer than three frames or no object in the first frame. Other
            errors are as for `propagate` and `dense_features`.

    Examples:
        >>> shapes = vit_tf.data.load_shape_videos(1, num_frames=4, image_size=32)
        >>> videos = list(zip(shapes["image"], shapes["index"]))
        >>> scores = analysis.label_propagation(vit, videos, dense=False)
        >>> scores.region.dims
        ('layer', 'object')
        >>> ax = analysis.plot(scores)

    See also:
        `plots.plot_label_propagation`, `follow_masks`, `propagate`; page
        measurements/objects/label-propagation.md.
    """
    videos = iter(videos)
    shown = list(itertools.islice(videos, 1))
    # Dense tokens are those of windows of the model's own size.
    images = shown[0][0] if shown and not dense else None
    features = read_model(model, "tokens", layers, detail, images=images)
    scores, video_of, examples = {}, [], 0
    for number, (frames, masks) in enumerate(itertools.chain(shown, videos)):
        masks = _checked_masks(frames, masks)
        objects = np.unique(masks[0][masks[0] > 0]).tolist()
        # Each layer is scored, and a copy of the first mask, which does not move.
        followed: dict[str | None, np.ndarray] = {None: np.repeat(masks[:1], len(masks), axis=0)}
        followed |= _follow(features, frames, masks[0], grid, dense, options)
        for layer, layer_masks in followed.items():
            means = [
                measure(layer_masks[1:-1], masks[1:-1], objects).mean(axis=0)
                for measure in (region_similarity, boundary_accuracy)
            ]
            scores.setdefault(layer, []).append(np.stack(means))
        examples += len(masks)
        video_of += [number] * len(objects)
    if not video_of:
        raise ValueError("Expected at least one video. Received: none")
    # Scores of all videos are concatenated along their objects.
    settings = (propagate.__kwdefaults__ or {}) | options
    in_place = np.concatenate(scores.pop(None), axis=1)
    region, boundary = np.stack([np.concatenate(s, axis=1) for s in scores.values()], axis=1)
    dims = ("layer", "object")
    variables = {
        "region": variable(dims, region, "region similarity J"),
        "boundary": variable(dims, boundary, "boundary accuracy F"),
        "score": variable("layer", (region + boundary).mean(axis=1) / 2, "mean of J and F"),
        "region_in_place": variable("object", in_place[0], "J of a copy of the first mask"),
        "boundary_in_place": variable("object", in_place[1], "F of a copy of the first mask"),
    }
    return ResultDataset(
        variables,
        {"layer": list(scores), "video": ("object", video_of)},
        provenance(features, examples, number + 1, dense=dense, **settings),
    )


def _checked_masks(frames: np.ndarray, masks: np.ndarray) -> np.ndarray:
    """Index masks without void, once they fit the frames."""
    masks = np.asarray(masks)
    if len(masks) < 3 or np.shape(frames)[:3] != masks.shape or masks.dtype.kind not in "iu":
        raise ValueError(
            "Expected videos of three frames or more, each with a mask of integers. Received: "
            f"frames of shape {np.shape(frames)}, masks of {masks.dtype} of shape {masks.shape}"
        )
    masks = without_void(masks)
    if not masks[0].any():
        raise ValueError("Expected an object in the first mask of each video. Received: none")
    return masks
