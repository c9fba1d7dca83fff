"""Opening the models under analysis: any Keras model, checkpoint or SavedModel."""

import hashlib
import zipfile
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import Any

import common
import image_values

import vit_tf
from vit_tf.analysis.subjects import slug
from vit_tf.checkpoints.names import fetch
from vit_tf.preprocessing import Preprocessing
from vit_tf.taps import TapModel

LIBRARIES = ("keras_hub", "keras_cv")  # whose classes a file may name


@dataclass(frozen=True)
class Opened:
    """A model as it was opened.

    Attributes:
        name: as figures and tables show it.
        source: what the user named.
        digest: of the content of its file or folder.
        model: a Keras model, or the features of a SavedModel.
        expects: pair of the `Preprocessing` of its images and of where that is known from.
    """

    name: str
    source: str
    digest: str
    model: Any
    expects: tuple

    @property
    def is_saved_model(self):
        """Whether it is a SavedModel, which has no layers to choose from."""
        return not hasattr(self.model, "count_params")

    @property
    def is_foreign(self):
        """Whether its layers have no names of the tap grammar."""
        known = self.is_saved_model or isinstance(self.model, TapModel)
        return not known and not hasattr(self.model, "intermediates")

    @cached_property
    def input_shape(self):
        """Shape (example, height, width, channel) of its images, None for what is free."""
        if self.is_saved_model:
            return self.model.input_shape or ()
        if hasattr(self.model, "image_shape") and not self.is_foreign:
            return (None, *self.model.image_shape)
        return tuple(self.model.input_shape)

    @property
    def size(self):
        """(height, width) of its images, or None where it takes any."""
        size = tuple(self.input_shape[1:3])
        return None if None in size else size

    def features(self, *patterns):
        """The taps that fit the patterns, as a callable from images."""
        if not self.is_saved_model:
            return vit_tf.submodel(self.model, *patterns)
        return vit_tf.load_features(self.source, *patterns)


def open_all(sources, names, options):
    """The models of files, folders and public names, each with a name of its own.

    Where there are several, the options of `image_values` count for those that do not tell.

    Raises:
        ValueError: for what cannot be opened, is no model of RGB images, or other than one of the
            `names` for each.
    """
    if names and len(names) != len(sources):
        raise ValueError(
            f"Expected --names to name each of the {len(sources)} models. Received: {len(names)}"
        )
    taken, opened = set(), []
    for index, source in enumerate(sources):
        name = distinct(names[index] if names else own_name(source), taken)
        taken.add(slug(name))
        model = open_any(source)  # which first says what is wrong with a path
        expects = image_values.expected_images(options, model, overrule=len(sources) == 1)
        model = Opened(name, source, digest(source), model, expects)
        shape = model.input_shape
        if len(shape) != 4 or shape[3] not in (3, None):
            raise ValueError(
                "Expected models of images of shape (example, height, width, 3). "
                f"Received: {source} of input shape {shape}"
            )
        opened.append(model)
    return opened


def own_name(source):
    """The name of a model without the folders and the ending of its file."""
    path = Path(source)
    return path.stem if path.is_file() else path.name


def distinct(name, taken):
    """A name whose slug is none of those `taken`: `"vit (2)"` for a second `"vit"`."""
    if not slug(name):
        raise ValueError(f"Expected --names with Latin letters or digits. Received: {name!r}")
    number, found = 1, name
    while slug(found) in taken:
        number += 1
        found = f"{name} ({number})"
    return found


def open_any(source):
    """The Keras model or SavedModel of a path, or of a public name."""
    if Path(source).is_dir():
        return vit_tf.load_features(source)
    if source.endswith(".keras"):
        import_libraries(source)
    return common.open_model(source)


def import_libraries(path):
    """Imports the known libraries whose classes a `.keras` file names, if they are installed."""
    if not zipfile.is_zipfile(path):
        return  # for `load_model` to refuse
    with zipfile.ZipFile(path) as archive:
        text = archive.read("config.json") if "config.json" in archive.namelist() else b""
    for library in LIBRARIES:
        if f'"{library}'.encode() in text:
            try:
                import_module(library)
            except ImportError as error:
                raise ValueError(
                    f"Expected {library} to be installed, for {path}. Received: {error}"
                ) from error


def digest(source):
    """SHA-256 of a file's content, or of the names and contents of a folder's files."""
    if not Path(source).exists():
        source, _ = fetch(source)
    root = Path(source)
    files = sorted(path for path in root.rglob("*") if path.is_file()) if root.is_dir() else [root]
    total = hashlib.sha256()
    for path in files:
        with path.open("rb") as file:
            part = hashlib.file_digest(file, "sha256").hexdigest()
        total.update(f"{path.relative_to(root)} {part}\n".encode())
    return total.hexdigest()


def common_size(opened, asked):
    """(height, width) of the images that all models are compared on.

    Raises:
        ValueError: if they take images of different sizes, or any and none is `asked` for.
    """
    sizes = {model.name: model.size for model in opened if model.size}
    if asked:
        sizes["--image-size"] = (asked, asked)
    if not sizes:
        raise ValueError("Expected --image-size, as the models take images of any. Received none")
    if len(set(sizes.values())) > 1:
        each = ", ".join(f"{name} {height} x {width}" for name, (height, width) in sizes.items())
        raise ValueError(f"Expected models that take images of one size. Received: {each}")
    return next(iter(sizes.values()))


def shared_images(opened, size):
    """The `Preprocessing` of the images: values in [-1, 1], resized as the first that tells wants.

    Models that expect other values have them made from these, see `Normalised`.
    """
    return Preprocessing(size, interpolation=opened[0].expects[0].interpolation)
