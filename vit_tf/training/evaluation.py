"""How often a classifier is right."""

import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm


def top_k_accuracy(model, dataset, ks=(1, 5)):
    """Share of examples whose label is among the k classes of the largest scores.

    Of equal scores the class of the lower number comes first, as for `argmax`.

    Args:
        model: callable from images to logits or probabilities of shape (example, class).
        dataset: batched `tf.data.Dataset` of (images, int labels).
        ks: the numbers k; those that every class would fit in are left out.

    Returns:
        dict from k to the share, in the order of `ks`.

    Raises:
        ValueError: for labels outside the model's classes, scores that are not finite or not of
            shape (example, class), or no examples.
    """
    score = tf.function(lambda images: model(images), reduce_retracing=True)
    batches = tqdm(dataset, "Evaluating", delay=2, leave=False)
    ranks = [_ranks(score(images), labels) for images, labels in batches]
    if not ranks:
        raise ValueError("Expected at least one batch of images. Received none")
    num_classes = ranks[0][1]
    ranks = np.concatenate([rank for rank, _ in ranks])
    return {k: float((ranks < k).mean()) for k in ks if k == 1 or k < num_classes}


def _ranks(scores, labels):
    """How many classes come before the label's, an array of shape (example,), and of how many."""
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
    if scores.ndim != 2 or not np.isfinite(scores).all():
        raise ValueError(
            "Expected finite scores of shape (example, class). "
            f"Received: shape {scores.shape}, {np.isnan(scores).sum()} of them NaN"
        )
    num_classes = scores.shape[1]
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"Expected labels to be in [0, {num_classes}), the classes of the model. "
            f"Received: labels from {labels.min()} to {labels.max()}"
        )
    own = np.take_along_axis(scores, labels[:, None], axis=1)
    before = np.arange(num_classes) < labels[:, None]
    return ((scores > own) | ((scores == own) & before)).sum(axis=1), num_classes
