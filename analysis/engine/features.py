"""Features: what a measurement reads of a model, of other features, or of activations at hand.

A measurement is written for a callable from images to `{layer: tensor}` and for batches of images
as a model takes them. `measurement` decorates it so that it takes any model and any images.
"""

import functools
import inspect
import math
import os
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import vit_tf
from vit_tf.backend import require_tensorflow
from vit_tf.batches import explained_batches
from vit_tf.data.any_images import as_images, is_raw, with_channel_axis
from vit_tf.data.labels import (
    count_classes,
    require_classes,
    require_label_type,
    require_labels,
)
from vit_tf.models.class_names import find_class_names
from vit_tf.names import as_patterns, format_list, join_words, match, unknown_name
from vit_tf.preprocessing import (
    JointPreprocessing,
    Preprocessing,
    innermost_features,
    require_images,
    require_images_of,
)
from vit_tf.taps import recorder
from vit_tf.taps.scores import (
    LOG_ODDS,
    LOGITS,
    ClassScores,
    are_distributions,
    before_activation,
    find_scores,
)
from vit_tf.taps.submodels import TapModel, describe_taps, with_class_scores
from vit_tf.tokens import TokenGrid
from vit_tf.torch_models import is_torch_module

from .layers import KINDS, Detail, grid_of_shapes, layers_of, warn_of_missed_blocks
from .results import model_name
from .traces import keep, reusable

Path = str | os.PathLike
# A model, its path or bundled name, a function from images to layers, or activations by layer.
Model = keras.Model | Path | Callable | Mapping[str, np.ndarray]
# An array, paths, PIL images or a list of these, a folder, or a data set.
Images = np.ndarray | tf.Tensor | tf.data.Dataset | Path | Sequence
# A data set, a tuple of arrays, or a folder of class folders.
LabelledImages = tf.data.Dataset | tuple | Path
# From images to the tensors of layers.
Features = Callable[[tf.Tensor], Mapping[str, tf.Tensor]]
Grid = TokenGrid | tuple[int, int]
Classes = int | str | Sequence[int | str]


EXPECTED = "Expected features to be a callable from images to {tap: tensor}"
HOW = ", such as vit_tf.submodel(model, 'block*')"


def taps_of(features, images):
    """The taps of features for a batch of images, without those that have no example axis."""
    require_features(features, images)
    taps = _call(features, images)
    if not isinstance(taps, Mapping) or not taps:
        name = getattr(features, "name", None) or getattr(features, "__name__", repr(features))
        kind = "a tensor" if tf.is_tensor(taps) else f"{type(taps).__name__}"
        raise ValueError(f"{EXPECTED}{HOW}. Received: {name!r}, which returns {kind}")
    with_examples = example_taps(taps, images)
    if not with_examples:
        raise ValueError(f"Expected taps with an example axis. Received: {format_list(taps)}")
    return with_examples


def _call(features, images):
    """The answer of features; a NumPy function, which fails when traced, runs eagerly."""
    own = type(features).__module__.split(".")[0] in ("vit_tf", "keras", "tensorflow")
    eager = getattr(features, "eager", False)
    if own and not eager:
        return recorder.infer(features, images)
    try:
        if eager:
            raise NotImplementedError
        taps = recorder.infer(features, images)
        if not isinstance(taps, Mapping) or all(map(tf.is_tensor, taps.values())):
            return taps
    except Exception as error:  # a library may raise anything for a symbolic tensor
        traced = error
    else:
        traced = None
    if tf.executing_eagerly():
        return {n: tf.constant(x) for n, x in _arrays(features, np.asarray(images))[0].items()}
    with tf.init_scope():
        sizes = [2, *(size or 1 for size in images.shape[1:])]
        try:
            example, argument = _arrays(features, np.zeros(sizes, images.dtype.as_numpy_dtype))
        except Exception as error:
            if traced is None:
                raise
            raise traced from error  # that of arrays, which explains a function of these
    names = list(example)
    values = tf.numpy_function(
        lambda batch: [_arrays(features, batch, argument)[0][name] for name in names],
        [images],
        [tf.as_dtype(example[name].dtype) for name in names],
    )
    for value, name in zip(values, names, strict=True):
        value.set_shape((images.shape[0], *example[name].shape[1:]))
    return dict(zip(names, values, strict=True))


def _arrays(features, images, arguments=(np.asarray, tf.constant)):
    """What a function returns for an array, as arrays, and the kind of argument that it takes."""
    first = None
    for argument in arguments:
        try:
            taps = recorder.infer(features, argument(images))
            break
        except Exception as error:
            if argument is arguments[-1]:
                raise error from first
            first = error
    if not isinstance(taps, Mapping):
        raise TypeError(f"{EXPECTED}. Received: one that returns {type(taps).__name__}")
    return {name: _array(value) for name, value in taps.items()}, (argument,)


