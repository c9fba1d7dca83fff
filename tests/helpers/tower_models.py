"""Tiny image encoders of transformers, timm and open_clip, and what they make of images."""

import numpy as np
import torch
import transformers
from checkpoint_families import (  # noqa: F401, of the same module for tests
    assert_matches,
    errors_of,
    pictures,
)
from torch_hooks import caught

SIZES = {"hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 3}
SIZES |= {"intermediate_size": 40, "layer_norm_eps": 1e-3}
# Of 20 pixels the last 2 in either direction are beyond the last whole patch.
VISION = SIZES | {"image_size": 20, "patch_size": 6}
TEXT = SIZES | {"vocab_size": 11, "max_position_embeddings": 5, "projection_size": 24}


def randomize(model, seed=0):
    """The model in evaluation, of random weights: scales around 1, all else around 0."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            scale = key.endswith("weight") and parameter.ndim == 1
            drawn = torch.randn(parameter.shape, generator=generator)
            parameter.copy_(0.3 * drawn + scale)
    return model.eval()


def siglip(kind="vision", **fields):
    """A `SiglipVisionModel`, or with `"whole"` a `SiglipModel`, of a configuration's fields."""
    vision = transformers.SiglipVisionConfig(**VISION | fields)
    if kind == "vision":
        return randomize(transformers.SiglipVisionModel(vision))
    config = transformers.SiglipConfig(TEXT, vision.to_dict())
    return randomize(transformers.SiglipModel(config))


def write(model, folder, processor=True, **options):
    """The folder that transformers writes of a SigLIP, with its processor's file."""
    model.save_pretrained(folder, **options)
    if processor:
        config = getattr(model.config, "vision_config", model.config)
        size = dict.fromkeys(("height", "width"), config.image_size)
        transformers.SiglipImageProcessor(size=size).save_pretrained(folder)
    return folder


def timm_siglip(**fields):
    """A ViT of timm's with the attention pooling of SigLIP and the form of GELU of its releases."""
    from without_torchvision import import_or_skip

    options = {"img_size": 20, "patch_size": 6, "embed_dim": 24, "depth": 2, "num_heads": 3}
    options |= {"mlp_ratio": 2, "class_token": False, "global_pool": "map", "num_classes": 0}
    make = import_or_skip("timm").models.vision_transformer.VisionTransformer
    return randomize(make(**options | {"act_layer": "gelu_tanh"} | fields))


def timm_taps(model, images):
    """dict from tap to what a ViT of timm's makes of images."""
    modules = {"norm": model.norm, "embedding": model.norm_pre}
    modules |= {f"block{i:02d}/mlp/sum": block for i, block in enumerate(model.blocks)}
    tensors, output = caught(model, modules, images)
    return tensors | {"output": output.numpy()}


def state_of(model, prefix=""):
    """The tensors of a model, as NumPy's, by their names after a prefix."""
    return {prefix + name: t.detach().numpy() for name, t in model.state_dict().items()}


def big_vision_siglip(state, heads, stacked):
    """The tensors of a SigLIP of timm's in big_vision's names, with some of the text tower.

    From `models/vit.py` (`MAPHead`, `Encoder1DBlock`) and `models/proj/image_text/two_towers.py`.
    """
    width = state["norm.bias"].size
    split = (heads, width // heads)

    def attention(name, q, k, v, out):
        tensors = {}
        for which, (weight, bias) in {"query": q, "key": k, "value": v}.items():
            tensors[f"{name}/{which}/kernel"] = weight.T.reshape(width, *split)
            tensors[f"{name}/{which}/bias"] = bias.reshape(split)
        tensors[f"{name}/out/kernel"] = state[f"{out}.weight"].T.reshape(*split, width)
        return tensors | {f"{name}/out/bias": state[f"{out}.bias"]}

    def rest(name, norms, mlp):
        tensors = {}
        for i, norm in enumerate(norms):
            tensors[f"{name}/LayerNorm_{i}/scale"] = state[f"{norm}.weight"]
            tensors[f"{name}/LayerNorm_{i}/bias"] = state[f"{norm}.bias"]
        for i in range(2):
            tensors[f"{name}/MlpBlock_0/Dense_{i}/kernel"] = state[f"{mlp}.fc{i + 1}.weight"].T
            tensors[f"{name}/MlpBlock_0/Dense_{i}/bias"] = state[f"{mlp}.fc{i + 1}.bias"]
        return tensors

    def parts(name, count):
        both = (np.split(state[f"{name}.{end}"], count) for end in ("weight", "bias"))
        return list(zip(*both, strict=True))

    blocks = []
    for i in range(2):
        b, a = f"blocks.{i}", "MultiHeadDotProductAttention_0"
        tensors = attention(f"/{a}", *parts(f"{b}.attn.qkv", 3), f"{b}.attn.proj")
        blocks.append(tensors | rest("", (f"{b}.norm1", f"{b}.norm2"), f"{b}.mlp"))
    prefix_name = "Transformer/encoderblock"
    if stacked:
        named = {f"{prefix_name}{name}": np.stack([b[name] for b in blocks]) for name in blocks[0]}
    else:
        named = {f"{prefix_name}_{i}{n}": x for i, b in enumerate(blocks) for n, x in b.items()}
    query = parts("attn_pool.q", 1)
    named |= attention(
        *("MAPHead_0/MultiHeadDotProductAttention_0", *query),
        *(*parts("attn_pool.kv", 2), "attn_pool.proj"),
    )
    named |= rest("MAPHead_0", ("attn_pool.norm",), "attn_pool.mlp")
    named |= {
        "MAPHead_0/probe": state["attn_pool.latent"],
        "embedding/kernel": state["patch_embed.proj.weight"].transpose(2, 3, 1, 0),
        "embedding/bias": state["patch_embed.proj.bias"],
        "pos_embedding": state["pos_embed"],
        "Transformer/encoder_norm/scale": state["norm.weight"],
        "Transformer/encoder_norm/bias": state["norm.bias"],
    }
    stored = {f"params/img/{name}": array for name, array in named.items()}
    text = {"params/t": np.ones(1, "float32"), "params/b": np.ones(1, "float32")}
    return stored | text | {"params/txt/head/bias": np.ones(3, "float32")}


def siglip_taps(model, images, resampled=False):
    """dict from tap to what transformers makes of images."""
    encoder = model.vision_model
    modules = {"embedding": encoder.embeddings, "norm": encoder.post_layernorm}
    layers = enumerate(encoder.encoder.layers)
    modules |= {f"block{i:02d}/mlp/sum": layer for i, layer in layers}
    modules |= {"attended": encoder.head.attention}

    def run(pixels):
        return encoder(pixels, interpolate_pos_encoding=resampled)

    tensors, output = caught(run, modules, images)
    tensors["pooling/attended"] = tensors.pop("attended")[:, 0]
    return tensors | {"pooled": output.pooler_output.numpy()}
