"""Models of timm, transformers and torchvision: hooks by hand, and this package's own loaders."""

import importlib.util

import numpy as np
import pytest
from archive_files import helper_or_skip

import vit_tf
from vit_tf import analysis

pytest.importorskip("torch")
NAMES = (
    *("timm ViT", "timm DeiT", "timm EVA-02", "timm Swin", "timm ConvNeXt", "timm ResNet"),
    *("transformers ViT", "transformers DINOv2", "transformers BEiT", "transformers CLIP"),
    *("torchvision ViT", "torchvision ResNet"),
)
MOST = 1e-5


@pytest.fixture(scope="module")
def parity():
    return helper_or_skip("torch_parity", "torch")


@pytest.mark.parametrize(
    "name",
    [pytest.param(n, marks=pytest.mark.slow) if n.endswith("ResNet") else n for n in NAMES],
)
def test_layers_weights_and_gradients_are_those_of_hooks_by_hand(name, parity, record_property):
    if name.startswith("torchvision") and importlib.util.find_spec("torchvision") is None:
        pytest.skip("torchvision is not installed")
    errors = parity.errors(name)
    record_property("errors", errors)
    assert {"layers", "logits", "gradient"} <= set(errors)
    assert max(errors.values()) < MOST, errors


def of_loader(parity, tmp_path, name):
    """A module, and the model that this package's loader makes of its weights."""
    import torch

    module = parity.make(name)
    if name.startswith("timm"):
        torch.save(module.state_dict(), tmp_path / "model.pth")
        return module, vit_tf.load_pretrained(tmp_path / "model.pth", num_heads=3)
    values = vit_tf.Preprocessing((20, 20))
    module.save_pretrained(tmp_path)
    return module, vit_tf.load_pretrained(tmp_path, preprocessing=values)


MEASUREMENTS = {
    "cka": lambda model, x, y: analysis.cka(model, x)["cka"],
    "attention_distance": lambda model, x, y: analysis.attention_distance(model, x),
    "attention_rollout": lambda model, x, y: analysis.attention_rollout(model, x),
    "skip_ratio": lambda model, x, y: analysis.skip_ratio(model, x)["norm_ratio"],
    "receptive_field": lambda model, x, y: analysis.receptive_field(model, x[:2]),
    "input_gradients": lambda model, x, y: analysis.input_gradients(model, x[:2], classes=[1]),
    "gradient_attention": lambda model, x, y: analysis.gradient_attention(
        model, x[:2], classes=[0, 1]
    ),
    "head_ablation": lambda model, x, y: analysis.head_ablation(model, (x, y))["loss_change"],
    "skip_ablation": lambda model, x, y: analysis.skip_ablation(model, (x, y))["loss_change"],
    "token_ablation": lambda model, x, y: analysis.token_ablation(
        model, (x, y), shares=(0.5,), replacement="mean"
    )["loss_change"].sel(tokens=["cls", "largest", "attended"]),
    "logit_lens": lambda model, x, y: analysis.logit_lens(model, x),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["timm ViT", "transformers ViT"])
def test_measurements_are_those_of_the_loaded_model(name, parity, tmp_path, record_property):
    """Of the same layers, under the same names."""
    module, loaded = of_loader(parity, tmp_path, name)
    images = parity.pictures(name, 8)
    labels = np.arange(8) % 5
    errors = {}
    for measurement, measure in MEASUREMENTS.items():
        ours, theirs = (measure(model, images, labels) for model in (module, loaded))
        assert ours.dims == theirs.dims, measurement
        for dim in set(ours.dims) & set(ours.coords):
            assert ours[dim].values.tolist() == theirs[dim].values.tolist(), measurement
        scale = float(np.nanmax(np.abs(theirs)))
        errors[measurement] = float(np.nanmax(np.abs(ours.values - theirs.values))) / scale
    record_property("errors", errors)
    assert max(errors.values()) < MOST, errors


def test_pruned_heads_have_a_rollout_and_a_reason_for_the_rest():
    """Layers of 3, 4 and 2 heads: the mean over heads is defined, an axis of heads is not."""
    import torch

    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 3, "num_attention_heads": 4}
    images = {"image_size": 16, "patch_size": 8, "intermediate_size": 32}
    config = transformers.ViTConfig(attn_implementation="eager", **sizes, **images)
    torch.manual_seed(0)
    module = transformers.ViTForImageClassification(config).eval()
    for layer, heads in ((0, {1}), (2, {0, 3})):
        module.vit.encoder.layer[layer].attention.prune_heads(heads)
    x = np.random.default_rng(0).uniform(-1, 1, (6, 16, 16, 3)).astype("float32")
    with torch.no_grad():
        outputs = module(torch.tensor(x).permute(0, 3, 1, 2), output_attentions=True)
    share, identity = np.eye(5), np.eye(5)
    for weights in outputs.attentions:
        share = (weights.numpy().astype(float).mean(1) + identity) / 2 @ share
    rollout = analysis.attention_rollout(module, x)
    np.testing.assert_allclose(rollout[-1], share.mean(0), rtol=1e-5)
    with pytest.raises(ValueError, match="no attention with the same number of heads in all"):
        analysis.attention_distance(module, x)
