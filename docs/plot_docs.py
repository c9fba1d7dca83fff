"""An extension of Griffe: the site shows the signatures of plots as `help` does, with `title`."""

import inspect
from importlib import import_module

import griffe


class CompletedPlots(griffe.Extension):
    """Takes the signature of functions with the decorator `draws` from Python."""

    def on_function(self, *, func: griffe.Function, **_) -> None:
        if not any(str(decorator.value).startswith("draws(") for decorator in func.decorators):
            return
        plot = getattr(import_module(f"vit_tf.{func.module.path}"), func.name)
        own = {parameter.name: parameter for parameter in func.parameters}
        func.parameters = griffe.Parameters(
            *(
                griffe.Parameter(
                    name,
                    annotation=own[name].annotation if name in own else parameter.annotation,
                    kind=griffe.ParameterKind[parameter.kind.name.lower()],
                    default=None
                    if parameter.default is parameter.empty
                    else repr(parameter.default),
                )
                for name, parameter in inspect.signature(plot).parameters.items()
            )
        )
