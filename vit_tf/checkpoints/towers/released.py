"""Released image encoders known by name: fields of `vit_tf.checkpoints.names.Checkpoint`."""

from vit_tf.checkpoints.plans import CLIP, HALF

OPENAI, SIGLIP, SIGLIP2 = "2103.00020", "2303.15343", "2502.14786"
LAION, DATACOMP, DFN, METACLIP = "2212.07143", "2304.14108", "2309.17425", "2309.16671"
# CLIP's image encoders, by timm's names of their sizes.
_CLIPS = {"base_patch32": "B/32", "base_patch16": "B/16", "base_patch16_plus": "B+/16"}
_CLIPS |= {"large_patch14": "L/14", "huge_patch14": "H/14", "giant_patch14": "g/14"}
_CLIPS |= {"gigantic_patch14": "bigG/14"}
# Repositories on the hub with open_clip's files: size, resolution, paper, whether they are of the
# quick GELU, and what `pretrained.py` of open_clip 3.3.0 states about their images, where it is not
# that of OpenAI's.
_OPEN_CLIP = {
    "laion/CLIP-ViT-B-32-laion2B-s34B-b79K": ("B/32", 224, LAION, False),
    "laion/CLIP-ViT-B-16-laion2B-s34B-b88K": ("B/16", 224, LAION, False),
    "laion/CLIP-ViT-L-14-laion2B-s32B-b82K": ("L/14", 224, LAION, False, {"values": HALF}),
    "laion/CLIP-ViT-H-14-laion2B-s32B-b79K": ("H/14", 224, LAION, False),
    "laion/CLIP-ViT-g-14-laion2B-s12B-b42K": ("g/14", 224, LAION, False),
    "laion/CLIP-ViT-g-14-laion2B-s34B-b88K": ("g/14", 224, LAION, False),
    "laion/CLIP-ViT-bigG-14-laion2B-39B-b160k": ("bigG/14", 224, LAION, False),
    "laion/CLIP-ViT-B-32-DataComp.XL-s13B-b90K": ("B/32", 224, DATACOMP, False),
    "laion/CLIP-ViT-B-32-256x256-DataComp-s34B-b86K": ("B/32", 256, DATACOMP, False),
    "laion/CLIP-ViT-B-16-DataComp.XL-s13B-b90K": ("B/16", 224, DATACOMP, False),
    "laion/CLIP-ViT-B-16-DataComp.L-s1B-b8K": ("B/16", 224, DATACOMP, False),
    "laion/CLIP-ViT-L-14-DataComp.XL-s13B-b90K": ("L/14", 224, DATACOMP, False),
    "apple/DFN2B-CLIP-ViT-B-16": ("B/16", 224, DFN, True),
    "apple/DFN2B-CLIP-ViT-L-14": ("L/14", 224, DFN, True),
    "apple/DFN2B-CLIP-ViT-L-14-39B": ("L/14", 224, DFN, False),
    "apple/DFN5B-CLIP-ViT-H-14": ("H/14", 224, DFN, True, {"crop": None}),
    "apple/DFN5B-CLIP-ViT-H-14-378": ("H/14", 378, DFN, True, {"crop": None}),
}
# Encoders in timm's names, by training data: those of `default_cfgs` of timm 1.0.31 with CLIP's
# projection; crop 1 unless a number says otherwise.
_TIMM_CLIPS = {
    "laion2b": (
        LAION,
        *("base_patch32_clip_224 0.9", "base_patch16_clip_224", "large_patch14_clip_224"),
        *("huge_patch14_clip_224", "giant_patch14_clip_224", "gigantic_patch14_clip_224"),
    ),
    "laion400m_e32": (
        LAION,
        *("base_patch32_clip_224 0.9", "base_patch16_clip_224"),
        *("base_patch16_plus_clip_240", "large_patch14_clip_224"),
    ),
    "datacompxl": (
        DATACOMP,
        *("base_patch32_clip_224", "base_patch32_clip_256"),
        *("base_patch16_clip_224", "large_patch14_clip_224"),
    ),
    "dfn2b": (DFN, "large_patch14_clip_224"),
    "dfn2b_s39b": (DFN, "large_patch14_clip_224"),
    "dfn5b": (DFN, "huge_patch14_clip_224", "huge_patch14_clip_378"),
    "metaclip_400m": (
        METACLIP,
        *("base_patch32_clip_224", "base_patch16_clip_224", "large_patch14_clip_224"),
    ),
    "metaclip_2pt5b": (
        METACLIP,
        *("base_patch32_clip_224", "base_patch16_clip_224", "large_patch14_clip_224"),
        *("huge_patch14_clip_224", "gigantic_patch14_clip_224"),
    ),
    "metaclip_altogether": (METACLIP, "huge_patch14_clip_224"),
    "laion2b_ft_in1k": (
        LAION,
        *("base_patch32_clip_224 0.9", "base_patch16_clip_224", "base_patch16_clip_384 squeezed"),
        *("large_patch14_clip_224", "large_patch14_clip_336 squeezed", "huge_patch14_clip_224"),
    ),
    "laion2b_ft_in12k_in1k": (
        LAION,
        *("base_patch32_clip_224 0.9", "base_patch32_clip_384", "base_patch32_clip_448"),
        *("base_patch16_clip_224 0.95", "base_patch16_clip_384 squeezed"),
        *("large_patch14_clip_224", "large_patch14_clip_336 squeezed"),
        *("huge_patch14_clip_224", "huge_patch14_clip_336 squeezed"),
    ),
    "laion2b_ft_in12k": (
        LAION,
        *("base_patch16_clip_224 0.9", "large_patch14_clip_224", "huge_patch14_clip_224"),
    ),
    "openai_ft_in1k": (
        OPENAI,
        *("base_patch32_clip_224 0.9", "base_patch16_clip_224 0.9"),
        *("base_patch16_clip_384 squeezed", "large_patch14_clip_224"),
    ),
    "openai_ft_in12k_in1k": (
        OPENAI,
        *("base_patch32_clip_384 squeezed", "base_patch16_clip_224 0.95"),
        *("base_patch16_clip_384 squeezed", "large_patch14_clip_224"),
        "large_patch14_clip_336 squeezed",
    ),
    "openai_ft_in12k": (OPENAI, "base_patch16_clip_224 0.9", "large_patch14_clip_224"),
}
# Training data with quick GELU, which timm's own code has only in its models `*_clip_quickgelu_*`;
# encoders fine-tuned on labels have the exact one.
_QUICK = ("openai", "dfn2b", "dfn5b", "metaclip_400m", "metaclip_2pt5b")
_EXACT = ("vit_base_patch16_clip_224.dfn2b",)
_QUICK_ALONE = ("vit_base_patch32_clip_224.laion400m_e32",)
_QUICK_ALONE += ("vit_huge_patch14_clip_224.metaclip2_worldwide",)
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


