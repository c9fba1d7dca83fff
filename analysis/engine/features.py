"""Calling features: from a batch of images to named taps, or one line about what is wrong."""

import math
import warnings
from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from vit_tf.backend import require_tensorflow
from vit_tf.image_shapes import require_images
from vit_tf.names import listed

EXPECTED = "Expected features to be a callable from images to {tap: tensor}"
HOW = ", such as vit_tf.submodel(model, 'block*')"


def taps_of(features, images):
    """The taps of features for a batch of images: dict from name to tensor.

    Those without an example axis are left out, with a warning.

    Raises:
        ValueError: for features that are no callable or return no dict of taps with an example
            axis, images of another shape than they take, or a backend of Keras other than
            TensorFlow.
    """
    require_features(features, images)
    taps = _call(features, images)
    if not isinstance(taps, Mapping) or not taps:
        name = getattr(features, "name", None) or getattr(features, "__name__", repr(features))
        what = "a tensor" if tf.is_tensor(taps) else f"{type(taps).__name__}"
        raise ValueError(f"{EXPECTED}{HOW}. Received: {name!r}, which returns {what}")
    kept = example_taps(taps, images)
    if not kept:
        raise ValueError(f"Expected taps with an example axis. Received: {listed(taps)}")
    return kept


def _call(features, images):
    """The answer of features; a function of NumPy arrays, which no graph can hold, runs eagerly.

    Which kind it is shows when it is traced: a function that fails then and works for arrays is
    called through `tf.numpy_function`, with the dtypes and shapes that it returns for zeros.
    """
    own = type(features).__module__.split(".")[0] in ("vit_tf", "keras", "tensorflow")
    eager = getattr(features, "eager", False)
    if own and not eager:
        return features(images)
    try:
        if eager:
            raise NotImplementedError
        taps = features(images)
        if not isinstance(taps, Mapping) or all(map(tf.is_tensor, taps.values())):
            return taps
    except Exception as error:  # whatever a library makes of a symbolic tensor
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
            taps = features(argument(images))
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
    """The taps that have an example axis; a warning names the others.

    A position embedding, for one, has a single row however many images there are.

    Args:
        taps: dict from tap to tensor, of a call with these images.
        images: tensor whose first axis is the example axis.

    Returns:
        The dict of those that have one.
    """
    sizes = {tap: tf.TensorShape(x.shape) for tap, x in taps.items()}
    without = [tap for tap, shape in sizes.items() if not _has_examples(shape, images.shape[0])]
    if not without:
        return taps
    warnings.warn(f"Taps without an example axis are left out: {listed(without)}", stacklevel=2)
    return {tap: x for tap, x in taps.items() if tap not in without}


def _has_examples(shape, examples):
    """Whether the first axis may be the examples, of which the number may not be known yet."""
    return shape.rank is None or (shape.rank > 0 and shape[0] in (None, examples))


def require_features(features, images):
    """Raises a `ValueError` for what `taps_of` refuses before it calls the features."""
    require_tensorflow("measurements")
    require_model(features)
    shape = getattr(features, "input_shape", None)
    if isinstance(shape, tuple):
        require_images(images.shape, shape)


def require_model(model):
    """Raises a `ValueError` for what no measurement can be made of."""
    if any(kind.__module__.split(".")[0] == "torch" for kind in type(model).__mro__):
        raise ValueError(
            "Expected a Keras model or a function of images. Received: a PyTorch module, "
            f"{type(model).__name__}; open its checkpoint with vit_tf.load_pretrained, or measure "
            "the module itself by vit_tf.torch_features(module, 'blocks.*')"
        )
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
    return repr(features)


def class_gradients(features, images, classes, scores, sources):
    """Gradients of the scores of classes, each class of each image by itself.

    The images are repeated, so that one backward pass serves all classes, and no gradient flows
    from one image or class to another.

    Args:
        features: callable from images to taps that are computed from each other.
        images: tensor of shape (example, height, width, channel).
        classes: positions of classes among the scores.
        scores: the tap that holds these, of shape (example, class).
        sources: function of the repeated images and of their taps to a dict from name to tensor,
            the gradients with respect to which are asked for.

    Returns:
        dict from name to a pair of the tensor and its gradient, of shape (example, class, ...).

    Raises:
        ValueError: for classes or scores that are not there, and for a tensor that the scores do
            not depend on, as far as TensorFlow can tell; it is named.
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
    found = sources(repeated, taps)
    gradients = dict(zip(found, tape.gradient(target, list(found.values())), strict=True))
    if missing := [name for name, gradient in gradients.items() if gradient is None]:
        raise ValueError(
            f"Expected features that compute {scores!r} from the taps whose gradients are taken, "
            f"such as a submodel; a SavedModel hides how. Received: {listed(missing)}"
        )

    def apart(x):
        return tf.reshape(x, tf.concat([[-1, count], tf.shape(x)[1:]], axis=0))

    return {name: (apart(found[name]), apart(gradients[name])) for name in found}


def require_scores(taps, scores, classes):
    """The number of classes of a tap of scores; a `ValueError` if one of `classes` is not there."""
    shape = tuple(taps[scores].shape) if scores in taps else ()
    if len(shape) != 2:
        raise ValueError(
            "Expected scores to be a tap of shape (example, class). "
            f"Received: scores={scores!r} of shape {shape}, taps {listed(list(taps))}"
        )
    classes = list(classes)
    if not classes or not all(
        isinstance(one, int | np.integer) and 0 <= one < shape[1] for one in classes
    ):
        raise ValueError(
            f"Expected classes to be integers from 0 to {shape[1] - 1}. Received: {classes}"
        )
    return shape[1]


def of_arrays(*activations):
    """Given activations as one data set, and features that return their columns of it.

    Each row of the data set holds all activations of one example, flattened.

    Args:
        *activations: dicts from layer to array of shape (example, ...), of the same examples.

    Returns:
        float32 array of shape (example, number), and a callable from its rows to
        `{layer: tensor of the array's shape}` for each of the dicts.

    Raises:
        ValueError: for what is no such dict, or arrays of other numbers of examples.
    """
    columns, features = [], []
    for of in activations:
        if not isinstance(of, Mapping) or not of:
            raise ValueError(
                "Expected activations to be {name: array of shape (example, ...)}. "
                f"Received: {type(of).__name__}"
            )
        arrays = {layer: np.asarray(values, np.float32) for layer, values in of.items()}
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
