"""Random tensors by the names and in the shapes of public checkpoints, tiny ones.

Written apart from the loaders, from what the authors' code stores. Everything is random, scales
around 1 and the rest around 0, so that no tensor can be mistaken for another or left out unseen.
"""

import numpy as np

WIDTH, HEADS, HIDDEN, LAYERS, PATCH, SIZE, CLASSES = 24, 3, 40, 2, 8, 32, 5
PLACES = (SIZE // PATCH) ** 2


class Tensors(dict):
    """dict of random float32 arrays, each drawn when it is named."""

    def __init__(self, seed=0):
        self.rng = np.random.default_rng(seed)

    def draw(self, name, *shape, scale=0.3):
        is_scale = name.endswith(("scale", "gamma")) or "norm" in name.lower() or "ln_" in name
        is_scale = is_scale and name.endswith(("scale", "gamma", "weight"))
        self[name] = (scale * self.rng.normal(size=shape) + is_scale).astype(np.float32)

    def pair(self, name, *shape, ends=("kernel", "bias")):
        """A kernel and a bias for its last axis."""
        self.draw(f"{name}/{ends[0]}", *shape)
        self.draw(f"{name}/{ends[1]}", shape[-1])

    def linear(self, name, inputs, outputs):
        """A weight and a bias of torch."""
        self.draw(f"{name}.weight", outputs, inputs)
        self.draw(f"{name}.bias", outputs)

    def norm(self, name, width=WIDTH):
        self.draw(f"{name}.weight", width)
        self.draw(f"{name}.bias", width)


def google_vit(names="original", cls=True, pre_logits=None, head=CLASSES, units=None, seed=0):
    """vision_transformer's or, with `"big_vision"` or `"stacked"`, big_vision's names."""
    t = Tensors(seed)
    patch, channels, positions_count = PATCH, 3, PLACES
    if units is not None:
        channels = _google_stem(t, units)
        patch, positions_count = 1, (SIZE // 4 // 2 ** max(len(units) - 1, 0)) ** 2
    t.pair("embedding", patch, patch, channels, WIDTH)
    if cls:
        t.draw("cls", 1, 1, WIDTH)
    old = names == "original"
    positions = "Transformer/posembed_input/pos_embedding" if old else "pos_embedding"
    t.draw(positions, 1, positions_count + (cls and old), WIDTH)
    attention, norms, mlp = (
        ("MultiHeadDotProductAttention_1", (0, 2), "MlpBlock_3")
        if old
        else ("MultiHeadDotProductAttention_0", (0, 1), "MlpBlock_0")
    )
    for i in range(1 if names == "stacked" else LAYERS):
        b = "Transformer/encoderblock" + ("" if names == "stacked" else f"_{i}")
        depth = (LAYERS,) if names == "stacked" else ()
        split = (HEADS, WIDTH // HEADS)
        for norm in norms:
            t.draw(f"{b}/LayerNorm_{norm}/scale", *depth, WIDTH)
            t.draw(f"{b}/LayerNorm_{norm}/bias", *depth, WIDTH)
        for which in ("query", "key", "value"):
            t.draw(f"{b}/{attention}/{which}/kernel", *depth, WIDTH, *split)
            t.draw(f"{b}/{attention}/{which}/bias", *depth, *split)
        t.draw(f"{b}/{attention}/out/kernel", *depth, *split, WIDTH)
        t.draw(f"{b}/{attention}/out/bias", *depth, WIDTH)
        for n, (inputs, outputs) in enumerate(((WIDTH, HIDDEN), (HIDDEN, WIDTH))):
            t.draw(f"{b}/{mlp}/Dense_{n}/kernel", *depth, inputs, outputs)
            t.draw(f"{b}/{mlp}/Dense_{n}/bias", *depth, outputs)
    t.draw("Transformer/encoder_norm/scale", WIDTH)
    t.draw("Transformer/encoder_norm/bias", WIDTH)
    if pre_logits:
        t.pair("pre_logits", WIDTH, pre_logits)
    if head:
        t.pair("head", pre_logits or WIDTH, head)
    return t


def _google_stem(t, units):
    """The ResNet of a hybrid; returns its number of channels. Its kernels are not small."""
    t.draw("conv_root/kernel", 7, 7, 3, 64, scale=1)
    t.draw("gn_root/scale", 1, 1, 1, 64)
    t.draw("gn_root/bias", 1, 1, 1, 64)
    before = 64
    for s, depth in enumerate(units):
        inner = 64 * 2**s
        for u in range(depth):
            b = f"block{s + 1}/unit{u + 1}"
            shapes = [(1, 1, before, inner), (3, 3, inner, inner), (1, 1, inner, 4 * inner)]
            for n, shape in enumerate(shapes, 1):
                t.draw(f"{b}/conv{n}/kernel", *shape, scale=1)
                t.pair(f"{b}/gn{n}", shape[-1], ends=("scale", "bias"))
            if u == 0:
                t.draw(f"{b}/conv_proj/kernel", 1, 1, before, 4 * inner, scale=1)
                t.pair(f"{b}/gn_proj", 4 * inner, ends=("scale", "bias"))
            before = 4 * inner
    return before


def google_bit(units=(1, 2), width=32, head=CLASSES, seed=0):
    t = Tensors(seed)
    conv, norm = "standardized_conv2d/kernel", "group_norm"
    t.draw(f"resnet/root_block/{conv}", 7, 7, 3, width)
    before = width
    for s, depth in enumerate(units):
        inner = width * 2**s
        for u in range(depth):
            b = f"resnet/block{s + 1}/unit{u + 1:02d}"
            shapes = [(1, 1, before, inner), (3, 3, inner, inner), (1, 1, inner, 4 * inner)]
            for part, shape in zip("abc", shapes, strict=True):
                t.draw(f"{b}/{part}/{conv}", *shape)
                t.draw(f"{b}/{part}/{norm}/gamma", shape[2])
                t.draw(f"{b}/{part}/{norm}/beta", shape[2])
            if u == 0:
                t.draw(f"{b}/a/proj/{conv}", 1, 1, before, 4 * inner)
            before = 4 * inner
    t.pair("resnet/group_norm", before, ends=("gamma", "beta"))
    t.pair("resnet/head/conv2d", 1, 1, before, head)
    return t


def google_mixer(tokens_mlp=10, seed=0):
    t = Tensors(seed)
    t.pair("stem", PATCH, PATCH, 3, WIDTH)
    for i in range(LAYERS):
        b = f"MixerBlock_{i}"
        for n in range(2):
            t.pair(f"{b}/LayerNorm_{n}", WIDTH, ends=("scale", "bias"))
        t.pair(f"{b}/token_mixing/Dense_0", PLACES, tokens_mlp)
        t.pair(f"{b}/token_mixing/Dense_1", tokens_mlp, PLACES)
        t.pair(f"{b}/channel_mixing/Dense_0", WIDTH, HIDDEN)
        t.pair(f"{b}/channel_mixing/Dense_1", HIDDEN, WIDTH)
    t.pair("pre_head_layer_norm", WIDTH, ends=("scale", "bias"))
    t.pair("head", WIDTH, CLASSES)
    return t


def timm_vit(head=CLASSES, seed=0):
    t = _torch_tokens(seed)
    t.draw("pos_embed", 1, PLACES + 1, WIDTH)
    for i in range(LAYERS):
        t.linear(f"blocks.{i}.attn.qkv", WIDTH, 3 * WIDTH)
    t.norm("norm")
    if head:
        t.linear("head", WIDTH, head)
    return t


def mae(seed=0):
    """A whole checkpoint, its decoder included."""
    t = timm_vit(None, seed)
    t.draw("mask_token", 1, 1, 16)
    t.draw("decoder_pos_embed", 1, PLACES + 1, 16)
    t.linear("decoder_embed", WIDTH, 16)
    t.linear("decoder_blocks.0.attn.qkv", 16, 48)
    t.norm("decoder_norm", 16)
    t.linear("decoder_pred", 16, 3 * PATCH**2)
    return t


def moco(seed=0):
    """What `main_moco.py` saves: two encoders with heads of three layers, and a predictor."""
    t = Tensors(seed)
    for encoder, inner_seed in (("base_encoder", seed), ("momentum_encoder", seed + 1)):
        for name, array in timm_vit(None, inner_seed).items():
            t[f"module.{encoder}.{name}"] = array
        t.draw(f"module.{encoder}.head.0.weight", 16, WIDTH)
        t.norm(f"module.{encoder}.head.1", 16)
    t.draw("module.predictor.0.weight", 16, 16)
    return t


def beit(pooling="gap", shared=False, seed=0):
    t = _torch_tokens(seed)
    side = SIZE // PATCH
    table = ((2 * side - 1) ** 2 + 3, HEADS)
    index = np.zeros((PLACES + 1, PLACES + 1), np.int64)
    if shared:
        t.draw("rel_pos_bias.relative_position_bias_table", *table)
        t["rel_pos_bias.relative_position_index"] = index
    for i in range(LAYERS):
        b = f"blocks.{i}"
        t.draw(f"{b}.attn.qkv.weight", 3 * WIDTH, WIDTH)
        for name in ("attn.q_bias", "attn.v_bias", "gamma_1", "gamma_2"):
            t.draw(f"{b}.{name}", WIDTH)
        if not shared:
            t.draw(f"{b}.attn.relative_position_bias_table", *table)
            t[f"{b}.attn.relative_position_index"] = index
    t.norm("fc_norm" if pooling == "gap" else "norm")
    t.linear("head", WIDTH, CLASSES)
    return t


def _torch_tokens(seed):
    """What timm's ViT and BEiT have in common."""
    t = Tensors(seed)
    t.draw("cls_token", 1, 1, WIDTH)
    t.draw("patch_embed.proj.weight", WIDTH, 3, PATCH, PATCH)
    t.draw("patch_embed.proj.bias", WIDTH)
    for i in range(LAYERS):
        b = f"blocks.{i}"
        t.norm(f"{b}.norm1")
        t.linear(f"{b}.attn.proj", WIDTH, WIDTH)
        t.norm(f"{b}.norm2")
        t.linear(f"{b}.mlp.fc1", WIDTH, HIDDEN)
        t.linear(f"{b}.mlp.fc2", HIDDEN, WIDTH)
    return t


def clip(projection=10, seed=0):
    """float16, as OpenAI's, with some of the text tower."""
    t = Tensors(seed)
    t.draw("visual.class_embedding", WIDTH)
    t.draw("visual.positional_embedding", PLACES + 1, WIDTH)
    t.draw("visual.conv1.weight", WIDTH, 3, PATCH, PATCH)
    t.draw("visual.proj", WIDTH, projection)
    t.norm("visual.ln_pre")
    t.norm("visual.ln_post")
    for encoder in ("visual.transformer", "transformer"):
        for i in range(LAYERS):
            b = f"{encoder}.resblocks.{i}"
            t.draw(f"{b}.attn.in_proj_weight", 3 * WIDTH, WIDTH)
            t.draw(f"{b}.attn.in_proj_bias", 3 * WIDTH)
            t.linear(f"{b}.attn.out_proj", WIDTH, WIDTH)
            t.norm(f"{b}.ln_1")
            t.norm(f"{b}.ln_2")
            t.linear(f"{b}.mlp.c_fc", WIDTH, HIDDEN)
            t.linear(f"{b}.mlp.c_proj", HIDDEN, WIDTH)
    t.draw("token_embedding.weight", 7, WIDTH)
    t.draw("positional_embedding", 4, WIDTH)
    t.norm("ln_final")
    t.draw("text_projection", WIDTH, projection)
    t.draw("logit_scale")
    halves = {name: array.astype(np.float16) for name, array in t.items()}
    return halves | {"context_length": np.array(77)}
