"""MLP-Mixer in the `.npz` files of Google's vision_transformer (`vit_jax/models_mixer.py`)."""

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import Part, Plan, count, dims, head_part, norm_part, square
from vit_tf.checkpoints.token_parts import file_grid, pixels

FAMILY = "Google's MLP-Mixer"


def recognise(tensors):
    """Whether the names are those of this family."""
    return any(name.startswith("MixerBlock_") for name in tensors)


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    wishes.refuse(FAMILY, "pooling", "num_heads")
    *patch, channels, width = dims(tensors, "stem/kernel", 4)
    num_tokens, tokens_mlp = dims(tensors, "MixerBlock_0/token_mixing/Dense_0/kernel", 2)
    channels_mlp = dims(tensors, "MixerBlock_0/channel_mixing/Dense_0/bias", 1)[0]
    layers = count(tensors, r"MixerBlock_(\d+)/")
    stride = square(tensors, "stem/kernel", *patch)
    grid = file_grid(num_tokens, (0,), stride, wishes.image_shape)
    whole = Part(
        {
            "image_shape": pixels(grid, channels),
            "patch_size": stride,
            "num_layers": layers,
            "hidden_dim": width,
            "tokens_mlp_dim": tokens_mlp,
            "channels_mlp_dim": channels_mlp,
            "activation": "gelu_tanh",
        },
        {
            "embedding/kernel": Source({"stem/kernel": (*patch, channels, width)}),
            "embedding/bias": Source({"stem/bias": (width,)}),
        },
    )
    sizes = (num_tokens, width, tokens_mlp, channels_mlp)
    whole |= Part.join([_block_part(i, *sizes) for i in range(layers)])
    whole |= norm_part("norm", "pre_head_layer_norm/scale", "pre_head_layer_norm/bias", width)
    names = ("head/kernel", "head/bias")
    whole |= head_part(tensors, width, wishes, *names, shape=lambda classes: (width, classes))
    return Plan("Mixer", whole)


def _block_part(i, num_tokens, width, tokens_mlp, channels_mlp):
    layer, name = f"block{i:02d}", f"MixerBlock_{i}"
    part, sources = Part(), {}
    for n, norm in enumerate(("token_norm", "channel_norm")):
        ends = (f"{name}/LayerNorm_{n}/scale", f"{name}/LayerNorm_{n}/bias")
        part |= norm_part(f"{layer}/{norm}", *ends, width)
    for weight, tensor, shape in (
        ("token_expand", "token_mixing/Dense_0", (num_tokens, tokens_mlp)),
        ("token_contract", "token_mixing/Dense_1", (tokens_mlp, num_tokens)),
        ("channel_expand", "channel_mixing/Dense_0", (width, channels_mlp)),
        ("channel_contract", "channel_mixing/Dense_1", (channels_mlp, width)),
    ):
        sources[f"{layer}/{weight}/kernel"] = Source({f"{name}/{tensor}/kernel": shape})
        sources[f"{layer}/{weight}/bias"] = Source({f"{name}/{tensor}/bias": shape[1:]})
    return part | Part(sources=sources)
