"""What the scripts that write a report read besides labelled images: masks, videos, pairs."""

import numpy as np
import tensorflow as tf

import vit_tf

BATCH = 60
VIDEOS = 8
PAIRS = 160


def of_shapes(options, size, preprocessing):
    """The annotations of the shapes: dict of fields of `measure.Data`, and facts about them.

    Args:
        options: of the command line: `sizes` and `seed`.
        size: (height, width) of the images, in pixels.
        preprocessing: what images are made with, or None.
    """
    tested = {"take": options.sizes["test"]} if "test" in options.sizes else {}
    seeded = {"image_size": None if preprocessing else size, "preprocessing": preprocessing}
    found = vit_tf.data.load_shapes("test", seed=options.seed, **tested, **seeded)
    videos = vit_tf.data.load_shape_videos(VIDEOS, image_size=size, seed=options.seed)
    pairs = vit_tf.data.load_shape_pairs(PAIRS, seed=options.seed, **seeded)
    fields = {
        "objects": _noted_shapes(found),
        "videos": list(zip(videos["image"], videos["index"], strict=True)),
        "pairs": pairs,
    }
    facts = {"objects": tested, "videos": {"videos": VIDEOS}, "pairs": {"pairs": PAIRS}}
    return fields, facts


def _noted_shapes(found):
    """Batches of (images, notes): one object an image, of a kind, and its front and its back."""
    kinds, parts = found["label"].astype(np.int32), found["parts"]
    notes = {
        "mask": found["mask"],
        "objects": found["mask"][:, None],
        "object_labels": kinds[:, None],
        "parts": np.stack([parts == 1, parts == 2], axis=1),
        "part_labels": np.stack([2 * kinds, 2 * kinds + 1], axis=1),
    }
    return tf.data.Dataset.from_tensor_slices((found["image"], notes)).batch(BATCH)
