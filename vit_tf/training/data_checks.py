"""Checks the images and labels of a run while they are read."""

import contextlib
import re

import tensorflow as tf

from vit_tf.batches import ResumableDataset
from vit_tf.image_checks import far_values
from vit_tf.preprocessing import interval

_WRONG = re.compile(r"Expected (?:labels|images) of the .*? data .*?Received: [-\w., ]*\w")


class WrongExample(ValueError):
    """An image or a label that is not valid for the model."""


def checked_images(dataset, model, split):
    """A data set that checks, when images are read, that they are finite and in range.

    The range is checked for the first image of each batch, finiteness for all.
    """
    spec, limits = dataset.element_spec[0], far_values(model)
    if not isinstance(spec, tf.TensorSpec) or not spec.dtype.is_floating:
        return dataset
    expected = f"Expected images of the {split} data "

    def check(number, batch):
        images, *others = batch
        sums = tf.reduce_sum(images, axis=list(range(1, images.shape.rank)))
        wrong = tf.strings.as_string(tf.where(~tf.math.is_finite(sums))[:, 0])
        where = [tf.strings.reduce_join(wrong[:1]), " of batch ", tf.strings.as_string(number)]
        received = ["to be finite. Received: NaN or infinite values in image ", *where, " (from 0)"]
        finite = tf.equal(tf.size(wrong), 0)
        checks = [tf.debugging.Assert(finite, [tf.strings.join([expected, *received])])]
        if limits:
            least, most = tf.reduce_min(images[:1]), tf.reduce_max(images[:1])
            near = (least >= limits[0]) & (most <= limits[1]) | tf.equal(tf.size(images), 0)
            ends = [tf.strings.as_string(end, shortest=True) for end in (least, most)]
            words = f"with values in {interval(*model.preprocessing.value_range)}. Received: "
            received = [expected, words, "values from ", ends[0], " to ", ends[1]]
            checks.append(tf.debugging.Assert(near | ~finite, [tf.strings.join(received)]))
        with tf.control_dependencies(checks):
            return tf.identity(images), *others

    return ResumableDataset.from_sources(lambda batches: batches.enumerate().map(check), dataset)


def checked_labels(dataset, num_classes, split):
    """A data set that checks, when integer labels are read, that they lie in [0, num_classes)."""
    if not dataset.element_spec[1].dtype.is_integer:
        return dataset
    expected = f"Expected labels of the {split} data to be in [0, {num_classes}), the numbers of "
    expected += "the classes. Received: "

    def check(inputs, labels, *weights):
        wrong = tf.boolean_mask(labels, (labels < 0) | (labels >= num_classes))
        received = tf.strings.reduce_join(tf.strings.as_string(wrong[:5]), separator=", ")
        right = tf.debugging.Assert(tf.equal(tf.size(wrong), 0), [expected + received])
        with tf.control_dependencies([right]):
            return inputs, tf.identity(labels), *weights

    return ResumableDataset.from_sources(lambda batches: batches.map(check), dataset)


@contextlib.contextmanager
def explain_wrong_examples():
    """Converts the TensorFlow error for an invalid image or label to a `WrongExample`."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _WRONG.search(error.message)
        if not found:
            raise
        raise WrongExample(found[0]) from error
