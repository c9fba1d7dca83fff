"""The images of a study, and how many of them share a batch."""

import pytest
import tensorflow as tf

from vit_tf.analysis.study.data import num_field_images


@pytest.mark.parametrize(
    ("size", "expected"), [(32, 32), (64, 32), (96, 28), (224, 5), (512, 4), (None, 32)]
)
def test_gradients_are_taken_of_fewer_large_images_at_once(size, expected):
    spec = tf.TensorSpec((None, size, size, 3)), tf.TensorSpec((None,), tf.int64)
    data = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=spec)
    assert num_field_images(data) == expected
