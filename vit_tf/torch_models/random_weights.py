"""Copies of PyTorch modules with random weights, as untrained baselines."""

from __future__ import annotations

import copy
import inspect
import sys
from collections.abc import Callable, Iterator
from typing import Any, cast

import torch

from vit_tf.common.names import format_list
from vit_tf.torch_models.execution import cuda_devices
from vit_tf.torch_models.expectations import pretrained_config
from vit_tf.torch_models.module import unwrapped

# Methods by which a module draws its own parameters anew, as PyTorch's layers have them.
METHODS = ("reset_parameters", "_reset_parameters")


def randomly_initialized(module: torch.nn.Module, seed: int = 0) -> torch.nn.Module:
    """A copy of a module with random weights; equal seeds give equal weights.

    Models of Transformers and of timm get the weights that the library gives a new model. In other
    modules, each layer draws its own weights by its method `reset_parameters`.

    Raises:
        ValueError: if weights would stay as they are, since no method draws them.
    """
    untrained = copy.deepcopy(unwrapped(module))
    with torch.no_grad(), torch.random.fork_rng(devices=cuda_devices()):
        torch.manual_seed(seed)
        # What is still not a number afterwards has not been drawn.
        drawn = dict(_drawn_tensors(untrained))
        for tensor in drawn.values():
            if tensor.is_floating_point():
                tensor.fill_(torch.nan)
        _draw_weights(untrained)
    missed = [x for x, t in drawn.items() if not t.is_floating_point() or t.isnan().any()]
    # Quantized layers hold their weights in other objects than tensors.
    stored = {*drawn, *(name for name, _ in untrained.named_buffers(remove_duplicate=False))}
    missed += [name for name in untrained.state_dict(keep_vars=True) if name not in stored]
    if missed:
        raise ValueError(
            f"Expected a PyTorch module whose weights can be drawn anew. Received: "
            f"{type(untrained).__name__}, in which no method draws {format_list(missed)}. Add a "
            "method reset_parameters to the module that holds them"
        )
    return untrained


def _drawn_tensors(module: torch.nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Parameters, and the buffers of batch normalization that training changes, by name."""
    yield from module.named_parameters(remove_duplicate=False)
    for name, buffer in module.named_buffers():
        if name.endswith(("running_mean", "running_var")):
            yield name, buffer


def _draw_weights(module: torch.nn.Module) -> None:
    """Draws the weights of a module in place, as far as it is known how."""
    new = _new_model(module)
    if new is not None and _shapes(new) == _shapes(module):
        module.load_state_dict(new.state_dict())
        return
    # Submodules come first: the method of a module may draw the weights of these in its own way.
    for child in module.children():
        _draw_weights(child)
    for name in (*METHODS, *(["init_weights"] if _is_of_timm(module) else [])):
        method = getattr(module, name, None)
        if callable(method) and _takes_no_arguments(method):
            method()
            return


def _new_model(module: torch.nn.Module) -> torch.nn.Module | None:
    """A new model of the same configuration, for a model of Transformers or of timm."""
    transformers = sys.modules.get("transformers")
    if transformers is not None and isinstance(module, transformers.PreTrainedModel):
        return cast(Any, type(module))(copy.deepcopy(module.config))
    architecture = pretrained_config(module).get("architecture")
    if not architecture or not _is_of_timm(module):
        return None
    import timm

    classes = getattr(module, "num_classes", None)
    options = {} if classes is None else {"num_classes": classes}
    return timm.create_model(architecture, pretrained=False, **options)


def _is_of_timm(module: torch.nn.Module) -> bool:
    return type(module).__module__.startswith("timm.")


def _shapes(module: torch.nn.Module) -> dict[str, torch.Size]:
    """The shapes of all that a module saves, by name."""
    return {name: tensor.shape for name, tensor in module.state_dict().items()}


def _takes_no_arguments(method: Callable) -> bool:
    try:
        inspect.signature(method).bind()
    except TypeError:
        return False
    return True
