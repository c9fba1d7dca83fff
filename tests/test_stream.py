import numpy as np
import pytest
import tensorflow as tf

from vit_tf.analysis import accumulate, collect
from vit_tf.distribute import strategy


@pytest.fixture
def images(rng):
    return rng.normal(size=(37, 2, 2, 1)).astype("float32")


def batched(images, size=8):
    return tf.data.Dataset.from_tensor_slices(images).batch(size)


def power(batch):
    squares = tf.reduce_sum(batch**2, axis=0)
    return {"square": squares, "examples": tf.shape(batch)[0], "batches": 1}


def test_sums_are_those_of_the_whole_in_float64(images):
    sums = accumulate(power, batched(images))
    np.testing.assert_allclose(sums["square"], (images.astype(float) ** 2).sum(0), rtol=1e-6)
    assert sums["square"].dtype == np.float64 and sums["examples"] == 37


def test_small_terms_are_not_lost_beside_a_large_sum():
    images = np.ones((1001, 1, 1, 1), "float32")
    images[0] = 2.0**24
    total = accumulate(lambda batch: tf.reduce_sum(batch), batched(images, 1))
    assert total == 2.0**24 + 1000


def test_arrays_datasets_and_pairs_are_the_same_data(images):
    labels = np.arange(37)
    pairs = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8)
    expected = accumulate(power, images)["square"]
    for data in (batched(images), pairs, (images, labels)):
        np.testing.assert_allclose(accumulate(power, data)["square"], expected, rtol=1e-6)
    moment = accumulate(
        lambda x, y: tf.reduce_sum(x[:, 0, 0, 0] * tf.cast(y, tf.float32)), pairs, with_labels=True
    )
    assert moment == pytest.approx(images[:, 0, 0, 0].astype(float) @ labels, rel=1e-5)


def test_collect_keeps_the_order(images):
    rows = collect(lambda batch: {"rows": batch[:, 0, 0]}, batched(images))["rows"]
    np.testing.assert_array_equal(rows, images[:, 0, 0])


def test_the_step_is_traced_once(images):
    traces = []

    def step(batch):
        traces.append(batch.shape)
        return tf.reduce_sum(batch)

    accumulate(step, batched(images))
    assert len(traces) == 1


def test_two_replicas_give_the_sum_and_the_order_of_one(images):
    sums, rows = accumulate(power, batched(images)), collect(tf.identity, batched(images))
    with strategy("mirrored").scope():
        weight = tf.Variable(1.0)
        distributed = accumulate(lambda b: power(weight * b), batched(images))
        np.testing.assert_array_equal(collect(tf.identity, batched(images)), rows)
    np.testing.assert_array_equal(distributed["square"], sums["square"])
    assert distributed["examples"] == 37 and distributed["batches"] == 5


def test_errors(images):
    with pytest.raises(ValueError, match="Expected batches of images"):
        accumulate(power, tf.data.Dataset.from_tensor_slices(images))
    with pytest.raises(ValueError, match=r"Expected batches of \(images, labels\)"):
        accumulate(lambda x, y: 0, batched(images), with_labels=True)
    with pytest.raises(ValueError, match="Expected at least one batch"):
        accumulate(power, batched(images).take(0))
    with pytest.raises(ValueError, match="Expected images to be an array"):
        accumulate(power, "images")
