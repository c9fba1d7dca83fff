"""What a report and the explorer know of a measurement, which is itself a plain function."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

import tensorflow as tf

from vit_tf.common.backend import require_tensorflow
from vit_tf.features.conversion import name_models

from .call_forms import CallForms, select_heads
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

    A call may also be in the forms of `call_forms`: in other libraries' words, with a second model
    before the images, with a list of models, and for one head. A keyword that is nearly one of the
    function's parameters is an error that names this parameter.

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
    """Decorates the function that makes the `Statistic` of a measurement: `measure.statistic`.

    The `Statistic` is created once for each model and each set of options, as by `reusable`.
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        statistic = reusable(function)
        cast(Any, measure).statistic = statistic
        return statistic

    return decorate


def labels_after_images(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
    """Marks a measurement for which f(model, x, y) is f(model, (x, y)), as Keras takes labels.

    It stands below `measurement`, which calls it in this form.
    """
    cast(Any, function).takes_labels = True
    return function
