"""What a report and the explorer know of a measurement, which is itself a plain function."""

import functools
import inspect
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, ParamSpec, TypeVar, cast

from vit_tf.common.names import argument_error

from .call_forms import CallForms, are_images, are_labels, select_heads
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
        parameters = inspect.signature(function).parameters
        takes_any = any(p.kind is p.VAR_KEYWORD for p in parameters.values())
        names = [] if takes_any else list(parameters)
        forms = CallForms.from_signature(function, arguments)

        @functools.wraps(function)
        def measure(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
            positional = forms.pair_labels(forms.order_models(args))
            given = forms.rename(options)
            heads = None if "head" in forms.parameters else given.pop("head", None)
            if error := argument_error(function.__name__, given, names):
                raise error
            call: Any = function
            models = forms.several_models(positional, given)
            result: Any = (
                call(*positional, **given)
                if models is None
                # Several models are measured one after another: one result by the name of each.
                else {name: call(*own, **rest) for name, own, rest in models}
            )
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
    """Decorates a measurement so that f(model, x, y) is f(model, (x, y)), as Keras takes labels."""

    @functools.wraps(function)
    def measure(*args: Parameters.args, **options: Parameters.kwargs) -> Result:
        paired: list[Any] = []
        for value in args:
            if paired and are_labels(value) and are_images(paired[-1]):
                paired[-1] = (paired[-1], value)
            else:
                paired.append(value)
        return cast(Any, function)(*paired, **options)

    cast(Any, measure).takes_labels = True
    return measure
