"""The public checkpoints that are known by name, and where their files are."""

import fnmatch
import os
import re
from dataclasses import dataclass, field
from pathlib import Path

from vit_tf.checkpoints.folders import HUB, not_fetched, snapshot
from vit_tf.checkpoints.weight_maps import CLIP, HALF, IMAGENET
from vit_tf.names import unknown_name
from vit_tf.remote import without_password

BUNDLED = Path(__file__).parent / "zoo"
EXTENSIONS = (".npz", ".safetensors", ".pth", ".pt", ".bin", ".tar")
# Papers, as arXiv identifiers.
VIT, AUGREG, SAM = "2010.11929", "2106.10270", "2106.01548"
BIT, DISTILLED, MIXER = "1912.11370", "2106.05237", "2105.01601"
DEIT, DINO, MAE = "2012.12877", "2104.14294", "2111.06377"
BEIT, BEIT2 = "2106.08254", "2208.06366"
DEIT3, DINO2, REGISTERS = "2204.07118", "2304.07193", "2309.16588"
DINO3, EVA02, ROPE, AIMV2 = "2508.10104", "2303.11331", "2403.13298", "2411.14402"
OPENAI, SIGLIP, SIGLIP2 = "2103.00020", "2303.15343", "2502.14786"
LAION, DATACOMP, DFN, METACLIP = "2212.07143", "2304.14108", "2309.17425", "2309.16671"
SIZES = {"tiny": "Ti", "small": "S", "base": "B", "large": "L", "huge": "H"}
SIZES |= {"medium": "M", "giant": "g", "small_plus": "S+", "huge_plus": "H+"}
# The mean and std of the satellite images of DINOv3.
SATELLITE = {"mean": (0.430, 0.411, 0.296), "std": (0.213, 0.156, 0.143)}


def bundled_models():
    """The bundled models: dict from name to the path of the `.keras` file."""
    return {path.stem: path for path in sorted(BUNDLED.glob("*.keras"))}


@dataclass(frozen=True)
class Checkpoint:
    """A public file of weights, and what its tensors do not state."""

    name: str
    url: str
    variant: str  # of its size, as papers have it
    resolution: int  # height and width of its images, in pixels
    citation: str  # of its training, an arXiv identifier
    values: dict = field(default_factory=lambda: HALF)  # mean and std of its images
    interpolation: str = "bilinear"
    # vision_transformer's and big_transfer's input_pipeline.py squeeze images to evaluate.
    crop: float | None = None
    activation: str | None = None  # form of the GELU, where the file does not state it
    hub: tuple | None = None  # (repository, file) on the Hugging Face hub

    @property
    def path(self):
        """Where the file is looked for, and put when it is downloaded from a bucket."""
        extension = os.path.splitext(self.url)[1]
        return os.path.join(_folder(), self.name.replace("/", "--") + extension)


def list_pretrained(pattern="*"):
    """Names of the known checkpoints that fit a shell pattern, such as `"*augreg*"`.

    Those of bundled models are first, without a `/`; others are downloaded.

    Raises:
        ValueError: for a pattern that matches no name; near matches are listed.
    """
    known = [*bundled_models(), *CHECKPOINTS]
    names = fnmatch.filter(known, pattern)
    if not names:
        raise unknown_name("pattern", pattern, known)
    return names


def refuse_other_formats(path):
    """Raises a `ValueError` for models in formats that are not read; it says how to save them."""
    path = os.fspath(path)
    lower = path.lower()
    anew = f"{os.path.splitext(os.path.basename(path))[0].removesuffix('.weights')}.keras"
    if lower.endswith((".weights.h5", ".weights.hdf5")):
        received = f"weights alone: load them into their model, then model.save({anew!r})"
    elif lower.endswith((".h5", ".hdf5")):
        received = (
            "Keras' older format: save it anew with "
            f"keras.models.load_model({without_password(path)!r}, compile=False).save({anew!r})"
        )
    elif lower.endswith((".tflite", ".lite")):
        received = (
            "compiled for TensorFlow Lite, which keeps no layers: save the Keras model that it "
            f"was made from, with model.save({anew!r})"
        )
    else:
        return
    raise ValueError(
        f"Expected a .keras file or a checkpoint. Received: {without_password(path)!r}, {received}"
    )