def _array(value):
    """A tensor of any library as an array."""
    value = value.detach().cpu() if hasattr(value, "detach") else value
    return np.ascontiguousarray(value)


def example_taps(taps, images):
    """The taps that have an example axis; a warning names others, such as a position embedding."""
    sizes = {tap: tf.TensorShape(x.shape) for tap, x in taps.items()}
    known = (None, images.shape[0])  # the number of examples may not be known yet
    ranks = {tap: shape.rank for tap, shape in sizes.items() if shape.rank is not None}
    without = [tap for tap, rank in ranks.items() if not rank or sizes[tap][0] not in known]
    if not without:
        return taps
    warnings.warn(
        f"Taps without an example axis are left out: {format_list(without)}", stacklevel=2
    )
    return {tap: x for tap, x in taps.items() if tap not in without}


def require_features(features, images):
    """Raises a `ValueError` for what `taps_of` refuses before it calls the features."""
    require_tensorflow("measurements")
    require_model(features)
    shape = getattr(features, "input_shape", None)
    if isinstance(shape, tuple):
        require_images(images.shape, shape)


def require_model(model):
    """Raises a `ValueError` for what no measurement can be made of."""
    if not callable(model):
        raise ValueError(f"{EXPECTED}{HOW}. Received: {_described(model)}")


def _described(features):
    if isinstance(features, Mapping):
        return "a dict; activations at hand are compared by cka({name: array})"
    if hasattr(features, "shape"):
        return (
            f"an array of shape {tuple(features.shape)}; activations at hand are compared by "
            "cka({name: array})"
        )
    if isinstance(features, list | tuple) and any(map(callable, features)):
        return (
            f"{len(features)} models; a measurement takes one, and cka(model, images, other) and "
            "last_layer_cka({name: model}, images) compare several"
        )
    return repr(features)


def class_gradients(features, images, classes, scores, sources):
    """Gradients of class scores, separately for each class and image.

    The images are repeated, so that one backward pass serves all classes. `sources` is a function
    of the repeated images and their taps to a dict of the tensors with respect to which gradients
    are taken. Returns a dict of pairs of the tensor and its gradient, of shape (example, class,
    ...).
    """
    count = len(classes)
    repeated = tf.repeat(tf.cast(images, tf.float32), count, axis=0)
    with tf.GradientTape(watch_accessed_variables=False) as tape:
        tape.watch(repeated)
        taps = taps_of(features, repeated)
        own = tf.one_hot(classes, require_scores(taps, scores, classes))
        target = tf.reduce_sum(
            tf.cast(taps[scores], tf.float32) * tf.tile(own, (tf.shape(images)[0], 1))
        )
    tensors = sources(repeated, taps)
    gradients = dict(zip(tensors, tape.gradient(target, list(tensors.values())), strict=True))
    if missing := [name for name, gradient in gradients.items() if gradient is None]:
        raise ValueError(
            f"Expected features that compute {scores!r} from the taps whose gradients are taken, "
            f"such as a submodel; a SavedModel does not provide these gradients. Received: "
            f"{format_list(missing)}"
        )

    def apart(x):
        return tf.reshape(x, tf.concat([[-1, count], tf.shape(x)[1:]], axis=0))

    return {name: (apart(tensors[name]), apart(gradients[name])) for name in tensors}


def require_scores(taps, scores, classes):
    """The number of classes of a tap of scores; a `ValueError` if one of `classes` is not there."""
    shape = tuple(taps[scores].shape) if scores in taps else ()
    if len(shape) != 2:
        raise ValueError(
            "Expected scores to be a tap of shape (example, class). "
            f"Received: scores={scores!r} of shape {shape}, taps {format_list(list(taps))}"
        )
    classes = list(classes)
    if not classes or not all(
        isinstance(position, int | np.integer) and 0 <= position < shape[1] for position in classes
    ):
        raise ValueError(
            f"Expected classes to be integers from 0 to {shape[1] - 1}. Received: {classes}"
        )
    return shape[1]


def of_arrays(*activations):
    """Rows (example, number) of given activations, and a callable to the columns of each."""
    columns, features = [], []
    for layers in activations:
        if not isinstance(layers, Mapping) or not layers:
            raise ValueError(
                "Expected activations to be {name: array of shape (example, ...)}. "
                f"Received: {type(layers).__name__}"
            )
        arrays = {layer: np.asarray(values, np.float32) for layer, values in layers.items()}
        if any(values.ndim == 0 for values in arrays.values()):
            raise ValueError("Expected arrays of shape (example, ...). Received: a single number")
        first = sum(column.shape[1] for column in columns)
        columns += [values.reshape(len(values), -1) for values in arrays.values()]
        shapes = {layer: values.shape[1:] for layer, values in arrays.items()}
        features.append(_Columns(shapes, first))
    sizes = sorted({len(column) for column in columns})
    if len(sizes) > 1:
        raise ValueError(
            f"Expected activations of the same examples. Received: arrays of {sizes} examples"
        )
    return np.concatenate(columns, axis=1), *features


