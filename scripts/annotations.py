"""What the scripts that write a report read besides labelled images: masks, videos, pairs."""

from functools import cache, partial
from pathlib import Path

import vit_tf
from vit_tf.files import digest_tree

BATCH = 60
# Of the shapes, which are made on the spot.
VIDEOS = 16
PAIRS = 160


def add_annotations(add):
    """Adds the options that tell where annotated images are; the shapes have their own."""
    coco = {"nargs": 2, "metavar": ("JSON", "FOLDER")}
    add("--objects", **coco, help="masks of objects, as COCO's, and the folder of their images")
    add("--parts", **coco, help="masks of parts of objects, as PartImageNet's, and their images")
    add("--take-objects", type=int, metavar="N", help="images of each of these (default: all)")
    add("--videos", metavar="FOLDER", help="videos with masks: the folder of DAVIS 2017")
    add("--pairs", metavar="FOLDER", help="pairs with keypoints: the folder of SPair-71k")
    landmarks = {"nargs": 2, "metavar": ("FOLDER", "NAME")}
    add("--landmarks", **landmarks, help="images to retrieve, and roxford5k or rparis6k")


def read_annotations(options, size, preprocessing=None):
    """The annotated images that there are: dict of functions that make them, and their facts.

    Args:
        options: of the command line, those above and `data`, `seed` and `sizes`.
        size: (height, width) of the images, in pixels.
        preprocessing: what images are made with, or None.
    """
    shaped = {"preprocessing": preprocessing} if preprocessing else {"image_size": size}
    made, facts = _of_shapes(options, size, shaped) if options.data == "shapes" else ({}, {})
    for name, read in _READERS.items():
        source = getattr(options, name)
        if source:
            found = read(source, options, shaped)  # at once, since a path may be wrong
            made[name] = lambda found=found: found
            paths = [source] if isinstance(source, str) else source
            digests = [digest_tree(path) for path in paths if Path(path).exists()]
            facts[name] = {name: [source, *digests], "take": options.take_objects}
    return made, facts


def _coco(source, options, shaped):
    take = {"take": options.take_objects, "seed": options.seed}
    return vit_tf.data.load_coco(*source, batch_size=BATCH, **take, **shaped)


def _davis(source, options, shaped):
    return vit_tf.data.load_davis(source, preprocessing=shaped.get("preprocessing"))


def _spair(source, options, shaped):
    return vit_tf.data.load_spair(source, seed=options.seed, **shaped)


def _revisited(source, options, shaped):
    return vit_tf.data.load_revisited(*source, batch_size=BATCH, **shaped)


_READERS = {
    "objects": _coco,
    "parts": _coco,
    "videos": _davis,
    "pairs": _spair,
    "landmarks": _revisited,
}


def _of_shapes(options, size, shaped):
    """Functions that make the annotations of the shapes, by name, and facts about these."""
    from vit_tf.data.annotated.annotated_shapes import half_masks, shape_masks

    tested = {"take": options.sizes["test"]} if "test" in options.sizes else {}
    seed = {"seed": options.seed}
    found = cache(partial(vit_tf.data.load_shapes, "test", **seed, **tested, **shaped))
    made = {
        "objects": lambda: shape_masks(found(), BATCH),
        "parts": lambda: half_masks(found(), BATCH),
        "videos": partial(_shape_videos, size, **seed),
        "pairs": partial(vit_tf.data.load_shape_pairs, PAIRS, **seed, **shaped),
    }
    facts = {"videos": {"videos": VIDEOS}, "pairs": {"pairs": PAIRS}}
    return made, facts | dict.fromkeys(("objects", "parts"), tested)


def _shape_videos(size, seed):
    """Pairs of frames and masks."""
    videos = vit_tf.data.load_shape_videos(VIDEOS, image_size=size, seed=seed)
    return list(zip(videos["image"], videos["index"], strict=True))