def fetch(path_or_name: str) -> tuple:
    """(path, `Checkpoint` or None) of a file, folder, bundled model or name, downloaded once."""
    if path_or_name.startswith(HUB):
        return snapshot(path_or_name), None
    refuse_other_formats(path_or_name)
    if path := bundled_models().get(path_or_name):
        return str(path), None
    if path_or_name not in CHECKPOINTS:
        if not os.path.exists(path_or_name) and not path_or_name.endswith(EXTENSIONS):
            error = unknown_name("path_or_name", path_or_name, [*bundled_models(), *CHECKPOINTS])
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", path_or_name):
                raise error
            raise ValueError(
                f"{error}; for a folder on the Hugging Face hub, use '{HUB}{path_or_name}'"
            )
        return path_or_name, None
    checkpoint = CHECKPOINTS[path_or_name]
    if os.path.isfile(checkpoint.path):
        return checkpoint.path, checkpoint
    try:
        return _download(checkpoint), checkpoint
    except Exception as error:
        # Both clients raise whatever a network can do to them, get_file a bare Exception.
        place = f"put at {checkpoint.path}"
        raise not_fetched(checkpoint.url, place, error) from error


def _download(checkpoint):
    if checkpoint.hub:
        from huggingface_hub import hf_hub_download

        return hf_hub_download(*checkpoint.hub)
    from keras.utils import get_file

    folder, file = os.path.split(checkpoint.path)
    return get_file(file, checkpoint.url, cache_dir=os.path.dirname(folder), cache_subdir="vit_tf")


def _folder():
    home = os.environ.get("KERAS_HOME", os.path.join(os.path.expanduser("~"), ".keras"))
    return os.path.join(home, "vit_tf")


def _bucket(name, variant, resolution, citation, **fields):
    """A checkpoint in a bucket of Google's, whose path is its name."""
    url = f"https://storage.googleapis.com/{name}.npz"
    return Checkpoint(name, url, variant, resolution, citation, **fields)


def _hub(name, citation, values=HALF):
    """A checkpoint of timm's on the Hugging Face hub, whose name states its size."""
    size, patch, resolution = re.search(r"_(\w+?)_patch(\d+)_(\d+)\.", name).groups()
    fields = {"variant": f"{SIZES[size]}/{patch}", "resolution": int(resolution)}
    fields |= {"citation": citation, "values": values, "crop": _crop(name, int(resolution))}
    return _at_hub(name, "model.safetensors", fields)


def _at_hub(name, file, fields):
    """A checkpoint of a file of a repository on the Hugging Face hub."""
    url = f"https://huggingface.co/{name}/resolve/main/{file}"
    fields = {"interpolation": "bicubic"} | fields
    return Checkpoint(name, url, **fields, hub=(name, file))


def _later(name, variant, resolution, citation, crop, values=IMAGENET):
    """A ViT of timm's on the hub of a later family."""
    fields = {"variant": variant, "resolution": resolution, "citation": citation}
    return _at_hub(f"timm/{name}", "model.safetensors", fields | {"values": values, "crop": crop})


def _crop(name, resolution):
    """`crop_pct` of timm 1.0.31: 0.9 at 224 pixels and 1 above, but for a large BEiT v2."""
    if resolution > 224:
        return 1.0
    return 0.95 if "beitv2_large" in name and name.endswith("_in1k") else 0.9


def _google_vits():
    """The models of the ViT paper, and those trained with SAM."""
    for model in ("ViT-B_32", "ViT-B_16", "ViT-L_32", "ViT-L_16", "ViT-H_14", "R50+ViT-B_16"):
        variant = model.removeprefix("ViT-").replace("_", "/")
        yield _bucket(f"vit_models/imagenet21k/{model}", variant, 224, VIT)
        if model != "ViT-H_14":
            yield _bucket(f"vit_models/imagenet21k+imagenet2012/{model}", variant, 384, VIT)
        if model in ("ViT-B_16", "ViT-L_16"):
            yield _bucket(f"vit_models/imagenet21k+imagenet2012/{model}-224", variant, 224, VIT)
    for patch in (32, 16):
        yield _bucket(f"vit_models/sam/ViT-B_{patch}", f"B/{patch}", 224, SAM)


