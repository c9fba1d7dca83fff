"""The classes that a model predicts for images, most probable first."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, ScoreKind
from vit_tf.features.layers import Detail

from ..engine.class_scores import class_probabilities, require_scores
from ..engine.measurements import measurement
from ..engine.preparation import ImagesLike, prepare, score_layer
from ..engine.results import dataset_of, provenance, require_finite, variable
from ..engine.stream import Statistic, evaluate, row_statistic
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

    For a model that ends in sigmoids of several classes, each class has a probability of its own.
    For a model that ends in one sigmoid, the classes are 0 and 1.

    Args:
        model: a model, or features in which the tap named by `scores` has the shape (example,
            class).
        images: as in `vit_tf.analysis`; a photograph is one image.
        top: largest number of classes to return for each image.
        scores: name of the tap that holds the scores before a softmax.

    Returns:
        Dataset with variables of shape (example, rank), from the most probable class on.

        * `probability`: the probability of the class.
        * `class_number`: its position among the scores.
        * `class_name`: its name, if class names are known.

    Raises:
        ValueError: if there are no scores of classes, if `top` is below 1, or if scores are not
            finite.

    Examples:
        >>> predicted = vit_tf.predict(vit, images, top=3)
        >>> predicted.probability.shape
        (24, 3)
        >>> table = predicted.to_dataframe()

    See also:
        `plots.plot_predict`, `mistakes`, `grad_cam`; page guides/one-image.md.
    """
    features, images = prepare(
        model, images, kind="scores", layers=layers, detail=detail, scores=scores, keep_order=True
    )
    scores = score_layer(features, scores)
    if not isinstance(top, int) or top < 1:
        raise ValueError(f"Expected top to be an integer of at least 1. Received: {top=}")

    kind = features.facts.score_kind
    statistic = _probability_statistic(features, scores=scores, kind=kind)
    probabilities = evaluate(statistic, images, description="predictions", checked=(features,))
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
    facts = provenance(features, len(order), 1, estimator=f"{kind} of the scores", scores=scores)
    return dataset_of(variables, facts)


@reusable
def _probability_statistic(
    features: Features, *, scores: str, kind: ScoreKind
) -> Statistic[np.ndarray]:
    """`Statistic` over images with the probabilities of all classes of each."""

    def step(batch: tf.Tensor) -> tf.Tensor:
        taps = features(tf.cast(batch, tf.float32))
        require_scores(taps, scores, [0])
        return class_probabilities(tf.cast(taps[scores], tf.float32), kind)

    return row_statistic(step)
