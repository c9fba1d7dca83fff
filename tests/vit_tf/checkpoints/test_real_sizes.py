"""Vision Transformers of transformers, of random weights in the shapes of a release."""

import gc

import numpy as np
import pytest

import vit_tf

MOST = 1e-5
SMALL = {"hidden_size": 384, "num_attention_heads": 6}
WHOLE = {"projection_dim": 512, "text_config": {"num_hidden_layers": 1}}
MAE = {"decoder_num_hidden_layers": 1, "mask_ratio": 0.0}
REGISTERS = {"num_register_tokens": 4, "patch_size": 14, "image_size": 224}
BEIT = {"use_relative_position_bias": True, "use_absolute_position_embeddings": False}
# The model and its configuration, what differs from the defaults of a base model, and the blocks.
RELEASES = {
    "ViT-S/16": ("ViTForImageClassification", "ViTConfig", SMALL | {"intermediate_size": 1536}, 12),
    "DeiT-S/16": (
        *("DeiTForImageClassificationWithTeacher", "DeiTConfig"),
        *(SMALL | {"intermediate_size": 1536}, 12),
    ),
    "DINOv2-S/14 with registers": (
        *("Dinov2WithRegistersModel", "Dinov2WithRegistersConfig"),
        *(SMALL | REGISTERS, 12),
    ),
    "DINOv3-S/16": (
        *("DINOv3ViTModel", "DINOv3ViTConfig"),
        *(SMALL | {"intermediate_size": 1536, "num_register_tokens": 4}, 12),
    ),
    "SigLIP-B/16": ("SiglipVisionModel", "SiglipVisionConfig", {}, 12),
    "CLIP-B/32": ("CLIPModel", "CLIPConfig", WHOLE, 12),
    "BEiT-B/16": ("BeitForImageClassification", "BeitConfig", BEIT, 12),
    "MAE-B/16": ("ViTMAEForPreTraining", "ViTMAEConfig", MAE, 12),
}


def made(name):
    """The model of transformers, of random weights around 0, and of scales around 1."""
    import torch
    import transformers

    kind, config, fields, _ = RELEASES[name]
    torch.manual_seed(0)
    model = getattr(transformers, kind)(getattr(transformers, config)(**fields))
    with torch.no_grad():
        for key, parameter in model.named_parameters():
            scale = key.endswith("weight") and parameter.ndim == 1
            parameter.copy_(0.05 * torch.randn(parameter.shape) + scale)
    return model.eval()


def taps_of(name, model, images):
    """dict from tap to what transformers makes of images."""
    import hugging_face_models
    import tower_models

    helper = tower_models.siglip_taps if name.startswith("SigLIP") else hugging_face_models.taps
    return helper(model, images)


@pytest.mark.slow
@pytest.mark.parametrize("name", RELEASES)
def test_every_block_of_a_released_size(name, tmp_path, record_property):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    reference, images = made(name), np.random.default_rng(1).normal(size=(1, 224, 224, 3))
    images = images.astype("float32")
    reference.save_pretrained(tmp_path)
    expected = taps_of(name, reference, images)
    del reference
    gc.collect()
    preprocessing = vit_tf.Preprocessing((224, 224))
    model = vit_tf.load_pretrained(tmp_path, preprocessing=preprocessing)
    assert model.image_shape == (224, 224, 3)
    found = {tap: np.asarray(x) for tap, x in model.intermediates(images).items()}
    errors = {
        tap: float(np.abs(found[tap] - x).max() / np.abs(x).max()) for tap, x in expected.items()
    }
    blocks = {tap: error for tap, error in errors.items() if tap.endswith("/mlp/sum")}
    assert len(blocks) == RELEASES[name][3]
    output = errors[next(t for t in ("logits", "projected", "pooled", "norm") if t in errors)]
    record_property("largest relative error of a block", max(blocks.values()))
    record_property("relative error of the output", output)
    assert max(errors.values()) < MOST, errors
