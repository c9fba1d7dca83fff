"""One ViT with a class token in three packages, all with the same weights."""

from benchmarks.weights import fill, fill_torch, numbers, of_torch

_HUGGING_FACE = {
    "layernorm_before": "attention_norm",
    "attention.attention.query": "query",
    "attention.attention.key": "key",
    "attention.attention.value": "value",
    "attention.output.dense": "out",
    "layernorm_after": "mlp_norm",
    "intermediate.dense": "expand",
    "output.dense": "contract",
}
_OUTSIDE = {
    "vit.embeddings.cls_token": "embedding/prefix",
    "vit.embeddings.position_embeddings": "embedding/positions",
    "vit.embeddings.patch_embeddings.projection": "embedding/patches",
    "vit.layernorm": "norm",
    "classifier": "head",
}


def ours(**config):
    """A `vit_tf.ViT`; arguments are its own."""
    import vit_tf

    return fill(vit_tf.ViT(**config))


def hugging_face(
    image_shape, patch_size, num_layers, num_heads, hidden_dim, mlp_dim, num_classes=1000
):
    """A `transformers.ViTForImageClassification`, in evaluation mode."""
    import transformers

    config = transformers.ViTConfig(
        image_size=image_shape[0],
        patch_size=patch_size,
        num_hidden_layers=num_layers,
        num_attention_heads=num_heads,
        hidden_size=hidden_dim,
        intermediate_size=mlp_dim,
        layer_norm_eps=1e-6,
        hidden_dropout_prob=0.0,
        attention_probs_dropout_prob=0.0,
        num_labels=num_classes,
    )
    model = transformers.ViTForImageClassification(config)
    return fill_torch(model, _path)


def _path(name):
    """This package's path of a parameter of Hugging Face's."""
    if name in _OUTSIDE:
        return _OUTSIDE[name]
    layer, _, end = name.rpartition(".")
    if layer.startswith("vit.encoder.layer."):
        index, _, inside = layer.removeprefix("vit.encoder.layer.").partition(".")
        site = f"block{int(index):02d}/{_HUGGING_FACE[inside]}"
    else:
        site = _OUTSIDE[layer]
    return of_torch(site, end)


def keras_hub(
    image_shape, patch_size, num_layers, num_heads, hidden_dim, mlp_dim, num_classes=1000
):
    """A `keras.Model` of `keras_hub.models.ViTBackbone` and a head on its class token."""
    import keras
    from keras_hub.models import ViTBackbone

    sides = (patch_size, patch_size)
    backbone = ViTBackbone(image_shape, sides, num_layers, num_heads, hidden_dim, mlp_dim)
    head = keras.layers.Dense(num_classes, name="head")
    model = keras.Model(backbone.input, head(backbone.output[:, 0]))
    embedding = backbone.get_layer("vit_patching_and_embedding")
    encoder = backbone.get_layer("vit_encoder")
    _fill(embedding.patch_embedding, "embedding/patches")
    embedding.class_token.assign(numbers("embedding/prefix", embedding.class_token.shape))
    table = embedding.position_embedding.embeddings
    table.assign(numbers("embedding/positions", (1, *table.shape))[0])
    for index, layer in enumerate(encoder.encoder_layers):
        block = f"block{index:02d}"
        _fill(layer.layer_norm_1, f"{block}/attention_norm", "gamma", "beta")
        _fill(layer.layer_norm_2, f"{block}/mlp_norm", "gamma", "beta")
        _fill(layer.mlp.dense_1, f"{block}/expand")
        _fill(layer.mlp.dense_2, f"{block}/contract")
        shapes = [weight.shape for weight in layer.mha.weights]
        flat = [(hidden_dim, hidden_dim), (hidden_dim,)] * 4
        paths = [f"{block}/{n}/{e}" for n in _HEADS for e in ("kernel", "bias")]
        values = [numbers(*pair) for pair in zip(paths, flat, strict=True)]
        layer.mha.set_weights([v.reshape(s) for v, s in zip(values, shapes, strict=True)])
    _fill(encoder.layer_norm, "norm", "gamma", "beta")
    _fill(head, "head")
    return model


_HEADS = ("query", "key", "value", "out")


def _fill(layer, site, *names):
    names = names or ("kernel", "bias")
    pairs = zip(layer.weights, names, strict=True)
    layer.set_weights([numbers(f"{site}/{name}", weight.shape) for weight, name in pairs])
