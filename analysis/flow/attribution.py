"""Attribution of a class's score by gradients: to pixels (SmoothGrad) and to maps (Grad-CAM)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.common.names import format_list
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail
from vit_tf.features.preprocessed import to_own_units

from ..engine.class_scores import ClassesLike, class_coords, class_gradients, class_positions
from ..engine.measurements import measurement
from ..engine.pictures import with_pictures
from ..engine.preparation import ImagesLike, prepare, score_layer
from ..engine.results import array_of, provenance, require_finite
from ..engine.stream import Statistic, evaluate, row_statistic
from ..engine.traces import reusable

PIXELS_AT_ONCE = 2**18  # of noisy images that share a batch


@measurement("scores")
def input_gradients(
    model: ModelLike,
    images: ImagesLike,
    classes: ClassesLike = None,
    samples: int = 25,
    noise: float = 0.1,
    seed: int = 0,
    scores: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Gradient of class scores with respect to the pixels, averaged over noisy copies of each
    image.

        gradient = mean over n samples of d y_c / d x at x + e,  e ~ N(0, sigma^2)

    Here, y_c is the score of class c, and sigma is `noise` times (max x - min x) of each image x
    (Smilkov et al. 2017, "SmoothGrad", https://arxiv.org/abs/1706.03825, section 2). `noise=0` with
    `samples=1` gives the plain gradient (Simonyan et al. 2013, https://arxiv.org/abs/1312.6034,
    section 3).

    Args:
        model: a model, or a callable that maps images to taps through which gradients flow. The
            taps include the scores.
        images: as in `vit_tf.analysis`.
        classes: class names, or positions among the scores. By default, the predicted classes of
            the images, at most 5.
        samples: number n of noisy copies of each image, at least 1. All images of a batch get the
            same noise pattern, scaled by the sigma of the image.
        noise: standard deviation of the noise, relative to the range of values of an image.
        seed: seed of the noise.
        scores: name of the tap that holds the scores of shape (example, class).

    Returns:
        DataArray of shape (example, class, row, column, channel), the change of the score per unit
        of pixel value. The coordinate `class_name` holds the names of the classes, if they are
        known.

    Raises:
        ValueError: if the classes or the scores do not exist, if `samples` is below 1 or `noise` is
            negative, or if gradients are not finite.

    Examples:
        >>> gradients = analysis.input_gradients(vit, images[:2], classes=[0], samples=2)
        >>> gradients.shape
        (2, 1, 32, 32, 3)

    See also:
        `plots.plot_input_gradients`, `grad_cam`; page guides/one-image.md.
    """
    features, images = prepare(
        model, images, kind="scores", layers=layers, detail=detail, scores=scores, keep_order=True
    )
    scores = score_layer(features, scores)
    classes = class_positions(features, images, classes, scores)
    require_samples(samples, noise)
    classes = [int(position) for position in classes]

    statistic = _gradient_statistic(
        features, classes, samples=samples, noise=noise, seed=seed, scores=scores
    )
    # One row for each image: the gradients of all classes.
    rows = evaluate(statistic, images, description="input gradients", checked=(features,))
    require_finite("input gradients", np.moveaxis(rows, 1, 0), map(str, classes))
    estimator = "mean over noisy images" if noise else "plain gradient"
    facts = provenance(
        features,
        len(rows),
        1,
        estimator=estimator,
        samples=samples,
        noise=noise,
        seed=seed,
        scores=scores,
    )
    dims = ("example", "class", "row", "column", "channel")
    words = "gradient of the score", "score per unit of the image"
    coords = class_coords(features, classes)
    result = array_of("input_gradients", rows, dims, words, facts, **coords)
    return with_pictures(result, features, images)


