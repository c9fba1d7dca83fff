"""Whether the attention weights that follow from queries and keys are those that a model used."""

from vit_tf.taps import recorder
from vit_tf.taps.attention_weights import attention_layers, computed_weights, contradicts


def attention_taps(model):
    """The taps of the attention weights of Keras attention layers inside a model, checked.

    Args:
        model: a built Keras model of one input, the images.

    Returns:
        dict from `"PATH/weights"`, which `vit_tf.submodel` computes of queries and keys, to the
        names of the values and of the output of that layer; of layers called again the first call.
    """
    if not attention_layers(model):
        return {}
    found, told = recorder.find_taps(model), {}
    for weights in computed_weights(model, found):
        path = weights.removesuffix("/weights")
        if path != weights:
            # A layer that returns its weights too has two outputs.
            told[weights] = (f"{path}/value", path if path in found else f"{path}/0")
    return told


def contradictions(model, taps, names):
    """The paths of the layers whose output differs from what their weights give.

        weights = softmax(query key^T / sqrt(channels of a head))

    These are not what a layer used that masks, or has a rule of its own.

    Args:
        model: the Keras model.
        taps: dict from the names of `attention_taps` to their values for some images.
        names: those of its weights that are looked at.
    """
    layers, told = attention_layers(model), attention_taps(model) if names else {}
    paths = {name: name.removesuffix("/weights") for name in names}
    return [
        path
        for name, path in paths.items()
        if contradicts(layers[path], taps[name], *(taps[tap] for tap in told[name]))
    ]
