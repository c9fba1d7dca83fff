"""Published sizes of Vision Transformers: dicts from name to arguments of a `ViT`."""

# Ti and S: Touvron et al. 2021 (DeiT), table 1. B, L and H: Dosovitskiy et al. 2020, table 1.
_SIZES = {
    "Ti": {"num_layers": 12, "num_heads": 3, "hidden_dim": 192, "mlp_dim": 768},
    "S": {"num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536},
    "B": {"num_layers": 12, "num_heads": 12, "hidden_dim": 768, "mlp_dim": 3072},
    "L": {"num_layers": 24, "num_heads": 16, "hidden_dim": 1024, "mlp_dim": 4096},
    "H": {"num_layers": 32, "num_heads": 16, "hidden_dim": 1280, "mlp_dim": 5120},
}
VARIANTS = {
    f"{size}/{patch}": {**fields, "patch_size": patch}
    for size, fields in _SIZES.items()
    for patch in (8, 14, 16, 32)
}

# Steiner et al. 2021 (AugReg), table 1, and Dosovitskiy et al. 2020, section 3.1 (R50+ViT-B/16).
# R+Ti/16 is named after a root of stride 2; that of its checkpoint has stride 4, its tokens 32.
_HYBRIDS = {
    "R+Ti/16": ("Ti", 8, ()),
    "R26+S/32": ("S", 1, (2, 2, 2, 2)),
    "R50+ViT-B/16": ("B", 1, (3, 4, 9)),
    "R50+L/32": ("L", 1, (3, 4, 6, 3)),
}
HYBRIDS = {
    name: {**_SIZES[size], "patch_size": patch, "stem_units": units}
    for name, (size, patch, units) in _HYBRIDS.items()
}

# Oquab et al. 2023 (DINOv2), table 17, at 14 pixels; Touvron et al. 2022 (DeiT III), table 1.
_GIANT = {"num_layers": 40, "num_heads": 24, "hidden_dim": 1536, "mlp_dim": 4096}
_MEDIUM = {"num_layers": 12, "num_heads": 8, "hidden_dim": 512, "mlp_dim": 2048}
RELEASED = {
    f"DINOv2-{size}/14": {**fields, "patch_size": 14, "layer_scale": 1e-5}
    for size, fields in (_SIZES | {"g": _GIANT | {"activation": "swiglu"}}).items()
    if size in ("S", "B", "L", "g")
}
_DEIT3 = {"layer_scale": 1e-6, "class_position": False}
RELEASED |= {
    f"DeiT3-{size}/{patch}": {**(_SIZES | {"M": _MEDIUM})[size], "patch_size": patch, **_DEIT3}
    for size, patch in (("S", 16), ("M", 16), ("B", 16), ("L", 16), ("H", 14))
}

# Siméoni et al. 2025 (DINOv3), table 2 and its appendix, with the released distilled models: at 16
# pixels, S+, H+ and 7B gated.
_ROTARY = {"patch_size": 16, "position_type": "rotary", "registers": 4, "key_bias": False}
_ROTARY |= {"layer_scale": 1e-5, "epsilon": 1e-5}
_GATED = {
    "S+": _SIZES["S"],
    "H+": _SIZES["H"] | {"num_heads": 20, "mlp_dim": 5120},
    "7B": {"num_layers": 40, "num_heads": 32, "hidden_dim": 4096, "mlp_dim": 8192},
}
RELEASED |= {f"DINOv3-{size}/16": {**_SIZES[size], **_ROTARY} for size in ("S", "B", "L")}
RELEASED |= {
    f"DINOv3-{size}/16": {**fields, "activation": "swiglu", **_ROTARY}
    for size, fields in _GATED.items()
}

# Fini et al. 2024 (AIMv2), table 1: channels, heads, channels of the MLP.
_AIMV2 = {
    "L": (1024, 8, 2816),
    "H": (1536, 12, 4096),
    "1B": (2048, 16, 5632),
    "3B": (3072, 24, 8192),
}
_PATCHES = {"patch_size": 14, "num_layers": 24, "pooling": "gap", "activation": "swiglu"}
_PATCHES |= {"epsilon": 1e-5, "norm": "rms", "patch_norm": True}
RELEASED |= {
    f"AIMv2-{size}/14": {
        **dict(zip(("hidden_dim", "num_heads", "mlp_dim"), numbers, strict=True)),
        **_PATCHES,
    }
    for size, numbers in _AIMV2.items()
}

# Fang et al. 2023 (EVA-02), table 1: arguments of a `BEiT`.
_EVA02 = {"patch_size": 14, "position_type": "rotary", "activation": "swiglu", "layer_scale": None}
_HIDDEN = {"Ti": 512, "S": 1024, "B": 2048, "L": 2730}
EVA02 = {
    f"EVA02-{size}/14": {
        **_SIZES[size],
        **_EVA02,
        "mlp_dim": hidden,
        "sub_norm": ("mlp",) if size in ("B", "L") else (),
    }
    for size, hidden in _HIDDEN.items()
}

# timm's ViTs with registers and the mean of their patches (`vit_*_reg4_gap_*` of timm 1.0.31):
# layers, channels, heads, channels of the MLP.
_MEANS = {
    "wee": (14, 256, 4, 1280),
    "little": (14, 320, 5, 1792),
    "medium": (12, 512, 8, 2048),
    "mediumd": (20, 512, 8, 2048),
    "betwixt": (12, 640, 10, 2560),
    "so150m": (18, 896, 14, 2304),
    "so150m2": (21, 832, 13, 2176),
}
MEANS = {
    f"{size}/16": {
        **dict(zip(("num_layers", "hidden_dim", "num_heads", "mlp_dim"), numbers, strict=True)),
        **{"patch_size": 16, "pooling": "gap", "registers": 4, "fc_norm": size != "so150m"},
        "layer_scale": None if size == "so150m" else 1e-5,
    }
    for size, numbers in _MEANS.items()
}
