"""Functions that a pickle can call, for unpicklers that execute nothing else."""

from collections.abc import Callable
from typing import Any, NoReturn


class Constructor:
    """A function that a pickle can call, but neither change nor subclass."""

    __slots__ = ("_function",)

    def __init__(self, function: Callable):
        self._function = function

    def __call__(self, *arguments: Any) -> Any:
        return self._function(*arguments)

    def __setstate__(self, state: object) -> NoReturn:
        # Without this method, a pickle could set any attribute of the object.
        raise ValueError("a pickle that sets attributes of functions")