class _Columns:
    """Features that are some columns of the rows of `of_arrays`."""

    name = "activations"

    def __init__(self, shapes, first):
        self._shapes, self._first = shapes, first
        self._sizes = [math.prod(shape) for shape in shapes.values()]

    def __call__(self, rows):
        mine = rows[:, self._first : self._first + sum(self._sizes)]
        parts = zip(self._shapes.items(), tf.split(mine, self._sizes, axis=1), strict=True)
        return {layer: tf.reshape(part, (-1, *shape)) for (layer, shape), part in parts}


class Derived:
    """Features computed from the taps of others, which `one_pass` calls once for all."""

    def __init__(self, features, compute, token_grid):
        self.name = model_name(features)
        self.token_grid = token_grid
        self.features = features
        self.compute = compute

    def __call__(self, images):
        return self.compute(self.features(images))


def choose(features, names):
    """Selects taps of `features`, in the order of `names`.

    Statistics of different taps of one model can thus share its forward pass.

    Args:
        features: callable from images to `{tap: tensor}`.
        names: names of taps.

    Returns:
        Callable from images to `{tap: tensor}`, with the name and `token_grid` of the features.

    Raises:
        ValueError: when called, for names that the features do not have.
    """
    names = tuple(names)
    grid = getattr(features, "token_grid", None)
    return Derived(features, lambda taps: select(taps, names), grid)


def select(taps, names):
    """The entries of a dict of taps that are named, in the order of the names."""
    for name in names:
        if name not in taps:
            raise ValueError(f"Expected a tap {name!r}. Received: {format_list(taps)}")
    return {name: taps[name] for name in names}


class Calls:
    """The taps of each features callable for one batch, computed when first asked for."""

    def __init__(self, images):
        self._images = images
        self._made = {}

    def __call__(self, features):
        key = id(features)
        if key not in self._made:
            derived = isinstance(features, Derived)
            self._made[key] = (
                features.compute(self(features.features))
                if derived
                else taps_of(features, self._images)
            )
        return self._made[key]


PRIME = 2**31 - 1


def gaussian_like(features, seed=0, vectors=False):
    """Gaussian noise with the shapes of the given features.

    Every value is drawn from a normal distribution of mean 0 and variance 1, independently across
    examples, taps, tokens and channels (Walmer et al. 2023, section B.3). The noise of an image is
    a function of its values and of the seed, so that batches, order and repetition do not matter;
    equal images have equal noise. As a baseline for attention weights, use a randomly initialized
    model instead.

    Args:
        features: callable from images to `{tap: tensor}`, which is traced for the shapes, not run.
        seed: seed of the noise.
        vectors: whether each tap is one vector (example, channel) of noise. So is the mean of
            tokens of noise, but for its scale, and vectors cost much less.

    Returns:
        Callable from images to `{tap: float32 tensor}`, with the `token_grid` of the features.

    Raises:
        ValueError: when called, for a tap whose shape is not static apart from the example axis.
    """
    return _Noise(features, seed, vectors)


class _Noise:
    """The callable of `gaussian_like`."""

    def __init__(self, features, seed, vectors):
        self.name = f"{model_name(features)} as noise"
        self.token_grid = getattr(features, "token_grid", None)
        self.features, self._seed, self._vectors = features, seed, vectors

    def __call__(self, images):
        images = tf.convert_to_tensor(images)
        shapes = _shapes(self.features, images)
        if self._vectors:
            shapes = {tap: shape[-1:] for tap, shape in shapes.items()}
        size = 2 * int(np.prod(images.shape[1:]))
        factors = np.random.default_rng(self._seed).integers(1, PRIME, (size, 2))

        def noise(image):
            key = content_key(image, factors)
            return {
                tap: tf.random.stateless_normal(
                    shape, tf.random.experimental.stateless_fold_in(key, number)
                )
                for number, (tap, shape) in enumerate(shapes.items())
            }

        spec = {tap: tf.TensorSpec(shape, tf.float32) for tap, shape in shapes.items()}
        return tf.map_fn(noise, images, fn_output_signature=spec)


