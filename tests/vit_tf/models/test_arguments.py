"""Arguments of models in other forms than they are described, and what opens under which name."""

import keras
import numpy as np
import pytest

import vit_tf

SIZES = {"patch_size": 8, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
MIXER = {"tokens_mlp_dim": 8, "channels_mlp_dim": 8, "patch_size": 8, "hidden_dim": 8}
SIDES = [32, None, "32", (32, 32), (32, 32, 3, 1), (32.0, 32.0, 3), (0, 32, 3)]


@pytest.mark.parametrize("shape", SIDES, ids=str)
@pytest.mark.parametrize("model", ["ViT", "BEiT", "CLIPViT", "SigLIPViT", "Mixer", "BiT"])
def test_an_image_shape_of_another_form_is_one_line(model, shape):
    with pytest.raises(ValueError, match=r"image_shape to be \(height, width, channels\)"):
        getattr(vit_tf, model)(image_shape=shape)


def test_arrays_and_lists_are_shapes_too():
    for shape in ([16, 24, 3], np.array([16, 24, 3])):
        model = vit_tf.ViT(shape, **SIZES, num_classes=2)
        assert model.image_shape == (16, 24, 3)
        assert model.get_config()["image_shape"] == (16, 24, 3)


@pytest.mark.parametrize("units", [3, "3", (), (1.5,), (1, 0)], ids=str)
def test_units_of_another_form_are_one_line(units):
    with pytest.raises(ValueError, match="units to be the number of units of each stage"):
        vit_tf.BiT((32, 32, 3), units=units)
    if units != ():
        with pytest.raises(ValueError, match="stem_units"):
            vit_tf.HybridViT((32, 32, 3), **SIZES | {"patch_size": 1}, stem_units=units)


def test_at_resolution_names_its_argument():
    model = vit_tf.ViT((16, 16, 3), **SIZES)
    for shape in (48, (48,), "48"):
        with pytest.raises(ValueError, match="Expected image_shape"):
            vit_tf.at_resolution(model, shape)


def test_a_text_is_one_name_of_without_skips():
    site = "block00/attention"
    models = {
        "ViT": lambda names: vit_tf.ViT((16, 16, 3), **SIZES, without_skips=names),
        "BEiT": lambda names: vit_tf.BEiT((16, 16, 3), **SIZES, without_skips=names),
        "CLIP": lambda names: vit_tf.CLIPViT((16, 16, 3), **SIZES, without_skips=names),
        "SigLIP": lambda names: vit_tf.SigLIPViT((16, 16, 3), **SIZES, without_skips=names),
    }
    for make in models.values():
        model = make(site)
        assert model.without_skips == (site,) and f"{site}/skip" not in model.taps
        assert model.get_config() == make((site,)).get_config() | {"name": model.name}
    mixer = vit_tf.Mixer((16, 16, 3), num_layers=1, **MIXER, without_skips="block00/token_mixing")
    assert mixer.without_skips == ("block00/token_mixing",)
    bit = vit_tf.BiT((32, 32, 3), (1, 1), 0.5, without_skips="stage2/unit01")
    assert bit.without_skips == ("stage2/unit01",) and "stage2/unit01/skip" not in bit.taps
    with pytest.raises(ValueError, match="block00/attention"):
        vit_tf.ViT((16, 16, 3), **SIZES, without_skips="block00/attentoin")


@pytest.mark.slow
def test_either_function_opens_what_it_is_given(tmp_path, rng):
    model = vit_tf.ViT((16, 16, 3), **SIZES, num_classes=4)
    model.head.kernel.assign(rng.normal(size=model.head.kernel.shape))
    images = rng.uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    path = tmp_path / "x.keras"
    model.save(path)
    for name in (path, str(path)):
        np.testing.assert_allclose(vit_tf.load_pretrained(name)(images), model(images), atol=1e-6)
    other = vit_tf.load_pretrained(path, num_classes=7, image_shape=(32, 32))
    assert other.image_shape == (32, 32, 3) and other.num_classes == 7
    image = rng.uniform(-1, 1, (1, 32, 32, 3)).astype("float32")
    expected = vit_tf.load_pretrained("vit-cls-cifar10")(image)
    np.testing.assert_array_equal(vit_tf.load_model("vit-cls-cifar10")(image), expected)


def test_what_cannot_be_opened_is_one_line(tmp_path):
    with pytest.raises(ValueError, match=r"no such file.*vit-cls-cifar10"):
        vit_tf.load_model("vit-cls-cifar1")
    with pytest.raises(ValueError, match="no such file"):
        vit_tf.load_pretrained(tmp_path / "absent.keras")
    path = tmp_path / "foreign.keras"
    keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)]).save(path)
    assert vit_tf.load_pretrained(path).output_shape == (None, 2)
    with pytest.raises(ValueError, match=r"num_classes to be None.*not a model of this package"):
        vit_tf.load_pretrained(path, num_classes=3)


