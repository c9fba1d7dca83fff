"""The public checkpoints that are known by name, and where their files are."""

import fnmatch
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from vit_tf.checkpoints.archives import HUB, not_fetched, snapshot
from vit_tf.checkpoints.weight_maps import module_only_message
from vit_tf.common.names import near_names, unknown_name, without_password
from vit_tf.data.preprocessing import CLIP, HALF, IMAGENET

BUNDLED = Path(__file__).parent / "zoo"
EXTENSIONS = (".npz", ".safetensors", ".pth", ".pt", ".bin", ".tar")
# Papers, as arXiv identifiers.
_PAPERS = """
VIT 2010.11929 AUGREG 2106.10270 SAM 2106.01548 BIT 1912.11370 DISTILLED 2106.05237
MIXER 2105.01601 DEIT 2012.12877 DINO 2104.14294 MAE 2111.06377 BEIT 2106.08254 BEIT2 2208.06366
DEIT3 2204.07118 DINO2 2304.07193 REGISTERS 2309.16588 DINO3 2508.10104
OPENAI 2103.00020 SIGLIP 2303.15343 SIGLIP2 2502.14786
LAION 2212.07143 DATACOMP 2304.14108 DFN 2309.17425 METACLIP 2309.16671
"""
PAPERS = dict(re.findall(r"(\w+) (\d+\.\d+)", _PAPERS))
# The mean and std of the satellite images of DINOv3.
SATELLITE = {"mean": (0.430, 0.411, 0.296), "std": (0.213, 0.156, 0.143)}
VALUES = {"half": HALF, "imagenet": IMAGENET, "clip": CLIP, "satellite": SATELLITE}
# The sizes of timm's names, by papers; others are called the same.
SIZES = {
    "tiny": "Ti",
    "small": "S",
    "small_plus": "S+",
    "base": "B",
    "base_plus": "B+",
    "large": "L",
    "huge": "H",
    "huge_plus": "H+",
    "giant": "g",
    "gigantic": "bigG",
    "so400m": "So400m",
    "giantopt": "g-opt",
    "1b": "1B",
    "3b": "3B",
}

# In these tables a line that begins with a paper has the fields of `ReleasedCheckpoint` for the
# names in the lines below it; braces stand for each of their words. `family` precedes the size in
# `variant`.

