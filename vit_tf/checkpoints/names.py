"""The public checkpoints that are known by name, and where their files are."""

import fnmatch
import os
import re
from dataclasses import dataclass, field

from vit_tf.checkpoints.hugging_face.hub import HUB, not_fetched, snapshot
from vit_tf.checkpoints.hugging_face.released import SIZES, rows
from vit_tf.checkpoints.plans import HALF, IMAGENET
from vit_tf.checkpoints.towers import released
from vit_tf.checkpoints.zoo.files import zoo
from vit_tf.files import refuse_other_formats
from vit_tf.names import unknown_name

EXTENSIONS = (".npz", ".safetensors", ".pth", ".pt", ".bin", ".tar")


@dataclass(frozen=True)
class Checkpoint:
    """A public file of weights.

    Attributes:
        name: what `load_pretrained` knows it by.
        url: where its file is.
        variant: name of its size, as papers have it.
        resolution: height and width of its images, in pixels.
        citation: the paper of its training, an arXiv identifier.
        values: mean and std of its images, for values in [0, 1].
        interpolation: `"bilinear"` or `"bicubic"`.
        crop: as of `Preprocessing`, that of its published evaluation.
        activation: form of the GELU of its training, where its file does not state.
        hub: (repository, file) on the Hugging Face hub; None for a file that lies elsewhere.
    """

    name: str
    url: str
    variant: str
    resolution: int
    citation: str
    values: dict = field(default_factory=lambda: HALF)
    interpolation: str = "bilinear"
    # vision_transformer's and big_transfer's input_pipeline.py squeeze images to evaluate.
    crop: float | None = None
    activation: str | None = None
    hub: tuple | None = None

    @property
    def path(self):
        """Where the file is looked for, and put when it is downloaded from a bucket."""
        extension = os.path.splitext(self.url)[1]
        return os.path.join(_folder(), self.name.replace("/", "--") + extension)


def list_pretrained(pattern="*"):
    """Names of the known checkpoints that fit a shell pattern, such as `"*augreg*"`.

    Those of bundled models are first, without a `/`; others are downloaded.

    Raises:
        ValueError: for a pattern that fits none; near matches are listed.
    """
    known = [*zoo(), *CHECKPOINTS]
    names = fnmatch.filter(known, pattern)
    if not names:
        raise unknown_name("pattern", pattern, known)
    return names


def fetch(path_or_name):
    """(path, `Checkpoint` or None) of a file, a folder or a known name, downloaded once.

    A bundled model has none.

    Raises:
        ValueError: for neither; or if the file cannot be fetched, which is then named with the
            where to put it.
    """
    if path_or_name.startswith(HUB):
        return snapshot(path_or_name), None
    refuse_other_formats(path_or_name)
    if path := zoo().get(path_or_name):
        return str(path), None
    if path_or_name not in CHECKPOINTS:
        if not os.path.exists(path_or_name) and not path_or_name.endswith(EXTENSIONS):
            error = unknown_name("path_or_name", path_or_name, [*zoo(), *CHECKPOINTS])
            if not re.fullmatch(r"[\w.-]+/[\w.-]+", path_or_name):
                raise error
            raise ValueError(f"{error}; of the Hugging Face hub it is '{HUB}{path_or_name}'")
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
    told = {"variant": f"{SIZES[size]}/{patch}", "resolution": int(resolution)}
    told |= {"citation": citation, "values": values, "crop": _crop(name, int(resolution))}
    return _at_hub(name, "model.safetensors", told)


def _at_hub(name, file, fields):
    """A checkpoint of a file of a repository on the Hugging Face hub."""
    url = f"https://huggingface.co/{name}/resolve/main/{file}"
    fields = {"interpolation": "bicubic"} | fields
    return Checkpoint(name, url, **fields, hub=(name, file))


def _later(name, variant, resolution, citation, crop, values=IMAGENET):
    """A ViT of timm's on the hub of a later family."""
    told = {"variant": variant, "resolution": resolution, "citation": citation}
    return _at_hub(f"timm/{name}", "model.safetensors", told | {"values": values, "crop": crop})


def _crop(name, resolution):
    """`crop_pct` of timm 1.0.31: 0.9 at 224 pixels and 1 above, but for a large BEiT v2."""
    if resolution > 224:
        return 1.0
    return 0.95 if "beitv2_large" in name and name.endswith("_in1k") else 0.9


VIT, AUGREG, SAM = "2010.11929", "2106.10270", "2106.01548"
BIT, DISTILLED, MIXER = "1912.11370", "2106.05237", "2105.01601"
DEIT, DINO, MAE = "2012.12877", "2104.14294", "2111.06377"
BEIT, BEIT2 = "2106.08254", "2208.06366"


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
        told = {"variant": f"R{name.partition('_')[0]}", "citation": paper}
        yield _at_hub(f"timm/resnetv2_{name}", "model.safetensors", told | fields)
    for size in ("b", "l"):
        for end in ("goog_in21k", "goog_in21k_ft_in1k"):
            told = small | {"variant": f"{size.upper()}/16", "citation": MIXER}
            yield _at_hub(f"timm/mixer_{size}16_224.{end}", "model.safetensors", told)


_TIMM_BITS = ("50x1", "50x3", "101x1", "101x3", "152x2", "152x4")


def _later_vits():
    return (_later(*row) for row in rows())


def _towers():
    """The image CLIP's image encoders, SigLIP and SigLIP 2."""
    yield from (_at_hub(*fields) for fields in released.on_the_hub())
    yield from (_bucket(*fields, released.SIGLIP) for fields in released.in_the_bucket())


_ALL = (_google_vits, _augreg, _bits, _mixers, _timm_vits, _timm_others)
_ALL += (_timm_bits, _later_vits, _towers)
CHECKPOINTS = {checkpoint.name: checkpoint for table in _ALL for checkpoint in table()}
