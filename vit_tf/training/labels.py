"""Images and labels that are checked as they come."""

import contextlib
import re

import tensorflow as tf

from vit_tf.batches import ResumableDataset
from vit_tf.image_checks import far_values
from vit_tf.preprocessing import interval

_WRONG = re.compile(r"Expected (?:labels|images) of the .*? data .*?Received: [-\w., ]*\w")


class WrongExample(ValueError):
    """An image or a label that a model cannot be given."""


def checked_images(dataset, model, split):
    """A data set whose images are checked when they are read: of no NaN, and not far off.

    Looked at are the values of the first image of each batch, and whether those of all are finite.
    `explained_labels` makes a `WrongExample` of what a wrong one raises.

    Args:
        dataset: batched `tf.data.Dataset` of (images, labels) or (images, labels, weights).
        model: the model, whose `preprocessing`, where it has one, gives the range of the values.
        split: which data these are, for the message, such as `"training"`.
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
    """A data set whose integer labels are checked to lie in [0, num_classes) when they are read.

    `explained_labels` makes a `WrongExample` of what a wrong one raises.

    Args:
        dataset: batched `tf.data.Dataset` of (images, labels) or (images, labels, weights).
        num_classes: number of classes.
        split: which data these are, for the message, such as `"training"`.
    """
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
def explained_labels():
    """Makes a `WrongExample` of the error that a wrong label or image raises."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _WRONG.search(error.message)
        if not found:
            raise
        raise WrongExample(found[0]) from error
