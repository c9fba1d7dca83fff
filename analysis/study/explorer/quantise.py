"""Arrays as text: rounded to few bits, so that a page of them can be sent by mail."""

import base64

import numpy as np

LEVELS = {4: 15, 8: 255, 16: 65_535}


def pack(values, bits=8, leading=0, low=None):
    """An array as a dict that JSON can hold.

        value = low + step * level

    with whole-number levels from 0 to 2^bits - 1, that span the values of each slice of the first
    `leading` axes: none is off by more than half a step, its range / (2^bits - 1) / 2. At four bits
    two levels share a byte, the first in its lower half, and stand for the square root of the
    value above the lowest: value = low + (step * level)^2, so that small values differ.

    Args:
        values: array of finite numbers; of any at 32 bits, which keep float32 as it is.
        bits: 4, 8, 16 or 32.
        leading: number of axes whose slices have a scale each.
        low: value of level 0; by default the smallest of each slice.

    Returns:
        dict of `shape`, `bits`, `leading`, and `data`, `low` and `step` as the base64 of their
        little-endian bytes; the last two are float32 arrays, absent at 32 bits.

    Raises:
        ValueError: for values that are not finite at less than 32 bits, or below `low`.
    """
    values = np.asarray(values, np.float64)
    facts = {"shape": list(values.shape), "bits": bits, "leading": leading}
    if bits == 32:
        return facts | {"data": _text(values.astype("<f4"))}
    if not np.isfinite(values).all():
        raise ValueError("Expected finite values, to round them. Received NaN or infinity")
    slices = values.reshape(*values.shape[:leading], -1)
    lowest = slices.min(axis=-1) if low is None else np.full(slices.shape[:-1], float(low))
    if (slices < lowest[..., None]).any():
        raise ValueError(f"Expected values of at least {low}. Received: {slices.min()}")
    heights = (slices - lowest[..., None]).clip(0)
    heights = np.sqrt(heights) if bits == 4 else heights
    step = heights.max(axis=-1) / LEVELS[bits]
    lowest, step = lowest.astype("<f4"), step.astype("<f4")
    scale = np.where(step > 0, step, 1).astype(np.float64)[..., None]
    levels = np.rint(heights / scale).clip(0, LEVELS[bits]).astype("<u2" if bits == 16 else "u1")
    if bits == 4:
        flat = np.pad(levels.ravel(), (0, levels.size % 2))
        levels = flat[::2] | flat[1::2] << 4
    return facts | {
        "data": _text(levels),
        "low": _text(lowest),
        "step": _text(step),
    }


def unpack(packed):
    """The float64 array that a page decodes from the result of `pack`."""
    shape, leading, bits = packed["shape"], packed["leading"], packed["bits"]
    data = base64.b64decode(packed["data"])
    if bits == 32:
        return np.frombuffer(data, "<f4").reshape(shape).astype(np.float64)
    levels = np.frombuffer(data, "<u2" if bits == 16 else "u1")
    if bits == 4:
        levels = np.stack([levels & 15, levels >> 4], axis=1).ravel()[: int(np.prod(shape))]
    low, step = (
        np.frombuffer(base64.b64decode(packed[name]), "<f4").reshape(*shape[:leading], 1)
        for name in ("low", "step")
    )
    heights = step * levels.astype(np.float64).reshape(*shape[:leading], -1)
    return (low + (heights**2 if bits == 4 else heights)).reshape(shape)


def _text(values):
    return base64.b64encode(np.ascontiguousarray(values).tobytes()).decode("ascii")
