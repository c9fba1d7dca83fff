"""Opening saved models: Keras files and SavedModels, with one clear error for what is neither."""

import json
import os
import shutil
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

from vit_tf.image_checks import check_dtype
from vit_tf.names import as_patterns, match
from vit_tf.preprocessing import Preprocessing
from vit_tf.remote import PARTIAL, as_path, is_remote, local_copy
from vit_tf.taps.submodels import FACTS, TapModel, depth_order, submodel
from vit_tf.tokens import TokenGrid


def load_model(path):
    """The `keras.Model` saved in a `.keras` file, not compiled, whatever it was when it was saved.

    The file may be at an address that TensorFlow or fsspec can open, such as `gs://bucket/a.keras`.

    `keras.saving.load_model`, which knows this package's classes too, compiles it as it was.

    Raises:
        ValueError: if the file is missing, truncated or not a Keras model.
    """
    if is_remote(path):
        if not as_path(path).is_file():
            raise ValueError(
                f"Expected path to be a .keras file. Received: {os.fspath(path)!r}, no such file"
            )
        with local_copy(path) as local:
            return load_model(local)
    path = os.fspath(path)
    if os.path.isdir(path):
        saved = tf.saved_model.contains_saved_model(path)
        what = "a SavedModel folder, which load_features opens" if saved else "a folder"
        raise ValueError(f"Expected path to be a .keras file. Received: {path!r}, {what}")
    if not os.path.isfile(path):
        raise ValueError(f"Expected path to be a .keras file. Received: {path!r}, no such file")
    if not path.endswith(".keras"):
        raise ValueError(f"Expected path to end in '.keras'. Received: {path!r}")
    try:
        return keras.saving.load_model(path, compile=False)
    except Exception as error:
        reason = str(error).strip().split("\n")[0][:200]
        raise ValueError(
            f"Expected {path!r} to be a whole .keras file of a known model. "
            f"Received a file that does not load: {type(error).__name__}: {reason}"
        ) from error


def load_features(path, *patterns):
    """A callable from images to `{tap: tensor}` from a `.keras` file or a SavedModel folder.

    A `.keras` file of a submodel opens as it is; one of a whole model opens as the submodel of
    the `patterns`, by default of all its taps. A SavedModel, such as `submodel.export` writes,
    answers with the taps it was exported with, in depth order.

    Args:
        path: the `.keras` file or the SavedModel folder.
        *patterns: shell patterns that choose among the taps, or lists of them.

    Raises:
        ValueError: for a path that is neither, or a pattern that fits no tap.
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


def export_whole(features, folder):
    """Writes a submodel as a SavedModel, whole or not at all, once that has answered alike.

    Args:
        features: what `submodel` returns.
        folder: path of a folder that is not there yet.

    Raises:
        ValueError: if the folder exists, or what was written gives other numbers for random images.
    """
    folder = Path(folder)
    if folder.exists():
        raise ValueError(f"Expected folder to be one that is not there yet. Received: {folder}")
    partial = folder.with_name(f"{PARTIAL}{folder.name}")
    shutil.rmtree(partial, ignore_errors=True)
    try:
        features.export(partial, verbose=False)
        _require_alike(features, load_features(partial))
        partial.replace(folder)
    finally:
        shutil.rmtree(partial, ignore_errors=True)


def _require_alike(features, saved):
    """Raises a `ValueError` unless saved features answer random images as the submodel does."""
    shape = [size or 224 for size in features.input_shape[1:]]
    images = np.random.default_rng(0).uniform(-1, 1, (2, *shape)).astype("float32")
    expected, found = features(images), saved(images)
    if set(found) != set(expected):
        raise ValueError(f"Expected the taps {sorted(expected)}. Received: {sorted(found)}")
    for tap, value in expected.items():
        value = np.asarray(value, np.float64)
        error = np.abs(np.asarray(found[tap], np.float64) - value).max()
        if not error <= 1e-4 * (1 + np.abs(value).max()):
            raise ValueError(f"Expected the SavedModel to answer alike. Received: {tap!r} differs")


class SavedFeatures:
    """The taps of a SavedModel, called on images like a submodel.

    `token_grid` and `preprocessing` are those of the submodel that wrote it, None where its folder
    does not tell.

    Args:
        path: the SavedModel folder; its outputs are named by tap.
        patterns: shell patterns that choose among the outputs; none means all.
    """

    def __init__(self, path, patterns=()):
        if not tf.saved_model.contains_saved_model(path):
            raise ValueError(f"Expected path to be a SavedModel folder. Received: {path!r}")
        self.name = os.path.basename(os.path.normpath(path))
        try:
            self._model = tf.saved_model.load(path)
        except Exception as error:
            raise ValueError(
                f"Expected {path!r} to be a whole SavedModel. "
                f"Received one that does not load: {type(error).__name__}"
            ) from error
        if "serving_default" not in self._model.signatures:
            raise ValueError(
                f"Expected a SavedModel with the signature 'serving_default'. "
                f"Received: {sorted(self._model.signatures)} in {path!r}"
            )
        self._serve = self._model.signatures["serving_default"]
        self._input = next(iter(self._serve.structured_input_signature[1]))
        known = depth_order(self._serve.structured_outputs)
        self.taps = match(patterns, known) if patterns else tuple(known)
        self.token_grid, self.preprocessing = _read_facts(os.path.join(path, FACTS))

    @property
    def input_shape(self):
        """Shape of the images, (example, height, width, channel), None for what is free.

        None where not even the number of axes is known.
        """
        shape = self._serve.structured_input_signature[1][self._input].shape
        return None if shape.rank is None else tuple(shape)

    def __call__(self, images):
        images = tf.convert_to_tensor(images)
        check_dtype(self, images.dtype.name)
        outputs = self._serve(**{self._input: tf.cast(images, tf.float32)})
        return {tap: outputs[tap] for tap in self.taps}


def _read_facts(path):
    """The `TokenGrid` and the `Preprocessing` that a SavedModel's folder tells, None for neither.

    Raises:
        ValueError: for a file that does not hold them.
    """
    if not os.path.isfile(path):
        return None, None
    try:
        with open(path, encoding="utf-8") as file:
            facts = json.load(file)
        grid, preprocessing = facts["token_grid"], facts["preprocessing"]
        return grid and TokenGrid(**grid), preprocessing and Preprocessing(**preprocessing)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise ValueError(
            f"Expected {path!r} to hold a token_grid and a preprocessing. Received: {error}"
        ) from error
