"""Declares what a function measures, so that it takes any model and any images.

`one_pass_measurement` is for a measurement that one `Statistic` makes in one pass over the images,
`measurement` for any other, such as one that needs several passes.
"""

import functools
import inspect
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

import keras
import numpy as np
import tensorflow as tf

import vit_tf
from vit_tf.common.arguments import argument_error
from vit_tf.common.names import as_patterns
from vit_tf.data.any_images import as_images, is_raw, size_of_floats, with_channel_axis
from vit_tf.data.batches import explained_batches
from vit_tf.data.equal_batches import IN_ORDER, RANDOM, BatchRule, batch_arrays
from vit_tf.data.labels import count_classes, require_classes, require_label_type, require_labels
from vit_tf.features.conversion import (
    LayerSelection,
    ModelLike,
    as_features,
    name_models,
    require_model,
    select_features,
)
from vit_tf.features.features import Features
from vit_tf.features.function_features import features_from_arrays
from vit_tf.features.layers import KINDS, Detail
from vit_tf.features.preprocessed import with_own_preprocessing
from vit_tf.features.tokens import TokenGrid
from vit_tf.torch_models import is_torch_module
from vit_tf.training.evaluation import require_classes_of

from .class_scores import class_positions, num_scored_classes
from .pooling import on_grid
from .roles import LabelledImages, Roles, roles_of
from .stream import Statistic, evaluate, first_batch
from .traces import keep, reusable

Parameters = ParamSpec("Parameters")
Result = TypeVar("Result")
# The arguments of a call by the names of their parameters.
Arguments: TypeAlias = dict[str, Any]
# The features of each model by its parameter and, where a parameter takes several, by its name.
FeaturesByArgument: TypeAlias = dict[tuple[str, str | None], Features]


@dataclass(frozen=True)
class Declaration:
    """What a measurement declares of itself.

    Attributes:
        name: that of the function, with which results, plots and pages are found.
        kind: which layers it reads, a key of `vit_tf.features.layers.KINDS`.
        kinds: pairs (parameter, kind) for the models whose layers are of a kind other than `kind`.
        roles: which of its parameters are models, images, scores and classes.
        any_size: whether images keep their size, which is not that of the model.
        keep_order: whether the result has a row for each image, in the order of the caller.
    """

    name: str
    kind: str
    kinds: tuple[tuple[str, str], ...]
    roles: Roles
    any_size: bool
    keep_order: bool

    @property
    def batch_rule(self) -> BatchRule:
        """How images that are not batches yet are cut into batches."""
        return IN_ORDER if self.keep_order else RANDOM

    def expression(self, num_models: int, images: str = "images", **options: Any) -> str:
        """The call that a user types, with the models in braces: {model}, {other} or {models}.

        Args:
            num_models: of how many models it is.
            images: expression of the images.
            **options: further keywords, of which those that are None are left out.
        """
        roles = self.roles
        words = dict(zip(roles.models, ("{model}", "{other}")[:num_models], strict=False))
        words |= dict.fromkeys(roles.images, images)
        words |= {roles.several_models: "{models}"} if roles.several_models else {}
        arguments = [words[name] for name in roles.order if name in words]
        given = {name: repr(value) for name, value in options.items() if value is not None}
        arguments += [f"{name}={value}".replace("'", '"') for name, value in given.items()]
        return f"analysis.{self.name}({', '.join(arguments)})"


def measurement(
    kind: str = "representations",
    any_size: bool = False,
    keep_order: bool = False,
    **kinds: str,
) -> Callable[[Callable[Parameters, Result]], Callable[Parameters, Result]]:
    """Returns a decorator that turns a function into a measurement.

    The measurement takes any model and any images, and the argument `layers=`. The type annotation
    of each parameter of the function declares its role: `Model`, `Models`, `Images`,
    `LabelledImages`, `MaskedImages`, `AnnotatedImages`, `Scores`, `Classes`, `NumClasses`, `Block`
    or `Grid` of `engine`. The names of the parameters are free. For a model, the function gets
    features, a callable from images to `{layer: tensor}`. It gets images as the model expects them.

    Args:
        kind: the layers that the measurement uses, as for `features_of`.
        any_size: whether images keep their own size instead of being resized to the model's size.
        keep_order: whether images keep the order in which they are given, for results with a row
            for each image. Others read folders, lists and arrays in a random order with a seed.
        **kinds: for parameters that are models with another kind of layers: the name of the
            parameter, with this kind as the value.

    Returns:
        A decorator. The decorated function has the attributes `kind` and `declaration`.

    Raises:
        ValueError: if no parameter of the function is declared as a model, or if `kinds` names a
            parameter that is not a model.

    Examples:
        @engine.measurement()
        def largest_activation(model: engine.Model, photos: engine.Images) -> xr.DataArray:
            ...
    """

    def decorate(function: Callable[Parameters, Result]) -> Callable[Parameters, Result]:
        declaration = _declare(function, kind, any_size, keep_order, kinds)
        return _prepared(function, declaration, function)

    return decorate


