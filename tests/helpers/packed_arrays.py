"""Arrays of the interactive page, as its script decodes them."""

import base64

import numpy as np


def unpack(packed):
    """The float64 array that a page decodes from the result of `pack`."""
    shape, leading, bits = packed["shape"], packed["leading"], packed["bits"]
    data = base64.b64decode(packed["data"])
    if bits == 32:
        return np.frombuffer(data, "<f4").reshape(shape).astype(np.float64)
    levels = np.frombuffer(data, "<u2" if bits == 16 else "u1")
    low, step = (
        np.frombuffer(base64.b64decode(packed[name]), "<f4").reshape(*shape[:leading], 1)
        for name in ("low", "step")
    )
    return (low + step * levels.astype(np.float64).reshape(*shape[:leading], -1)).reshape(shape)
