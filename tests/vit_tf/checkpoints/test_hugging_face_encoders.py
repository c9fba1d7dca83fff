"""Folders of CLIP, BEiT, BiT and MAE that transformers writes, against its own models."""

import json

import numpy as np
import pytest
from archive_files import refuses
from checkpoint_families import errors_of, pictures

import vit_tf
from vit_tf.checkpoints.weight_maps import CLIP

NAMES = ("clip", "clip-vision", "clip-projected", "beit", "beit-plain", "beit-shared")
NAMES += ("bit", "bit-bare", "mae", "metaclip2", "metaclip2-vision", "metaclip2-projected")
MOST = 1e-5


@pytest.fixture
def towers():
    """The helper of tiny models, which needs torch and transformers."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    import hugging_face_towers

    return hugging_face_towers


@pytest.fixture
def written(towers, tmp_path):
    """Function of a name in the table to a model of transformers' and its folder."""

    def written(name, size=20, **options):
        model = towers.models.make(name)
        processor = towers.processor(name, size)
        return model, towers.models.write(model, tmp_path / name, processor, **options)

    return written


@pytest.mark.parametrize("name", NAMES)
def test_every_block_is_that_of_transformers(name, towers, written, record_property):
    size = 64 if name.startswith("bit") else 20
    reference, folder = written(name, size)
    model = vit_tf.load_pretrained(folder)
    assert model.image_shape == (size, size, 3) and model.preprocessing.mean == (0.4,) * 3
    images = pictures(model.image_shape)
    errors = errors_of(model, towers.taps(reference, images), images)
    assert sum(tap.endswith("/sum") for tap in errors) == (3 if name.startswith("bit") else 2)
    record_property("max relative error", max(errors.values()))
    assert max(errors.values()) < MOST, errors
    named = name in ("beit", "bit")
    # Two classes of one name are told apart.
    names = ("crane (0)", "tabby, tabby cat", "crane (2)")
    assert model.class_names == (names if named else None)
    again = vit_tf.load_pretrained(folder, num_classes=4)
    assert again.class_names is None and not np.any(again.head.kernel)


@pytest.mark.parametrize("name", ["beit", "beit-plain", "beit-shared"])
@pytest.mark.parametrize("size", [(28, 28), (12, 12), (12, 28)])
def test_beit_at_another_size(name, size, towers, written):
    reference, folder = written(name)
    model = vit_tf.load_pretrained(folder, image_shape=size)
    images = pictures(model.image_shape)
    errors = errors_of(model, towers.taps(reference, images), images)
    assert max(errors.values()) < MOST, errors


def test_bit_at_an_odd_size(towers, written):
    reference, folder = written("bit", 64)
    model = vit_tf.load_pretrained(folder, image_shape=(45, 67))
    images = pictures((45, 67, 3))
    errors = errors_of(model, towers.taps(reference, images), images)
    assert max(errors.values()) < MOST, errors


@pytest.mark.parametrize("name", ["clip", "metaclip2", "mae"])
def test_resampled_positions_are_those_of_transformers(name, towers, written):
    import torch

    reference, folder = written(name)
    model = vit_tf.load_pretrained(folder, image_shape=(12, 28))
    inner = reference.vision_model if "clip" in name else reference.vit
    images = pictures((12, 28, 3))
    pixels = torch.tensor(images.transpose(0, 3, 1, 2).copy())
    options = {} if "clip" in name else {"noise": torch.arange(21).repeat(2, 1) / 21}
    with torch.no_grad():
        expected = inner.embeddings(pixels, **options, interpolate_pos_encoding=True)
    expected = (expected if "clip" in name else expected[0]).numpy()
    found = np.asarray(model.intermediates(images)["embedding"])
    assert np.abs(found - expected).max() < MOST * np.abs(expected).max()


def test_parts_and_silent_configs(towers, written):
    reference, folder = written("clip", max_shard_size="20KB")
    assert len(list(folder.glob("model-*.safetensors"))) > 1
    images = pictures((20, 20, 3))
    expected = towers.taps(reference, images)
    assert max(errors_of(vit_tf.load_pretrained(folder), expected, images).values()) < MOST
    (folder / "preprocessor_config.json").unlink()
    assert vit_tf.load_pretrained(folder).preprocessing.mean == CLIP["mean"]
    change(folder, vision_config=None)
    with refuses("vision_config.*None"):
        vit_tf.load_pretrained(folder)
    change(folder, vision_config={})
    with refuses("positions|misshapen"):
        vit_tf.load_pretrained(folder)


def change(folder, **fields):
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("beit", {"use_absolute_position_embeddings": True}, "use_absolute.*False.*True"),
        ("beit", {"use_relative_position_bias": False}, "use_relative_position_bias.*False"),
        ("beit", {"id2label": {"0": "a", "1": "b"}}, "id2label.*0 to 2"),
        ("beit", {"id2label": {"0": "a", "1": "b", "2": 3}}, "id2label.*0 to 2"),
        ("beit", {"id2label": ["a", "b", "c"]}, "id2label.*0 to 2"),
        ("beit", {"image_size": 24}, r"\(24, 24\) pixels.*\(20, 20\)"),
        ("bit", {"layer_type": "bottleneck"}, "layer_type.*'preactivation'.*'bottleneck'"),
        ("bit", {"global_padding": "SAME"}, "global_padding.*None.*'SAME'"),
        ("bit", {"num_groups": 16}, "num_groups.*32.*16"),
        ("clip-vision", {"layer_norm_eps": 1e-6}, "layer_norm_eps"),
        ("clip-vision", {"hidden_act": "relu"}, "hidden_act.*'relu'"),
        ("mae", {"qkv_bias": False}, "qkv_bias.*False"),
    ],
)
def test_what_is_not_supported_is_named(name, fields, message, written):
    _, folder = written(name, 64 if name == "bit" else 20)
    change(folder, **fields)
    with refuses(message):
        vit_tf.load_pretrained(folder)


def test_labels_that_are_made_up_are_no_names(written):
    _, folder = written("beit")
    change(folder, id2label={str(i): f"LABEL_{i}" for i in range(3)})
    assert vit_tf.load_pretrained(folder).class_names is None
    change(folder, id2label={str(i): name for i, name in enumerate("abc")})
    model = vit_tf.load_pretrained(folder)
    assert model.class_names == ("a", "b", "c")
    assert vit_tf.at_resolution(model, (24, 24)).class_names == ("a", "b", "c")
