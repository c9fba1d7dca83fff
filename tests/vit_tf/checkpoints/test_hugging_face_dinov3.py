"""What of DINOv3 is read otherwise than of other ViTs, and what is refused."""

import json

import pytest
from archive_files import refuses

import vit_tf
from vit_tf.checkpoints.weight_maps import IMAGENET


@pytest.fixture
def written(tmp_path):
    """Function of a name in the table to the folder of that model."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    import hugging_face_models as models

    def written(name, **fields):
        folder = models.write(models.make(name), tmp_path / name, models.processor(name))
        path = folder / "config.json"
        path.write_text(json.dumps(json.loads(path.read_text()) | fields))
        return folder

    return written


@pytest.mark.parametrize(
    ("name", "fields", "message"),
    [
        ("dinov3", {"rope_theta": 10000.0}, "rope_theta.*100.0.*10000"),
        ("dinov3", {"key_bias": 1}, "key_bias.*1"),
        ("dinov3", {"key_bias": True}, "missing tensors.*k_proj.bias"),
        ("dinov3", {"value_bias": False}, "unexpected tensors.*v_proj.bias"),
        ("dinov3", {"use_gated_mlp": True, "hidden_act": "silu"}, "missing.*gate_proj"),
        ("dinov3-gated", {"hidden_act": "gelu"}, "hidden_act.*'silu'.*'gelu'"),
        ("dinov3", {"image_size": 21}, "image_shape"),
        ("dinov3", {"num_attention_heads": 4}, "6 channels of a head"),
    ],
)
def test_what_does_not_fit_is_refused(name, fields, message, written):
    with refuses(message):
        vit_tf.load_pretrained(written(name, **fields))


def test_tokens_and_images_are_told(written):
    folder = written("dinov3")
    model = vit_tf.load_pretrained(folder)
    assert model.prefix_names[-1] == "register 4" and model.position_embedding is None
    assert model.get_config()["key_bias"] is False
    assert model.preprocessing.interpolation == "bilinear" and model.preprocessing.crop is None
    mean = vit_tf.load_pretrained(folder, pooling="gap")
    assert mean.prefix_names == model.prefix_names and mean.pooling == "gap"
    assert vit_tf.load_pretrained(written("dinov3-gated")).prefix_names == ("CLS",)
    fields = json.loads((folder / "preprocessor_config.json").read_text())
    fields |= {"image_processor_type": "DINOv3ViTImageProcessorFast", "do_center_crop": None}
    fields |= {"image_mean": IMAGENET["mean"], "size": {"height": 32, "width": 32}}
    (folder / "preprocessor_config.json").write_text(json.dumps(fields))
    with pytest.warns(UserWarning, match="32 x 32 pixels of its image processor.*20 x 20"):
        model = vit_tf.load_pretrained(folder)
    assert model.preprocessing.size == (32, 32) and model.preprocessing.crop is None
    assert model.preprocessing.mean == IMAGENET["mean"]
    (folder / "preprocessor_config.json").unlink()
    # Those of web images and of satellites' differ.
    with refuses("differ in mean and deviation.*'dinov3_vit'"):
        vit_tf.load_pretrained(folder)
