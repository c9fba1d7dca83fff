"""Parameters of every published size: of the models as they are made, against published counts."""

import math
from fnmatch import fnmatch

import keras
import pytest
from keras.src.backend.common import global_state

import vit_tf

PATCHES = (8, 14, 16, 32)
VIT = {
    "Ti": (5_719_720, 5_694_376, 5_717_416, 6_131_560),
    "S": (22_055_272, 22_004_584, 22_050_664, 22_878_952),
    "B": (86_576_872, 86_475_496, 86_567_656, 88_224_232),
    "L": (304_338_920, 304_203_752, 304_326_632, 306_535_400),
    "H": (632_214_760, 632_045_800, 632_199_400, 634_960_360),
}
VIT = {f"{s}/{p}": n for s, row in VIT.items() for p, n in zip(PATCHES, row, strict=True)}
# Off the reference implementations, with 1000 classes at 224 pixels: of big_transfer; of OpenAI and
# of open_clip (its model_profile.csv); timm's Mixer and BEiT; and timm 1.0.31 for later ViTs.
BIT = {"R50x1": 25_549_352, "R50x3": 217_319_080, "R101x1": 44_541_480, "R101x3": 387_934_888}
BIT |= {"R152x2": 236_335_208, "R152x4": 936_533_224}
CLIP = {"B/32": 87_849_216, "B/16": 86_192_640, "L/14": 303_966_208, "B+/16": 117_187_840}
CLIP |= {"H/14": 632_076_800, "g/14": 1_012_645_632, "bigG/14": 1_844_907_264}
SIGLIP = {"B/16": 92_884_224, "So400m/14": 427_680_704}
SIGLIP_256 = {"B/32": 94_552_320, "L/16": 315_956_224, "So400m/16": 427_888_064}
SIGLIP_256 |= {"g-opt/16": 1_163_168_256}
DISTILLED = {"Ti/16": 5_910_800, "S/16": 22_436_432, "B/16": 87_338_192}
DEIT3 = {"S/16": 22_059_496, "M/16": 38_849_512, "B/16": 86_585_320, "L/16": 304_374_760}
DEIT3 |= {"H/14": 632_126_440}
DINOV2 = {"S": 22_056_192, "B": 86_579_712, "L": 304_367_616, "g": 1_136_479_232}
# timm's CLS has no position here.
REGISTERS = {"S": 22_057_344, "B": 86_582_016, "L": 304_370_688, "g": 1_136_483_840}
# In millions. Hybrids: timm's vit_tiny_r_s16_p8_224 and so on. Mixer without its head: table 1 of
# Tolstikhin et al. 2021. DINOv3 without its head: table 14 of Siméoni et al. 2025.
HYBRID = {"R+Ti/16": 6.34, "R26+S/32": 36.43, "R50+ViT-B/16": 98.66, "R50+L/32": 328.99}
MIXER = {"S/32": 19, "S/16": 18, "B/32": 60, "B/16": 59, "L/32": 206, "L/16": 207, "H/14": 431}
DINOV3 = {"S": 21, "S+": 29, "B": 86, "L": 300, "H+": 840, "7B": 6716}
HEAD, SIZE_518 = ("head/*",), {"image_shape": (518, 518, 3)}
# Of a class, variants, patterns of weights that are not counted, and arguments. A count that is
# rounded is compared as such.
TABLES = [
    ("ViT", VIT, (), {}),
    ("BiT", BIT, (), {}),
    ("CLIPViT", CLIP, (), {}),
    ("SigLIPViT", SIGLIP, (), {}),
    ("SigLIPViT", SIGLIP_256, (), {"image_shape": (256, 256, 3)}),
    ("BEiT", {"B/16": 86_530_984, "L/16": 304.43}, (), {}),
    ("Mixer", {"B/16": 59_880_472, "L/16": 208_196_168}, (), {}),
    ("Mixer", MIXER, HEAD, {}),
    ("HybridViT", HYBRID, (), {}),
    ("DistilledViT", DISTILLED, (), {}),
    ("ViT", {f"DeiT3-{size}": n for size, n in DEIT3.items()}, (), {}),
    ("ViT", {f"DINOv2-{size}/14": n for size, n in DINOV2.items()}, HEAD, SIZE_518),
    (
        *("ViT", {f"DINOv2-{size}/14": n for size, n in REGISTERS.items()}, HEAD),
        SIZE_518 | {"registers": 4, "class_position": False},
    ),
    ("RotaryViT", {f"DINOv3-{size}/16": n for size, n in DINOV3.items()}, HEAD, {}),
]
ROWS = [(c, v, n, *rest) for c, variants, *rest in TABLES for v, n in variants.items()]
# Plain ViTs of one size differ in the patches, whose number follows from their size.
OTHER_PATCHES = {name for name in VIT if not name.endswith("/16")}


def marked(row):
    is_long = row[0] == "ViT" and row[1] in OTHER_PATCHES
    return pytest.param(*row, marks=pytest.mark.long if is_long else pytest.mark.slow)


def count(model, variant, left_out, arguments):
    """Parameters of a model that is made without memory for them."""
    with keras.StatelessScope():
        weights = getattr(vit_tf, model).from_variant(variant, **arguments).weights
        # Or they would be initialized at the end.
        global_state.set_global_attribute("uninitialized_variables", [])
    sizes = {weight.path.partition("/")[2]: math.prod(weight.shape) for weight in weights}
    return sum(n for path, n in sizes.items() if not any(fnmatch(path, p) for p in left_out))


@pytest.mark.parametrize(
    ("model", "variant", "published", "left_out", "arguments"), map(marked, ROWS)
)
def test_parameter_counts(model, variant, published, left_out, arguments):
    number = count(model, variant, left_out, arguments)
    if "DINOv3" in variant:
        assert abs(number / 1e6 - published) < 0.02 * published + 1
    elif published < 1e4:
        assert round(number / 1e6, 0 if model == "Mixer" else 2) == published
    else:
        assert number == published


# timm's ViTs with registers, which are compared with timm's own.
MEANS = ("wee/", "little/", "medium", "betwixt/", "so150m")


def test_every_variant_is_counted_and_its_heads_are_those_of_its_papers():
    for model in {row[0] for row in ROWS}:
        variants = getattr(vit_tf, model).variants
        named = {variant for name, variant, *_ in ROWS if name == model}
        others = {name for name in variants if name.startswith(MEANS)}
        assert named | others == set(variants), model
    for name, fields in (vit_tf.CLIPViT.variants | vit_tf.ViT.variants).items():
        width = {"H": 80, "g": 88, "bigG": 104}.get(name.partition("/")[0], 64)
        if name in (*VIT, *CLIP):
            assert fields["hidden_dim"] == width * fields["num_heads"], name
