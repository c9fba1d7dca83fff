"""The published implementations, filled from timm's, OpenAI's and BEiT's tensors."""

import torch
import transformers
from checkpoint_layouts import LAYERS, PATCH, SIZE, WIDTH
from parity_google import SIZES, fill, run


def _timm_state(tensors, names):
    """Hugging Face's names of the linear layers and norms of timm's blocks.

    Args:
        names: dict from theirs to timm's; the fused query, key and value are no part of it.
    """
    state = {}
    for i in range(LAYERS):
        for theirs, ours in names.items():
            for end in ("weight", "bias"):
                state[f"{theirs}.{end}".format(i)] = tensors[f"{ours}.{end}".format(i)]
    return state


VIT_NAMES = {
    "encoder.layer.{}.layernorm_before": "blocks.{}.norm1",
    "encoder.layer.{}.attention.output.dense": "blocks.{}.attn.proj",
    "encoder.layer.{}.layernorm_after": "blocks.{}.norm2",
    "encoder.layer.{}.intermediate.dense": "blocks.{}.mlp.fc1",
    "encoder.layer.{}.output.dense": "blocks.{}.mlp.fc2",
}


def _timm_vit_state(tensors):
    state = _timm_state(tensors, VIT_NAMES) | {
        "embeddings.cls_token": tensors["cls_token"],
        "embeddings.position_embeddings": tensors["pos_embed"],
        "embeddings.patch_embeddings.projection.weight": tensors["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": tensors["patch_embed.proj.bias"],
        "layernorm.weight": tensors["norm.weight"],
        "layernorm.bias": tensors["norm.bias"],
    }
    for i in range(LAYERS):
        for n, which in enumerate(("query", "key", "value")):
            rows = slice(n * WIDTH, (n + 1) * WIDTH)
            name = f"encoder.layer.{i}.attention.attention.{which}"
            state[f"{name}.weight"] = tensors[f"blocks.{i}.attn.qkv.weight"][rows]
            state[f"{name}.bias"] = tensors[f"blocks.{i}.attn.qkv.bias"][rows]
    return state


def timm_vit(tensors, images):
    """`ViTForImageClassification`, with the exact GELU."""
    config = transformers.ViTConfig(
        **SIZES, layer_norm_eps=1e-6, num_labels=len(tensors["head.bias"])
    )
    state = {f"vit.{name}": array for name, array in _timm_vit_state(tensors).items()}
    state |= {f"classifier.{end}": tensors[f"head.{end}"] for end in ("weight", "bias")}
    model = fill(transformers.ViTForImageClassification(config), state)
    outputs, taps = run(model, model.vit.encoder.layer, images)
    return taps | {"logits": outputs.logits.numpy()}


def headless(tensors, images):
    """`ViTModel` of an encoder without a head; its logits are the class token, normalised."""
    config = transformers.ViTConfig(**SIZES, layer_norm_eps=1e-6)
    model = transformers.ViTModel(config, add_pooling_layer=False)
    model = fill(model, _timm_vit_state(tensors))
    outputs, taps = run(model, model.encoder.layer, images)
    last = outputs.last_hidden_state.numpy()
    return taps | {"norm": last, "logits": last[:, 0]}


def mae(tensors, images):
    """`ViTMAEModel`, no token masked and noise that keeps their order."""
    config = transformers.ViTMAEConfig(**SIZES, layer_norm_eps=1e-6, mask_ratio=0.0)
    model = fill(transformers.ViTMAEModel(config), _timm_vit_state(tensors))
    places = (SIZE // PATCH) ** 2
    noise = torch.linspace(0, 1, places).repeat(len(images), 1)
    outputs, taps = run(model, model.encoder.layer, images, noise=noise)
    last = outputs.last_hidden_state.numpy()
    return taps | {"norm": last, "logits": last[:, 0]}


def clip(tensors, images):
    """`CLIPVisionModelWithProjection`, whose first hidden state is the normalised embedding."""
    config = transformers.CLIPVisionConfig(
        **SIZES,
        hidden_act="quick_gelu",
        layer_norm_eps=1e-5,
        projection_dim=tensors["visual.proj"].shape[1],
    )
    state = {
        "embeddings.class_embedding": tensors["visual.class_embedding"],
        "embeddings.position_embedding.weight": tensors["visual.positional_embedding"],
        "embeddings.patch_embedding.weight": tensors["visual.conv1.weight"],
    }
    for theirs, ours in (("pre_layrnorm", "ln_pre"), ("post_layernorm", "ln_post")):
        state |= {f"{theirs}.{end}": tensors[f"visual.{ours}.{end}"] for end in ("weight", "bias")}
    for i in range(LAYERS):
        layer, block = f"encoder.layers.{i}", f"visual.transformer.resblocks.{i}"
        for n, which in enumerate("qkv"):
            rows = slice(n * WIDTH, (n + 1) * WIDTH)
            for end in ("weight", "bias"):
                fused = tensors[f"{block}.attn.in_proj_{end}"]
                state[f"{layer}.self_attn.{which}_proj.{end}"] = fused[rows]
        for theirs, ours in (
            *(("self_attn.out_proj", "attn.out_proj"), ("layer_norm1", "ln_1")),
            *(("layer_norm2", "ln_2"), ("mlp.fc1", "mlp.c_fc"), ("mlp.fc2", "mlp.c_proj")),
        ):
            for end in ("weight", "bias"):
                state[f"{layer}.{theirs}.{end}"] = tensors[f"{block}.{ours}.{end}"]
    state = {f"vision_model.{name}": array for name, array in state.items()}
    state["visual_projection.weight"] = tensors["visual.proj"].T
    model = fill(transformers.CLIPVisionModelWithProjection(config), state)
    outputs, taps = run(model, model.vision_model.encoder.layers, images)
    taps["pre_norm"] = taps.pop("embedding")
    return taps | {"projected": outputs.image_embeds.numpy()}


def beit(tensors, images):
    """`BeitForImageClassification`, with a bias for each block or one for all."""
    shared = "rel_pos_bias.relative_position_bias_table" in tensors
    mean = "fc_norm.weight" in tensors
    config = transformers.BeitConfig(
        **SIZES,
        layer_norm_eps=1e-6,
        use_mean_pooling=mean,
        use_relative_position_bias=not shared,
        use_shared_relative_position_bias=shared,
        layer_scale_init_value=0.1,
        num_labels=len(tensors["head.bias"]),
    )
    state = _timm_state(tensors, VIT_NAMES) | {
        "embeddings.cls_token": tensors["cls_token"],
        "embeddings.patch_embeddings.projection.weight": tensors["patch_embed.proj.weight"],
        "embeddings.patch_embeddings.projection.bias": tensors["patch_embed.proj.bias"],
    }
    for end in ("weight", "bias"):
        theirs, ours = ("pooler.layernorm", "fc_norm") if mean else ("layernorm", "norm")
        state[f"{theirs}.{end}"] = tensors[f"{ours}.{end}"]
    table = "relative_position_bias.relative_position_bias_table"
    if shared:
        state[f"encoder.{table}"] = tensors["rel_pos_bias.relative_position_bias_table"]
    for i in range(LAYERS):
        layer, block = f"encoder.layer.{i}", f"blocks.{i}"
        inside = f"{layer}.attention.attention"
        for n, which in enumerate(("query", "key", "value")):
            rows = slice(n * WIDTH, (n + 1) * WIDTH)
            state[f"{inside}.{which}.weight"] = tensors[f"{block}.attn.qkv.weight"][rows]
        state[f"{inside}.query.bias"] = tensors[f"{block}.attn.q_bias"]
        state[f"{inside}.value.bias"] = tensors[f"{block}.attn.v_bias"]
        state[f"{layer}.lambda_1"] = tensors[f"{block}.gamma_1"]
        state[f"{layer}.lambda_2"] = tensors[f"{block}.gamma_2"]
        if not shared:
            state[f"{inside}.{table}"] = tensors[f"{block}.attn.relative_position_bias_table"]
    state = {f"beit.{name}": array for name, array in state.items()}
    state |= {f"classifier.{end}": tensors[f"head.{end}"] for end in ("weight", "bias")}
    model = fill(transformers.BeitForImageClassification(config), state)
    outputs, taps = run(model, model.beit.encoder.layer, images)
    return taps | {"logits": outputs.logits.numpy()}
