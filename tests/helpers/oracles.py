"""The parts of a pre-norm Transformer in NumPy float64, written apart from the models."""

import math

import numpy as np
from scipy.special import erf, expit, softmax

GELUS = {
    "gelu": lambda x: x * (1 + erf(x / np.sqrt(2))) / 2,
    "gelu_tanh": lambda x: x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3))),
    "quick_gelu": lambda x: x * expit(1.702 * x),
    "swiglu": lambda x: np.prod(np.split(x, 2, axis=-1), axis=0) * expit(np.split(x, 2, -1)[0]),
}


def randomize(model, seed=0):
    """Random weights everywhere, so that no path is hidden behind a zero."""
    rng = np.random.default_rng(seed)
    for weight in model.weights:
        if "seed" not in weight.path:
            weight.assign(0.3 * rng.normal(size=weight.shape) + ("gamma" in weight.name))


def weights_of(model):
    """The weights as float64, by path without the model's name."""
    return {w.path.split("/", 1)[1]: w.numpy().astype(float) for w in model.weights}


def check_taps(model, images, expected, rtol=2e-4, atol=2e-5):
    """Asserts that the taps of a model are those expected, in order, and the last is its output."""
    actual = model.intermediates(images)
    assert tuple(actual) == model.taps == tuple(expected)
    for tap, value in expected.items():
        np.testing.assert_allclose(actual[tap], value, rtol=rtol, atol=atol, err_msg=tap)
    np.testing.assert_array_equal(model(images), actual[model.taps[-1]])


def norm(x, weights, layer, epsilon):
    centred = x - x.mean(-1, keepdims=True)
    scaled = centred / np.sqrt((centred**2).mean(-1, keepdims=True) + epsilon)
    return scaled * weights[f"{layer}/gamma"] + weights[f"{layer}/beta"]


def dense(x, weights, layer):
    return x @ weights[f"{layer}/kernel"] + weights.get(f"{layer}/bias", 0)


def patches(images, weights, size):
    """Tokens of the patches, and the CLS token in front where there is one, without positions."""
    n, height, width, channels = images.shape
    rows, columns = height // size, width // size
    x = images.astype(float).reshape(n, rows, size, columns, size, channels)
    x = x.transpose(0, 1, 3, 2, 4, 5).reshape(n, rows * columns, -1)
    kernel = weights["embedding/patches/kernel"]
    x = x @ kernel.reshape(-1, kernel.shape[-1]) + weights.get("embedding/patches/bias", 0)
    if "embedding/prefix" in weights:
        prefix = weights["embedding/prefix"]
        x = np.concatenate([np.broadcast_to(prefix, (n, *prefix.shape[1:])), x], 1)
    return x


def blocks(x, weights, num_layers, num_heads, gelu, epsilon, removed=(), bias=None):
    """The taps of all blocks, and the last sum; `bias(i)` is added to the scores of block i."""
    taps = {}

    def join(site, skip, branch):
        if site not in removed:
            taps[f"{site}/skip"] = skip
        taps[f"{site}/branch"] = branch
        taps[f"{site}/sum"] = branch if site in removed else skip + branch
        return taps[f"{site}/sum"]

    for i in range(num_layers):
        b = f"block{i:02d}"
        taps[f"{b}/attention/norm"] = y = norm(x, weights, f"{b}/attention_norm", epsilon)
        q, k, v = (dense(y, weights, f"{b}/{name}") for name in ("query", "key", "value"))
        q, k, v = (y.reshape(*y.shape[:2], num_heads, -1) for y in (q, k, v))
        scores = np.einsum("nqhd,nkhd->nhqk", q, k) / np.sqrt(q.shape[-1])
        attention = softmax(scores + (bias(i) if bias else 0), axis=-1)
        taps[f"{b}/attention/weights"] = attention
        taps[f"{b}/attention/heads"] = heads = np.einsum("nhqk,nkhd->nqhd", attention, v)
        branch = dense(heads.reshape(x.shape), weights, f"{b}/out")
        x = join(f"{b}/attention", x, branch * weights.get(f"{b}/attention_scale", 1))
        taps[f"{b}/mlp/norm"] = y = norm(x, weights, f"{b}/mlp_norm", epsilon)
        taps[f"{b}/mlp/hidden"] = y = GELUS[gelu](dense(y, weights, f"{b}/expand"))
        branch = dense(y, weights, f"{b}/contract")
        x = join(f"{b}/mlp", x, branch * weights.get(f"{b}/mlp_scale", 1))
    return taps, x


def block_count(hidden, mlp):
    """Number of parameters of a block with all biases."""
    return 4 * hidden * (hidden + 1) + 2 * hidden * mlp + hidden + mlp + 4 * hidden


def count_flops(model):
    """Twice the multiply-adds of every kernel, and of attention from the shape of its weights."""
    from vit_tf.features import recorder

    layers = [layer for _, layer in recorder.named_layers(model)]
    images = np.zeros((1, *model.image_shape), "float32")
    total = 0
    for (position, _, _), output in recorder.record(model, images).items():
        if hasattr(layers[position], "kernel"):
            # Each output is a sum over all axes of the kernel but the last.
            total += 2 * math.prod(layers[position].kernel.shape[:-1]) * math.prod(output.shape)
    taps = model.intermediates(images).items()
    weights = [x.shape for tap, x in taps if tap.endswith(("/weights", "pooling/attention"))]
    config = model.get_config()
    size = config["hidden_dim"] // config["num_heads"] if weights else 0
    return total + 2 * 2 * size * sum(map(math.prod, weights))
