"""Types of the arguments of measurements, which declare what each argument is to a measurement."""

import inspect
import os
import typing
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Annotated, Any, TypeAlias

import keras
import numpy as np
import tensorflow as tf

from vit_tf.features.features import Features, Taps  # noqa: F401
from vit_tf.features.tokens import TokenGrid


class Role(Enum):
    """What an argument is to a measurement, whatever the name of its parameter."""

    MODEL = "model"
    MODELS = "models"
    IMAGES = "images"
    LABELLED_IMAGES = "labelled images"
    MASKED_IMAGES = "images with masks"
    SCORES = "scores"
    CLASSES = "classes"
    NUM_CLASSES = "number of classes"
    BLOCK = "block"
    GRID = "grid"


Path: TypeAlias = str | os.PathLike
AnyModel: TypeAlias = keras.Model | Path | Callable | Mapping[str, np.ndarray]
AnyImages: TypeAlias = np.ndarray | tf.Tensor | tf.data.Dataset | Path | Sequence

if typing.TYPE_CHECKING:
    # A measurement opens, decodes and completes what a user passes before the declared function is
    # called, under the same names: a user may pass a path where the function gets features. A type
    # checker has one type for both, so it accepts anything.
    Model: TypeAlias = Any
    Models: TypeAlias = Any
    Images: TypeAlias = Any
    LabelledImages: TypeAlias = Any
    MaskedImages: TypeAlias = Any
    AnnotatedImages: TypeAlias = Any
    ImagePairs: TypeAlias = Any
    Scores: TypeAlias = str
    Classes: TypeAlias = Any
    NumClasses: TypeAlias = Any
    Block: TypeAlias = str
    Grid: TypeAlias = Any
else:
    # A model, its path or bundled name, a function from images to layers, or activations by layer.
    Model: TypeAlias = Annotated[AnyModel, Role.MODEL]
    # Several models by name, or in a list, whose own names they get.
    Models: TypeAlias = Annotated[
        Mapping[str, AnyModel] | Sequence[AnyModel] | AnyModel, Role.MODELS
    ]
    # An array, paths, PIL images or a list of these, a folder, or a data set.
    Images: TypeAlias = Annotated[AnyImages, Role.IMAGES]
    # A data set, a tuple of arrays, or a folder of class folders.
    LabelledImages: TypeAlias = Annotated[tf.data.Dataset | tuple | Path, Role.LABELLED_IMAGES]
    # A data set or a tuple of images and masks of their objects: images are resized and not
    # cropped, as masks, which are measured in shares of the image, would then belong to another
    # part of it.
    MaskedImages: TypeAlias = Annotated[tf.data.Dataset | tuple | AnyImages, Role.MASKED_IMAGES]
    # A data set or a tuple of images and of numbers that belong to each.
    AnnotatedImages: TypeAlias = Annotated[tf.data.Dataset | tuple | AnyImages, Role.IMAGES]
    # Two images for each example, in a data set or a tuple, as the model takes them.
    ImagePairs: TypeAlias = tf.data.Dataset | tuple
    # The tap that holds the scores of the classes.
    Scores: TypeAlias = Annotated[str, Role.SCORES]
    # Classes by name or position; those that are predicted for None.
    Classes: TypeAlias = Annotated[int | str | Sequence[int | str] | None, Role.CLASSES]
    # The number of classes; that of the labels, of the data set or of the model for None.
    NumClasses: TypeAlias = Annotated[int | None, Role.NUM_CLASSES]
    # The name of the block that the kind `"block_heads"` reads.
    Block: TypeAlias = Annotated[str, Role.BLOCK]
    # Where the tokens lie; the grid of the model for None.
    Grid: TypeAlias = Annotated[TokenGrid | tuple[int, int] | None, Role.GRID]


@dataclass(frozen=True)
class Roles:
    """The names of a measurement's parameters by their roles, in the order of its signature."""

    models: tuple[str, ...]
    several_models: str | None
    images: tuple[str, ...]
    labelled: tuple[str, ...]  # of the images, those with labels
    masked: tuple[str, ...]  # of the images, those with masks
    scores: str | None
    classes: str | None
    num_classes: str | None
    block: str | None
    grid: str | None
    defaults: tuple[tuple[str, str], ...]  # of the scores and the block
    order: tuple[str, ...]  # of all parameters in the signature

    def value(self, name: str | None, given: Mapping[str, Any]) -> Any:
        """The scores or the block that is given, or the default; None without such a parameter."""
        return None if name is None else given.get(name, dict(self.defaults).get(name))


def roles_of(function: Callable) -> Roles:
    """The roles that the types of a function's parameters declare.

    Raises:
        ValueError: for a function without a parameter that is a model, with two of a role of which
            there is one, or with types that do not exist when it is defined.
    """
    signature = inspect.signature(function)
    try:
        types = typing.get_type_hints(function, include_extras=True)
    except NameError as error:
        raise ValueError(
            f"Expected types of the parameters of {function.__name__} that are imported when it is "
            f"defined, not for type checkers alone. Received: {error}"
        ) from error
    names: dict[Role, list[str]] = {role: [] for role in Role}
    for name in signature.parameters:
        for role in _roles_of_type(types.get(name)):
            names[role].append(name)
    for role in (Role.MODELS, Role.SCORES, Role.CLASSES, Role.NUM_CLASSES, Role.BLOCK, Role.GRID):
        if len(names[role]) > 1:
            raise ValueError(
                f"Expected one parameter of {function.__name__} to be the {role.value}. "
                f"Received: {', '.join(names[role])}"
            )
    if not names[Role.MODEL] and not names[Role.MODELS]:
        raise ValueError(
            f"Expected a parameter of {function.__name__} whose type is engine.Model: "
            f"def {function.__name__}(model: Model, images: Images). "
            f"Received: {function.__name__}{signature}"
        )
    kinds = Role.IMAGES, Role.LABELLED_IMAGES, Role.MASKED_IMAGES
    images = [name for kind in kinds for name in names[kind]]
    named = [*names[Role.SCORES], *names[Role.BLOCK]]
    defaults = [(name, signature.parameters[name].default) for name in named]
    return Roles(
        models=tuple(names[Role.MODEL]),
        several_models=_first(names[Role.MODELS]),
        images=tuple(name for name in signature.parameters if name in images),
        labelled=tuple(names[Role.LABELLED_IMAGES]),
        masked=tuple(names[Role.MASKED_IMAGES]),
        scores=_first(names[Role.SCORES]),
        classes=_first(names[Role.CLASSES]),
        num_classes=_first(names[Role.NUM_CLASSES]),
        block=_first(names[Role.BLOCK]),
        grid=_first(names[Role.GRID]),
        defaults=tuple((name, value) for name, value in defaults if isinstance(value, str)),
        order=tuple(signature.parameters),
    )


def _roles_of_type(annotation: Any) -> set[Role]:
    """The roles in a type, also in a union with None."""
    if typing.get_origin(annotation) is Annotated:
        return {note for note in annotation.__metadata__ if isinstance(note, Role)}
    return set().union(*map(_roles_of_type, typing.get_args(annotation)))


def _first(names: Sequence[str]) -> str | None:
    return names[0] if names else None
