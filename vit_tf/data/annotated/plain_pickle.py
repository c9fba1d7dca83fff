"""Pickles of plain values: dicts, lists, text, numbers and NumPy arrays, and nothing that runs."""

import pickle
import re

import numpy as np

from vit_tf.names import file_error

# Numbers of one type, in NumPy's letters, with or without a byte order: no objects, no records.
NUMBERS = re.compile(r"[<>=|]?[biuf][1248]")


def load_plain_pickle(path):
    """The value of a pickle file, of any protocol, as Python 2 or 3 wrote it.

    A pickle is a program, which may call whatever it can name. Here it can name what NumPy writes
    for arrays and numbers, and even these names stand for functions of this file, which make
    nothing but numbers: no code of the file's choice is run or imported.

    Args:
        path: of the file.

    Returns:
        dicts, lists, tuples, text, numbers and NumPy arrays of numbers.

    Raises:
        ValueError: for a file that is missing or corrupt, or names anything else.
    """
    try:
        with open(path, "rb") as file:
            # Python 2 wrote the bytes of arrays as text, which only this encoding gives back.
            return _unwrapped(_Unpickler(file, encoding="latin1").load())
    except Exception as error:  # a corrupt pickle makes the unpickler raise anything
        raise ValueError(
            "Expected a pickle of dicts, lists, text, numbers and NumPy arrays. "
            f"Received: {str(path)!r} ({type(error).__name__}: {file_error(error, path)})"
        ) from error


class _Unpickler(pickle.Unpickler):
    def find_class(self, module, name):
        """A stand-in for what the pickle names.

        Raises:
            UnpicklingError: for all but what NumPy writes for arrays and numbers.
        """
        # NumPy 2 renamed the package that older files name.
        known = f"{module.replace('numpy._core.', 'numpy.core.')}.{name}"
        if known not in STAND_INS:
            raise pickle.UnpicklingError(f"it names {module}.{name}")
        return _Name(STAND_INS[known])


class _Name:
    """A function that a pickle can call, and can do nothing else with."""

    def __init__(self, function):
        self.function = function

    def __call__(self, *arguments):
        return self.function(*arguments)

    def __setstate__(self, state):
        raise pickle.UnpicklingError("it sets the state of a function")


class _Dtype:
    """What NumPy's `dtype("i8", ...)` with its state `(3, "<", ...)` stands for."""

    def __init__(self, code, *flags):
        if not isinstance(code, str) or not NUMBERS.fullmatch(code):
            raise pickle.UnpicklingError(f"it has an array of dtype {code!r}")
        self.dtype = np.dtype(code)

    def __setstate__(self, state):
        if state[1] not in ("<", ">", "|", "="):
            raise pickle.UnpicklingError(f"it has an array of byte order {state[1]!r}")
        self.dtype = self.dtype.newbyteorder(state[1])


class _Array:
    """What NumPy's `_reconstruct(ndarray, (0,), b"b")` with its state stands for."""

    def __init__(self, *arguments):
        self.values = None

    def __setstate__(self, state):
        _, shape, dtype, columns_first, data = state
        values = np.frombuffer(_encode(data, "latin1"), dtype.dtype)
        self.values = values.reshape(shape, order="F" if columns_first else "C").copy()


def _from_buffer(data, dtype, shape, order):
    """An array, as protocol 5 writes it."""
    return np.frombuffer(data, dtype.dtype).reshape(shape, order=order).copy()


def _scalar(dtype, data):
    """A number, from its bytes."""
    return np.frombuffer(_encode(data, "latin1"), dtype.dtype, count=1)[0].item()


def _encode(text, encoding):
    """The bytes that protocol 2 holds as text; bytes as they are."""
    if encoding not in ("latin1", "latin-1"):
        raise pickle.UnpicklingError(f"it asks for the encoding {encoding!r}")
    return text if isinstance(text, bytes) else text.encode("latin1")


def _no_bytes(*arguments):
    """No bytes, which protocols below 3 hold as a call of `bytes()`, as in arrays of nothing."""
    if arguments:
        raise pickle.UnpicklingError("it calls bytes")
    return b""


def _refuse(*arguments):
    raise pickle.UnpicklingError("it calls numpy.ndarray")


STAND_INS = {
    "numpy.core.multiarray._reconstruct": _Array,
    "numpy.core.multiarray.scalar": _scalar,
    "numpy.core.numeric._frombuffer": _from_buffer,
    "numpy.ndarray": _refuse,
    "numpy.dtype": _Dtype,
    "_codecs.encode": _encode,
    "__builtin__.bytes": _no_bytes,
}


def _unwrapped(value):
    """The value with NumPy arrays instead of what stands for them."""
    if isinstance(value, _Array) and value.values is not None:
        return value.values
    if isinstance(value, dict):
        return {_unwrapped(key): _unwrapped(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(_unwrapped(item) for item in value)
    if value is None or isinstance(value, (str, bytes, int, float, np.ndarray)):
        return value
    raise pickle.UnpicklingError(f"it holds a {type(value).__name__}")
