"""Results saved on disk under a key, so that no work is done twice."""

import hashlib
import inspect
import json
import linecache
import logging
import os
from collections.abc import Callable, MappingView, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from secrets import token_hex
from types import (
    BuiltinFunctionType,
    CellType,
    EllipsisType,
    FunctionType,
    MethodType,
    ModuleType,
)
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf.data.files import digest_files, write_whole

from .results import Result, as_result
from .stream import this_worker

log = logging.getLogger(__name__)
# The two folders of the package; in a checkout, the second one is not inside the first.
PACKAGE, ANALYSIS = Path(vit_tf.__file__).resolve().parent, Path(__file__).resolve().parents[1]
# Changes in these folders do not invalidate results, except those of functions defined there.
SEPARATE = (
    *(ANALYSIS / name for name in ("papers", "plots", "report", "explorer")),
    PACKAGE / "scripts",
)


def fingerprint(*facts: Any, identified_by: str = "key") -> str:
    """A short key of facts: equal facts give equal keys, in every process.

    Facts are JSON values, arrays, dataclasses, and functions together with the file that defines
    them and the values that they are bound to (`partial` and closures). An object is represented by
    its attribute `identified_by`, or if it has none, by its attribute `key`.
    """
    return _digest(facts, identified_by, ())


def _digest(facts: Any, identified_by: str, enclosing: tuple[FunctionType, ...]) -> str:
    """The `fingerprint` of facts; `enclosing` are the functions whose closures hold the facts."""
    as_json = partial(_as_json, identified_by=identified_by, enclosing=enclosing)
    text = json.dumps(facts, sort_keys=True, default=as_json)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _as_json(value: Any, identified_by: str, enclosing: tuple[FunctionType, ...]) -> Any:
    """A value as what JSON can hold, the same in every process."""
    if isinstance(value, FunctionType):
        return _represent_function(value, identified_by, enclosing)
    for types, represent in REPRESENTATIONS:
        if isinstance(value, types):
            return represent(value)
    if hasattr(value, "__wrapped__"):
        return value.__wrapped__  # a function with `@cache`
    for name in (identified_by, "key"):
        if hasattr(value, name):
            return getattr(value, name)
    if is_dataclass(value):
        return [type(value).__qualname__, {f.name: getattr(value, f.name) for f in fields(value)}]
    raise TypeError(
        "Expected JSON values, arrays, dataclasses, functions or objects with the attribute 'key', "
        f"to identify a result. Received: {value!r}"
    )


def _represent_function(
    function: FunctionType, identified_by: str, enclosing: tuple[FunctionType, ...]
) -> list[Any]:
    """A function by its name, the code that defines it and the values that it is bound to."""
    if function in enclosing:  # a recursive function is in its own closure
        return ["recursion", enclosing.index(function)]
    # The cell of a variable that is not assigned yet is empty, and has no `cell_contents`.
    cells = function.__closure__ or ()
    closure = [[cell.cell_contents] if cell != CellType() else [] for cell in cells]
    bound = (function.__defaults__, function.__kwdefaults__, closure)
    # Lambdas in one function have the same name, but their code ends at different positions.
    positions = function.__code__.co_positions()
    end = max((line, column or 0) for _, line, _, column in positions if line)
    code = (function.__module__, function.__qualname__, *end, code_of(function))
    return [*code, _digest(bound, identified_by, (*enclosing, function))]


def _represent_builtin(function: BuiltinFunctionType) -> list[Any]:
    """A built-in function by its name, a built-in method also by its object."""
    owner = function.__self__
    bound = [] if isinstance(owner, ModuleType) else [owner]
    return [function.__module__, function.__qualname__, *bound]


def _represent_array(values: Any) -> list[Any]:
    """An array or a tensor by its type, its shape and a digest of its values."""
    array = np.ascontiguousarray(values)
    return [str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()]


# What represents values of some types in a key.
REPRESENTATIONS: tuple[tuple[Any, Callable[[Any], Any]], ...] = (
    (partial, lambda bound: ["partial", bound.func, bound.args, bound.keywords]),
    (MethodType, lambda method: [method.__self__, method.__func__]),
    (BuiltinFunctionType, _represent_builtin),
    (type, lambda named: f"{named.__module__}.{named.__qualname__}"),
    ((np.ndarray, np.generic, tf.Tensor, tf.Variable), _represent_array),
    ((set, frozenset), lambda members: sorted(members, key=repr)),
    ((Sequence, MappingView), list),
    ((EllipsisType, complex, slice, inspect.Signature), repr),
)


@cache
def digest_modules(*folders: Path, without: tuple[Path, ...] = ()) -> str:
    """`fingerprint` of the package's version and of the modules in some folders."""
    files = {path for folder in folders for path in folder.rglob("*.py")}
    files = {path for path in files if not any(path.is_relative_to(other) for other in without)}
    return fingerprint(vit_tf.__version__, digest_files(sorted(files)))


def base_code() -> str:
    """`fingerprint` of the version and of all modules but `SEPARATE`: every measurement's code."""
    return digest_modules(PACKAGE, ANALYSIS, without=SEPARATE)


def code_of(function: FunctionType) -> str:
    """A digest of what defines a function, if that is outside `base_code`."""
    path = Path(inspect.getfile(function)).resolve()
    for folder in SEPARATE:
        if path.is_relative_to(folder):
            return digest_modules(folder)
    if path.is_relative_to(PACKAGE) or path.is_relative_to(ANALYSIS):
        return ""
    # The lines of a file or of a notebook's cell. What has neither is measured again each time.
    text = "".join(linecache.getlines(inspect.getfile(function))) or token_hex()
    return hashlib.sha256(text.encode()).hexdigest()


def store_result(result: Result, path: Path, key: str, notes: dict) -> Result:
    """Saves a result under `key` in a netCDF file, atomically; only the first worker writes."""
    result = as_result(result.assign_attrs(notes | {"key": key}))
    worker, _ = this_worker(tf.distribute.get_strategy())
    if worker == 0:
        save(result, path)
    return result


def load_result(path: Path, key: str) -> Result | None:
    """The result saved at `path`, or None if there is none or it was saved under another key.

    A file that was truncated or changed is logged, and None is returned: the result is then
    computed again.
    """
    dataset = load_unchanged(path)
    result = None if dataset is None else as_result(dataset)
    return result if result is not None and result.attrs.get("key") == key else None


# A file ends with this mark and the digest of all bytes before it; netCDF readers ignore both.
DIGEST_MARK = b"\nSHA-256 of this file before this line: "
TRAILER_BYTES = len(DIGEST_MARK) + 64


def save(result: Result, path: Path) -> None:
    """Writes a netCDF file atomically, for `load_unchanged`."""

    def write(temporary: Path) -> None:
        result.to_netcdf(temporary)
        with temporary.open("rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0, os.SEEK_END)
            file.write(DIGEST_MARK + digest.encode())

    write_whole(path, write)


def load_unchanged(path: Path) -> xr.Dataset | None:
    """The Dataset that `save` wrote, or None if the file is missing or was changed."""
    if not path.is_file():
        return None
    # Only intact files are passed to HDF5, which may crash on corrupt ones.
    if not has_own_digest(path):
        log.warning("%s was cut off or changed, and is computed again", path)
        return None
    return xr.load_dataset(path)


def has_own_digest(path: Path) -> bool:
    """Whether a file is unchanged since `save` wrote it."""
    content = path.read_bytes()
    whole, trailer = content[:-TRAILER_BYTES], content[-TRAILER_BYTES:]
    return trailer == DIGEST_MARK + hashlib.sha256(whole).hexdigest().encode()
