"""Preprocessing of PyTorch modules against the processors and transforms of their libraries."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images
from without_torchvision import import_or_skip

import vit_tf
from vit_tf import analysis

torch = pytest.importorskip("torch")
transformers = pytest.importorskip("transformers", reason="transformers is not installed")
nn = torch.nn
PICTURES = [load_sample_images().images[0][:400, :600].copy()]  # writable, for PyTorch
PICTURES += [load_sample_images().images[1][90:200, :90].copy()]
SQUARE = {"size": {"height": 64, "width": 64}}
CROPPED = {"size": {"shortest_edge": 75}, "crop_size": {"height": 64, "width": 64}}
# Processors, with arguments, that a `Preprocessing` describes.
KNOWN = {
    "ViT": SQUARE,
    "ViT, twice the values": SQUARE | {"rescale_factor": 1 / 127.5, "image_mean": [1, 1, 1]},
    "ViT, levels": SQUARE | {"do_rescale": False, "image_std": [90, 80, 70]},
    "ViT, no values": SQUARE | {"do_normalize": False},
    "ViT, Lanczos": SQUARE | {"resample": 1},
    "ViT, nearest": SQUARE | {"resample": 0},
    "ViT, oblong": {"size": {"height": 48, "width": 64}, "resample": 3},
    "Beit": {"size": {"height": 75, "width": 75}, "crop_size": {"height": 64, "width": 64}},
    "DeiT": {"size": {"height": 80, "width": 80}, "crop_size": {"height": 64, "width": 64}},
    "Bit": CROPPED,
    "MobileViT": CROPPED,
    "MobileNetV2": CROPPED,
    "Levit": {"size": {"shortest_edge": 64}, "crop_size": {"height": 64, "width": 64}},
    "PoolFormer": {"crop_pct": 0.95},
    "ConvNext": {"size": {"shortest_edge": 224}, "crop_pct": 0.875},
    "ConvNext, 384": {},
    "EfficientNet": SQUARE | {"resample": 2},
    "EfficientNet, without top": SQUARE | {"include_top": False, "resample": 3},
}
# Processors of which it does not: they pad, make several sizes, crop without resizing, use a filter
# of their own, or make tokens.
OTHERS = {
    "MobileViT": {},  # the shorter side becomes 224, and is padded to 256
    "ViT": SQUARE | {"resample": 5},
    "Bit": CROPPED | {"do_resize": False},
    "CLIP": {"do_center_crop": False},
}
UNUSUAL = ("Perceiver", "Detr", "Sam", "Owlv2", "Vilt", "Siglip2", "Swin2SR", "GLPN")


def create(kind, fast, **arguments):
    name = f"{kind.partition(',')[0]}ImageProcessor{'Fast' * fast}"
    try:
        return getattr(transformers, name)(**arguments)
    except (AttributeError, ImportError):
        return pytest.skip(f"{name} is not installed")


def measure(processor, num_channels=3):
    from vit_tf.torch_models.image_processors import measure_preprocessing

    return measure_preprocessing(processor, num_channels)


def assert_same_pixels(preprocessing, processor):
    """Photographs are those of a processor but for Pillow's rounding of each of two passes."""
    for picture in PICTURES:
        outputs = processor(picture, return_tensors="pt")["pixel_values"]
        expected = np.moveaxis(np.asarray(outputs, np.float64)[0], 0, -1)
        found = np.asarray(preprocessing(picture))
        assert found.shape == expected.shape
        levels = np.abs(found - expected) * np.array(preprocessing.std) * 255
        assert levels.mean() < 0.6 and np.mean(levels > 2) < 0.02


@pytest.mark.parametrize("fast", [False, True])
@pytest.mark.parametrize("kind", KNOWN)
def test_pixels_are_those_of_image_processors(kind, fast):
    processor = create(kind, fast, **KNOWN[kind])
    preprocessing = measure(processor)
    assert preprocessing is not None
    assert_same_pixels(preprocessing, processor)


@pytest.mark.parametrize("kind", [*OTHERS, *UNUSUAL])
def test_what_no_preprocessing_does_is_unknown(kind):
    assert measure(create(kind, False, **OTHERS.get(kind, {}))) is None


@pytest.mark.slow
@pytest.mark.parametrize("fast", [False, True])
def test_no_image_processor_is_described_wrong(fast):
    """All processors of transformers that need no arguments: right or unknown."""
    ending = "ImageProcessor" + "Fast" * fast
    described = []
    for name in dir(transformers):
        kind = name.removesuffix(ending)
        if not name.endswith(ending) or kind in ("Auto", "Base"):
            continue
        try:
            processor = getattr(transformers, name)()
        except Exception:  # of packages that are not installed, or with arguments
            continue
        if preprocessing := measure(processor):
            assert_same_pixels(preprocessing, processor)
            described.append(kind)
    assert fast or len(described) > 25, described


