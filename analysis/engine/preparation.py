"""The border of every measurement: models become features, and images become batches.

The first line of a measurement calls `prepare`, for one model and its images, or one of the other
functions: `prepare_sets` and `prepare_labelled` for several sets of images, `prepare_pair` for two
models or activations, `read_model` and `prepare_images` for anything else.
"""

import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf

import vit_tf
from vit_tf.common.names import format_list
from vit_tf.data.any_images import (
    ImagesLike,
    as_images,
    is_raw,
    shape_of_floats,
    with_channel_axis,
)
from vit_tf.data.batches import BATCH_SIZE, IN_ORDER, RANDOM, batch_arrays, explained_batches
from vit_tf.data.known_forms import in_known_form
from vit_tf.data.labels import count_classes, require_classes, require_label_type, require_labels
from vit_tf.features.conversion import (
    LayerSelection,
    ModelLike,
    as_features,
    as_selection,
    require_model,
    select_features,
)
from vit_tf.features.features import Features
from vit_tf.features.function_features import features_from_arrays
from vit_tf.features.layers import KINDS, Detail
from vit_tf.features.preprocessed import with_own_preprocessing
from vit_tf.torch_models import is_torch_module
from vit_tf.training.evaluation import match_classes, require_classes_of

from .class_scores import require_scores
from .stream import first_batch
from .traces import keep

Batches: TypeAlias = tf.data.Dataset
HELD_OUT = 5  # one of so many images tests a probe, where no test images are given


def prepare(
    model: ModelLike,
    images: ImagesLike | None,
    *,
    kind: str = "representations",
    layers: LayerSelection = None,
    detail: Detail = None,
    scores: str | None = None,
    keep_order: bool = False,
    labelled: bool = False,
    masked: bool = False,
    any_size: bool = False,
) -> tuple[Features, Batches]:
    """Prepares a measurement: the features of a model, and the batches of images for them.

    Args:
        model: a model in any form, or `{layer: array}`, stored activations.
        images: images in any form; for activations, None or labels of shape (example,).
        kind: the layers to use, a key of `vit_tf.features.layers.KINDS`. If it includes class
            scores, `features.facts.scores` is the name of their layer.
        layers, detail: the user's selection of layers, as in `vit_tf.analysis`.
        scores: name of the layer of the class scores; None for the model's own.
        keep_order: whether the result has a row for each image, so that the order of images
            matters. Otherwise, folders, lists and arrays are shuffled with a fixed seed.
        labelled: whether images must have labels.
        masked: whether images have masks of objects. Such images are resized but not cropped, so
            that the masks still apply.
        any_size: whether images keep their own size instead of being resized to the model's.

    Returns:
        Pair of the features and the batches.

    Raises:
        ValueError: if the model has no such layers, if the form of the images is unknown, or if
            required labels are missing.
    """
    # Rows that hold all activations side by side take the place of the images.
    if isinstance(model, Mapping):
        labels: Any = images
        if isinstance(labels, tuple) or (labels is not None and np.ndim(labels) != 1):
            require_model(model)  # raises for activations, with advice
        rows, (features,) = features_from_arrays(model)
        examples = rows if labels is None else (rows, np.asarray(labels))
        return features, batch_arrays(examples, IN_ORDER if keep_order else RANDOM)
    images = in_known_form(images)
    # A model is made for images of its own size where these keep theirs.
    shown = None if any_size else images
    features = read_model(model, kind, layers, detail, images=shown)
    (features,), (batches,) = prepare_images(
        [features],
        {"images": images},
        scores=[scores] if KINDS[kind].with_scores else (),
        keep_order=keep_order,
        labelled=["images"] if labelled else (),
        masked=masked,
        any_size=any_size,
    )
    return features, batches


def prepare_sets(
    model: ModelLike,
    data: Mapping[str, ImagesLike],
    *,
    kind: str = "representations",
    layers: LayerSelection = None,
    detail: Detail = None,
    keep_order: bool = False,
) -> tuple[Features, list[Batches]]:
    """As `prepare`, for a dict of sets of images; returns a list of batches in the same order."""
    data = {name: in_known_form(images) for name, images in data.items()}
    features = read_model(model, kind, layers, detail, images=next(iter(data.values()), None))
    (features,), sets = prepare_images([features], data, keep_order=keep_order)
    return features, sets


def prepare_labelled(
    model: ModelLike,
    data: Mapping[str, ImagesLike | None],
    num_classes: int | None,
    *,
    kind: str = "representations",
    layers: LayerSelection = None,
    detail: Detail = None,
    keep_order: bool = False,
) -> tuple[Features, list[Batches], int]:
    """As `prepare_sets`, for images with labels; also returns the number of classes.

    Without a set "test", every fifth image of the set "train" is a test image. By default, the
    number of classes is that of the labels of arrays, of the class names of a data set, or of the
    model, in this order.
    """
    given = {name: in_known_form(images) for name, images in data.items() if images is not None}
    features = read_model(model, kind, layers, detail, images=given.get("train"))
    models, sets = _convert_images([features], given, given, keep_order, num_classes=num_classes)
    if list(given) == ["train"] and "test" in data:
        sets = split_examples(sets[0])
    sets = [match_labels(images, sets[0]) for images in sets]
    num_classes = _count_classes(models[0], sets) if num_classes is None else num_classes
    rule = IN_ORDER if keep_order else RANDOM
    return models[0], [batch_arrays(images, rule) for images in sets], num_classes


