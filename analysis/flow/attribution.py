"""Attribution of a class's score by gradients: to the pixels of images, and to maps (Grad-CAM)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

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
from ..engine.pictures import require_pictures, with_pictures
from ..engine.preparation import ImagesLike, prepare_scored
from ..engine.results import array_of, provenance, require_finite, stack_layers
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
        model: a model, or a callable that maps images to a dict from layer name to tensor, through
            which gradients flow. The dict includes the class scores.
        images: as in `vit_tf.analysis`.
        classes: class names, or positions among the scores. By default, the predicted classes of
            the images, at most 5.
        samples: number n of noisy copies of each image, at least 1. All images of a batch get the
            same noise pattern, scaled by the sigma of the image.
        noise: standard deviation of the noise, relative to the range of values of an image.
        seed: seed of the noise.
        scores: name of the layer that returns the class scores, of shape (example, class). By
            default, it is found in the model.

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
    features, images, scores = prepare_scored(
        model, images, scores, kind="scores", layers=layers, detail=detail, keep_order=True
    )
    classes = class_positions(features, images, classes, scores)
    require_samples(samples, noise)
    return _attribute_to_pixels(
        features,
        images,
        _noise_statistic(features, classes, samples=samples, noise=noise, seed=seed, scores=scores),
        classes,
        name="input gradients",
        words=("gradient of the score", "score per unit of the image"),
        estimator="mean over noisy images" if noise else "plain gradient",
        samples=samples,
        noise=noise,
        seed=seed,
        scores=scores,
    )


@reusable
def _noise_statistic(
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

        def noisy_copies(index: tf.Tensor) -> tf.Tensor:
            drawn = [
                tf.random.stateless_normal(batch.shape[1:], (seed, index * together + number))
                for number in range(together)
            ]
            noisy = batch + sigma * tf.stack(drawn)[:, None]  # (sample, example, ...)
            return tf.reshape(noisy, (-1, *batch.shape[1:]))

        weights = np.ones(samples // together, np.float32)
        return _sum_gradients(own_features, batch, classes, scores, noisy_copies, weights) / samples

    return row_statistic(step)


def require_samples(samples: int, noise: float) -> None:
    """Raises a `ValueError` unless there is at least one noisy image and noise is not negative."""
    if not (isinstance(samples, int) and samples >= 1 and noise >= 0):
        raise ValueError(
            "Expected samples to be an integer of at least 1 and noise at least 0. "
            f"Received: samples={samples!r}, noise={noise!r}"
        )


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
    y_c(b) (proposition 1 of the paper). The integral is computed by Gauss-Legendre quadrature, as
    in captum.

    Args:
        model: a model, or a callable that maps images to a dict from layer name to tensor, through
            which gradients flow. The dict includes the class scores.
        images: as in `vit_tf.analysis`.
        classes: class names, or positions among the scores. By default, the predicted classes of
            the images, at most 5.
        steps: number of points of the quadrature, at least 1.
        baseline: pixel value of the constant baseline image, in the units of the model's input. If
            the preprocessing subtracts the mean colour, 0 is the mean colour.
        scores: name of the layer that returns the class scores, of shape (example, class). By
            default, it is found in the model.

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
    features, images, scores = prepare_scored(
        model, images, scores, kind="scores", layers=layers, detail=detail, keep_order=True
    )
    classes = class_positions(features, images, classes, scores)
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"Expected steps to be an integer of at least 1. Received: {steps=}")
    return _attribute_to_pixels(
        features,
        images,
        _path_statistic(features, classes, steps=steps, baseline=baseline, scores=scores),
        classes,
        name="integrated gradients",
        words=("integrated gradients", "score"),
        estimator="Gauss-Legendre quadrature",
        steps=steps,
        baseline=baseline,
        scores=scores,
    )


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

        # One batch of images is on the path at a time, so that memory does not grow with `steps`.
        def on_path(index: tf.Tensor) -> tf.Tensor:
            return baseline + tf.gather(points, index) * difference

        total = _sum_gradients(own_features, batch, classes, scores, on_path, weights)
        return difference[:, None] * total

    return row_statistic(step)


def _sum_gradients(
    features: Features,
    images: tf.Tensor,
    classes: Sequence[int],
    scores: str,
    changed: Callable[[tf.Tensor], tf.Tensor],
    weights: np.ndarray,
) -> tf.Tensor:
    """Weighted sum over i of the gradients at `changed(i)`: (example, class, ...).

    `changed` returns each image once or, one after another, several changed copies of all images.
    """

    def add(index: tf.Tensor, total: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        pairs = class_gradients(
            features, changed(index), classes, scores, lambda copies, _: {"images": copies}
        )
        _, gradients = pairs["images"]
        by_copy = tf.reshape(gradients, (-1, tf.shape(images)[0], *gradients.shape[1:]))
        return index + 1, total + tf.gather(weights, index) * tf.reduce_sum(by_copy, axis=0)

    shape = tf.concat([tf.shape(images)[:1], [len(classes)], tf.shape(images)[1:]], axis=0)
    start = tf.ensure_shape(tf.zeros(shape), (None, len(classes), *images.shape[1:]))
    _, total = tf.while_loop(
        lambda index, _: index < len(weights), add, (0, start), parallel_iterations=1
    )
    return total


def _attribute_to_pixels(
    features: Features,
    images: tf.data.Dataset,
    statistic: Statistic[np.ndarray],
    classes: Sequence[int],
    *,
    name: str,
    words: tuple[str, str],
    estimator: str,
    **parameters: Any,
) -> xr.DataArray:
    """The attributions of all classes to the pixels of each image, with the images as pictures."""
    require_pictures(tf.nest.flatten(images.element_spec)[0])
    rows = evaluate(statistic, images, description=name, checked=(features,))
    require_finite(name, np.moveaxis(rows, 1, 0), map(str, classes))
    result = array_of(
        name.replace(" ", "_"),
        rows,
        ("example", "class", "row", "column", "channel"),
        words,
        provenance(features, len(rows), 1, estimator=estimator, **parameters),
        **class_coords(features, classes),
    )
    return with_pictures(result, features, images)


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

    Here, A_k is channel k of a feature map, and y_c is the score of class c (Selvaraju et al. 2017,
    https://arxiv.org/abs/1610.02391, equations 1 and 2). The result is enlarged bilinearly to the
    size of the image.

    Args:
        model: a model, or a callable that maps images to a dict from layer name to tensor, through
            which gradients flow. The tensors are the class scores and feature maps of shape
            (example, row, column, channel), as in `vit_tf.submodel(bit, "stage*/unit*/sum",
            "logits")`.
        images: as in `vit_tf.analysis`.
        classes: class names, or positions among the scores. By default, the predicted classes of
            the images, at most 5.
        scores: name of the layer that returns the class scores, of shape (example, class). By
            default, it is found in the model.

    Returns:
        DataArray of shape (example, class, layer, row, column), with one value per pixel. Values
        are comparable between positions of a layer, but not between layers. The coordinate
        `class_name` holds the names of the classes, if they are known.

    Raises:
        ValueError: if the classes, scores or feature maps do not exist, if TensorFlow finds that
            the scores do not depend on a map, or if values are not finite.

    Examples:
        >>> maps = analysis.grad_cam(bit, images[:2], classes=[0])
        >>> maps.dims
        ('example', 'class', 'layer', 'row', 'column')
        >>> ax = analysis.plot(maps)

    See also:
        `plots.plot_grad_cam`, `gradient_attention`, `input_gradients`; page guides/one-image.md.
    """
    features, images, scores = prepare_scored(
        model, images, scores, kind="class_maps", layers=layers, detail=detail, keep_order=True
    )
    # A map is enlarged to the whole image, of which each layer must show all.
    facts = features.with_grid_of_layers().facts
    if facts.grid is None and (reason := facts.reasons.get("grid")):
        raise ValueError(f"Grad-CAM cannot be enlarged to the image of {features.name!r}: {reason}")
    classes = class_positions(features, images, classes, scores)
    # One map for each image, class and layer.
    maps = evaluate(
        _grad_cam_statistic(features, classes, scores),
        images,
        description="Grad-CAM",
        checked=(features,),
    )
    names, rows = stack_layers("Grad-CAM", maps, axis=2)
    result = array_of(
        "grad_cam",
        rows,
        ("example", "class", "layer", "row", "column"),
        ("Grad-CAM", "score"),
        provenance(
            features,
            len(rows),
            1,
            estimator="positive sum of channels, weighted by their mean gradient",
            scores=scores,
        ),
        **class_coords(features, classes),
        layer=names,
    )
    return with_pictures(result, features, images)


@reusable
def _grad_cam_statistic(
    features: Features, classes: Sequence[int], scores: str
) -> Statistic[dict[str, np.ndarray]]:
    """`Statistic` over images with the enlarged maps (example, class, row, column) by layer."""

    def require_maps(_: tf.Tensor, taps: Taps) -> dict[str, tf.Tensor]:
        maps = {tap: x for tap, x in taps.items() if tap != scores}
        other = [tap for tap, x in maps.items() if x.shape.rank != 4]
        if other or not maps:
            raise ValueError(
                "Expected maps of shape (example, row, column, channel). "
                f"Received: {format_list(other) if other else 'none'}"
            )
        return maps

    def step(batch: tf.Tensor) -> dict[str, tf.Tensor]:
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
