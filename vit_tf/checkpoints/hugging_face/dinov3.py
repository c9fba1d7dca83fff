"""DINOv3 in the names of Hugging Face's transformers (`modeling_dinov3_vit.py`).

Its positions are rotary: images may be of any size. What it does in training alone, shifts and
stretches of the positions, is no part of the model here.
"""

from vit_tf.checkpoints.hugging_face.configs import Config
from vit_tf.checkpoints.hugging_face.processing import ends
from vit_tf.checkpoints.plans import Part, Plan, head_part, norm_part
from vit_tf.checkpoints.token_parts import TokenNames, unplaced_part
from vit_tf.checkpoints.torch_blocks import dense_part, gate_part, patches_part, scales_part

FAMILY = "Hugging Face's DINOv3"
TYPES = ("dinov3_vit",)
# Fields that state whether a layer has a bias, as transformers has them where a file is silent.
BIASES = {"query": True, "key": False, "value": True, "proj": True, "mlp": True}
# The one base of rotary positions that `vit_tf.models.embedding.Rotation` has.
BASE = 100.0


def plan(folder, wishes):
    """The `Plan` of an open folder."""
    config, tensors = Config(folder.config), folder.tensors
    sizes = ("hidden_size", "patch_size", "num_channels", "num_attention_heads")
    width, patch, channels, heads = map(config.whole, sizes)
    image_shape = (*config.pair("image_size"), channels)
    wishes.check_heads(heads, width)
    config.require("rope_theta", BASE)
    whole = patches_part("embeddings.patch_embeddings", width, channels, patch)
    whole |= Part(
        {
            "image_shape": image_shape,
            "num_heads": heads,
            "epsilon": config.number("layer_norm_eps"),
            "position_type": "rotary",
            "layer_scale": 1.0,
        },
        unused=("embeddings.mask_token",),
    )
    names = TokenNames(None, "embeddings.cls_token", None, "embeddings.register_tokens")
    whole |= unplaced_part(tensors, names, width, wishes)
    whole |= _blocks_part(width, config)
    whole |= norm_part("norm", "norm.weight", "norm.bias", width)
    whole |= head_part(tensors, width, wishes, "none", "none", lambda n: (n, width))
    return Plan("ViT", whole, any_size=True, **ends(folder, image_shape, True, wishes))


def _blocks_part(width, config):
    layers, hidden = config.whole("num_hidden_layers"), config.whole("intermediate_size")
    biases = {name: config.flag(f"{name}_bias", told) for name, told in BIASES.items()}
    gated = config.flag("use_gated_mlp", False)
    if gated:
        config.require("hidden_act", "silu")
    activation = "swiglu" if gated else config.activation()
    sizes = {"num_layers": layers, "mlp_dim": hidden, "activation": activation}
    parts = [Part(sizes | {"key_bias": biases["key"]})]
    for i in range(layers):
        layer, name = f"block{i:02d}", f"layer.{i}"
        for which in ("query", "key", "value"):
            one = f"{name}.attention.{which[0]}_proj"
            parts.append(dense_part(f"{layer}/{which}", one, width, width, biases[which]))
        out = f"{name}.attention.o_proj"
        parts.append(dense_part(f"{layer}/out", out, width, width, biases["proj"]))
        mlp, bias = f"{name}.mlp", biases["mlp"]
        if gated:
            both = (f"{mlp}.gate_proj", f"{mlp}.up_proj")
            parts.append(gate_part(f"{layer}/expand", *both, width, hidden, bias))
        else:
            parts.append(dense_part(f"{layer}/expand", f"{mlp}.up_proj", width, hidden, bias))
        parts.append(dense_part(f"{layer}/contract", f"{mlp}.down_proj", hidden, width, bias))
        for norm, which in (("attention_norm", "norm1"), ("mlp_norm", "norm2")):
            both = (f"{name}.{which}.{end}" for end in ("weight", "bias"))
            parts.append(norm_part(f"{layer}/{norm}", *both, width))
        scales = (f"{name}.layer_scale{n}.lambda1" for n in (1, 2))
        parts.append(scales_part(layer, *scales, width))
    return Part.join(parts)