def prepare_pair(
    model_x: ModelLike,
    images: ImagesLike | None,
    model_y: ModelLike | None,
    *,
    kind: str = "representations",
    layers: LayerSelection = None,
    detail: Detail = None,
) -> tuple[list[Features], Batches]:
    """As `prepare`, for one or two models on the same images, or for activations without images."""
    models = [model for model in (model_x, model_y) if model is not None]
    # Activations at hand take the place of images: one row holds those of both models.
    if any(isinstance(model, Mapping) for model in models):
        if images is not None:
            raise ValueError(
                "Activations are measured without images: pass only {name: array}, or "
                "{name: array} and features_y={name: array} for two models. Received: "
                f"images={type(images).__name__}"
            )
        rows, features = features_from_arrays(*models)
        return list(features), batch_arrays(rows, RANDOM)
    images = in_known_form(images)
    read = [read_model(model, kind, layers, detail, images=images) for model in models]
    features, (batches,) = prepare_images(read, {"images": images})
    return features, batches


def read_model(
    model: ModelLike,
    kind: str,
    layers: LayerSelection = None,
    detail: Detail = None,
    block: str = "block00",
    images: ImagesLike | None = None,
) -> Features:
    """The features of the layers that a measurement uses, cached with the model.

    Args:
        model: a model in any form.
        kind, layers, detail: as for `prepare`.
        block: name of the block, for the kind `"block_heads"`.
        images: images in any form. If they are floats of one shape that a PyTorch module takes, its
            layers are determined for this shape.
    """
    if isinstance(model, str | os.PathLike) and "*" not in os.fspath(model):
        model = vit_tf.load(model)
    patterns = None if layers is None else as_selection(layers)

    def select() -> Features:
        # Measurements of other kinds of layers are made of the same trace of the model.
        is_shown = is_torch_module(model) and images is not None
        shape = shape_of_floats(images) if is_shown else None
        whole = keep(model, ("features",), partial(as_features, model, shape))
        return select_features(whole, kind, patterns, block, detail)

    return keep(model, ("layers", kind, patterns, block, detail), select)


def prepare_images(
    models: Sequence[Features],
    data: Mapping[str, ImagesLike | None],
    *,
    scores: Sequence[str | None] = (),
    keep_order: bool = False,
    labelled: Collection[str] = (),
    masked: bool = False,
    any_size: bool = False,
) -> tuple[list[Features], list[Batches]]:
    """Batches of each set of images, and the features of each model to call on all of them.

    If models differ in their preprocessing, the returned features all take the same images.

    Args:
        models: the features of each model.
        data: dict from the name of a set, as errors show it, to images.
        scores: names of the layers of class scores, for the last models; None for a model's own.
        keep_order, masked, any_size: as for `prepare`.
        labelled: names of the sets that must have labels.
    """
    features, sets = _convert_images(models, data, labelled, keep_order, masked, any_size)
    show = partial(first_batch, sets[0]) if sets else None
    for position, requested in enumerate(scores, start=len(features) - len(scores)):
        key = "class scores", requested
        own = features[position]
        features[position] = keep(own, key, partial(own.read_scores, requested, show))
        for images in (x for name, x in zip(data, sets, strict=True) if name in labelled):
            require_same_classes(features[position], images, requested)
    rule = IN_ORDER if keep_order else RANDOM
    return features, [batch_arrays(images, rule) for images in sets]


def require_same_classes(features: Features, images: Batches, requested: str | None = None) -> None:
    """Raises a `ValueError` for data that name other classes than a model's, or in another order.

    `requested` is the layer of the class scores, if the caller names it.
    """
    if getattr(images, "class_names", None):
        taps = features(tf.cast(first_batch(images)[:2], tf.float32))
        num_classes = require_scores(taps, score_layer(features, requested), [0])
        require_classes_of(features.facts.class_names or None, num_classes, images)


def prepare_scored(
    model: ModelLike, images: ImagesLike | None, scores: str | None, **options: Any
) -> tuple[Features, Batches, str]:
    """The features and batches of `prepare`, and the layer of class scores."""
    features, batches = prepare(model, images, scores=scores, **options)
    return features, batches, score_layer(features, scores)


def score_layer(features: Features, requested: str | None = None) -> str:
    """The layer of class scores of prepared features, before any softmax or sigmoid."""
    scores = features.facts.scores
    return scores.layer if scores else requested or "logits"


