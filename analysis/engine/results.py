"""Labelled results: attributes, words of coordinates, checks, and files under a key."""

import ast
import hashlib
import inspect
import json
import math
from collections.abc import MappingView, Sequence
from dataclasses import fields, is_dataclass
from functools import cache, partial
from pathlib import Path
from types import CodeType, FunctionType, MethodType

import numpy as np
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf.files import write_whole
from vit_tf.names import format_list, near_names
from vit_tf.tokens import prefix_names


def provenance(features, examples, batches, **parameters):
    """Attributes of a result, in forms that netCDF can hold, and further parameters."""
    attributes = {
        "model": model_name(features),
        "examples": int(examples),
        "batch_size": math.ceil(examples / batches),
    }
    for name, value in parameters.items():
        if isinstance(value, tuple | list):
            value = list(value) if value else "none"
        attributes[name] = str(value) if value is None or isinstance(value, bool) else value
    return attributes


EACH_IMAGE = "each image by itself"  # the estimator of results for a few images


def facts_of(features, totals, estimator, **more):
    """The `provenance` of a result, from totals that count examples and batches."""
    counts = totals["examples"], totals["batches"]
    return provenance(features, *counts, estimator=estimator, **more)


def array_of(
    name: str, values: np.ndarray, dims: tuple, words: tuple[str, str], facts: dict, **coords
) -> xr.DataArray:
    """A DataArray with its `long_name` and `units`; a dim without a coordinate is numbered."""
    attrs = facts | dict(zip(("long_name", "units"), words, strict=True))
    return _numbered(xr.DataArray(values, coords, dims, name, attrs))


def dataset_of(variables: dict, facts: dict, **coords) -> xr.Dataset:
    """A Dataset with these attributes; a dim without a coordinate is numbered from 0."""
    return _numbered(xr.Dataset(variables, coords, facts))


def _numbered(result):
    coords, sizes = result.coords, result.sizes.items()
    return result.assign_coords({dim: np.arange(n) for dim, n in sizes if dim not in coords})


def variable(dims, values, long_name, units="1"):
    """A variable of a Dataset, with what its values are and their units."""
    return dims, values, {"long_name": long_name, "units": units}


def model_name(features):
    """The name of a model or function, without the ending that a submodel adds."""
    name = getattr(features, "name", None) or getattr(features, "__name__", "features")
    return name.removesuffix("_taps")


def require_finite(what, values, layers):
    """Raises a `ValueError` that names the layers whose `values` (layer, ...) are not finite."""
    bad = [
        layer for layer, value in zip(layers, values, strict=True) if not np.isfinite(value).all()
    ]
    if bad:
        raise ValueError(
            f"Expected finite activations to compute {what}. "
            f"Received NaN or infinity at {format_list(bad)}"
        )


def pack_correct(correct):
    """Truth values (..., example) as texts of hexadecimal digits, to save as a coordinate."""
    packed = np.packbits(correct, axis=-1)
    texts = [row.tobytes().hex() for row in packed.reshape(-1, packed.shape[-1])]
    return np.array(texts).reshape(packed.shape[:-1])


def unpack_correct(texts, examples):
    """Truth values of shape (..., example), from texts of `pack_correct`."""
    texts = np.asarray(texts)
    packed = np.array([np.frombuffer(bytes.fromhex(str(text)), np.uint8) for text in texts.ravel()])
    return np.unpackbits(packed, axis=-1, count=examples).astype(bool).reshape(*texts.shape, -1)


def mean_of(total, count):
    """`total / count` of arrays that broadcast, NaN where nothing was counted."""
    counted = np.asarray(count) > 0
    return np.where(counted, total / np.where(counted, count, 1), np.nan)


def raise_without_directions(layers):
    """Raises a `ValueError` that names `layers` whose features have no direction, if any do."""
    if layers:
        raise ValueError(
            "Expected features that are finite and not zero, to compare their directions. "
            f"Received zero or non-finite features at {format_list(layers)}"
        )


