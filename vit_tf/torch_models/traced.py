"""Modules of `torch.jit.trace`: their submodules are parts of one graph, which hooks do not see."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NoReturn, cast

import numpy as np
import torch

from vit_tf.torch_models.execution import LOCK, SCORES, as_inference, returned_tensor
from vit_tf.torch_models.module import BATCH_SIZES, Array, TorchModule, Trace, as_array, layout_of

ROOT = "__module."


def as_model(module: torch.nn.Module, size: Sequence[int] | None = None) -> TorchModule:
    """Wraps a PyTorch module, traced or not, as a model of images of a size.

    The size is (height, width), or (height, width, channel) where images are at hand. The module's
    own is used if none is given, or if the module does not take the given one.
    """
    model_class = TracedModule if isinstance(module, torch.jit.ScriptModule) else TorchModule
    model = model_class(module, size)
    if size is not None:
        try:
            model.trace(model.image_shape)
        except ValueError:
            return model_class(module)
    return model


class TracedModule(TorchModule):
    """A traced module, of which the outputs of submodules are read, without gradients or edits."""

    def values(
        self, images: Array, names: Sequence[str], edited: Mapping[str, Array] | None = None
    ) -> dict[str, Array]:
        if edited:
            self.execution()
        trace = self.trace(images.shape[1:])
        with LOCK, torch.no_grad(), as_inference(self.module):
            outputs = self._outputs(self.as_tensor(images))
        return {name: as_array(trace.layouts[name].measured(outputs[name])) for name in names}

    def trace(self, image_shape: Sequence[int]) -> Trace:
        shape = tuple(image_shape)
        if shape not in self._traces:
            with LOCK, torch.no_grad(), as_inference(self.module):
                first, second = (
                    self._outputs(self.as_tensor(np.zeros((size, *shape), np.float32)))
                    for size in BATCH_SIZES
                )
            small = {name: value.shape for name, value in first.items()}
            layouts = {n: layout_of(n, value, small, shape) for n, value in second.items()}
            self._traces[shape] = Trace(layouts, {})
        return self._traces[shape]

    def execution(self, *_: Any) -> NoReturn:
        raise ValueError(
            f"Gradients and interventions do not work on {self.name}, made by torch.jit.trace "
            "or torch.jit.script: measure the original module"
        )

    def _outputs(self, images: torch.Tensor) -> dict[str, torch.Tensor]:
        """What each submodule returns for images, and the module itself."""
        module = cast(torch.jit.ScriptModule, self.module)  # this class opens no others
        try:
            function, names, parameters = _with_outputs(module)
            with torch.no_grad():
                result, *values = function(images, *parameters)
        except RuntimeError as error:  # whatever an operation of its graph raises
            raise ValueError(
                f"{self.name} fails on images of shape {tuple(images.shape)}. PyTorch does not "
                "show the layers of torch.jit.script, and a traced module may be fixed to one "
                "batch or image size: measure the original module"
            ) from error
        outputs = {name: x for name, x in zip(names, values, strict=True) if x.dim()}
        returned = returned_tensor(result)
        return outputs if returned is None else outputs | {SCORES: returned}


def _with_outputs(module: torch.jit.ScriptModule) -> tuple[Any, list[str], list[Any]]:
    """A traced module as a function that also returns the outputs of submodules, and their names.

    PyTorch has no public way: the passes are those of its own tests, since version 1.2
    (https://github.com/pytorch/pytorch/blob/main/torch/csrc/jit/OVERVIEW.md).
    """
    graph = cast(Any, module.inlined_graph.copy())  # PyTorch's stub lacks some methods
    outputs = _outputs_of_scopes(graph)
    none = graph.insertConstant(None)
    none.node().moveBefore(next(iter(graph.nodes())))
    for value in outputs.values():
        # Copied, as an operation in place may change it afterwards.
        copy = graph.create("aten::clone", [value, none], 1)
        copy.insertAfter(value.node())
        graph.registerOutput(copy.output())
    graph.makeMultiOutputIntoTuple()
    lowered, parameters = torch._C._jit_pass_lower_graph(graph, module._c)
    return torch._C._create_function_from_graph("forward", lowered), list(outputs), parameters


def _outputs_of_scopes(graph: torch.Graph) -> dict[str, Any]:
    """The last tensor of each submodule that is read outside of it, in the order of computation."""
    returned = {value.debugName() for value in graph.outputs()}
    outputs = {}
    for node in graph.nodes():
        for value in node.outputs():
            if not isinstance(value.type(), torch.TensorType) or node.kind().startswith("prim::"):
                continue
            inside = _paths(node)
            readers = [_paths(use.user) for use in value.uses()]
            for path in inside:
                if value.debugName() in returned or any(path not in paths for paths in readers):
                    outputs.pop(path, None)
                    outputs[path] = value
    return outputs


def _paths(node: Any) -> list[str]:
    """The paths of the submodules that a node of a traced graph belongs to, the innermost first."""
    scopes = node.scopeName().split("/")
    return [scope.removeprefix(ROOT) for scope in reversed(scopes) if scope.startswith(ROOT)]