def one_pass_measurement(
    kind: str = "representations",
    *,
    description: str | None = None,
    num_tokens: Callable[..., int] | None = None,
    keep_order: bool = False,
    **kinds: str,
) -> Callable[[Callable[Parameters, Statistic[Result]]], Callable[Parameters, Result]]:
    """Returns a decorator for a measurement that is one pass of one statistic over images.

    The decorated function has the parameters of the measurement, declared as for `measurement`, and
    returns a `Statistic`. When the measurement is called, its images are streamed through this
    statistic, and the function gets None in place of the images. The step of the statistic gets the
    taps of the models, in the order of the models.

    Args:
        kind, keep_order, **kinds: as for `measurement`.
        description: text of the progress bar; by default, the name of the measurement.
        num_tokens: function that takes the arguments of a step except the images, and returns the
            number of tokens. If it is given, the function always gets a complete `TokenGrid` for
            its `Grid`: a grid of (rows, columns) is completed by means of the first batch.

    Returns:
        A decorator. The resulting measurement has the attribute `statistic`. This is the function
        without the parameter for images, which returns a `Statistic` for `one_pass`. The
        `Statistic` is created once for each model and each set of options.

    Raises:
        ValueError: in the same cases as `measurement`, and if not exactly one parameter is declared
            as images.

    Examples:
        @engine.one_pass_measurement()
        def mean_activation(model: engine.Model, images: engine.Images) -> engine.Statistic:
            ...
            return engine.Statistic(step, finish)
    """

    def decorate(make: Callable[Parameters, Statistic[Result]]) -> Callable[Parameters, Result]:
        declaration = _declare(make, kind, False, keep_order, kinds)
        roles = declaration.roles
        if len(roles.images) != 1:
            raise ValueError(
                f"Expected one parameter of {make.__name__} whose type is engine.Images. "
                f"Received: {len(roles.images)}"
            )
        (images_name,) = roles.images
        statistic = _statistic_maker(make, roles, num_tokens)
        text = description or make.__name__.replace("_", " ")

        def evaluate_statistic(*args: Any, **options: Any) -> Any:
            try:
                given = inspect.signature(make).bind(*args, **options).arguments
            except TypeError:
                return make(*args, **options)  # raises the error with the function's own name
            images = given.pop(images_name, None)
            models = [given[name] for name in roles.models if given.get(name) is not None]
            if roles.several_models:
                models += given.get(roles.several_models, {}).values()
            return evaluate(statistic(**given), images, *models, description=text)

        measure = _prepared(make, declaration, evaluate_statistic)
        measure.statistic = statistic
        return measure

    return decorate


def _declare(
    function: Callable, kind: str, any_size: bool, keep_order: bool, kinds: Mapping[str, str]
) -> Declaration:
    """The declaration of a measurement, checked."""
    roles = roles_of(function)
    if unknown := set(kinds) - set(roles.models):
        raise ValueError(
            f"Expected kinds of the models of {function.__name__}, {', '.join(roles.models)}. "
            f"Received: {', '.join(sorted(unknown))}"
        )
    pairs = tuple(kinds.items())
    return Declaration(function.__name__, kind, pairs, roles, any_size, keep_order)


def _prepared(
    function: Callable[Parameters, Any], declaration: Declaration, run: Callable[..., Result]
) -> Callable[Parameters, Result]:
    """The function that a user calls: it prepares its arguments and calls `run` with them.

    It has the name, the docstring and the parameters of `function`, and also takes `layers=` and
    `detail=`.
    """

    @functools.wraps(function)
    def measure(
        *args: Any, layers: str | Sequence[str] | None = None, detail: Detail = None, **kwargs: Any
    ) -> Result:
        if tf.inside_function():
            raise ValueError(
                f"Expected {function.__name__} to be called outside of a tf.function, as it "
                "iterates over images and returns arrays. Received: a call inside of one"
            )
        # Each call computes the signature: `fingerprint` would include one in the closure in keys.
        signature = inspect.signature(function)
        if declaration.roles.labelled:
            args = _pair_labels(args)
        try:
            given = signature.bind_partial(*args, **kwargs)
        except TypeError:
            known = [*signature.parameters, "layers", "detail"]
            if error := argument_error(function.__name__, kwargs, known):
                raise error from None
            return function(*args, **kwargs)  # raises it in its own name
        _prepare(given.arguments, declaration, layers, detail)
        return run(*given.args, **given.kwargs)

    prepared = cast(Any, measure)  # the type of functions declares no attributes
    prepared.__signature__ = _with_layer_arguments(inspect.signature(function))
    prepared.kind, prepared.declaration = declaration.kind, declaration
    return prepared


