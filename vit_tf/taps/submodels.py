"""Taps: named intermediate outputs of our own models and of any other Keras model."""

import json
import os
import re

import keras

from vit_tf.image_checks import check_dtype
from vit_tf.models.input_range import find_preprocessing
from vit_tf.models.transformer import TokenDense
from vit_tf.names import as_patterns, match
from vit_tf.preprocessing import Preprocessing
from vit_tf.taps import recorder
from vit_tf.taps.attention_weights import AttentionWeights, computed_weights
from vit_tf.taps.segments import split
from vit_tf.tokens import TokenGrid

FACTS = "features.json"  # beside a SavedModel


@keras.saving.register_keras_serializable("vit_tf")
class TapModel(keras.Model):
    """A functional model from images to `{tap: tensor}` that knows where the tokens lie.

    Args:
        inputs: the symbolic images.
        outputs: dict from tap name to symbolic tensor, in depth order.
        token_grid: the `TokenGrid` of the taps that are token sequences, or None.
        preprocessing: the `Preprocessing` of the images, or None.
    """

    def __init__(
        self, inputs, outputs, name=None, *, token_grid=None, preprocessing=None, **kwargs
    ):
        super().__init__(inputs, outputs, name=name, **kwargs)
        self.token_grid = TokenGrid(**token_grid) if isinstance(token_grid, dict) else token_grid
        self.preprocessing = preprocessing and Preprocessing.from_config(preprocessing)

    @property
    def taps(self):
        """Names of the outputs, in depth order."""
        return tuple(self.output)

    def segments(self):
        """The model as a chain of `Segment`s, for gradients of many taps."""
        return split(self)

    def call(self, images, training=None, mask=None):
        """The taps of a batch of images.

        Raises:
            ValueError: for integer images, unless `check_dtype` finds them declared.
        """
        check_dtype(self, keras.backend.standardize_dtype(images.dtype))
        return super().call(images, training=training, mask=mask)

    def export(self, filepath, format="tf_saved_model", **kwargs):
        """Exports as `keras.Model.export` does; a SavedModel's folder keeps the facts of images.

        `features.json` holds the token grid and the preprocessing, for `vit_tf.load_features`.
        """
        super().export(filepath, format=format, **kwargs)
        if format == "tf_saved_model":
            with open(os.path.join(filepath, FACTS), "w", encoding="utf-8") as file:
                json.dump(self.facts(), file, indent=1)

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
        return super().get_config() | self.facts()


def submodel(model, *patterns):
    """A `keras.Model` from images to the taps of `model` that fit the patterns.

    It shares the weights of `model` and holds only the layers that its taps need. Our own models
    have the taps of `model.taps`. Of any other Keras model every layer inside is a tap, named
    by the slash-joined names of the layers that contain it; a layer that returns several tensors
    gives one tap for each (`"attention/0"`), and a layer that is called again `"relu@2"`.
    Patterns that end in `"/weights"` also fit the attention weights of `MultiHeadAttention` layers,
    KerasHub's among them, which do not put them out: they are computed of their queries and keys,
    as if there were no mask.

    Args:
        model: a built Keras model of one input, functional or subclassed.
        *patterns: shell patterns such as `"block*/mlp/sum"`, or lists of them.

    Raises:
        ValueError: for a pattern that fits no tap, listing near matches, or an unbuilt model.
    """
    patterns = as_patterns(patterns)
    if not patterns:
        raise ValueError("Expected at least one tap pattern, such as 'block*/mlp/sum'.")
    if not isinstance(model, keras.Model):
        raise ValueError(f"Expected model to be a keras.Model. Received: {type(model).__name__}")
    name = f"{model.name}_taps"
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
    found = list(recorder.find_taps(model))
    computed = computed_weights(model, found)
    plain = [pattern for pattern in patterns if not pattern.endswith("/weights")]
    asked = [pattern for pattern in patterns if pattern.endswith("/weights")]
    taps = match(plain, found) if plain else []
    weights = match(asked, [*found, *computed]) if asked else []
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


def _tap_model(model, images, outputs, name):
    grid, (preprocessing, _) = getattr(model, "token_grid", None), find_preprocessing(model)
    return TapModel(images, outputs, name=name, token_grid=grid, preprocessing=preprocessing)


_SITES = ("attention", "token_mixing", "mlp", "channel_mixing")
_WHATS = (
    *("norm", "norm1", "conv1", "hidden1", "norm2", "conv2", "hidden2", "norm3", "conv3"),
    *("weights", "heads", "hidden", "skip", "branch", "sum"),
)
_ENDS = {
    **{"root": -4, "embedding": -2, "pre_norm": -1, "norm": 1},
    **{"pooling/attention": 2, "pooling/attended": 3, "pooling/hidden": 4, "pooled": 5},
    **{"fc_norm": 6, "pre_logits": 6, "projected": 6, "logits": 7},
}
_UNIT = re.compile(r"stage\d+/unit\d+/")


def depth_order(taps):
    """The names of `taps` in the order in which a model computes them.

    A SavedModel lists its outputs by the alphabet; the tap grammar and the numbers within names
    give the depth back. Layers of foreign models are ordered by their numbers and names.
    """

    def part_key(part):
        if part in _SITES:
            return [(0, _SITES.index(part), "")]
        if part in _WHATS:
            return [(1, _WHATS.index(part), "")]
        pieces = re.findall(r"\d+|\D+", part)
        return [(2, int(p), "") if p.isdigit() else (3, 0, p) for p in pieces]

    def key(tap):
        middle = -3 if _UNIT.match(tap) else 0
        return _ENDS.get(tap, middle), [part_key(part) for part in tap.split("/")]

    return sorted(taps, key=key)
