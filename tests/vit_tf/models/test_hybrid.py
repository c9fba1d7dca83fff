import numpy as np
import oracles
import pytest

import vit_tf
from vit_tf import TokenGrid


def make(units, patch_size=1, removed=(), **options):
    sizes = ((16, 24, 3), patch_size, 1, 2, 8, 12, 5)
    return vit_tf.HybridViT(*sizes, without_skips=removed, stem_units=units, **options)


@pytest.fixture(params=["units", "root"])
def hybrid(request):
    model = make((2, 1), removed=["stage1/unit02"]) if request.param == "units" else make((), 2)
    oracles.randomize(model)
    return model


def windows(x, size, stride, fill):
    """Windows of a map padded so that it rounds up, by the smaller half in front (XLA's SAME)."""
    padding = [(0, 0)]
    for length in x.shape[1:3]:
        total = max((-(-length // stride) - 1) * stride + size - length, 0)
        padding.append((total // 2, total - total // 2))
    x = np.pad(x, [*padding, (0, 0)], constant_values=fill)
    view = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return view[:, ::stride, ::stride]


def stem_oracle(weights, names, images):
    """The ResNet of Google's hybrids (vit_jax, models_resnet.py) in NumPy float64."""

    def conv(x, layer, stride=1):
        kernel = weights[f"stem/{layer}/kernel"]
        deviation = np.sqrt(((kernel - kernel.mean((0, 1, 2))) ** 2).mean((0, 1, 2)))
        kernel = (kernel - kernel.mean((0, 1, 2))) / (deviation + 1e-5)
        return np.einsum("nijcrs,rsco->nijo", windows(x, len(kernel), stride, 0), kernel)

    def norm(x, layer):
        grouped = x.reshape(*x.shape[:3], 32, -1)
        grouped = grouped - grouped.mean((1, 2, 4), keepdims=True)
        grouped /= np.sqrt((grouped**2).mean((1, 2, 4), keepdims=True) + 1e-6)
        return (
            grouped.reshape(x.shape) * weights[f"stem/{layer}/gamma"]
            + (weights[f"stem/{layer}/beta"])
        )

    taps = {}
    x = np.maximum(norm(conv(images.astype(float), "root", 2), "root_norm"), 0)
    taps["root"] = x = windows(x, 3, 2, -np.inf).max((-1, -2))
    for name in names:
        unit, first = name.replace("/", "_"), name.endswith("unit01")
        stride = 2 if first and not name.startswith("stage1") else 1
        taps[f"{name}/conv1"] = y = conv(x, f"{unit}/conv1")
        taps[f"{name}/hidden1"] = y = np.maximum(norm(y, f"{unit}/norm1"), 0)
        taps[f"{name}/conv2"] = y = conv(y, f"{unit}/conv2", stride)
        taps[f"{name}/hidden2"] = y = np.maximum(norm(y, f"{unit}/norm2"), 0)
        taps[f"{name}/conv3"] = y = conv(y, f"{unit}/conv3")
        branch = norm(y, f"{unit}/norm3")
        skip = 0
        if name != "stage1/unit02":
            projected = norm(conv(x, f"{unit}/projection", stride), f"{unit}/projection_norm")
            taps[f"{name}/skip"] = skip = projected
        taps |= {f"{name}/branch": branch, f"{name}/sum": skip + branch}
        x = np.maximum(skip + branch, 0)
    return taps, x


def oracle(model, images):
    weights = oracles.weights_of(model)
    names = ["stage1/unit01", "stage1/unit02", "stage2/unit01"] if model.stem.units else []
    taps, x = stem_oracle(weights, names, images)
    size = weights["embedding/patches/kernel"].shape[0]
    taps["embedding"] = x = oracles.patches(x, weights, size) + weights["embedding/positions"]
    inside, x = oracles.blocks(x, weights, 1, 2, "gelu", 1e-6)
    taps |= inside
    taps["norm"] = x = oracles.norm(x, weights, "norm", 1e-6)
    taps["pooled"] = x = x[:, 0]
    taps["logits"] = oracles.dense(x, weights, "head")
    return taps


def test_every_tap_equals_the_reference_in_float64(hybrid, images):
    oracles.check_taps(hybrid, images, oracle(hybrid, images), 1e-3, 1e-3)
    assert hybrid.token_grid == TokenGrid(2, 3, 1, 8)


def test_an_identity_skip_and_a_faint_kernel(images):
    model = make((2,), 2)
    oracles.randomize(model)
    kernel = model.stem.units[1].conv1.kernel
    kernel.assign(1e-5 * kernel)
    taps = model.intermediates(images)
    rectified = np.maximum(taps["stage1/unit01/sum"], 0)
    np.testing.assert_array_equal(taps["stage1/unit02/skip"], rectified)
    flat = kernel.numpy().astype(float)[0, 0]
    flat = (flat - flat.mean(0)) / (flat.std(0) + 1e-5)
    assert 0.1 < flat.std() < 0.9
    np.testing.assert_allclose(taps["stage1/unit02/conv1"], rectified @ flat, rtol=1e-3, atol=1e-3)


def test_epsilon_of_the_group_normalisation(images):
    model = make((), 2)
    oracles.randomize(model)
    faint = 1e-4 * images
    expected, _ = stem_oracle(oracles.weights_of(model), [], faint)
    actual = model.intermediates(faint)["root"]
    np.testing.assert_allclose(actual, expected["root"], rtol=1e-3, atol=1e-3)


@pytest.mark.slow
def test_a_submodel_of_the_stem_runs_no_block(hybrid):
    features = vit_tf.submodel(hybrid, "root")
    assert [layer.name for layer in features.layers] == ["images", "stem"]
