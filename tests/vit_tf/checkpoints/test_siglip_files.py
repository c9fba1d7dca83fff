"""SigLIP in timm's names, in those of open_clip's files and in big_vision's, against timm."""

import numpy as np
import pytest
from archive_files import helper_or_skip, refuses, write_safetensors
from checkpoint_families import arrays

import vit_tf
from vit_tf.checkpoints.weight_maps import HALF

MOST = 1e-5


@pytest.fixture
def models():
    """The helper of tiny models."""
    return helper_or_skip("tower_models", "transformers")


@pytest.mark.parametrize("names", ["timm", "open_clip", "big_vision", "big_vision-stacked"])
def test_every_block_is_that_of_timm(names, models, tmp_path):
    reference = models.timm_siglip()
    state = models.state_of(reference)
    path, options = tmp_path / "model.safetensors", {"num_heads": 3}
    if names.startswith("big_vision"):
        path, options = tmp_path / "model.npz", {}
        np.savez(path, **models.big_vision_siglip(state, 3, names.endswith("stacked")))
    elif names == "open_clip":
        text = {"text.ln_final.bias": np.ones(3, "float32"), "logit_bias": np.ones((), "float32")}
        write_safetensors(path, models.state_of(reference, "visual.trunk.") | text)
    else:
        write_safetensors(path, state)
    model = vit_tf.load_pretrained(path, image_shape=(20, 20), **options)
    images = models.pictures((20, 20, 3))
    expected = models.timm_taps(reference, images)
    expected["pooled"] = expected.pop("output")
    models.assert_matches(model, expected, images, 5)
    google = names.startswith("big_vision")
    assert model.preprocessing.interpolation == ("bilinear" if google else "bicubic")
    assert model.preprocessing.mean == HALF["mean"] and model.preprocessing.crop is None
    # The file itself tells patches only: images without what is beyond them.
    whole = vit_tf.load_pretrained(path, **options)
    assert whole.image_shape == (18, 18, 3)
    np.testing.assert_array_equal(whole(images[:, :18, :18]), model(images))
    assert model.count_params() == sum(p.numel() for p in reference.parameters())


def test_oblong_images_and_resampled_positions(models, tmp_path):
    """Bicubic and antialiased, as timm resamples positions."""
    from without_torchvision import import_or_skip

    reference = models.timm_siglip(img_size=(24, 30))
    write_safetensors(tmp_path / "model.safetensors", models.state_of(reference))
    options = {"num_heads": 3}
    with refuses("20 positions"):
        vit_tf.load_pretrained(tmp_path / "model.safetensors", **options)
    model = vit_tf.load_pretrained(tmp_path / "model.safetensors", image_shape=(24, 30), **options)
    images = models.pictures((24, 30, 3))
    expected = models.timm_taps(reference, images)
    expected["pooled"] = expected.pop("output")
    models.assert_matches(model, expected, images)
    square = models.timm_siglip(img_size=24)
    write_safetensors(tmp_path / "model.safetensors", models.state_of(square))
    larger = vit_tf.load_pretrained(tmp_path / "model.safetensors", image_shape=(18, 42), **options)
    import_or_skip("timm")
    square.set_input_size((18, 42))
    images = models.pictures((18, 42, 3))
    expected = models.timm_taps(square, images)
    expected["pooled"] = expected.pop("output")
    models.assert_matches(larger, expected, images)


def test_heads(models, tmp_path):
    reference = models.timm_siglip(num_classes=5)
    path = tmp_path / "model.safetensors"
    write_safetensors(path, models.state_of(reference))
    images = models.pictures((20, 20, 3))
    expected = models.timm_taps(reference, images)["output"]
    model = vit_tf.load_pretrained(path, num_heads=3, image_shape=(20, 20))
    assert np.abs(model(images) - expected).max() < MOST * np.abs(expected).max()
    fresh = vit_tf.load_pretrained(path, num_heads=3, num_classes=7)
    assert fresh.num_classes == 7 and not np.any(fresh.head.kernel)
    for name, weight in arrays(fresh).items():
        if not name.startswith("head/"):
            np.testing.assert_array_equal(arrays(model)[name], weight)
    with refuses("pooling='cls'"):
        vit_tf.load_pretrained(path, num_heads=3, pooling="cls")
    with refuses("num_heads"):
        vit_tf.load_pretrained(path)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("attn_pool.kv.weight", None, "missing tensors.*attn_pool.kv.weight"),
        ("attn_pool.q_norm.weight", 8, "unexpected tensors.*q_norm"),
        ("attn_pool.latent", (1, 2, 24), "misshapen.*latent"),
        ("cls_token", (1, 1, 24), "unexpected tensors.*cls_token"),
        ("blocks.1.ls1.gamma", 24, "unexpected tensors.*ls1"),
    ],
)
def test_every_tensor_has_to_fit(old, new, message, models, tmp_path):
    state = models.state_of(models.timm_siglip())
    state.pop(old, None)
    if new is not None:
        state[old] = np.ones(new, "float32")
    write_safetensors(tmp_path / "model.safetensors", state)
    with refuses(message):
        vit_tf.load_pretrained(tmp_path / "model.safetensors", num_heads=3)
