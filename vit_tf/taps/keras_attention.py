"""Features that are the attention weights of Keras' own attention layers, and their checks."""

from vit_tf.taps.attention_weights import attention_layers, contradicts
from vit_tf.taps.submodels import submodel


class KerasAttention:
    """Features that are the attention weights of the Keras attention layers inside a model.

        weights = softmax(query key^T / sqrt(channels of a head))

    of what a layer projects its input to. Whether these are the weights that it used, without a
    mask or a rule of its own, can be checked: with its values they have to give its output.

    Args:
        model: a built Keras model of one input, the images.
        paths: those of `attention_layers` that are read; all by default.

    Raises:
        ValueError: for a model without such layers.
    """

    token_grid = None

    def __init__(self, model, paths=None):
        self.name, layers = model.name, attention_layers(model)
        if not layers:
            raise ValueError(
                "Expected a model with keras.layers.MultiHeadAttention inside. "
                f"Received: {model.name!r} without"
            )
        self._layers = {path: layers[path] for path in (layers if paths is None else paths)}
        weights = {f"{path}/weights": path for path in self._layers}
        self._weights = submodel(model, *weights)
        values = [f"{path}/value" for path in self._layers]
        self._all = submodel(model, *self._layers, *values, *weights)

    def __call__(self, images):
        """Dict from `"PATH/weights"` to weights of shape (example, head, query, key)."""
        taps = self._weights(images)
        return {f"{path}/weights": taps[f"{path}/weights"] for path in self._layers}

    def contradictions(self, images):
        """The paths of the layers that put out something else than these weights would give."""
        taps = self._all(images)
        return [
            path
            for path, layer in self._layers.items()
            if contradicts(layer, taps[f"{path}/weights"], taps[f"{path}/value"], taps[path])
        ]