def _pair_labels(args: Sequence[Any]) -> tuple[Any, ...]:
    """Positional arguments in which images and the labels after them are one pair.

    `head_ablation(model, x, y)` thus is `head_ablation(model, (x, y))`, as Keras takes them.
    """
    paired: list[Any] = []
    for value in args:
        before = paired[-1] if paired else None
        follows_images = not isinstance(before, tuple) and np.ndim(_values(before)) >= 3
        labels = _values(value)
        is_labels = isinstance(labels, np.ndarray) and labels.dtype.kind in "iu"
        if follows_images and is_labels and np.ndim(labels) in (1, 2):
            paired[-1] = (before, value)
        else:
            paired.append(value)
    return tuple(paired)


def _values(argument: Any) -> Any:
    """A tensor, or a list of numbers, as an array; anything else as it is."""
    if tf.is_tensor(argument):
        return argument.numpy()
    is_list = isinstance(argument, list) and argument and isinstance(argument[0], int | np.integer)
    return np.asarray(argument) if is_list else argument


def _statistic_maker(
    make: Callable[..., Statistic[Result]],
    roles: Roles,
    num_tokens: Callable[..., int] | None,
) -> Callable[..., Statistic[Result]]:
    """A function from all arguments of a measurement except the images to its `Statistic`."""
    (images_name,) = roles.images
    first_model = roles.models[0] if roles.models else roles.several_models

    @functools.wraps(make)
    def statistic(*args: Any, **options: Any) -> Statistic[Result]:
        given = _without(inspect.signature(make), images_name).bind(*args, **options)
        arguments = given.arguments | {images_name: None}
        if num_tokens is None or roles.grid is None or first_model is None:
            return make(**arguments)
        grid_name = roles.grid

        def made_on(grid: TokenGrid) -> Statistic[Result]:
            return make(**arguments | {grid_name: grid})

        features = cast(Features, arguments[first_model])
        return on_grid(features, arguments.get(grid_name), made_on, num_tokens)

    cast(Any, statistic).__signature__ = _without(inspect.signature(make), images_name)
    return reusable(statistic)


def _without(signature: inspect.Signature, name: str) -> inspect.Signature:
    """A signature without one of its parameters."""
    parameters = signature.parameters.values()
    return signature.replace(parameters=[p for p in parameters if p.name != name])


def statistic_of(measure: Callable) -> Callable[[Callable], Callable]:
    """Decorates the function that makes the `Statistic` of a measurement: `measure.statistic`."""

    def decorate(function: Callable) -> Callable:
        statistic = reusable(function)
        measure.statistic, statistic.measurement = statistic, measure.__name__
        return statistic

    return decorate


def _with_layer_arguments(signature: inspect.Signature) -> inspect.Signature:
    """A signature with the keywords `layers` and `detail` that every measurement takes."""
    added = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (
            ("layers", "str | Sequence[str] | None"),
            ("detail", "str | int | None"),
        )
    ]
    parameters = [*signature.parameters.values()]
    end = -1 if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else len(parameters)
    parameters[end:end] = added
    return signature.replace(parameters=parameters)


def _prepare(
    given: Arguments,
    declaration: Declaration,
    layers: str | Sequence[str] | None,
    detail: Detail,
) -> None:
    """Replaces models and images in `given` by features and prepared images, and adds defaults."""
    roles = declaration.roles
    for name in roles.images:
        if isinstance(given.get(name), keras.Model):
            raise ValueError(
                "Expected images; a second model comes after them: cka(model, images, other). "
                f"Received: {name}={given[name].name!r}, a model"
            )
    model_names = [name for name in roles.models if given.get(name) is not None]
    # Arguments that hold computed activations, {layer: array}, in place of a model.
    activation_names = [name for name in model_names if isinstance(given[name], Mapping)]
    if activation_names:
        _replace_activations(given, model_names, declaration)
    names = [name for name in model_names if name not in activation_names]
    models = _features_of_models(given, names, declaration, layers, detail)
    if not models and not activation_names:
        return  # the measurement itself raises that its model is missing
    if not activation_names:
        models = _prepare_images(given, models, declaration)
    scored = _scored_models(models, declaration)
    if roles.scores:
        _read_scores(given, models, declaration, scored)
    given |= {name: features for (name, label), features in models.items() if label is None}
    if roles.several_models in given:
        given[roles.several_models] = {
            label: features for (_, label), features in models.items() if label is not None
        }
    _complete(given, scored[0] if scored else None, next(iter(models.values()), None), roles)
    for name in roles.images:
        if given.get(name) is not None and not isinstance(given[name], tf.data.Dataset):
            given[name] = batch_arrays(given[name], declaration.batch_rule)


