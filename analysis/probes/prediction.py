"""The classes that a model predicts for images, and its most confident mistakes."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.data.labels import batch_labels, require_counted
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.class_scores import class_probabilities, require_scores
from ..engine.measurements import labels_after_images, measurement
from ..engine.pictures import THUMBNAIL, as_pictures, first_ranked, merge_ranked, picture_variable
from ..engine.preparation import ImagesLike, prepare_scored
from ..engine.results import as_counts, dataset_of, facts_of, provenance, require_finite, variable
from ..engine.stream import Statistic, evaluate, mean_per_batch, row_statistic
from ..engine.traces import reusable


@measurement("scores")
def predict(
    model: ModelLike,
    images: ImagesLike,
    top: int = 5,
    scores: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """The `top` most probable classes of each image.

        probability_c(x) = softmax(scores(x))_c

    If a model ends in sigmoids of several classes, each class has a probability of its own. If a
    model ends in one sigmoid, the classes are 0 and 1.

    Args:
        model: a model, or features in which the layer `scores` has the shape (example, class).
        images: as in `vit_tf.analysis`; a photograph is one image.
        top: largest number of classes to return for each image.
        scores: name of the layer that returns the class scores before a softmax. By default, it is
            found in the model.

    Returns:
        Dataset with variables of shape (example, rank), from the most probable class on.

        * `probability`: the probability of the class.
        * `class_number`: the position of the class among the scores.
        * `class_name`: the name of the class, if class names are known.

    Raises:
        ValueError: if there are no class scores, if `top` is below 1, or if scores are not
            finite.

    Examples:
        >>> predicted = vit_tf.predict(vit, images, top=3)
        >>> predicted.probability.shape
        (24, 3)
        >>> table = predicted.to_dataframe()

    See also:
        `plots.plot_predict`, `mistakes`, `grad_cam`; page guides/one-image.md.
    """
    features, images, scores = prepare_scored(
        model, images, scores, kind="scores", layers=layers, detail=detail, keep_order=True
    )
    if not isinstance(top, int) or top < 1:
        raise ValueError(f"Expected top to be an integer of at least 1. Received: {top=}")

    probabilities = evaluate(
        _probability_statistic(features, scores), images, features, description="predictions"
    )
    require_finite("probabilities", [probabilities], [scores])
    # The most probable classes come first; of equal ones, the first.
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :top]
    dims = ("example", "rank")
    highest = np.take_along_axis(probabilities, order, axis=1)
    variables = {
        "probability": variable(dims, highest, "predicted probability"),
        "class_number": variable(dims, order, "predicted class"),
    }
    if class_names := features.facts.class_names:
        names = np.array([str(name) for name in class_names])
        variables["class_name"] = variable(dims, names[order], "name of the predicted class")
    return dataset_of(
        variables,
        provenance(
            features,
            len(order),
            1,
            estimator=f"{features.facts.score_kind} of the scores",
            scores=scores,
        ),
    )


@reusable
def _probability_statistic(features: Features, scores: str) -> Statistic[np.ndarray]:
    """`Statistic` over images with the probabilities of all classes of each."""

    def step(images: tf.Tensor, taps: Taps) -> tf.Tensor:
        require_scores(taps, scores, [0, 1])  # of a single score, the first is always predicted
        return class_probabilities(tf.cast(taps[scores], tf.float32), features.facts.score_kind)

    return row_statistic(step)


@measurement("scores")
@labels_after_images
def mistakes(
    model: ModelLike,
    images: ImagesLike,
    k: int = 12,
    scores: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """The most confident wrong predictions of a model, with their images.

        probability(x) = max over classes c of softmax(scores(x))_c

    A wrong prediction with a high probability indicates a class that the model confuses, or a wrong
    label (Northcutt et al. 2021, https://arxiv.org/abs/2103.14749).

    Args:
        model: a model, or features in which the layer `scores` has the shape (example, class).
        images: images with labels, in the same form as `train` in `vit_tf.analysis`.
        k: largest number of mistakes to return.
        scores: name of the layer that returns the class scores before a softmax. By default, it is
            found in the model.

    Returns:
        Dataset with variables of shape (rank,), ordered by probability. If probabilities are equal,
        the earlier image comes first. The attribute `accuracy` is the accuracy of the model, and
        the attribute `mistakes` is the number of all its mistakes. If there are fewer than `k`
        mistakes, all mistakes are returned.

        * `probability` and `label_probability`: the probability of the predicted class and of the
          true class.
        * `predicted` and `label`: the indices of the predicted class and of the true class.
        * `predicted_name` and `label_name`: the names of these classes, if class names are known.
        * `position`: the index of the image.
        * `picture`, of shape (rank, pixel_row, pixel_column, colour): the image as 8-bit RGB, with
          at most 112 pixels a side.

    Raises:
        ValueError: if images have no labels, if labels are not classes, or if `k` is below 1.
        ValueError: if the model has no scores of at least two classes, if scores are not finite, or
            if the model classifies all images correctly.

    Examples:
        >>> analysis.mistakes(vit, (images, labels), k=4).probability.dims
        ('rank',)
        >>> analysis.mistakes(vit, (images, labels)).attrs["mistakes"] > 0
        True

    See also:
        `plots.plot_mistakes`, `neighbours`, `lens_accuracy`; page measurements/probes/mistakes.md.
    """
    features, images, scores = prepare_scored(
        model,
        images,
        scores,
        kind="scores",
        layers=layers,
        detail=detail,
        keep_order=True,
        labelled=True,
    )
    as_counts(k)
    totals = evaluate(
        _mistakes_statistic(features, scores, k), images, features, description="mistakes"
    )
    rows, examples = totals["rows"], int(totals["examples"])
    require_counted(totals["label_counts"], examples, mean_per_batch(totals, "num_classes"))
    require_finite("probabilities", [rows["label_probability"]], [scores])
    num_wrong = int((rows["keys"] >= 0).sum())
    if not num_wrong:
        raise ValueError(
            f"The model has no mistakes to show: it classifies all {examples} images correctly."
        )
    # The images that are wrong with the highest probability come first.
    order = np.argsort(-rows["keys"], kind="stable")[: min(k, num_wrong)]
    pictures = totals["merged"]["mistakes"]["pictures"][0, : len(order)]
    words = {
        "probability": "predicted probability",
        "label_probability": "probability of the right class",
        "predicted": "predicted class",
        "label": "right class",
    }
    ranked = {name: rows[name][order] for name in ("label_probability", "predicted", "label")}
    ranked["probability"] = rows["keys"][order]
    variables = {name: variable(("rank",), ranked[name], text) for name, text in words.items()}
    variables["position"] = variable(("rank",), order, "number of the image")
    variables["picture"] = picture_variable(("rank",), pictures, "image")
    if class_names := features.facts.class_names or getattr(images, "class_names", None):
        for name in ("predicted", "label"):
            names = np.array([str(class_names[number]) for number in ranked[name]], str)
            variables[f"{name}_name"] = variable(("rank",), names, f"name of the {words[name]}")
    return dataset_of(
        variables,
        facts_of(
            features,
            totals,
            f"{features.facts.score_kind} of the scores, float64",
            accuracy=1 - num_wrong / examples,
            mistakes=num_wrong,
        ),
    )


@reusable
def _mistakes_statistic(features: Features, scores: str, k: int) -> Statistic[Any]:
    """`Statistic` over images and labels with the predictions and the pictures of mistakes."""

    def step(images: tf.Tensor, labels: tf.Tensor, taps: Taps) -> dict[str, Any]:
        # With a single class, no prediction is wrong: classes 0 and 1 have to exist.
        num_classes = require_scores(taps, scores, [0, 1])
        labels, label_counts = batch_labels(labels, num_classes)
        probabilities = class_probabilities(
            tf.cast(taps[scores], tf.float64), features.facts.score_kind
        )
        predicted = tf.argmax(probabilities, axis=-1)
        is_wrong = predicted != labels
        largest = tf.reduce_max(probabilities, axis=-1)
        # Correct predictions rank after all others.
        keys = tf.where(is_wrong, largest, tf.constant(-1.0, tf.float64))
        label_probability = tf.gather(
            probabilities, tf.clip_by_value(labels, 0, num_classes - 1), axis=1, batch_dims=1
        )
        pictures = as_pictures(images, features, THUMBNAIL)
        return {
            "rows": {
                "keys": keys,
                "predicted": predicted,
                "label": labels,
                "label_probability": label_probability,
            },
            "merged": {"mistakes": first_ranked(keys[None], pictures, k)},  # a single ranking
            "label_counts": label_counts,
            "num_classes": num_classes,
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    return Statistic(step, lambda totals: totals, with_labels=True, merge=merge_ranked)