def content_key(image, factors):
    """A hash of an image's values, int64 of shape (2,); images collide in one of 2^62 draws of
    `factors`.

        key = sum over the 16-bit halves of the values of half * factor, modulo a prime

    with factors of shape (2 * height * width * channel, 2), from 1 to `PRIME` - 1.
    """
    values = tf.cast(image, tf.float32) + 0.0  # -0 and 0 are equal
    halves = tf.reshape(tf.cast(tf.bitcast(values, tf.uint16), tf.int64), (-1, 1))
    terms = tf.math.floormod(halves * tf.constant(factors, tf.int64), PRIME)
    return tf.math.floormod(tf.reduce_sum(terms, axis=0), PRIME)


def _shapes(features, images):
    """Shapes of the taps without their example axis: dict from tap to tuple."""
    symbolic = getattr(features, "output", None)
    if isinstance(symbolic, Mapping) and all(len(x.shape) > 1 for x in symbolic.values()):
        shapes = {tap: tuple(x.shape) for tap, x in symbolic.items()}
        if all(shape[0] is None and None not in shape[1:] for shape in shapes.values()):
            require_images_of(features, images)
            return {tap: shape[1:] for tap, shape in shapes.items()}  # without tracing anything
    spec = tf.TensorSpec([None, *images.shape[1:]], images.dtype)
    traced = tf.function(
        lambda images: taps_of(features, images), input_signature=[spec], autograph=False
    )
    taps = traced.get_concrete_function().structured_outputs
    shapes = {tap: tuple(x.shape[1:]) for tap, x in taps.items()}
    unknown = [tap for tap, shape in shapes.items() if None in shape]
    if unknown:
        raise ValueError(
            "Expected taps of known shapes, to fill them with noise. "
            f"Received: {format_list(unknown)}"
        )
    return shapes


class Normalised:
    """Features of a model that expects other values than [-1, 1], for images in [-1, 1]."""

    def __init__(self, features, preprocessing):
        self.name, self.token_grid = model_name(features), getattr(features, "token_grid", None)
        self._features = features
        mean, std = np.array(preprocessing.mean), np.array(preprocessing.std)
        self._scale, self._shift = np.float32(0.5 / std), np.float32((0.5 - mean) / std)
        self._turned = preprocessing.channel_order == "bgr"
        if hasattr(features, "segments"):
            self.segments, self.taps, self.output = self._segments, features.taps, features.output
        if hasattr(features, "run_interventions"):  # of a PyTorch module
            self.taps, self.output, self.after = features.taps, features.output, features.after
            self.run_interventions, self.scores = self._run_interventions, features.scores

    def __call__(self, images):
        return self._features(self.prepared(images))

    def _run_interventions(self, interventions, tap, images):
        return self._features.run_interventions(interventions, tap, self.prepared(images))

    def _segments(self):
        """Those of the features, of which the first takes images in [-1, 1]."""
        first, *others = self._features.segments()
        return [first.prepared_by(self.prepared), *others]

    def prepared(self, images):
        """Images in [-1, 1] as the model expects them."""
        images = images[..., ::-1] if self._turned else images
        return images * self._scale + self._shift


class _OwnImages:
    """Features of a model for the rows of a `JointPreprocessing`, which hold its images."""

    def __init__(self, features: Features, joint: JointPreprocessing, place: int):
        self.name, self.token_grid = model_name(features), getattr(features, "token_grid", None)
        self._features, self._shape = features, joint.shapes[place]
        self._start = sum(map(math.prod, joint.shapes[:place]))
        self.image_size = self._shape[:2]

    def __call__(self, rows: tf.Tensor) -> dict[str, tf.Tensor]:
        own = rows[:, self._start : self._start + math.prod(self._shape)]
        return taps_of(self._features, tf.reshape(own, (-1, *self._shape)))


MODELS = ("features", "features_x", "features_y", "features_vit", "features_other", "source")
IMAGES = ("images", "train", "test", "queries", "database")
LABELLED = ("train", "test")
MAX_CLASSES = 5  # that are explained where none are given
ONE_SCORE = (
    "Expected scores of two classes or more, or a model that ends in one sigmoid, the probability "
    "of the second of two classes. Received: scores {}"
)
FEW = 8  # images on which a function shows whether it returns probabilities


def features_of(
    model: Model,
    kind: str = "representations",
    layers: str | Sequence[str] | None = None,
    block: str = "block00",
    detail: Detail = None,
) -> Callable:
    """The features of a model for a measurement: a callable from images to `{layer: tensor}`.

    For a whole model these are the layers of `kind`; a submodel, a SavedModel and a function are
    used with all of their outputs, unless `layers` selects some.

    Args:
        model: a built Keras model of one input, this package's or another; a submodel or a
            SavedModel; the path of one of these or the name of a pretrained model, as `vit_tf.load`
            opens them; or a function from images to `{layer: tensor}`; one that returns NumPy
            arrays is run eagerly.
        kind: `"representations"`, the layers of `vit_tf.submodel(model)`, `"attention"`, `"skips"`,
            `"scores"` or another key of `engine.layers.KINDS`.
        layers: shell pattern, name, or list of them, instead of the layers of the kind.
        block: name of the block of the kind `"block_heads"`.
        detail: a subset of the layers of a whole model, a key of `engine.layers.DETAILS` such as
            `"blocks"` or `"sublayers"`; or how many of them, evenly spaced.

    Raises:
        ValueError: for an unsupported `model`, a model without layers of this kind, an unknown
            `detail`, or a pattern that matches no layer; near matches are listed.

    Examples:
        features = analysis.features_of("vit-cls-cifar10", layers="block*/mlp/sum")
    """
    return _features_of(model, kind, layers, block, detail, lambda owner, key, make: make())


