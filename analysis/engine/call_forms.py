"""The forms in which a measurement may be called, brought into the one that it is defined with."""

from __future__ import annotations

import inspect
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from vit_tf.common.names import near_names
from vit_tf.data.equal_batches import BATCH_SIZE
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


class CallForms:
    """The parameters of a measurement that calls may give in several forms.

    Attributes:
        parameters: names of all parameters, in order.
        models: those that are one model each.
        images: the one that is the images; empty for a measurement without images.
        takes_labels: whether images have labels.
    """

    def __init__(self, function: Callable, arguments: str) -> None:
        """Reads a function whose first arguments are those of a `Declaration`."""
        self._function_name, signature = function.__name__, inspect.signature(function)
        self.key = arguments  # which represents it in keys of results
        kinds = [parameter.kind for parameter in signature.parameters.values()]
        self._takes_any = inspect.Parameter.VAR_KEYWORD in kinds
        self.parameters = tuple(signature.parameters)
        names = dict(zip(arguments.split(", "), self.parameters, strict=False))
        self.models = tuple(names[place] for place in ("{model}", "{other}") if place in names)
        self.images = names.get("{images}", "")
        self.takes_labels = getattr(function, "takes_labels", False)

    def rename(self, given: Mapping[str, Any]) -> dict[str, Any]:
        """Keyword arguments under the names of the parameters.

        Raises:
            TypeError: for one that is no parameter, but nearly.
        """
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
        for name in renamed.keys() - {*self.parameters, "head"} if not self._takes_any else ():
            if near := near_names(name, self.parameters):
                hint = f"Did you mean {' or '.join(near)}?"
                raise TypeError(f"{self._function_name}() has no argument {name!r}. {hint}")
        return renamed

    def arrange(self, args: Sequence[Any]) -> tuple[Any, ...]:
        """Positional arguments with a second model after the images, and labels with theirs.

        `cka(model, other, images)` thus is `cka(model, images, other)`, and `f(model, x, y)` is
        `f(model, (x, y))`. A measurement without labels does not read them. There, integers after
        the images are left alone where they may be another argument.
        """
        if len(args) < 3:
            return tuple(args)
        is_usual = self.parameters[1:3] == (self.images, *self.models[1:])
        if is_usual and is_models(args[1]) and not is_models(args[2]):
            args = (args[0], args[2], args[1], *args[3:])
        following = self.parameters[self.parameters.index(self.images) + 1 :] if self.images else ()
        is_free = bool(self.images) and {*following[:1]} <= {"grid", "layers", *self.models}
        arranged: list[Any] = []
        for value in args:
            is_pair = bool(arranged) and are_labels(value) and are_images(arranged[-1])
            if is_pair and (self.takes_labels or (is_free and len(arranged[-1]) == len(value))):
                arranged[-1] = (arranged[-1], value)
            else:
                arranged.append(value)
        return tuple(arranged)

    def several_models(self, args: Sequence[Any], options: Mapping[str, Any]) -> str | None:
        """The parameter for which a call has a list of models, or a dict by name; None for none."""
        given = {**dict(zip(self.parameters, args, strict=False)), **options}
        return next((name for name in self.models if _are_several(given.get(name))), None)


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
        raise ValueError(f"Expected head from 0 to {len(numbers) - 1}. Received: {unknown[0]!r}")
    return result.sel(head=heads)
