"""One ViT in three packages, and the same random weights for every package's model."""

from __future__ import annotations

import zlib
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

if TYPE_CHECKING:
    import keras
    import torch

    import vit_tf


Model = TypeVar("Model", bound="keras.Model")


def numbers(path: str, shape: Sequence[int]) -> np.ndarray:
    """Random numbers that follow from a name: of scales and shifts, small changes of one."""
    rng = np.random.default_rng(zlib.crc32(path.encode()))
    values = rng.normal(0.0, 0.02, shape)
    return (values + path.endswith("gamma")).astype(np.float32)


def images(count: int, size: int = 224) -> np.ndarray:
    """Images of 4 x 4 random colours and noise, of shape (example, height, width, channel)."""
    rng = np.random.default_rng(0)
    colours = rng.uniform(-0.9, 0.9, (count, 4, 4, 3)).astype(np.float32)
    large = colours.repeat(size // 4, axis=1).repeat(size // 4, axis=2)
    return large + rng.uniform(-0.1, 0.1, large.shape).astype(np.float32)


def fill(model: Model) -> Model:
    """Gives every weight of one of this package's models its numbers, and returns the model."""
    outer = f"{model.name}/"
    for weight in model.weights:
        weight.assign(numbers(weight.path.removeprefix(outer), weight.shape))
    return model


def fill_torch(model: torch.nn.Module, path: Callable) -> torch.nn.Module:
    """Gives every parameter of a torch model the numbers of its `path` here; evaluation mode."""
    import torch

    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(torch.tensor(_as_torch(path(name), tuple(parameter.shape))))
    return model.eval()


def of_torch(layer: str, end: str) -> str:
    """The path of the `"weight"` or `"bias"` of a layer with this package's name."""
    norm = "norm" in layer.rpartition("/")[2]
    ends = {"weight": "gamma", "bias": "beta"} if norm else {"weight": "kernel", "bias": "bias"}
    return f"{layer}/{ends[end]}"


def _as_torch(path: str, shape: tuple[int, ...]) -> np.ndarray:
    if len(shape) == 4:
        out, into, *sides = shape
        return numbers(path, (*sides, into, out)).transpose(3, 2, 0, 1).copy()
    return numbers(path, shape[::-1]).T.copy() if len(shape) == 2 else numbers(path, shape)


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


def vit(**config: Any) -> vit_tf.ViT:
    """A `vit_tf.ViT`; arguments are its own."""
    import vit_tf

    return fill(vit_tf.ViT(**config))


_CONFIG = {
    "patch_size": "patch_size",
    "num_layers": "num_hidden_layers",
    "num_heads": "num_attention_heads",
    "hidden_dim": "hidden_size",
    "mlp_dim": "intermediate_size",
    "num_classes": "num_labels",
}


def hugging_face(
    image_shape: tuple[int, int, int], num_classes: int = 1000, **sizes: int
) -> torch.nn.Module:
    """A `transformers.ViTForImageClassification`, in evaluation mode."""
    import transformers

    fields = {_CONFIG[key]: value for key, value in (sizes | {"num_classes": num_classes}).items()}
    fields |= {"image_size": image_shape[0], "layer_norm_eps": 1e-6}
    fields |= {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**fields))
    return fill_torch(model, _path)


def _path(name: str) -> str:
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
    image_shape: tuple[int, int, int],
    patch_size: int,
    num_layers: int,
    num_heads: int,
    hidden_dim: int,
    mlp_dim: int,
    num_classes: int = 1000,
) -> keras.Model:
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


def _fill(layer: keras.layers.Layer, site: str, *names: str) -> None:
    names = names or ("kernel", "bias")
    pairs = zip(layer.weights, names, strict=True)
    layer.set_weights([numbers(f"{site}/{name}", weight.shape) for weight, name in pairs])