def name_models(result, models):
    """A result with the names of its models in its attributes, for titles and tables."""
    names = {"model": models[0].name, "model_x": models[0].name, "model_y": models[-1].name}
    return result.assign_attrs(names)


def expect_array(result, dims, optional=()):
    """Return a DataArray of these dims, in this order, or raise a `ValueError`."""
    wanted = f"({', '.join(dims)}{''.join(f'[, {name}]' for name in optional)})"
    if not isinstance(result, xr.DataArray):
        raise ValueError(f"Expected a DataArray of dims {wanted}. Received: {describe(result)}")
    rest = set(result.dims) - set(dims)
    if set(dims) - set(result.dims) or rest - set(optional) or not result.size:
        raise ValueError(f"Expected a DataArray of dims {wanted}. Received: {describe(result)}")
    return result.transpose(*dims, *(name for name in optional if name in rest))


def expect_variable(result, name, dims):
    """Return variable `name` of a Dataset, of dims `dims`, or raise a `ValueError`."""
    if not isinstance(result, xr.Dataset) or name not in result.data_vars:
        raise ValueError(
            f"Expected a Dataset with {name}({', '.join(dims)}). Received: {describe(result)}"
        )
    return expect_array(result[name], dims)


def expect_results(results):
    """Return a dict from label to result, not an empty one, or raise a `ValueError`."""
    if not isinstance(results, dict):
        wanted = "Expected at least one result, as a dict from label to result"
        raise ValueError(f"{wanted}. Received: {describe(results)}")
    if not results:
        raise ValueError("Expected at least one result. Received: {}")
    return results


def describe(result):
    if isinstance(result, xr.Dataset):
        return f"Dataset with variables {sorted(map(str, result.data_vars))}"
    if isinstance(result, xr.DataArray):
        return f"DataArray of dims ({', '.join(map(str, result.dims))}) and shape {result.shape}"
    return type(result).__name__


def layer_names(result, dim="layer"):
    """Names along a dim of layers; their indices where it has no coordinate."""
    return [str(name) for name in result[dim].values]


def select_layers(result, layers):
    """The named layers, in the order asked for; all if `layers` is None."""
    if layers is None:
        return result
    layers = [layers] if isinstance(layers, str) else list(layers)
    names = layer_names(result)
    unknown = [name for name in layers if name not in names]
    if unknown or not layers:
        hint = did_you_mean(unknown[0], names) if unknown else ""
        raise ValueError(f"Expected layers among {names}. Received: {layers}.{hint}")
    return result.isel(layer=[names.index(name) for name in layers])


def select_labels(result, **wanted):
    """The part of a result at these values of its coordinates; an error lists near matches."""
    for dim, value in wanted.items():
        values = result[dim].values.tolist()
        if value not in values:
            hint = did_you_mean(value, values)
            raise ValueError(f"Expected {dim} among {values}. Received: {dim}={value!r}.{hint}")
        result = result.isel({dim: values.index(value)})
    return result


def did_you_mean(name, names):
    """The nearest of some names as a sentence that follows others; empty where none is near."""
    near = near_names(name, [str(other) for other in names]) if isinstance(name, str) else []
    return f" Did you mean {near[0]!r}?" if near else ""


CLS, SPATIAL, ALL, EACH = "cls", "spatial", "all", "each"
PARTS = (CLS, SPATIAL)  # of a sequence, and whose attention is looked at
POOLED = (CLS, SPATIAL, ALL)  # what one vector for each image is made of
PROBED = (*POOLED, EACH)
DEFAULT = "default"  # in attributes, where no word was given
# The same in names of saved results, and in results that were saved with other words.
KEPT = {CLS: "first", SPATIAL: "rest", ALL: "mean"}
CURRENT = {kept: word for word, kept in KEPT.items()}


def require_word(word, choices, name="tokens"):
    """Returns `word` if it is among `known`; the error names the current word for a former."""
    if isinstance(word, str) and word in choices:
        return word
    current = CURRENT.get(word) if isinstance(word, str) else None
    hint = f"; its name is {current!r}" if current else ""
    raise ValueError(f"Expected {name} to be one of {choices}. Received: {name}={word!r}{hint}")


