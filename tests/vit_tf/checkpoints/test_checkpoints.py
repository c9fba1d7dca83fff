import checkpoint_layouts as layouts
import numpy as np
import oracles
import pytest
from archive_files import raises
from checkpoint_families import FILES, HEADLESS, IN_TORCH, SHAPE, arrays, write, write_torch
from checkpoint_layouts import CLASSES, HEADS, WIDTH

import vit_tf
from vit_tf.data.preprocessing import CLIP, HALF, IMAGENET
from vit_tf.models.resolution import resample_positions

SLOW = pytest.mark.slow
VALUES = {"mae": IMAGENET, "dino": IMAGENET, "moco": IMAGENET, "clip": CLIP}


@pytest.fixture
def images():
    return np.random.default_rng(1).uniform(-1, 1, size=(2, *SHAPE)).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("family", FILES)
def test_round_trip(family, images, tmp_path):
    """Written as released, loaded, saved as `.keras` and opened again: the same bits."""
    layout, options = FILES[family]
    tensors = layout()
    path = write(tensors, tmp_path)
    if family in IN_TORCH:
        path = write_torch(tensors, tmp_path / "model.pth.tar")
    model = vit_tf.load_pretrained(path, **options)
    assert model.image_shape == SHAPE
    assert model.preprocessing.mean == VALUES.get(family, HALF)["mean"]
    assert model.preprocessing.std == VALUES.get(family, HALF)["std"]
    google = any("/" in name for name in tensors)
    assert model.preprocessing.interpolation == ("bilinear" if google else "bicubic")
    model.save(tmp_path / "again.keras")
    again = vit_tf.load_model(tmp_path / "again.keras")
    assert again.preprocessing == model.preprocessing
    assert np.ptp(np.asarray(model(images)), axis=1).min() > 0
    np.testing.assert_array_equal(again(images), model(images))
    again = arrays(again)
    for name, weight in arrays(model).items():
        np.testing.assert_array_equal(again[name], weight, err_msg=name)
        if not (family in HEADLESS and name.startswith("head/")):
            assert np.std(weight) > 0, f"{name} is as it was before the file was read"


@pytest.mark.parametrize("around", ["dino", "mae", "moco"])
def test_what_lies_around_an_encoder_changes_nothing(around, load):
    """DINO's and MoCo-v3's prefixes, projections and second encoders, and MAE's decoder."""
    tensors = layouts.timm_vit(None)
    expected = arrays(load(tensors, num_heads=HEADS))
    if around == "dino":
        stored = {f"backbone.{name}": array for name, array in tensors.items()}
        stored["head.last_layer.weight_g"] = np.ones((9, 1), np.float32)
    else:
        stored = getattr(layouts, around)()
    for name, weight in arrays(load(stored, num_heads=HEADS)).items():
        np.testing.assert_array_equal(weight, expected[name], err_msg=name)


@pytest.mark.parametrize(
    "family",
    [
        name if name in ("vit-pre_logits", "clip", "beit") else pytest.param(name, marks=SLOW)
        for name in FILES
    ],
)
def test_a_new_head_starts_at_zero(family, images, load):
    layout, options = FILES[family]
    tensors = layout()
    model = load(tensors, num_classes=CLASSES + 2, **options)
    taps = model.intermediates(images)
    np.testing.assert_array_equal(taps["logits"], np.zeros((2, CLASSES + 2)))
    # The paper's layer of tanh goes with the head that it was trained for.
    assert "pre_logits" not in taps
    original = arrays(load(tensors, **options))
    for name, weight in arrays(model).items():
        if not name.startswith("head/"):
            np.testing.assert_array_equal(weight, original[name])


def test_as_many_classes_as_the_file_keeps_its_head(load):
    tensors = layouts.google_vit(pre_logits=7)
    model = load(tensors, num_classes=CLASSES)
    np.testing.assert_array_equal(model.head.kernel.numpy(), tensors["head/kernel"])
    assert model.pre_logits.units == 7


def test_without_a_head_the_logits_are_what_it_would_read(images, load):
    for tensors in (layouts.google_vit(head=None), layouts.google_vit(pre_logits=7, head=None)):
        taps = load(tensors).intermediates(images)
        before = "pre_logits" if "pre_logits" in taps else "pooled"
        np.testing.assert_array_equal(taps["logits"], taps[before])
    clip = load(layouts.clip(), num_heads=HEADS)
    assert clip.head is None and clip.taps[-1] == "projected"


