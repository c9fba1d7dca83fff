"""Shape bias: does a classifier decide by shape or by texture where the two disagree?"""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.data.shapes import KINDS
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.class_scores import require_scores
from ..engine.measurements import measurement, statistic_of
from ..engine.preparation import ImagesLike, prepare_scored
from ..engine.results import dataset_of, facts_of, require_finite, variable
from ..engine.stream import Statistic, Totals, evaluate, mean_per_batch
from ..statistics.intervals import wilson

DECISIONS = SHAPE, TEXTURE, OTHER = ("shape", "texture", "other")


@measurement("scores")
def shape_bias(
    model: ModelLike,
    images: ImagesLike,
    scores: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Shape bias: share of decisions for the shape if shape and texture of an image disagree.

        shape_bias = shape decisions / (shape decisions + texture decisions)

    The images show the shape of one class with the texture of another class (Geirhos et al. 2019,
    https://arxiv.org/abs/1811.12231). The bias is 1 for a model that classifies by the silhouette,
    and 0 for a model that classifies by the texture. A model can learn either bias only if both
    shape and texture indicated the class in its training data, as in
    `vit_tf.data.load("textured-shapes")`. A model that was trained on `"shapes"`, where colours are
    random, can only use the shape.

    Args:
        model: a model, or a callable that maps images to a dict that contains the class scores.
        images: pair (images, labels), or a batched `tf.data.Dataset` of such pairs, as
            `vit_tf.data.load_cue_conflict` returns them. Labels have shape (example, 2), for the
            class of the shape and the class of the texture.
        scores: name of the layer that returns the class scores, of shape (example, class). By
            default, it is found in the model. If the class names of the model are the kinds of the
            synthetic shapes, labels are matched to classes by name, so the order of the classes
            does not matter.

    Returns:
        Dataset with seven variables. A bias is NaN if no decision is for the shape or the texture.

        * `shape_bias`, a scalar: the shape bias over all images.
        * `low` and `high`, scalars: the ends of the 95 % CI of `shape_bias` (Wilson 1927).
        * `class_shape_bias`, of shape (class,): the shape bias over the images whose shape is of
          the class.
        * `class_low` and `class_high`, of shape (class,): the ends of the 95 % CI of
          `class_shape_bias`.
        * `decisions`, of shape (decision,): the shares of images that are classified as the class
          of the shape, as the class of the texture, and as another class.

    Raises:
        ValueError: if labels do not have the shape (example, 2), are not classes, or give the shape
            and the texture the same class, or if scores are not finite.

    Examples:
        >>> conflicts = images, np.stack([labels, (labels + 1) % 3], axis=1)
        >>> bias = analysis.shape_bias(vit, conflicts)
        >>> bias.decision.values.tolist()
        ['shape', 'texture', 'other']
        >>> ax = analysis.plot(bias)

    See also:
        `plots.plot_shape_bias`, `robustness`, `vit_tf.data.load_cue_conflict`; page
        measurements/flow/shape-bias.md.
    """
    features, batches, scores = prepare_scored(
        model, images, scores, kind="scores", layers=layers, detail=detail
    )
    return evaluate(
        shape_bias_statistic(features, scores), batches, features, description="shape bias"
    )


@statistic_of(shape_bias)
def shape_bias_statistic(features: Features, scores: str = "logits") -> Statistic[xr.Dataset]:
    """The `Statistic` of `shape_bias`."""

    def step(images: tf.Tensor, labels: tf.Tensor, taps: Taps) -> dict[str, Any]:
        if labels.shape.rank != 2 or labels.shape[1] != 2 or not labels.dtype.is_integer:
            raise ValueError(
                "Expected integer labels of shape (example, 2): the class of the shape and "
                f"the class of the texture. Received: {labels.dtype.name} of shape "
                f"{tuple(labels.shape)}"
            )
        values = tf.cast(taps[scores], tf.float32)
        return {
            "rows": {
                "predicted": tf.argmax(values, axis=-1),
                "labels": labels,
                "is_finite": tf.reduce_all(tf.math.is_finite(values), axis=-1),
            },
            "num_classes": require_scores(taps, scores, [0]),
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.Dataset:
        rows, num_classes = totals["rows"], mean_per_batch(totals, "num_classes")
        require_finite("the shape bias", [np.where(rows["is_finite"], 0, np.nan)], [scores])
        labels = rows["labels"].astype(np.int64)
        names = list(features.facts.class_names or ())[:num_classes]
        if len(names) != num_classes:  # classes without names are numbered
            names = list(map(str, range(num_classes)))
        require_pairs(labels, num_classes)
        # Labels of synthetic shapes are numbers of kinds, which a model may have in another order.
        if sorted(names) == sorted(KINDS):
            labels = np.array([names.index(kind) for kind in KINDS])[labels]
        # Decisions for the shape or the texture, over all images and for each class of shapes.
        is_shape, is_texture = (rows["predicted"] == labels[:, side] for side in (0, 1))
        of_classes = [labels[:, 0] == number for number in range(num_classes)]
        bias_by_class = np.array(
            [bias_with_interval(is_shape[images], is_texture[images]) for images in of_classes]
        )
        value, low, high = bias_with_interval(is_shape, is_texture)
        words = "share of shape decisions among those for shape or texture"
        ends = {"low": "lower end of its 95 % CI", "high": "upper end of its 95 % CI"}
        variables = {
            "shape_bias": variable((), value, words),
            "low": variable((), low, ends["low"]),
            "high": variable((), high, ends["high"]),
            "class_shape_bias": variable(("class",), bias_by_class[:, 0], words),
            "class_low": variable(("class",), bias_by_class[:, 1], ends["low"]),
            "class_high": variable(("class",), bias_by_class[:, 2], ends["high"]),
            "decisions": variable(
                ("decision",),
                [is_shape.mean(), is_texture.mean(), 1 - (is_shape | is_texture).mean()],
                "share of images",
            ),
        }
        return dataset_of(
            variables,
            facts_of(features, totals, "Wilson's interval over decisions", scores=scores),
            decision=list(DECISIONS),
            **{"class": names},
        )

    return Statistic(step, finish, with_labels=True)


def require_pairs(labels: np.ndarray, num_classes: int) -> None:
    """Raises a `ValueError` for pairs of classes (example, 2) that are out of range or equal."""
    if labels.min() < 0 or labels.max() >= num_classes:
        raise ValueError(
            f"Expected classes from 0 to {num_classes - 1}. "
            f"Received: {labels.min()} to {labels.max()}"
        )
    if equal := int((labels[:, 0] == labels[:, 1]).sum()):
        raise ValueError(
            "The shape and the texture of an image must be of different classes. Received: "
            f"{equal} images with one class"
        )


def bias_with_interval(is_shape: np.ndarray, is_texture: np.ndarray) -> tuple[float, float, float]:
    """Share of shape decisions among those for shape or texture, and both ends of its 95 % CI."""
    shape, both = int(is_shape.sum()), int((is_shape | is_texture).sum())
    if not both:
        return np.nan, np.nan, np.nan
    return shape / both, *wilson(shape, both)
