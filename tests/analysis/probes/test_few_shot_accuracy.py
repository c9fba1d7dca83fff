"""Few-shot classifiers against ridge regression of scikit-learn and of plain linear algebra."""

import numpy as np
import pytest
import tensorflow as tf
from sklearn.linear_model import Ridge

from vit_tf.analysis.engine.least_squares import classify, fit_classifier
from vit_tf.analysis.probes.ridge import FEW_SHOT_L2 as L2, few_shot, select_few_shot

pytestmark = pytest.mark.usefixtures("without_graphs")


def make_set(rng, count, noise=1.0, channels=6):
    """Features that tell three classes apart, in class order: (images, labels)."""
    labels = np.repeat(np.arange(3), count)
    images = np.eye(channels)[labels] * 2 + noise * rng.normal(size=(3 * count, channels))
    return images * 3 + 5, labels.astype("int32")


def batches(rows, size=8):
    images, labels = rows
    return tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels)).batch(size)


def features(images):
    """The images, and as a map of 2 x 1 places whose mean they are."""
    shift = tf.stack([images + 1, images - 1], axis=1)[:, :, None]
    return {"vector": images, "map": shift}


@pytest.mark.parametrize("count", [2, 30])
def test_classifier_is_a_ridge_regression(rng, count):
    """In either form: fewer examples than channels, or more."""
    x, labels = make_set(rng, count)
    l2 = (2.0**-10, 1.0, 2.0**20)
    mean, scale, weights = fit_classifier(x, labels, 3, l2)
    np.testing.assert_allclose(mean, x.mean(axis=0))
    np.testing.assert_allclose(scale, x.std(axis=0) + 1e-5)
    white = np.pad((x - mean) / scale, ((0, 0), (0, 1)), constant_values=100)
    targets = np.where(np.eye(3)[labels] == 1, 1.0, -1.0)
    for strength, outputs in zip(l2, weights, strict=True):
        ridge = Ridge(alpha=strength, fit_intercept=False, solver="svd").fit(white, targets)
        np.testing.assert_allclose(outputs, ridge.coef_.T, atol=1e-6)
        normal = white.T @ white + strength * np.eye(7)
        np.testing.assert_allclose(outputs, np.linalg.solve(normal, white.T @ targets), atol=1e-6)
    new, _ = make_set(rng, 5)
    scores = np.pad((new - mean) / scale, ((0, 0), (0, 1)), constant_values=100) @ weights
    np.testing.assert_array_equal(classify(new, mean, scale, weights), scores.argmax(-1))


@pytest.mark.usefixtures("in_graphs")
def test_streamed_accuracy_is_that_of_the_rows(rng):
    draws = [(make_set(rng, 4), make_set(rng, 5)) for _ in range(2)]
    test = make_set(rng, 20)
    result = few_shot(
        features,
        [tuple(map(batches, pair)) for pair in draws],
        batches(test),
        3,
        (1, 4),
        (0.5, 64.0),
    )
    assert result["accuracy"].dims == ("layer", "draw", "shots", "l2")
    for draw, (few, held) in enumerate(draws):
        for count in (1, 4):
            rows = [place for place in range(12) if place % 4 < count]
            fitted = fit_classifier(np.float32(few[0])[rows], few[1][rows], 3, (0.5, 64.0))
            for name, (x, labels) in {"accuracy": test, "held_out": held}.items():
                expected = (classify(np.float32(x), *fitted) == labels).mean(axis=1)
                for layer in ("vector", "map"):
                    outputs = result[name].sel(layer=layer, draw=draw, shots=count)
                    np.testing.assert_allclose(outputs, expected, atol=1e-12)
    assert result.attrs["examples"] == 60
    assert result["accuracy"].sel(shots=4).mean() > result["accuracy"].sel(shots=1).mean() > 1 / 3


def test_one_strength_is_chosen_on_the_other_images(rng):
    draws = [(batches(make_set(rng, 5)), batches(make_set(rng, 20))) for _ in range(3)]
    result = few_shot(features, draws, batches(make_set(rng, 50)), 3, (1, 5))
    assert result.sizes["l2"] == len(L2) == 31 and L2[0] == 2.0**-10 and L2[-1] == 2.0**20
    selection = select_few_shot(result)
    assert selection.dims == ("layer", "draw", "shots") and selection["l2"].dims == (
        "layer",
        "shots",
    )
    for layer in result["layer"].values:
        for count in (1, 5):
            means = result["held_out"].sel(layer=layer, shots=count).mean("draw")
            best = means["l2"].values[np.flatnonzero(means == means.max())[-1]]
            item = selection.sel(layer=layer, shots=count)
            assert float(item["l2"]) == best
            same = result["accuracy"].sel(layer=layer, shots=count, l2=best)
            np.testing.assert_array_equal(item, same)


def test_mistakes_are_named(rng):
    few, test = batches(make_set(rng, 2)), batches(make_set(rng, 2))
    for classes, shots, l2, of, words in (
        (3, (1, 3), (1.0,), features, "at least 3 images of each class.*2"),
        (3, (1,), (0.0,), features, "l2"),
        (3, (1,), (1.0,), lambda images: {"bad": images / 0}, "finite.*bad"),
    ):
        with pytest.raises(ValueError, match=words):
            few_shot(of, [(few, None)], test, classes, shots, l2)
    assert "held_out" not in few_shot(features, [(few, None)], test, 3, (1,))
