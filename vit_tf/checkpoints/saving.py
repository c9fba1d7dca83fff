"""Opening saved models: Keras files and SavedModels, with one clear error for what is neither."""

import functools
import json
import os
import re
import shutil
import textwrap
import zipfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, TypeAlias

import keras
import tensorflow as tf
from tensorflow.python.saved_model import loader_impl

from vit_tf.checkpoints.released import bundled_models, refuse_other_formats
from vit_tf.common.backend import require_tensorflow_or_jax
from vit_tf.common.names import as_patterns, format_list, match, near_names, without_password
from vit_tf.data.files import is_remote, local_copy, partial_path
from vit_tf.data.preprocessing import Preprocessing, check_dtype
from vit_tf.features.submodels import FACTS, TapModel, submodel
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.model import name_after

TRAINED = "model.keras"  # the file of a training run's folder that holds the trained model


# What maps images to `{tap: tensor}`: a model with taps, or a SavedModel.
Features: TypeAlias = "keras.Model | SavedFeatures"


def load_model(path: str | os.PathLike) -> keras.Model:
    """Loads the `keras.Model` of a `.keras` file, without compiling it.

    `path` may also be the folder of a training run, whose `model.keras` is loaded, or the name of a
    bundled model (`vit_tf.list_pretrained`). The file may be at an address that
    `etils.epath` can open, such as `gs://bucket/a.keras`.

    To restore a compiled model, use `keras.saving.load_model` after `import vit_tf.models`, which
    registers the models of this package, and after the import of `vit_tf.training.objectives` and
    `vit_tf.training.optimizers` for the losses and optimizers that `vit_tf.train` compiles with.

    Raises:
        ValueError: if the file is missing, truncated or not a Keras model.
    """
    require_tensorflow_or_jax("models")
    refuse_other_formats(path)
    if is_remote(path):
        with local_copy(path) as local:
            return load_model(local)
    path = os.fspath(path)
    path = str(bundled_models().get(path, path))
    if os.path.isfile(os.path.join(path, TRAINED)):
        path = os.path.join(path, TRAINED)
    if not (path.endswith(".keras") and zipfile.is_zipfile(path)):
        kind = "a truncated file, or one of another kind"
        if os.path.isdir(path):
            is_saved = tf.saved_model.contains_saved_model(path)
            kind = "a SavedModel folder, which load_features opens" if is_saved else "a folder"
        elif not os.path.exists(path):
            near = near_names(path, bundled_models())
            hint = f" (near matches of bundled models: {format_list(near)})" if near else ""
            kind = f"no such file{hint}"
        raise ValueError(
            "Expected path to be an intact .keras file, or the folder of a training run that holds "
            f"{TRAINED}. Received: {without_password(path)!r}, {kind}"
        )
    try:
        return name_after(keras.saving.load_model(path, compile=False), path)
    except Exception as error:
        if unknown := re.search(r"Could not locate (class|function) '([^']+)'", str(error)):
            raise ValueError(
                f"Keras cannot load {path!r}: the {unknown[1]} {unknown[2]!r} is not "
                "registered. Import the module that defines it: --import MODULE or --import "
                "file.py on the command line, @keras.saving.register_keras_serializable in "
                "Python."
            ) from error
        reason = textwrap.shorten(str(error).strip().split("\n")[0], 200, placeholder=" ...")
        raise ValueError(f"Keras cannot load {path!r}: {type(error).__name__}: {reason}") from error


def load_features(path: str | os.PathLike, *patterns: str | Iterable[str]) -> Features:
    """A callable from images to `{tap: tensor}` from a `.keras` file or a SavedModel folder.

    Taps are named intermediate tensors (see `submodel`). By default, all taps of the file are
    returned; `patterns` select some of them. A `.keras` file has the taps of its model or submodel.
    A SavedModel that `submodel.export` wrote has the taps with which it was exported, in depth
    order. For any other SavedModel, the taps are its outputs, in the order in which its graph
    computes them.

    Args:
        path: the `.keras` file or the SavedModel folder.
        *patterns: shell patterns that select taps, or lists of them.

    Raises:
        ValueError: if the path is neither a `.keras` file nor a SavedModel folder, or if a pattern
            matches no tap.
    """
    path, patterns = os.fspath(path), as_patterns(patterns)
    if os.path.isdir(path):
        return SavedFeatures(path, patterns)
    model = load_model(path)
    return (
        model
        if isinstance(model, TapModel) and not patterns
        else submodel(model, *(patterns or "*"))
    )


