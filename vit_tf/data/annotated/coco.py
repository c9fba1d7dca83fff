"""Images with a mask of every object or part, annotated in JSON as COCO and PartImageNet are."""

import os

import numpy as np
import tensorflow as tf

from vit_tf.data.annotated.coco_annotations import (
    annotated_images,
    category_names,
    few_words,
    mask_tools,
    read_annotations,
)
from vit_tf.data.folder import decode_file
from vit_tf.data.pipeline import check_number, checked_size
from vit_tf.data.reading import read_batches
from vit_tf.data.source import Source, partition

SPLIT = "test"


def load_coco(
    annotations,
    images,
    *,
    image_size=None,
    batch_size=32,
    categories=None,
    take=None,
    seed=0,
    preprocessing=None,
):
    """Images with the mask and the category of every object or part that COCO JSON annotates.

    Polygons and run lengths are decoded by pycocotools. Crowds and objects without area (such as
    polygons of fewer than three points) are left out, and so are images without any object.
    Annotations refer to images as stored, so the EXIF orientation is ignored. Batches are decoded
    lazily, and padded to the largest number of objects per image.

    `vit_tf.analysis.object_clustering` takes the result directly, and `attention_saliency` takes
    its `union_masks`. Splits of the same categories, such as those of PartImageNet, can be joined:
    `first.concatenate(second)`.

    Args:
        annotations: path of the JSON file.
        images: path of the folder of its images; a missing image is searched for in the folder of
            its class, as in `n01440764/n01440764_10.JPEG`.
        image_size, preprocessing: as for `load`. A pixel of the requested size belongs to an object
            if its centre does.
        batch_size: examples per batch; the last one may have fewer.
        categories: names of the categories, or of the supercategories, whose objects are kept; all
            of them if None.
        take: number of images to keep, all if None; seeded, and balanced over the supercategories
            of the largest object of each image.
        seed: seed of `take`.

    Returns:
        Batched `tf.data.Dataset` of (images, masks, labels) in the order of the images' ids:
        float32 of shape (example, height, width, 3), bool of shape (example, object, height,
        width), and int32 of shape (example, object), positions in `coco_categories`, -1 for none.

    Raises:
        ValueError: without pycocotools; for files that are missing, corrupt or of another size than
            annotated, annotations of unknown images or categories, unknown `categories`, no object
            at all, images that differ in size if none is given, and arguments out of range.
    """
    check_number("batch_size", batch_size, 1)
    check_number("seed", seed, 0)
    if take is not None:
        check_number("take", take, 1)
    size = checked_size(image_size, preprocessing)
    preprocessing = preprocessing and preprocessing.squeezed()
    content = read_annotations(annotations)
    table = annotated_images(content, images, categories)
    source = _source(table, category_names(content))
    takes = {} if take is None else {SPLIT: take}
    _, indices = partition(source, (SPLIT,), 0, takes, seed)[SPLIT]
    size = size or source.image_size(SPLIT, indices)
    batches = read_batches(source, SPLIT, indices, size, batch_size, preprocessing=preprocessing)
    annotate = _annotator(table, size)
    return batches.map(annotate, num_parallel_calls=tf.data.AUTOTUNE).prefetch(tf.data.AUTOTUNE)


def coco_categories(annotations):
    """Names of the categories of a COCO JSON file, in the order of their ids: a tuple.

    Raises:
        ValueError: for a file that is missing or corrupt.
    """
    return category_names(read_annotations(annotations))


def union_masks(examples):
    """The `(images, masks)` of a data set of `(images, masks, labels)`, as `load_coco` returns it.

    Masks are the union of an image's objects, bool of shape (example, row, column).
    """
    return examples.map(lambda images, masks, labels: (images, tf.reduce_any(masks, axis=1)))


def _source(table, class_names):
    """The images as a `Source` of one split, each labelled with its number in the table."""
    _, groups = np.unique([image.group for image in table], return_inverse=True)

    def read(split, indices):
        paths = [table[index].path for index in indices]
        sizes = [table[index].size for index in indices]
        return tf.data.Dataset.from_tensor_slices(((paths, sizes), indices))

    def image_size(split, indices):
        sizes = sorted({table[index].size for index in indices})
        if len(sizes) > 1:
            raise ValueError(
                "Expected image_size to be given, for images that differ in size, as a number of "
                "pixels or a pair (height, width). Received: image_size=None, images of "
                f"{few_words(sizes)}"
            )
        return sizes[0]

    def decode(item):
        image, problem = tf.numpy_function(_decode_or_tell, item, (tf.uint8, tf.string))
        return tf.ensure_shape(image, (None, None, 3)), tf.ensure_shape(problem, ())

    return Source(
        class_names=class_names,
        num_examples={SPLIT: len(table)},
        labels=lambda split: groups,
        image_size=image_size,
        read=read,
        decode=decode,
        shuffle_buffer=len(table),
    )


def _decode_or_tell(path, size):
    """The image of a file and no words, or a black pixel and the words of what is wrong."""
    path, size = os.fsdecode(path), tuple(size.tolist())
    try:
        image = decode_file(path, upright=False)
    except ValueError as error:
        return np.zeros((1, 1, 3), np.uint8), str(error)
    if image.shape[:2] != size:
        return np.zeros((1, 1, 3), np.uint8), (
            f"Expected an image of the size that is annotated, {size}. "
            f"Received: {path} of {image.shape[:2]}"
        )
    return image, ""


def _annotator(table, size):
    """A function of (images, their numbers in the table) to (images, masks, labels)."""
    tools = mask_tools()

    def pad(numbers):
        images = [table[number] for number in numbers]
        shape = (len(images), max(len(image.labels) for image in images))
        masks, labels = np.zeros((*shape, *size), bool), np.full(shape, -1, np.int32)
        for i, image in enumerate(images):
            objects = tools.decode(image.masks)[np.ix_(*map(_nearest, size, image.size))]
            masks[i, : len(image.labels)] = np.moveaxis(objects, -1, 0)
            labels[i, : len(image.labels)] = image.labels
        return masks, labels

    def annotate(images, numbers):
        masks, labels = tf.numpy_function(pad, [numbers], (tf.bool, tf.int32))
        return (
            images,
            tf.ensure_shape(masks, (None, None, *size)),
            tf.ensure_shape(labels, (None, None)),
        )

    return annotate


def _nearest(wanted, given):
    """Which of `given` pixels holds the centre of each of as many as are wanted, along one axis."""
    return (2 * np.arange(wanted) + 1) * given // (2 * wanted)
