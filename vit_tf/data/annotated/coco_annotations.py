"""The objects of images, as the JSON files of COCO and PartImageNet list them."""

import json
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from tqdm.auto import tqdm

from vit_tf.names import file_error, unknown_name

# What is read of each entry; all else may be absent.
KEYS = {
    "images": ("id", "file_name", "height", "width"),
    "annotations": ("image_id", "category_id"),
    "categories": ("id", "name"),
}
FEWEST_POINTS = 3
NAMED = 5


@dataclass(frozen=True)
class Annotated:
    """An image file and what is annotated in it.

    Attributes:
        path: path of the file.
        size: (height, width) of the image as it is stored, in pixels.
        masks: list of the run lengths of each object, as pycocotools compresses them.
        labels: int32 array of shape (object,), positions in `coco_categories`.
        group: name of the supercategory of the largest object.
    """

    path: str
    size: tuple
    masks: list
    labels: np.ndarray
    group: str


def category_names(content):
    """Names of the categories of what `read_annotations` returns: a tuple."""
    return tuple(category["name"] for category in content["categories"])


def read_annotations(path):
    """What a COCO JSON file holds, its images and categories in the order of their ids.

    Raises:
        ValueError: for a file that is missing or corrupt.
    """
    try:
        content = json.loads(Path(path).expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected annotations to be the path of a COCO JSON file. Received: {str(path)!r} "
            f"({file_error(error, path)})"
        ) from error
    for part, keys in KEYS.items():
        entries = content.get(part) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(map(set(keys).issubset, entries)):
            raise ValueError(
                f"Expected COCO JSON with a list {part!r} of entries with {', '.join(keys)}. "
                f"Received: {str(path)!r}"
            )
    for part in ("images", "categories"):
        content[part] = sorted(content[part], key=lambda entry: entry["id"])
    return content


def annotated_images(content, root, wanted):
    """The images that have objects of the wanted categories: a list of `Annotated`.

    Args:
        content: dict, from `read_annotations`.
        root: path of the folder of the images.
        wanted: names of categories or supercategories, or None for all.

    Raises:
        ValueError: for missing images, unknown names and ids, corrupt masks, and no objects.
    """
    kept = _kept_categories(content["categories"], wanted)
    label_of = {category["id"]: i for i, category in enumerate(content["categories"])}
    size_of = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    _require_known(content["annotations"], "image_id", size_of)
    _require_known(content["annotations"], "category_id", label_of)
    encode = _encoder()
    found = {}
    for annotation in tqdm(content["annotations"], "Reading annotations", delay=1, disable=None):
        category, image = annotation["category_id"], annotation["image_id"]
        if category in kept and not annotation.get("iscrowd"):
            mask, area = encode(annotation, size_of[image])
            if area:
                found.setdefault(image, []).append((mask, label_of[category], area))
    if not found:
        raise ValueError(
            "Expected annotations of objects with an area that are not crowds. "
            f"Received: none, for categories={wanted!r}"
        )
    images = [image for image in content["images"] if image["id"] in found]
    paths = _find(root, [image["file_name"] for image in images])
    supers = [_supercategory(category) for category in content["categories"]]
    table = []
    for image, path in zip(images, paths, strict=True):
        masks, labels, areas = zip(*found[image["id"]], strict=True)
        group = supers[labels[np.argmax(areas)]]
        labels = np.array(labels, np.int32)
        table.append(Annotated(path, size_of[image["id"]], list(masks), labels, group))
    return table


def _supercategory(category):
    return category.get("supercategory", category["name"])


def _kept_categories(categories, wanted):
    """Ids of the categories that are named, themselves or by their supercategory: a set."""
    if wanted is None:
        return {category["id"] for category in categories}
    if isinstance(wanted, str) or not wanted:
        raise ValueError(
            f"Expected categories to be a list of names. Received: categories={wanted!r}"
        )
    names = [{category["name"], _supercategory(category)} for category in categories]
    known = set().union(*names)
    for name in wanted:
        if name not in known:
            raise unknown_name("category", name, sorted(known))
    pairs = zip(categories, names, strict=True)
    return {category["id"] for category, names in pairs if names & set(wanted)}


def _require_known(annotations, key, known):
    strangers = sorted({annotation[key] for annotation in annotations} - set(known))
    if strangers:
        raise ValueError(
            f"Expected each annotation's {key} to be among those of the file. "
            f"Received: {len(strangers)} others, {few_words(strangers)}"
        )


def few_words(values):
    """The first few of a list, as words."""
    shown = [str(value) for value in values[:NAMED]]
    return ", ".join(shown + ["..."] * (len(values) > NAMED))


def mask_tools():
    """The module `pycocotools.mask`."""
    try:
        from pycocotools import mask
    except ImportError as error:
        raise ValueError(
            "Expected pycocotools to be installed, to read COCO masks: "
            f"`pip install vit_tf[coco]`. Received: {error}"
        ) from error
    return mask


def _encoder():
    """A function of (annotation, size of its image) to its compressed run lengths and its area."""
    tools = mask_tools()

    def encode(annotation, size):
        try:
            mask = _run_lengths(annotation.get("segmentation") or [], size, tools)
            return mask, int(tools.area(mask))
        except Exception as error:  # pycocotools raises whatever a corrupt mask makes it
            raise ValueError(
                f"Expected a mask as polygons or run lengths, for {size[0]} x {size[1]} pixels. "
                f"Received: annotation {annotation.get('id')} ({type(error).__name__}: {error})"
            ) from error

    return encode


def _run_lengths(segmentation, size, tools):
    """Compressed run lengths of a mask of any of the forms that COCO has."""
    if isinstance(segmentation, dict):
        if tuple(segmentation["size"]) != size:
            raise ValueError(f"size {segmentation['size']}")
        counts = segmentation["counts"]
        counts = _decompressed(counts) if isinstance(counts, str) else counts
        # pycocotools takes fewer runs than pixels, and fills the rest with what is in memory.
        if sum(counts) != size[0] * size[1]:
            raise ValueError(f"runs of {sum(counts)} pixels")
        return tools.frPyObjects({"size": size, "counts": counts}, *size)
    # pycocotools would take two points for a box.
    polygons = [points for points in segmentation if len(points) >= 2 * FEWEST_POINTS]
    return tools.merge(tools.frPyObjects(polygons, *size) if polygons else [])


def _decompressed(text):
    """Run lengths from their text: 5 bits a character, low ones first, of each run's difference."""
    # A run is stored as its difference from the last but one, from the fourth on. A character's
    # sixth bit continues the run, and the fifth of its last one is the sign.
    counts, value, shift = [], 0, 0
    for character in text:
        bits = ord(character) - 48
        value |= (bits & 0x1F) << shift
        shift += 5
        if not bits & 0x20:
            value -= (1 << shift) if bits & 0x10 else 0
            counts.append(value + counts[-2] if len(counts) > 2 else value)
            value, shift = 0, 0
    return counts


def _find(root, names):
    """Paths of the image files of a folder; a `ValueError` names the first few that are missing."""
    root = Path(root).expanduser()
    if not root.is_dir():
        raise ValueError(f"Expected images to be a folder that exists. Received: {str(root)!r}")
    places = [(root / name, root / name.partition("_")[0] / name) for name in names]
    paths = [next((str(p) for p in pair if p.is_file()), None) for pair in places]
    missing = [name for name, path in zip(names, paths, strict=True) if path is None]
    if missing:
        raise ValueError(
            f"Expected the {len(names)} annotated images in {str(root)!r}. "
            f"Received: {len(missing)} missing, {few_words(missing)}"
        )
    return paths
