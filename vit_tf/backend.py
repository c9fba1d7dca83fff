"""What runs on one backend of Keras only."""

import keras


def require_tensorflow(what):
    """Raises a `ValueError` unless Keras runs on TensorFlow.

    Models run on every backend of Keras. Data, training and measurements are TensorFlow graphs.

    Args:
        what: what needs it, in words.
    """
    if keras.backend.backend() != "tensorflow":
        raise ValueError(
            f"Expected the TensorFlow backend of Keras for {what}: set KERAS_BACKEND=tensorflow. "
            f"Received: {keras.backend.backend()!r}"
        )
