"""Untrained copies of PyTorch modules: equal to what the constructors make with the same seed."""

import numpy as np
import pytest

import vit_tf
from vit_tf import analysis

torch = pytest.importorskip("torch")
nn = torch.nn


class Residual(nn.Module):
    """A block of the kind that people write, with a scale of its own."""

    def __init__(self):
        super().__init__()
        self.linear = nn.Linear(8, 8)
        self.scale = nn.Parameter(torch.empty(8))
        self.reset_parameters()

    def reset_parameters(self):
        nn.init.normal_(self.scale)

    def forward(self, x):
        return x + self.scale * self.linear(x)


class Own(nn.Module):
    """A small classifier of tokens: convolution, batch normalization, attention, blocks, head."""

    def __init__(self):
        super().__init__()
        self.patches = nn.Conv2d(3, 8, 4, 4)
        self.norm = nn.BatchNorm2d(8)
        self.encoder = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
        self.blocks = nn.Sequential(Residual(), Residual())
        self.head = nn.Linear(8, 5)

    def forward(self, x):
        tokens = self.norm(self.patches(x)).flatten(2).transpose(1, 2)
        return self.head(self.blocks(self.encoder(tokens)).mean(1))


def of_timm(architecture, **options):
    from timm_models import timm

    return timm.create_model(architecture, **options)


def of_transformers():
    transformers = pytest.importorskip("transformers")
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2}
    images = {"image_size": 16, "patch_size": 8, "num_labels": 4}
    config = transformers.ViTConfig(intermediate_size=32, **sizes, **images)
    return transformers.ViTForImageClassification(config)


MAKERS = {
    "own": Own,
    "timm, its class token a parameter": lambda: of_timm("vit_tiny_patch16_224", num_classes=7),
    "timm, parameters in its blocks": lambda: of_timm("convnext_atto", num_classes=7),
    "transformers": of_transformers,
}


def trained(module):
    """The module with other values everywhere, statistics of batches included."""
    with torch.no_grad():
        for tensor in module.state_dict().values():
            if tensor.is_floating_point():
                tensor.add_(3.0)
    return module


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_the_weights_are_those_of_a_new_module_of_the_same_seed(make):
    module = trained(make())
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    with torch.random.fork_rng():
        torch.manual_seed(3)
        new = make().state_dict()
    state = torch.get_rng_state()
    copy = vit_tf.reinitialize(module, 3)
    assert torch.equal(torch.get_rng_state(), state) and type(copy) is type(module)
    other = vit_tf.reinitialize(module, 4).state_dict()
    for name, tensor in copy.state_dict().items():
        # The layers of `Own` draw in another order than its constructor.
        if make is not Own:
            torch.testing.assert_close(tensor, new[name], rtol=0, atol=0)
        torch.testing.assert_close(tensor.float().mean(), new[name].float().mean(), rtol=0, atol=1)
        assert torch.equal(module.state_dict()[name], before[name])
        if tensor.is_floating_point() and (tensor != tensor.flatten()[0]).any():
            assert not torch.equal(tensor, other[name]), name


def test_layers_of_pytorch_draw_as_their_constructors():
    def make():
        return nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.Flatten(), nn.Linear(4, 2))

    torch.manual_seed(5)
    new = make().state_dict()
    copy = vit_tf.reinitialize(trained(make()), 5).state_dict()
    for name, tensor in new.items():
        assert torch.equal(copy[name], tensor), name  # running statistics included


def test_a_vit_of_another_size_than_its_released_one_is_drawn_by_its_own_method():
    options = {"img_size": 32, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "depth": 2}
    module = trained(of_timm("vit_tiny_patch16_224", **options))
    copy = vit_tf.reinitialize(module, 0)
    assert abs(copy.pos_embed.std().item() - 0.02) < 0.002  # as timm draws position embeddings
    assert copy.cls_token.abs().max().item() < 1e-4
    assert copy.blocks[1].norm1.weight.std().item() == 0


def test_weights_that_no_method_draws_are_named():
    module = nn.Sequential(nn.Linear(3, 3))
    module.token = nn.Parameter(torch.randn(4))
    with pytest.raises(ValueError, match=r"no method draws token\. Add a method reset_parameters"):
        vit_tf.reinitialize(module)
    weighted = nn.utils.parametrizations.weight_norm(nn.Linear(3, 3))
    with pytest.raises(ValueError, match=r"parametrizations\.weight\.original0"):
        vit_tf.reinitialize(weighted)
    frozen = nn.Sequential(nn.Conv2d(3, 3, 1))
    frozen.register_buffer("running_mean", torch.ones(3))
    with pytest.raises(ValueError, match="running_mean"):
        vit_tf.reinitialize(frozen)


def make_vit():
    options = {"img_size": 16, "patch_size": 8, "embed_dim": 16, "num_heads": 2, "depth": 2}
    return of_timm("vit_tiny_patch16_224", num_classes=5, **options)


@pytest.mark.slow
def test_claims_are_tested_against_the_copies_in_a_report(tmp_path):
    """What a report measures on an untrained copy is what its call measures on that module."""
    module = trained(make_vit())
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (40, 16, 16, 3)).astype("float32")
    report = analysis.make_report(
        {"module": module}, images, folder=tmp_path, figures=["9", "3"], untrained=2
    )
    stored = vit_tf.analysis.load(tmp_path / "results/attention_distance.module-untrained.nc")
    by_hand = analysis.attention_distance(vit_tf.reinitialize(module, 0), images)
    np.testing.assert_allclose(stored, by_hand, rtol=1e-5)
    assert "Models without untrained copies" not in report.path.read_text()


@pytest.mark.slow
def test_a_module_without_copies_says_why_in_a_report(tmp_path):
    class Tokens(Own):
        def __init__(self):
            super().__init__()
            self.position = nn.Parameter(torch.randn(16, 8))

        def forward(self, x):
            tokens = self.norm(self.patches(x)).flatten(2).transpose(1, 2) + self.position
            return self.head(self.blocks(self.encoder(tokens)).mean(1))

    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (40, 16, 16, 3)).astype("float32")
    report = analysis.make_report({"own": Tokens()}, images, folder=tmp_path, figures=["1"])
    text = report.path.read_text()
    assert "Models without untrained copies" in text and "no method draws position" in text


@pytest.mark.slow
def test_stitching_compares_with_a_copy_of_a_module():
    module, rng = trained(make_vit()).eval(), np.random.default_rng(0)
    images = rng.uniform(-1, 1, (30, 16, 16, 3)).astype("float32")
    labels = rng.integers(0, 5, 30)
    target = vit_tf.ViT(
        (16, 16, 3), 8, num_layers=1, num_heads=1, hidden_dim=8, mlp_dim=8, num_classes=5
    )
    first, copy = module, vit_tf.reinitialize(module)
    call = {"layers": "block00/mlp/sum", "l2": 0.1}
    result = analysis.stitching(first, target, images, (images, labels), **call)
    of_copy = analysis.stitching(copy, target, images, (images, labels), **call)
    np.testing.assert_allclose(result.untrained_loss_change, of_copy.loss_change, atol=1e-5)
