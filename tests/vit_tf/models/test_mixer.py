import oracles
import pytest

from vit_tf import TokenGrid
from vit_tf.models.mixer import Mixer


@pytest.fixture(params=["gelu", "gelu_tanh"])
def mixer(request):
    removed = ["block01/token_mixing", "block02"]
    model = Mixer((16, 24, 3), 8, 3, 8, 10, 12, 5, without_skips=removed, activation=request.param)
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
