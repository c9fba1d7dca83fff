import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import TokenGrid
from vit_tf.models.bit import GroupNorm


def conv_oracle(x, kernel, stride, pad):
    """Weight-standardised convolution with explicit zero padding, in float64."""
    kernel = (kernel - kernel.mean((0, 1, 2))) / np.sqrt(kernel.var((0, 1, 2)) + 1e-10)
    x = np.pad(x, ((0, 0), (pad, pad), (pad, pad), (0, 0)))
    size = kernel.shape[0]
    windows = np.lib.stride_tricks.sliding_window_view(x, (size, size), axis=(1, 2))
    return np.einsum("nijcrs,rsco->nijo", windows[:, ::stride, ::stride], kernel)


def group_norm_oracle(x, gamma, beta):
    grouped = x.reshape(*x.shape[:3], 32, -1)
    mean, var = (f(grouped, axis=(1, 2, 4), keepdims=True) for f in (np.mean, np.var))
    return ((grouped - mean) / np.sqrt(var + 1e-5)).reshape(x.shape) * gamma + beta


def oracle(model, images):
    """ResNet-v2 with the changes of Kolesnikov et al. 2020, section 3.2, in NumPy float64."""
    weights = {w.path.split("/", 1)[1]: w.numpy().astype(float) for w in model.weights}
    relu = lambda x: np.maximum(x, 0)  # noqa: E731

    def norm(x, name):
        return group_norm_oracle(x, weights[f"{name}/gamma"], weights[f"{name}/beta"])

    def conv(x, name, stride=1, pad=0):
        return conv_oracle(x, weights[f"{name}/kernel"], stride, pad)

    taps = {}
    x = images.astype(float)
    if model.stem == "imagenet":
        x = np.pad(conv(x, "root", 2, 3), ((0, 0), (1, 1), (1, 1), (0, 0)))
        windows = np.lib.stride_tricks.sliding_window_view(x, (3, 3), axis=(1, 2))
        x = windows[:, ::2, ::2].max((-1, -2))
    else:
        x = conv(x, "root", 1, 1)
    taps["root"] = x
    for tap in [t for t in model.taps if t.endswith("/sum")]:
        name = tap.removesuffix("/sum")
        unit = name.replace("/", "_")
        stride = 2 if name.endswith("unit01") and "stage1" not in name else 1
        taps[f"{name}/norm1"] = first = norm(x, f"{unit}/norm1")
        taps[f"{name}/conv1"] = y = conv(relu(first), f"{unit}/conv1")
        taps[f"{name}/norm2"] = y = norm(y, f"{unit}/norm2")
        taps[f"{name}/conv2"] = y = conv(relu(y), f"{unit}/conv2", stride, 1)
        taps[f"{name}/norm3"] = y = norm(y, f"{unit}/norm3")
        branch = conv(relu(y), f"{unit}/conv3")
        if f"{name}/skip" in model.taps:
            projected = f"{unit}/projection/kernel" in weights
            skip = conv(relu(first), f"{unit}/projection", stride) if projected else x
            taps[f"{name}/skip"] = skip
        taps[f"{name}/branch"] = branch
        taps[tap] = x = branch + skip if f"{name}/skip" in taps else branch
    taps["norm"] = x = norm(x, "norm")
    taps["pooled"] = x = relu(x).mean((1, 2))
    taps["logits"] = x @ weights["head/kernel"] + weights["head/bias"]
    return taps


@pytest.fixture(params=["small", "imagenet"])
def bit(request):
    model = vit_tf.BiT(
        (17, 24, 3), (2, 1), 0.5, 5, stem=request.param, without_skips=["stage1/unit02"]
    )
    oracles.randomize(model)
    return model


@pytest.fixture
def images(rng):
    return rng.normal(size=(2, 17, 24, 3)).astype("float32")


def test_every_tap_equals_the_paper_in_float64(bit, images):
    expected = oracle(bit, images)
    oracles.check_taps(bit, images, expected, 1e-3, 1e-3)
    rows, columns = expected["norm"].shape[1:3]
    stride = {"small": 2, "imagenet": 8}[bit.stem]
    assert bit.token_grid == TokenGrid(rows, columns, 0, stride)


def test_group_norm_is_that_of_keras(rng):
    x = (3 * rng.normal(size=(2, 4, 5, 64)) + 10).astype("float32")
    ours, theirs = GroupNorm(32, epsilon=1e-5), keras.layers.GroupNormalization(32, epsilon=1e-5)
    np.testing.assert_allclose(ours(x), theirs(x), atol=2e-5)
    values = [rng.normal(1, 0.5, 64), rng.normal(size=64)]
    outcomes = []
    for layer in (ours, theirs):
        layer.set_weights(values)
        with tf.GradientTape() as tape:
            maps = tf.constant(x)
            tape.watch(maps)
            loss = tf.reduce_sum(layer(maps) ** 3)
        outcomes.append(tape.gradient(loss, [maps, *(v.value for v in layer.weights)]))
    for a, b in zip(*outcomes, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=1e-5 * np.abs(b).max())


def test_small_images_keep_a_usable_map():
    sizes = {"units": (1, 1, 1, 1), "width_factor": 0.5}
    model = vit_tf.BiT.from_variant("R50x1", image_shape=(32, 32, 3), num_classes=10, **sizes)
    assert model.stem == "small" and model.token_grid == TokenGrid(4, 4, 0, 8)
    large = vit_tf.BiT(units=(1, 1, 1, 1), width_factor=0.5, num_classes=10)
    assert large.stem == "imagenet" and large.token_grid == TokenGrid(7, 7, 0, 32)
