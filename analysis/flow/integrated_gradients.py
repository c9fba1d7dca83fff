"""Attribution of a class's score to pixels by gradients along a path: integrated gradients."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features
from vit_tf.features.layers import Detail
from vit_tf.features.preprocessed import to_own_units

from ..engine.class_scores import ClassesLike, class_coords, class_gradients, class_positions
from ..engine.measurements import measurement
from ..engine.pictures import with_pictures
from ..engine.preparation import ImagesLike, prepare, score_layer
from ..engine.results import array_of, provenance, require_finite
from ..engine.stream import Statistic, evaluate, row_statistic
from ..engine.traces import reusable


@measurement("scores")
def integrated_gradients(
    model: ModelLike,
    images: ImagesLike,
    classes: ClassesLike = None,
    steps: int = 50,
    baseline: float = 0.0,
    scores: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Integrated gradients: how much each pixel adds to a class score, compared with a baseline.

        attribution_i = (x_i - b_i) * integral over a in [0, 1] of d y_c / d x_i at b + a (x - b)

    Here, y_c is the score of class c, x the image and b the baseline (Sundararajan et al. 2017,
    https://arxiv.org/abs/1703.01365, equation 1). The attributions of an image add up to y_c(x) -
    y_c(b) (its proposition 1). The integral is computed by Gauss-Legendre quadrature, as in captum.

    Args:
        model: a model, or a callable that maps images to taps through which gradients flow. The
            taps include the scores.
        images: as in `vit_tf.analysis`.
        classes: class names, or positions among the scores. By default, the predicted classes of
            the images, at most 5.
        steps: number of points of the quadrature, at least 1.
        baseline: pixel value of the constant baseline image, in the units of the model's input. If
            the preprocessing subtracts the mean colour, 0 is the mean colour.
        scores: name of the tap that holds the scores of shape (example, class).

    Returns:
        DataArray of shape (example, class, row, column, channel), in units of the score. The
        coordinate `class_name` holds the names of the classes, if they are known.

    Raises:
        ValueError: if the classes or the scores do not exist, if `steps` is below 1, or if
            gradients are not finite.

    Examples:
        >>> attributions = analysis.integrated_gradients(vit, images[:2], classes=[0], steps=4)
        >>> attributions.shape
        (2, 1, 32, 32, 3)
        >>> ax = analysis.plot(attributions)

    See also:
        `plots.plot_integrated_gradients`, `input_gradients`, `grad_cam`; page guides/one-image.md.
    """
    features, images = prepare(
        model, images, kind="scores", layers=layers, detail=detail, scores=scores, keep_order=True
    )
    scores = score_layer(features, scores)
    classes = class_positions(features, images, classes, scores)
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"Expected steps to be an integer of at least 1. Received: {steps=}")
    classes = [int(position) for position in classes]
    statistic = _path_statistic(features, classes, steps=steps, baseline=baseline, scores=scores)
    # One row for each image: the integrals of all classes.
    rows = evaluate(statistic, images, description="integrated gradients", checked=(features,))
    require_finite("integrated gradients", np.moveaxis(rows, 1, 0), map(str, classes))
    facts = provenance(
        features,
        len(rows),
        1,
        estimator="Gauss-Legendre quadrature",
        steps=steps,
        baseline=baseline,
        scores=scores,
    )
    dims = ("example", "class", "row", "column", "channel")
    words, coords = ("integrated gradients", "score"), class_coords(features, classes)
    result = array_of("integrated_gradients", rows, dims, words, facts, **coords)
    return with_pictures(result, features, images)


@reusable
def _path_statistic(
    features: Features, classes: Sequence[int], *, steps: int, baseline: float, scores: str
) -> Statistic[np.ndarray]:
    """`Statistic` over images with the `integrated_gradients` of each."""
    # Points and weights on [0, 1]; NumPy's are those on [-1, 1].
    points, weights = (x.astype("float32") for x in np.polynomial.legendre.leggauss(steps))
    points, weights = (points + 1) / 2, weights / 2

    def step(batch: tf.Tensor) -> tf.Tensor:
        own_features, batch, _ = to_own_units(features, tf.cast(batch, tf.float32))
        difference = batch - baseline

        def add(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            on_path = baseline + tf.gather(points, index) * difference
            pairs = class_gradients(
                own_features, on_path, classes, scores, sources=lambda copies, _: {"images": copies}
            )
            _, gradients = pairs["images"]
            return index + 1, total + tf.gather(weights, index) * gradients

        # One batch of images is on the path at a time, so that memory does not grow with `steps`.
        shape = tf.concat([tf.shape(batch)[:1], [len(classes)], tf.shape(batch)[1:]], axis=0)
        start = tf.ensure_shape(tf.zeros(shape), (None, len(classes), *batch.shape[1:]))
        _, mean_gradients = tf.while_loop(
            lambda index, _: index < steps, add, (0, start), parallel_iterations=1
        )
        return difference[:, None] * mean_gradients

    return row_statistic(step)
