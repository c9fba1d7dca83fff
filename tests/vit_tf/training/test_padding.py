"""Padded batches: every image counts once, whatever the size of the last batch."""

import keras
import numpy as np
import tensorflow as tf

import vit_tf
from vit_tf.distribute.strategies import pad_batches
from vit_tf.training.objectives import MeanLoss, SoftmaxCrossEntropy, Top1Accuracy


def test_an_evaluation_of_padded_batches_counts_every_image_once(rng):
    """As on a TPU, whose batches are all of one size: 10 images in batches of 4."""
    images = rng.normal(size=(10, 4, 4, 1)).astype("float32")
    labels = rng.integers(3, size=10)
    keras.utils.set_random_seed(0)
    layers = [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)]
    model = keras.Sequential(layers)
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(4)
    loss = SoftmaxCrossEntropy(0.1)
    model.compile(loss=loss, metrics=[Top1Accuracy()])
    expected = model.evaluate(data, verbose=0, return_dict=True)
    padded = pad_batches(data, 8, size=4)
    assert [batch[0].shape for batch in padded] == [(8, 4, 4, 1)] * 3
    assert padded.element_spec[0].shape == (8, 4, 4, 1)
    model.compile(loss=loss, weighted_metrics=[Top1Accuracy(), MeanLoss(loss)])
    found = model.evaluate(padded, verbose=0, return_dict=True)
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-6, err_msg=name)


def test_the_loss_of_a_padded_step_is_the_mean_over_its_images(rng):
    logits, labels = rng.normal(size=(5, 3)).astype("float32"), rng.integers(3, size=5)
    data = tf.data.Dataset.from_tensor_slices((logits, labels)).batch(5)
    loss = SoftmaxCrossEntropy()
    ((padded, classes, weights),) = pad_batches(data, 8)
    np.testing.assert_allclose(loss(classes, padded, weights), loss(labels, logits), rtol=1e-6)


def test_a_data_set_of_vit_tf_stores_its_size():
    (data,) = vit_tf.data.load("digits", image_size=8, splits=("test",), take=10, batch_size=4)
    shapes = [batch[0].shape[0] for batch in pad_batches(data, 3)]
    assert shapes == [6, 6, 6]
    assert sum(float(weights[:, 2].numpy().sum()) for *_, weights in pad_batches(data, 3)) == 10