def export_whole(features: keras.Model, folder: str | os.PathLike) -> None:
    """Writes a submodel as a SavedModel, or nothing at all."""
    folder = Path(os.path.abspath(folder))
    if os.path.lexists(folder):
        raise ValueError(f"The output folder {folder} exists already: choose a new one")
    partial = partial_path(folder)
    try:
        features.export(partial, verbose=False)
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


class SavedFeatures:
    """The taps of a SavedModel, those that fit `patterns`, called on images like a submodel.

    `token_grid` and `preprocessing` are those of the submodel that wrote it, None where its folder
    does not state.
    """

    def __init__(self, path: str, patterns: tuple[str, ...] = ()):
        self.name = os.path.basename(os.path.normpath(path))
        try:
            self._model = tf.saved_model.load(path)
        except Exception as error:
            raise ValueError(
                f"Cannot read the SavedModel {without_password(path)!r} "
                f"({type(error).__name__}: {str(error)[:200]})"
            ) from error
        if "serving_default" not in self._model.signatures:
            raise ValueError(
                f"Expected a SavedModel with the signature 'serving_default'. "
                f"Received: {sorted(self._model.signatures)} in {without_password(path)!r}"
            )
        self._serve = self._model.signatures["serving_default"]
        self._input = next(iter(self._serve.structured_input_signature[1]))
        outputs = self._serve.structured_outputs
        self.token_grid, self.preprocessing, taps = _read_facts(os.path.join(path, FACTS))
        # Names that were computed at once, such as a skip of the sum before it, by the alphabet.
        tap_names = taps or sorted(sorted(outputs), key=_output_positions(path).__getitem__)
        if set(tap_names) != set(outputs):
            raise ValueError(
                f"Expected {FACTS} to list the outputs of the SavedModel in "
                f"{without_password(path)!r}. "
                f"Received: {format_list(set(tap_names) ^ set(outputs))} in only one of them"
            )
        self.taps = match(patterns, tap_names) if patterns else tuple(tap_names)

    @property
    def input_shape(self) -> tuple | None:
        """(example, height, width, channel) of images, None for what is free or no known rank."""
        shape = self._serve.structured_input_signature[1][self._input].shape
        return None if shape.rank is None else tuple(shape)

    def __call__(self, images: Any) -> dict[str, tf.Tensor]:
        images = tf.convert_to_tensor(images)
        check_dtype(self, images.dtype.name)
        outputs = self._serve(**{self._input: tf.cast(images, tf.float32)})
        return {tap: outputs[tap] for tap in self.taps}


def _output_positions(path: str) -> dict[str, tuple[int, ...]]:
    """Dict from each output of a SavedModel to its position in the order of computation.

    The nodes of a graph and of its functions are stored in the order in which they were made. A
    position is that of the node, after those of the calls of functions around it.
    """
    graph = loader_impl.parse_saved_model(path).meta_graphs[0]
    functions = {function.signature.name: function for function in graph.graph_def.library.function}

    @functools.cache
    def nodes_of(function: str | None) -> dict[str, tuple[int, Any]]:
        nodes = functions[function].node_def if function else graph.graph_def.node
        return {node.name: (index, node) for index, node in enumerate(nodes)}

    def position(function: str | None, tensor: str) -> tuple[int, ...]:
        name, *output = tensor.split(":")
        if name not in nodes_of(function):  # an argument of the function
            return (-1,)
        index, node = nodes_of(function)[name]
        if node.op == "Identity":
            return position(function, node.input[0])
        called = node.attr["f"].func.name
        if called not in functions:
            return (index,)
        returned = functions[called].signature.output_arg[int(output[-1]) if output else 0].name
        return (index, *position(called, functions[called].ret[returned]))

    outputs = graph.signature_def["serving_default"].outputs
    return {name: position(None, info.name) for name, info in outputs.items()}


def _read_facts(path: str) -> tuple:
    """The `TokenGrid`, `Preprocessing` and taps that a SavedModel's folder stores, or None each."""
    if not os.path.isfile(path):
        return None, None, None
    try:
        with open(path, encoding="utf-8") as file:
            facts = json.load(file)
        grid, preprocessing = facts["token_grid"], facts["preprocessing"]
        preprocessing = preprocessing and Preprocessing(**preprocessing)
        return grid and TokenGrid(**grid), preprocessing, facts.get("taps")
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"Expected {without_password(path)!r} to hold a token_grid and a preprocessing. "
            f"Received: {error}"
        ) from error
