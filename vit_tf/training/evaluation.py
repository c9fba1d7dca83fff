"""How often a classifier is right."""

from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from tqdm.auto import tqdm

from vit_tf.common.backend import on_jax, require_tensorflow_or_jax
from vit_tf.common.names import format_list
from vit_tf.data.batches import explained_batches, require_finite_length
from vit_tf.data.labels import require_labels
from vit_tf.data.preprocessing import require_finite_images, require_images_of
from vit_tf.distribute.strategies import (
    current_shard,
    of_every_worker,
    shard_of_worker,
    sum_of_workers,
)
from vit_tf.features.class_names import imagenet_names, imagenet_synsets
from vit_tf.features.recorder import infer
from vit_tf.features.scores import find_scores


def top_k_accuracy(
    model: keras.Model, dataset: tf.data.Dataset, ks: Sequence[int] = (1, 5)
) -> dict[int, float]:
    """Share of examples whose label is among the k classes of the largest scores: dict by k."""
    # A k that every class fits in is left out. Several workers must all call this.
    ranks, num_classes = _ranks_of(model, dataset)
    ks = [k for k in ks if k == 1 or k < num_classes]
    *right, count = sum_of_workers(np.array([*((ranks < k).sum() for k in ks), len(ranks)]))
    return {k: float(of_k / count) for k, of_k in zip(ks, right, strict=True)}


def correct_answers(model: keras.Model, dataset: tf.data.Dataset) -> np.ndarray:
    """Which examples have the largest score for their label: bool (example,), over all workers."""
    ranks, _ = _ranks_of(model, dataset)
    shard = current_shard()
    if not shard or shard_of_worker(dataset) is dataset:
        return ranks < 1
    ends = np.cumsum(of_every_worker(len(ranks)))
    correct = np.zeros(ends[-1], np.int64)
    correct[ends[shard.index] - len(ranks) : ends[shard.index]] = ranks < 1
    return sum_of_workers(correct).astype(bool)


def _ranks_of(model: keras.Model, dataset: tf.data.Dataset) -> tuple[np.ndarray, int]:
    """The rank of each label among the scores of this worker's part, and the number of classes."""
    require_tensorflow_or_jax("evaluation")
    if isinstance(dataset, tf.data.Dataset):
        spec = dataset.element_spec
        if not isinstance(spec, tuple) or len(spec) != 2:
            raise ValueError(
                f"Expected batches of (images, labels), without weights. Received: elements {spec}"
            )
        require_images_of(model, spec[0])
        require_finite_length(dataset)
        dataset = shard_of_worker(dataset)
    score = class_scores_of(model)
    batches = tqdm(dataset, "Evaluating", delay=2, disable=None, leave=False)
    ranks, count = [], 0
    for images, labels in explained_batches(batches):
        require_images_of(model, images)  # of a dataset of unknown static size
        require_finite_images(images, count)
        ranks.append(_ranks(score(images), labels))
        count += len(images)
    if not ranks:
        raise ValueError("Expected at least one batch of images. Received: none")
    return np.concatenate([rank for rank, _ in ranks]), ranks[0][1]


def class_scores_of(model: Callable) -> Callable:
    """A compiled function from a batch of images to a model's scores, of shape (example, class).

    The probability that a model with one sigmoid returns becomes those of both classes.
    """
    if not on_jax():
        score = tf.function(partial(infer, model), reduce_retracing=True)
    elif not isinstance(model, keras.Model):
        score = partial(infer, model)
    else:
        from vit_tf.distribute import jax_devices

        score = jax_devices.scorer(model)

    is_binary = cache(lambda: isinstance(model, keras.Model) and find_scores(model).is_binary)

    def score_classes(images: Any) -> Any:
        scores = score(images)
        require_scores(scores)
        if scores.shape[1] > 1:
            return scores
        if not is_binary():
            raise ValueError(
                "Expected scores of two or more classes, or a Keras model that ends in one "
                "sigmoid unit, the probability of the second class. Received: scores of shape "
                f"{tuple(scores.shape)}"
            )
        second = np.asarray(scores, np.float64)
        return np.concatenate([1 - second, second], axis=1)

    return score_classes


