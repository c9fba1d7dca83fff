"""Images with a mask of every object or part, annotated in JSON as COCO and PartImageNet are."""

import json
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from vit_tf.common.names import file_error, format_list, lookup
from vit_tf.data.folder import NumberedFiles, decode_file
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.data.reading import read_batches
from vit_tf.data.source import (
    ImageSize,
    Indices,
    SizesDifferError,
    check_numbers,
    checked_size,
    partition,
)

SPLIT = "test"


def load_coco(
    annotations: str | os.PathLike,
    images: str | os.PathLike,
    *,
    image_size: ImageSize | None = None,
    batch_size: int = 32,
    categories: Sequence[str] | None = None,
    take: int | None = None,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
) -> tf.data.Dataset:
    """Images with the mask and the category of every object or part that COCO JSON annotates.

    Polygons and run lengths are decoded by pycocotools. Crowds and objects without area (such as
    polygons of fewer than three points) are omitted, and so are images without any object.
    Annotations refer to images as stored, so the EXIF orientation is ignored. Batches are decoded
    lazily, and padded to the largest number of objects per image.

    `vit_tf.analysis.object_clustering` takes the result directly, and `attention_saliency` takes
    its `union_masks`. Splits with the same categories, as in PartImageNet, can be joined:
    `first.concatenate(second)`.

    Args:
        annotations: path of the JSON file.
        images: path of the folder of its images; a missing image is searched for in the folder of
            its class, as in `n01440764/n01440764_10.JPEG`.
        image_size, preprocessing: as for `load`. A pixel of the resized image belongs to an object
            if the centre of the pixel does.
        batch_size: number of examples per batch. The last batch may have fewer.
        categories: names of the categories, or of the supercategories, whose objects are kept. None
            keeps all objects.
        take: number of images to keep. None keeps all images. The images are drawn with the seed,
            and balanced over supercategories; the supercategory of an image is that of its largest
            object.
        seed: seed of `take`.

    Returns:
        Batched `tf.data.Dataset` of (images, masks, labels) in the order of the images' ids. Images
        are float32 of shape (example, height, width, 3). Masks are bool of shape (example, object,
        height, width). Labels are int32 of shape (example, object). A label is a position in
        `coco_categories`, or -1 if there is no object.

    Raises:
        ValueError: if pycocotools is not installed, if a file is missing or corrupt, or if the size
            of an image differs from its annotation. It is also raised if an annotation has an
            unknown image or category, if a name in `categories` is unknown, if there is no object,
            if images differ in size and no size is given, or if an argument is out of range.
    """
    check_numbers(1, batch_size=batch_size)
    if take is not None:
        check_numbers(1, take=take)
    check_numbers(0, seed=seed)
    size = checked_size(image_size, preprocessing)
    preprocessing = preprocessing and preprocessing.squeezed()
    content = read_annotations(annotations)
    table = annotated_images(content, images, categories)
    source = AnnotatedImages(table, category_names(content))
    takes = {} if take is None else {SPLIT: take}
    _, indices = partition(source, (SPLIT,), 0, takes, seed)[SPLIT]
    size = size or source.image_size(SPLIT, indices)
    batches = read_batches(source, SPLIT, indices, size, batch_size, preprocessing=preprocessing)
    annotate = _annotator(table, size)
    return batches.map(annotate, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def coco_categories(annotations: str | os.PathLike) -> tuple[str, ...]:
    """Names of the categories of a COCO JSON file, in the order of their ids: a tuple.

    Raises:
        ValueError: for a file that is missing or corrupt.
    """
    return category_names(read_annotations(annotations))


def union_masks(examples: tf.data.Dataset) -> tf.data.Dataset:
    """Data set of (images, masks) from the (images, masks, labels) that `load_coco` returns.

    A mask is the union of the objects of an image, bool of shape (example, row, column).
    """
    return examples.map(lambda images, masks, labels: (images, tf.reduce_any(masks, axis=1)))


class AnnotatedImages(NumberedFiles):
    """Image files of one split with their annotated sizes."""

    def __init__(self, table: "Sequence[Annotated]", class_names: tuple[str, ...]):
        self._table, self.class_names = table, class_names
        sizes = np.array([image.size for image in table])
        super().__init__(SPLIT, [image.path for image in table], sizes, _decode)

    def labels(self, split: str) -> np.ndarray:
        """Numbers of the supercategories, by which examples are drawn; `read` gives others."""
        return np.unique([image.group for image in self._table], return_inverse=True)[1]

    def image_size(self, split: str, indices: Indices) -> tuple[int, int]:
        sizes = sorted({self._table[index].size for index in indices})
        if len(sizes) > 1:
            raise SizesDifferError(f"images of {format_list(sizes)}")
        return sizes[0]


def _decode(path: bytes, size: np.ndarray) -> np.ndarray:
    """The image of a file, of the annotated size."""
    name, annotated = os.fsdecode(path), tuple(size.tolist())
    image = decode_file(name, upright=False)
    if image.shape[:2] != annotated:
        raise ValueError(
            f"Expected an image of the size in the annotations, {annotated}. "
            f"Received: {name} of {image.shape[:2]}"
        )
    return image


def _annotator(
    table: "Sequence[Annotated]", size: tuple[int, int]
) -> Callable[[tf.Tensor, tf.Tensor], tuple[tf.Tensor, tf.Tensor, tf.Tensor]]:
    """A function of (images, their numbers in the table) to (images, masks, labels)."""
    tools = mask_tools()

    def pad(numbers: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        images = [table[number] for number in numbers]
        shape = (len(images), max(len(image.labels) for image in images))
        masks, labels = np.zeros((*shape, *size), bool), np.full(shape, -1, np.int32)
        for i, image in enumerate(images):
            objects = tools.decode(image.masks)[np.ix_(*map(_nearest, size, image.size))]
            masks[i, : len(image.labels)] = np.moveaxis(objects, -1, 0)
            labels[i, : len(image.labels)] = image.labels
        return masks, labels

    def annotate(images: tf.Tensor, numbers: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor, tf.Tensor]:
        masks, labels = tf.numpy_function(pad, [numbers], (tf.bool, tf.int32))
        masks = tf.ensure_shape(masks, (None, None, *size))
        return images, masks, tf.ensure_shape(labels, (None, None))

    return annotate


def _nearest(wanted: int, given: int) -> np.ndarray:
    """Which of `given` pixels holds the centre of each of as many as are wanted, along one axis."""
    return (2 * np.arange(wanted) + 1) * given // (2 * wanted)


# What is read of each entry; all else may be absent.
KEYS = {
    "images": ("id", "file_name", "height", "width"),
    "annotations": ("image_id", "category_id"),
    "categories": ("id", "name"),
}
FEWEST_POINTS = 3


@dataclass(frozen=True)
class Annotated:
    """An image file, its stored size, compressed masks, labels, and largest supercategory."""

    path: str
    size: tuple
    masks: list
    labels: np.ndarray
    group: str


def category_names(content: Mapping[str, Any]) -> tuple[str, ...]:
    """Names of the categories of what `read_annotations` returns: a tuple."""
    return tuple(category["name"] for category in content["categories"])


def read_annotations(path: str | os.PathLike) -> dict[str, Any]:
    """The content of a COCO JSON file, its images and categories in the order of their ids."""
    try:
        content = json.loads(Path(path).expanduser().read_bytes())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected annotations to be the path of a COCO JSON file. Received: {str(path)!r} "
            f"({file_error(error, path)})"
        ) from error
    for list_name, keys in KEYS.items():
        entries = content.get(list_name) if isinstance(content, dict) else None
        if not isinstance(entries, list) or not all(map(set(keys).issubset, entries)):
            raise ValueError(
                f"Expected COCO JSON with a list {list_name!r} of entries with {', '.join(keys)}. "
                f"Received: {str(path)!r}"
            )
    for list_name in ("images", "categories"):
        content[list_name] = sorted(content[list_name], key=lambda entry: entry["id"])
    return content


def annotated_images(
    content: Mapping[str, Any], root: str | os.PathLike, wanted: Sequence[str] | None
) -> list[Annotated]:
    """The images that have objects of the wanted (super)categories: a list of `Annotated`."""
    kept_labels = _kept_labels(content["categories"], wanted)
    label_of = {category["id"]: i for i, category in enumerate(content["categories"])}
    size_of = {image["id"]: (image["height"], image["width"]) for image in content["images"]}
    for key, ids in (("image_id", size_of), ("category_id", label_of)):
        strangers = sorted({annotation[key] for annotation in content["annotations"]} - set(ids))
        if strangers:
            raise ValueError(
                f"{len(strangers)} values of {key} in the annotations are not defined in the "
                f"file: {format_list(strangers)}"
            )
    tools = mask_tools()
    objects = {}
    for annotation in tqdm(content["annotations"], "Reading annotations", delay=1, disable=None):
        label, image = label_of[annotation["category_id"]], annotation["image_id"]
        if label in kept_labels and not annotation.get("iscrowd"):
            mask, area = _encode(annotation, size_of[image], tools)
            if area:
                objects.setdefault(image, []).append((mask, label, area))
    if not objects:
        raise ValueError(
            f"The file has no object for categories={wanted!r}. Crowds and objects without "
            "area do not count."
        )
    images = [image for image in content["images"] if image["id"] in objects]
    paths = _find(root, [image["file_name"] for image in images])
    supers = [_supercategory(category) for category in content["categories"]]
    table = []
    for image, path in zip(images, paths, strict=True):
        masks, labels, areas = zip(*objects[image["id"]], strict=True)
        group = supers[labels[np.argmax(areas)]]
        labels = np.array(labels, np.int32)
        table.append(Annotated(path, size_of[image["id"]], list(masks), labels, group))
    return table


def _supercategory(category: Mapping[str, Any]) -> str:
    return category.get("supercategory", category["name"])


def _kept_labels(
    categories: Sequence[Mapping[str, Any]], wanted: Sequence[str] | None
) -> Collection[int]:
    """Positions of the categories that are named, themselves or by their supercategory."""
    if wanted is None:
        return range(len(categories))
    names = [{category["name"], _supercategory(category)} for category in categories]
    all_names = set().union(*names)
    for name in wanted:
        lookup("category", name, dict.fromkeys(sorted(all_names)))
    return {label for label, own_names in enumerate(names) if own_names & set(wanted)}


def mask_tools() -> Any:
    """The module `pycocotools.mask`."""
    try:
        from pycocotools import mask
    except ImportError as error:
        raise ValueError(
            f"COCO masks need pycocotools: `pip install vit_tf[coco]` ({error})"
        ) from error
    return mask


def _encode(annotation: Mapping[str, Any], size: tuple[int, int], tools: Any) -> tuple[Any, int]:
    """Compressed run lengths and area of an annotation in an image of a size."""
    try:
        mask = _run_lengths(annotation.get("segmentation") or [], size, tools)
        return mask, int(tools.area(mask))
    except Exception as error:  # pycocotools raises whatever a corrupt mask makes it
        raise ValueError(
            f"Expected a mask as polygons or run lengths, for {size[0]} x {size[1]} pixels. "
            f"Received: annotation {annotation.get('id')} ({type(error).__name__}: {error})"
        ) from error


def _run_lengths(segmentation: Any, size: tuple[int, int], tools: Any) -> Any:
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


def _decompressed(text: str) -> list[int]:
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


def _find(root: str | os.PathLike, names: Sequence[str]) -> list[str]:
    """Paths of the image files of a folder; a `ValueError` names the first few that are missing."""
    root = Path(root).expanduser()
    places = [(root / name, root / name.partition("_")[0] / name) for name in names]
    paths = [next((str(p) for p in pair if p.is_file()), "") for pair in places]
    missing = [name for name, path in zip(names, paths, strict=True) if not path]
    if missing:
        raise ValueError(
            f"{len(missing)} of {len(names)} annotated images are not in {str(root)!r}: "
            f"{format_list(missing)}"
        )
    return paths
