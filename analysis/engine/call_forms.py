"""The forms in which a measurement may be called, brought into the one that it declares."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from vit_tf.common.names import join_words
from vit_tf.data.equal_batches import BATCH_SIZE
from vit_tf.features.features import Features
from vit_tf.torch_models import is_torch_module

from .roles import Roles

# Other libraries' names of arguments. Each stands for the parameter with the second name.
ARGUMENT_NAMES = {"layer": "layers", "top_k": "top", "topk": "top", "n_neighbors": "k"}
# The same for parameters that a measurement names in its own way.
MODEL_NAMES = ("model", "features")
SECOND_MODEL_NAMES = ("other", "model2", "model_2", "other_model")
IMAGE_NAMES = ("images", "inputs", "x")
CLASS_NAMES = ("target", "targets", "class_index")
LABEL_NAMES = ("labels", "y")
HELD_OUT = 5  # one of so many images tests a probe, where no test images are given


def rename_arguments(
    given: Mapping[str, Any], parameters: Sequence[str], roles: Roles
) -> dict[str, Any]:
    """Keyword arguments under the names of the parameters, where they have another library's."""
    names = dict(ARGUMENT_NAMES)
    models = [*roles.models, *filter(None, [roles.several_models])]
    for others, own in (
        (MODEL_NAMES, models[:1]),
        (SECOND_MODEL_NAMES, models[1:2]),
        (IMAGE_NAMES, roles.images if len(roles.images) == 1 else ()),
        (CLASS_NAMES, filter(None, [roles.classes])),
    ):
        names |= {other: name for name in own for other in others}
    renamed = {}
    for name, value in given.items():
        own = name if name in parameters else names.get(name, name)
        renamed[own if own not in given and own in parameters else name] = value
    if len(roles.labelled) == 1:
        (images,) = roles.labelled
        labels = [name for name in LABEL_NAMES if name in renamed and name not in parameters]
        if labels and images in renamed:
            renamed[images] = (renamed[images], renamed.pop(labels[0]))
    return renamed


def order_models(args: Sequence[Any], roles: Roles) -> tuple[Any, ...]:
    """Positional arguments in which a second model stands where the measurement expects it.

    `cka(model, other, images)` thus is `cka(model, images, other)`.
    """
    if len(roles.models) < 2 or len(args) < 3:
        return tuple(args)
    expected = roles.order.index(roles.models[1])
    if expected == 2 and is_models(args[1]) and not is_models(args[2]):
        model, other, images, *rest = args
        return (model, images, other, *rest)
    return tuple(args)


def pair_labels(args: Sequence[Any], roles: Roles) -> tuple[Any, ...]:
    """Positional arguments in which images and the labels after them are one pair.

    `head_ablation(model, x, y)` thus is `head_ablation(model, (x, y))`, as Keras takes them.
    Measurements without labels ignore them, except where integers may be another argument.
    """
    if not roles.labelled and not _labels_follow(roles):
        return tuple(args)
    paired: list[Any] = []
    for value in args:
        before = paired[-1] if paired else None
        follows_images = not isinstance(before, tuple) and np.ndim(_values(before)) >= 3
        labels = _values(value)
        is_labels = isinstance(labels, np.ndarray) and labels.dtype.kind in "iu"
        if follows_images and is_labels and np.ndim(labels) in (1, 2):
            paired[-1] = (before, value)
        else:
            paired.append(value)
    return tuple(paired)


def _labels_follow(roles: Roles) -> bool:
    """Whether integers after the images can only be labels: the next parameter takes none."""
    if len(roles.images) != 1:
        return False
    following = roles.order[roles.order.index(roles.images[0]) + 1 :][:1]
    return not following or following[0] in (roles.grid, *roles.models)


def _values(argument: Any) -> Any:
    """A tensor, or a list of numbers, as an array; anything else as it is."""
    if tf.is_tensor(argument):
        return argument.numpy()
    is_list = isinstance(argument, list) and argument and isinstance(argument[0], int | np.integer)
    return np.asarray(argument) if is_list else argument


def is_models(argument: Any) -> bool:
    """Whether an argument is a model that is no path, or several models."""
    if isinstance(argument, list | tuple):
        return bool(argument) and all(map(is_models, argument))
    return isinstance(argument, keras.Model | Features) or is_torch_module(argument)


def several_models(arguments: Mapping[str, Any], roles: Roles) -> str | None:
    """The parameter of one model that was given a list of models, or a dict of them by name.

    Raises:
        ValueError: if two parameters were.
    """
    names = [name for name in roles.models if _is_several(arguments.get(name))]
    if len(names) > 1:
        raise ValueError(
            f"Expected several models for one of {join_words(names)}. Received: several for each"
        )
    return names[0] if names else None


def _is_several(argument: Any) -> bool:
    if isinstance(argument, Mapping):  # of models, and not of activations
        argument = list(argument.values())
    return (
        isinstance(argument, list | tuple)
        and bool(argument)
        and all(is_models(each) or isinstance(each, str | os.PathLike) for each in argument)
    )


def split_examples(images: tuple | tf.data.Dataset) -> tuple[Any, Any]:
    """Labelled images as training and test images: every fifth image is a test image.

    Warns:
        UserWarning: that images were split.
    """
    if isinstance(images, tuple):
        is_test = np.arange(len(images[0])) % HELD_OUT == HELD_OUT - 1
        train, test = (
            tuple(np.asarray(values)[rows] for values in images) for rows in (~is_test, is_test)
        )
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

        train, test = batches(False), batches(True)
    warnings.warn(
        f"No test images were given: one of {HELD_OUT} images tests the probe, the others train "
        "it.",
        stacklevel=5,
    )
    return train, test


def select_heads(result: Any, heads: int | Sequence[int], name: str) -> Any:
    """The part of a result for one attention head or several, by number."""
    if "head" not in getattr(result, "dims", ()):
        raise TypeError(f"{name}() has no argument 'head': its result is not by head")
    numbers = result["head"].values.tolist()
    if unknown := [head for head in np.atleast_1d(heads).tolist() if head not in numbers]:
        raise ValueError(f"Expected head among 0 to {len(numbers) - 1}. Received: {unknown[0]!r}")
    return result.sel(head=heads)
