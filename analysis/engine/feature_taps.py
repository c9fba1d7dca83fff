"""The taps of features: what a model, a submodel or a function returns for a batch of images."""

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from vit_tf.common.backend import require_tensorflow
from vit_tf.common.names import format_list
from vit_tf.data.preprocessing import require_images
from vit_tf.features import recorder
from vit_tf.features.tokens import TokenGrid

from .results import model_name
from .roles import Features, Taps

EXPECTED = "Expected features to be a callable from images to {tap: tensor}"
HOW = ", such as vit_tf.submodel(model, 'block*')"


def taps_of(features: Features, images: tf.Tensor) -> Taps:
    """The taps of features for a batch of images, without those that have no example axis."""
    require_features(features, images)
    taps = call_features(features, images)
    if not isinstance(taps, Mapping) or not taps:
        name = getattr(features, "name", None) or getattr(features, "__name__", repr(features))
        kind = "a tensor" if tf.is_tensor(taps) else f"{type(taps).__name__}"
        raise ValueError(f"{EXPECTED}{HOW}. Received: {name!r}, which returns {kind}")
    with_examples = example_taps(taps, images)
    if not with_examples:
        raise ValueError(f"Expected taps with an example axis. Received: {format_list(taps)}")
    return with_examples


def call_features(features: Features, images: tf.Tensor) -> Taps:
    """Calls features; a NumPy function, which cannot be traced, runs eagerly."""
    traced_error = None
    is_own = type(features).__module__.split(".")[0] in ("vit_tf", "keras", "tensorflow")
    if not getattr(features, "eager", False):
        if is_own:
            return recorder.infer(features, images)
        try:
            taps = recorder.infer(features, images)
            if not isinstance(taps, Mapping) or all(map(tf.is_tensor, taps.values())):
                return taps
        except Exception as error:  # a library may raise anything for a symbolic tensor
            traced_error = error
    if tf.executing_eagerly():
        arrays, _ = _arrays(features, np.asarray(images))
        return {name: tf.constant(array) for name, array in arrays.items()}
    # Two images of the same shape show the names, types and shapes of what the function returns.
    with tf.init_scope():
        sizes = [2, *(size or 1 for size in images.shape[1:])]
        try:
            example, argument = _arrays(features, np.zeros(sizes, images.dtype.as_numpy_dtype))
        except Exception as error:
            if traced_error is None:
                raise
            raise traced_error from error  # that of arrays, which explains a function of these
    names = list(example)
    values = tf.numpy_function(
        lambda batch: [_arrays(features, batch, argument)[0][name] for name in names],
        [images],
        [tf.as_dtype(example[name].dtype) for name in names],
    )
    for value, name in zip(values, names, strict=True):
        value.set_shape((images.shape[0], *example[name].shape[1:]))
    return dict(zip(names, values, strict=True))


def _arrays(
    features: Features,
    images: np.ndarray,
    arguments: Sequence[Callable[[np.ndarray], Any]] = (np.asarray, tf.constant),
) -> tuple[dict[str, np.ndarray], tuple[Callable[[np.ndarray], Any]]]:
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


def _array(value: Any) -> np.ndarray:
    """A tensor of any library as an array."""
    value = value.detach().cpu() if hasattr(value, "detach") else value
    return np.ascontiguousarray(value)


def example_taps(taps: Taps, images: tf.Tensor) -> Taps:
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


def require_features(features: Features, images: tf.Tensor) -> None:
    """Raises a `ValueError` for what `taps_of` refuses before it calls the features."""
    require_tensorflow("measurements")
    require_model(features)
    shape = getattr(features, "input_shape", None)
    if isinstance(shape, tuple):
        require_images(images.shape, shape)


def require_model(model: Any) -> None:
    """Raises a `ValueError` for what no measurement can be made of."""
    if not callable(model):
        raise ValueError(f"{EXPECTED}{HOW}. Received: {_described(model)}")


def _described(features: Any) -> str:
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


def token_grid_of(features: Features) -> TokenGrid | None:
    """The grid on which the tokens of features lie; None where there is none or it is not known."""
    return getattr(features, "token_grid", None)


def choose(features: Features, names: Iterable[str]) -> Features:
    """Selects taps of `features`, in the order of `names`.

    Statistics that use different taps of one model can thus share the forward pass of the model.

    Args:
        features: callable from images to `{tap: tensor}`.
        names: names of taps.

    Returns:
        Callable from images to a dict from tap to tensor, with the name and `token_grid` of the
        features.

    Raises:
        ValueError: when the callable is called, if the features do not have one of the names.
    """
    names = tuple(names)
    grid = token_grid_of(features)
    return Derived(features, lambda taps: select(taps, names), grid)


def select(taps: Taps, names: Iterable[str]) -> dict[str, tf.Tensor]:
    """The entries of a dict of taps that are named, in the order of the names."""
    for name in names:
        if name not in taps:
            raise ValueError(f"Expected a tap {name!r}. Received: {format_list(taps)}")
    return {name: taps[name] for name in names}


class Derived:
    """Features computed from the taps of others, which `one_pass` calls once for all."""

    def __init__(
        self, features: Features, compute: Callable[[Taps], Taps], token_grid: TokenGrid | None
    ) -> None:
        self.name = model_name(features)
        self.token_grid = token_grid
        self.features = features
        self.compute = compute

    def __call__(self, images: tf.Tensor) -> Taps:
        return self.compute(self.features(images))


class Calls:
    """The taps of each features callable for one batch, computed when first asked for."""

    def __init__(self, images: tf.Tensor) -> None:
        self._images = images
        self._made: dict[int, Taps] = {}

    def __call__(self, features: Features) -> Taps:
        key = id(features)
        if key not in self._made:
            derived = isinstance(features, Derived)
            self._made[key] = (
                features.compute(self(features.features))
                if derived
                else taps_of(features, self._images)
            )
        return self._made[key]
