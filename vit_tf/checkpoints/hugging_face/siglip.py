"""The image encoder of SigLIP and SigLIP 2 in the names of transformers (`modeling_siglip.py`)."""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.hugging_face.clip import NAMES
from vit_tf.checkpoints.hugging_face.configs import Config, image_fields
from vit_tf.checkpoints.hugging_face.processing import ends
from vit_tf.checkpoints.plans import Part, Plan, norm_part
from vit_tf.checkpoints.torch_blocks import block_part, patches_part
from vit_tf.checkpoints.towers.pooling import TRANSFORMERS, pooling_part
from vit_tf.models.siglip import whole_patches

FAMILY = "Hugging Face's SigLIP"
# Those with a text encoder, and those without; SigLIP 2 but for NaFlex is a SigLIP.
WHOLE, VISION = ("siglip", "siglip2"), ("siglip_vision_model", "siglip2_vision_model")
TYPES = (*WHOLE, *VISION)
# The other encoder, and what it takes to compare both.
UNUSED = ("text_model.*", "logit_scale", "logit_bias")
# What transformers takes where a file is silent, as those of the base models are.
DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 16,
    "hidden_act": "gelu_pytorch_tanh",
    "layer_norm_eps": 1e-6,
}


def plan(folder, wishes):
    """The `Plan` of an open folder."""
    config = _config(folder)
    wishes.refuse(FAMILY, "pooling")
    sizes = ("hidden_size", "intermediate_size", "num_hidden_layers", "patch_size")
    width, hidden, layers, patch = map(config.whole, sizes)
    channels, heads = config.whole("num_channels"), config.whole("num_attention_heads")
    wishes.check_heads(heads, width)
    config.require("vision_use_head", True)
    image_shape = (*config.pair("image_size"), channels)
    grid = whole_patches(image_shape, patch)
    places = {"embeddings.position_embedding.weight": (grid.num_tokens, width)}
    whole = patches_part("embeddings.patch_embedding", width, channels, patch)
    whole |= Part(
        {
            "image_shape": image_shape,
            "num_layers": layers,
            "num_heads": heads,
            "mlp_dim": hidden,
            "num_classes": wishes.num_classes or None,
            "activation": config.activation(),
            "epsilon": config.number("layer_norm_eps"),
        },
        {"embedding/positions": Source(places, partial(np.expand_dims, axis=0))},
        new=("head/*",),
    )
    for i in range(layers):
        whole |= block_part(f"block{i:02d}", f"encoder.layers.{i}", NAMES, width, hidden)
    whole |= norm_part("norm", "post_layernorm.weight", "post_layernorm.bias", width)
    whole |= pooling_part("head", TRANSFORMERS, width, hidden)
    whole = whole.under("vision_model.") | Part(unused=UNUSED)
    if "classifier.bias" in folder.tensors:
        whole |= _classifier_part(wishes)
    images = ends(folder, image_shape, False, wishes)
    return Plan("SigLIPViT", whole, positions="torch", **images)


def _config(folder):
    """The `Config` of the image encoder."""
    kind = folder.config["model_type"]
    if kind.startswith("siglip2"):
        raise ValueError(
            "Expected a SigLIP of images of one size, as fixed-resolution SigLIP 2 is (model_type "
            f"'siglip'). Received: NaFlex, whose number of patches varies, model_type={kind!r}"
        )
    return Config(DEFAULTS | image_fields(folder, WHOLE))


def _classifier_part(wishes):
    if wishes.num_classes is None:
        raise ValueError(
            "Expected num_classes, for a new head: the file's reads the mean of the tokens, which "
            "no model here does. Received: num_classes=None"
        )
    return Part(unused=("classifier.*",))
