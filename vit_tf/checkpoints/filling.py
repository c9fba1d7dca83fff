"""Filling the weights of a model from an archive: every tensor and every weight, or none."""

import fnmatch
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

# How many names of a kind an error shows.
SHOWN = 8


def identity(array):
    """The array itself."""
    return array


@dataclass(frozen=True)
class Source:
    """What a weight is made of.

    Attributes:
        tensors: dict from the name of a tensor of the archive to its expected shape.
        convert: function of these tensors, ndarrays in that order, to the weight's array. It must
            not write into them. By default the one tensor, as it is.
    """

    tensors: dict[str, tuple]
    convert: Callable = identity


def fill(variables, archive, sources, *, unused=(), new=()):
    """Assigns every weight from the tensors of an archive, after checking that all of it fits.

    Every tensor of the archive must be used or left out in `unused`, every weight must have a
    source or be left as it is in `new`; shapes must match, and tensors be of floats. All of this
    is known from the headers and checked before the first weight is touched. Then tensors are
    read one by one; weights made of the same tensors, such as those of a fused query, key and
    value, share one reading.

    Corrupt or non-finite data only come to light on the way, when some weights are filled and
    others are not. So fill a model that nobody else holds, and hand it out when `fill` returns.

    Args:
        variables: dict from a readable weight name to its `keras.Variable`, or anything with
            `shape` and `assign`.
        archive: an open `Archive`.
        sources: dict from weight name to `Source`. Those of weights that are new, or not among
            the variables, are passed over: their tensors must be in `unused`.
        unused: shell patterns of tensors that are deliberately left out if no weight uses them.
        new: shell patterns of weights that are deliberately left as they are.

    Raises:
        ValueError: listing everything that does not fit; or for corrupt or non-finite data.
    """
    check(archive, sources, variables, unused=unused, new=new)
    wanted = _wanted(sources, variables, new)
    for tensors, names in _groups(wanted).items():
        _assign(variables, archive, tensors, {name: wanted[name].convert for name in names})


def check(archive, sources, variables=None, *, unused=(), new=()):
    """Raises the `ValueError` of `fill` that lists everything that does not fit.

    Without variables, every source is taken to be of a weight that fits it. So a file can be
    checked before a model is built, whose size the file determines.
    """
    wanted = _wanted(sources, variables, new)
    used = {tensor for source in wanted.values() for tensor in source.tensors}
    problems = {
        "missing tensors": sorted(used - set(archive.tensors)),
        "unexpected tensors": sorted(
            name for name in archive.tensors if name not in used and not _matches(name, unused)
        ),
        "misshapen": sorted(_misshapen(variables, archive.tensors, wanted)),
        "weights without a source": sorted(
            name for name in variables or () if name not in wanted and not _matches(name, new)
        ),
    }
    if any(problems.values()):
        found = "; ".join(_listed(kind, names) for kind, names in problems.items() if names)
        raise ValueError(
            f"Expected the tensors of {archive.path!r} to fit the model one by one. "
            f"Received: {found}"
        )


def _wanted(sources, variables, new):
    """The sources of weights that are to be filled."""
    return {
        name: source
        for name, source in sources.items()
        if (variables is None or name in variables) and not _matches(name, new)
    }


def _assign(variables, archive, tensors, conversions):
    """Fills the weights made of the same tensors, which are gone when this returns."""
    arrays = [archive.read(tensor) for tensor in tensors]
    for name, convert in conversions.items():
        variables[name].assign(_finite(convert(*arrays), archive, tensors))


def _matches(name, patterns):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _groups(sources):
    """dict from tensor names to the weights that are made of just these."""
    groups = {}
    for name, source in sources.items():
        groups.setdefault(tuple(source.tensors), []).append(name)
    return groups


def _misshapen(variables, infos, sources):
    """What is wrong with shapes and dtypes, a line for each tensor or weight."""
    wrong = set()
    for name, source in sources.items():
        present = {tensor for tensor in source.tensors if tensor in infos}
        unfit = {
            tensor for tensor in present if infos[tensor].shape != tuple(source.tensors[tensor])
        }
        wrong |= {
            f"{tensor!r} of {infos[tensor].shape}, expected {tuple(source.tensors[tensor])}"
            for tensor in unfit
        }
        whole = {tensor for tensor in present if "float" not in infos[tensor].dtype}
        wrong |= {f"{tensor!r} of {infos[tensor].dtype}, expected floats" for tensor in whole}
        if variables is not None and len(present) == len(source.tensors) and not unfit:
            wrong |= _misconverted(name, source, tuple(variables[name].shape))
    return wrong


def _misconverted(name, source, expected):
    """Tries a conversion on zeros of the tensors' shapes, each a view of a single number."""
    zeros = [np.broadcast_to(np.float32(0), shape) for shape in source.tensors.values()]
    try:
        shape = np.shape(source.convert(*zeros))
    except ValueError as error:
        return {f"weight {name!r}: {error}"}
    if shape != expected:
        return {f"weight {name!r} of {expected}, converted to {shape}"}
    return set()


def _listed(kind, names):
    shown = ", ".join(str(name) for name in names[:SHOWN])
    more = f" and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{kind} ({len(names)}): {shown}{more}"


def _finite(array, archive, tensors):
    """The array in float32, which a float64 may exceed."""
    with np.errstate(over="ignore"):
        array = np.asarray(array, np.float32)
    if not np.isfinite(array).all():
        raise ValueError(
            f"Expected {archive.path!r} to hold finite weights. "
            f"Received: NaN or infinity in {', '.join(tensors)}"
        )
    return array
