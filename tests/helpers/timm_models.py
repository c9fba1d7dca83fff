"""Tiny models of timm with random weights, the files that it writes of them, and their blocks."""

import sys
from unittest.mock import MagicMock

import numpy as np
import torch
from safetensors.torch import save_file


def _import_timm():
    """timm, whose data pipeline alone needs torchvision: a stand-in where that does not import."""
    try:
        import timm
    except (ImportError, RuntimeError):
        parts = ("", ".datasets", ".models", ".models.feature_extraction", ".ops", ".ops.misc")
        parts += (".transforms", ".transforms.functional", ".utils")
        stand_ins = {f"torchvision{part}": MagicMock() for part in parts}
        for name in [name for name in sys.modules if name.partition(".")[0] == "timm"]:
            del sys.modules[name]
        sys.modules.update(stand_ins)
        try:
            import timm
        finally:
            # transformers asks whether there is a torchvision, and is to find none.
            for name in stand_ins:
                sys.modules.pop(name, None)
    return timm


timm = _import_timm()
SIZES = {"embed_dim": 24, "depth": 2, "num_heads": 3, "patch_size": 4, "img_size": 20}
DINO = {"num_reg_tokens": 4, "global_pool": "token"}
EVA = {"num_classes": 5, "ref_feat_shape": (16, 16)}
# The released model that each is of, and what makes it tiny.
MODELS = {
    "dinov3": ("vit_small_patch16_dinov3", DINO),
    "dinov3-qkvb": ("vit_small_patch16_dinov3_qkvb", DINO),
    "dinov3-plus": ("vit_small_plus_patch16_dinov3_qkvb", DINO),
    "eva02-small": ("eva02_small_patch14_224", EVA),
    "eva02-base": ("eva02_base_patch14_224", EVA),
    "eva02-clip": ("eva02_base_patch16_clip_224", EVA),
}


def make(name, **fields):
    """A model of the table, of random weights and in evaluation."""
    torch.manual_seed(0)
    architecture, options = MODELS[name]
    model = timm.create_model(architecture, **SIZES | options | fields)
    return randomize(model)


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
    found = {}

    def catch(tap):
        def hook(module, inputs, output):
            found[tap] = output.detach().numpy()

        return hook

    hooks = [
        block.register_forward_hook(catch(f"block{i:02d}/mlp/sum"))
        for i, block in enumerate(model.blocks)
    ]
    last = "norm" if not isinstance(model.norm, torch.nn.Identity) else "fc_norm"
    hooks.append(getattr(model, last).register_forward_hook(catch(last)))
    with torch.no_grad():
        logits = model(torch.tensor(np.ascontiguousarray(images.transpose(0, 3, 1, 2))))
    for hook in hooks:
        hook.remove()
    return found | {"logits": logits.numpy()}