# Paths in Google's buckets; bit_models' 480 is the resolution of BiT-HyperRule for images of
# ImageNet's size, and big_vision's names are those of its `two_towers.py`.
BUCKETS = """
VIT resolution=224
    vit_models/imagenet21k/{ViT-B_32,ViT-B_16,ViT-L_32,ViT-L_16,ViT-H_14,R50+ViT-B_16}
    vit_models/imagenet21k+imagenet2012/{ViT-B_16,ViT-L_16}-224
VIT resolution=384
    vit_models/imagenet21k+imagenet2012/{ViT-B_32,ViT-B_16,ViT-L_32,ViT-L_16,R50+ViT-B_16}
SAM resolution=224
    vit_models/sam/ViT-B_{32,16}
BIT resolution=224
    bit_models/BiT-S-{R50x1,R50x3,R101x1,R101x3,R152x4}
    bit_models/BiT-M-{R50x1,R50x3,R101x1,R101x3,R152x2,R152x4}
BIT resolution=480
    bit_models/BiT-M-{R50x1,R50x3,R101x1,R101x3,R152x2,R152x4}-ILSVRC2012
DISTILLED
    bit_models/distill/{R50x1_160,R50x1_224,R152x2_T_224,R152x2_T_384}
MIXER resolution=224
    mixer_models/{imagenet21k,imagenet1k}/Mixer-{B,L}_16
SAM resolution=224
    mixer_models/sam/Mixer-B_{32,16}
SIGLIP variant=B/16
    big_vision/siglip/webli_en_b16_{224_63724782,256_60500360,384_68578854,512_68580893}
    big_vision/siglip/webli_i18n_b16_256_66117334
SIGLIP variant=L/16
    big_vision/siglip/webli_en_l16_{256_60552751,384_63634585}
SIGLIP variant=So400m/14
    big_vision/siglip/webli_en_so400m_{224_57633886,384_58765454}
"""
# AugReg's sizes, augmentation, weight decay and dropout of the pretraining, and the learning rates
# and resolutions of its fine-tunings on ImageNet: those that vision_transformer's README
# recommends, and those that timm has converted.
AUGREG = """
    Ti_16     none     0.03  0.0  0.03/224 0.03/384
    S_32      none     0.1   0.0  0.01/384
    S_32      light1   0.03  0.0  0.03/224 0.03/384
    S_16      light1   0.03  0.0  0.03/224 0.03/384
    B_32      light1   0.1   0.0  0.01/384 0.03/384
    B_32      medium1  0.03  0.0  0.03/224
    B_16      medium1  0.1   0.0  0.01/224 0.01/384 0.03/384
    B_8       medium1  0.1   0.0  0.01/224
    B_8       medium2  0.1   0.0
    L_16      strong1  0.1   0.0  0.01/384
    L_16      medium1  0.1   0.1  0.01/224 0.01/384
    R_Ti_16   none     0.03  0.0  0.03/224 0.03/384
    R26_S_32  light1   0.1   0.0  0.01/384
    R26_S_32  light0   0.03  0.1  0.03/224
    R26_S_32  medium2  0.03  0.0  0.03/384
    R50_L_32  medium1  0.1   0.1  0.01/384
"""
# timm's names (1.0.31), in the repositories of timm on the Hugging Face hub. `crop` is its
# `crop_pct`, by default 0.9 at 224 pixels and 1 above; that of OpenAI's files is of `clip.load`
# (openai/CLIP), and SigLIP's images are squeezed, as by its processors.
TIMM = """
AUGREG
    vit_{tiny_patch16,small_patch32,small_patch16}_{224,384}.augreg_in21k_ft_in1k
    vit_{base_patch32,base_patch16,large_patch16}_{224,384}.augreg_in21k_ft_in1k
    vit_{tiny_patch16,small_patch32,small_patch16,base_patch32,base_patch16}_224.augreg_in21k
    vit_{small_patch16,base_patch32,base_patch16}_{224,384}.augreg_in1k
    vit_{large_patch16,base_patch8}_224.augreg_in21k vit_base_patch8_224.augreg_in21k_ft_in1k
    vit_base_patch{16,8}_224.augreg2_in21k_ft_in1k
VIT
    vit_{base_patch16_224,base_patch16_384,large_patch32_384}.orig_in21k_ft_in1k
DEIT values=imagenet
    deit_{tiny_patch16_224,small_patch16_224,base_patch16_224,base_patch16_384}.fb_in1k
    deit_{tiny,small,base}_distilled_patch16_224.fb_in1k deit_base_distilled_patch16_384.fb_in1k
DINO values=imagenet
    vit_{small,base}_patch{16,8}_224.dino
MAE values=imagenet
    vit_{base_patch16,large_patch16,huge_patch14}_224.mae
BEIT
    beit_{base,large}_patch16_224.in22k_ft_in22k
    beit_{base,large}_patch16_{224,384}.in22k_ft_in22k_in1k
    beit_large_patch16_512.in22k_ft_in22k_in1k
BEIT2 values=imagenet
    beitv2_base_patch16_224.{in1k_ft_in22k,in1k_ft_in1k,in1k_ft_in22k_in1k}
    beitv2_large_patch16_224.in1k_ft_in22k
BEIT2 values=imagenet crop=0.95
    beitv2_large_patch16_224.{in1k_ft_in1k,in1k_ft_in22k_in1k}
BIT resolution=224 crop=0.875 interpolation=bilinear
    resnetv2_{50x1,50x3,101x1,101x3,152x2,152x4}_bit.goog_in21k
BIT resolution=448 crop=1 interpolation=bilinear
    resnetv2_{50x1,50x3,101x1,101x3,152x2}_bit.goog_in21k_ft_in1k
BIT resolution=480 crop=1 interpolation=bilinear
    resnetv2_152x4_bit.goog_in21k_ft_in1k
DISTILLED resolution=224 crop=0.875
    resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k resnetv2_50x1_bit.goog_distilled_in1k
DISTILLED resolution=384 crop=1
    resnetv2_152x2_bit.goog_teacher_in21k_ft_in1k_384
MIXER crop=0.875 variant=B/16
    mixer_b16_224.{goog_in21k,goog_in21k_ft_in1k}
MIXER crop=0.875 variant=L/16
    mixer_l16_224.{goog_in21k,goog_in21k_ft_in1k}
DEIT3 family=DeiT3- values=imagenet
    deit3_{small,base,large}_patch16_{224,384}.fb_in1k deit3_huge_patch14_224.fb_in1k
DEIT3 family=DeiT3- values=imagenet crop=1
    deit3_{small,base,large}_patch16_{224,384}.fb_in22k_ft_in1k
    deit3_huge_patch14_224.fb_in22k_ft_in1k
DEIT3 variant=DeiT3-M/16 values=imagenet
    deit3_medium_patch16_224.fb_in1k
DEIT3 variant=DeiT3-M/16 values=imagenet crop=1
    deit3_medium_patch16_224.fb_in22k_ft_in1k
DINO2 family=DINOv2- resolution=518 values=imagenet
    vit_{small,base,large,giant}_patch14_dinov2.lvd142m
REGISTERS family=DINOv2- resolution=518 values=imagenet
    vit_{small,base,large,giant}_patch14_reg4_dinov2.lvd142m
DINO3 family=DINOv3- resolution=256 values=imagenet
    vit_{small,small_plus,base,large,huge_plus}_patch16_dinov3{,_qkvb}.lvd1689m
DINO3 family=DINOv3- resolution=256 values=satellite
    vit_large_patch16_dinov3{,_qkvb}.sat493m
REGISTERS crop=0.95
    vit_{wee,betwixt}_patch16_reg1_gap_256.sbb_in1k
    vit_{little,medium,betwixt}_patch16_reg4_gap_256.sbb_in1k
    vit_{little_patch16_reg1,medium_patch16_reg4}_gap_256.sbb_in12k{,_ft_in1k}
    vit_{mediumd,betwixt}_patch16_reg4_gap_256.{sbb_in12k,sbb2_e200_in12k}{,_ft_in1k}
    vit_so150m_patch16_reg4_gap_256.sbb_e250_in12k{,_ft_in1k}
    vit_medium_patch16_reg1_gap_256.sbb_in1k
REGISTERS crop=1
    vit_{mediumd,betwixt}_patch16_reg4_gap_384.sbb2_e200_in12k_ft_in1k
    vit_so150m_patch16_reg4_gap_384.sbb_e250_in12k_ft_in1k
    vit_so150m2_patch16_reg1_gap_256.sbb_e200_in12k{,_ft_in1k}
    vit_so150m2_patch16_reg1_gap_384.sbb_e200_in12k_ft_in1k
OPENAI values=clip crop=1 file=open_clip_model.safetensors
    vit_{base_patch32,base_patch16,large_patch14}_clip_224.openai
LAION values=clip crop=0.9
    vit_base_patch32_clip_224.{laion2b,laion400m_e32,laion2b_ft_in1k,laion2b_ft_in12k_in1k}
    vit_base_patch16_clip_224.laion2b_ft_in12k
LAION values=clip crop=0.95
    vit_base_patch16_clip_224.laion2b_ft_in12k_in1k
LAION values=clip crop=1
    vit_base_patch16_clip_224.{laion2b,laion400m_e32,laion2b_ft_in1k}
    vit_{base_patch16_plus_clip_240,large_patch14_clip_224}.laion400m_e32
    vit_{huge,giant,gigantic}_patch14_clip_224.laion2b
    vit_huge_patch14_clip_224.laion2b_{ft_in1k,ft_in12k_in1k,ft_in12k}
    vit_{base_patch32_clip_384,base_patch32_clip_448}.laion2b_ft_in12k_in1k
LAION crop=1
    vit_large_patch14_clip_224.laion2b{,_ft_in1k,_ft_in12k_in1k,_ft_in12k}
LAION values=clip crop=squeezed
    vit_base_patch16_clip_384.laion2b_{ft_in1k,ft_in12k_in1k}
    vit_huge_patch14_clip_336.laion2b_ft_in12k_in1k
LAION crop=squeezed
    vit_large_patch14_clip_336.laion2b_{ft_in1k,ft_in12k_in1k}
DATACOMP values=clip crop=1
    vit_{base_patch32_clip_224,base_patch32_clip_256,base_patch16_clip_224}.datacompxl
    vit_large_patch14_clip_224.datacompxl
DFN values=clip crop=1
    vit_large_patch14_clip_224.{dfn2b,dfn2b_s39b} vit_huge_patch14_clip_{224,378}.dfn5b
METACLIP values=clip crop=1
    vit_{base_patch32,base_patch16,large_patch14}_clip_224.metaclip_{400m,2pt5b}
    vit_{huge,gigantic}_patch14_clip_224.metaclip_2pt5b
    vit_huge_patch14_clip_224.metaclip_altogether
OPENAI values=clip crop=0.9
    vit_{base_patch32,base_patch16}_clip_224.openai_ft_in1k
    vit_base_patch16_clip_224.openai_ft_in12k
OPENAI values=clip crop=0.95
    vit_base_patch16_clip_224.openai_ft_in12k_in1k
OPENAI values=clip crop=1
    vit_large_patch14_clip_224.{openai_ft_in1k,openai_ft_in12k_in1k,openai_ft_in12k}
OPENAI values=clip crop=squeezed
    vit_base_patch16_clip_384.openai_ft_in1k
    vit_large_patch14_clip_336.openai_ft_in12k_in1k
OPENAI values=clip crop=0.95 aspect=squeeze
    vit_{base_patch16,base_patch32}_clip_384.openai_ft_in12k_in1k
SIGLIP crop=squeezed
    vit_base_patch16_siglip_{224,256,384,512}.webli vit_base_patch16_siglip_256.webli_i18n
    vit_large_patch16_siglip_{256,384}.webli vit_so400m_patch14_siglip_{224,378,384}.webli
    vit_so400m_patch16_siglip_256.webli_i18n
SIGLIP2 crop=squeezed
    vit_base_patch32_siglip_256.v2_webli vit_base_patch16_siglip_{224,256,384,512}.v2_webli
    vit_large_patch16_siglip_{256,384,512}.v2_webli vit_so400m_patch14_siglip_{224,378}.v2_webli
    vit_so400m_patch16_siglip_{256,384,512}.v2_webli
    vit_giantopt_patch16_siglip_{256,384}.v2_webli
"""
# Repositories on the hub with open_clip's files, and what `pretrained.py` of open_clip 3.3.0 states
# about their images, where it is not that of OpenAI's.
OPEN_CLIP = """
LAION resolution=224 activation=gelu
    laion/CLIP-ViT-{B-32-laion2B-s34B-b79K,B-16-laion2B-s34B-b88K,H-14-laion2B-s32B-b79K}
    laion/CLIP-ViT-{g-14-laion2B-s12B-b42K,g-14-laion2B-s34B-b88K,bigG-14-laion2B-39B-b160k}
LAION resolution=224 activation=gelu values=half
    laion/CLIP-ViT-L-14-laion2B-s32B-b82K
DATACOMP resolution=224 activation=gelu
    laion/CLIP-ViT-{B-32,B-16,L-14}-DataComp.XL-s13B-b90K laion/CLIP-ViT-B-16-DataComp.L-s1B-b8K
DATACOMP resolution=256 activation=gelu
    laion/CLIP-ViT-B-32-256x256-DataComp-s34B-b86K
DFN resolution=224 activation=quick_gelu
    apple/DFN2B-CLIP-ViT-{B-16,L-14}
DFN resolution=224 activation=gelu
    apple/DFN2B-CLIP-ViT-L-14-39B
DFN resolution=224 activation=quick_gelu crop=squeezed
    apple/DFN5B-CLIP-ViT-H-14
DFN resolution=378 activation=quick_gelu crop=squeezed
    apple/DFN5B-CLIP-ViT-H-14-378
"""
# Names of timm's that no model here computes, which are measured as its modules.
MODULES = r"timm/((eva|aimv2|vit_pe_|vit_.*(_rope_|_lingbot|_rpn_)).*)"
# Training data with quick GELU, which timm's own code has only in its models `*_clip_quickgelu_*`;
# encoders fine-tuned on labels have the exact one.
QUICK_DATA = ("openai", "dfn2b", "dfn5b", "metaclip_400m", "metaclip_2pt5b")
EXACT_NAMES = ("vit_base_patch16_clip_224.dfn2b",)
QUICK_NAMES = (
    "vit_base_patch32_clip_224.laion400m_e32",
    "vit_huge_patch14_clip_224.metaclip2_worldwide",
)


