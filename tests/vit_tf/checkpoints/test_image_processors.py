"""The preprocessing of a folder against the processors of transformers that wrote its file."""

from types import SimpleNamespace

import numpy as np
import pytest
from archive_files import refuses
from paths import SHARED
from PIL import Image
from sklearn.datasets import load_sample_images

from vit_tf import Preprocessing
from vit_tf.checkpoints.configs import preprocessing_from_config
from vit_tf.checkpoints.weight_maps import LoadOptions
from vit_tf.data.preprocessing import IMAGENET

VIT = {
    "image_processor_type": "ViTImageProcessor",
    "do_resize": True,
    "size": {"height": 32, "width": 32},
    "resample": 2,
    "do_rescale": True,
    "rescale_factor": 1 / 255,
    "do_normalize": True,
    "image_mean": [0.5, 0.4, 0.3],
    "image_std": [0.2, 0.3, 0.4],
}
BIT = VIT | {
    "image_processor_type": "BitImageProcessor",
    "size": {"shortest_edge": 37},
    "resample": 3,
    "do_center_crop": True,
    "crop_size": {"height": 32, "width": 32},
}


def read(processor, kind="vit", shape=(32, 32, 3), any_size=False, options=None):
    """The `Preprocessing` that follows from a processor's file."""
    folder = SimpleNamespace(config={"model_type": kind}, processor=processor)
    images = preprocessing_from_config(folder, shape, any_size, options or LoadOptions())
    values, images = images["values"], {"crop_rounding": "even"} | images
    names = ("interpolation", "crop", "crop_rounding", "aspect")
    how = {name: images[name] for name in names if name in images}
    return Preprocessing(shape[:2], values["mean"], values["std"], **how)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("ViTImageProcessor", {"size": {"height": 32, "width": 48}}),
        ("BitImageProcessor", {"size": {"shortest_edge": 64}, "crop_size": 56}),
        ("BitImageProcessor", {"size": {"shortest_edge": 60}, "crop_size": 56}),
        ("BitImageProcessor", {"size": {"shortest_edge": 63}, "crop_size": 56}),
        ("CLIPImageProcessor", {"size": {"shortest_edge": 59}, "crop_size": 56}),
        ("DeiTImageProcessor", {"size": {"height": 64, "width": 64}, "crop_size": 56}),
        ("SiglipImageProcessor", {"size": {"height": 32, "width": 32}}),
        ("ViTImageProcessor", {"size": {"height": 32, "width": 32}, "do_normalize": False}),
        ("ViTImageProcessor", {"size": {"height": 32, "width": 32}, "rescale_factor": 1 / 127.5}),
    ],
)
def test_pixels_are_those_of_the_processor(kind, options):
    """To one of 255 levels: Pillow rounds what is resized, and we do not.

    Half a pixel beside a crop is rounded down.
    """
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    processor = getattr(transformers, kind)(**options, image_mean=IMAGENET["mean"])
    fields = processor.to_dict()
    size = fields.get("crop_size") or fields["size"]
    shape = (size["height"], size["width"], 3)
    picture = load_sample_images().images[0][:400, :600]
    preprocessing = read(fields, shape=shape)
    expected = processor(picture, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
    scale = fields["rescale_factor"] * 255 / np.array(fields["image_std"])
    level = (scale if fields["do_normalize"] else fields["rescale_factor"] * 255) / 255
    assert expected.shape == shape
    assert np.max(np.abs(preprocessing(picture) - expected) / level) <= 1.01


@pytest.fixture(scope="module")
def photographs():
    """Decoded photographs of ImageNet."""
    paths = sorted((SHARED / "images" / "imagenet_samples").rglob("*.jpg"))
    if not paths:
        pytest.skip("no photographs")
    pictures = []
    for path in paths:
        with Image.open(path) as opened:
            pictures.append(np.asarray(opened.convert("RGB")))
    return pictures


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["ViT", "DeiT", "Bit", "CLIP", "Beit"])
def test_photographs_are_those_of_the_processor(kind, photographs, record_property):
    """With what each processor does where it is told nothing, to one of 255 levels.

    Where it shrinks bicubically, Pillow rounds and clips between the passes along rows and along
    columns: few numbers next to edges differ by more (of one photograph 1.6 %, of all together
    0.1 %), and none from Pillow's result for floats.
    """
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    pytest.importorskip("torch", reason="torch is not installed")
    processor = getattr(transformers, f"{kind}ImageProcessor")()
    fields = processor.to_dict()
    size = fields.get("crop_size") or fields["size"]
    preprocessing = read(fields, shape=(size["height"], size["width"], 3))
    scale = fields["rescale_factor"] * 255 / np.array(fields["image_std"])
    worst, shares = 0.0, []
    for picture in photographs:
        expected = processor(picture, return_tensors="np")["pixel_values"][0].transpose(1, 2, 0)
        image = np.asarray(preprocessing(picture))
        difference = np.abs(image - expected) / (scale / 255)
        worst = max(worst, difference.max())
        shares.append(np.mean(difference > 1.01))
        if kind in ("Bit", "CLIP"):
            levels = (image * np.array(preprocessing.std) + np.array(preprocessing.mean)) * 255
            assert np.abs(levels - _shrunk(picture, preprocessing.size)).max() < 0.05
    record_property("largest difference in levels", float(worst))
    record_property("photographs", len(photographs))
    record_property("largest share beyond a level", float(max(shares)))
    if kind in ("Bit", "CLIP"):
        assert np.mean(shares) < 1e-3 and max(shares) < 0.02 and worst < 17
    else:
        assert max(shares) == 0


