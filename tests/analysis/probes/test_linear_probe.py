"""Linear probes by gradient descent against scikit-learn, and against each other."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from scipy.special import log_softmax
from sklearn.linear_model import LogisticRegression

from vit_tf import TokenGrid, analysis
from vit_tf.analysis.engine.pooling import pool
from vit_tf.analysis.probes.linear_probe import fit_probes, probe_keys, score, stacked
from vit_tf.distribute.strategies import strategy

LONG = {"epochs": 500, "batch_size": 120, "learning_rate": 12.0, "seed": 0}
SHORT = {"epochs": 4, "batch_size": 16, "learning_rate": 8.0, "seed": 0}


def rows(rng, count=120, channels=4, classes=3, spread=1.5):
    """Clouds that overlap, so that the likelihood has a largest value."""
    labels = rng.integers(0, classes, count)
    centres = np.random.default_rng(3).normal(size=(classes, channels))
    return centres[labels] + spread * rng.normal(size=(count, channels)), labels


def as_images(x):
    """Features (example, token, channel) as images, which `tokens` reads back."""
    return np.asarray(x, "float32")[..., None]


def tokens(images):
    return {"tokens": images[..., 0], "wide": images[..., :2, 0] ** 2}


tokens.token_grid = TokenGrid(1, 4, 1, 8)


def logits(model, x):
    """Logits (example, probe, class) without the shift that a softmax is blind to."""
    values = np.asarray(model(stacked(x)), float)
    return values - values.mean(axis=-1, keepdims=True)


@pytest.mark.slow
def test_probe_converges_to_the_logistic_regression_of_scikit_learn(rng):
    x, labels = rows(rng, spread=2.5)
    x = {("a", "all"): x + 0.5, ("b", "all"): 100 * x[:, :3] ** 2}
    model = fit_probes(x, labels, 3, [False, True], **LONG)
    outputs = logits(model, x)
    for i, ((key, norm), loss) in enumerate(
        zip(probe_keys(x, [False, True]), score(model, x, labels)[1], strict=True)
    ):
        # An affine map of the features changes the weights, not what they say at the optimum.
        fitted = (x[key] - x[key].mean(0)) / x[key].std(0)
        best = LogisticRegression(C=np.inf, tol=1e-10, max_iter=2000).fit(fitted, labels)
        values = best.decision_function(fitted)
        expected = values - values.mean(axis=-1, keepdims=True)
        np.testing.assert_allclose(outputs[:, i], expected, atol=5e-3, err_msg=f"{key}, {norm}")
        every = log_softmax(values, axis=-1)[np.arange(len(labels)), labels]
        assert loss == pytest.approx(-every.mean(), abs=1e-5)


@pytest.mark.slow
def test_a_probe_trained_alone_has_the_same_weights(rng):
    x, labels = rows(rng, 100, 5)
    many = {
        ("a", "cls"): x,
        ("b", "cls"): 1e4 * rng.normal(size=(100, 3)),
        ("c", "cls"): x**3,
        ("c", "spatial"): np.tanh(x) + 7,
    }
    together = fit_probes(many, labels, 3, [False, True], **SHORT)
    alone = fit_probes({("c", "cls"): x**3}, labels, 3, [True], **SHORT)
    place = [key for key, rows in many.items() if rows.shape[1] == 5].index(("c", "cls"))
    joint, single = (m.get_layer("normalised_5") for m in (together, alone))
    assert np.abs(single.kernel).max() > 0.1
    np.testing.assert_allclose(joint.kernel[place], single.kernel[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(joint.bias[place], single.bias[0], rtol=1e-5, atol=1e-6)
    alone = fit_probes({("b", "cls"): many["b", "cls"]}, labels, 3, [False], **SHORT)
    joint, single = (m.get_layer("plain_3") for m in (together, alone))
    np.testing.assert_allclose(joint.kernel[0], single.kernel[0], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("norm", [False, True])
def test_steps_are_those_of_momentum_and_cosine_decay(rng, norm):
    x, labels = rows(rng, 24, 2)
    x[:, 1] *= 1e-3  # so small that the epsilon of the normalisation counts
    model = fit_probes(
        {("a", "all"): x}, labels, 3, [norm], epochs=5, batch_size=24, learning_rate=30.0, seed=1
    )
    plain = x / np.sqrt((x**2).sum(axis=1).mean())
    z = (x - x.mean(0)) / np.sqrt(x.var(0) + 1e-6) / np.sqrt(2) if norm else plain
    z = np.append(z, np.ones((24, 1)), axis=1)
    weights, velocity = np.zeros((3, 3)), np.zeros((3, 3))
    for step in range(5):
        shares = np.exp(log_softmax(z @ weights, axis=1))
        gradient = z.T @ (shares - np.eye(3)[labels]) / 24
        rate = 30.0 * 24 / 256 * (1 + np.cos(np.pi * step / 5)) / 2
        velocity = 0.9 * velocity - rate * gradient
        weights += velocity
    layer = model.get_layer("normalised_2" if norm else "plain_2")
    np.testing.assert_allclose(layer.kernel[0], weights[:2], atol=1e-5)
    np.testing.assert_allclose(layer.bias[0], weights[2], atol=1e-5)
    values = z @ weights
    outputs = np.asarray(model(stacked({("a", "all"): x})))[:, 0]
    np.testing.assert_allclose(outputs, values, atol=3e-5)


def test_batch_norm_has_the_statistics_of_all_examples_in_the_end(rng):
    x, labels = rows(rng, 90, 4)
    model = fit_probes({("a", "all"): 3 * x + 1}, labels, 3, [True], **SHORT)
    (norm,) = (y for y in model.layers if isinstance(y, keras.layers.BatchNormalization))
    np.testing.assert_allclose(norm.moving_mean, (3 * x + 1).mean(0), rtol=1e-5)
    np.testing.assert_allclose(norm.moving_variance, (3 * x).var(0), rtol=1e-5)


def test_planted_features_are_found_where_they_are(rng):
    x, labels = rng.normal(size=(300, 5, 6)), rng.integers(0, 4, 300)
    x[:, 0, :4] += 8 * np.eye(4)[labels]
    data = as_images(x), labels
    train, test = ((images[part], y[part]) for images, y in [data] for part in np.s_[:200, 200:])
    result = analysis.linear_probe(tokens, train, test, 4, batch_size=50)
    assert result.dims == ("layer", "tokens", "batch_norm")
    np.testing.assert_array_equal(result.sel(layer="tokens", tokens="cls"), 1)
    assert (result.sel(tokens="spatial") < 0.5).all()
    loss = result["training_loss"]
    assert (loss.sel(layer="tokens", tokens="cls") < 0.1).all()
    assert (abs(loss.sel(tokens="spatial") - np.log(4)) < 0.1).all()
    assert result.attrs["train_examples"] == 200 and result.attrs["examples"] == 100


def noise(rng, *counts):
    """Data sets of images of noise and of labels that say nothing."""
    return [(as_images(rng.normal(size=(n, 5, 4))), rng.integers(0, 3, n)) for n in counts]


@pytest.mark.slow
def test_accuracy_is_that_of_the_trained_probes_on_the_test_images(rng):
    train, test = noise(rng, 80, 57)
    result = analysis.linear_probe(
        tokens, train, test, 3, tokens="spatial", epochs=3, batch_size=32, learning_rate=4.0
    )
    x, u = (
        {(layer, "spatial"): np.asarray(values) for layer, values in pooled.items()}
        for pooled in (
            pool(tokens(tf.constant(of[0])), "spatial", tokens.token_grid) for of in (train, test)
        )
    )
    settings = {"epochs": 3, "batch_size": 32, "learning_rate": 4.0, "seed": 0}
    model = fit_probes(x, train[1], 3, [False, True], **settings)
    guesses = np.asarray(model(stacked(u))).argmax(axis=-1)
    for guess, ((layer, of), norm) in zip(guesses.T, probe_keys(x, [False, True]), strict=True):
        outputs = result.sel(layer=layer, tokens=of, batch_norm=norm).item()
        assert outputs == np.mean(guess == test[1])
    assert list(result["layer"].values) == ["tokens", "wide"]


@pytest.mark.slow
def test_only_the_seed_and_the_batches_of_training_leave_a_trace(rng):
    train, test = noise(rng, 80, 40)
    options = {"epochs": 3, "batch_size": 32}
    result = analysis.linear_probe(tokens, train, test, 3, **options)
    batches = tf.data.Dataset.from_tensor_slices(train).batch(13)
    keras.utils.set_random_seed(8)
    again = analysis.linear_probe(tokens, batches, test, 3, **options)
    xr.testing.assert_identical(again, result)
    with strategy("mirrored").scope():
        spread = analysis.linear_probe(tokens, train, test, 3, batch_norm=False, **options)
    expected = result["training_loss"].sel(batch_norm=False)
    np.testing.assert_allclose(spread["training_loss"][..., 0], expected, atol=1e-5)
    other = analysis.linear_probe(tokens, train, test, 3, seed=1, **options)
    assert (abs(other["training_loss"] - result["training_loss"]) > 1e-5).all()


@pytest.mark.slow
def test_the_size_of_features_does_not_matter(rng):
    train, test = noise(rng, 80, 40)
    losses = [
        analysis.linear_probe(
            lambda x, size=size: {"x": size * x[:, 0, :, 0]},
            train,
            test,
            3,
            tokens="all",
            batch_norm=False,
        )["training_loss"].values
        for size in (1.0, 3e-4, 2e5)
    ]
    np.testing.assert_allclose(losses[1:], [losses[0]] * 2, rtol=1e-5)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": "each"}, "tokens to be one of"),
        ({"epochs": 0}, "epochs=0"),
        ({"batch_size": 0, "learning_rate": -1}, "batch_size, learning_rate above 0"),
        ({"features": lambda x: {"bad": x[..., 0] * np.nan}, "tokens": "all"}, "finite.*bad"),
        ({"features": lambda x: {"zero": 0 * x[..., 0]}, "tokens": "all"}, "zero at zero"),
    ],
)
def test_errors(rng, options, words):
    settings = {"features": tokens, "epochs": 1} | options
    with pytest.raises(ValueError, match=words):
        analysis.linear_probe(settings.pop("features"), *noise(rng, 20, 10), 3, **settings)