def _features_of(
    model: Model,
    kind: str,
    layers: str | Sequence[str] | None,
    block: str,
    detail: Detail,
    keep: Callable[[Any, tuple, Callable], Any] = keep,
) -> Callable:
    """`features_of`, which a measurement keeps with the model for its next call."""
    if isinstance(model, str | os.PathLike) and "*" not in os.fspath(model):
        return _features_of(vit_tf.load(model), kind, layers, block, detail, keep)
    require_model(model)
    patterns = () if layers is None else as_patterns([layers])
    if patterns and detail is not None:
        raise ValueError(
            "Expected layers, which selects them by name, or detail, which selects a subset. "
            f"Received: layers={layers!r} and detail={detail!r}"
        )
    if isinstance(model, TapModel) and patterns:
        return keep(model, ("selected", *patterns), lambda: _selected(model, patterns))
    if is_torch_module(model):
        return _features_of_module(model, kind, patterns, block, detail)
    if not isinstance(model, keras.Model) or isinstance(model, TapModel):
        return _selected(model, patterns) if patterns else model
    key = "features", kind, tuple(patterns), block, detail
    return keep(model, key, lambda: _features_of_model(model, kind, patterns, block, detail))


def _features_of_model(
    model: keras.Model, kind: str, patterns: Sequence[str], block: str, detail: Detail
) -> TapModel:
    """The features of a whole Keras model, as `features_of` describes them."""
    described, what = describe_taps(model), KINDS[kind]
    scores = [find_scores(model).tap] if what.with_scores else []
    size, own = recorder.input_spec(model)[0][1:3], getattr(model, "token_grid", None)
    if patterns:
        features = vit_tf.submodel(described.source, *patterns, *scores)
        shapes = {tap: tuple(x.shape[1:]) for tap, x in features.output.items()}
        grid = own or grid_of_shapes([t for t in features.taps if t not in scores], shapes, size)
    else:
        shapes, graph = described.shapes, described.graph
        grid = own or grid_of_shapes(described.names, shapes, size, graph)
        chosen = layers_of(kind, described.names, shapes, graph, grid, detail=detail, block=block)
        if not chosen and kind != "scores":
            raise ValueError(
                f"Expected a model with {what.lacks}. Received: {model.name!r}, a "
                f"{type(model).__name__} in which they are not found; specify them with layers="
            )
        warn_of_missed_blocks(model.name, graph)
        features = vit_tf.submodel(described.source, *dict.fromkeys([*chosen, *scores]))
    features.token_grid = grid
    features.num_classes = getattr(model, "num_classes", None)
    features.class_names = find_class_names(model)
    return features


def _features_of_module(
    module: Any, kind: str, patterns: Sequence[str], block: str, detail: Detail
) -> Callable:
    """`features_of` of a PyTorch module."""
    from vit_tf.torch_models.taps import describe_module, pooled_tokens

    described, what = describe_module(module), KINDS[kind]
    shapes, graph, size = described.shapes, described.graph, described.image_shape[:2]
    scores = [graph.scores] if what.with_scores and graph.scores else []
    patch_size = described.patch_size  # of all tokens, not of those that a model merges
    grid = grid_of_shapes(graph.representations, shapes, size, patch_size=patch_size)
    chosen = []
    if not patterns:
        chosen = layers_of(kind, described.names, shapes, graph, grid, detail=detail, block=block)
        reads_attention = kind in ("attention", "class_attention", "rollout")
        in_windows = format_list(described.windows) if reads_attention else ""
        if (not chosen and kind != "scores") or (kind == "rollout" and in_windows):
            within = f"; it attends within windows in {in_windows}" if in_windows else ""
            raise ValueError(
                f"Expected a model with {what.lacks}. Received: {described.model.name}, a PyTorch "
                f"module in which they are not found; specify them with layers={within}"
            )
        if in_windows:
            warnings.warn(f"Attention within windows is left out: {in_windows}", stacklevel=4)
    features = described.features([*chosen, *scores], patterns, grid)
    if kind == "class_attention":
        features.pooled_tokens = pooled_tokens(described, grid)
    return features


