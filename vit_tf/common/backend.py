"""The backend of Keras, and what runs on some backends only."""

import logging
from collections.abc import Callable
from typing import Any, TypeAlias

import keras

log = logging.getLogger(__name__)

# A tensor of the backend that Keras runs on, or a symbolic one: Keras has no type for both.
Tensor: TypeAlias = Any


def on_jax() -> bool:
    """Whether Keras runs on JAX."""
    return keras.backend.backend() == "jax"


def require_tensorflow(what: str) -> None:
    """Raises a `ValueError` unless Keras runs on TensorFlow, which `what` (in words) needs."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"The TensorFlow backend of Keras is needed for {what}: set "
            "KERAS_BACKEND=tensorflow, which also opens models trained on JAX. Received: "
            f"{keras.backend.backend()!r}"
        )


def require_tensorflow_or_jax(what: str) -> None:
    """Raises a `ValueError` on other backends of Keras; leaves the GPUs to JAX."""
    leave_gpus_to_jax()
    if keras.backend.backend() not in ("tensorflow", "jax"):
        raise ValueError(
            f"The TensorFlow or the JAX backend of Keras is needed for {what}: set "
            f"KERAS_BACKEND=tensorflow or jax. Received: {keras.backend.backend()!r}"
        )


def leave_gpus_to_jax() -> None:
    """Hides the GPUs from TensorFlow where Keras runs on JAX; a log line if it is too late."""
    if not on_jax():
        return
    import tensorflow as tf

    if not tf.config.get_visible_devices("GPU"):
        return
    try:
        tf.config.set_visible_devices([], "GPU")
    except RuntimeError:
        log.warning(
            "TensorFlow has initialized the GPU before vit_tf could hide it, and may hold the "
            "memory that JAX needs: call tf.config.set_visible_devices([], 'GPU') in the first "
            "lines of the program, or set TF_FORCE_GPU_ALLOW_GROWTH=true"
        )


def custom_gradient(function: Callable[..., tuple]) -> Callable:
    """Wraps a function of tensors that returns its value and its gradient function.

    `keras.ops.custom_gradient` does the same, but TensorFlow registers the gradient anew for each
    graph that calls the function, and the registry keeps every such graph for good
    (tensorflow/tensorflow#35044). Here the graphs call one that is traced once for each dtype,
    rank and number of channels. Each decoration is traced, and kept, by itself: decorate functions
    of a module, or cache the decorated function.
    """
    with_gradient = keras.ops.custom_gradient(function)
    if keras.backend.backend() != "tensorflow":
        return with_gradient
    import tensorflow as tf

    traced = tf.function(with_gradient, autograph=False)

    def call(x: tf.Tensor, *others: tf.Tensor) -> tf.Tensor:
        if tf.executing_eagerly():  # nothing is registered
            return with_gradient(x, *others)
        # One trace serves all sizes but that of the last axis, the channels.
        specs = [
            tf.TensorSpec([*[None] * (y.shape.rank - 1), y.shape[-1]], y.dtype)
            for y in (x, *others)
        ]
        value = traced.get_concrete_function(*specs)(x, *others)
        value.set_shape(x.shape)
        return value

    return call


def compiled_elementwise(function: Callable) -> Callable:
    """Compiles an elementwise function of tensors to one loop, with XLA, on TensorFlow.

    TensorFlow passes over memory once for each operation. XLA compiles anew for each shape, which
    takes a few hundredths of a second for a formula, and makes whole models no faster on a CPU.
    """
    if keras.backend.backend() != "tensorflow":
        return function
    import tensorflow as tf

    return tf.function(function, autograph=False, jit_compile=True, reduce_retracing=True)
