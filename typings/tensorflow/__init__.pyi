"""TensorFlow for pyright: it has no types of its own, see pyproject.toml."""

from typing import Any

def __getattr__(name: str) -> Any: ...
