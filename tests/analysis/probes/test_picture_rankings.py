"""Neighbours, mistakes and projections against NumPy: orders, ties, values and pictures."""

import sys
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
from tables import features_of, numbers

from vit_tf import analysis

RNG = np.random.default_rng(0)
X = {"a": RNG.normal(size=(20, 5)), "b": RNG.normal(size=(20, 7))}
for _x in X.values():
    _x[9] = _x[2]  # a tie in every layer
LABELS = np.arange(20) % 3


def levels(number):
    """What the only pixel of an image of `numbers` becomes: its own range is empty."""
    return {0: 128, 1: 255}.get(number, 0)


def ramps(count):
    """Images of 1 x 2 pixels in [-1, 1], of which the first is the number and the second 0."""
    images = np.zeros((count, 1, 2, 3), np.float32)
    images[:, 0, 0] = np.linspace(-1, 1, count)[:, None]
    return images


def numbered_features(images):
    """The rows of X for images of `ramps(20)`."""
    rows = tf.cast(tf.round((images[:, 0, 0, 0] + 1) * 19 / 2), tf.int32)
    return {name: tf.gather(tf.constant(x, tf.float32), rows) for name, x in X.items()}


@pytest.mark.parametrize("batch", [4, 7, 20])
def test_neighbours_by_a_sort_of_cosines(batch):
    images = ramps(20)
    data = tf.data.Dataset.from_tensor_slices(images).batch(batch)
    result = analysis.neighbours(numbered_features, data, images[[2, 11]], k=6)
    for layer, x in X.items():
        x = x.astype(np.float32).astype(float)
        unit = x / np.linalg.norm(x, axis=1, keepdims=True)
        cosines = unit[[2, 11]] @ unit.T
        order = [
            sorted(range(20), key=lambda i, row=row: (-round(row[i], 12), i)) for row in cosines
        ]
        positions = np.array(order)[:, :6]
        received = result.sel(layer=layer)
        np.testing.assert_array_equal(received.position, positions)
        np.testing.assert_allclose(
            received.similarity, np.take_along_axis(cosines, positions, axis=1), atol=1e-12
        )
        # The pictures are those of the positions, whichever batch they came in.
        pictures = np.rint((images[positions] + 1) * 127.5)
        np.testing.assert_array_equal(received.picture, pictures)
    assert result.position[0, 0, :2].values.tolist() == [2, 9]
    np.testing.assert_array_equal(result.query_picture, np.rint((images[[2, 11]] + 1) * 127.5))


def test_one_image_before_many_is_the_query_of_its_neighbours():
    images = ramps(20)
    wanted = analysis.neighbours(numbered_features, images, images[3], k=4)
    received = analysis.nearest_neighbours(numbered_features, images[3], images, k=4)
    np.testing.assert_array_equal(received.position, wanted.position)
    np.testing.assert_array_equal(received.query_picture, wanted.query_picture)


def test_neighbours_refuse_more_than_there_are():
    with pytest.raises(ValueError, match="k of at most 20 images"):
        analysis.neighbours(numbered_features, ramps(20), ramps(20)[:1], k=21)
    with pytest.raises(ValueError, match="k to be at least 1"):
        analysis.neighbours(numbered_features, ramps(20), ramps(20)[:1], k=0)


SCORES = 3 * RNG.normal(size=(20, 3))
SCORES[14] = SCORES[5]  # of one label: equally confident