@reusable
def _gradient_statistic(
    features: Features,
    classes: Sequence[int],
    *,
    samples: int,
    noise: float,
    seed: int,
    scores: str,
) -> Statistic[np.ndarray]:
    """`Statistic` over images with the `input_gradients` of each."""

    def step(batch: tf.Tensor) -> tf.Tensor:
        own_features, batch, _ = to_own_units(features, tf.cast(batch, tf.float32))
        axes = (1, 2, 3)
        spread = tf.reduce_max(batch, axes, True) - tf.reduce_min(batch, axes, True)
        sigma = tf.cast(noise, tf.float32) * spread

        # As many noisy copies as fit share a pass. `PIXELS_AT_ONCE` stands for an unknown number of
        # examples: more than fit, so that each pass has one copy.
        examples, height, width = batch.shape[:3]
        pixels = len(classes) * height * width * (examples or PIXELS_AT_ONCE)
        divisors = [count for count in range(1, samples + 1) if not samples % count]
        together = max(
            count for count in divisors if count == 1 or count * pixels <= PIXELS_AT_ONCE
        )

        def add(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            drawn = [
                tf.random.stateless_normal(batch.shape[1:], (seed, index + number))
                for number in range(together)
            ]
            noisy = batch + sigma * tf.stack(drawn)[:, None]  # (sample, example, ...)
            noisy = tf.reshape(noisy, (-1, *batch.shape[1:]))
            pairs = class_gradients(
                own_features, noisy, classes, scores, sources=lambda copies, _: {"images": copies}
            )
            _, gradients = pairs["images"]
            gradients = tf.reshape(gradients, (together, -1, *gradients.shape[1:]))
            return index + together, total + tf.reduce_sum(gradients, axis=0)

        shape = tf.concat([tf.shape(batch)[:1], [len(classes)], tf.shape(batch)[1:]], axis=0)
        start = tf.ensure_shape(tf.zeros(shape), (None, len(classes), *batch.shape[1:]))
        _, total = tf.while_loop(
            lambda index, _: index < samples, add, (0, start), parallel_iterations=1
        )
        return total / samples

    return row_statistic(step)


def require_samples(samples: int, noise: float) -> None:
    """Raises a `ValueError` unless there is at least one noisy image and noise is not negative."""
    if not (isinstance(samples, int) and samples >= 1 and noise >= 0):
        raise ValueError(
            "Expected samples to be an integer of at least 1 and noise at least 0. "
            f"Received: samples={samples!r}, noise={noise!r}"
        )


@measurement("class_maps")
def grad_cam(
    model: ModelLike,
    images: ImagesLike,
    classes: ClassesLike = None,
    scores: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Grad-CAM of every feature map: gradient-weighted class activation, enlarged to the image.

        cam_c(p) = max(0, sum_k w_k A_k(p)),  w_k = mean over positions p of d y_c / d A_k

    Here, A_k is channel k of the map of a layer, and y_c is the score of class c (Selvaraju et al.
    2017, https://arxiv.org/abs/1610.02391, equations 1 and 2). The result is enlarged bilinearly to
    the size of the image.

    Args:
        model: a model, or a callable that maps images to taps through which gradients flow. One
            tap holds the scores. The other taps hold feature maps of shape (example, row, column,
            channel). An example is `vit_tf.submodel(bit, "stage*/unit*/sum", "logits")`.
        images: as in `vit_tf.analysis`.
        classes: class names, or positions among the scores. By default, the predicted classes of
            the images, at most 5.
        scores: name of the tap that holds the scores of shape (example, class).

    Returns:
        DataArray of shape (example, class, layer, row, column), with one value per pixel. Values
        are comparable between positions of a layer, but not between layers. The coordinate
        `class_name` holds the names of the classes, if they are known.

    Raises:
        ValueError: if the classes, scores or maps do not exist, if TensorFlow finds that the scores
            do not depend on a map, or if values are not finite.

    Examples:
        >>> maps = analysis.grad_cam(bit, images[:2], classes=[0])
        >>> maps.dims
        ('example', 'class', 'layer', 'row', 'column')
        >>> ax = analysis.plot(maps)

    See also:
        `plots.plot_grad_cam`, `gradient_attention`, `input_gradients`; page guides/one-image.md.
    """
    features, images = prepare(
        model,
        images,
        kind="class_maps",
        layers=layers,
        detail=detail,
        scores=scores,
        keep_order=True,
    )
    scores = score_layer(features, scores)
    classes = class_positions(features, images, classes, scores)
    statistic = _grad_cam_statistic(features, list(map(int, classes)), scores)
    # One map for each image, class and layer.
    maps = evaluate(statistic, images, description="Grad-CAM", checked=(features,))
    layers, rows = list(maps), np.stack(list(maps.values()), axis=2)
    require_finite("Grad-CAM", np.moveaxis(rows, 2, 0), layers)
    estimator = "positive sum of channels, weighted by their mean gradient"
    facts = provenance(features, len(rows), 1, estimator=estimator, scores=scores)
    dims, words = ("example", "class", "layer", "row", "column"), ("Grad-CAM", "score")
    coords = class_coords(features, classes) | {"layer": layers}
    result = array_of("grad_cam", rows, dims, words, facts, **coords)
    return with_pictures(result, features, images)


@reusable
def _grad_cam_statistic(
    features: Features, classes: Sequence[int], scores: str
) -> Statistic[dict[str, np.ndarray]]:
    """`Statistic` over images with the enlarged maps (example, class, row, column) by layer."""

    def step(batch: tf.Tensor) -> dict[str, tf.Tensor]:
        def require_maps(_: tf.Tensor, taps: Taps) -> dict[str, tf.Tensor]:
            held = {tap: x for tap, x in taps.items() if tap != scores}
            other = [tap for tap, x in held.items() if x.shape.rank != 4]
            if other or not held:
                raise ValueError(
                    "Expected maps of shape (example, row, column, channel). "
                    f"Received: {format_list(other) if other else 'none'}"
                )
            return held

        pairs = class_gradients(features, batch, classes, scores, require_maps)
        maps = {tap: tf.transpose(class_map(*pair), (0, 2, 3, 1)) for tap, pair in pairs.items()}
        large = {tap: tf.image.resize(x, batch.shape[1:3]) for tap, x in maps.items()}
        return {tap: tf.transpose(x, (0, 3, 1, 2)) for tap, x in large.items()}

    return row_statistic(step)


def class_map(maps: tf.Tensor, gradients: tf.Tensor) -> tf.Tensor:
    """Grad-CAM, of shape (..., row, column), of maps and gradients with channels at the end."""
    maps, gradients = tf.cast(maps, tf.float32), tf.cast(gradients, tf.float32)
    weights = tf.reduce_mean(gradients, axis=(-3, -2), keepdims=True)
    return tf.nn.relu(tf.reduce_sum(weights * maps, axis=-1))
