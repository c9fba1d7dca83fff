"""The one check of labels: integers from 0 on, one for each image, whatever reads them."""

import numpy as np
import tensorflow as tf

MOST_CLASSES = 1_000_000  # of which a head is still a few gigabytes
FROM_ONE = ": they are numbered from 1, use labels - 1"
NEGATIVE = ": labels below 0 mean unknown classes, as in a folder without class folders"


def require_label_type(
    labels: np.ndarray | tf.Tensor | tf.TensorSpec | tf.RaggedTensorSpec,
    num_classes: int | None = None,
    subset: str = "",
) -> None:
    """Raises a `ValueError` unless labels are integers of shape (example,)."""
    shape = tf.TensorShape(labels.shape)
    is_text = getattr(labels.dtype, "kind", None) in ("U", "S", "O") or labels.dtype == tf.string
    kind = "text" if is_text else tf.as_dtype(labels.dtype).name
    if shape.rank not in (1, None) or "int" not in kind:
        way = "argmax(labels, axis=1) makes integers of one-hot rows, "
        way += "np.unique(labels, return_inverse=True)[1] of text or of numbers"
        if (shape.rank or 0) > 2 or isinstance(labels, tf.RaggedTensorSpec):
            way = "measurements need one label for each image, not masks or several labels"
        _refuse(num_classes, f"{subset} labels of shape {shape} and type {kind}: {way}")


def require_labels(
    labels: np.ndarray, num_classes: int | None = None, subset: str = "", count: int | None = None
) -> None:
    """Raises a `ValueError` unless an array holds labels of `count` images, all of them classes.

    Where the number of classes is not known, only labels below 0 are refused.
    """
    require_label_type(labels, num_classes, subset)
    if count is not None and len(labels) != count:
        raise ValueError(
            "Expected as many labels as images. "
            f"Received: {len(labels)} labels for {count} images of {subset or 'the data'}"
        )
    if not len(labels):
        return
    low, high = int(labels.min()), int(labels.max())
    if low < 0 or (num_classes is not None and high >= num_classes):
        hint = FROM_ONE if low == 1 and high == num_classes else NEGATIVE if low < 0 else ""
        _refuse(num_classes, f"{subset} labels from {low} to {high}{hint}")


def batch_labels(
    labels: tf.Tensor, num_classes: int, subset: str = ""
) -> tuple[tf.Tensor, tf.Tensor]:
    """The labels of a batch as int64 (example,), and counts whose sum `require_counted` takes."""
    require_label_type(labels, num_classes, subset)
    labels = tf.cast(labels, tf.int64)
    kinds = (labels < 0, labels == 0, labels == num_classes, labels > num_classes)
    return labels, tf.stack([tf.math.count_nonzero(kind, dtype=tf.int32) for kind in kinds])


def require_counted(counts: np.ndarray, examples: int, num_classes: int, subset: str = "") -> None:
    """Raises a `ValueError` if any of the labels of so many examples lie outside the classes."""
    below, zeros, next_after_last, beyond = counts
    outside = below + next_after_last + beyond
    if outside:
        hint = NEGATIVE if below else "" if zeros or beyond else FROM_ONE
        words = f"{int(outside)} of {int(examples)} {subset} labels outside{hint}"
        _refuse(num_classes, words)


def count_classes(labels: np.ndarray) -> int:
    """The number of classes of labels from 0 on, where nothing else determines it."""
    require_labels(labels)
    present = np.unique(labels)
    last = int(present[-1]) if len(present) else 0
    if last >= MOST_CLASSES:
        _refuse(None, f"labels up to {last}, which are no numbers of classes")
    if last > 1 and np.array_equal(present, np.arange(1, last + 1)):
        words = f", or num_classes={last + 1} if class 0 has no image"
        _refuse(None, f"labels from 1 to {last}{FROM_ONE}{words}")
    require_classes(len(present))
    return 1 + last


def require_classes(count: int) -> None:
    """Raises a `ValueError` for labels of fewer than two classes, with which all scores are 1."""
    if count < 2:
        raise ValueError(f"Expected labels of two classes or more. Received: labels of {count}")


def _refuse(num_classes: int | None, received: str) -> None:
    end = "on" if num_classes is None else f"to num_classes - 1 = {num_classes - 1}"
    raise ValueError(
        f"Expected integer labels of shape (example,) from 0 {end}. "
        f"Received: {' '.join(received.split())}"
    )
