import keras
import numpy as np
import oracles
import pytest
from scipy.special import erf, softmax

import vit_tf
from vit_tf import TokenGrid

# Published parameter counts with a CLS token and 1000 classes at 224 pixels.
COUNTS = {
    "Ti": (5_719_720, 5_694_376, 5_717_416, 6_131_560),
    "S": (22_055_272, 22_004_584, 22_050_664, 22_878_952),
    "B": (86_576_872, 86_475_496, 86_567_656, 88_224_232),
    "L": (304_338_920, 304_203_752, 304_326_632, 306_535_400),
    "H": (632_214_760, 632_045_800, 632_199_400, 634_960_360),
}


def analytic_count(layers, hidden, mlp, patch, classes=1000, size=224):
    block = 4 * hidden * (hidden + 1) + 2 * hidden * mlp + hidden + mlp + 4 * hidden
    tokens = 1 + (size // patch) ** 2
    return (
        (3 * patch**2 + 1) * hidden
        + hidden
        + tokens * hidden
        + layers * block
        + 2 * hidden
        + (hidden + 1) * classes
    )


@pytest.mark.parametrize("size", ["Ti", "S", "B"])
def test_parameter_counts_of_models(size):
    for patch, count in zip((8, 14, 16, 32), COUNTS[size], strict=True):
        if size == "Ti" or patch == 16:
            assert vit_tf.ViT.from_variant(f"{size}/{patch}").count_params() == count


def test_parameter_counts_of_every_variant():
    from vit_tf.models.vit import VARIANTS

    assert len(VARIANTS) == 20
    for size, counts in COUNTS.items():
        for patch, count in zip((8, 14, 16, 32), counts, strict=True):
            fields = VARIANTS[f"{size}/{patch}"]
            assert fields["hidden_dim"] % fields["num_heads"] == 0
            assert (
                analytic_count(fields["num_layers"], fields["hidden_dim"], fields["mlp_dim"], patch)
                == count
            )


GOOGLE = {"activation": "gelu_tanh", "representation_dim": 7}


@pytest.fixture(params=[("cls", {}), ("gap", {}), ("cls", GOOGLE)], ids=["cls", "gap", "google"])
def vit(request):
    pooling, options = request.param
    removed = ["block01/attention", "block02"]
    model = vit_tf.ViT((16, 24, 3), 8, 3, 2, 8, 12, 5, pooling, removed, **options)
    oracles.randomize(model)
    return model


@pytest.fixture
def images(rng):
    return rng.normal(size=(2, 16, 24, 3)).astype("float32")


def oracle(model, images):
    """The forward pass of Dosovitskiy et al. 2020, equations 1 to 4, in NumPy float64."""
    weights = {w.path.split("/", 1)[1]: w.numpy().astype(float) for w in model.weights}

    def get(layer, *names):
        return [weights[f"{layer}/{name}"] for name in names]

    def norm(x, layer):
        gamma, beta = get(layer, "gamma", "beta")
        centred = x - x.mean(-1, keepdims=True)
        return centred / np.sqrt(x.var(-1, keepdims=True) + 1e-6) * gamma + beta

    def dense(x, layer):
        kernel, bias = get(layer, "kernel", "bias")
        return x @ kernel + bias

    def gelu(x):
        if model.get_config().get("activation") == "gelu_tanh":
            return x / 2 * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        return x * (1 + erf(x / np.sqrt(2))) / 2

    taps = {}
    cls = model.pooling == "cls"
    kernel, bias = get("embedding/patches", "kernel", "bias")
    x = images.astype(float).reshape(2, 2, 8, 3, 8, 3).transpose(0, 1, 3, 2, 4, 5)
    x = x.reshape(2, 6, -1) @ kernel.reshape(-1, 8) + bias
    if cls:
        prefix = np.broadcast_to(weights["embedding/prefix"], (2, 1, 8))
        x = np.concatenate([prefix, x], 1)
    taps["embedding"] = x = x + weights["embedding/positions"]
    for i in range(3):
        b = f"block{i:02d}"
        taps[f"{b}/attention/norm"] = y = norm(x, f"{b}/attention_norm")
        q, k, v = (dense(y, f"{b}/{n}").reshape(2, -1, 2, 4) for n in ("query", "key", "value"))
        a = softmax(np.einsum("nqhd,nkhd->nhqk", q, k) / np.sqrt(4), axis=-1)
        taps[f"{b}/attention/weights"] = a
        taps[f"{b}/attention/heads"] = heads = np.einsum("nhqk,nkhd->nqhd", a, v)
        branch = dense(heads.reshape(*x.shape), f"{b}/out")
        if i == 0:
            taps[f"{b}/attention/skip"] = x
        x = x + branch if i == 0 else branch
        taps |= {f"{b}/attention/branch": branch, f"{b}/attention/sum": x}
        taps[f"{b}/mlp/norm"] = y = norm(x, f"{b}/mlp_norm")
        y = dense(y, f"{b}/expand")
        taps[f"{b}/mlp/hidden"] = y = gelu(y)
        branch = dense(y, f"{b}/contract")
        if i < 2:
            taps[f"{b}/mlp/skip"] = x
        x = x + branch if i < 2 else branch
        taps |= {f"{b}/mlp/branch": branch, f"{b}/mlp/sum": x}
    taps["norm"] = x = norm(x, "norm")
    taps["pooled"] = x = x[:, 0] if cls else x.mean(1)
    if "pre_logits/kernel" in weights:
        taps["pre_logits"] = x = np.tanh(dense(x, "pre_logits"))
    taps["logits"] = dense(x, "head")
    return taps


def test_every_tap_equals_the_paper_in_float64(vit, images):
    expected, actual = oracle(vit, images), vit.intermediates(images)
    assert tuple(actual) == vit.taps == tuple(expected)
    for tap, value in expected.items():
        np.testing.assert_allclose(actual[tap], value, rtol=2e-4, atol=2e-5, err_msg=tap)
    np.testing.assert_array_equal(vit(images), actual["logits"])
    assert vit.token_grid == TokenGrid(2, 3, int(vit.pooling == "cls"), 8)


def test_later_options_change_neither_older_configurations_nor_older_weights():
    older = ["image_shape", "patch_size", "num_layers", "num_heads", "hidden_dim", "mlp_dim"]
    older += ["num_classes", "pooling", "without_skips", "dropout_rate"]
    model = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 12, 2)
    config = model.get_config()
    assert set(config) - set(keras.Model().get_config()) == set(older)
    again = vit_tf.ViT.from_config({name: config[name] for name in older})
    assert [w.path for w in again.weights] == [w.path for w in model.weights]
    norm, dense = ["gamma", "beta"], ["kernel", "bias"]
    embedding = ["prefix", "positions", *dense]
    block = norm + 4 * dense + norm + 2 * dense
    assert [w.name for w in model.weights] == embedding + block + norm + dense
    google = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 12, 2, **GOOGLE)
    assert google.get_config() | GOOGLE == google.get_config()
    assert google.count_params() == model.count_params() + 9 * 7 - 2


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"pooling": "max"}, r"Expected pooling to be 'cls' or 'gap'\. Received: pooling='max'"),
        ({"image_shape": (30, 32, 3)}, r"multiples of patch_size.*\(30, 32, 3\), patch_size=16"),
        ({"num_heads": 5}, r"multiple of num_heads.*num_heads=5"),
        ({"without_skips": ["block99"]}, r"Expected without_skips.*'block99'"),
        ({"activation": "none"}, r"Expected activation.*gelu, gelu_tanh, quick_gelu.*'none'"),
    ],
)
def test_errors(arguments, message):
    with pytest.raises(ValueError, match=message):
        vit_tf.ViT(**{"image_shape": (32, 32, 3), "hidden_dim": 12} | arguments)
    with pytest.raises(ValueError, match=r"Expected variant.*B/16.*Received: 'B/15'"):
        vit_tf.ViT.from_variant("B/15")


