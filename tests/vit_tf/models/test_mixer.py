import oracles
import pytest

from vit_tf import TokenGrid
from vit_tf.models.mixer import Mixer

# Millions of parameters without the head, from table 1 of Tolstikhin et al. 2021.
MILLIONS = {"S/32": 19, "S/16": 18, "B/32": 60, "B/16": 59, "L/32": 206, "L/16": 207, "H/14": 431}
# Exact numbers with 1000 classes: timm's mixer_b16_224 and mixer_l16_224.
COUNTS = {"B/16": 59_880_472, "L/16": 208_196_168}


def analytic_count(layers, channels, tokens_mlp, channels_mlp, patch, classes, pixels=(224, 224)):
    tokens = pixels[0] * pixels[1] // patch**2

    def mlp(width, hidden):
        return 2 * width * hidden + width + hidden

    block = mlp(tokens, tokens_mlp) + mlp(channels, channels_mlp) + 4 * channels
    stem, head = 3 * patch**2 * channels + channels, (channels + 1) * classes
    return stem + layers * block + 2 * channels + head


def test_parameter_counts_of_every_variant():
    assert list(Mixer.variants) == list(MILLIONS)
    for name, fields in Mixer.variants.items():
        sizes = ("num_layers", "hidden_dim", "tokens_mlp_dim", "channels_mlp_dim", "patch_size")
        sizes = [fields[size] for size in sizes]
        assert round(analytic_count(*sizes, classes=0) / 1e6) == MILLIONS[name], name
        if name in COUNTS:
            assert analytic_count(*sizes, classes=1000) == COUNTS[name]


def test_parameter_counts_of_models():
    assert Mixer.from_variant("B/16").count_params() == COUNTS["B/16"]
    count = analytic_count(8, 512, 256, 2048, 32, 1000)
    assert Mixer.from_variant("S/32").count_params() == count
    small = Mixer((16, 24, 3), 8, 3, 8, 10, 12, 5)
    assert small.count_params() == analytic_count(3, 8, 10, 12, 8, 5, (16, 24))


@pytest.fixture(params=["gelu", "gelu_tanh"])
def mixer(request):
    removed = ["block01/token_mixing", "block02"]
    model = Mixer((16, 24, 3), 8, 3, 8, 10, 12, 5, removed, activation=request.param)
    oracles.randomize(model)
    return model


def oracle(model, images):
    """The forward pass of Tolstikhin et al. 2021, equation 1, in NumPy float64."""
    weights = oracles.weights_of(model)
    norm = lambda x, layer: oracles.norm(x, weights, layer, 1e-6)  # noqa: E731
    dense = lambda x, layer: oracles.dense(x, weights, layer)  # noqa: E731
    gelu = oracles.GELUS[model.get_config().get("activation", "gelu")]
    taps = {}
    x = images.astype(float).reshape(2, 2, 8, 3, 8, 3).transpose(0, 1, 3, 2, 4, 5).reshape(2, 6, -1)
    kernel = weights["embedding/kernel"].reshape(-1, 8)
    taps["embedding"] = x = x @ kernel + weights["embedding/bias"]
    for i in range(3):
        for kind, skips in (("token", i < 1), ("channel", i < 2)):
            site, layer = f"block{i:02d}/{kind}_mixing", f"block{i:02d}/{kind}"
            taps[f"{site}/norm"] = y = norm(x, f"{layer}_norm")
            y = y.transpose(0, 2, 1) if kind == "token" else y
            taps[f"{site}/hidden"] = y = gelu(dense(y, f"{layer}_expand"))
            y = dense(y, f"{layer}_contract")
            y = y.transpose(0, 2, 1) if kind == "token" else y
            if skips:
                taps[f"{site}/skip"] = x
            x = x + y if skips else y
            taps |= {f"{site}/branch": y, f"{site}/sum": x}
    taps["norm"] = x = norm(x, "norm")
    taps["pooled"] = x = x.mean(1)
    taps["logits"] = dense(x, "head")
    return taps


def test_every_tap_equals_the_paper_in_float64(mixer, images):
    oracles.check_taps(mixer, images, oracle(mixer, images))
    assert mixer.token_grid == TokenGrid(2, 3, 0, 8)