def _selected(features, patterns):
    """The taps of a submodel or a function that fit patterns."""
    if isinstance(features, TapModel):
        return vit_tf.submodel(features, *patterns)
    if hasattr(features, "taps"):
        match(patterns, features.taps)
    return Selected(features, patterns)


class Selected:
    """The taps of a function that fit patterns."""

    def __init__(self, features, patterns):
        self.name, self.features = model_name(features), features
        self.token_grid = getattr(features, "token_grid", None)
        self._patterns = patterns

    def __call__(self, images):
        taps = taps_of(self.features, images)
        return {name: taps[name] for name in match(self._patterns, tuple(taps))}


def measurement(kind="representations", any_size=False, **kinds):
    """Decorates a measurement so that it takes any model and any images, and `layers=`.

    Args:
        kind: as for `features_of`.
        any_size: whether images keep their size, which is not that of the model.
        **kinds: the kind of an argument that is of another one.
    """

    def decorate(function):
        @functools.wraps(function)
        def measure(*args, layers=None, detail=None, **kwargs):
            if tf.inside_function():
                raise ValueError(
                    f"Expected {function.__name__} to be called outside of a tf.function: it makes "
                    "several passes over images, and returns arrays. Received: a call inside of one"
                )
            # Not kept in the closure, of which `fingerprint` makes a key.
            signature = inspect.signature(function)
            try:
                given = signature.bind_partial(*args, **kwargs)
            except TypeError:
                return function(*args, **kwargs)  # which raises it in its own name
            _prepare(given.arguments, signature.parameters, kind, kinds, layers, detail, any_size)
            return function(*given.args, **given.kwargs)

        chosen = [
            inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind_)
            for name, kind_ in (
                ("layers", "str | Sequence[str] | None"),
                ("detail", "str | int | None"),
            )
        ]
        signature = inspect.signature(function)
        parameters = [*signature.parameters.values()]
        end = -1 if parameters[-1].kind is inspect.Parameter.VAR_KEYWORD else len(parameters)
        parameters[end:end] = chosen
        measure.__signature__ = signature.replace(parameters=parameters)
        measure.kind = kind
        return measure

    return decorate


def statistic_of(measure):
    """Decorates the function that makes the `Statistic` of a measurement: `measure.statistic`."""

    def decorate(function):
        statistic = reusable(function)
        measure.statistic, statistic.measurement = statistic, measure.__name__
        return statistic

    return decorate


def _prepare(given, parameters, kind, kinds, layers, detail, any_size):
    """Replaces the arguments of a call by what the measurement is written for."""
    for name in IMAGES:
        if isinstance(given.get(name), keras.Model):
            raise ValueError(
                "Expected images; a second model comes after them: cka(model, images, other). "
                f"Received: {name}={given[name].name!r}, a model"
            )
    names = [name for name in MODELS if given.get(name) is not None]
    at_hand = [name for name in names if isinstance(given[name], Mapping)]
    if at_hand:
        _take_activations(given, names, parameters)
    models = {}
    for name in names:
        own_kind, block = kinds.get(name, kind), given.get("block", "block00")
        if name not in at_hand:
            # Of a kind that has no subsets, next to another that has, all layers are read.
            own_detail = detail if KINDS[own_kind].is_detailed or not kinds else None
            models[name] = _features_of(given[name], own_kind, layers, block, own_detail)
    if "models" in parameters and "models" in given:
        for name, model in _named(given["models"]):
            models["models", name] = features_of(model, kind, layers, detail=detail)
    if not models and not at_hand:
        return
    if "scores" in parameters:
        asked = given.get("scores")
        for name in reversed([name for name in models if name in given]):
            models[name], scores = _with_class_scores(given[name], models[name], asked)
            given |= {"scores": scores} if scores else {}
    data = {name: given[name] for name in IMAGES if name in given and not at_hand}
    if any(is_raw(images) for images in data.values()):
        models, expects = _with_own_images(models, data.values())
    else:
        expects = None
    if any_size and expects:
        expects = replace(expects.squeezed(), size=None)
    shapes = [getattr(innermost_features(f), "input_shape", ()) for f in models.values()]
    shapes = {shape for shape in shapes if isinstance(shape, tuple) and len(shape) in (3, 4)}
    for name, images in data.items():
        for shape in shapes:
            images = with_channel_axis(images, shape[1:])
        given[name] = as_images(images, expects)
        if name in LABELLED:
            require_labelled(name, given[name], given.get("num_classes"))
    for name, features in models.items():
        if not isinstance(name, tuple):
            given[name] = features
    if "models" in given:
        given["models"] = {name[1]: f for name, f in models.items() if isinstance(name, tuple)}
    first = next(iter(models.values()), None)
    if "num_classes" in parameters and given.get("num_classes") is None:
        given["num_classes"] = _num_classes(first, given)
    if "scores" in parameters and hasattr(first, "run_interventions"):  # of a PyTorch module
        given["scores"] = given.get("scores") or first.scores
    elif "scores" in parameters and "images" in given and not hasattr(first, "segments"):
        scores = given.get("scores", parameters["scores"].default)
        given["features"], given["scores"] = _scores_of_function(first, given["images"], scores)
        first = given["features"]
    if "classes" in parameters and "images" in given:
        given["classes"] = _classes(first, given)


