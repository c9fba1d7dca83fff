"""The image encoders of CLIP and MetaCLIP 2 in the names of transformers (`modeling_clip.py`)."""

from functools import partial

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.hugging_face.configs import Config, image_fields
from vit_tf.checkpoints.hugging_face.processing import ends
from vit_tf.checkpoints.plans import Part, Plan, dims, norm_part
from vit_tf.checkpoints.token_parts import file_grid, fit_positions, pixels
from vit_tf.checkpoints.torch_blocks import block_part, patches_part

FAMILY = "Hugging Face's CLIP"
# With a text encoder, and without.
WHOLE = ("clip", "metaclip_2")
TYPES = (*WHOLE, "clip_vision_model", "metaclip_2_vision_model")
# Those of `CLIPVisionConfig`, of which a whole CLIP's `vision_config` holds what differs.
DEFAULTS = {
    "hidden_size": 768,
    "intermediate_size": 3072,
    "num_hidden_layers": 12,
    "num_attention_heads": 12,
    "num_channels": 3,
    "image_size": 224,
    "patch_size": 32,
    "hidden_act": "quick_gelu",
    "layer_norm_eps": 1e-5,
}
# The text encoder, and what it takes to compare images with texts.
UNUSED = ("text_model.*", "text_projection.*", "logit_scale", "vision_model.*.position_ids")
ATTENTION = {which: f"self_attn.{which[0]}_proj" for which in ("query", "key", "value")}
NAMES = ATTENTION | {
    "out": "self_attn.out_proj",
    "norm1": "layer_norm1",
    "norm2": "layer_norm2",
    "fc1": "mlp.fc1",
    "fc2": "mlp.fc2",
}


def plan(folder, wishes):
    """The `Plan` of an open folder."""
    wishes.refuse(FAMILY, "pooling")
    config = Config(DEFAULTS | image_fields(folder, WHOLE))
    sizes = ("hidden_size", "patch_size", "num_channels", "num_attention_heads")
    width, patch, channels, heads = map(config.whole, sizes)
    wishes.check_heads(heads, width)
    config.require("layer_norm_eps", DEFAULTS["layer_norm_eps"])
    image_shape = (*config.pair("image_size"), channels)
    whole = patches_part("embeddings.patch_embedding", width, channels, patch, bias=False)
    whole |= _positions_part(width, channels, patch, image_shape, folder.tensors)
    hidden, layers = config.whole("intermediate_size"), config.whole("num_hidden_layers")
    sizes = {"num_layers": layers, "num_heads": heads, "mlp_dim": hidden}
    whole |= Part(sizes | {"activation": config.activation()})
    for i in range(layers):
        whole |= block_part(f"block{i:02d}", f"encoder.layers.{i}", NAMES, width, hidden)
    for layer, name in (("pre_norm", "pre_layrnorm"), ("norm", "post_layernorm")):
        whole |= norm_part(layer, f"{name}.weight", f"{name}.bias", width)
    whole = whole.under("vision_model.") | _projection_part(folder.tensors, width)
    whole |= Part({"num_classes": wishes.num_classes or None}, unused=UNUSED, new=("head/*",))
    images = ends(folder, image_shape, False, wishes)
    return Plan("CLIPViT", whole, positions="torch", **images)


def _positions_part(width, channels, patch, image_shape, tensors):
    name = "embeddings.position_embedding.weight"
    num_positions = dims(tensors, f"vision_model.{name}", 2)[0]
    grid = file_grid(num_positions, (1,), patch, told=image_shape)
    fit = partial(fit_positions, grid=grid, prefix=1)
    token = Source({"embeddings.class_embedding": (width,)}, partial(np.reshape, shape=(1, 1, -1)))
    return Part(
        {"image_shape": pixels(grid, channels)},
        {
            "embedding/prefix": token,
            "embedding/positions": Source({name: (num_positions, width)}, fit),
        },
    )


def _projection_part(tensors, width):
    """The projection; where the file has none, one that hands on the class token."""
    name = "visual_projection.weight"
    if name not in tensors:
        identity = Source({}, partial(np.eye, width, dtype="float32"))
        return Part({"projection_dim": width}, {"projection/kernel": identity})
    units = dims(tensors, name, 2)[0]
    source = Source({name: (units, width)}, np.transpose)
    return Part({"projection_dim": units}, {"projection/kernel": source})