def test_processors_that_keep_sizes_and_of_one_channel():
    unsized = create("ViT", False, do_resize=False, image_mean=[0.4, 0.5, 0.6])
    expected = vit_tf.Preprocessing(None, (0.4, 0.5, 0.6), crop_rounding="down")
    assert measure(unsized) == expected
    grey = create("ViT", False, **SQUARE, image_mean=[0.2], image_std=[0.3], resample=3)
    preprocessing = measure(grey, 1)
    assert preprocessing.num_channels == 1
    picture = PICTURES[0][..., :1]
    (expected,) = grey(picture, input_data_format="channels_last")["pixel_values"]
    levels = np.abs(preprocessing(picture)[..., 0] - expected[0]) * 0.3 * 255
    assert np.mean(levels > 2) < 0.02


def test_scores_are_those_of_a_model_and_its_stored_processor(tmp_path):
    """BEiT's processor squeezes images to a square and crops it."""
    size = {"image_size": 64, "patch_size": 16, "num_labels": 5, "hidden_size": 16}
    config = transformers.BeitConfig(
        **size, num_hidden_layers=2, num_attention_heads=2, intermediate_size=32
    )
    torch.manual_seed(0)
    transformers.BeitForImageClassification(config).save_pretrained(tmp_path)
    processor = create("Beit", False, **KNOWN["Beit"], do_center_crop=True)
    processor.save_pretrained(tmp_path)
    model = transformers.BeitForImageClassification.from_pretrained(tmp_path).eval()
    pixels = processor(PICTURES[0], return_tensors="pt")["pixel_values"]
    with torch.no_grad():
        expected = model(pixels).logits.numpy()
    picture = Image.fromarray(PICTURES[0])
    scores = vit_tf.extract_features(model, [picture], layers="*logits")["logits"]
    assert np.abs(scores - expected).max() < 0.02 * np.ptp(expected)
    create("MobileViT", False).save_pretrained(tmp_path)
    model = transformers.BeitForImageClassification.from_pretrained(tmp_path).eval()
    origin = "unknown; its image processor does what no vit_tf.Preprocessing does"
    assert analysis.features_of(model).facts.preprocessing_origin == origin
    with pytest.raises(ValueError, match="the preprocessing is unknown; its image processor"):
        vit_tf.extract_features(model, PICTURES[0][None, :64, :64])


class Small(nn.Module):
    def __init__(self, pretrained_cfg):
        super().__init__()
        self.pretrained_cfg = pretrained_cfg
        self.conv, self.head = nn.Conv2d(3, 4, 3, 2), nn.Linear(4, 5)

    def forward(self, x):
        return self.head(self.conv(x).relu().mean((2, 3)))


@pytest.mark.parametrize("mode", ["center", "squash", "border"])
@pytest.mark.parametrize("crop", [0.9, 1.0])
def test_crop_modes_are_those_of_timm(mode, crop):
    import_or_skip("timm")
    mean, std = np.array([0.4, 0.5, 0.6]), np.array([0.2, 0.3, 0.4])
    config = {"mean": tuple(mean), "std": tuple(std), "input_size": (3, 60, 60)}
    config |= {"crop_pct": crop, "crop_mode": mode, "interpolation": "bicubic"}
    facts = analysis.features_of(Small(config).eval()).facts
    if mode == "border":  # pads with the mean
        assert facts.preprocessing is None and "'border'" in facts.preprocessing_origin
        return
    # timm/data/transforms_factory.py: Resize of the shorter or of both sides, then CenterCrop.
    edge = int(60 / crop)
    for picture in PICTURES:
        height, width = picture.shape[:2]
        short = min(height, width)
        sides = (edge, edge)
        if mode == "center":
            sides = (int(edge * width / short), int(edge * height / short))
        resized = np.asarray(Image.fromarray(picture).resize(sides, Image.BICUBIC), np.float64)
        top, left = (round((side - 60) / 2) for side in resized.shape[:2])
        expected = (resized[top : top + 60, left : left + 60] / 255 - mean) / std
        levels = np.abs(facts.preprocessing(picture) - expected) * std * 255
        assert np.mean(levels > 2) < 0.02


@pytest.mark.parametrize(
    ("name", "arguments"),
    [
        ("resnet18", {}),
        ("resnet18", {"num_classes": 7}),
        ("mobilenet_v3_small", {}),
        ("efficientnet_b0", {}),
        ("shufflenet_v2_x1_5", {}),
        ("squeezenet1_1", {}),
    ],
)
def test_pixels_are_those_of_torchvisions_weights(name, arguments):
    models = pytest.importorskip("torchvision").models
    module = models.get_model(name, **arguments).eval()
    facts = analysis.features_of(module).facts
    assert facts.preprocessing_origin == "known of torchvision's weights"
    (weights,) = models.get_model_weights(name)
    for picture in PICTURES:
        expected = np.moveaxis(weights.transforms()(Image.fromarray(picture)).numpy(), 0, -1)
        found = facts.preprocessing(picture)
        assert found.shape == expected.shape
        levels = np.abs(found - expected) * np.array(facts.preprocessing.std) * 255
        assert np.mean(levels > 2) < 0.02


def test_torchvision_architectures_whose_weights_differ_have_no_preprocessing():
    models = pytest.importorskip("torchvision").models
    facts = analysis.features_of(models.resnet50().eval()).facts
    assert facts.preprocessing is None
    names = "ResNet50_Weights.IMAGENET1K_V1, ResNet50_Weights.IMAGENET1K_V2"
    assert facts.preprocessing_origin.endswith(f"differ in it: {names}")
