"""Labels that are checked as they come."""

import contextlib
import re

import tensorflow as tf

from vit_tf.batches import remakable

_WRONG = re.compile(r"Expected labels of the .*? data to be in .*?Received: [-0-9, ]*[0-9]")


class WrongLabel(ValueError):
    """A label outside the classes of the model."""


def checked_labels(dataset, num_classes, split):
    """A data set whose integer labels are checked to lie in [0, num_classes) when they are read.

    `explained_labels` makes a `WrongLabel` of what a wrong one raises.

    Args:
        dataset: batched `tf.data.Dataset` of (images, labels).
        num_classes: number of classes.
        split: which data these are, for the message, such as `"training"`.
    """
    if not dataset.element_spec[1].dtype.is_integer:
        return dataset
    expected = f"Expected labels of the {split} data to be in [0, {num_classes}), the numbers of "
    expected += "the classes. Received: "

    def check(inputs, labels):
        wrong = tf.boolean_mask(labels, (labels < 0) | (labels >= num_classes))
        received = tf.strings.reduce_join(tf.strings.as_string(wrong[:5]), separator=", ")
        right = tf.debugging.Assert(tf.equal(tf.size(wrong), 0), [expected + received])
        with tf.control_dependencies([right]):
            return inputs, tf.identity(labels)

    return remakable(lambda batches: batches.map(check), dataset)


@contextlib.contextmanager
def explained_labels():
    """Makes a `WrongLabel` of the error that a wrong label of `checked_labels` raises."""
    try:
        yield
    except tf.errors.InvalidArgumentError as error:
        found = _WRONG.search(error.message)
        if not found:
            raise
        raise WrongLabel(found[0]) from error