def _read_scores(
    given: Arguments, models: FeaturesByArgument, declaration: Declaration, scored: Sequence[str]
) -> None:
    """Makes models return their class scores, and names the layer of the first one's in `given`."""
    roles = declaration.roles
    parameter = cast(str, roles.scores)
    requested = given.get(parameter)
    images = next((given[name] for name in roles.images if name in given), None)
    show = None if images is None else partial(first_batch, images)
    for name in reversed(scored):  # the measurement gets the name of the first one's scores
        features = models[name, None]
        models[name, None] = keep(
            features, ("class scores", requested), partial(features.read_scores, requested, show)
        )
        scores = models[name, None].facts.scores
        given |= {parameter: scores.layer} if scores else {}


def _scored_models(models: FeaturesByArgument, declaration: Declaration) -> list[str]:
    """The parameters of models whose scores are read: those whose kind has scores, else all."""
    kinds = dict(declaration.kinds)
    names = [name for name, label in models if label is None]
    kind_of = {name: KINDS[kinds.get(name, declaration.kind)] for name in names}
    return [name for name in names if kind_of[name].with_scores] or names


def _features_of_models(
    given: Arguments,
    model_names: Sequence[str],
    declaration: Declaration,
    layers: str | Sequence[str] | None,
    detail: Detail,
) -> FeaturesByArgument:
    """The features of the models among the arguments."""
    roles, kinds = declaration.roles, dict(declaration.kinds)
    sizes = [size_of_floats(given[name]) for name in roles.images if given.get(name) is not None]
    size = sizes[0] if len({*sizes}) == 1 else None
    models: FeaturesByArgument = {}
    for name in model_names:
        kind = kinds.get(name, declaration.kind)
        # If models differ in their kinds, `detail` is for those whose kind has subsets of layers.
        own_detail = detail if KINDS[kind].is_detailed or not kinds else None
        block = roles.value(roles.block, given) or "block00"
        models[name, None] = _read_model(given[name], kind, layers, block, own_detail, size)
    if roles.several_models in given:
        for label, model in name_models(given[roles.several_models]).items():
            models[roles.several_models, label] = _read_model(
                model, declaration.kind, layers, "block00", detail, size
            )
    return models


def _read_model(
    model: ModelLike,
    kind: str,
    layers: LayerSelection,
    block: str,
    detail: Detail,
    size: tuple[int, int] | None,
) -> Features:
    """The layers that a measurement reads, kept with the model for its next call.

    `size` is that of the images, where a PyTorch module takes them as they are.
    """
    if isinstance(model, str | os.PathLike) and "*" not in os.fspath(model):
        model = vit_tf.load(model)
    patterns = None if layers is None else tuple(as_patterns([layers]))

    def select() -> Features:
        # Measurements of other kinds of layers are made of the same trace of the model.
        own_size = size if is_torch_module(model) else None
        whole = keep(model, ("features",), partial(as_features, model, own_size))
        return select_features(whole, kind, patterns, block, detail)

    return keep(model, ("layers", kind, patterns, block, detail), select)


def _prepare_images(
    given: Arguments, models: FeaturesByArgument, declaration: Declaration
) -> FeaturesByArgument:
    """Replaces images in `given` by prepared ones, and returns the features to use with them.

    If models differ in their preprocessing, the returned features all take the same images.
    """
    roles = declaration.roles
    data = {name: given[name] for name in roles.images if name in given}
    preprocessing: Any = None
    if any(is_raw(images) for images in data.values()):
        models, preprocessing = with_own_preprocessing(models, data.values())
    if declaration.any_size and preprocessing:
        preprocessing = replace(preprocessing.squeezed(), size=None)
    shapes = {features.facts.input_shape or () for features in models.values()}
    shapes = {shape for shape in shapes if len(shape) in (3, 4)}
    for name, images in data.items():
        for shape in shapes:
            images = with_channel_axis(images, shape[1:])
        # Images with masks are not cropped, so that the masks still apply.
        is_masked = preprocessing and name in roles.masked
        expected = preprocessing.squeezed() if is_masked else preprocessing
        given[name] = as_images(images, expected, declaration.batch_rule)
        if name in roles.labelled:
            num_classes = given.get(roles.num_classes) if roles.num_classes else None
            require_labelled(name, given[name], num_classes)
    return models


