import numpy as np
import pytest
import tensorflow as tf
from sklearn.linear_model import Ridge

from vit_tf import analysis
from vit_tf.analysis.ridge import _moments, _probed, _solve

L2 = (0.01, 1.0, 100.0)


def make(rng, count, classes=4, channels=12):
    labels = rng.integers(0, classes, count)
    centres = np.random.default_rng(7).normal(size=(classes, 3, channels))
    images = centres[labels] + 1.5 * rng.normal(size=(count, 3, channels))
    return images[..., None].astype("float32"), labels


def features(images):
    return {"tokens": images[..., 0], "map": images}


def expected_accuracy(train, test, l2, reduce):
    (x, y), (u, v) = train, test
    model = Ridge(alpha=l2).fit(reduce(x).astype(float), 2.0 * np.eye(4)[y] - 1)
    return (model.predict(reduce(u).astype(float)).argmax(1) == v).mean()


@pytest.mark.parametrize("count", [200, 9], ids=["primal", "dual"])
def test_weights_equal_scikit_learn(rng, count):
    x, y = make(rng, count)
    probed = _probed(lambda images: {"tokens": images[..., 0] + 1000.0}, "mean")
    moments = _moments(probed, (x, y), 4)["tokens"]
    assert ("rows" in moments) == (count < 12)
    weights, intercept = _solve(moments, np.array(L2))
    rows = (x[..., 0] + np.float32(1000)).mean(1).astype(float)
    for index, l2 in enumerate(L2):
        model = Ridge(alpha=l2).fit(x[..., 0].mean(1).astype(float), 2.0 * np.eye(4)[y] - 1)
        np.testing.assert_allclose(weights[0, index], model.coef_.T, atol=2e-3)
        np.testing.assert_allclose(
            rows @ weights[0, index] + intercept[0, index],
            model.predict(x[..., 0].mean(1).astype(float)),
            atol=2e-3,
        )


@pytest.mark.parametrize("count", [200, 9], ids=["primal", "dual"])
@pytest.mark.parametrize(
    ("tokens", "reduce"),
    [
        ("mean", lambda x: x[..., 0].mean(1)),
        ("first", lambda x: x[:, 0, :, 0]),
        ("rest", lambda x: x[:, 1:, :, 0].mean(1)),
    ],
)
def test_accuracies_equal_scikit_learn(rng, count, tokens, reduce):
    train, test = make(rng, count), make(rng, 300)
    probe = analysis.ridge_probe(
        lambda x: {"tokens": x[..., 0]}, train, test, 4, l2=L2, tokens=tokens
    )
    assert probe.dims == ("layer", "l2")
    expected = [expected_accuracy(train, test, l2, reduce) for l2 in L2]
    np.testing.assert_allclose(probe.sel(layer="tokens"), expected, atol=1 / 300 + 1e-9)


def test_each_token_by_itself_streamed_in_batches(rng):
    train, test = make(rng, 200), make(rng, 300)
    stream = [tf.data.Dataset.from_tensor_slices(part).batch(64) for part in (train, test)]
    probe = analysis.ridge_probe(lambda x: {"tokens": x[..., 0]}, *stream, 4, l2=L2, tokens="each")
    assert probe.dims == ("layer", "l2", "token") and probe.shape == (1, 3, 3)
    for token in range(3):
        expected = [
            expected_accuracy(train, test, l2, lambda x, t=token: x[:, t, :, 0]) for l2 in L2
        ]
        np.testing.assert_allclose(probe[0, :, token], expected, atol=1 / 300 + 1e-9)


def test_narrow_and_wide_layers_together(rng):
    train, test = make(rng, 9), make(rng, 50)
    both = analysis.ridge_probe(features, train, test, 4, l2=L2)
    assert list(both.layer) == ["tokens", "map"]
    alone = analysis.ridge_probe(lambda x: {"map": x}, train, test, 4, l2=L2)
    np.testing.assert_array_equal(both.sel(layer="map"), alone.sel(layer="map"))


def test_a_constant_feature_gives_chance(rng):
    labels = np.repeat(np.arange(4), 25)
    labels = np.append(labels, 2)
    images = rng.normal(size=(101, 2, 2, 1)).astype("float32")
    probe = analysis.ridge_probe(
        lambda x: {"constant": 0 * x[:, :, :, 0] + 3.0}, (images, labels), (images, labels), 4
    )
    np.testing.assert_allclose(probe, 26 / 101)


def test_errors(rng):
    data = make(rng, 20)
    for wrong, message in [
        ({"tokens": "cls"}, "Expected tokens to be one of"),
        ({"l2": (0.0, 1.0)}, "Expected every l2 to be above 0"),
        ({"num_classes": 3}, r"0 to num_classes - 1 = 2\. Received: \d+ of 20 labels outside"),
    ]:
        arguments = {"num_classes": 4} | wrong
        with pytest.raises(ValueError, match=message):
            analysis.ridge_probe(features, data, data, **arguments)
    train = data[0], np.minimum(data[1], 2)
    with pytest.raises(ValueError, match=r"labels outside"):
        analysis.ridge_probe(features, train, (data[0], data[1] + 1), 3)
    with pytest.raises(ValueError, match=r"Expected finite activations.*tokens"):
        analysis.ridge_probe(lambda x: {"tokens": x[..., 0] * np.nan}, data, data, 4)
