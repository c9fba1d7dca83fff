"""What a checkpoint file declares of a tensor, checked before it is believed."""

import math
from dataclasses import dataclass

import numpy as np

# As many bytes as an array may span, and no more than NumPy can index.
MOST_BYTES = 2**48
MOST_AXES = 32
PIECE = 2**18


@dataclass(frozen=True)
class TensorInfo:
    """Shape and dtype of a stored tensor; the dtype by its NumPy name, or `"bfloat16"`."""

    shape: tuple
    dtype: str

    @property
    def nbytes(self):
        """Bytes of the tensor as it is stored."""
        return math.prod(self.shape) * storage_dtype(self.dtype).itemsize


def storage_dtype(name):
    """The little-endian NumPy dtype that holds a dtype's bits; NumPy has no bfloat16."""
    return np.dtype("uint16" if name == "bfloat16" else name).newbyteorder("<")


def declared(name, shape, dtype):
    """The `TensorInfo` of what a header declares.

    Raises:
        ValueError: for a shape that no array can have.
    """
    whole = isinstance(shape, (tuple, list)) and all(type(n) is int and n >= 0 for n in shape)
    if not whole or len(shape) > MOST_AXES:
        raise ValueError(f"the shape {short(shape)} of {short(name)}")
    # Empty axes are counted as one, so that they do not hide absurd ones next to them.
    if math.prod(max(n, 1) for n in shape) * storage_dtype(dtype).itemsize > MOST_BYTES:
        raise ValueError(f"the shape {short(shape)} of {short(name)}, larger than any memory")
    return TensorInfo(tuple(shape), dtype)


def read_exactly(stream, info):
    """The `info.nbytes` next bytes of a binary stream, as a flat ndarray of the storage dtype.

    Raises:
        ValueError: if the stream ends before.
    """
    flat = np.empty(info.nbytes, np.uint8)
    view = memoryview(flat)
    at = 0
    # In pieces, as a zip member makes a copy of all that it is asked for at once.
    while at < len(view):
        count = stream.readinto(view[at : at + PIECE])
        if not count:
            raise ValueError(f"{at} bytes of data where {info.nbytes} are declared")
        at += count
    return flat.view(storage_dtype(info.dtype))


def short(value):
    """A `repr` that a hostile file cannot make long."""
    text = ascii(value)
    return text if len(text) <= 100 else f"{text[:97]}..."
