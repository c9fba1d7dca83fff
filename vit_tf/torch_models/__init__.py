"""PyTorch modules as models: run as inference, their layers, attention, gradients and edits."""

import sys
from typing import Any


def is_torch_module(model: Any) -> bool:
    """Whether something is a PyTorch module; PyTorch is not imported for what is none."""
    torch = sys.modules.get("torch")
    return torch is not None and isinstance(model, torch.nn.Module)
