"""Folders of SigLIP that transformers writes, as loaded, against its own models."""

import json

import numpy as np
import pytest
from archive_files import helper_or_skip, refuses
from checkpoint_families import arrays

import vit_tf


@pytest.fixture
def models():
    """The helper of tiny models."""
    return helper_or_skip("tower_models", "transformers")


@pytest.mark.parametrize("kind", ["vision", "whole"])
def test_every_block_is_that_of_transformers(kind, models, tmp_path):
    """Also of 20 pixels, of which patches of 6 leave 2: they are not seen."""
    reference = models.siglip(kind)
    model = vit_tf.load_pretrained(models.write(reference, tmp_path / "folder"))
    images = models.pictures((20, 20, 3))
    models.assert_matches(model, models.siglip_taps(reference, images), images, 6)
    assert model.image_shape == (20, 20, 3) and model.token_grid == vit_tf.TokenGrid(3, 3, 0, 6)
    assert model.preprocessing == vit_tf.Preprocessing((20, 20), interpolation="bicubic")
    images[:, 18:] = images[:, :, 18:] = 9
    np.testing.assert_array_equal(model(images), model(np.where(images == 9, 0, images)))
    model.save(tmp_path / "again.keras")
    again = vit_tf.load_model(tmp_path / "again.keras")
    assert again.get_config() == model.get_config()
    np.testing.assert_array_equal(again(images), model(images))
    tower = reference.vision_model
    assert model.count_params() == sum(p.numel() for p in tower.parameters())


def test_positions_at_another_size_are_those_of_transformers(models, tmp_path):
    reference = models.siglip(patch_size=4, image_size=20)
    folder = models.write(reference, tmp_path / "folder")
    model = vit_tf.load_pretrained(folder, image_shape=(12, 28))
    images = models.pictures((12, 28, 3))
    expected = models.siglip_taps(reference, images, resampled=True)
    models.assert_matches(model, expected, images)
    other = vit_tf.load_pretrained(folder, image_shape=(12, 28), positions="bilinear")
    assert models.errors_of(other, expected, images)["embedding"] > 1e-3


def test_a_folder_of_a_base_model_leaves_its_sizes_out(models, tmp_path):
    """As google/siglip-base-patch16-224: what is told is that it is a SigLIP."""
    from vit_tf.checkpoints.folders import Folder
    from vit_tf.checkpoints.hugging_face_models import convert_siglip
    from vit_tf.checkpoints.weight_maps import LoadOptions

    config = {"model_type": "siglip", "vision_config": {"model_type": "siglip_vision_model"}}
    conversion = convert_siglip(Folder(str(tmp_path), config, None, [], None), LoadOptions())
    variant = vit_tf.SigLIPViT.variants["B/16"]
    assert {name: conversion.mapping.arguments[name] for name in variant} == variant
    assert conversion.mapping.arguments["image_shape"] == (224, 224, 3)


def test_a_new_head_and_parts(models, tmp_path):
    reference = models.siglip("whole")
    folder = models.write(reference, tmp_path / "folder", processor=False, max_shard_size="30KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    model = vit_tf.load_pretrained(folder, num_classes=7)
    assert not np.any(model(models.pictures((20, 20, 3)))) and model.num_classes == 7
    assert model.preprocessing == vit_tf.Preprocessing((20, 20), interpolation="bicubic")
    whole = vit_tf.load_pretrained(models.write(reference, tmp_path / "whole"))
    for name, weight in arrays(whole).items():
        np.testing.assert_array_equal(arrays(model)[name], weight)


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"model_type": "siglip2"}, "NaFlex.*'siglip2'"),
        ({"model_type": "siglip2_vision_model"}, "NaFlex"),
        ({"model_type": "siglip"}, "vision_config.*None"),
        ({"model_type": "siglip_text_model"}, "model_type.*siglip_vision_model"),
        ({"vision_use_head": False}, "vision_use_head.*False"),
        ({"hidden_act": "relu"}, "hidden_act.*'relu'"),
        ({"image_size": 4}, "at least one patch.*patch_size=6"),
        ({"image_size": 25}, "misshapen.*position_embedding"),
        ({"num_hidden_layers": 3}, "missing tensors"),
        ({"num_hidden_layers": 1}, "unexpected tensors"),
        ({"num_attention_heads": 5}, "num_heads"),
        ({"intermediate_size": 41}, "misshapen"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(fields, message, models, tmp_path):
    folder = models.write(models.siglip(), tmp_path / "folder", processor=False)
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))
    with refuses(message):
        vit_tf.load_pretrained(folder)


def test_what_no_model_here_has_is_refused(models, tmp_path):
    import transformers

    config = transformers.SiglipConfig(models.TEXT, models.VISION, num_labels=4)
    reference = models.randomize(transformers.SiglipForImageClassification(config))
    folder = models.write(reference, tmp_path / "classifier")
    with refuses("mean of the tokens"):
        vit_tf.load_pretrained(folder)
    assert vit_tf.load_pretrained(folder, num_classes=4).num_classes == 4
    with refuses("pooling='gap'"):
        vit_tf.load_pretrained(folder, pooling="gap")


@pytest.mark.slow
def test_a_real_size(models, tmp_path):
    """So400m/14 of 384 pixels, of which 6 are not seen, cut to 2 of its 27 blocks."""
    sizes = {"hidden_size": 1152, "intermediate_size": 4304, "num_attention_heads": 16}
    sizes |= {"image_size": 384, "patch_size": 14, "layer_norm_eps": 1e-6}
    reference = models.siglip(**sizes)
    with models.torch.no_grad():
        for parameter in reference.parameters():
            if parameter.ndim > 1:
                parameter.mul_(0.1)
    model = vit_tf.load_pretrained(models.write(reference, tmp_path / "folder"))
    images = models.pictures((384, 384, 3))[:1]
    models.assert_matches(model, models.siglip_taps(reference, images), images)
    assert model.token_grid.num_tokens == 729
