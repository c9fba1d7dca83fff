"""Scores of masks in videos as DAVIS takes them, and index masks as its files hold them."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

# The first colours of the palette of DAVIS 2017; the others are greys.
PALETTE = (
    *((0, 0, 0), (128, 0, 0), (0, 128, 0), (128, 128, 0), (0, 0, 128), (128, 0, 128)),
    *((0, 128, 128), (128, 128, 128), (64, 0, 0), (191, 0, 0), (64, 128, 0), (191, 128, 0)),
    *((64, 0, 128), (191, 0, 128), (64, 128, 128), (191, 128, 128), (0, 64, 0), (128, 64, 0)),
    *((0, 191, 0), (128, 191, 0), (0, 64, 128), (128, 64, 128)),
)


def region_similarity(found: np.ndarray, truth: np.ndarray, objects: Sequence[int]) -> np.ndarray:
    """J: intersection over union of each object in each frame, 1 where it is in neither mask.

    Args:
        found, truth: int arrays of shape (frame, height, width), 1, 2, ... for objects.
        objects: their numbers.

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
    return _each_object(_iou, found, truth, objects)


def boundary_accuracy(
    found: np.ndarray, truth: np.ndarray, objects: Sequence[int], tolerance: float = 0.008
) -> np.ndarray:
    """F: agreement of the outlines of each object in each frame.

        F = 2 P R / (P + R)

    where the precision P is the share of the outline found that lies within reach of the true one,
    and the recall R the share of the true one within reach of the one found. The reach is
    `tolerance` of the image's diagonal, rounded up to whole pixels (Perazzi et al. 2016; Pont-Tuset
    et al. 2017). F is 1 where neither mask has an outline, and 0 where only one of them has.

    Args:
        found, truth, objects: as for `region_similarity`.
        tolerance: share of the diagonal.

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
    return _each_object(
        lambda a, b: _outline_f(outline(a), outline(b), reach), found, truth, objects
    )


def _each_object(score, found, truth, objects):
    """`score` of the two masks of each object in each frame: array of shape (frame, object)."""
    found, truth = np.asarray(found), np.asarray(truth)
    if found.ndim != 3 or found.shape != truth.shape:
        raise ValueError(
            "Expected masks of equal shapes (frame, height, width). "
            f"Received: {found.shape} and {truth.shape}"
        )
    pairs = zip(found, truth, strict=True)
    return np.array([[score(a == number, b == number) for number in objects] for a, b in pairs])


def _iou(found, truth):
    union = (found | truth).sum()
    return (found & truth).sum() / union if union else 1.0


def outline(mask):
    """Pixels that differ from the one to the right, below or both: bool of the mask's shape.

    At the last row and column only the neighbours that there are count.
    """
    padded = np.pad(np.asarray(mask, bool), ((0, 1), (0, 1)), mode="edge")
    here, right, below = padded[:-1, :-1], padded[:-1, 1:], padded[1:, :-1]
    return (here != right) | (here != below) | (here != padded[1:, 1:])


def _outline_f(found, truth, reach):
    """F of two outlines, bool arrays of shape (height, width)."""
    if not found.any() or not truth.any():
        return float(found.any() == truth.any())
    precision = widen(truth, reach)[found].mean()
    recall = widen(found, reach)[truth].mean()
    return 2 * precision * recall / (precision + recall) if precision + recall else 0.0


def widen(mask, reach):
    """Pixels at most `reach` pixels from one of a mask: bool of its shape (height, width)."""
    height, width = mask.shape
    padded = np.pad(mask, reach)
    steps = np.arange(-reach, reach + 1)
    wide = np.zeros(mask.shape, bool)
    for down in steps:
        for right in steps[steps**2 + down**2 <= reach**2]:
            top, left = reach + down, reach + right
            wide |= padded[top : top + height, left : left + width]
    return wide


def write_masks(folder: str | os.PathLike, masks: np.ndarray) -> None:
    """Writes index masks as PNG files with the palette of DAVIS 2017: 00000.png, 00001.png, ...

    Args:
        folder: where to; made if it is not there.
        masks: ints from 0 to 255 of shape (frame, height, width).

    Returns:
        None; one file for each frame is written.

    Raises:
        ValueError: for masks of another shape or with other values.

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
    os.makedirs(folder, exist_ok=True)
    greys = [(grey,) * 3 for grey in range(len(PALETTE), 256)]
    palette = np.uint8([*PALETTE, *greys]).tobytes()
    for number, mask in enumerate(masks.astype(np.uint8)):
        image = Image.fromarray(mask)
        image.putpalette(palette)
        image.save(os.path.join(folder, f"{number:05}.png"))