def _with_class_scores(model, features, scores):
    """The features of a model whose scores, by default the last tap, are no probabilities."""
    if not isinstance(features, TapModel):
        return features, scores
    made, tap = features, scores or features.taps[-1]
    is_whole = isinstance(model, keras.Model) and not isinstance(model, TapModel)
    if tap in features.taps and is_whole:
        return features, tap
    if is_whole:
        # What a model returns has the name of its last layer, its scores may have another one.
        made = vit_tf.submodel(model, *features.taps[:-1], tap)
    if tap not in made.taps:
        return features, tap
    made, tap = keep(made, ("class scores", tap), functools.partial(with_class_scores, made, tap))
    for fact in ("token_grid", "num_classes", "class_names"):
        if hasattr(features, fact):
            setattr(made, fact, getattr(features, fact))
    return made, tap


def _scores_of_function(features, images, scores):
    """Features of a function whose scores, a tap that is named too, are no probabilities."""
    batch = images if not isinstance(images, tf.data.Dataset) else next(iter(images))
    batch = tf.cast((batch[0] if isinstance(batch, tuple) else batch)[:FEW], tf.float32)
    if getattr(features, "eager", False):
        return features, scores
    taps, activations = _call(features, batch), []
    values = taps.get(scores) if isinstance(taps, Mapping) else None
    if values is None or len(values.shape) != 2:
        return features, scores  # which is explained where the scores are read
    graph = tf.function(
        lambda images: activations.append(before_activation(taps_of(features, images)[scores])[0])
    )
    graph.get_concrete_function(batch)
    values, activation = np.asarray(values), activations[-1]
    if not activation:
        has_one = values.shape[1] == 1 and values.min() >= 0 and values.max() <= 1
        activation = "sigmoid" if has_one else "softmax" if are_distributions(values) else ""
        if not activation:
            return features, scores
        warnings.warn(
            f"{scores!r} of {model_name(features)!r} holds probabilities: gradients are "
            f"those of their logarithms. Return the scores before the {activation} instead",
            stacklevel=4,
        )
    is_binary = activation == "sigmoid" and values.shape[1] == 1
    tap = scores + (LOG_ODDS if is_binary else LOGITS)
    from_scores = ClassScores("", is_binary, dtype="float32")
    from_probabilities = ClassScores(activation, is_binary, dtype="float32")

    def compute(taps):
        _, before = before_activation(taps[scores])
        value = from_probabilities(taps[scores]) if before is None else from_scores(before)
        return {name: x for name, x in taps.items() if name != scores} | {tap: value}

    return Derived(features, compute, getattr(features, "token_grid", None)), tap


def require_labelled(
    name: str, images: tuple | tf.data.Dataset | np.ndarray, num_classes: int | None = None
):
    """Raises a `ValueError` for images without labels, or with what are no labels."""
    words = {"train": "training"}.get(name, name)
    if isinstance(images, tf.data.Dataset):
        spec = images.element_spec
        # Folders without classes, and lists of files, have labels of -1 and no names.
        if isinstance(spec, tuple) and getattr(images, "class_names", None) != ():
            require_label_type(spec[1], num_classes, words)
            return
    elif isinstance(images, tuple) and len(images) > 1:
        require_labels(np.asarray(images[1]), num_classes, words, count=len(images[0]))
        return
    raise ValueError(
        f"Expected {words} images with labels: a pair of arrays (images, labels), a "
        "tf.data.Dataset of such pairs, or a folder with a folder of images for each class. "
        "Received: images without labels"
    )


def _named(models):
    """Pairs of name and model of a dict, a list or one model."""
    return name_models(models).items()


def name_models(models):
    """A dict from name to model, of a dict, a list or one model."""
    if isinstance(models, Mapping):
        named = dict(models)
    else:
        models = list(models) if isinstance(models, list | tuple) else [models]
        named = {}
        for model in models:
            name, number = own_name(model), 2
            while name in named:
                name, number = f"{own_name(model)} ({number})", number + 1
            named[name] = model
    if not named:
        raise ValueError("Expected at least one model. Received: none")
    return named


