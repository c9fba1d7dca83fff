"""Results saved on disk under a key, so that no work is done twice."""

import ast
import hashlib
import inspect
import json
import logging
import os
from collections.abc import Callable, Iterable, MappingView, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType
from typing import Any, cast

import numpy as np
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf.data.files import write_whole

from .accessors import as_result
from .stream import this_worker

log = logging.getLogger(__name__)
Labelled = xr.DataArray | xr.Dataset
# Subpackages that are no part of what every measurement computes with.
SEPARATE = ("vit_tf.analysis", "vit_tf.scripts")


def fingerprint(*facts: Any, identified_by: str = "key") -> str:
    """A short key of facts: equal facts give equal keys, in every process.

    Facts are JSON values, arrays, dataclasses, and functions together with the values that they are
    bound to (`partial` and closures). An object with an attribute that identifies it, such as
    `key`, is represented by this attribute.
    """
    as_json = partial(_as_json, identified_by=identified_by)
    text = json.dumps(facts, sort_keys=True, default=as_json)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _as_json(value: Any, identified_by: str) -> Any:
    """A value as what JSON can hold, the same in every process."""
    if hasattr(value, "__wrapped__") and not isinstance(value, FunctionType):
        return value.__wrapped__  # of a `cache`
    if isinstance(value, partial):
        return ["partial", value.func, value.args, value.keywords]
    if isinstance(value, MethodType):
        return [value.__self__, value.__func__]
    if isinstance(value, FunctionType):
        held = [cell.cell_contents for cell in value.__closure__ or ()]
        bound = [value.__defaults__, value.__kwdefaults__, [v for v in held if v is not value]]
        return [value.__module__, value.__qualname__, value.__code__, *bound]
    if isinstance(value, CodeType):
        return [value.co_code.hex(), value.co_names, value.co_consts]
    if isinstance(value, bytes):
        return value.hex()
    if isinstance(value, type) or inspect.isbuiltin(value):
        return f"{value.__module__}.{value.__qualname__}"
    if hasattr(value, identified_by):
        return getattr(value, identified_by)
    if hasattr(value, "key"):
        return value.key
    if is_dataclass(value):
        return [type(value).__qualname__, {f.name: getattr(value, f.name) for f in fields(value)}]
    if isinstance(value, np.ndarray | np.generic) or tf.is_tensor(value):
        array = np.ascontiguousarray(value)
        return [str(array.dtype), array.shape, hashlib.sha256(array.tobytes()).hexdigest()]
    if isinstance(value, set | frozenset):
        return sorted(value, key=repr)
    if isinstance(value, Sequence | MappingView):
        return list(cast(Iterable, value))
    if value is Ellipsis or isinstance(value, complex | slice | inspect.Signature):
        return repr(value)
    raise TypeError(f"Expected facts of a type that a key supports. Received: {value!r}")


def code_of(functions: Iterable[Callable | str], without: Iterable[str] = ()) -> str:
    """`fingerprint` of the modules of functions, and of all modules of ours that they import."""
    names = frozenset(name for function in functions for name in _modules_of(function))
    return _code_of_modules(names, tuple(without))


@cache
def base_code() -> str:
    """`fingerprint` of all modules below `analysis`, with which every measurement computes."""
    return code_of([name for name in _module_files() if not name.startswith(SEPARATE)], SEPARATE)


def _modules_of(function: Any) -> set[str]:
    """The names of the modules of a function, and of those that it is bound to."""
    if isinstance(function, str):
        return {function}
    if isinstance(function, partial):
        bound = [function.func, *function.args, *function.keywords.values()]
    elif isinstance(function, MethodType):
        bound = [function.__func__, type(function.__self__)]
    elif isinstance(function, FunctionType):
        bound = [cell.cell_contents for cell in function.__closure__ or ()]
        bound = [item for item in bound if item is not function]
    else:
        bound = []
    bound = [item for item in tf.nest.flatten(bound) if callable(item)]
    module = getattr(function, "__module__", None) or type(function).__module__
    return {module}.union(*map(_modules_of, bound))