def bundled_models() -> dict[str, Path]:
    """The bundled models: dict from name to the path of the `.keras` file."""
    return {path.stem: path for path in sorted(BUNDLED.glob("*.keras"))}


@dataclass(frozen=True)
class ReleasedCheckpoint:
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
    aspect: str | None = None
    activation: str | None = None  # form of the GELU, where the file does not state it
    hub: tuple | None = None  # (repository, file) on the Hugging Face hub

    @property
    def path(self) -> str:
        """The local path to which the file is downloaded from a bucket."""
        extension = os.path.splitext(self.url)[1]
        # As Keras finds its folder, without importing it.
        home = os.environ.get("KERAS_HOME", os.path.join(os.path.expanduser("~"), ".keras"))
        return os.path.join(home, "vit_tf", self.name.replace("/", "--") + extension)


def list_pretrained(pattern: str = "*") -> list[str]:
    """Names of the known checkpoints that match a shell pattern, such as `"*augreg*"`.

    Names of bundled models come first and contain no `/`. `load_pretrained` downloads the other
    checkpoints.

    Raises:
        ValueError: if the pattern matches no name. The message lists near matches.
    """
    all_names = [*bundled_models(), *CHECKPOINTS]
    names = fnmatch.filter(all_names, pattern)
    if not names:
        raise unknown_name("name or pattern", pattern, all_names)
    return names


