"""Loss and accuracy against NumPy in float64 and against Keras' own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from vit_tf.training.objectives import SoftmaxCrossEntropy, Top1Accuracy
from vit_tf.training.recipes import Recipe
from vit_tf.training.runs import train


def cross_entropy(probabilities, logits, smoothing):
    """One loss per example, in float64, from the definition."""
    logits = np.asarray(logits, np.float64)
    targets = (1 - smoothing) * probabilities + smoothing / logits.shape[1]
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_softmax = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return -(targets * log_softmax).sum(axis=1)


@pytest.fixture
def batch(rng):
    """Logits, integer labels and soft labels of 16 examples of 5 classes."""
    soft = rng.dirichlet(np.ones(5), size=16).astype("float32")
    return rng.normal(size=(16, 5), scale=4).astype("float32"), rng.integers(5, size=16), soft


@pytest.mark.parametrize("smoothing", [0.0, 0.3])
def test_loss_is_the_definition(batch, smoothing, rng):
    logits, labels, soft = batch
    loss = SoftmaxCrossEntropy(smoothing)
    weights = rng.uniform(size=16)
    for given, probabilities in ((labels, np.eye(5)[labels]), (soft, soft)):
        expected = cross_entropy(probabilities, logits, smoothing)
        np.testing.assert_allclose(loss(given, logits), expected.mean(), rtol=1e-6)
        weighted = loss(given, logits, sample_weight=weights)
        np.testing.assert_allclose(weighted, (weights * expected).mean(), rtol=1e-6)


def test_loss_of_large_and_of_half_precision_logits():
    assert SoftmaxCrossEntropy()(np.array([1]), np.array([[1e4, -1e4]])) == 2e4
    logits = tf.constant([[1.0, 2.0], [3.0, -1.0]], tf.bfloat16)
    loss = SoftmaxCrossEntropy(0.2)(np.array([0, 1]), logits)
    assert loss.dtype == tf.float32
    expected = cross_entropy(np.eye(2), logits.numpy().astype(float), 0.2).mean()
    np.testing.assert_allclose(loss, expected, rtol=1e-6)


@pytest.mark.parametrize("label", [-1, 5])
def test_an_unknown_label_is_not_a_label_of_zeros(batch, label):
    # TensorFlow checks the labels on a CPU and returns NaN on a GPU.
    try:
        value = SoftmaxCrossEntropy()(np.full(16, label), batch[0])
    except tf.errors.InvalidArgumentError:
        return
    assert np.isnan(value)


def test_accuracy_counts(batch):
    logits, labels, soft = batch
    metric = Top1Accuracy()
    metric.update_state(labels[:10], logits[:10])
    metric.update_state(labels[10:], logits[10:])
    np.testing.assert_allclose(metric.result(), (logits.argmax(1) == labels).mean())
    metric.reset_state()
    weights = np.arange(16.0)
    metric.update_state(soft, logits, sample_weight=weights)
    right = logits.argmax(1) == soft.argmax(1)
    np.testing.assert_allclose(metric.result(), (weights * right).sum() / 120, rtol=1e-6)


def test_both_come_back_from_their_configuration(batch):
    logits, labels, _ = batch
    for thing in (SoftmaxCrossEntropy(0.1), Top1Accuracy("top")):
        again = keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(thing))
        assert type(again) is type(thing) and again.get_config() == thing.get_config()
        np.testing.assert_array_equal(again(labels, logits), thing(labels, logits))


def test_errors(batch):
    logits, labels, _ = batch
    with pytest.raises(ValueError, match=r"in \[0, 1\)"):
        SoftmaxCrossEntropy(1.0)
    for thing in (SoftmaxCrossEntropy(), Top1Accuracy()):
        with pytest.raises(ValueError, match="labels of shape"):
            thing(labels[:, None], logits)


def trained(activation, policy, smoothing, folder):
    """A classifier that `train` has trained, its images and labels, and its last `val_loss`."""
    rng = np.random.default_rng(0)
    labels = rng.integers(0, 4, 64)
    images = rng.uniform(-0.2, 0.2, (64, 8, 8, 3)) + np.eye(4, 3)[labels][:, None, None, :]
    images = images.astype("float32")
    keras.utils.set_random_seed(0)
    inputs = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(8, 3, activation="relu", dtype=policy)(inputs)
    x = keras.layers.GlobalAveragePooling2D(dtype=policy)(x)
    model = keras.Model(inputs, keras.layers.Dense(4, activation, dtype=policy)(x))
    recipe = Recipe(epochs=3, learning_rate=0.02, label_smoothing=smoothing, weight_decay=0.0)
    data = images, labels
    history = train(model, recipe, data, data, folder, verbose=0)
    return model, images, labels, history["val_loss"][-1]


@pytest.mark.parametrize("policy, smoothing", [("float32", 0.1), ("mixed_float16", 0.0)])
def test_a_model_that_ends_in_a_softmax_is_trained_by_its_scores(policy, smoothing, tmp_path):
    twins = {}
    for activation in (None, "softmax"):
        model, images, labels, loss = trained(
            activation, policy, smoothing, tmp_path / f"{activation}"
        )
        outputs = model.predict(images, verbose=0).astype(np.float64)
        scores = np.log(np.maximum(outputs, 1e-7)) if activation else outputs
        expected = cross_entropy(np.eye(4)[labels], scores, smoothing).mean()
        np.testing.assert_allclose(loss, expected, rtol=1e-5 if policy == "float32" else 2e-3)
        twins[activation] = loss
    np.testing.assert_allclose(twins["softmax"], twins[None], rtol=1e-4)


class OwnSoftmax(keras.layers.Layer):
    """Probabilities of a formula in which no scores are found."""

    def call(self, x):
        powers = keras.ops.exp(x)
        return powers / keras.ops.sum(powers, axis=-1, keepdims=True)


@pytest.mark.parametrize(
    "last, words", [("sigmoid", "the sigmoid of"), (OwnSoftmax(), "not found")]
)
def test_probabilities_without_known_scores_are_refused(last, words, tmp_path):
    model = keras.Sequential([keras.Input((8, 8, 3)), keras.layers.Flatten()])
    model.add(keras.layers.Dense(4, last))
    data = np.zeros((4, 8, 8, 3), "float32"), np.arange(4)
    with pytest.raises(ValueError, match=words):
        train(model, Recipe(), data, None, tmp_path / "run")
