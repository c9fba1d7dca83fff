"""The backend of Keras, and what runs on some backends only."""

import logging

import keras

log = logging.getLogger(__name__)


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
    """Raises a `ValueError` on other backends of Keras; leaves the GPUs to JAX."""
    leave_gpus_to_jax()
    if keras.backend.backend() not in ("tensorflow", "jax"):
        raise ValueError(
            f"Expected the TensorFlow or the JAX backend of Keras for {what}: set "
            f"KERAS_BACKEND=tensorflow or jax. Received: {keras.backend.backend()!r}"
        )


def leave_gpus_to_jax():
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