ENCODER = {"image_shape": (32, 32, 3), "patch_size": 16, "hidden_dim": 12, "num_heads": 2}
PLAIN = {
    "ViT": ENCODER | {"num_layers": 2},
    "BEiT": ENCODER,
    "CLIPViT": ENCODER,
    "SigLIPViT": ENCODER,
    "Mixer": {"image_shape": (32, 32, 3), "num_layers": 1, "hidden_dim": 8, "channels_mlp_dim": 8},
    "BiT": {"image_shape": (32, 32, 3), "units": (1, 1)},
}
SUBCLASSES = ("HybridViT", "DistilledViT")
PLAIN |= dict.fromkeys(SUBCLASSES, PLAIN["ViT"])
SKIPS = {"without_skips": ["block99"]}
STEM = {"patch_size": 1, "stem_units": (1, 1, 1)}
WRONG = [
    *(
        (name, {"image_shape": (30, 32, 3)}, r"multiples of patch_size.*\(30, 32, 3\)")
        for name in ("ViT", "BEiT", "CLIPViT", "Mixer")
    ),
    *(
        (name, {"num_heads": 5}, "multiple of num_heads.*num_heads=5")
        for name in ("ViT", "BEiT", "CLIPViT", "SigLIPViT")
    ),
    *(
        (name, SKIPS | (STEM if name == "HybridViT" else {}), "without_skips.*'block99'")
        for name in PLAIN
        if name != "BiT"
    ),
    *((name, {"pooling": "max"}, "pooling.*'max'") for name in ("ViT", "BEiT")),
    *(
        (name, {"activation": "none"}, "activation.*'none'.*gelu_tanh")
        for name in ("ViT", "CLIPViT", "SigLIPViT", "Mixer")
    ),
    ("SigLIPViT", {"image_shape": (15, 32, 3)}, r"at least one patch.*\(15, 32, 3\)"),
    ("SigLIPViT", {"activation": "swiglu"}, "activation.*'swiglu'"),
    ("Mixer", {"without_skips": ["block00/mlp"]}, "without_skips.*'block00/mlp'.*block00"),
    ("BiT", {"width_factor": 0.3}, r"multiple of the 32 groups.*width_factor=0\.3"),
    ("BiT", {"stem": "tiny"}, "stem.*'tiny'.*imagenet, small"),
    ("BiT", {"without_skips": ["stage9"]}, "without_skips.*'stage9'.*stage1"),
    ("HybridViT", STEM | {"image_shape": (24, 40, 3)}, "stem's stride.*a stem of stride 16"),
    ("HybridViT", STEM | {"without_skips": ["stage4"]}, "without_skips.*'stage4'.*stage3"),
    ("ViT", {"class_token": False}, "class token.*class_token=False"),
    ("ViT", {"fc_norm": True}, "no fc_norm.*fc_norm=True"),
    ("DistilledViT", {"distillation": "heads", "pooling": "gap"}, "Received: .*'heads'.*'gap'"),
    ("ViT", {"registers": -1}, "registers.*-1"),
    ("DistilledViT", {"distillation": "both"}, "distillation.*'both'.*heads"),
    ("DistilledViT", {"distillation": "heads", "representation_dim": 3}, "representation_dim=3"),
]


@pytest.mark.parametrize(("model", "arguments", "message"), WRONG, ids=str)
def test_wrong_arguments_are_named(model, arguments, message):
    with pytest.raises(ValueError, match=message):
        getattr(vit_tf, model)(**PLAIN[model] | arguments)


@pytest.mark.parametrize("model", [name for name in PLAIN if name not in SUBCLASSES])
def test_a_variant_that_is_not_known_is_named_with_near_ones(model):
    near, wrong = ("R50x1", "R50x2") if model == "BiT" else ("B/16", "B/15")
    with pytest.raises(ValueError, match=f"Unknown variant: '{wrong}'.*{near}"):
        getattr(vit_tf, model).from_variant(wrong)
