"""MAE's encoder in timm's names, fine-tuned with the mean of its patches, against timm."""

import numpy as np
import pytest
from archive_files import refuses
from checkpoint_families import assert_matches, pictures

import vit_tf
from vit_tf.checkpoints.weight_maps import IMAGENET


@pytest.fixture
def written(tmp_path):
    """Function of options of timm's to a model of its, the helper's taps of it, and its file."""
    pytest.importorskip("torch", reason="torch is not installed")
    import timm_models

    def written(name="mae-tuned", **fields):
        model = timm_models.make(name, **fields)
        path = timm_models.write(model, tmp_path / "model.safetensors")
        return model, lambda images: timm_models.taps(model, images), path

    return written


@pytest.mark.parametrize(
    ("name", "size", "fields"),
    [
        ("mae-tuned", 20, {}),
        ("mae-tuned", (12, 28), {"init_values": 0.1}),
        ("mae", 20, {}),
        ("mae", (12, 28), {}),
    ],
)
def test_every_block_is_timms(name, size, fields, written, tmp_path):
    _, taps, path = written(name, img_size=size, **fields)
    shape = {} if size == 20 else {"image_shape": size}
    model = vit_tf.load_pretrained(path, num_heads=3, **shape)
    assert model.preprocessing.mean == IMAGENET["mean"]
    images = pictures(model.image_shape)
    assert_matches(model, taps(images), images, 4)
    if name == "mae-tuned" and not fields:
        model.save(tmp_path / "model.keras")
        again = vit_tf.load_model(tmp_path / "model.keras")
        np.testing.assert_array_equal(again(images), model(images))
        assert model.position_embedding.shape == (26, 24)


def test_resampled_positions_and_a_new_head(written):
    reference, taps, path = written()
    model = vit_tf.load_pretrained(path, num_heads=3, image_shape=(16, 28))
    reference.set_input_size((16, 28))
    images = pictures((16, 28, 3))
    assert_matches(model, taps(images), images)
    fresh = vit_tf.load_pretrained(path, num_heads=3, num_classes=7)
    assert fresh.num_classes == 7 and not np.any(fresh.head.kernel)


@pytest.mark.parametrize(
    "fields",
    [
        {"class_token": False},
        {"no_embed_class": True},
        {"reg_tokens": 2},
        {"reg_tokens": 2, "no_embed_class": True, "init_values": 0.1},
        {"reg_tokens": 4, "no_embed_class": True, "class_token": False},
        {"reg_tokens": 1, "class_token": False},
    ],
)
def test_other_tokens_are_those_of_timm(fields, written):
    _, taps, path = written(**fields)
    model = vit_tf.load_pretrained(path, num_heads=3)
    images = pictures(model.image_shape)
    assert_matches(model, taps(images), images, 4)


@pytest.mark.parametrize(
    ("fields", "wish", "message"),
    [
        ({}, {"pooling": "cls"}, "mean of the patches.*pooling='cls'"),
        ({"final_norm": True}, {}, "unexpected tensors.*norm.weight"),
        ({"qk_norm": True}, {}, "unexpected tensors.*q_norm"),
    ],
)
def test_other_variants_are_named(fields, wish, message, written):
    reference, _, path = written(**fields)
    if "final_norm" in fields:
        import timm_models
        import torch

        reference.norm = torch.nn.LayerNorm(24)
        timm_models.write(reference, path)
    with refuses(message):
        vit_tf.load_pretrained(path, num_heads=3, **wish)
