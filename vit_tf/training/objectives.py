"""Loss and accuracy of classifiers, for integer labels and for soft ones."""

from typing import Any

import keras
from keras import ops

from vit_tf.common.backend import Tensor, on_jax, require_tensorflow_or_jax
from vit_tf.distribute import strategy_of
from vit_tf.features.scores import find_activation, find_scores, operation_of

register = keras.saving.register_keras_serializable("vit_tf")


class StepLoss(keras.losses.Loss):
    """A loss in float32, for weights of shape (example,) or of `distribute.divide_batches`."""

    def __init__(self, name: str = "loss", reduction: str | None = "sum_over_batch_size"):
        super().__init__(name=name, reduction=reduction, dtype="float32")

    def __call__(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> Tensor:
        if sample_weight is not None and len(sample_weight.shape) != 1:
            sample_weight = sample_weight[:, 0]
        return super().__call__(y_true, y_pred, sample_weight)


@register
class SoftmaxCrossEntropy(StepLoss):
    """Cross-entropy of logits with smoothed labels, in float32.

    `-sum_k q_k log softmax(logits)_k` with `q = (1 - s) p + s / num_classes`, where `p` is the
    label and `s` the smoothing (Szegedy et al. 2016, https://arxiv.org/abs/1512.00567, section 7).

    Labels are integers of shape (example,) or probabilities of shape (example, class). An integer
    outside [0, num_classes) is an error on a CPU and gives NaN on a GPU, never a label of zeros.
    Weights are of shape (example,), or those of `distribute.divide_batches`.

    Args:
        label_smoothing: the share `s` that is spread over all classes, in [0, 1).
        from_softmax: whether the model ends in a softmax. The loss is then computed from the class
            scores before the softmax, which are taken from the graph of the training step. The
            probabilities are too coarse for a logarithm in mixed precision.

    Raises:
        ValueError: for a smoothing outside [0, 1) or labels that do not fit the logits, or if no
            softmax is found that computes the predictions.
    """

    def __init__(
        self,
        label_smoothing: float = 0.0,
        name: str = "loss",
        reduction: str | None = "sum_over_batch_size",
        from_softmax: bool = False,
    ):
        super().__init__(name, reduction)
        if not 0 <= label_smoothing < 1:
            raise ValueError(
                "Expected label_smoothing to be in [0, 1). "
                f"Received: label_smoothing={label_smoothing}"
            )
        self.label_smoothing, self.from_softmax = label_smoothing, from_softmax

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if self.from_softmax:
            y_pred = _scores_before_softmax(y_pred)
        if _labels_are_soft(y_true, y_pred):
            loss = ops.categorical_crossentropy(y_true, y_pred, from_logits=True)
        else:
            labels = ops.cast(y_true, "int32")
            loss = ops.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)
        if not self.label_smoothing:
            return loss
        uniform = -ops.mean(ops.log_softmax(y_pred, axis=-1), axis=-1)
        return (1 - self.label_smoothing) * loss + self.label_smoothing * uniform

    def get_config(self) -> dict[str, Any]:
        config = super().get_config() | {"label_smoothing": self.label_smoothing}
        return config | ({"from_softmax": True} if self.from_softmax else {})


def ends_in_softmax(model: keras.Model) -> bool:
    """Whether a built classifier returns the probabilities of a softmax, not its scores.

    Raises:
        ValueError: for a model whose scores cannot be read before its softmax, or that ends in
            sigmoids, of which this is not the loss.
    """
    scores = find_scores(model)
    if scores.activation == "softmax" and not scores.is_inverted:
        return True
    if scores.activation:
        raise ValueError(
            "Expected a model that returns class scores (logits) or their softmax: leave out the "
            f"activation of the last layer, as in Dense(classes) or classifier_activation=None. "
            f"Received: {model.name!r}, which returns the {scores.activation} of scores"
            + (" that are not found" if scores.activation == "softmax" else "")
        )
    return False


def _scores_before_softmax(probabilities: Tensor) -> Tensor:
    """The scores, in float32, whose softmax a tensor of the training step's graph is."""
    activation, scores = find_activation(probabilities)
    operation = operation_of(probabilities)
    if operation is not None and operation.type == "Placeholder":
        return probabilities  # Keras infers the shapes of losses without the model
    if activation != "softmax":
        raise ValueError(
            "The class scores before the softmax cannot be found: leave out the activation of "
            "the last layer, or do not train eagerly"
        )
    return ops.cast(scores, "float32")