def own_name(model):
    """The name of a model; of a path the name of its file without the ending."""
    if isinstance(model, str | os.PathLike):
        base = os.path.basename(os.path.normpath(model))
        return base.removesuffix(".keras")
    return model_name(model)


def _take_activations(given, names, parameters):
    """Makes rows of activations at hand the images, and features that return their columns."""
    labels = given.get("images")
    has_images = labels is not None and np.ndim(labels) != 1
    if has_images and "features_y" in parameters:
        raise ValueError(
            "Expected no images with activations: cka({name: array}), or "
            "cka({name: array}, features_y={name: array}). "
            f"Received: images={type(labels).__name__}"
        )
    if has_images or "images" not in parameters:
        require_model(given[names[0]])  # which raises what to do with them
    rows, *features = of_arrays(*(given[name] for name in names))
    given.update(zip(names, features, strict=True))
    given["images"] = rows if labels is None else (rows, np.asarray(labels))


def _with_own_images(
    models: dict[Any, Features], data: Iterable[Images]
) -> tuple[dict[Any, Features], Preprocessing | JointPreprocessing | None]:
    """The models, and what prepares raw images for them, so that each is shown its own."""
    found = {n: getattr(innermost_features(f), "preprocessing", None) for n, f in models.items()}
    declared = {n: preprocessing for n, preprocessing in found.items() if preprocessing}
    distinct = list(dict.fromkeys(declared.values()))
    if not distinct:
        return models, None
    undeclared = [model_name(f) for n, f in models.items() if n not in declared]
    if undeclared and len(distinct) > 1:
        raise ValueError(
            "Expected models that declare their preprocessing, where others differ in it: set "
            "model.preprocessing = vit_tf.Preprocessing(...), or prepare the images. "
            f"Received: {format_list(undeclared)} without"
        )
    if len(distinct) == 1:
        if undeclared:
            other = model_name(models[next(iter(declared))])
            warnings.warn(
                f"{join_words(undeclared)} got images as {other} expects them: set "
                ".preprocessing = vit_tf.Preprocessing(...) for others",
                stacklevel=4,
            )
        return models, distinct[0]
    common, *others = dict.fromkeys(preprocessing.framing() for preprocessing in distinct)
    if not others:  # they differ in values alone
        return {n: Normalised(f, declared[n]) for n, f in models.items()}, common
    sizes = {_own_size(images) for images in data} if None in {p.size for p in distinct} else set()
    joint = JointPreprocessing(
        tuple(p if p.size else replace(p, size=size) for p in distinct for size in sizes or [None])
    )
    return {n: _OwnImages(f, joint, distinct.index(declared[n])) for n, f in models.items()}, joint


def _own_size(images: Images) -> tuple[int, int]:
    """The (height, width) that raw images share; a `ValueError` if they share none."""
    unchanged = as_images(images, Preprocessing(None))
    spec = unchanged.element_spec if isinstance(unchanged, tf.data.Dataset) else unchanged
    return tuple((spec[0] if isinstance(spec, tuple) else spec).shape[1:3])


def _num_classes(features, given):
    """The number of classes: that of the labels, of the data set or of the model."""
    datasets = [given[name] for name in LABELLED if given.get(name) is not None]
    arrays = [np.asarray(dataset[1]) for dataset in datasets if isinstance(dataset, tuple)]
    if arrays:
        return count_classes(np.concatenate(arrays))
    for dataset in datasets:
        if names := getattr(dataset, "class_names", None):
            require_classes(len(names))
            return len(names)
    if getattr(features, "num_classes", None):
        return features.num_classes
    labels = [np.asarray(batch[1]) for dataset in datasets for batch in explained_batches(dataset)]
    return count_classes(np.concatenate(labels))


def _classes(features, given):
    """Positions of classes given by name or number; by default those predicted for the images."""
    classes, names = given.get("classes"), getattr(features, "class_names", None) or ()
    if classes is None:
        scores, predicted = given.get("scores", "logits"), []
        images = given["images"]
        for batch in explained_batches(images) if isinstance(images, tf.data.Dataset) else [images]:
            images = batch[0] if isinstance(batch, tuple) else batch
            taps = taps_of(features, tf.cast(images, tf.float32))
            require_scores(taps, scores, [0])
            predicted += np.argmax(taps[scores], 1).tolist()
        return [int(label) for label in dict.fromkeys(predicted)][:MAX_CLASSES]
    classes = [classes] if isinstance(classes, str | int | np.integer) else list(classes)
    for name in classes:
        if isinstance(name, str) and name not in names:
            if not names:
                raise ValueError(
                    "Expected classes by number, as the model declares no class_names. "
                    f"Received: {name!r}"
                )
            raise unknown_name("class", name, names)
    return [names.index(label) if isinstance(label, str) else label for label in classes]
