"""Keras' registry, whose decorators leave classes and functions as they are."""

from collections.abc import Callable
from typing import Any, TypeVar

Registered = TypeVar("Registered")

def register_keras_serializable(
    package: str = ..., name: str | None = ...
) -> Callable[[Registered], Registered]: ...
def __getattr__(name: str) -> Any: ...