# What files in formats that are not read hold, and how to save their model, by their endings.
OTHER_FORMATS = {
    (".weights.h5", ".weights.hdf5"): (
        "weights alone: load them into their model, then model.save({new_name!r})"
    ),
    (".h5", ".hdf5"): (
        "Keras' older format: save it anew with "
        "keras.models.load_model({path!r}, compile=False).save({new_name!r})"
    ),
    (".tflite", ".lite"): (
        "compiled for TensorFlow Lite, which keeps no layers: save the Keras model that it was "
        "made from, with model.save({new_name!r})"
    ),
    (".jpg", ".jpeg", ".png", ".webp", ".gif", ".bmp"): "an image; images come after the model",
}


def refuse_other_formats(path: str | os.PathLike) -> None:
    """Raises a `ValueError` for models in formats that are not read; it says how to save them."""
    path = without_password(path)
    for endings, words in OTHER_FORMATS.items():
        if path.lower().endswith(endings):
            stem = os.path.splitext(os.path.basename(path))[0].removesuffix(".weights")
            received = words.format(path=path, new_name=f"{stem}.keras")
            raise ValueError(
                "Expected a .keras, .safetensors, .npz, .pth, .pt or .bin file, or the folder of a "
                "model. "
                f"Received: {path!r}, {received}"
            )


