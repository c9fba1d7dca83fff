"""The linear classifiers of DINOv2, as its authors release them, against PyTorch code."""

import numpy as np
import pytest
from archive_files import refuses

import vit_tf

MOST = 1e-5
WIDTH, HEADS, LAYERS, PATCH, SIDE = 24, 3, 5, 4, 20


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def draw(torch, registers):
    """The tensors of a tiny DINOv2 in its authors' names."""
    generator = torch.Generator().manual_seed(0)

    def tensor(*shape, mean=0.0):
        return mean + 0.3 * torch.randn(shape, generator=generator)

    state = {"cls_token": tensor(1, 1, WIDTH), "mask_token": tensor(1, WIDTH)}
    state["pos_embed"] = tensor(1, 1 + (SIDE // PATCH) ** 2, WIDTH)
    state |= {"register_tokens": tensor(1, registers, WIDTH)} if registers else {}
    state["patch_embed.proj.weight"] = tensor(WIDTH, 3, PATCH, PATCH)
    state["patch_embed.proj.bias"] = tensor(WIDTH)
    linear = {"attn.qkv": (3 * WIDTH, WIDTH), "attn.proj": (WIDTH, WIDTH)}
    linear |= {"mlp.fc1": (40, WIDTH), "mlp.fc2": (WIDTH, 40)}
    for block in (f"blocks.{i}" for i in range(LAYERS)):
        for name, shape in linear.items():
            state[f"{block}.{name}.weight"] = tensor(*shape)
            state[f"{block}.{name}.bias"] = tensor(shape[0])
        state |= {f"{block}.ls{n}.gamma": tensor(WIDTH, mean=0.5) for n in (1, 2)}
    for norm in ("norm", *(f"blocks.{i}.norm{n}" for i in range(LAYERS) for n in (1, 2))):
        state |= {f"{norm}.weight": tensor(WIDTH, mean=1.0), f"{norm}.bias": tensor(WIDTH)}
    return state, tensor


def classify(torch, state, head, images, registers):
    """dict from tap to what DINOv2 and its classifier compute (`dinov2/hub/classifiers.py`)."""
    functional = torch.nn.functional

    def linear(x, name):
        return functional.linear(x, state[f"{name}.weight"], state[f"{name}.bias"])

    def norm(x, name):
        ends = state[f"{name}.weight"], state[f"{name}.bias"]
        return functional.layer_norm(x, (WIDTH,), *ends, eps=1e-6)

    pixels = torch.tensor(images.transpose(0, 3, 1, 2))
    kernel, bias = (state[f"patch_embed.proj.{end}"] for end in ("weight", "bias"))
    x = functional.conv2d(pixels, kernel, bias, stride=PATCH).flatten(2).transpose(1, 2)
    count = len(x)
    x = torch.cat([state["cls_token"].expand(count, -1, -1), x], dim=1) + state["pos_embed"]
    if registers:
        between = state["register_tokens"].expand(count, -1, -1)
        x = torch.cat([x[:, :1], between, x[:, 1:]], dim=1)
    taps, outputs = {}, []
    for i in range(LAYERS):
        block = f"blocks.{i}"
        y = linear(norm(x, f"{block}.norm1"), f"{block}.attn.qkv")
        q, k, v = y.reshape(count, -1, 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2)
        x = x + linear(y, f"{block}.attn.proj") * state[f"{block}.ls1.gamma"]
        y = functional.gelu(linear(norm(x, f"{block}.norm2"), f"{block}.mlp.fc1"))
        x = x + linear(y, f"{block}.mlp.fc2") * state[f"{block}.ls2.gamma"]
        taps[f"block{i:02d}/mlp/sum"] = x
        outputs.append(norm(x, "norm"))
    taps["norm"] = outputs[-1]
    layers = head["weight"].shape[1] // WIDTH - 1
    classes = [tokens[:, 0] for tokens in outputs[-layers:]]
    mean = outputs[-1][:, 1 + registers :].mean(dim=1)
    taps["pooled"] = torch.cat([*classes, mean], dim=1)
    taps["logits"] = functional.linear(taps["pooled"], head["weight"], head["bias"])
    return {tap: x.numpy() for tap, x in taps.items()}


@pytest.mark.parametrize("layers", [1, 4])
@pytest.mark.parametrize("registers", [0, 2])
@pytest.mark.parametrize("together", [False, True])
def test_linear_heads_are_dinov2s(layers, registers, together, torch, tmp_path, record_property):
    """An encoder and its head in files of their own, or the `state_dict` of the hub's model."""
    state, tensor = draw(torch, registers)
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
    images = np.random.default_rng(1).normal(size=(2, SIDE, SIDE, 3)).astype("float32")
    expected = classify(torch, state, head, images, registers)
    found = {tap: np.asarray(x) for tap, x in model.intermediates(images).items()}
    assert found["pooled"].shape == (2, (1 + layers) * WIDTH) and model.head_blocks == layers
    errors = {tap: np.abs(found[tap] - x).max() / np.abs(x).max() for tap, x in expected.items()}
    record_property("max relative error", max(errors.values()))
    assert max(errors.values()) < MOST, errors
    other = vit_tf.load_pretrained(path, **options | {"num_classes": 3})
    assert other.head.kernel.shape == (WIDTH, 3)
    if layers == 4 and together:
        model.save(tmp_path / "again.keras")
        again = vit_tf.load_model(tmp_path / "again.keras")
        np.testing.assert_array_equal(again(images), model(images))
        resized = vit_tf.at_resolution(model, (24, 28), num_classes=3)
        assert resized.head.kernel.shape == (5 * WIDTH, 3)


def test_other_heads_are_refused(torch, tmp_path):
    state, tensor = draw(torch, 0)
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
