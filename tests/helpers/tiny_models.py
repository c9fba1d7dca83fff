"""A tiny model of every class and kind, for what all of them do alike."""

import vit_tf

SHAPE = (16, 24, 3)
SIZES = {"patch_size": 8, "num_layers": 2, "hidden_dim": 8, "num_classes": 5}
HEADS = SIZES | {"num_heads": 2, "mlp_dim": 12}
VITS = ("ViT", "DistilledViT", "HybridViT", "RotaryViT")
ARGUMENTS = dict.fromkeys((*VITS, "BEiT", "SigLIPViT"), HEADS)
ARGUMENTS |= {"CLIPViT": HEADS | {"projection_dim": 6}}
ARGUMENTS |= {"Mixer": SIZES | {"tokens_mlp_dim": 10, "channels_mlp_dim": 12}}
ARGUMENTS |= {"BiT": {"units": (2, 1), "width_factor": 0.5, "num_classes": 5}}
STEM = {"patch_size": 1, "num_layers": 1, "stem_units": (2, 1)}
TOKEN = {"distillation": "token"}
SWIGLU = {"activation": "swiglu", "layer_scale": 0.1}
# The class, and arguments besides those of its class.
MODELS = {
    "vit": ("ViT", {}),
    "gap": ("ViT", {"pooling": "gap"}),
    "google": ("ViT", {"activation": "gelu_tanh", "representation_dim": 7}),
    "dinov2": ("ViT", {"registers": 4} | SWIGLU),
    "deit": ("DistilledViT", {"epsilon": 1e-3}),
    "deit token": (
        "DistilledViT",
        {"distillation": "token", "registers": 1, "representation_dim": 3},
    ),
    "deit3": ("ViT", {"class_position": False, "layer_scale": 0.1}),
    "rotary": ("RotaryViT", {"registers": 4}),
    "hybrid": ("HybridViT", STEM),
    "hybrid root": ("HybridViT", STEM | {"patch_size": 2, "stem_units": ()}),
    "beit": ("BEiT", {}),
    "beit shared": ("BEiT", {"pooling": "cls", "shared_bias": True}),
    "beit gated": ("BEiT", {"position_type": "learned"} | SWIGLU),
    "clip": ("CLIPViT", {}),
    "clip embedding": ("CLIPViT", {"num_classes": None}),
    "siglip": ("SigLIPViT", {}),
    "siglip embedding": ("SigLIPViT", {"num_classes": None}),
    "mixer": ("Mixer", {}),
    "bit": ("BiT", {"stem": "imagenet"}),
    "bit small": ("BiT", {"stem": "small"}),
}


def tiny(name, shape=SHAPE, **options):
    """A model of the table for images of a shape, with options in place of its arguments."""
    model, arguments = MODELS[name]
    return getattr(vit_tf, model)(shape, **ARGUMENTS[model] | arguments | options)


def tiny_vit(num_layers=2):
    """An untrained ViT with 3 classes for images of 16 x 16 pixels, with 2 x 2 patches."""
    return vit_tf.ViT(
        image_shape=(16, 16, 3),
        patch_size=8,
        num_layers=num_layers,
        num_heads=2,
        hidden_dim=8,
        mlp_dim=8,
        num_classes=3,
    )