def _complete(given: Arguments, scored: str | None, first: Features | None, roles: Roles) -> None:
    """Adds the number of classes, the tap of the scores and the classes that are not given."""
    if roles.num_classes and given.get(roles.num_classes) is None:
        given[roles.num_classes] = _num_classes(first, [given.get(n) for n in roles.labelled])
    images = next((given[name] for name in roles.images if name in given), None)
    # The features of the model whose scores are read.
    features: Any = first if scored is None else given[scored]
    if roles.scores:
        scores = roles.value(roles.scores, given) or "logits"
        for name in roles.labelled:
            if getattr(given.get(name), "class_names", None):
                own = features.facts.class_names or None
                num_classes = num_scored_classes(features, given[name], scores)
                require_classes_of(own, num_classes, given[name])
    if roles.classes and images is not None:
        scores = roles.value(roles.scores, given) or "logits"
        given[roles.classes] = class_positions(features, images, given.get(roles.classes), scores)


def require_labelled(name: str, images: LabelledImages, num_classes: int | None = None) -> None:
    """Raises a `ValueError` for images without labels, or with what are no labels."""
    if isinstance(images, tf.data.Dataset):
        spec = images.element_spec
        # Folders without classes, and lists of files, have labels of -1 and no names.
        if isinstance(spec, tuple) and getattr(images, "class_names", None) != ():
            _require_pairs(name, spec)
            require_label_type(spec[1], num_classes, name)
            return
    elif isinstance(images, tuple) and len(images) > 1:
        _require_pairs(name, images)
        require_labels(np.asarray(images[1]), num_classes, name, count=len(images[0]))
        return
    raise ValueError(
        f"Expected {name} to be images with labels: a pair of arrays (images, labels), a "
        "tf.data.Dataset of such pairs, or a folder with a folder of images for each class. "
        "Received: images without labels"
    )


def _require_pairs(name: str, parts: Sequence[Any]) -> None:
    """Raises a `ValueError` for more than images and labels, arrays or their specs."""
    if len(parts) > 2:
        others = ", ".join(f"{part.dtype} of shape {part.shape}" for part in parts[2:])
        raise ValueError(
            f"Expected {name} to be (images, labels), or (images, labels, weights) with a weight "
            f"for each image, which measurements leave out. Received: {len(parts)} parts, after "
            f"images and labels {others}"
        )


def _replace_activations(
    given: Arguments, model_names: Sequence[str], declaration: Declaration
) -> None:
    """Replaces activations in `given` by features, and images by what these features take.

    The rows of all activations, side by side, take the place of the images, and the features of a
    model return its columns of these rows.
    """
    roles = declaration.roles
    # Labels of the activations, an array of shape (example,), are passed in place of images.
    labels = given.get(roles.images[0]) if len(roles.images) == 1 else None
    has_images = isinstance(labels, tuple) or (labels is not None and np.ndim(labels) != 1)
    if has_images and len(roles.models) > 1:
        raise ValueError(
            f"Expected no images with activations: {declaration.name}({{name: array}}), or "
            f"{declaration.name}({{name: array}}, {roles.models[1]}={{name: array}}). "
            f"Received: {roles.images[0]}={type(labels).__name__}"
        )
    if has_images or len(roles.images) != 1:
        require_model(given[model_names[0]])  # raises for activations, with advice
    rows, features = features_from_arrays(*(given[name] for name in model_names))
    given.update(zip(model_names, features, strict=True))
    given[roles.images[0]] = rows if labels is None else (rows, np.asarray(labels))


def _num_classes(features: Features | None, datasets: Sequence[Any]) -> int:
    """The number of classes: that of the labels, of the data set or of the model."""
    datasets = [dataset for dataset in datasets if dataset is not None]
    arrays = [np.asarray(dataset[1]) for dataset in datasets if isinstance(dataset, tuple)]
    if arrays:
        return count_classes(np.concatenate(arrays))
    for dataset in datasets:
        if names := getattr(dataset, "class_names", None):
            require_classes(len(names))
            return len(names)
    if features is not None and features.facts.num_classes:
        return features.facts.num_classes
    labels = [np.asarray(batch[1]) for dataset in datasets for batch in explained_batches(dataset)]
    return count_classes(np.concatenate(labels))
