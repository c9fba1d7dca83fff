"""The layers of an opened model: which are read, and where their tokens lie."""

import numpy as np

from vit_tf.tokens import TokenGrid

from ..models import representations, spread, without_repeats
from .opened import features_of

MOST_TAPS = 40  # of a model whose layers were not chosen
CONSTANT = 1e-6  # share of the squares that is left around the mean, as for CKA
STILL = 1e-3  # the same of scores or layers that hardly move


def values_of_taps(opened, images):
    """The taps to read, as a dict to their values, and the names of those that are left out.

    Of a model whose layers have no names of ours, those that hold floating values for each example,
    and do not repeat the layer before: at most 40 of them, unless the patterns choose. Left out are
    layers that do not vary between the images, as nothing can be compared with them.
    """
    patterns = opened.taps if opened.is_foreign and opened.taps else ["*"]
    values = {
        tap: np.asarray(value, np.float32)
        for tap, value in features_of(opened, None, *patterns)(images).items()
        if value.dtype.is_floating and len(value.shape) > 1 and len(value) == len(images)
    }
    constant = [
        t for t, value in values.items() if opened.is_foreign and variation(value) <= CONSTANT
    ]
    taps = [tap for tap in values if tap not in constant]
    if not taps:
        raise ValueError(
            "Expected layers with floating values that vary between images. "
            f"Received: {opened.source or opened.name} with none"
        )
    if opened.is_foreign and not opened.taps:
        taps = spread(without_repeats({tap: values[tap] for tap in taps}), MOST_TAPS)
    return {tap: values[tap] for tap in taps}, constant


def variation(values):
    """Share of the squares of an array of shape (example, ...) that is left around the mean."""
    values = np.asarray(values, np.float64)
    return np.sum((values - values.mean(axis=0)) ** 2) / (np.sum(values**2) or 1)


def grid_of(opened, shapes, size):
    """The grid of the spatial tokens or positions of a model, or None where it is not known.

    The model's own grid; else that of the patch size and its last tokens, or of its last maps.
    """
    own = getattr(opened.model, "token_grid", None)
    held = [shapes[tap] for tap in representations(tuple(shapes))]
    placed = [shape for shape in held if len(shape) in (2, 3) and np.prod(shape[:-1]) > 1]
    if own is not None or not placed:
        return own
    counts = [shape[0] for shape in placed if len(shape) == 2]
    if opened.patch_size and counts:
        return _told_grid(opened, counts, size)
    last = placed[-1]
    if len(last) == 2:
        return None
    stride = size[0] // last[0]
    tiles = (last[0] * stride, last[1] * stride) == tuple(size)
    return TokenGrid(last[0], last[1], 0, stride) if tiles else None


def _told_grid(opened, counts, size):
    """The grid of a patch size, of the last layer that has tokens enough for it.

    Later ones may hold what a pooling made of them: queries, or the values of attention heads.
    """
    grid = TokenGrid.of_patches(size, opened.patch_size)
    enough = [count for count in counts if count >= grid.num_spatial]
    count = (enough or counts)[-1]
    prefix = count - grid.num_spatial if opened.prefix is None else opened.prefix
    if prefix < 0 or prefix + grid.num_spatial != count:
        raise ValueError(
            f"Expected a patch size and a prefix that give the {count} tokens of {opened.name}. "
            f"Received: {max(prefix, 0)} + {grid.rows} x {grid.columns}"
        )
    return TokenGrid.of_patches(size, opened.patch_size, prefix)
