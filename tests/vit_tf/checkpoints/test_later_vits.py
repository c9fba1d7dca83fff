"""DeiT, DeiT-3 and DINOv2 in the names of timm and of their authors, against transformers."""

import json

import numpy as np
import pytest
from archive_files import helper_or_skip, refuses, write_safetensors
from checkpoint_families import errors_of, pictures, write_torch

import vit_tf
from vit_tf.checkpoints.weight_maps import IMAGENET

MOST = 1e-5
BLOCK = {
    "norm1": "norm1",
    "attention.output.dense": "attn.proj",
    "norm2": "norm2",
    "mlp.fc1": "mlp.fc1",
    "mlp.fc2": "mlp.fc2",
    "layernorm_before": "norm1",
    "layernorm_after": "norm2",
    "intermediate.dense": "mlp.fc1",
    "output.dense": "mlp.fc2",
}
GATED = {
    "timm": {"mlp.weights_in": "mlp.fc1", "mlp.weights_out": "mlp.fc2"},
    "authors": {"mlp.weights_in": "mlp.w12", "mlp.weights_out": "mlp.w3"},
}


@pytest.fixture
def models():
    """The helper of tiny models."""
    return helper_or_skip("hugging_face_models", "transformers")


def renamed(reference, names="timm"):
    """The tensors of a model of transformers' in timm's names, or those of the authors' code."""
    state = {n: p.detach().numpy() for n, p in reference.named_parameters()}
    base = f"{reference.base_model_prefix}."
    state = {n.removeprefix(base): array for n, array in state.items()}
    found = {"norm.weight": state["layernorm.weight"], "norm.bias": state["layernorm.bias"]}
    found["cls_token"] = state["embeddings.cls_token"]
    found["pos_embed"] = state["embeddings.position_embeddings"]
    for end in ("weight", "bias"):
        projection = f"embeddings.patch_embeddings.projection.{end}"
        found[f"patch_embed.proj.{end}"] = state[projection]
    for i in range(2):
        layer, block = f"encoder.layer.{i}", f"blocks.{i}"
        for end in ("weight", "bias"):
            thirds = [state[f"{layer}.attention.attention.{n}.{end}"] for n in QKV]
            found[f"{block}.attn.qkv.{end}"] = np.concatenate(thirds)
            for theirs, ours in (BLOCK | GATED[names]).items():
                if f"{layer}.{theirs}.{end}" in state:
                    found[f"{block}.{ours}.{end}"] = state[f"{layer}.{theirs}.{end}"]
        for n in (1, 2):
            if f"{layer}.layer_scale{n}.lambda1" in state:
                found[f"{block}.ls{n}.gamma"] = state[f"{layer}.layer_scale{n}.lambda1"]
    return state, found


QKV = ("query", "key", "value")


def errors_like(model, reference, models, images):
    return errors_of(model, models.taps(reference, images), images)


@pytest.fixture
def made(models, monkeypatch):
    """Function of a name in the table to a model of the epsilon that timm has, of square images."""

    def made(name):
        kind, config, fields = models.MODELS[name]
        fields = fields | {"layer_norm_eps": 1e-6, "image_size": 20}
        monkeypatch.setitem(models.MODELS, name, (kind, config, fields))
        return models.make(name)

    return made


def test_deit_with_distillation(models, made, tmp_path):
    reference = made("deit-teacher")
    state, tensors = renamed(reference)
    tensors["dist_token"] = state["embeddings.distillation_token"]
    for end in ("weight", "bias"):
        tensors[f"head.{end}"] = state[f"cls_classifier.{end}"]
        tensors[f"head_dist.{end}"] = state[f"distillation_classifier.{end}"]
    path = tmp_path / "model.safetensors"
    write_safetensors(path, tensors)
    model = vit_tf.load_pretrained(path, num_heads=3)
    errors = errors_like(model, reference, models, pictures((20, 20, 3)))
    assert max(errors.values()) < MOST, errors
    assert model.prefix_names == ("CLS", "distillation")
    assert model.preprocessing.mean == IMAGENET["mean"]
    fresh = vit_tf.load_pretrained(path, num_heads=3, num_classes=7)
    assert not np.any(fresh.head.kernel) and not np.any(fresh.distillation_head.kernel)
    assert fresh.distillation_head.kernel.shape[-1] == 7
    larger = vit_tf.load_pretrained(path, num_heads=3, image_shape=(24, 28))
    assert larger.token_grid.prefix == 2 and larger.position_embedding.shape == (44, 24)
    with refuses("'gap'.*dist_token"):
        vit_tf.load_pretrained(path, num_heads=3, pooling="gap")
    del tensors["head_dist.bias"]
    write_safetensors(path, tensors)
    with refuses("unexpected tensors .*head_dist.weight"):
        vit_tf.load_pretrained(path, num_heads=3)