def timm_activation(name):
    """The form of the GELU that a CLIP in timm's names was trained with.

    Args:
        name: that of timm's model, with its training after a dot.
    """
    tag = name.partition(".")[2]
    quick = "_quickgelu_" in name or name in _QUICK_ALONE or (tag in _QUICK and name not in _EXACT)
    return "quick_gelu" if quick else "gelu"


def _clips():
    """The rows of CLIP's image encoders."""
    for name, (variant, resolution, citation, quick, *rest) in _OPEN_CLIP.items():
        fields = {"variant": variant, "resolution": resolution, "citation": citation}
        fields |= {"values": CLIP, "crop": 1.0, "activation": "quick_gelu" if quick else "gelu"}
        yield name, "open_clip_pytorch_model.bin", fields | (rest[0] if rest else {})
    for training, (citation, *models) in _TIMM_CLIPS.items():
        for model in models:
            stem, _, crop = model.partition(" ")
            size, _, resolution = stem.partition("_clip_")
            # The large encoders of LAION-2B were trained on values in [-1, 1].
            values = HALF if size.startswith("large") and "laion2b" in training else CLIP
            fields = {"variant": _CLIPS[size], "resolution": int(resolution), "values": values}
            name = f"vit_{stem}.{training}"
            fields |= {"citation": citation, "activation": timm_activation(name)}
            fields |= {"crop": None if crop == "squeezed" else float(crop or 1)}
            yield f"timm/{name}", "model.safetensors", fields


def on_the_hub():
    """dicts of the name of a repository, its file, and what is known of it.

    OpenAI's images are those of `clip.load` (openai/CLIP), SigLIP's those of its processors, which
    squeeze them; timm's own configurations crop 0.9 of them.
    """
    clips = {"base_patch32": "B/32", "base_patch16": "B/16", "large_patch14": "L/14"}
    for size, variant in clips.items():
        name = f"timm/vit_{size}_clip_224.openai"
        fields = {"variant": variant, "resolution": 224, "citation": OPENAI, "values": CLIP}
        fields |= {"crop": 1.0, "activation": "quick_gelu"}
        yield name, "open_clip_model.safetensors", fields
    yield from _clips()
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
