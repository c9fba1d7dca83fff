"""Tensors of `.safetensors`: the header's length, a JSON header, then raw data."""

import functools
import json
import os

from vit_tf.checkpoints.files.tensors import declared, read_exactly, short

# The limit of the reference implementation.
LONGEST_HEADER = 100_000_000
DTYPES = {
    "F64": "float64",
    "F32": "float32",
    "F16": "float16",
    "BF16": "bfloat16",
    "I64": "int64",
    "I32": "int32",
    "I16": "int16",
    "I8": "int8",
    "U8": "uint8",
    "BOOL": "bool",
}


def entries(file):
    """dict from name to (`TensorInfo`, function that loads it) of an open binary file.

    Raises:
        ValueError, RecursionError, ...: `archives.DAMAGE`, for anything out of order.
    """
    size = os.fstat(file.fileno()).st_size
    file.seek(0)
    length = int.from_bytes(file.read(8), "little")
    start = 8 + length
    if length > LONGEST_HEADER or start > size:
        raise ValueError(f"a header of {length} bytes in a file of {size}")
    header = json.loads(file.read(length).decode("utf-8"), object_pairs_hook=_without_twins)
    if not isinstance(header, dict):
        raise ValueError("a header that is not a JSON object")
    header.pop("__metadata__", None)
    found, spans = {}, []
    for name, fields in header.items():
        info, (begin, end) = _declared(name, fields)
        found[name] = info, functools.partial(_load, file, start + begin, info)
        spans.append((begin, end))
    _check_spans(spans, size - start)
    return found


def _without_twins(pairs):
    fields = dict(pairs)
    if len(fields) != len(pairs):
        twins = [name for name, _ in pairs]
        twin = next(name for name in twins if twins.count(name) > 1)
        raise ValueError(f"two entries named {short(twin)} in the header")
    return fields


def _declared(name, fields):
    if not isinstance(fields, dict) or set(fields) != {"dtype", "shape", "data_offsets"}:
        raise ValueError(f"the header entry {short(fields)} of {short(name)}")
    dtype, span = fields["dtype"], fields["data_offsets"]
    if not isinstance(dtype, str) or dtype not in DTYPES:
        raise ValueError(f"the dtype {short(dtype)} of {short(name)}")
    info = declared(name, fields["shape"], DTYPES[dtype])
    if not isinstance(span, list) or len(span) != 2 or any(type(n) is not int for n in span):
        raise ValueError(f"the offsets {short(span)} of {short(name)}")
    if span[1] - span[0] != info.nbytes:
        raise ValueError(
            f"the offsets {short(span)} of {short(name)}, which declares {info.nbytes} bytes"
        )
    return info, span


def _check_spans(spans, size):
    """Every byte of the data belongs to one tensor."""
    at = 0
    for begin, end in sorted(spans):
        if begin != at:
            raise ValueError(f"tensors that {'leave a hole' if begin > at else 'overlap'} at {at}")
        at = end
    if at != size:
        raise ValueError(f"{size} bytes of data where {at} are declared")


def _load(file, offset, info):
    file.seek(offset)
    return read_exactly(file, info).reshape(info.shape)