# Pretraining, and the learning rates and resolutions of its fine-tunings on ImageNet: those that
# vision_transformer's README recommends, and those that timm has converted.
_AUGREG = {
    "Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0": ("0.03/224", "0.03/384"),
    "S_32-i21k-300ep-lr_0.001-aug_none-wd_0.1-do_0.0-sd_0.0": ("0.01/384",),
    "S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0": ("0.03/224", "0.03/384"),
    "S_16-i21k-300ep-lr_0.001-aug_light1-wd_0.03-do_0.0-sd_0.0": ("0.03/224", "0.03/384"),
    "B_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0": ("0.01/384", "0.03/384"),
    "B_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.03-do_0.0-sd_0.0": ("0.03/224",),
    "B_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0": (
        *("0.01/224", "0.01/384", "0.03/384"),
    ),
    "B_8-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.0-sd_0.0": ("0.01/224",),
    "B_8-i21k-300ep-lr_0.001-aug_medium2-wd_0.1-do_0.0-sd_0.0": (),
    "L_16-i21k-300ep-lr_0.001-aug_strong1-wd_0.1-do_0.0-sd_0.0": ("0.01/384",),
    "L_16-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1": ("0.01/224", "0.01/384"),
    "R_Ti_16-i21k-300ep-lr_0.001-aug_none-wd_0.03-do_0.0-sd_0.0": ("0.03/224", "0.03/384"),
    "R26_S_32-i21k-300ep-lr_0.001-aug_light1-wd_0.1-do_0.0-sd_0.0": ("0.01/384",),
    "R26_S_32-i21k-300ep-lr_0.001-aug_light0-wd_0.03-do_0.1-sd_0.1": ("0.03/224",),
    "R26_S_32-i21k-300ep-lr_0.001-aug_medium2-wd_0.03-do_0.0-sd_0.0": ("0.03/384",),
    "R50_L_32-i21k-300ep-lr_0.001-aug_medium1-wd_0.1-do_0.1-sd_0.1": ("0.01/384",),
}


def _augreg():
    for recipe, tunings in _AUGREG.items():
        stem, _, size = recipe.partition("-")[0].rpartition("_")
        variant = f"{stem.replace('_', '+')}/{size}"
        name = f"vit_models/augreg/{recipe}"
        yield _bucket(name, variant, 224, AUGREG)
        for rate, resolution in (tuning.split("/") for tuning in tunings):
            tuned = f"{name}--imagenet2012-steps_20k-lr_{rate}-res_{resolution}"
            yield _bucket(tuned, variant, int(resolution), AUGREG)


def _bits():
    for variant in ("R50x1", "R50x3", "R101x1", "R101x3", "R152x2", "R152x4"):
        if variant != "R152x2":
            yield _bucket(f"bit_models/BiT-S-{variant}", variant, 224, BIT)
        yield _bucket(f"bit_models/BiT-M-{variant}", variant, 224, BIT)
        # The resolution of BiT-HyperRule for images of ImageNet's size.
        yield _bucket(f"bit_models/BiT-M-{variant}-ILSVRC2012", variant, 480, BIT)
    for name, resolution in (
        *(("R50x1_160", 160), ("R50x1_224", 224)),
        *(("R152x2_T_224", 224), ("R152x2_T_384", 384)),
    ):
        variant = name.partition("_")[0]
        yield _bucket(f"bit_models/distill/{name}", variant, resolution, DISTILLED)


def _mixers():
    for folder in ("imagenet21k", "imagenet1k"):
        for size in ("B", "L"):
            yield _bucket(f"mixer_models/{folder}/Mixer-{size}_16", f"{size}/16", 224, MIXER)
    for patch in (32, 16):
        yield _bucket(f"mixer_models/sam/Mixer-B_{patch}", f"B/{patch}", 224, SAM)


def _timm_vits():
    sizes = ("tiny_patch16", "small_patch32", "small_patch16", "base_patch32", "base_patch16")
    augreg = [f"{size}_{n}.augreg_in21k_ft_in1k" for size in sizes for n in (224, 384)]
    augreg += [f"{size}_224.augreg_in21k" for size in sizes]
    augreg += [f"{size}_{n}.augreg_in1k" for size in sizes[2:] for n in (224, 384)]
    augreg += [f"large_patch16_{n}.augreg_in21k_ft_in1k" for n in (224, 384)]
    augreg += ["large_patch16_224.augreg_in21k", "base_patch8_224.augreg_in21k"]
    augreg += ["base_patch8_224.augreg_in21k_ft_in1k"]
    augreg += [f"base_patch{patch}_224.augreg2_in21k_ft_in1k" for patch in (16, 8)]
    for name in augreg:
        yield _hub(f"timm/vit_{name}", AUGREG)
    for name in ("base_patch16_224", "base_patch16_384", "large_patch32_384"):
        yield _hub(f"timm/vit_{name}.orig_in21k_ft_in1k", VIT)
    for name in ("tiny_patch16_224", "small_patch16_224", "base_patch16_224", "base_patch16_384"):
        yield _hub(f"timm/deit_{name}.fb_in1k", DEIT, IMAGENET)
    for name in ("small_patch16", "small_patch8", "base_patch16", "base_patch8"):
        yield _hub(f"timm/vit_{name}_224.dino", DINO, IMAGENET)
    for name in ("base_patch16", "large_patch16", "huge_patch14"):
        yield _hub(f"timm/vit_{name}_224.mae", MAE, IMAGENET)


