"""Tensors of NumPy's `.npz`: a zip of `.npy` members, each a short header and raw data."""

import ast
import copy
import functools
import os
import re
import zipfile

import numpy as np

from vit_tf.checkpoints.files.tensors import declared, read_exactly, short

# NumPy writes about 120 bytes for any array of numbers. Short enough to be parsed at no risk.
LONGEST_HEADER = 1024
# A deflated bit pair stands for at most 258 bytes.
DEFLATE_RATIO = 1032
# Numbers only: neither objects, which are pickles, nor text, dates or records. V2 is how NumPy
# writes the bfloat16 of JAX, for which it has no name.
DESCR = re.compile(r"[<>=|]?(f[248]|[iu][1248]|b1)|[<|]?V2")


def entries(zipped):
    """dict from name to (`TensorInfo`, function that loads it) of an open `zipfile.ZipFile`.

    Raises:
        ValueError, zipfile.BadZipFile, ...: `archives.DAMAGE`, for anything out of order.
    """
    size = os.fstat(zipped.fp.fileno()).st_size
    found = {}
    for member in zipped.infolist():
        name = member.filename.removesuffix(".npy")
        if name == member.filename:
            raise ValueError(f"a member {short(name)} that is not an .npy")
        if name in found:
            raise ValueError(f"two tensors named {short(name)}")
        _check_sizes(member, size)
        with zipped.open(member) as stream:
            info, descr, fortran, skip = _header(name, stream)
        if member.file_size - skip != info.nbytes:
            raise ValueError(
                f"{member.file_size - skip} bytes of data for {short(name)}, whose header "
                f"declares {info.nbytes}"
            )
        found[name] = info, functools.partial(_load, zipped, member, info, descr, fortran, skip)
    return found


def _check_sizes(member, size):
    """Refuses a member that declares more than the file can hold, before anything is inflated."""
    name = short(member.filename)
    if member.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ValueError(f"a member {name} that is neither stored nor deflated")
    if member.header_offset + member.compress_size > size:
        raise ValueError(f"a member {name} that goes beyond the end of the file")
    ratio = 1 if member.compress_type == zipfile.ZIP_STORED else DEFLATE_RATIO
    if member.file_size > ratio * member.compress_size:
        raise ValueError(
            f"a member {name} of {member.compress_size} bytes that declares {member.file_size}"
        )


def _header(name, stream):
    """(`TensorInfo`, NumPy's descr, whether in Fortran order, length) of an `.npy` header."""
    magic = stream.read(8)
    # Versions 1 to 3 differ in the width of the length, and in encodings that numbers do not need.
    if magic[:6] != b"\x93NUMPY" or magic[6:] not in (b"\1\0", b"\2\0", b"\3\0"):
        raise ValueError(f"a member {short(name)} that is not an .npy")
    width = 2 if magic[6] == 1 else 4
    length = int.from_bytes(stream.read(width), "little")
    if length > LONGEST_HEADER:
        raise ValueError(f"a header of {length} bytes for {short(name)}, too long for numbers")
    text = stream.read(length).decode("ascii")
    try:
        fields = ast.literal_eval(text.strip())
    except (SyntaxError, ValueError, TypeError) as error:
        # Not Python; more than literals; a list or dict where a dict's key should be.
        raise ValueError(f"the header {short(text)} of {short(name)}") from error
    if not isinstance(fields, dict) or set(fields) != {"descr", "fortran_order", "shape"}:
        raise ValueError(f"the header {short(text)} of {short(name)}")
    descr, fortran, shape = (fields[k] for k in ("descr", "fortran_order", "shape"))
    if not isinstance(descr, str) or not DESCR.fullmatch(descr):
        what = "pickled objects" if descr in ("O", "|O") else f"the dtype {short(descr)}"
        raise ValueError(f"{what} in {short(name)}, where numbers are expected")
    if not isinstance(fortran, bool) or not isinstance(shape, tuple):
        raise ValueError(f"the header {short(text)} of {short(name)}")
    dtype = "bfloat16" if descr.endswith("V2") else np.dtype(descr).name
    return declared(name, shape, dtype), descr, fortran, 8 + width + length


def _load(zipped, member, info, descr, fortran, skip):
    # A member ends for zipfile where it declares to end, whatever its data have beyond that. One
    # that declares one byte more ends where its data end, and its checksum is of all.
    longer = copy.copy(member)
    longer.file_size += 1
    with zipped.open(longer) as stream:
        stream.read(skip)
        flat = read_exactly(stream, info)
        if stream.read(1):
            raise ValueError(f"more data than the {info.nbytes} bytes that are declared")
    if not descr.endswith("V2"):
        flat = flat.view(np.dtype(descr))
    return flat.reshape(info.shape[::-1]).T if fortran else flat.reshape(info.shape)
