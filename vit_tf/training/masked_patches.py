"""Masked patch prediction: a Vision Transformer that guesses the colours of corrupted patches."""

from typing import Any

import keras
from keras import layers, ops

from vit_tf.common.backend import Tensor
from vit_tf.models.vit import ViT
from vit_tf.training.objectives import ExampleMean, StepLoss

register = keras.saving.register_keras_serializable("vit_tf")


@register
class MaskedPatchPrediction(keras.Model):
    """A ViT with a head that predicts the mean colour of corrupted patches.

    This is the self-supervised pre-training of Dosovitskiy et al. 2020, appendix B.1.2. Patch
    embeddings are corrupted before position embeddings are added. The head is applied to the tokens
    of corrupted patches, after the last norm. The loss and the accuracy include only corrupted
    patches, because the other patches have no logits.

    The model is called on (images, sources, places), as returned by `vit_tf.data.mask_patches`, and
    returns logits of shape (example, corrupted patch, colour). Train the model with a
    `vit_tf.Pretraining`.

    Args:
        vit: the `ViT` to train. Its head, and a tanh layer before the head, are not trained.

    Raises:
        ValueError: if `vit` is not a `ViT`.
    """

    def __init__(self, vit: ViT, **kwargs: Any):
        if not isinstance(vit, ViT):
            raise ValueError(f"Expected vit to be a ViT. Received: {type(vit).__name__}")
        defaults = {"name": "masked_patch_prediction", "dtype": vit.dtype_policy}
        super().__init__(**defaults | kwargs)
        self.vit = vit
        self.num_classes = 8 ** vit.image_shape[-1]
        width = vit.embedding.hidden_dim
        first = keras.initializers.RandomNormal(stddev=0.02)
        self.mask = self.add_weight(shape=(1, 1, width), initializer=first, name="mask")
        self.head = layers.Dense(self.num_classes, dtype="float32", name="head")
        self.head.build((None, None, width))
        self.built = True

    def call(self, inputs: tuple[Tensor, Tensor, Tensor], training: bool | None = None) -> Tensor:
        images, *numbers = inputs
        # Under a strategy, Keras builds a model on the means of the replicas, which are floats.
        sources, places = (ops.cast(number, "int32") for number in numbers)
        taps = self.vit.intermediates(
            images, training=training, corrupt=lambda patches: self.corrupt(patches, sources)
        )
        return self.head(pick(self.vit.token_grid.spatial(taps["norm"]), places))

    def corrupt(self, patches: Tensor, sources: Tensor) -> Tensor:
        """Replaces each patch embedding, (example, patch, channel), by that of its source."""
        mask = ops.cast(self.mask, patches.dtype)
        mask = ops.broadcast_to(mask, (ops.shape(patches)[0], 1, patches.shape[-1]))
        return pick(ops.concatenate([patches, mask], axis=1), sources)

    @property
    def trainable_weights(self) -> list[keras.Variable]:
        """All trainable weights except those of the ViT's head, which get no gradient."""
        unread = {id(weight) for layer in self.vit.head_layers for weight in layer.weights}
        return [weight for weight in super().trainable_weights if id(weight) not in unread]

    @property
    def trainable_variables(self) -> list[keras.Variable]:
        """All trainable weights except those of the ViT's head, as `trainable_weights`."""
        return self.trainable_weights

    def get_config(self) -> dict[str, Any]:
        return super().get_config() | {"vit": keras.saving.serialize_keras_object(self.vit)}

    @classmethod
    def from_config(cls, config: dict[str, Any]) -> "MaskedPatchPrediction":
        return cls(**config | {"vit": keras.saving.deserialize_keras_object(config["vit"])})


@register
class ColourCrossEntropy(StepLoss):
    """Cross-entropy of each example, which weights are for: the mean over its corrupted patches."""

    def call(self, y_true: Tensor, y_pred: Tensor) -> Tensor:
        labels = ops.cast(y_true, "int32")
        loss = ops.sparse_categorical_crossentropy(labels, y_pred, from_logits=True)
        return ops.mean(loss, axis=-1)


@register
class ColourAccuracy(ExampleMean):
    """Share of the corrupted patches of each example whose colour is predicted."""

    def __init__(self, name: str = "accuracy", dtype: str = "float32"):
        super().__init__(_predicted_share, name=name, dtype=dtype)


def _predicted_share(y_true: Tensor, y_pred: Tensor) -> Tensor:
    predicted = ops.cast(ops.argmax(y_pred, axis=-1), "int32")
    return ops.mean(ops.cast(predicted == ops.cast(y_true, "int32"), "float32"), axis=-1)


def pick(tokens: Tensor, places: Tensor) -> Tensor:
    """Tokens (example, place, channel) at some positions of each sequence."""
    # Whole rows of one matrix: an index for each number, as `take_along_axis` has, is slow.
    count, length = ops.shape(tokens)[0], tokens.shape[1]
    rows = places + length * ops.arange(count, dtype=places.dtype)[:, None]
    return ops.take(ops.reshape(tokens, (-1, tokens.shape[-1])), rows, axis=0)
