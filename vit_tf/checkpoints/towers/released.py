"""The released towers that are known by name: fields of `vit_tf.checkpoints.names.Checkpoint`."""

from vit_tf.checkpoints.plans import CLIP, HALF

OPENAI, SIGLIP, SIGLIP2 = "2103.00020", "2303.15343", "2502.14786"
# Files on the hub, and their sizes and resolutions.
_TIMM = {
    "base_patch32": ("B/32", {"v2_webli": (256,)}),
    "base_patch16": (
        "B/16",
        {"webli": (224, 256, 384, 512), "webli_i18n": (256,), "v2_webli": (224, 256, 384, 512)},
    ),
    "large_patch16": ("L/16", {"webli": (256, 384), "v2_webli": (256, 384, 512)}),
    "so400m_patch14": ("So400m/14", {"webli": (224, 378, 384), "v2_webli": (224, 378)}),
    "so400m_patch16": ("So400m/16", {"webli_i18n": (256,), "v2_webli": (256, 384, 512)}),
    "giantopt_patch16": ("g-opt/16", {"v2_webli": (256, 384)}),
}
# Paths in big_vision's bucket, as its `two_towers.py` names them.
_BUCKET = {
    "webli_en_b16_224_63724782": ("B/16", 224),
    "webli_en_b16_256_60500360": ("B/16", 256),
    "webli_en_b16_384_68578854": ("B/16", 384),
    "webli_en_b16_512_68580893": ("B/16", 512),
    "webli_en_l16_256_60552751": ("L/16", 256),
    "webli_en_l16_384_63634585": ("L/16", 384),
    "webli_en_so400m_224_57633886": ("So400m/14", 224),
    "webli_en_so400m_384_58765454": ("So400m/14", 384),
    "webli_i18n_b16_256_66117334": ("B/16", 256),
}


def on_the_hub():
    """dicts of the name of a repository, its file, and what is known of it.

    OpenAI's images are those of `clip.load` (openai/CLIP), SigLIP's those of its processors, which
    squeeze them; timm's own configurations crop 0.9 of them.
    """
    clips = {"base_patch32": "B/32", "base_patch16": "B/16", "large_patch14": "L/14"}
    for size, variant in clips.items():
        name = f"timm/vit_{size}_clip_224.openai"
        fields = {"variant": variant, "resolution": 224, "citation": OPENAI, "values": CLIP}
        yield name, "open_clip_model.safetensors", fields | {"crop": 1.0}
    for size, (variant, trainings) in _TIMM.items():
        for training, resolutions in trainings.items():
            citation = SIGLIP2 if training.startswith("v2") else SIGLIP
            for resolution in resolutions:
                name = f"timm/vit_{size}_siglip_{resolution}.{training}"
                fields = {"variant": variant, "resolution": resolution, "citation": citation}
                yield name, "model.safetensors", fields | {"values": HALF, "crop": None}


def in_the_bucket():
    """Triples of name, variant and resolution of the files of big_vision."""
    for name, (variant, resolution) in _BUCKET.items():
        yield f"big_vision/siglip/{name}", variant, resolution