def test_timm_representation_layer(images, load):
    tensors = layouts.timm_vit(head=None)
    tensors.linear("pre_logits.fc", WIDTH, 7)
    tensors.linear("head", 7, CLASSES)
    taps = load(tensors, num_heads=HEADS).intermediates(images)
    hidden = np.asarray(taps["pooled"]) @ tensors["pre_logits.fc.weight"].T
    expected = np.tanh(hidden + tensors["pre_logits.fc.bias"])
    np.testing.assert_allclose(taps["pre_logits"], expected, rtol=1e-5, atol=1e-6)
    assert "pre_logits" not in load(tensors, num_heads=HEADS, num_classes=3).taps


@pytest.mark.parametrize(
    "family",
    [
        "vit",
        pytest.param("hybrid", marks=SLOW),
        pytest.param("timm", marks=SLOW),
        pytest.param("clip", marks=SLOW),
        pytest.param("beit", marks=SLOW),
    ],
)
def test_another_resolution_is_that_of_at_resolution(family, load):
    layout, options = FILES[family]
    tensors = layout()
    method = "bilinear" if "head/bias" in tensors or family == "beit" else "bicubic"
    model = load(tensors, image_shape=(64, 32), **options)
    expected = vit_tf.at_resolution(load(tensors, **options), (64, 32, 3), method=method)
    assert model.image_shape == (64, 32, 3) and model.preprocessing.size == (64, 32)
    expected = arrays(expected)
    for name, weight in arrays(model).items():
        np.testing.assert_array_equal(weight, expected[name])


def test_positions_are_resampled_as_asked_for(load):
    layout, options = FILES["timm"]
    tensors = layout()
    stored = tensors["pos_embed"]
    actual = load(tensors, image_shape=(64, 32), positions="dino", **options)
    grids = load(tensors, **options).token_grid, actual.token_grid
    for method, same in (("dino", True), ("bicubic", False)):
        expected = resample_positions(stored, *grids, method)
        assert np.allclose(actual.embedding.positions.numpy(), expected, atol=1e-6) == same
    with raises("'dinov2'"):
        load(tensors, positions="dinov2", **options)


def test_a_file_of_oblong_images_needs_their_shape(load):
    tensors = layouts.timm_vit()
    tensors.draw("pos_embed", 1, 6 + 1, WIDTH)
    with raises("7 positions"):
        load(tensors, num_heads=HEADS)
    model = load(tensors, num_heads=HEADS, image_shape=(16, 24))
    assert model.image_shape == (16, 24, 3)
    np.testing.assert_array_equal(model.embedding.positions.numpy(), tensors["pos_embed"])
    table = layouts.beit()
    for i in range(layouts.LAYERS):
        table.draw(f"blocks.{i}.attn.relative_position_bias_table", 3 * 5 + 3, HEADS)
    with raises("18 entries"):
        load(table)
    assert load(table, image_shape=(16, 24)).image_shape == (16, 24, 3)


def test_mixers_keep_their_tokens(load):
    with raises(r"image_shape=\(64, 64, 3\)"):
        load(layouts.google_mixer(), image_shape=(64, 64))


def test_pooling_in_place_of_the_file(load):
    tensors = layouts.google_vit()
    gap = load(tensors, pooling="gap")
    positions = tensors["Transformer/posembed_input/pos_embedding"]
    np.testing.assert_array_equal(gap.embedding.positions.numpy(), positions[:, 1:])
    assert gap.pooling == "gap" and gap.embedding.prefix is None
    tensors = layouts.google_vit("big_vision", cls=False)
    cls = load(tensors, pooling="cls")
    np.testing.assert_array_equal(cls.embedding.positions.numpy()[:, 0], np.zeros((1, WIDTH)))
    np.testing.assert_array_equal(cls.embedding.positions.numpy()[:, 1:], tensors["pos_embedding"])
    assert load(layouts.beit("gap"), pooling="cls").pooling == "cls"