def current_words(result):
    """A result with the current words for tokens, also if it was saved with earlier ones."""
    if "tokens" in result.dims and "tokens" in result.coords:
        words = [str(word) for word in result["tokens"].values]
        result = result.assign_coords(tokens=[CURRENT.get(word, word) for word in words])
    word = result.attrs.get("tokens")
    is_former = isinstance(word, str) and word in CURRENT
    return result.assign_attrs(tokens=CURRENT[word]) if is_former else result


def token_name(position, prefix):
    """Name of the token at a position, after so many prefix tokens."""
    return prefix_names(prefix)[position] if position < prefix else f"token {position}"


def query_position(query, prefix, count):
    """Position in the sequence of a query given by its name, such as "cls", or by its position."""
    names = [name.lower() for name in prefix_names(prefix)]
    if isinstance(query, str) and query.lower() in names:
        return names.index(query.lower())
    if isinstance(query, str) or query not in range(count):
        hint = did_you_mean(query, names) or (
            f" Or by name: {format_list(names)}." if names else ""
        )
        raise ValueError(f"Expected query among 0 to {count - 1}. Received: query={query!r}.{hint}")
    return int(query)


# Subpackages that are no part of what every measurement computes with.
SEPARATE = ("vit_tf.analysis", "vit_tf.scripts")


def fingerprint(*facts):
    """A short key of facts: equal facts give equal keys, in every process.

    Facts are JSON values, arrays, dataclasses, and functions, which count with the values that they
    are bound to (`partial` and closures); what has a `key` counts as that.
    """
    text = json.dumps(facts, sort_keys=True, default=_as_json)
    return hashlib.sha256(text.encode()).hexdigest()[:16]


def _as_json(value):
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
        return list(value)
    if value is Ellipsis or isinstance(value, complex | slice | inspect.Signature):
        return repr(value)
    raise TypeError(f"Expected facts of a type that a key supports. Received: {value!r}")


def code_of(functions, without=()):
    """`fingerprint` of the modules of functions, and of all of ours that these import."""
    names = frozenset(name for function in functions for name in _modules_of(function))
    return _code_of_modules(names, tuple(without))


@cache
def base_code():
    """`fingerprint` of all modules below `analysis`, with which every measurement computes."""
    return code_of([name for name in _module_files() if not name.startswith(SEPARATE)], SEPARATE)


def _modules_of(function):
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
    own = getattr(function, "__module__", None) or type(function).__module__
    return {own}.union(*map(_modules_of, bound))


@cache
def _code_of_modules(names, without):
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
def _module_files():
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
def _read_module(name):
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


def _absolute(node, package):
    """The name of the module that a `from ... import` of a package's module names."""
    if not node.level:
        return node.module
    parts = package.split(".")
    parts = parts[: len(parts) - node.level + 1]
    return ".".join([*parts, node.module] if node.module else parts)


@cache
def _listed_in_stub(package):
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


def this_worker(strategy):
    """Index of this process among those of a strategy, and their number: (0, 1) for one."""
    resolver = strategy.cluster_resolver
    if not isinstance(strategy, tf.distribute.MultiWorkerMirroredStrategy) or resolver is None:
        return 0, 1
    tasks = resolver.cluster_spec().as_dict()
    places = [(kind, i) for kind in sorted(tasks) for i in range(len(tasks[kind]))]
    return places.index((resolver.task_type, resolver.task_id)), len(places)


def keep(result, path, key, notes):
    """Saves a result at a netCDF `path` under `key`, whole or not at all, by the first worker."""
    result = result.assign_attrs(notes | {"key": key})
    if this_worker(tf.distribute.get_strategy())[0] == 0:
        write_whole(path, result.to_netcdf)
    return result


def load(path, key):
    """The result saved at `path`, or None if there is none or it was saved under another key."""
    if not path.exists():
        return None
    result = xr.load_dataset(path)
    if "key" not in result.attrs and len(result.data_vars) == 1:
        (result,) = result.data_vars.values()  # a DataArray's attributes are its variable's
    return result if result.attrs.get("key") == key else None