def _shrunk(picture, size):
    """The centre of a picture that Pillow shrinks bicubically in floats."""
    height, width = picture.shape[:2]
    shape = [size[0] * n // min(height, width) for n in (width, height)]
    bands = (Image.fromarray(band.astype("float32")) for band in np.moveaxis(picture, 2, 0))
    resized = np.stack([np.asarray(band.resize(shape, Image.BICUBIC)) for band in bands], axis=-1)
    top, left = ((resized.shape[axis] - size[axis]) // 2 for axis in (0, 1))
    return resized[top : top + size[0], left : left + size[1]].clip(0, 255)


def test_what_a_file_leaves_out_is_its_processors_default():
    short = {"image_mean": 0.5, "image_std": [0.5] * 3, "size": 32}
    assert read(short) == Preprocessing((32, 32))
    assert read(short | {"image_processor_type": "ViTFeatureExtractor"}) == read(short)
    cropped = short | {"crop_size": 28, "size": 32}
    deit = read(cropped, "deit", (28, 28, 3))
    expected = {"interpolation": "bicubic", "crop": 28 / 32, "crop_rounding": "down"}
    assert deit == Preprocessing((28, 28), **expected, aspect="squeeze")
    clip = read(cropped | {"image_processor_type": "CLIPImageProcessor"}, "clip", (28, 28, 3))
    assert clip == Preprocessing((28, 28), **expected)
    with refuses("resample.*None"):
        read(short | {"do_center_crop": False}, "other")
    with refuses("'do_center_crop': None"):
        read(short | {"resample": 3}, "other")


def test_the_family_counts_where_there_is_no_file():
    for kind in ("deit", "dinov2", "dinov2_with_registers"):
        expected = Preprocessing((28, 28), **IMAGENET, interpolation="bicubic", crop=0.875)
        assert read(None, kind, (28, 28, 3)) == expected
    with refuses("preprocessing=vit_tf.Preprocessing.*'vit'"):
        read(None)
    options = LoadOptions(preprocessing=1)
    nothing = preprocessing_from_config(SimpleNamespace(config={}), (1, 1, 3), False, options)
    assert nothing == {}


def test_the_share_that_is_cropped_gives_back_the_edge():
    for edge in range(32, 400):
        fields = BIT | {"size": {"shortest_edge": edge}}
        share = read(fields).crop
        assert int(np.floor(32 / share)) == edge


def test_dinov2_takes_the_share_at_its_own_size():
    """Its files are of positions of 518 pixels, and its processor's of images of 224."""
    assert read(BIT, "dinov2", (64, 64, 3), any_size=True).crop == 32 / 37
    with refuses(r"size.*\(64, 64\).*\(32, 32\)"):
        read(BIT, "deit", (64, 64, 3))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"resample": 1}, "resample.*1"),
        ({"do_resize": False}, "'do_resize': False"),
        ({"size": {"shortest_edge": 32}}, "shortest_edge"),
        ({"size": {"height": 32}}, "'height': 32"),
        ({"size": "32"}, "'size': '32'"),
        ({"do_center_crop": True, "crop_size": 64}, "'crop_size': 64"),
        ({"image_mean": [0.5]}, r"image_mean=\[0.5\]"),
        ({"image_std": "a"}, "image_std='a'"),
        ({"image_mean": [float("nan")] * 3}, "image_mean"),
        ({"rescale_factor": 0}, "rescale_factor.*0"),
    ],
)
def test_what_no_preprocessing_does_is_refused(fields, message):
    with refuses(message):
        read(VIT | fields)