@register
class SigmoidCrossEntropy(StepLoss):
    """The sum over classes of the binary cross-entropies of logits, in float32.

    `-sum_k [p_k log sigmoid(logits)_k + (1 - p_k) log (1 - sigmoid(logits)_k)]` with the label `p`,
    with which Steiner et al. 2021 train. Labels and weights are those of `SoftmaxCrossEntropy`.
    """

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        if not _labels_are_soft(y_true, y_pred):
            y_true = ops.one_hot(ops.cast(y_true, "int32"), y_pred.shape[-1])
        # log(1 + exp(-|x|)) stays finite for any logit.
        rest = ops.log1p(ops.exp(-ops.abs(y_pred)))
        return ops.sum(ops.maximum(y_pred, 0.0) - y_pred * y_true + rest, axis=-1)


class ExampleMean(keras.metrics.MeanMetricWrapper):
    """Mean of a function over the real examples of batches by `distribute.divide_batches`."""

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        if sample_weight is None or len(sample_weight.shape) == 1:
            super().update_state(y_true, y_pred, sample_weight)
            return
        values = ops.cast(self._fn(y_true, y_pred), self.dtype)
        real = ops.cast(sample_weight[:, 2], self.dtype)
        keras.metrics.Mean.update_state(self, values, real)

    def get_config(self) -> dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype}


@register
class Top1Accuracy(ExampleMean):
    """Share of examples whose largest logit is that of the (largest) label, whatever its weight."""

    def __init__(self, name: str = "accuracy", dtype: str = "float32"):
        super().__init__(_is_top1, name=name, dtype=dtype)


class MeanLoss(keras.metrics.Mean):
    """The mean over all examples of a loss times their weights, without padding."""

    def __init__(self, loss: keras.losses.Loss, name: str = "loss", dtype: str = "float32"):
        super().__init__(name=name, dtype=dtype)
        self._loss = loss

    def update_state(
        self, y_true: Tensor, y_pred: Tensor, sample_weight: Tensor | None = None
    ) -> None:
        values = ops.cast(self._loss.call(y_true, y_pred), self.dtype)
        real = ops.ones_like(values)
        if sample_weight is not None:
            weights = ops.cast(sample_weight, self.dtype)
            if len(weights.shape) == 2:
                weights, real = weights[:, 1], weights[:, 2]
            values = values * weights
        super().update_state(values, real)


def compile_model(
    model: keras.Model, optimizer: keras.optimizers.Optimizer, loss: StepLoss, accuracy: ExampleMean
) -> None:
    """Compile a model for a loss and an accuracy, an `ExampleMean`, under its own strategy."""
    require_tensorflow_or_jax("training")
    strategy = strategy_of(model)
    steps, replicas = optimizer.gradient_accumulation_steps, strategy.num_replicas_in_sync
    if steps and replicas > 1 and not on_jax():
        raise ValueError(
            "Expected gradient_accumulation_steps to be 1 on several replicas of TensorFlow: use "
            "one device, a larger batch, or Keras on JAX. Received: "
            f"gradient_accumulation_steps={steps} on {replicas} replicas"
        )
    with strategy.scope():
        if replicas == 1:
            model.compile(optimizer=optimizer, loss=loss, metrics=[accuracy])
            return
        # Keras returns the last result named "loss"; only its own includes a model's own losses.
        means = [accuracy] if model.losses else [accuracy, MeanLoss(loss)]
        model.compile(optimizer=optimizer, loss=loss, weighted_metrics=means)
        # In the list that `evaluate` returns, Keras would repeat the loss.
        model._flatten_metrics_in_order = lambda logs: [
            logs["loss"],
            *(value for name, value in logs.items() if name != "loss"),
        ]


def _is_top1(y_true: Tensor, y_pred: Tensor) -> Tensor:
    """1 where the prediction is right: float32 of shape (example,)."""
    soft = _labels_are_soft(y_true, y_pred)
    labels = ops.argmax(y_true, axis=-1) if soft else y_true
    predicted = ops.argmax(y_pred, axis=-1)
    return ops.cast(ops.equal(ops.cast(labels, predicted.dtype), predicted), "float32")


def _labels_are_soft(y_true: Tensor, y_pred: Tensor) -> bool:
    """Whether labels are of shape (example, class) rather than (example,)."""
    if len(y_true.shape) == 1:
        return False
    if len(y_true.shape) == 2 and y_true.shape[-1] == y_pred.shape[-1]:
        return True
    raise ValueError(
        "Expected labels of shape (example,) or (example, class). "
        f"Received: labels of shape {tuple(y_true.shape)} for logits of {tuple(y_pred.shape)}"
    )
