"""Loss and accuracy of classifiers, for integer labels and for soft ones."""

import keras
from keras import ops

register = keras.saving.register_keras_serializable("vit_tf")


@register
class SoftmaxCrossEntropy(keras.losses.Loss):
    """Cross-entropy of logits with smoothed labels, in float32.

    `-sum_k q_k log softmax(logits)_k` with `q = (1 - s) p + s / num_classes`, where `p` is the
    label and `s` the smoothing (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, section 7).

    Labels are integers of shape (example,) or probabilities of shape (example, class); their rank
    decides. An integer outside [0, num_classes) is an error on a CPU and a NaN on a GPU, never
    a label of zeros.

    Args:
        label_smoothing: the share `s` that is spread over all classes, in [0, 1).

    Raises:
        ValueError: for a smoothing outside [0, 1) or labels that do not fit the logits.
    """

    def __init__(self, label_smoothing=0.0, name="loss", reduction="sum_over_batch_size"):
        super().__init__(name=name, reduction=reduction, dtype="float32")
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "Expected label_smoothing to be in [0, 1). "
                f"Received: label_smoothing={label_smoothing}"
            )
        self.label_smoothing = label_smoothing

    def call(self, y_true, y_pred):
        if _labels_are_soft(y_true, y_pred):
            loss = ops.categorical_crossentropy(y_true, y_pred, from_logits=True)
        else:
            labels = ops.cast(y_true, "int32")
            loss = ops.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)
        if not self.label_smoothing:
            return loss
        uniform = -ops.mean(ops.log_softmax(y_pred, axis=-1), axis=-1)
        return (1 - self.label_smoothing) * loss + self.label_smoothing * uniform

    def get_config(self):
        return super().get_config() | {"label_smoothing": self.label_smoothing}


@register
class Top1Accuracy(keras.metrics.MeanMetricWrapper):
    """Share of examples whose largest logit is that of the (largest) label."""

    def __init__(self, name="accuracy", dtype="float32"):
        super().__init__(_is_top1, name=name, dtype=dtype)

    def get_config(self):
        return {"name": self.name, "dtype": self.dtype}


def _is_top1(y_true, y_pred):
    """1 where the prediction is right: float32 of shape (example,)."""
    soft = _labels_are_soft(y_true, y_pred)
    labels = ops.argmax(y_true, axis=-1) if soft else y_true
    predicted = ops.argmax(y_pred, axis=-1)
    return ops.cast(ops.equal(ops.cast(labels, predicted.dtype), predicted), "float32")


def _labels_are_soft(y_true, y_pred):
    """Whether labels are of shape (example, class) rather than (example,)."""
    if len(y_true.shape) == 1:
        return False
    if len(y_true.shape) == 2 and y_true.shape[-1] == y_pred.shape[-1]:
        return True
    raise ValueError(
        "Expected labels of shape (example,) or (example, class). "
        f"Received: labels of shape {tuple(y_true.shape)} for logits of {tuple(y_pred.shape)}"
    )
