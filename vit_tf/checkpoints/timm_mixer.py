"""MLP-Mixer in timm's names (`mlp_mixer.py`), which has the exact GELU."""

import numpy as np

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import Part, Plan, count, dims, head_part, norm_part
from vit_tf.checkpoints.token_parts import file_grid, pixels
from vit_tf.checkpoints.torch_blocks import dense_part, patch_dims, rows_first

FAMILY = "MLP-Mixer in timm's names"
TOKENS, CHANNELS = "mlp_tokens", "mlp_channels"


def recognise(tensors):
    """Whether the names are those of this family."""
    return f"blocks.0.{TOKENS}.fc1.weight" in tensors and "stem.proj.weight" in tensors


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    wishes.refuse(FAMILY, "pooling", "num_heads")
    width, channels, patch = patch_dims(tensors, "stem.proj.weight")
    tokens_mlp, num_tokens = dims(tensors, f"blocks.0.{TOKENS}.fc1.weight", 2)
    channels_mlp = dims(tensors, f"blocks.0.{CHANNELS}.fc1.bias", 1)[0]
    layers = count(tensors, r"blocks\.(\d+)\.")
    told = wishes.config.get("image_shape")
    grid = file_grid(num_tokens, (0,), patch, wishes.image_shape, told)
    parts = [
        Part(
            {
                "image_shape": pixels(grid, channels),
                "patch_size": patch,
                "num_layers": layers,
                "hidden_dim": width,
                "tokens_mlp_dim": tokens_mlp,
                "channels_mlp_dim": channels_mlp,
                "activation": wishes.config.get("activation", "gelu"),
            },
            {
                "embedding/kernel": Source(
                    {"stem.proj.weight": (width, channels, patch, patch)}, rows_first
                ),
                "embedding/bias": Source({"stem.proj.bias": (width,)}),
            },
        )
    ]
    for i in range(layers):
        layer, name = f"block{i:02d}", f"blocks.{i}"
        for norm, stored in (("token_norm", "norm1"), ("channel_norm", "norm2")):
            both = (f"{name}.{stored}.{end}" for end in ("weight", "bias"))
            parts.append(norm_part(f"{layer}/{norm}", *both, width))
        for kind, mlp, outer, hidden in (
            ("token", TOKENS, num_tokens, tokens_mlp),
            ("channel", CHANNELS, width, channels_mlp),
        ):
            parts.append(dense_part(f"{layer}/{kind}_expand", f"{name}.{mlp}.fc1", outer, hidden))
            parts.append(dense_part(f"{layer}/{kind}_contract", f"{name}.{mlp}.fc2", hidden, outer))
    parts.append(norm_part("norm", "norm.weight", "norm.bias", width))
    names = ("head.weight", "head.bias")
    parts.append(head_part(tensors, width, wishes, *names, lambda n: (n, width), np.transpose))
    return Plan("Mixer", Part.join(parts), "bicubic")