def shown_shapes(model):
    """dict from layer to the shape that the summary shows."""
    lines = []
    model.summary(print_fn=lines.append, line_length=120)
    rows = [line.split("│")[1:3] for line in "\n".join(lines).splitlines() if "│" in line]
    return {name.split()[0]: shape.strip() for name, shape in rows}


@pytest.mark.slow
def test_the_summary_shows_the_shapes_of_layers_and_leaves_no_trace():
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16, "num_classes": 5}
    vit = vit_tf.ViT(image_shape=(16, 16, 3), patch_size=8, **sizes)
    layers = ("embedding", "block00", "block01", "norm")
    expected = dict.fromkeys(layers, "(None, 5, 8)") | {"head": "(None, 5)"}
    assert shown_shapes(vit) == expected
    vit_tf.submodel(vit, "*")
    nodes = [len(layer._inbound_nodes) for layer in vit.layers]
    assert shown_shapes(vit) == expected
    assert [len(layer._inbound_nodes) for layer in vit.layers] == nodes
    bit = vit_tf.BiT(image_shape=(32, 32, 3), units=(1, 1), width_factor=0.5, num_classes=5)
    shapes = shown_shapes(bit)
    for layer, tap in (("root", "root"), ("stage2_unit01", "stage2/unit01/sum"), ("norm", "norm")):
        assert shapes[layer] == str(tuple(vit_tf.submodel(bit, tap).output[tap].shape))
