"""Taps: named intermediate outputs of our own models and of any other Keras model."""

import json
import math
import os
import warnings

import keras

from vit_tf.image_checks import check_dtype
from vit_tf.image_shapes import fix_image_shape
from vit_tf.models.input_range import find_preprocessing
from vit_tf.models.transformer import TokenDense
from vit_tf.names import NAMED, as_patterns, format_list, match
from vit_tf.preprocessing import Preprocessing
from vit_tf.taps import recorder
from vit_tf.taps.attention_weights import (
    AttentionWeights,
    MaskedCalls,
    attention_layers,
    computed_weights,
)
from vit_tf.taps.representations import find_representations
from vit_tf.taps.segments import split
from vit_tf.tokens import TokenGrid

FACTS = "features.json"  # next to a SavedModel


@keras.saving.register_keras_serializable("vit_tf")
class TapModel(keras.Model):
    """A functional model from images to `{tap: tensor}` that knows where the tokens lie.

    Args:
        inputs: the symbolic images.
        outputs: dict from tap name to symbolic tensor, in depth order.
        token_grid: the `TokenGrid` of the taps that are token sequences, or None.
        preprocessing: the `Preprocessing` of the images, or None.
        pooled_tokens: positions of the tokens that the model's head reads, or None.
    """

    def __init__(
        self,
        inputs,
        outputs,
        name=None,
        *,
        token_grid=None,
        preprocessing=None,
        pooled_tokens=None,
        **kwargs,
    ):
        super().__init__(inputs, outputs, name=name, **kwargs)
        self.input_spec = None  # in place of Keras' own check, `call` has one that says what to do
        self.token_grid = TokenGrid(**token_grid) if isinstance(token_grid, dict) else token_grid
        self.preprocessing = preprocessing and Preprocessing.from_config(preprocessing)
        self.pooled_tokens = pooled_tokens and tuple(pooled_tokens)

    @property
    def taps(self):
        """Names of the outputs, in depth order."""
        return tuple(self.output)

    def __repr__(self):
        rows = [f"  {tap}: {shape}" for tap, shape in self._shapes().items()]
        shown = [*rows[:NAMED], f"  and {len(rows) - NAMED} more"] if len(rows) > NAMED else rows
        return "\n".join([f"<TapModel {self.name!r} of {len(rows)} taps", *shown]) + ">"

    def summary(self, print_fn=print):
        """Prints a table of the taps with their shapes and numbers of values for each image.

        Args:
            print_fn: what prints the text.
        """
        shapes = self._shapes()
        width = max(map(len, ("tap", *shapes)))
        rows = [f"{'tap':{width}}  {'shape':24}values"]
        for tap, shape in shapes.items():
            values = "unknown" if None in shape[1:] else f"{math.prod(shape[1:]):,}"
            rows.append(f"{tap:{width}}  {shape!s:24}{values}")
        print_fn("\n".join([f"{self.name}: {self.count_params():,} parameters", "", *rows]))

    def _shapes(self):
        return {tap: tuple(tensor.shape) for tap, tensor in self.output.items()}

    def segments(self):
        """The model as a chain of `Segment`s, for gradients of many taps."""
        return split(self)

    def call(self, images, training=None, mask=None):
        """The taps of a batch of images.

        Raises:
            ValueError: for images of another shape than the model's, and for integer images unless
                `check_dtype` finds them declared.
        """
        check_dtype(self, keras.backend.standardize_dtype(images.dtype))
        images = fix_image_shape(images, self.input_shape)
        return super().call(images, training=training, mask=mask)

    def export(self, filepath, format="tf_saved_model", **kwargs):
        """Exports as `keras.Model.export` does; a SavedModel's folder keeps the facts of images.

        `features.json` holds the token grid, the preprocessing and the taps in depth order, for
        `vit_tf.load_features`.
        """
        super().export(filepath, format=format, **kwargs)
        if format == "tf_saved_model":
            with open(os.path.join(filepath, FACTS), "w", encoding="utf-8") as file:
                json.dump(self.facts() | {"taps": self.taps}, file, indent=1)

    def facts(self):
        """The token grid and the preprocessing as a dict that JSON can hold."""
        grid = vars(self.token_grid) if self.token_grid else None
        preprocessing = self.preprocessing and self.preprocessing.to_config()
        return {"token_grid": grid, "preprocessing": preprocessing}

    def get_config(self):
        if any(isinstance(x, TokenDense) and x.quantization_mode for x in self._flatten_layers()):
            raise ValueError(
                "Expected a submodel of a model that is not quantized to be saved or copied. "
                f"Received: {self.name!r}, quantized; save the whole model, or `export` the taps"
            )
        return super().get_config() | self.facts() | {"pooled_tokens": self.pooled_tokens}


