"""Loss and accuracy against NumPy in float64 and against Keras' own."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from vit_tf.training.objectives import SoftmaxCrossEntropy, Top1Accuracy


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