def _timm_others():
    for size in ("base", "large"):
        tuned = ["in22k_ft_in22k", "in22k_ft_in22k_in1k"]
        for name in (f"{size}_patch16_224.{end}" for end in tuned):
            yield _hub(f"timm/beit_{name}", BEIT)
        yield _hub(f"timm/beit_{size}_patch16_384.in22k_ft_in22k_in1k", BEIT)
        for end in ("in1k_ft_in22k", "in1k_ft_in1k", "in1k_ft_in22k_in1k"):
            yield _hub(f"timm/beitv2_{size}_patch16_224.{end}", BEIT2, IMAGENET)
    yield _hub("timm/beit_large_patch16_512.in22k_ft_in22k_in1k", BEIT)


def _timm_bits():
    """BiT and Mixer of Google's in timm's names, with the images that timm evaluates."""
    small, large = {"resolution": 224, "crop": 0.875}, {"resolution": 448, "crop": 1.0}
    bilinear = {"interpolation": "bilinear"}
    rows = [(f"{v}_bit.goog_in21k", small | bilinear) for v in _TIMM_BITS]
    rows += [(f"{v}_bit.goog_in21k_ft_in1k", large | bilinear) for v in _TIMM_BITS[:-1]]
    tuned = large | bilinear | {"resolution": 480}
    rows.append((f"{_TIMM_BITS[-1]}_bit.goog_in21k_ft_in1k", tuned))
    rows.append(("152x2_bit.goog_teacher_in21k_ft_in1k", small))
    rows.append(("152x2_bit.goog_teacher_in21k_ft_in1k_384", large | {"resolution": 384}))
    rows.append(("50x1_bit.goog_distilled_in1k", small))
    for name, fields in rows:
        paper = DISTILLED if "_teacher" in name or "_distilled" in name else BIT
        facts = {"variant": f"R{name.partition('_')[0]}", "citation": paper}
        yield _at_hub(f"timm/resnetv2_{name}", "model.safetensors", facts | fields)
    for size in ("b", "l"):
        for end in ("goog_in21k", "goog_in21k_ft_in1k"):
            facts = small | {"variant": f"{size.upper()}/16", "citation": MIXER}
            yield _at_hub(f"timm/mixer_{size}16_224.{end}", "model.safetensors", facts)


_TIMM_BITS = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")


def _later_rows():
    """(name, size, resolution, paper, `crop_pct` or None where squeezed, mean and std) of each."""
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
_SIGLIPS = {
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
    """The form of the GELU that a CLIP in timm's names was trained with."""
    tag = name.partition(".")[2]
    quick = "_quickgelu_" in name or name in _QUICK_ALONE or (tag in _QUICK and name not in _EXACT)
    return "quick_gelu" if quick else "gelu"


def _clip_encoders():
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


def _encoders_on_the_hub():
    """Names of repositories, their files, and what is known of them.

    OpenAI's images are those of `clip.load` (openai/CLIP), SigLIP's those of its processors, which
    squeeze them; timm's own configurations crop 0.9 of them.
    """
    clips = {"base_patch32": "B/32", "base_patch16": "B/16", "large_patch14": "L/14"}
    for size, variant in clips.items():
        name = f"timm/vit_{size}_clip_224.openai"
        fields = {"variant": variant, "resolution": 224, "citation": OPENAI, "values": CLIP}
        fields |= {"crop": 1.0, "activation": "quick_gelu"}
        yield name, "open_clip_model.safetensors", fields
    yield from _clip_encoders()
    for size, (variant, trainings) in _SIGLIPS.items():
        for training, resolutions in trainings.items():
            citation = SIGLIP2 if training.startswith("v2") else SIGLIP
            for resolution in resolutions:
                name = f"timm/vit_{size}_siglip_{resolution}.{training}"
                fields = {"variant": variant, "resolution": resolution, "citation": citation}
                yield name, "model.safetensors", fields | {"values": HALF, "crop": None}


def _later_vits():
    return (_later(*row) for row in _later_rows())


def _encoders():
    """The image encoders of CLIP, SigLIP and SigLIP 2."""
    yield from (_at_hub(*fields) for fields in _encoders_on_the_hub())
    for name, (variant, resolution) in _BUCKET.items():
        yield _bucket(f"big_vision/siglip/{name}", variant, resolution, SIGLIP)


_ALL = (_google_vits, _augreg, _bits, _mixers, _timm_vits, _timm_others)
_ALL += (_timm_bits, _later_vits, _encoders)
CHECKPOINTS = {checkpoint.name: checkpoint for table in _ALL for checkpoint in table()}
