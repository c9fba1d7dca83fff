"""What a report and the explorer know of a measurement, which is itself a plain function."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import numpy as np
import tensorflow as tf

from vit_tf.common.arguments import argument_error

from .traces import reusable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Declaration:
    """What a report and the explorer know of a measurement.

    Attributes:
        name: that of the function, with which results, plots and pages are found.
        kind: which layers it reads, a key of `vit_tf.features.layers.KINDS`.
        arguments: the first arguments of its call, with `{model}`, `{other}` for a second model or
            `{models}`, and `{images}`.
    """

    name: str
    kind: str
    arguments: str

    def expression(self, num_models: int, images: str = "images", **options: Any) -> str:
        """The call that a user types, with the models in braces: {model}, {other} or {models}.

        Args:
            num_models: of how many models it is.
            images: expression of the images.
            **options: further keywords, of which those that are None are left out.
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
    """Returns a decorator that registers a function as a measurement, as its `declaration`.

    The function is called with the arguments as they are. A keyword that is nearly one of its
    parameters is an error that names this parameter.

    Args:
        kind, arguments: as the attributes of `Declaration`.

    Examples:
        @engine.measurement("attention")
        def largest_weight(model, images, *, layers=None, detail=None) -> xr.DataArray:
            features, batches = engine.prepare(model, images, kind="attention", layers=layers)
            ...
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        parameters = inspect.signature(function).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        names = [] if takes_any else list(parameters)

        @functools.wraps(function)
        def measure(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
            if error := argument_error(function.__name__, options, names):
                raise error
            return function(*args, **options)

        registered = cast(Any, measure)  # the type of functions declares no attributes
        registered.kind = kind
        registered.declaration = Declaration(function.__name__, kind, arguments)
        return measure

    return decorate


def statistic_of(
    measure: Callable,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Decorates the function that makes the `Statistic` of a measurement: `measure.statistic`.

    The `Statistic` is created once for each model and each set of options, as by `reusable`.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        statistic = reusable(function)
        cast(Any, measure).statistic = statistic
        return statistic

    return decorate


def labels_after_images(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Decorates a measurement so that f(model, x, y) is f(model, (x, y)), as Keras takes labels."""

    @functools.wraps(function)
    def measure(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        paired: list[Any] = []
        for value in args:
            if paired and _are_labels(value) and _are_images(paired[-1]):
                paired[-1] = (paired[-1], value)
            else:
                paired.append(value)
        return cast(Any, function)(*paired, **options)

    return measure


def _are_images(value: Any) -> bool:
    """Whether an argument is images without labels, as an array or a tensor."""
    return not isinstance(value, tuple) and np.ndim(_as_array(value)) >= 3


def _are_labels(value: Any) -> bool:
    """Whether an argument is an array, a tensor or a list of integers, or a column of them."""
    array = _as_array(value)
    return isinstance(array, np.ndarray) and array.dtype.kind in "iu" and array.ndim in (1, 2)


def _as_array(argument: Any) -> Any:
    """A tensor, or a list of numbers, as an array; anything else as it is."""
    if tf.is_tensor(argument):
        return argument.numpy()
    is_list = isinstance(argument, list) and argument and isinstance(argument[0], int | np.integer)
    return np.asarray(argument) if is_list else argument