def _convert_images(
    models: Sequence[Features],
    data: Mapping[str, ImagesLike | None],
    labelled: Collection[str],
    keep_order: bool,
    masked: bool = False,
    any_size: bool = False,
    *,
    num_classes: int | None = None,
) -> tuple[list[Features], list[Any]]:
    """The features, and each set of images as the arrays or data set that they take, checked."""
    # Raw images are decoded, resized and normalised as the models declare.
    data = {name: in_known_form(images) for name, images in data.items()}
    preprocessing: Any = None
    if any(map(is_raw, data.values())):
        by_position, preprocessing = with_own_preprocessing(dict(enumerate(models)), data.values())
        models = list(by_position.values())
    if preprocessing and (any_size or masked):
        preprocessing = preprocessing.squeezed()
    if preprocessing and any_size:
        preprocessing = replace(preprocessing, size=None)
    # Grey images may come without an axis of channels.
    shapes = {features.facts.input_shape or () for features in models}
    shapes = {shape for shape in shapes if len(shape) in (3, 4) and shape[3:] in ((), (1,))}
    sets = []
    for name, images in data.items():
        for shape in shapes:
            images = with_channel_axis(images, shape[1:])
        images = as_images(images, preprocessing, IN_ORDER if keep_order else RANDOM)
        if name in labelled:
            require_labelled(name, images, num_classes)
        sets.append(images)
    return list(models), sets


def require_labelled(name: str, images: Any, num_classes: int | None = None) -> None:
    """Raises a `ValueError` for images without labels, or with what are no labels."""
    is_dataset = isinstance(images, tf.data.Dataset)
    parts: Any = images.element_spec if is_dataset else images
    count = len(parts) if isinstance(parts, tuple) else 0
    # Folders without classes, and lists of files, have labels of -1 and no names.
    if count < 2 or getattr(images, "class_names", None) == ():
        raise ValueError(
            f"{name} needs labels: pass a pair of arrays (images, labels), a tf.data.Dataset of "
            "such pairs, or a folder with one folder of images per class. Received: images without "
            "labels"
        )
    if count > 2:
        others = ", ".join(f"{part.dtype} of shape {part.shape}" for part in parts[2:])
        raise ValueError(
            f"Expected {name} to be (images, labels) or (images, labels, weights), with one weight "
            f"for each image. Received: {count} parts; after the images and labels: {others}"
        )
    if is_dataset:
        require_label_type(parts[1], num_classes, name)
    else:
        require_labels(np.asarray(parts[1]), num_classes, name, count=len(parts[0]))


def match_labels(images: Any, train: Any) -> Any:
    """Images with the labels that their classes have in a first data set, matched by name."""
    own, names = (getattr(dataset, "class_names", None) for dataset in (train, images))
    if not own or not names or tuple(own) == tuple(names):
        return images
    others = [name for name in names if name not in own]
    if others:
        raise ValueError(
            f"Expected test images of the classes of the training images, {format_list(own)}. "
            f"Received: {format_list(others)}, which are not among them"
        )
    numbers = match_classes(own, len(own), names, allow_others=True)

    def relabel(images: tf.Tensor, labels: tf.Tensor, *others: tf.Tensor) -> tuple:
        known = tf.gather(tf.constant(numbers, labels.dtype), tf.maximum(labels, 0))
        return images, tf.where(labels < 0, labels, known), *others  # -1 is an unknown label

    matched = images.map(relabel)
    matched.class_names = own
    return matched


def split_examples(images: tuple | tf.data.Dataset) -> list[Any]:
    """Labelled images as training and test images: one of five is a test image.

    Warns:
        UserWarning: that images were split.
    """
    if isinstance(images, tuple):
        # Every fifth image, so that sorted classes are divided evenly.
        is_test = np.arange(len(images[0])) % HELD_OUT == HELD_OUT - 1
        parts = images[0], *map(np.asarray, images[1:])
        sets = [tuple(part[rows] for part in parts) for rows in (~is_test, is_test)]
    else:
        examples = images.unbatch().enumerate()

        def batches(for_test: bool) -> tf.data.Dataset:
            chosen = examples.filter(
                lambda number, _: (number % HELD_OUT == HELD_OUT - 1) == for_test
            )
            made = chosen.map(lambda _, example: example).batch(BATCH_SIZE)
            if (names := getattr(images, "class_names", None)) is not None:
                made.class_names = names
            return made

        sets = [batches(False), batches(True)]
    warnings.warn(
        f"No test images were given: one in {HELD_OUT} images is a test image, the others train "
        "the probe.",
        stacklevel=5,
    )
    return sets


def _count_classes(features: Features, sets: Sequence[Any]) -> int:
    """The number of classes: that of the labels, of the data set or of the model."""
    arrays = [np.asarray(images[1]) for images in sets if isinstance(images, tuple)]
    if arrays:
        return count_classes(np.concatenate(arrays))
    for images in sets:
        if names := getattr(images, "class_names", None):
            require_classes(len(names))
            return len(names)
    if features.facts.num_classes:
        return features.facts.num_classes
    labels = [np.asarray(batch[1]) for images in sets for batch in explained_batches(images)]
    return count_classes(np.concatenate(labels))