@cache
def _code_of_modules(names: frozenset[str], without: tuple[str, ...]) -> str:
    texts, waiting = {}, sorted(names)
    while waiting:
        name = waiting.pop()
        if name not in texts and not any(
            f"{name}.".startswith(f"{package}.") for package in without
        ):
            digest, imported = _read_module(name)
            texts[name] = digest
            waiting += imported
    return fingerprint(texts)


@cache
def _module_files() -> dict[str, Path]:
    """The path of every module of this package, by name; `analysis` may lie next to the rest."""
    files = {}
    for root in map(Path, vit_tf.__path__):
        inside = root == Path(vit_tf.__file__).parent
        for folder in [root] if inside else [root / "analysis", root / "scripts"]:
            for path in folder.rglob("*.py"):
                parts = path.relative_to(root).with_suffix("").parts
                name = ".".join(("vit_tf", *(part for part in parts if part != "__init__")))
                files[name] = path
    return files


@cache
def _read_module(name: str) -> tuple[str, Sequence[str]]:
    """A digest of a module of this package, and the names of those that it imports from there."""
    path = _module_files().get(name)
    if path is None:
        return "", ()
    text = path.read_text("utf-8")
    package = name if path.stem == "__init__" else name.rpartition(".")[0]
    imported = []
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Import):
            imported += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            origin = _absolute(node, package)
            sources = _listed_in_stub(origin)
            imported.append(origin)
            imported += [
                sources.get(module.name, f"{origin}.{module.name}") for module in node.names
            ]
    ours = [module for module in dict.fromkeys(imported) if module in _module_files()]
    return hashlib.sha256(text.encode()).hexdigest(), ours


def _absolute(node: ast.ImportFrom, package: str) -> str:
    """The name of the module that a `from ... import` of a package's module names."""
    if not node.level:
        return node.module or ""
    parts = package.split(".")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


@cache
def _listed_in_stub(package: str) -> dict[str, str]:
    """Where the names of a package that loads them lazily come from: dict from name to module."""
    path = _module_files().get(package)
    stub = path and path.with_suffix(".pyi")
    if not stub or not stub.exists():
        return {}
    nodes = ast.parse(stub.read_text("utf-8")).body
    return {
        alias.asname or alias.name: _absolute(node, package)
        for node in nodes
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


def keep(result: Labelled, path: Path, key: str, notes: dict) -> Labelled:
    """Saves a result under `key` in a netCDF file, atomically; only the first worker writes."""
    result = result.assign_attrs(notes | {"key": key})
    if this_worker(tf.distribute.get_strategy())[0] == 0:
        save(result, path)
    return result


def load(path: Path, key: str) -> Labelled | None:
    """The result saved at `path`, or None if there is none or it was saved under another key.

    A file that was truncated or changed is logged, and None is returned: the result is then
    computed again.
    """
    dataset = load_unchanged(path)
    result = None if dataset is None else as_result(dataset)
    return result if result is not None and result.attrs.get("key") == key else None


# What follows the netCDF in its file, which readers ignore, before the digest of all before it.
DIGEST_MARK = b"\nSHA-256 of this file before this line: "
TRAILER_BYTES = len(DIGEST_MARK) + 64


def save(result: Labelled, path: Path) -> None:
    """Writes a netCDF file atomically, for `load_unchanged`."""

    def write(partial: Path) -> None:
        result.to_netcdf(partial)
        with partial.open("rb+") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
            file.seek(0, os.SEEK_END)
            file.write(DIGEST_MARK + digest.encode())

    write_whole(path, write, own_folders=1)


def load_unchanged(path: Path) -> xr.Dataset | None:
    """The Dataset that `save` wrote, or None if the file is missing or was changed."""
    if not path.is_file():
        return None
    # HDF5 is not asked to read anything else: corrupt files can end the process.
    if not has_own_digest(path):
        log.warning(
            "%s was cut off, changed or written by another version, and is made again", path
        )
        return None
    return xr.load_dataset(path)


def has_own_digest(path: Path) -> bool | None:
    """Whether a file is unchanged since `save` wrote it; None for a file without a digest."""
    content = path.read_bytes()
    whole, trailer = content[:-TRAILER_BYTES], content[-TRAILER_BYTES:]
    if not trailer.startswith(DIGEST_MARK):
        return None
    return trailer == DIGEST_MARK + hashlib.sha256(whole).hexdigest().encode()