def test_the_mean_of_the_patches_of_big_vision(images, load):
    """The embedding from the file's tensors, and the head on the mean, in float64."""
    t = {n: x.astype(float) for n, x in layouts.google_vit("big_vision", cls=False).items()}
    taps = load(layouts.google_vit("big_vision", cls=False)).intermediates(images)
    patches = {f"embedding/patches/{end}": t[f"embedding/{end}"] for end in ("kernel", "bias")}
    embedding = oracles.patches(images, patches, layouts.PATCH) + t["pos_embedding"]
    np.testing.assert_allclose(taps["embedding"], embedding, rtol=1e-5, atol=1e-5)
    logits = np.asarray(taps["norm"], float).mean(1) @ t["head/kernel"] + t["head/bias"]
    np.testing.assert_allclose(taps["logits"], logits, rtol=1e-4, atol=1e-5)


def timm_heads(width, layers, prefix="", labelled=True, **options):
    """The heads that are read off the names and shapes of a ViT of a size, which is not built."""
    from vit_tf.checkpoints import timm
    from vit_tf.checkpoints.archives import TensorInfo
    from vit_tf.checkpoints.weight_maps import LoadOptions

    shapes = {"patch_embed.proj.weight": (width, 3, 8, 8), "pos_embed": (1, 17, width)}
    shapes |= {"cls_token": (1, 1, width)} | ({"head.bias": (5,)} if labelled else {})
    shapes |= {f"blocks.{i}.mlp.fc1.bias": (4 * width,) for i in range(layers)}
    tensors = {f"{prefix}{name}": TensorInfo(shape, "float32") for name, shape in shapes.items()}
    return timm.convert_vit(tensors, LoadOptions(**options)).mapping.arguments["num_heads"]


def test_heads_follow_from_published_sizes():
    """Ti, S, B, L and H: 64 channels a head, 80 in H, whatever the family."""
    sizes = {(192, 12): 3, (384, 12): 6, (768, 12): 12, (1024, 24): 16, (1280, 32): 16}
    for size, heads in sizes.items():
        assert timm_heads(*size) == heads
    # The small ViT of early timm has 8 heads in 8 layers of as many channels as a base one.
    with pytest.raises(
        ValueError, match=r"Specify num_heads.*8 layers of 768 channels.*num_heads=None"
    ):
        timm_heads(768, 8)
    assert timm_heads(768, 8, num_heads=8) == 8


def test_heads_of_small_models_are_inferred_or_requested():
    moco = "module.base_encoder."
    assert timm_heads(384, 12, moco, labelled=False) == 12
    assert timm_heads(384, 12, moco, labelled=False, num_heads=6) == 6
    assert timm_heads(384, 12, "backbone.", labelled=False) == 6
    assert timm_heads(384, 12, labelled=False, known_name=True) == 6
    # MoCo-v3's linear probe, and its encoder without a prefix, as its conversion to DeiT writes it.
    for prefix, labelled in (("module.", True), ("", False)):
        with pytest.raises(ValueError, match=r"num_heads \(6 or 12\).*num_heads=None"):
            timm_heads(384, 12, prefix, labelled)
        assert timm_heads(384, 12, prefix, labelled, num_heads=12) == 12
        assert timm_heads(768, 12, prefix, labelled) == 12


def test_unusual_widths_ask_for_their_heads(load):
    for layout in (layouts.timm_vit, layouts.clip, layouts.moco):
        with raises("num_heads=None"):
            load(layout())
    with raises("num_heads=5"):
        load(layouts.timm_vit(), num_heads=5)
    for layout in (layouts.google_vit, layouts.beit):
        with raises("num_heads=2"):
            load(layout(), num_heads=2)
        assert load(layout(), num_heads=HEADS).get_config()["num_heads"] == HEADS


def test_a_path_may_begin_with_the_home_folder(load, tmp_path, monkeypatch):
    tensors = layouts.timm_vit(None)
    write(tensors, tmp_path)
    for name in ("HOME", "USERPROFILE"):
        monkeypatch.setenv(name, str(tmp_path))
    expected = arrays(load(tensors, num_heads=HEADS))
    model = vit_tf.load_pretrained("~/model.safetensors", num_heads=HEADS)
    for name, weight in arrays(model).items():
        np.testing.assert_array_equal(weight, expected[name], err_msg=name)
