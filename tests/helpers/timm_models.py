"""Tiny models of timm with random weights, the files that it writes of them, and their blocks."""

from functools import partial

import torch
from safetensors.torch import save_file
from torch_hooks import caught
from without_torchvision import import_or_skip

timm = import_or_skip("timm")
SIZES = {"embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 4, "img_size": 20}
DINO = {"num_reg_tokens": 4, "global_pool": "token"}
# The released model that each is of, and what makes it tiny.
MODELS = {
    "dinov3": ("vit_small_patch16_dinov3", DINO),
    "dinov3-qkvb": ("vit_small_patch16_dinov3_qkvb", DINO),
    "dinov3-plus": ("vit_small_plus_patch16_dinov3_qkvb", DINO),
    "clip": ("vit_base_patch16_clip_224", {"num_classes": 10}),
    "clip-quick": ("vit_base_patch16_clip_quickgelu_224", {"num_classes": 10}),
    "mae": ("vit_base_patch16_224", {"num_classes": 0}),
    "mae-tuned": ("vit_base_patch16_224", {"num_classes": 5, "global_pool": "avg"}),
    "rpn": ("vit_base_patch16_rpn_224", {"num_classes": 5}),
}


def make(name, **fields):
    """A model of the table, of random weights and in evaluation."""
    torch.manual_seed(0)
    architecture, options = MODELS[name]
    model = timm.create_model(architecture, **SIZES | options | fields)
    return randomize(model)


def mixer(fields):
    """A Mixer of sizes that timm's functions for models do not take."""
    from timm.models import mlp_mixer

    torch.manual_seed(0)
    return mlp_mixer._create_mixer("mixer_b16_224", **fields)


def bit(fields):
    """A BiT of sizes that timm's functions for models do not take."""
    from timm.models import resnetv2

    torch.manual_seed(0)
    conv = partial(resnetv2.StdConv2d, eps=1e-8)
    fields = fields | {"conv_layer": conv, "stem_type": "fixed"}
    return resnetv2._create_resnetv2("resnetv2_50x1_bit", **fields)


def randomize(model, scale=0.3):
    """Parameters of a normal distribution, those of normalisations and scales around 1."""
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            gain = key.endswith("weight") and parameter.ndim == 1
            parameter.copy_(scale * torch.randn(parameter.shape) + gain)
    return model.eval()


def write(model, path):
    """The file of weights that timm writes of a model, which `model` itself reads."""
    save_file({name: x.contiguous() for name, x in model.state_dict().items()}, path)
    return path


def taps(model, images):
    """dict from tap to what timm makes of images (example, height, width, channel)."""
    modules = {f"block{i:02d}/mlp/sum": block for i, block in enumerate(model.blocks)}
    if not isinstance(getattr(model, "norm_pre", torch.nn.Identity()), torch.nn.Identity):
        modules["pre_norm"] = model.norm_pre
    last = "norm" if not isinstance(model.norm, torch.nn.Identity) else "fc_norm"
    values, logits = caught(model, modules | {last: getattr(model, last)}, images)
    return values | {"logits": logits.numpy()}
