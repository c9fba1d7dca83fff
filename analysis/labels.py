"""The one check of labels: integers, one for each example, that are classes."""

import tensorflow as tf


def batch_labels(labels, num_classes, what):
    """The labels of a batch, and how many of them are no classes, for `require_inside`.

    Args:
        labels: integer tensor of shape (example,).
        num_classes: number of classes.
        what: of which images, in a word.

    Returns:
        int64 tensor of shape (example,), and an int32 scalar.

    Raises:
        ValueError: as `require_vector`.
    """
    require_vector(labels, num_classes, what)
    labels = tf.cast(labels, tf.int64)
    inside = tf.logical_and(labels >= 0, labels < num_classes)
    return labels, tf.reduce_sum(tf.cast(tf.logical_not(inside), tf.int32))


def require_inside(outside, examples, num_classes, what):
    """Raises a `ValueError` if any of the labels of so many examples are `outside` the classes."""
    if outside:
        _refuse(num_classes, f"{int(outside)} of {int(examples)} {what} labels outside")


def require_labels(labels, num_classes, what):
    """Raises a `ValueError` unless an array holds labels of `what` images, all of them classes."""
    require_vector(labels, num_classes, what)
    if len(labels) and (labels.min() < 0 or labels.max() >= num_classes):
        _refuse(num_classes, f"{what} labels from {labels.min()} to {labels.max()}")


def require_vector(labels, num_classes=None, what="the"):
    """Raises a `ValueError` unless labels, a tensor or an array, are integers of shape (example,).

    Args:
        labels: what was given; classes in one-hot form, or of shape (example, 1), are refused.
        num_classes: number of classes, or None where any integers do.
        what: of which images, in a word.
    """
    kind = tf.as_dtype(labels.dtype)
    if len(labels.shape) != 1 or not kind.is_integer:
        _refuse(num_classes, f"{what} labels of shape {tuple(labels.shape)} and type {kind.name}")


def _refuse(num_classes, received):
    classes = "" if num_classes is None else f" from 0 to num_classes - 1 = {num_classes - 1}"
    raise ValueError(f"Expected integer labels of shape (example,){classes}. Received: {received}")
