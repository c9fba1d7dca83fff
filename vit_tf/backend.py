"""The backend of Keras, and what runs on some backends only."""

import keras


def on_jax() -> bool:
    """Whether Keras runs on JAX."""
    return keras.backend.backend() == "jax"


def require_tensorflow(what):
    """Raises a `ValueError` unless Keras runs on TensorFlow, which `what` (in words) needs."""
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Expected the TensorFlow backend of Keras for {what}: set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()!r}"
        )


def require_tensorflow_or_jax(what):
    """Raises a `ValueError` unless Keras runs on TensorFlow or JAX, which `what` (in words) needs.

    On JAX, TensorFlow reads the data: the accelerators are left to JAX.
    """
    if on_jax():
        import tensorflow as tf

        if tf.config.get_visible_devices("GPU"):
            tf.config.set_visible_devices([], "GPU")
    elif keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Expected the TensorFlow or the JAX backend of Keras for {what}: set "
            f"KERAS_BACKEND=tensorflow or jax. Received: {keras.backend.backend()!r}"
        )
