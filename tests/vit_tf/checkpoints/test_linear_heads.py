"""The linear classifiers of DINOv2, as its authors release them, on encoders of timm."""

import numpy as np
import pytest
from archive_files import helper_or_skip, refuses
from checkpoint_families import assert_matches, pictures

import vit_tf

WIDTH, HEADS, LAYERS = 24, 3, 5
TINY = {"embed_dim": WIDTH, "depth": LAYERS, "num_heads": HEADS, "patch_size": 4, "img_size": 20}
TINY |= {"num_classes": 0}


@pytest.fixture
def models():
    """The helper of tiny models."""
    return helper_or_skip("timm_models", "safetensors")


def draw(models, registers):
    """A tiny DINOv2 of timm's, its tensors, and a function of the shape of a random tensor."""
    torch, kind = models.torch, "_reg4" * bool(registers)
    options = TINY | ({"reg_tokens": registers} if registers else {})
    reference = models.timm.create_model(f"vit_small_patch14{kind}_dinov2", **options)
    torch.manual_seed(0)
    models.randomize(reference)
    return reference, dict(reference.state_dict()), lambda *shape: 0.3 * torch.randn(shape)


def classify(models, reference, head, images):
    """dict from tap to what DINOv2 and its classifier compute (`dinov2/hub/classifiers.py`)."""
    taps = models.taps(reference, images)
    sums = (models.torch.from_numpy(taps[f"block{i:02d}/mlp/sum"]) for i in range(LAYERS))
    with models.torch.no_grad():
        outputs = [reference.norm(tokens).numpy() for tokens in sums]
    weight, bias = (head[end].numpy() for end in ("weight", "bias"))
    layers = weight.shape[1] // WIDTH - 1
    mean = outputs[-1][:, reference.num_prefix_tokens :].mean(axis=1)
    pooled = np.concatenate([*(x[:, 0] for x in outputs[-layers:]), mean], axis=1)
    return taps | {"pooled": pooled, "logits": pooled @ weight.T + bias}


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("together", [False, True])
def test_linear_heads_are_dinov2s(layers, registers, together, models, tmp_path):
    """An encoder and its head in files of their own, or the `state_dict` of the hub's model."""
    reference, state, tensor = draw(models, registers)
    torch = models.torch
    head = {"weight": tensor(7, (1 + layers) * WIDTH), "bias": tensor(7)}
    path, options = tmp_path / "encoder.pth", {"num_heads": HEADS}
    if together:
        both = {f"backbone.{name}": x for name, x in state.items()}
        torch.save(both | {f"linear_head.{name}": x for name, x in head.items()}, path)
    else:
        torch.save(state, path)
        torch.save(head, tmp_path / "head.pth")
        options["head"] = tmp_path / "head.pth"
    model = vit_tf.load_pretrained(path, **options)
    images = pictures((20, 20, 3))
    assert_matches(model, classify(models, reference, head, images), images, LAYERS + 3)
    assert model.head_blocks == layers
    other = vit_tf.load_pretrained(path, **options | {"num_classes": 3})
    assert other.head.kernel.shape == (WIDTH, 3)
    if layers == 4 and together:
        model.save(tmp_path / "again.keras")
        again = vit_tf.load_model(tmp_path / "again.keras")
        np.testing.assert_array_equal(again(images), model(images))
        resized = vit_tf.at_resolution(model, (24, 28), num_classes=3)
        assert resized.head.kernel.shape == (5 * WIDTH, 3)


def test_other_heads_are_refused(models, tmp_path):
    _, state, tensor = draw(models, 0)
    torch = models.torch
    path, head = tmp_path / "encoder.pth", tmp_path / "head.pth"
    torch.save(state, path)
    for tensors, message in (
        ({"weight": tensor(7, WIDTH), "bias": tensor(7)}, "class tokens of 24 channels.*24"),
        ({"weight": tensor(7, 60), "bias": tensor(7)}, "class tokens of 24 channels.*60"),
        ({"weight": tensor(7, 2 * WIDTH)}, "head.*weight and a bias"),
        ({"weight": tensor(7, 7 * WIDTH), "bias": tensor(7)}, "head_blocks.*num_layers.*6"),
    ):
        torch.save(tensors, head)
        with refuses(message):
            vit_tf.load_pretrained(path, num_heads=HEADS, head=head)
    with refuses("head only for a DINOv2 file"):
        vit_tf.load_pretrained(head, head=head)
    with refuses("head.*None"):
        vit_tf.load_pretrained("vit-cls-cifar10", head=head)


def test_head_blocks_fit_the_model():
    sizes = (16, 16, 3), 8, 2, 2, 8, 8, 3
    for options in ({"head_blocks": 3}, {"head_blocks": 0}, {"head_blocks": 1, "pooling": "gap"}):
        with pytest.raises(ValueError, match=r"head_blocks.*1 to num_layers"):
            vit_tf.ViT(*sizes, **options)
