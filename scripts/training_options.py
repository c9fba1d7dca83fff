"""The options of a model and of a recipe that the scripts that train share."""

import argparse

SMALL_VIT = {"patch_size": 4, "num_layers": 6, "num_heads": 4, "hidden_dim": 64, "mlp_dim": 256}

_WHOLE, _REAL, _NAME = {"type": int}, {"type": float}, {"metavar": "NAME"}
# Arguments of a ViT besides its size.
VIT = ("pooling", "position_type", "representation_dim", "dropout_rate", "stochastic_depth")
VIT += ("without_skips",)
# The options of a model: what they mean, for which models, and how they are read.
MODEL = {
    "patch_size": ("ViT, Mixer", "side of a patch, in pixels", _WHOLE),
    "num_layers": ("ViT, Mixer", "number of blocks", _WHOLE),
    "num_heads": ("ViT", "attention heads of a block", _WHOLE),
    "hidden_dim": ("ViT, Mixer", "channels of a token", _WHOLE),
    "mlp_dim": ("ViT", "hidden units of an MLP", _WHOLE),
    "pooling": ("ViT", "cls or gap (default: cls)", _NAME),
    "position_type": (
        "ViT",
        "positions: learned or sincos, which are fixed (default: learned)",
        _NAME,
    ),
    "representation_dim": ("ViT", "units of tanh before the head (default: none)", _WHOLE),
    "tokens_mlp_dim": ("Mixer", "hidden units of an MLP across the tokens", _WHOLE),
    "channels_mlp_dim": ("Mixer", "hidden units of an MLP across the channels", _WHOLE),
    "dropout_rate": ("ViT, Mixer", "share dropped (default: 0)", _REAL),
    "stochastic_depth": (
        "ViT",
        "share of the examples that skip a branch of the last block in training (default: 0)",
        _REAL,
    ),
    "units": ("ResNet", "units of each stage, such as 3 4 6 3", {**_WHOLE, "nargs": "+"}),
    "width_factor": ("ResNet", "multiplies the channels; 1 is 64 in the root", _REAL),
    "stem": ("ResNet", "imagenet or small (default: by the size of the images)", _NAME),
    "without_skips": (
        "",
        "sites without a skip: block03, block04/mlp, stage2/...",
        {"nargs": "+", "metavar": "SITE"},
    ),
}


def _magnitude(text):
    return False if text == "none" else float(text)


# The fields of a `Recipe`: what they mean, their defaults, and how they are read.
RECIPE = {
    "epochs": ("passes over the training data", 100, _WHOLE),
    "learning_rate": ("its peak", 1e-3, _REAL),
    "warmup_epochs": ("epochs until the peak (default: a tenth of all)", None, _REAL),
    "warmup_steps": ("steps until the peak, in place of epochs (default: none)", None, _WHOLE),
    "schedule": (
        "decay: cosine, linear, staircase, short_staircase or upstream_staircase",
        "cosine",
        _NAME,
    ),
    "weight_decay": ("a kernel shrinks by this share times the learning rate", 0.1, _REAL),
    "label_smoothing": ("share of a label spread over all classes", 0.1, _REAL),
    "momentum": ("of SGD in the place of AdamW, such as 0.9 (default: AdamW)", None, _REAL),
    "clip_norm": ("largest global norm of the gradients", 1.0, _REAL),
    "ema": ("momentum of an average of the weights, such as 0.999 (default: none)", None, _REAL),
    "rand_augment": (
        "magnitude in [0, 1] of RandAugment (default: none)",
        False,
        {"type": _magnitude, "metavar": "X"},
    ),
    "mixup": ("alpha of MixUp, such as 0.2", 0.0, _REAL),
    "cutmix": ("alpha of CutMix, such as 1.0", 0.0, _REAL),
    "flip": ("mirror half of the images", False, {"action": argparse.BooleanOptionalAction}),
    "shift": ("largest random shift, in pixels", 0, _WHOLE),
    "erase": ("share of the images of which a rectangle is erased, such as 0.25", 0.0, _REAL),
    "epsilon": ("of AdamW as in optax and PyTorch (default: Keras' 1e-7)", None, _REAL),
    "layer_decay": (
        "factor of the learning rate from each block to the one below (default: none)",
        None,
        _REAL,
    ),
}


def add_model(add, names=tuple(MODEL), only=None):
    """Adds options of a model, by name; where there is `only` one kind, without the kind."""
    for name in names:
        kinds, text, reading = MODEL[name]
        of = f"{kinds}: " if kinds and not only else ""
        add(_flag(name), help=of + text, **reading)


def add_recipe(add, names=tuple(RECIPE)):
    """Adds fields of a recipe, by name."""
    for name in names:
        text, default, reading = RECIPE[name]
        told = "(default: " in text or default is False
        add(_flag(name), help=text if told else f"{text} (default: {default})", **reading)


def _flag(name):
    return f"--{name.replace('_', '-')}"
