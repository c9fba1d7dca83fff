"""ViT, DeiT, MAE, I-JEPA and DINOv2 in the names of transformers (`modeling_vit.py` and others)."""

import numpy as np

from vit_tf.checkpoints.hugging_face.configs import Config
from vit_tf.checkpoints.hugging_face.processing import ends
from vit_tf.checkpoints.plans import Part, Plan, dims, head_part, linear_part, norm_part
from vit_tf.checkpoints.token_parts import TokenNames, vit_embedding_part
from vit_tf.checkpoints.torch_blocks import block_part, dense_part, patches_part

FAMILY = "Hugging Face's Vision Transformers"
ATTENTION = {which: f"attention.attention.{which}" for which in ("query", "key", "value")}
ATTENTION |= {"out": "attention.output.dense"}
VIT = ATTENTION | {
    "norm1": "layernorm_before",
    "norm2": "layernorm_after",
    "fc1": "intermediate.dense",
    "fc2": "output.dense",
}
DINO = ATTENTION | {"norm1": "norm1", "norm2": "norm2", "fc1": "mlp.fc1", "fc2": "mlp.fc2"}
DINO |= {"scale1": "layer_scale1.lambda1", "scale2": "layer_scale2.lambda1"}
GATED = {"fc1": "mlp.weights_in", "fc2": "mlp.weights_out"}
# Names of a block's parts, by what the models of a type may lie under.
TYPES = {"vit": VIT, "deit": VIT, "vit_mae": VIT, "ijepa": VIT}
TYPES |= {"dinov2": DINO, "dinov2_with_registers": DINO}
# What they lie under, where it is not the type.
OUTER = {"vit_mae": "vit."}
HEADS = {"vit": "classifier", "deit": "classifier", "ijepa": "classifier"}


def plan(folder, wishes):
    """The `Plan` of an open folder."""
    config = Config(folder.config)
    kind, tensors = folder.config["model_type"], folder.tensors
    outer = OUTER.get(kind, f"{kind}.")
    outer = outer if f"{outer}embeddings.position_embeddings" in tensors else ""
    inside = {n.removeprefix(outer): t for n, t in tensors.items() if n.startswith(outer)}
    sizes = ("hidden_size", "patch_size", "num_channels")
    width, patch, channels = map(config.whole, sizes)
    image_shape = (*config.pair("image_size"), channels)
    heads = config.whole("num_attention_heads")
    wishes.check_heads(heads, width)
    config.require("qkv_bias", True)
    whole = patches_part("embeddings.patch_embeddings.projection", width, channels, patch)
    whole |= Part(
        {"num_heads": heads, "epsilon": config.number("layer_norm_eps")},
        unused=("embeddings.mask_token",),
    )
    names = TokenNames(
        "embeddings.position_embeddings",
        "embeddings.cls_token",
        "embeddings.distillation_token",
        "embeddings.register_tokens",
    )
    whole |= vit_embedding_part(inside, names, patch, channels, wishes, image_shape)
    whole |= _blocks_part(inside, width, config, TYPES[kind])
    whole |= norm_part("norm", "layernorm.weight", "layernorm.bias", width)
    if "embeddings.distillation_token" in inside:
        whole |= Part({"distillation": "token"})
    whole |= _pooler_part(inside, width, config, wishes)
    whole = _with_heads(whole.under(outer), tensors, width, wishes, kind)
    resampled = kind.startswith("dinov2")
    positions = "bicubic" if kind == "dinov2_with_registers" else "torch"
    if kind == "vit_mae":
        whole |= Part(unused=("decoder.*",))
    images = ends(folder, image_shape, resampled, wishes)
    return Plan("ViT", whole, positions=positions, **images)


def _blocks_part(tensors, width, config, names):
    layers = config.whole("num_hidden_layers")
    gated = config.fields.get("use_swiglu_ffn", False) is True
    names = names | GATED if gated else names
    hidden = dims(tensors, f"encoder.layer.0.{names['fc2']}.weight", 2)[1]
    activation = "swiglu" if gated else config.activation()
    sizes = {"num_layers": layers, "mlp_dim": hidden, "activation": activation}
    parts = [Part(sizes | ({"layer_scale": 1.0} if "scale1" in names else {}))]
    for i in range(layers):
        both = (f"block{i:02d}", f"encoder.layer.{i}")
        parts.append(block_part(*both, names, width, hidden, gated))
    return Part.join(parts)


def _pooler_part(tensors, width, config, wishes):
    """The layer of tanh on the class token of a model without a head, which goes with a new one."""
    name = "pooler.dense"
    # That of an I-JEPA would read its first patch, and is refused as any other tensor.
    if f"{name}.bias" not in tensors or "embeddings.cls_token" not in tensors:
        return Part()
    if wishes.num_classes is not None:
        return Part(unused=(f"{name}.*",))
    config.require("pooler_act", "tanh")
    units = dims(tensors, f"{name}.bias", 1)[0]
    return Part({"representation_dim": units}) | dense_part("pre_logits", name, width, units)


def _with_heads(whole, tensors, width, wishes, kind):
    """The whole with its head, or that of the class token and that of distillation."""
    read = whole.arguments.get("representation_dim", width)

    def head(name):
        names = (f"{name}.weight", f"{name}.bias")
        return head_part(tensors, read, wishes, *names, lambda n: (n, read), np.transpose)

    if "distillation_classifier.bias" in tensors:
        second = head("distillation_classifier").renamed("head/", "distillation_head/")
        return whole | head("cls_classifier") | second | Part({"distillation": "heads"})
    if kind in HEADS:
        return whole | head(HEADS[kind])
    return whole | linear_part(tensors, read, wishes, "classifier")
