"""Models of timm by name: `timm:vit_small_patch16_224`."""

from __future__ import annotations

import contextlib
import sys
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, cast

from vit_tf.common.names import unknown_name

if TYPE_CHECKING:
    import torch

PREFIX = "timm:"
SEED = 0  # of random weights


def open_timm(name: str) -> torch.nn.Module:
    """The model of a name `timm:NAME`, with timm's pretrained weights.

    Where timm has none, or cannot read them, its weights are random, with a warning.

    Raises:
        ValueError: for a name that timm does not have, or if timm is not installed.
    """
    try:
        with _without_triton():
            import timm
    except ImportError as error:
        raise ValueError(
            f"A model by the name {name!r} needs timm and torchvision (pip install timm): {error}"
        ) from error
    import torch

    architecture = name.removeprefix(PREFIX)
    if not timm.is_model(architecture):
        raise unknown_name("model of timm", architecture, timm.list_models(pretrained=False))
    try:
        return timm.create_model(architecture, pretrained=True)
    except Exception as error:  # whatever timm raises without a network, a file or such weights
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(SEED)
            model = timm.create_model(architecture, pretrained=False)
        reason = " ".join(str(error).split())[:120]
        warnings.warn(
            f"{name} has random weights: its pretrained ones cannot be read ({reason})",
            stacklevel=3,
        )
        return model


@contextlib.contextmanager
def _without_triton() -> Iterator[None]:
    """Hides Triton, whose library crashes where that of TensorFlow was loaded before it.

    timm imports what imports it, for models that `torch.compile` compiles, which none here are.
    """
    hides = "tensorflow" in sys.modules and "triton" not in sys.modules
    if hides:
        # Importing a module that is None here raises an ImportError.
        cast(dict[str, Any], sys.modules)["triton"] = None
    try:
        yield
    finally:
        if hides:
            del sys.modules["triton"]
