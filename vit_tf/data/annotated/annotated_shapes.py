"""The shapes with what is true of them: masks, parts and keypoints; and shapes that move."""

import numpy as np
import tensorflow as tf

from vit_tf.data.annotated.scenes import KINDS, random_motion
from vit_tf.data.pipeline import check_number, checked_size, open_source
from vit_tf.data.reading import read_batches
from vit_tf.data.shapes import FIRST, SIDE, numbered_scene
from vit_tf.data.source import partition

BATCH_SIZE = 128
# Apart from the seed of the still images, `shapes.SEED`.
VIDEO_SEED = 1
PAIR_SEED = 2


def load_shapes(split="test", *, image_size=None, take=None, seed=0, preprocessing=None):
    """The images of `load("shapes")` with their masks, parts and keypoints.

    Masks and parts are exact at the centre of each pixel of the requested size.

    Args:
        split: "train" or "test".
        image_size, take, seed, preprocessing: as for `load`; all examples if `take` is None.

    Returns:
        Dict of arrays, in the order of the split:
        `image`, float32 of shape (example, height, width, 3);
        `label`, int32 of shape (example,), the kind of shape;
        `mask`, bool of shape (example, height, width), where the shape is;
        `parts`, uint8 of that shape, 1 on the front half of the shape, 2 on the back, 0 elsewhere;
        `keypoints`, float64 of shape (example, keypoint, 2), the (row, column) in pixels of the
        shape's front, back, left and right, with the first pixel's centre at (0.5, 0.5);
        `visible`, bool of shape (example, keypoint), whether it lies within the image.

    Raises:
        ValueError: as `load`.
    """
    if take is not None:
        check_number("take", take, 1)
    size = checked_size(image_size, preprocessing) or (SIDE, SIDE)
    source = open_source("shapes", None)
    chosen = partition(source, (split,), 0, {} if take is None else {split: take}, seed)[split]
    images, labels = _read(source, *chosen, size, preprocessing)
    scenes = [numbered_scene(number) for number in FIRST[split] + chosen[1]]
    places = np.stack([scene.shapes[0].keypoints() for scene in scenes])
    return {
        "image": images,
        "label": labels,
        "mask": np.stack([scene.index(size) for scene in scenes]) > 0,
        "parts": np.stack([scene.parts(size) for scene in scenes]),
        "keypoints": places * size,
        "visible": _seen(places),
    }


def shape_masks(found, batch_size):
    """The masks of what `load_shapes` returns as `load_coco` gives them: one object an image.

    Returns:
        `tf.data.Dataset` of batches (images, bool masks of shape (example, 1, height, width),
        int32 labels of shape (example, 1), the kinds of shape).
    """
    return _masked(found, found["mask"][:, None], found["label"][:, None], batch_size)


def half_masks(found, batch_size):
    """The same of the front and the back of each shape, labelled by the kind and by the side.

    Masks are of shape (example, 2, height, width); a front has label `2 * kind`, a back one more.
    """
    parts, kinds = found["parts"], found["label"]
    masks = np.stack([parts == 1, parts == 2], axis=1)
    return _masked(found, masks, np.stack([2 * kinds, 2 * kinds + 1], axis=1), batch_size)


def _masked(found, masks, labels, batch_size):
    """Batches of (images, masks, labels)."""
    arrays = found["image"], masks, labels.astype(np.int32)
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)


def _read(source, split, indices, size, preprocessing):
    """Images and labels, as `load` gives them, of examples at sorted indices of a split."""
    plain = preprocessing and preprocessing.squeezed()
    batches = read_batches(source, split, indices, size, BATCH_SIZE, preprocessing=plain)
    images, labels = zip(*batches.as_numpy_iterator(), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _seen(places):
    """Whether positions on the unit square, of shape (..., 2), lie on it: bool of shape (...)."""
    return ((places >= 0) & (places < 1)).all(axis=-1)


def load_shape_pairs(count=64, *, image_size=None, seed=0, preprocessing=None):
    """Pairs of test images of the same kind of shape, with the keypoints visible in both.

    Args:
        count: number of pairs; the kinds of shape alternate.
        image_size, preprocessing: as for `load`.
        seed: seed of the selection; the first pairs of a longer list are the same.

    Returns:
        List of dicts, as `vit_tf.analysis.keypoint_correspondence` takes them, of `category`,
        `source`, `target`, `source_points`, `target_points`, and `source_box` and `target_box`,
        (top, left, bottom, right) of the visible part of the shape, accurate to a pixel at 64 x 64.

    Raises:
        ValueError: for arguments out of range.
    """
    check_number("count", count, 1)
    check_number("seed", seed, 0)
    size = checked_size(image_size, preprocessing) or (SIDE, SIDE)
    source = open_source("shapes", None)
    labels = source.labels("test")
    scenes = [numbered_scene(FIRST["test"] + index) for index in range(len(labels))]
    places = np.stack([scene.shapes[0].keypoints() for scene in scenes])
    seen = _seen(places)
    # With one keypoint out of sight at most, two or more are always seen in both.
    fit = seen.sum(axis=1) >= seen.shape[1] - 1
    chosen = [
        np.random.default_rng([PAIR_SEED, seed, number]).choice(
            np.flatnonzero(fit & (labels == number % len(KINDS))), 2, replace=False
        )
        for number in range(count)
    ]
    indices = np.unique(chosen)
    images, _ = _read(source, "test", indices, size, preprocessing)
    pairs = []
    for pair in chosen:
        both = seen[pair].all(axis=0)
        first, second = images[np.searchsorted(indices, pair)]
        source_points, target_points = places[pair][:, both] * size
        source_box, target_box = (_box(scenes[index]) * np.tile(size, 2) for index in pair)
        pairs.append(
            {
                "category": source.class_names[labels[pair[0]]],
                "source": first,
                "target": second,
                "source_points": source_points,
                "target_points": target_points,
                "source_box": source_box,
                "target_box": target_box,
            }
        )
    return pairs


def _box(scene):
    """(top, left, bottom, right) of what is seen of the shapes, on the unit square."""
    mask = scene.index((SIDE, SIDE)) > 0
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return np.array([rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]) / SIDE


def load_shape_videos(count=8, *, num_frames=12, image_size=SIDE, seed=0):
    """Videos of two or three shapes of one colour that drift and turn, with the exact mask of each.

    Light and noise change from frame to frame; the background does not move.

    Args:
        count: number of videos.
        num_frames: frames of each.
        image_size: height and width in pixels; a number or a pair.
        seed: seed of the videos; the first ones of a longer list are the same.

    Returns:
        Dict of arrays: `image`, float32 of shape (video, frame, height, width, 3) in [-1, 1], and
        `index`, uint8 of shape (video, frame, height, width), 0 for the background and 1, 2, ...
        for the visible parts of the shapes.

    Raises:
        ValueError: for arguments out of range.
    """
    for what, value, least in (("count", count, 1), ("num_frames", num_frames, 1)):
        check_number(what, value, least)
    check_number("seed", seed, 0)
    size = checked_size(image_size) or (SIDE, SIDE)
    videos = [
        random_motion(num_frames, np.random.default_rng([VIDEO_SEED, seed, number]))
        for number in range(count)
    ]
    images = np.stack([[scene.draw(size) for scene in scenes] for scenes in videos])
    return {
        "image": images.astype(np.float32) / np.float32(127.5) - 1,
        "index": np.stack([[scene.index(size) for scene in scenes] for scenes in videos]),
    }
