"""The most probable classes against NumPy's softmax, and against one sigmoid."""

import keras
import numpy as np
import pytest

import vit_tf
from vit_tf import analysis


def classifier(units, activation=None):
    keras.utils.set_random_seed(0)
    layers = [keras.layers.Flatten(), keras.layers.Dense(units, activation)]
    return keras.Sequential([keras.Input((8, 8, 3)), *layers])


@pytest.mark.parametrize("activation", [None, "softmax"])
def test_probabilities_are_those_of_a_softmax_in_their_order(rng, activation):
    images = rng.uniform(-1, 1, (5, 8, 8, 3)).astype("float32")
    outputs = classifier(6)(images).numpy().astype(np.float64)
    expected = np.exp(outputs) / np.exp(outputs).sum(axis=1, keepdims=True)
    result = vit_tf.predict(classifier(6, activation), images, top=3)
    order = np.argsort(-expected, axis=1)[:, :3]
    np.testing.assert_array_equal(result.class_number, order)
    np.testing.assert_allclose(
        result.probability, np.take_along_axis(expected, order, axis=1), rtol=1e-5
    )
    assert "class_name" not in result


def test_one_sigmoid_is_two_classes(rng):
    images = rng.uniform(-1, 1, (5, 8, 8, 3)).astype("float32")
    model = classifier(1, "sigmoid")
    result = vit_tf.predict(model, images)
    second = model(images).numpy()[:, 0]
    np.testing.assert_allclose(result.probability[:, 0], np.maximum(second, 1 - second), rtol=1e-5)
    np.testing.assert_array_equal(result.class_number[:, 0], second > 0.5)


def test_a_photo_and_a_bundled_model_by_name(rng):
    photo = rng.integers(0, 256, (40, 50, 3)).astype("uint8")
    result = vit_tf.predict("vit-cls-cifar10", photo, top=2)
    assert result.sizes == {"example": 1, "rank": 2}
    names = vit_tf.load("vit-cls-cifar10").class_names
    assert result.class_name.values[0, 0] == names[int(result.class_number[0, 0])]
    table = result.to_dataframe()
    assert len(table) == 2 and table["probability"].is_monotonic_decreasing
    with pytest.raises(ValueError, match="top to be an integer"):
        vit_tf.predict("vit-cls-cifar10", photo, top=0)


def test_t_sne_is_that_of_scikit_learn(rng):
    from sklearn.manifold import TSNE

    features = rng.normal(size=(20, 6)).astype("float32")
    labels = np.arange(20) % 2
    result = analysis.projection(
        lambda x: {"layer": x[:, 0, 0]}, (features[:, None, None], labels), method="tsne", seed=3
    )
    embedding = TSNE(2, perplexity=19 / 3, init="pca", random_state=3)
    np.testing.assert_allclose(
        result[0], embedding.fit_transform(features.astype("float64")), rtol=1e-3, atol=1e-3
    )
    assert "t-SNE" in analysis.plot(result).get_title()


def test_layers_are_listed_with_their_shapes():
    vit = vit_tf.ViT((16, 16, 3), 8, 2, 2, 16, 32, num_classes=3)
    table = analysis.layers(vit)
    assert list(table.index) == list(vit.taps)
    assert table.loc["block01/attention/weights", "shape"] == (2, 5, 5)
    assert list(table.index[table.measured]) == list(analysis.features_of(vit).facts.layers)
    torch = pytest.importorskip("torch")
    module = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten())
    assert (30, 30, 4) in list(analysis.layers(module.eval())["shape"]) or len(
        analysis.layers(module)
    )
    with pytest.raises(ValueError, match="while they run on images"):
        analysis.layers(lambda x: {"a": x})
