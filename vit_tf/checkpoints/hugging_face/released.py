"""Later families of timm's on the Hugging Face hub, as `default_cfgs` of timm 1.0.31 has them."""

from vit_tf.checkpoints.plans import CLIP, HALF, IMAGENET

SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}
SIZES |= {"medium": "M", "giant": "g", "small_plus": "S+", "huge_plus": "H+"}
DEIT, DEIT3, DINO2, REGISTERS = "2012.12877", "2204.07118", "2304.07193", "2309.16588"
DINO3, EVA02, ROPE = "2508.10104", "2303.11331", "2403.13298"
AIMV2 = "2411.14402"
# The mean and std of the satellite images of DINOv3.
SATELLITE = {"mean": (0.430, 0.411, 0.296), "std": (0.213, 0.156, 0.143)}


def rows():
    """(name, size, resolution, paper, crop, mean and std) of each; all are resized bicubically.

    The crop is `crop_pct`, or None where images are squeezed.
    """
    yield from _deits()
    for size in ("small", "base", "large", "giant"):
        for registers, citation in (("", DINO2), ("_reg4", REGISTERS)):
            name = f"vit_{size}_patch14{registers}_dinov2.lvd142m"
            yield name, f"DINOv2-{SIZES[size]}/14", 518, citation, 1.0, IMAGENET
    for size in ("small", "small_plus", "base", "large", "huge_plus"):
        for biases in ("", "_qkvb"):
            name, variant = f"vit_{size}_patch16_dinov3{biases}", f"DINOv3-{SIZES[size]}/16"
            yield f"{name}.lvd1689m", variant, 256, DINO3, 1.0, IMAGENET
            if size == "large":
                yield f"{name}.sat493m", variant, 256, DINO3, 1.0, SATELLITE
    yield from _eva02()
    for size in ("small", "base", "large"):
        for kind in ("rope", "rope_ape", "rope_mixed", "rope_mixed_ape"):
            name = f"vit_{size}_patch16_{kind}_224.naver_in1k"
            yield name, f"{SIZES[size]}/16", 224, ROPE, 0.9, IMAGENET
    for stem, variant in (("medium", "medium"), ("mediumd", "mediumd"), ("base", "B")):
        name = f"vit_{stem}_patch16_rope_reg1_gap_256.sbb_in1k"
        yield name, f"{variant}/16", 256, REGISTERS, 0.95, HALF
    name = "vit_betwixt_patch16_rope_reg4_gap_256.sbb_in1k"
    yield name, "betwixt/16", 256, REGISTERS, 0.95, CLIP
    for size in ("large", "huge", "1b", "3b"):
        for n in (224, 336, 448):
            distilled = ("apple_pt_dist",) if size == "large" and n < 448 else ()
            for tag in ("apple_pt", *distilled):
                name = f"aimv2_{size}_patch14_{n}.{tag}"
                yield name, f"AIMv2-{SIZES.get(size, size.upper())}/14", n, AIMV2, 1.0, CLIP
    for row in _GAPS:
        stem, crop, *tunings = row.split()
        size, resolution = stem.partition("_")[0], int(stem.rpartition("_")[2])
        for tuning in tunings:
            name = f"vit_{stem}.{tuning}"
            yield name, f"{size}/16", resolution, REGISTERS, float(crop), HALF


# Models with registers and the mean of their patches: name, crop and training data.
_GAPS = (
    "wee_patch16_reg1_gap_256 0.95 sbb_in1k",
    "little_patch16_reg1_gap_256 0.95 sbb_in12k sbb_in12k_ft_in1k",
    "little_patch16_reg4_gap_256 0.95 sbb_in1k",
    "medium_patch16_reg1_gap_256 0.95 sbb_in1k",
    "medium_patch16_reg4_gap_256 0.95 sbb_in12k sbb_in12k_ft_in1k sbb_in1k",
    "mediumd_patch16_reg4_gap_256 0.95 sbb2_e200_in12k sbb2_e200_in12k_ft_in1k sbb_in12k "
    "sbb_in12k_ft_in1k",
    "mediumd_patch16_reg4_gap_384 1 sbb2_e200_in12k_ft_in1k",
    "betwixt_patch16_reg1_gap_256 0.95 sbb_in1k",
    "betwixt_patch16_reg4_gap_256 0.95 sbb2_e200_in12k sbb2_e200_in12k_ft_in1k sbb_in12k "
    "sbb_in12k_ft_in1k sbb_in1k",
    "betwixt_patch16_reg4_gap_384 1 sbb2_e200_in12k_ft_in1k",
    "so150m_patch16_reg4_gap_256 0.95 sbb_e250_in12k sbb_e250_in12k_ft_in1k",
    "so150m_patch16_reg4_gap_384 1 sbb_e250_in12k_ft_in1k",
    "so150m2_patch16_reg1_gap_256 1 sbb_e200_in12k sbb_e200_in12k_ft_in1k",
    "so150m2_patch16_reg1_gap_384 1 sbb_e200_in12k_ft_in1k",
)


def _deits():
    for size, n in (("tiny", 224), ("small", 224), ("base", 224), ("base", 384)):
        crop = 0.9 if n == 224 else 1.0
        name = f"deit_{size}_distilled_patch16_{n}.fb_in1k"
        yield name, f"{SIZES[size]}/16", n, DEIT, crop, IMAGENET
    for size in ("small", "medium", "base", "large", "huge"):
        patch = 14 if size == "huge" else 16
        for n in (224, 384) if size in ("small", "base", "large") else (224,):
            for end, crop in (("fb_in1k", 0.9), ("fb_in22k_ft_in1k", 1.0)):
                name = f"deit3_{size}_patch{patch}_{n}.{end}"
                variant = f"DeiT3-{SIZES[size]}/{patch}"
                yield name, variant, n, DEIT3, crop if n == 224 else 1.0, IMAGENET


def _eva02():
    for size in ("tiny", "small", "base", "large"):
        large = ("mim_in22k", "mim_m38m") if size == "large" else ("mim_in22k",)
        tuned = 336 if size in ("tiny", "small") else 448
        for pretrained in large:
            name, variant = f"eva02_{size}_patch14_", f"EVA02-{SIZES[size]}/14"
            yield f"{name}224.{pretrained}", variant, 224, EVA02, 0.9, CLIP
            yield f"{name}{tuned}.{pretrained}_ft_in1k", variant, tuned, EVA02, 1.0, CLIP
            for end in ("ft_in22k", "ft_in22k_in1k") if tuned == 448 else ():
                yield f"{name}448.{pretrained}_{end}", variant, 448, EVA02, None, CLIP