def majority_accuracy(
    train: tf.data.Dataset, test: tf.data.Dataset, num_classes: int, most: int = -1
) -> float:
    """Share of test labels equal to the commonest label of `most` training batches (-1 for all)."""
    require_finite_length(train.take(most))
    require_finite_length(test)
    counts = [np.zeros(num_classes, int) for _ in (train, test)]
    parts = shard_of_worker(train).take(most), shard_of_worker(test)
    for count, dataset in zip(counts, parts, strict=True):
        for labels in dataset.map(lambda _, labels: labels).as_numpy_iterator():
            # In place, and so in `counts` too.
            count += np.bincount(labels.ravel(), minlength=num_classes)
    of_train, of_test = sum_of_workers(np.array(counts))
    return float(of_test[np.argmax(of_train)] / of_test.sum())


def match_classes(
    own: Sequence[str] | None,
    num_classes: int,
    names: Sequence[str],
    allow_others: bool = False,
) -> np.ndarray:
    """The model's class of each class of the data: int32 array (class of the data,).

    With `allow_others`, data of other classes or another order are matched by name if the model has
    all of the names, otherwise by position. WordNet numbers stand for the names of ImageNet.
    """
    names = tuple(names)
    if own is not None and tuple(own) == imagenet_names():
        synsets = imagenet_synsets()
        own = synsets if set(names) <= set(synsets) else own
    same = len(names) == num_classes if own is None else tuple(own) == names
    if own is not None and not same and allow_others and set(names) <= set(own):
        return np.array([tuple(own).index(name) for name in names], np.int32)
    if same or allow_others:
        return np.arange(len(names), dtype=np.int32)
    if own is None:
        raise ValueError(
            f"The model has {num_classes} classes without names, so labels lie in [0, "
            f"{num_classes}). Received: data of {len(names)} classes, {format_list(names)}"
        )
    others = [name for name in names if name not in own]
    difference = (
        f"of which {format_list(others)} are not among them"
        if others
        else "not all, or not in order"
    )
    raise ValueError(
        f"Expected data of the {len(own)} classes of the model, {format_list(own)}. "
        f"Received: data of {len(names)} classes, {format_list(names)}, {difference}"
    )


def require_classes_of(
    own: Sequence[str] | None, num_classes: int, dataset: tf.data.Dataset
) -> None:
    """Raises a `ValueError` for data with names of other classes than a model's, as `evaluate`."""
    names = getattr(dataset, "class_names", None)
    if not names:
        return
    try:
        match_classes(own, num_classes, names)
    except ValueError as error:
        raise ValueError(
            f"{error}; labels that number the model's classes can be passed as (images, labels)"
        ) from error


def describe_class_order(own: Sequence[str] | None, names: Sequence[str]) -> str:
    """What a comparison of labels with scores assumes of a model without class names; else ""."""
    if own is not None:
        return ""
    return (
        f"classes: {format_list(names)}, in the order of the data, since the model stores no class "
        "names; if it has them in another order, list them in that order in a file for --classes"
    )


def require_scores(scores: Any) -> None:
    """Raises a `ValueError` unless what a model returns is one tensor of shape (example, class)."""
    shape = getattr(scores, "shape", None)
    if shape is not None and len(shape) == 2:
        return
    received = f"a {type(scores).__name__} of {len(scores)} outputs"
    if shape is not None:
        received = f"a tensor of shape {tuple(shape)}"
    raise ValueError(
        "Expected a model that returns one tensor of scores of shape (example, class), such as "
        "keras.Model(model.input, model.output['logits']), or model.output[0]. "
        f"Received: {received}"
    )


def _ranks(scores: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, int]:
    """How many classes come before the label's, an array of shape (example,), and of how many."""
    require_scores(scores)
    scores, labels = np.asarray(scores, np.float64), np.asarray(labels)
    if not np.isfinite(scores).all():
        raise ValueError(
            "Expected finite scores of shape (example, class). "
            f"Received: shape {scores.shape}, {np.isnan(scores).sum()} of them NaN"
        )
    num_classes = scores.shape[1]
    require_labels(labels, num_classes, "test", count=len(scores))
    own_scores = np.take_along_axis(scores, labels[:, None], axis=1)
    before = np.arange(num_classes) < labels[:, None]
    return ((scores > own_scores) | ((scores == own_scores) & before)).sum(axis=1), num_classes
