"""BEiT in the names of Hugging Face's transformers (`modeling_beit.py`)."""

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.hugging_face.configs import Config
from vit_tf.checkpoints.hugging_face.processing import ends
from vit_tf.checkpoints.hugging_face.vits import VIT
from vit_tf.checkpoints.plans import Part, Plan, head_part, norm_part
from vit_tf.checkpoints.torch_blocks import block_part, patches_part, scales_part
from vit_tf.tokens import TokenGrid

FAMILY = "Hugging Face's BEiT"
TYPES = ("beit",)
TABLE = "relative_position_bias.relative_position_bias_table"
# That of masked patches, indices that follow from the size, and heads that predict visual tokens.
UNUSED = ("*embeddings.mask_token", "*relative_position_index", "lm_head.*")


def plan(folder, wishes):
    """The `Plan` of an open folder."""
    config, tensors = Config(folder.config), folder.tensors
    outer = "beit." if "beit.embeddings.cls_token" in tensors else ""
    sizes = ("hidden_size", "patch_size", "num_channels", "num_attention_heads")
    width, patch, channels, heads = map(config.whole, sizes)
    wishes.check_heads(heads, width)
    config.require("use_absolute_position_embeddings", False)
    shared = config.flag("use_shared_relative_position_bias", False)
    config.require("use_relative_position_bias", not shared)
    image_shape = (*config.pair("image_size"), channels)
    grid = TokenGrid.of_patches(image_shape, patch, prefix=1)
    table = ((2 * grid.rows - 1) * (2 * grid.columns - 1) + 3, heads)
    whole = patches_part("embeddings.patch_embeddings.projection", width, channels, patch)
    whole |= Part(
        {
            "image_shape": image_shape,
            "num_heads": heads,
            "shared_bias": shared,
            "epsilon": config.number("layer_norm_eps"),
        },
        {"embedding/prefix": Source({"embeddings.cls_token": (1, 1, width)})},
    )
    if shared:
        whole |= Part(sources={"bias/table": Source({f"encoder.{TABLE}": table})})
    scaled = f"{outer}encoder.layer.0.lambda_1" in tensors
    whole |= _blocks_part(width, config, None if shared else table, scaled)
    whole = whole.under(outer) | _end_part(tensors, outer, width, wishes)
    images = ends(folder, image_shape, False, wishes)
    return Plan("BEiT", whole | Part(unused=UNUSED), positions="torch", **images)


def _blocks_part(width, config, table, scaled):
    layers, hidden = config.whole("num_hidden_layers"), config.whole("intermediate_size")
    sizes = {"num_layers": layers, "mlp_dim": hidden, "activation": config.activation()}
    parts = [Part(sizes | ({} if scaled else {"layer_scale": None}))]
    for i in range(layers):
        layer, name = f"block{i:02d}", f"encoder.layer.{i}"
        block = block_part(layer, name, VIT, width, hidden)
        # Keys have no bias.
        block.sources.pop(f"{layer}/key/bias")
        parts.append(block)
        if scaled:
            parts.append(scales_part(layer, f"{name}.lambda_1", f"{name}.lambda_2", width))
        if table:
            source = Source({f"{name}.attention.attention.{TABLE}": table})
            parts.append(Part(sources={f"{layer}_bias/table": source}))
    return Part.join(parts)


def _end_part(tensors, outer, width, wishes):
    """The last norm, whose name determines the pooling, and the head."""
    mean = f"{outer}pooler.layernorm"
    # Models that predict visual tokens have it next to the encoder.
    token = f"{outer}layernorm" if f"{outer}layernorm.weight" in tensors else "layernorm"
    name = mean if f"{mean}.weight" in tensors else token
    pooling = wishes.pooling or ("gap" if name == mean else "cls")
    layer = "fc_norm" if pooling == "gap" else "norm"
    norm = norm_part(layer, f"{name}.weight", f"{name}.bias", width)
    names = ("classifier.weight", "classifier.bias")
    head = head_part(tensors, width, wishes, *names, lambda n: (n, width), np.transpose)
    return Part({"pooling": pooling}) | norm | head