@pytest.mark.parametrize(("k", "batch"), [(3, 6), (50, 20)])
def test_mistakes_by_a_sort_of_probabilities(k, batch):
    scores = features_of({"logits": SCORES})
    scores.class_names = ("cat", "dog", "hen")
    data = tf.data.Dataset.from_tensor_slices((numbers(20), LABELS)).batch(batch)
    result = analysis.mistakes(scores, data, k=k)
    exponents = np.exp(SCORES.astype(np.float32).astype(float))
    probabilities = exponents / exponents.sum(axis=1, keepdims=True)
    predicted = probabilities.argmax(axis=1)
    wrong = [i for i in range(20) if predicted[i] != LABELS[i]]
    order = sorted(wrong, key=lambda i: (-probabilities[i].max(), i))[:k]
    np.testing.assert_array_equal(result.position, order)
    np.testing.assert_allclose(result.probability, probabilities[order].max(axis=1), rtol=1e-6)
    of_label = probabilities[order, LABELS[order]]
    np.testing.assert_allclose(result.label_probability, of_label, rtol=1e-5)
    np.testing.assert_array_equal(result.predicted, predicted[order])
    assert result.label_name.values.tolist() == [scores.class_names[i] for i in LABELS[order]]
    expected = [[levels(i)] * 3 for i in order]
    np.testing.assert_array_equal(result.picture[:, 0, 0], expected)
    assert result.attrs["mistakes"] == len(wrong)
    assert result.attrs["accuracy"] == pytest.approx(1 - len(wrong) / 20)


def test_a_model_without_mistakes_has_none_to_show():
    right = features_of({"logits": 9 * np.eye(3)[LABELS]})
    with pytest.raises(ValueError, match="all 20 images correctly"):
        analysis.mistakes(right, (numbers(20), LABELS))


def test_mistakes_need_labels_and_classes():
    scores = features_of({"logits": SCORES})
    with pytest.raises(ValueError, match="without labels"):
        analysis.mistakes(scores, numbers(20))
    with pytest.raises(ValueError, match="labels outside"):
        analysis.mistakes(scores, (numbers(20), LABELS + 1))


def test_projection_by_the_eigenvectors_of_the_covariance():
    result = analysis.projection(numbered_features, (ramps(20), LABELS))
    for layer, x in X.items():
        x = x.astype(np.float32).astype(float)
        values, vectors = np.linalg.eigh(np.cov(x.T))
        vectors = vectors[:, ::-1][:, :2]
        vectors *= np.sign(vectors[np.abs(vectors).argmax(axis=0), [0, 1]])
        np.testing.assert_allclose(
            result.sel(layer=layer), (x - x.mean(axis=0)) @ vectors, atol=1e-9
        )
        shares = values[::-1][:2] / values.sum()
        np.testing.assert_allclose(result.explained_variance.sel(layer=layer), shares)
    np.testing.assert_array_equal(result.label, LABELS)


def test_projection_of_one_channel_has_one_component():
    result = analysis.projection(
        features_of({"x": np.arange(9.0)[:, None]}), (numbers(9), LABELS[:9])
    )
    np.testing.assert_allclose(result[0], np.stack([np.arange(9) - 4, np.zeros(9)], axis=1))
    np.testing.assert_array_equal(result.explained_variance[0], [1, 0])


def test_projection_refuses_constant_layers_and_unknown_methods():
    constant = features_of({"x": np.full((9, 3), 1e3)})
    with pytest.raises(ValueError, match=r"differ between images. Received: x"):
        analysis.projection(constant, (numbers(9), LABELS[:9]))
    with pytest.raises(ValueError, match="method"):
        analysis.projection(constant, (numbers(9), LABELS[:9]), method="pac")


def test_umap_gets_the_features_and_the_seed_where_it_is_installed(monkeypatch):
    def make(n_components, random_state):
        assert n_components == 2
        return SimpleNamespace(fit_transform=lambda x: x[:, :2] + random_state)

    monkeypatch.setitem(sys.modules, "umap", SimpleNamespace(UMAP=make))
    result = analysis.projection(numbered_features, (ramps(20), LABELS), method="umap", seed=4)
    np.testing.assert_allclose(result.sel(layer="b"), X["b"].astype(np.float32)[:, :2] + 4.0)
    monkeypatch.setitem(sys.modules, "umap", None)
    with pytest.raises(ValueError, match="pip install umap-learn"):
        analysis.projection(numbered_features, (ramps(20), LABELS), method="umap")