def require_known_model(path_or_name: str) -> None:
    """Raises a `ValueError` for a name that no model has; TensorFlow is not imported."""
    refuse_other_formats(path_or_name)
    all_names = [*bundled_models(), *CHECKPOINTS]
    if path_or_name in all_names or path_or_name.startswith(HUB):
        return
    if name := re.fullmatch(MODULES, path_or_name):
        raise ValueError(f"{path_or_name!r} {module_only_message(name[1])}")
    if os.path.exists(path_or_name) or path_or_name.endswith(EXTENSIONS):
        return
    near = near_names(path_or_name, all_names)
    hint = f" Did you mean {' or '.join(map(repr, near[:3]))}?" if near else ""
    raise ValueError(
        f"Unknown model {without_password(path_or_name)!r}.{hint} vit_tf.list_pretrained() lists "
        f"the names; 'timm:NAME' is a model of timm, '{HUB}OWNER/NAME' a folder on the Hugging "
        "Face hub, and files and folders are named by paths."
    )


def fetch(path_or_name: str) -> tuple:
    """(path, `ReleasedCheckpoint` or None) of a file, folder or name; it is downloaded once."""
    if path_or_name.startswith(HUB):
        return snapshot(path_or_name), None
    require_known_model(path_or_name)
    if path := bundled_models().get(path_or_name):
        return str(path), None
    if path_or_name not in CHECKPOINTS:
        return path_or_name, None
    checkpoint = CHECKPOINTS[path_or_name]
    if os.path.isfile(checkpoint.path):
        return checkpoint.path, checkpoint
    try:
        if checkpoint.hub:
            from huggingface_hub import hf_hub_download

            return hf_hub_download(*checkpoint.hub), checkpoint
        from keras.utils import get_file

        folder, file = os.path.split(checkpoint.path)
        home = os.path.dirname(folder)
        path = get_file(file, checkpoint.url, cache_dir=home, cache_subdir="vit_tf")
        return path, checkpoint
    except Exception as error:
        # Both clients raise whatever a network can do to them, get_file a bare Exception.
        place = f"put at {checkpoint.path}"
        raise not_fetched(checkpoint.url, place, error) from error


def timm_activation(name: str) -> str:
    """The form of the GELU that a CLIP in timm's names was trained with."""
    quick = name.partition(".")[2] in QUICK_DATA and name not in EXACT_NAMES
    quick = quick or name in QUICK_NAMES or "_quickgelu_" in name
    return "quick_gelu" if quick else "gelu"


