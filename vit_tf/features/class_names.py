"""The names of the classes that a Keras model predicts, where they are known."""

import importlib.util
import json
import os
import re
from functools import cache
from pathlib import Path

import keras

NUM_IMAGENET = 1000
# The file in the folder of Keras that `decode_predictions` of keras.applications downloads.
KERAS_INDEX = Path("models", "imagenet_class_index.json")
# The folder of timm's package that contains the names.
TIMM_FOLDER = Path("data", "_info")


def find_class_names(model: object) -> tuple[str, ...]:
    """The names of a model's classes; () where they are not known.

    They are `model.class_names`, or, for a model of `keras.applications` with 1,000 classes, those
    of ImageNet, if they are on this computer: as `keras.applications` stores them, or in timm.
    """
    if own := getattr(model, "class_names", None):
        return tuple(own)
    # The models of `keras.applications` are functional: those alone have this attribute.
    is_functional = hasattr(model, "_nodes_by_depth")
    if not isinstance(model, keras.Model) or not is_functional:
        return ()
    shape = model.output_shape
    is_classifier = isinstance(shape, tuple) and shape[1:] == (NUM_IMAGENET,)
    # The functions of `keras.applications` give their models their own names.
    name = re.sub(r"[^a-z0-9]", "", model.name.lower())
    functions = tuple(name.lower() for name in dir(keras.applications) if name[0].isupper())
    return imagenet_names() if is_classifier and name.startswith(functions) else ()


def imagenet_names() -> tuple[str, ...]:
    """The 1,000 class names of ImageNet in their usual order; () if no local file has them."""
    return tuple(_imagenet_classes().values())


def imagenet_synsets() -> tuple[str, ...]:
    """The WordNet numbers of these classes, as in the folder names of ImageNet."""
    return tuple(_imagenet_classes())


def _imagenet_classes() -> dict[str, str]:
    """Names by WordNet number, in their usual order; empty if no local file has them."""
    index = Path(os.environ.get("KERAS_HOME", Path.home() / ".keras")) / KERAS_INDEX
    if index.is_file():
        return _read_keras_index(index)
    timm = importlib.util.find_spec("timm")
    locations = timm.submodule_search_locations if timm else None
    for location in locations or ():
        folder = Path(location) / TIMM_FOLDER
        synsets, lemmas = folder / "imagenet_synsets.txt", folder / "imagenet_synset_to_lemma.txt"
        if synsets.is_file() and lemmas.is_file():
            return _read_timm(synsets, lemmas)
    return {}


@cache
def _read_keras_index(path: Path) -> dict[str, str]:
    """Names by WordNet number, from the file of keras.applications."""
    index = json.loads(path.read_text("utf-8"))
    pairs = (index[str(number)] for number in range(NUM_IMAGENET))
    return {synset: name.replace("_", " ") for synset, name in pairs}


@cache
def _read_timm(synsets: Path, lemmas: Path) -> dict[str, str]:
    """Names by WordNet number, from timm's files of their order and of all names."""
    lines = (line.split("\t") for line in lemmas.read_text("utf-8").splitlines())
    words = {synset: names.split(",")[0] for synset, names in lines}
    return {synset: words[synset] for synset in synsets.read_text("utf-8").split()}