@pytest.mark.parametrize("names", ["timm", "authors"])
@pytest.mark.parametrize("name", ["dinov2", "dinov2-swiglu", "registers", "registers-swiglu"])
def test_dinov2(name, names, models, made, tmp_path):
    """timm leaves the class token's position out and adds it to the token, where there are
    registers; the authors' files hold a mask token, and those without registers their own
    resampling."""
    reference = made(name)
    state, tensors = renamed(reference, names)
    registers = state.get("embeddings.register_tokens")
    if names == "authors":
        tensors["mask_token"] = state["embeddings.mask_token"]
        if registers is not None:
            tensors["register_tokens"] = registers
        path = write_torch(tensors, tmp_path / "model.pth")
    else:
        if registers is not None:
            tensors["reg_token"] = registers
            tensors["cls_token"] = tensors["cls_token"] + tensors["pos_embed"][:, :1]
            tensors["pos_embed"] = tensors["pos_embed"][:, 1:]
        path = tmp_path / "model.safetensors"
        write_safetensors(path, tensors)
    model = vit_tf.load_pretrained(path, num_heads=3)
    errors = errors_like(model, reference, models, pictures((20, 20, 3)))
    assert max(errors.values()) < MOST, errors
    assert model.preprocessing.mean == IMAGENET["mean"]
    assert ("activation" in model.get_config()) == ("swiglu" in name)
    placed = registers is None or names == "authors"
    assert model.get_config().get("class_position", True) == placed
    other = vit_tf.load_pretrained(path, num_heads=3, image_shape=(28, 16))
    method = "dino" if names == "authors" and registers is None else "bicubic"
    expected = vit_tf.at_resolution(model, (28, 16), method=method)
    np.testing.assert_array_equal(other.embedding.positions, expected.embedding.positions)
    if registers is not None:
        errors = errors_like(other, reference, models, pictures((28, 16, 3)))
        assert max(errors.values()) < MOST, errors


@pytest.mark.parametrize("names", ["timm", "authors"])
def test_deit3(names, models, made, tmp_path):
    """A DINOv2 whose class token has the position zero, with a head on it."""
    import torch

    reference = made("dinov2")
    with torch.no_grad():
        reference.embeddings.position_embeddings[:, 0] = 0
    _, tensors = renamed(reference)
    tensors["pos_embed"] = tensors["pos_embed"][:, 1:]
    rng = np.random.default_rng(2)
    tensors["head.weight"] = rng.normal(size=(5, 24)).astype(np.float32)
    tensors["head.bias"] = rng.normal(size=5).astype(np.float32)
    if names == "authors":
        for old in [name for name in tensors if ".ls" in name]:
            new = old.replace("ls1.gamma", "gamma_1").replace("ls2.gamma", "gamma_2")
            tensors[new] = tensors.pop(old)
    path = tmp_path / "model.safetensors"
    write_safetensors(path, tensors)
    if names == "authors":
        # As timm's ViTs with rotary positions, besides learned ones, have these names too.
        with refuses("rotary positions.*DeiT-3"):
            vit_tf.load_pretrained(path, num_heads=3)
        path = tmp_path / "deit_3.pth"
        torch.save({"model": {name: torch.from_numpy(x) for name, x in tensors.items()}}, path)
    model = vit_tf.load_pretrained(path, num_heads=3)
    images = pictures((20, 20, 3))
    expected = models.taps(reference, images)
    logits = expected.pop("logits") @ tensors["head.weight"].T + tensors["head.bias"]
    found = model.intermediates(images)
    for tap, x in (expected | {"logits": logits}).items():
        assert np.abs(np.asarray(found[tap]) - x).max() < MOST * np.abs(x).max(), tap
    assert model.get_config()["class_position"] is False
    assert model.preprocessing.std == IMAGENET["std"]
    assert not model.position_embedding[0].any() and model.position_embedding[1:].all()


def test_a_folder_of_timms_tells_its_images(models, made, tmp_path):
    _, tensors = renamed(made("dinov2"))
    write_safetensors(tmp_path / "model.safetensors", tensors)
    told = {"mean": [0.4] * 3, "std": [0.2] * 3, "interpolation": "bilinear", "crop_pct": 0.8}
    config = {"architecture": "vit_small_patch14_dinov2", "pretrained_cfg": told}
    (tmp_path / "config.json").write_text(json.dumps(config))
    model = vit_tf.load_pretrained(tmp_path, num_heads=3)
    expected = vit_tf.Preprocessing((20, 20), (0.4,) * 3, (0.2,) * 3, crop=0.8)
    assert model.preprocessing == expected
    mine = vit_tf.Preprocessing((20, 20))
    assert vit_tf.load_pretrained(tmp_path, num_heads=3, preprocessing=mine).preprocessing == mine
    for change, what in (
        ({"crop_pct": "0.8"}, "crop_pct"),
        ({"crop_mode": "border"}, "'border'"),
        ({"interpolation": "random"}, "interpolation.*'random'"),
        ({"mean": [0.5]}, "mean"),
    ):
        fields = config | {"pretrained_cfg": told | change}
        (tmp_path / "config.json").write_text(json.dumps(fields))
        with refuses(what):
            vit_tf.load_pretrained(tmp_path, num_heads=3)