def _rows(table: str) -> Iterator[tuple[str, dict]]:
    """(name, fields) of each name in a table; braces are expanded."""
    fields = {}
    for line in filter(None, table.splitlines()):
        if not line.startswith(" "):
            paper, *pairs = line.split()
            fields = {"citation": PAPERS[paper]} | dict(pair.split("=") for pair in pairs)
            continue
        for name in (name for pattern in line.split() for name in _expand(pattern)):
            yield name, fields


def _expand(pattern: str) -> list[str]:
    """The names that a pattern with `{a,b}` stands for."""
    if not (braces := re.search(r"{([^{}]*)}", pattern)):
        return [pattern]
    before, after = pattern[: braces.start()], pattern[braces.end() :]
    return [name for word in braces[1].split(",") for name in _expand(f"{before}{word}{after}")]


def _checkpoint(
    name: str, url: str, variant: str | None, fields: dict, **more: object
) -> ReleasedCheckpoint:
    """The `ReleasedCheckpoint` of the fields of a row; its name may end in its resolution."""
    facts: dict[str, Any] = {"variant": variant, **more, **fields}
    ending = re.search(r"_(\d+)(?=[._]|$)", name)
    # A row without a resolution has a name that ends in it.
    resolution = int(facts.pop("resolution", 0) or cast(re.Match[str], ending)[1])
    crop = facts.pop("crop", "squeezed")
    if crop == "timm":
        crop = 0.9 if resolution == 224 else 1
    facts |= {"crop": None if crop == "squeezed" else float(crop), "resolution": resolution}
    facts["values"] = VALUES[facts.get("values", "half")]
    return ReleasedCheckpoint(name, url, **facts)


def _in_bucket(name: str, fields: dict) -> ReleasedCheckpoint:
    """A checkpoint in a bucket of Google's, whose path is its name."""
    size = re.search(r"(R\d+x\d)|/(?:ViT-|Mixer-)?((?:R\d*[+_](?:ViT-)?)?[A-Z]i?)_(\d+)", name)
    variant = size and (size[1] or f"{size[2].replace('_', '+')}/{size[3]}")
    return _checkpoint(name, f"https://storage.googleapis.com/{name}.npz", variant, fields)


def _on_hub(
    name: str, variant: str | None, fields: dict, file: str, **more: object
) -> ReleasedCheckpoint:
    """A checkpoint of a file of a repository on the Hugging Face hub."""
    url, more = f"https://huggingface.co/{name}/resolve/main/{file}", {"crop": "timm"} | more
    more |= {"interpolation": "bicubic", "hub": (name, file)}
    return _checkpoint(name, url, variant, fields, **more)


def _checkpoints() -> Iterator[ReleasedCheckpoint]:
    """Every `ReleasedCheckpoint`."""
    yield from (_in_bucket(*row) for row in _rows(BUCKETS))
    for row in AUGREG.strip().splitlines():
        size, augmentation, decay, dropout, *tunings = row.split()
        name = f"vit_models/augreg/{size}-i21k-300ep-lr_0.001-aug_{augmentation}"
        name += f"-wd_{decay}-do_{dropout}-sd_{dropout}"
        fields = {"citation": PAPERS["AUGREG"]}
        yield _in_bucket(name, fields | {"resolution": 224})
        for rate, resolution in (tuning.split("/") for tuning in tunings):
            tuned = f"{name}--imagenet2012-steps_20k-lr_{rate}-res_{resolution}"
            yield _in_bucket(tuned, fields | {"resolution": resolution})
    for name, row in _rows(TIMM):
        fields = dict(row)
        family, file = fields.pop("family", ""), fields.pop("file", "model.safetensors")
        size = re.match(r"[a-z0-9]+?_(\w+?)(?:_distilled)?_patch(\d+)(_plus)?", name)
        depth = re.match(r"resnetv2_(\d+x\d)_bit", name)
        variant = f"R{depth[1]}" if depth else None
        if size:
            word = size[1] + (size[3] or "")
            variant = f"{family}{SIZES.get(word, word)}/{size[2]}"
        more = {"activation": timm_activation(name)} if "_clip_" in name else {}
        yield _on_hub(f"timm/{name}", variant, fields, file, **more)
    for name, fields in _rows(OPEN_CLIP):
        # Every row has a name of this form.
        match = cast(re.Match[str], re.search(r"-ViT-([A-Za-z]+)-(\d+)", name))
        size, patch = match.groups()
        fields = {"values": "clip", "crop": "1"} | fields
        yield _on_hub(name, f"{size}/{patch}", fields, "open_clip_pytorch_model.bin")


CHECKPOINTS = {checkpoint.name: checkpoint for checkpoint in _checkpoints()}
