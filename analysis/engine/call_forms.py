"""The forms in which a measurement may be called, brought into the one that it is defined with."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from vit_tf.data.equal_batches import BATCH_SIZE
from vit_tf.features.conversion import name_models
from vit_tf.features.features import Features
from vit_tf.torch_models import is_torch_module

# Other libraries' names of arguments, and the parameters that mean the same here.
ARGUMENT_NAMES = {
    "layer": "layers",
    **dict.fromkeys(("target", "targets", "class_index"), "classes"),
    **dict.fromkeys(("top_k", "topk"), "top"),
    "n_neighbors": "k",
}
# The same for parameters that measurements name in their own ways.
MODEL_NAMES = ("model", "features")
SECOND_MODEL_NAMES = ("other", "model2", "model_2", "other_model")
IMAGE_NAMES = ("images", "inputs", "x")
LABEL_NAMES = ("labels", "y")
HELD_OUT = 5  # one of so many images tests a probe, where no test images are given


@dataclass(frozen=True)
class CallForms:
    """The parameters of a measurement that calls may give in several forms.

    Attributes:
        parameters: names of all parameters, in order.
        models: those that are one model each.
        images: the one that is the images; empty for a measurement without images.
        takes_labels: whether images have labels.
    """

    parameters: tuple[str, ...]
    models: tuple[str, ...]
    images: str
    takes_labels: bool

    @classmethod
    def from_signature(cls, function: Callable, arguments: str) -> CallForms:
        """The forms of a function whose first arguments are those of a `Declaration`."""
        parameters = tuple(inspect.signature(function).parameters)
        names = dict(zip(arguments.split(", "), parameters, strict=False))
        models = tuple(names[place] for place in ("{model}", "{other}") if place in names)
        takes_labels = getattr(function, "takes_labels", False)
        return cls(parameters, models, names.get("{images}", ""), takes_labels)

    def rename(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments under the names of the parameters."""
        names = dict(ARGUMENT_NAMES)
        for others, own in (
            (MODEL_NAMES, self.models[:1]),
            (SECOND_MODEL_NAMES, self.models[1:]),
            (IMAGE_NAMES, [self.images] if "train" not in self.parameters else ()),
        ):
            names |= {other: name for name in own for other in others}
        renamed = {}
        for name, value in given.items():
            own = name if name in self.parameters else names.get(name, name)
            renamed[own if own in self.parameters and own not in given else name] = value
        # Labels by keyword belong to the images.
        labels = [n for n in LABEL_NAMES if n in renamed and n not in self.parameters]
        if labels and self.takes_labels and self.images in renamed:
            renamed[self.images] = (renamed[self.images], renamed.pop(labels[0]))
        return renamed

    def order_models(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Positional arguments in which a second model stands after the images.

        `cka(model, other, images)` thus is `cka(model, images, other)`.
        """
        is_usual = self.parameters[1:3] == (self.images, *self.models[1:])
        if is_usual and len(args) >= 3 and is_models(args[1]) and not is_models(args[2]):
            model, other, images, *rest = args
            return (model, images, other, *rest)
        return tuple(args)

    def pair_labels(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Positional arguments of a measurement without labels, in which labels are with images.

        They are not read, and are left alone where integers may be another argument.
        """
        if self.takes_labels or self.images not in self.parameters:
            return tuple(args)
        position = self.parameters.index(self.images)
        following = self.parameters[position + 1 : position + 2]
        if following and following[0] not in ("grid", "layers", *self.models):
            return tuple(args)
        pair = args[position : position + 2]
        is_pair = len(pair) == 2 and are_images(pair[0]) and are_labels(pair[1])
        if is_pair and len(pair[0]) == len(pair[1]):  # a grid is two integers
            return (*args[:position], tuple(pair), *args[position + 2 :])
        return tuple(args)

    def several_models(
        self, args: Sequence[Any], options: Mapping[str, Any]
    ) -> Iterator[tuple[str, tuple, dict[str, Any]]] | None:
        """The call of each of several models: its name, positional arguments and keywords.

        They are given as a list, or as a dict by name, for one of the parameters. None for a call
        of one model.
        """
        for name in self.models:
            position = self.parameters.index(name)
            is_positional = position < len(args)
            if not is_positional and name not in options:
                continue
            value = args[position] if is_positional else options[name]
            if not _are_several(value):
                continue
            # The call is repeated with each model in the place of all of them.
            named = name_models(value).items()
            if is_positional:
                before, after = args[:position], args[position + 1 :]
                return ((key, (*before, model, *after), dict(options)) for key, model in named)
            return ((key, tuple(args), {**options, name: model}) for key, model in named)
        return None


def is_models(argument: Any) -> bool:
    """Whether an argument is a model that is no path, or a list of such models."""
    if isinstance(argument, list | tuple):
        return bool(argument) and all(map(is_models, argument))
    return isinstance(argument, keras.Model | Features) or is_torch_module(argument)


def _are_several(argument: Any) -> bool:
    """Whether an argument is a list or a dict of models; a dict of arrays is activations."""
    if isinstance(argument, Mapping):
        argument = list(argument.values())
    return (
        isinstance(argument, list | tuple)
        and bool(argument)
        and all(is_models(each) or isinstance(each, str | os.PathLike) for each in argument)
    )


def are_images(value: Any) -> bool:
    """Whether an argument is images without labels, as an array or a tensor."""
    return not isinstance(value, tuple) and np.ndim(_as_array(value)) >= 3


def are_labels(value: Any) -> bool:
    """Whether an argument is an array, a tensor or a list of integers, or a column of them."""
    array = _as_array(value)
    return isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.ndim in (1, 2)


def _as_array(argument: Any) -> Any:
    """A tensor, or a list of numbers, as an array; anything else as it is."""
    if tf.is_tensor(argument):
        return argument.numpy()
    is_list = isinstance(argument, list) and argument and isinstance(argument[0], int | np.integer)
    return np.asarray(argument) if is_list else argument


def split_examples(images: tuple | tf.data.Dataset) -> list[Any]:
    """Labelled images as training and test images: one of five is a test image.

    Warns:
        UserWarning: that images were split.
    """
    if isinstance(images, tuple):
        # Every fifth image, so that sorted classes are divided evenly.
        is_test = np.arange(len(images[0])) % HELD_OUT == HELD_OUT - 1
        arrays = [np.asarray(values) for values in images]
        sets = [tuple(values[rows] for values in arrays) for rows in (~is_test, is_test)]
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
        f"No test images are given: one in {HELD_OUT} images tests the probe, and the others train "
        "it.",
        stacklevel=5,
    )
    return sets


def select_heads(result: Any, heads: int | Sequence[int], name: str) -> Any:
    """The part of a result, or of several by name, for one attention head or several."""
    if isinstance(result, dict):
        return {key: select_heads(each, heads, name) for key, each in result.items()}
    if "head" not in getattr(result, "dims", ()):
        raise TypeError(f"{name}() has no argument 'head': its result has no axis of heads")
    numbers = result["head"].values.tolist()
    if unknown := [head for head in np.atleast_1d(heads).tolist() if head not in numbers]:
        raise ValueError(f"Expected head among 0 to {len(numbers) - 1}. Received: {unknown[0]!r}")
    return result.sel(head=heads)