def submodel(model, *patterns):
    """A `keras.Model` from images to the taps of `model` that match the patterns.

    It shares the weights of `model` and holds only the layers that its taps need. Models of this
    package have the taps of `model.taps`. In any other Keras model every nested layer is a tap,
    named by its path of layer names joined by slashes; a layer that returns several tensors has one
    tap for each (`"attention/0"`), and the second call of a layer is `"relu@2"`. Patterns that end
    in `"/weights"` also match the attention weights of `MultiHeadAttention` layers, including
    KerasHub's, which do not return them: they are computed from queries and keys without a mask,
    with a warning if the model uses one.

    Args:
        model: a built Keras model of one input, functional or subclassed.
        *patterns: shell patterns such as `"block*/mlp/sum"`, or lists of them. Without any, the
            representations: the embedding, the output of each block or stage, and the final norm
            (`vit_tf.taps.representations` documents the rule for other models).

    Raises:
        ValueError: for a pattern that matches no tap (near matches are listed), an unbuilt model,
            or one with channels-first layers.
    """
    if not isinstance(model, keras.Model):
        raise ValueError(f"Expected model to be a keras.Model. Received: {type(model).__name__}")
    if not patterns:
        patterns = model.taps if isinstance(model, TapModel) else find_representations(model)
    patterns = as_patterns(patterns)
    if not patterns:
        raise ValueError("Expected at least one tap pattern, such as 'block*/mlp/sum'.")
    name = f"{model.name.removesuffix('_taps')}_taps"
    if isinstance(model, TapModel):
        outputs = model.output
        taps = match(patterns, list(outputs))
        return _tap_model(model, model.inputs[0], {tap: outputs[tap] for tap in taps}, name)
    if hasattr(model, "intermediates"):
        taps = match(patterns, model.taps)
        images = keras.Input(model.image_shape, name="images")
        outputs = model.intermediates(images)
        return _tap_model(model, images, {tap: outputs[tap] for tap in taps}, name)
    return _tap_model(model, *_foreign_taps(model, patterns), name)


def _foreign_taps(model, patterns):
    """Symbolic images, and a dict from tap to symbolic output, of a model of other origin."""
    _require_channels_last(model)
    masked = MaskedCalls(attention_layers(model))
    found = list(recorder.find_taps(model, masked))
    computed = computed_weights(model, found)
    plain = [pattern for pattern in patterns if not pattern.endswith("/weights")]
    asked = [pattern for pattern in patterns if pattern.endswith("/weights")]
    taps = match(plain, found) if plain else []
    weights = match(asked, [*found, *computed]) if asked else []
    ignored = [tap for tap in weights if tap in computed and _layer_of(tap) in masked.paths]
    if ignored:
        warnings.warn(
            f"The taps {format_list(ignored)} are computed of queries and keys without the mask "
            f"that {model.name!r} calls these layers with: they are not the weights that it uses",
            stacklevel=3,
        )
    sources = [source for tap in weights for source in computed.get(tap, (tap,))]
    wanted = [tap for tap in found if tap in {*taps, *sources}]
    images, outputs = recorder.symbolic_taps(model, wanted)
    chosen = {}
    for tap in wanted:
        if tap in taps or tap in weights:
            chosen[tap] = outputs[tap]
        for name in (name for name in weights if name in computed and computed[name][1] == tap):
            # The key comes after the query.
            layer = AttentionWeights(dtype="float32", name=name.replace("/", "_"))
            chosen[name] = layer(*(outputs[source] for source in computed[name]))
    return images, chosen


def _layer_of(weights):
    """The path of the layer to which a tap of computed attention weights belongs."""
    return weights.partition("@")[0].removesuffix("/weights")


def _require_channels_last(model):
    """Raises a `ValueError` for a model whose maps have other axes than measurements take."""
    first = [
        path
        for path, layer in recorder.named_layers(model)
        # A Flatten takes over the setting of Keras, whatever its input.
        if getattr(layer, "data_format", None) == "channels_first"
        and not isinstance(layer, keras.layers.Flatten)
    ]
    if first:
        raise ValueError(
            "Expected a model whose data_format is 'channels_last': images and maps of shape "
            "(example, height, width, channel). Received: data_format='channels_first' of the "
            f"layers {format_list(first)} of {model.name!r}"
        )


def _tap_model(model, images, outputs, name):
    grid, (preprocessing, _) = getattr(model, "token_grid", None), find_preprocessing(model)
    facts = {"token_grid": grid, "preprocessing": preprocessing}
    facts["pooled_tokens"] = getattr(model, "pooled_tokens", None)
    return TapModel(images, outputs, name=name, **facts)
