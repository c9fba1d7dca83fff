"""Measurements: plain functions, the forms of their calls, and what a report knows of them."""

from __future__ import annotations

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import keras
import numpy as np
import tensorflow as tf

from vit_tf.common.backend import require_tensorflow
from vit_tf.common.names import near_names
from vit_tf.features.conversion import name_models
from vit_tf.features.features import Features
from vit_tf.torch_models import is_torch_module

from .traces import reusable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
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


@dataclass(frozen=True)
class Declaration:
    """How a report and the explorer call a measurement.

    Attributes:
        name: name of the function, which is also the name of its results, plots and pages.
        kind: the layers that the measurement uses, a key of `vit_tf.features.layers.KINDS`.
        arguments: the first arguments of its call, with `{model}`, `{other}` for a second model or
            `{models}`, and `{images}`.
    """

    name: str
    kind: str
    arguments: str

    def expression(self, num_models: int, images: str = "images", **options: Any) -> str:
        """The Python call of the measurement, with the models in braces, such as {model}.

        Args:
            num_models: number of models that the call measures.
            images: expression of the images.
            **options: further keyword arguments; those that are None are omitted.
        """
        arguments = self.arguments.split(", ")
        if num_models == 1:
            arguments = [argument for argument in arguments if argument != "{other}"]
        arguments = [images if argument == "{images}" else argument for argument in arguments]
        given = {name: repr(value) for name, value in options.items() if value is not None}
        arguments += [f"{name}={value}".replace("'", '"') for name, value in given.items()]
        return f"analysis.{self.name}({', '.join(arguments)})"


def measurement(
    kind: str = "representations", arguments: str = "{model}, {images}"
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Returns a decorator that registers a function as a measurement.

    A registered function also accepts the argument names of other libraries, a second model before
    the images, a list of models, and `head=`. A misspelled keyword raises an error that names the
    parameter. The decorated function has a `declaration`, a `Declaration`.

    Args:
        kind, arguments: as the attributes of `Declaration`.

    Examples:
        @engine.measurement("attention")
        def largest_weight(model, images, *, layers=None, detail=None) -> xr.DataArray:
            features, batches = engine.prepare(model, images, kind="attention", layers=layers)
            ...
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        forms = CallForms(function, arguments)

        @functools.wraps(function)
        def measure(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
            require_tensorflow("measurements")
            if tf.inside_function():
                raise ValueError(
                    "Measurements iterate over images and return arrays: call them outside of a "
                    "tf.function."
                )
            positional, given = forms.arrange(args), forms.rename(options)
            heads = None if "head" in forms.parameters else given.pop("head", None)
            call, result = cast(Any, function), cast(Any, {})
            several = forms.several_models(positional, given)
            if several is None:
                result = call(*positional, **given)
            else:
                # Models are measured one after another: one result by the name of each.
                bound = inspect.signature(function).bind(*positional, **given)
                for name, model in name_models(bound.arguments[several]).items():
                    bound.arguments[several] = model
                    result[name] = call(*bound.args, **bound.kwargs)
            return result if heads is None else select_heads(result, heads, function.__name__)

        registered = cast(Any, measure)  # the type of functions declares no attributes
        registered.kind = kind
        registered.declaration = Declaration(function.__name__, kind, arguments)
        return measure

    return decorate


def statistic_of(
    measure: Callable,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorates the function that creates a measurement's `Statistic`, as `measure.statistic`.

    The `Statistic` is created once for each model and each set of options, as by `reusable`.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        statistic = reusable(function)
        cast(Any, measure).statistic = statistic
        return statistic

    return decorate


def labels_after_images(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Lets a measurement also take labels as Keras does: f(model, x, y) for f(model, (x, y)).

    Write this decorator below `measurement`.
    """
    cast(Any, function).takes_labels = True
    return function


class CallForms:
    """The forms in which a measurement may be called.

    Attributes:
        parameters: names of all parameters, in order.
        models: names of the parameters that are one model each.
        images: name of the parameter for images; empty for a measurement without images.
        takes_labels: whether images have labels.
    """

    def __init__(self, function: Callable, arguments: str) -> None:
        """Reads a function whose first arguments are those of a `Declaration`."""
        self._function_name, signature = function.__name__, inspect.signature(function)
        self.key = arguments  # identifies the measurement in keys of results
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
        for name in () if self._takes_any else renamed:
            is_known = name == "head" or name in self.parameters
            if not is_known and (near := near_names(name, self.parameters)):
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
        for name in self.models:
            models: Any = given.get(name)
            # A dict of arrays is the activations of one model.
            models = list(models.values()) if isinstance(models, Mapping) else models
            are_given = isinstance(models, list | tuple) and len(models) > 0
            if are_given and all(isinstance(x, str | os.PathLike) or is_models(x) for x in models):
                return name
        return None


def is_models(argument: Any) -> bool:
    """Whether an argument is a model that is no path, or a list of such models."""
    if isinstance(argument, list | tuple):
        return bool(argument) and all(map(is_models, argument))
    return isinstance(argument, keras.Model | Features) or is_torch_module(argument)


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
