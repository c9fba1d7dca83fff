"""CLIP in timm's names, with either form of GELU, against timm's own models."""

import json
import re

import numpy as np
import pytest
from archive_files import helper_or_skip, refuses
from checkpoint_families import assert_matches, errors_of, pictures

import vit_tf
from vit_tf.checkpoints import timm
from vit_tf.checkpoints.released import CHECKPOINTS, timm_activation
from vit_tf.checkpoints.weight_maps import CLIP

MOST = 1e-5
ACTIVATIONS = {"clip": "gelu", "clip-quick": "quick_gelu"}


@pytest.fixture
def models():
    """The helper of tiny models."""
    return helper_or_skip("timm_models")


@pytest.fixture
def written(models, tmp_path):
    """Function of a name in the table to a model of timm's and its file."""

    def written(name, **fields):
        model = models.make(name, **fields)
        return model, models.write(model, tmp_path / "model.safetensors")

    return written


@pytest.mark.parametrize("size", [20, (12, 28)])
@pytest.mark.parametrize("name", ["clip", "clip-quick"])
def test_every_block_is_timms(name, size, models, written):
    reference, path = written(name, img_size=size)
    options = {"num_heads": 3, "activation": ACTIVATIONS[name]}
    if size != 20:
        options["image_shape"] = size
    model = vit_tf.load_pretrained(path, **options)
    images = pictures(model.image_shape)
    expected = models.taps(reference, images)
    assert_matches(model, expected, images, 5)
    assert model.preprocessing.mean == CLIP["mean"]
    # The other form is another model.
    other = {"gelu": "quick_gelu", "quick_gelu": "gelu"}[options["activation"]]
    wrong = vit_tf.load_pretrained(path, **options | {"activation": other})
    assert max(errors_of(wrong, expected, images).values()) > 100 * MOST


def test_a_head_of_the_size_of_the_projection_is_the_projection(models, written, monkeypatch):
    monkeypatch.setitem(timm.PROJECTIONS, 24, 10)
    options = {"num_heads": 3, "activation": "gelu"}
    reference, path = written("clip")
    with refuses("zero bias.*head.bias"):
        vit_tf.load_pretrained(path, **options)
    reference.head.bias.data.zero_()
    models.write(reference, path)
    tower = vit_tf.load_pretrained(path, **options)
    images = pictures(tower.image_shape)
    expected = models.taps(reference, images)
    expected["projected"] = expected.pop("logits")
    assert max(errors_of(tower, expected, images).values()) < MOST
    assert tower.head is None and tower.embedding_dim == 10
    classifier = vit_tf.load_pretrained(path, num_classes=4, **options)
    assert classifier.embedding_dim == 10 and not np.any(classifier.head.kernel)


def test_a_tower_without_a_head_puts_out_its_class_token(models, written):
    reference, path = written("clip", num_classes=0)
    model = vit_tf.load_pretrained(path, num_heads=3, activation="gelu")
    images = pictures(model.image_shape)
    expected = models.taps(reference, images)
    expected["projected"] = expected.pop("logits")
    assert max(errors_of(model, expected, images).values()) < MOST
    assert model.head is None


def test_resampled_positions_are_timms(models, written):
    reference, path = written("clip")
    model = vit_tf.load_pretrained(path, num_heads=3, activation="gelu", image_shape=(16, 28))
    reference.set_input_size((16, 28))
    images = pictures((16, 28, 3))
    assert_matches(model, models.taps(reference, images), images)


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("clip", {"global_pool": "avg"}, "class token.*pooling.*fc_norm"),
        ("clip", {"reg_tokens": 2}, "registers.*reg_token"),
        ("clip", {"no_embed_class": True}, "class token that has a position.*25"),
        ("clip", {"qk_norm": True}, "unexpected tensors.*q_norm"),
        ("clip", {"init_values": 0.1}, "unexpected tensors.*ls1"),
        ("clip", {"qkv_bias": False}, "missing tensors.*qkv.bias"),
    ],
)
def test_other_variants_are_named(name, fields, message, written):
    _, path = written(name, **fields)
    with refuses(message):
        vit_tf.load_pretrained(path, num_heads=3, activation="gelu")


def test_the_form_of_gelu_is_not_guessed(written):
    _, path = written("clip")
    with refuses("activation='quick_gelu'.*'gelu'.*None"):
        vit_tf.load_pretrained(path, num_heads=3)
    with refuses("activation.*'relu'"):
        vit_tf.load_pretrained(path, num_heads=3, activation="relu")


@pytest.mark.parametrize(
    ("architecture", "tag", "expected"),
    [
        ("vit_base_patch16_clip_224", "laion2b", "gelu"),
        ("vit_base_patch16_clip_224", "openai_ft_in1k", "gelu"),
        ("vit_base_patch16_clip_224", "openai", "quick_gelu"),
        ("vit_base_patch16_clip_quickgelu_224", "openai", "quick_gelu"),
        ("vit_huge_patch14_clip_quickgelu_378", None, "quick_gelu"),
    ],
)
def test_a_folder_of_timms_tells(architecture, tag, expected, written, tmp_path):
    written("clip")
    told = {"tag": tag, "crop_pct": 0.95, "interpolation": "bicubic", **CLIP}
    config = {"architecture": architecture, "num_classes": 10, "pretrained_cfg": told}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = vit_tf.load_pretrained(tmp_path, num_heads=3)
    assert model.get_config()["activation"] == expected
    assert model.preprocessing.crop == 0.95
    chosen = vit_tf.load_pretrained(tmp_path, num_heads=3, activation="gelu_tanh")
    assert chosen.get_config()["activation"] == "gelu_tanh"


def test_names_tell_the_form_that_timm_notes(models):
    """timm notes which of its CLIPs were trained with the quick form."""
    noted = 0
    for name in models.timm.list_pretrained("vit_*_clip_*"):
        notes = models.timm.get_pretrained_cfg(name).notes or ()
        noted += (quick := any("natively QuickGELU" in note for note in notes))
        assert timm_activation(name) == ("quick_gelu" if quick else "gelu"), name
    assert noted > 20
    names = [name for name in CHECKPOINTS if re.search("timm/vit_.*_clip_", name)]
    assert len(names) == 59
    for name in names:
        assert CHECKPOINTS[name].activation == timm_activation(name.removeprefix("timm/"))
