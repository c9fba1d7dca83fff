"""Robustness: accuracy on images with dropped, shuffled or occluded patches, or with noise."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.data.labels import batch_labels, require_counted
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail
from vit_tf.features.noise import draw_for_images

from ..engine.class_scores import require_scores
from ..engine.measurements import labels_after_images, measurement, statistic_of
from ..engine.preparation import ImagesLike, prepare_scored
from ..engine.results import dataset_of, facts_of, pack_correct, require_finite, variable
from ..engine.stream import Statistic, Totals, evaluate, mean_per_batch
from ..statistics.intervals import mean_and_error

DROP = "patch drop"
SALIENT, OTHERS = "occlusion of salient patches", "occlusion of other patches"
LOW, HIGH = "low-frequency noise", "high-frequency noise"
PERTURBATIONS = (DROP, SALIENT, OTHERS, LOW, HIGH)
STRENGTHS = (0.25, 0.5, 0.75, 0.9)
# Cells in a row: the square grids of Naseer et al. (github.com/Muzammal-Naseer/IPViT,
# scripts/evaluate_shuffle.sh), up to the 14 x 14 patches of their ViTs.
GRIDS = (2, 4, 8, 14)


@measurement("scores")
@labels_after_images
def robustness(
    model: ModelLike,
    images: ImagesLike,
    scores: str | None = None,
    patch_size: int | None = None,
    strengths: Sequence[float] = STRENGTHS,
    seed: int = 0,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Accuracy on images with occluded patches, with noise, and with shuffled patches.

        area = (integral of the accuracy from 0 to s) / s,    s = largest strength

    The integral over strengths is computed by the trapezoidal rule. For perturbations of patches,
    the strength is the share of the patches of an image that are changed (Naseer et al. 2021,
    https://arxiv.org/abs/2105.10497, sections 3.1 and 3.3). For noise, the strength is the standard
    deviation of the noise divided by the standard deviation of the image (Park and Kim 2022,
    https://arxiv.org/abs/2202.06709, section 3).

    * `"patch drop"` replaces random patches by 0.
    * `"occlusion of salient patches"` replaces the patches with the largest pixel variance by 0.
    * `"occlusion of other patches"` replaces the patches with the smallest pixel variance by 0.
    * `"low-frequency noise"` adds Gaussian noise at spatial frequencies up to half the highest
      frequency.
    * `"high-frequency noise"` adds Gaussian noise at spatial frequencies above half the highest
      frequency.

    To shuffle an image, it is cut into a grid of 2 x 2, 4 x 4, 8 x 8 or 14 x 14 cells, all of which
    are permuted at random (Naseer et al. 2021, section 3.3). Grids that do not divide the image
    into whole pixels are omitted.

    The random numbers of an image depend only on its values and on the seed, not on the batch or
    the order of images. All models that expect images in the same range are therefore tested on the
    same perturbed images.

    Args:
        model: a model, or a callable that maps images to a dict that contains the class scores.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays.
        scores: name of the layer that returns the class scores, of shape (example, class). By
            default, it is found in the model.
        patch_size: side of a patch in pixels; by default the patch size of the model. To compare
            models, pass the same size for all models.
        strengths: strengths in ascending order, in (0, 1].
        seed: seed of the random numbers.

    Returns:
        Dataset with the following variables and coordinates.

        * `accuracy`, of shape (perturbation, strength): the accuracy on perturbed images.
        * `accuracy_change`, of shape (perturbation, strength): the accuracy on perturbed images
          minus the accuracy on intact images.
        * `accuracy_change_stderr`, of shape (perturbation, strength): the standard error of
          `accuracy_change`, paired over images.
        * `area` and `area_stderr`, of shape (perturbation,): the mean accuracy over strengths, as
          defined above, and its standard error.
        * `intact_accuracy`, a scalar: the accuracy on intact images.
        * `shuffled_accuracy`, `shuffled_change` and `shuffled_change_stderr`, of shape (grid,): the
          accuracy, its change and the standard error for shuffled images. `grid` is the number of
          cells in a row.
        * `correct`, a coordinate of shape (perturbation, strength): the images that are classified
          correctly, as packed bits. It allows paired comparisons of models, image by image.
          `shuffled_correct`, of shape (grid,), is the same for shuffled images.

    Raises:
        ValueError: if `strengths` are not ascending in (0, 1], if the patches do not tile the
            images, if neither `patch_size` nor the model specifies a patch size, or if a label is
            not a class.

    Examples:
        >>> result = analysis.robustness(vit, (images, labels), strengths=(0.25, 0.75))
        >>> result.accuracy.dims
        ('perturbation', 'strength')
        >>> result.grid.values.tolist()
        [2, 4, 8]
        >>> ax = analysis.plot(result)

    See also:
        `plots.plot_robustness`, `token_ablation`, `equivariance_error`; page
        measurements/flow/robustness.md.
    """
    features, batches, scores = prepare_scored(
        model,
        images,
        scores,
        kind="scores",
        layers=layers,
        detail=detail,
        keep_order=True,
        labelled=True,
    )
    return evaluate(
        robustness_statistic(features, scores, patch_size, strengths, seed),
        batches,
        features,
        description="robustness",
    )


@statistic_of(robustness)
def robustness_statistic(
    features: Features,
    scores: str = "logits",
    patch_size: int | None = None,
    strengths: Sequence[float] = STRENGTHS,
    seed: int = 0,
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `robustness`."""
    strengths = tuple(float(strength) for strength in strengths)
    if not strengths or not (np.diff((0.0, *strengths)) > 0).all() or strengths[-1] > 1:
        raise ValueError(f"Expected ascending strengths in (0, 1]. Received: {strengths}")
    if patch_size is None:
        patch_size = features.facts.grid.stride if features.facts.grid else None
    if patch_size is None or patch_size < 1:
        raise ValueError(
            "Expected patch_size, the side of a patch in pixels, for a model without a known grid. "
            f"Received: patch_size={patch_size}"
        )

    def step(images: tf.Tensor, labels: tf.Tensor, taps: Taps) -> dict[str, Any]:
        num_classes = require_scores(taps, scores, [0, 1])
        labels, label_counts = batch_labels(labels, num_classes)
        images = tf.cast(images, tf.float32)
        grids = [cells for cells in GRIDS if all(size % cells == 0 for size in images.shape[1:3])]
        every = tf.concat(
            [
                perturbed(images, patch_size, strengths, seed),
                *(shuffled(images, cells, seed)[None] for cells in grids),
            ],
            axis=0,
        )

        def is_correct(values: tf.Tensor) -> tf.Tensor:
            predicted = tf.argmax(tf.cast(values, tf.float32), axis=-1)
            return tf.cast(predicted == labels, tf.float32)

        # A loop, whose graph has the model once.
        changed = tf.map_fn(lambda batch: is_correct(features(batch)[scores]), every)
        correct = tf.concat([is_correct(taps[scores])[None], changed], axis=0)
        return {
            "rows": tf.transpose(correct),
            "finite": tf.reduce_sum(tf.cast(taps[scores], tf.float32)),
            "label_counts": label_counts,
            "num_classes": num_classes,
            "grids": grids,
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.Dataset:
        examples, num_classes = int(totals["examples"]), mean_per_batch(totals, "num_classes")
        require_finite("robustness", [totals["finite"]], [scores])
        require_counted(totals["label_counts"], examples, num_classes)
        # Columns are the intact image, then every perturbation and strength, then every grid.
        grids, num_perturbed = mean_per_batch(totals, "grids"), len(PERTURBATIONS) * len(strengths)
        intact, correct, shuffled_correct = np.split(
            totals["rows"].astype(np.float64), [1, 1 + num_perturbed], axis=1
        )
        correct = correct.reshape(examples, len(PERTURBATIONS), len(strengths))
        change, change_error = mean_and_error(correct - intact[..., None])
        shuffled_change, shuffled_error = mean_and_error(shuffled_correct - intact)
        # The mean accuracy over strengths from 0 on, by the trapezoidal rule.
        starts = np.broadcast_to(intact[..., None], (*correct.shape[:2], 1))
        curves = np.concatenate([starts, correct], axis=2)
        area, area_error = mean_and_error(
            np.trapezoid(curves, (0.0, *strengths), axis=2) / strengths[-1]
        )
        dims, words = ("perturbation", "strength"), "standard error of the change in accuracy"
        variables = {
            "accuracy": variable(dims, correct.mean(axis=0), "accuracy"),
            "accuracy_change": variable(dims, change, "change in accuracy"),
            "accuracy_change_stderr": variable(dims, change_error, words),
            "shuffled_accuracy": variable(
                "grid", shuffled_correct.mean(axis=0), "accuracy on shuffled images"
            ),
            "shuffled_change": variable(
                "grid", shuffled_change, "change in accuracy on shuffled images"
            ),
            "shuffled_change_stderr": variable("grid", shuffled_error, words),
            "area": variable(dims[:1], area, "mean accuracy over strengths"),
            "area_stderr": variable(dims[:1], area_error, "standard error of the area"),
            "intact_accuracy": variable((), intact.mean(), "accuracy on intact images"),
        }
        # Which images are right is kept, for paired comparisons of models.
        words = {"long_name": "images that are classified correctly, packed"}
        packed = pack_correct(np.moveaxis(correct, 0, -1).astype(bool))
        return dataset_of(
            variables,
            facts_of(
                features,
                totals,
                "accuracy; paired differences over images",
                patch_size=patch_size,
                seed=seed,
                num_classes=num_classes,
            ),
            perturbation=list(PERTURBATIONS),
            strength=list(strengths),
            grid=[int(cells) for cells in grids],
            correct=(dims, packed, words),
            shuffled_correct=("grid", pack_correct(shuffled_correct.T.astype(bool)), words),
        )

    return Statistic(step, finish, with_labels=True)


def perturbed(
    images: tf.Tensor, patch_size: int, strengths: Sequence[float], seed: int
) -> tf.Tensor:
    """Images (perturbation x strength, example, height, width, channel), as `PERTURBATIONS`."""
    height, width = images.shape[1:3]
    if height % patch_size or width % patch_size:
        raise ValueError(
            f"Patches of {patch_size} pixels do not tile images of {height} x {width} pixels: "
            "choose another patch_size."
        )
    sides = (patch_size, patch_size)
    patches = as_patches(images, sides)
    count = patches.shape[1]

    def random_numbers(key: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        noise = tf.random.stateless_normal(images.shape[1:], key)
        return tf.random.stateless_uniform((count,), key), noise

    spec = tf.TensorSpec((count,), tf.float32), tf.TensorSpec(images.shape[1:], tf.float32)
    uniform, noise = draw_for_images(images, seed, random_numbers, spec)
    contrast = tf.reduce_mean(tf.math.reduce_variance(patches, axis=2), axis=-1)
    order = tf.argsort(uniform, axis=1)
    # The rank of a patch is the order in which it is removed: at random, or by its contrast.
    ranks = {
        DROP: tf.argsort(order, axis=1),
        SALIENT: tf.argsort(tf.argsort(-contrast, axis=1, stable=True), axis=1),
        OTHERS: tf.argsort(tf.argsort(contrast, axis=1, stable=True), axis=1),
    }
    # Patches become zero, from the lowest rank on.
    changed = []
    for rank in ranks.values():
        for strength in strengths:
            is_kept = tf.cast(rank >= round(strength * count), tf.float32)
            changed.append(as_images_again(patches * is_kept[..., None, None], images, sides))
    # Noise has the standard deviation of its image, times the strength.
    low = low_frequencies(noise)
    scale = tf.math.reduce_std(images, axis=(1, 2, 3), keepdims=True)
    for band in (low, noise - low):
        size = tf.math.reduce_std(band, axis=(1, 2, 3), keepdims=True)
        changed += [images + strength * scale * band / size for strength in strengths]
    return tf.stack(changed)


def shuffled(images: tf.Tensor, grid: int, seed: int) -> tf.Tensor:
    """Images whose `grid` x `grid` cells are permuted at random."""
    sides = [size // grid for size in images.shape[1:3]]
    cells = as_patches(images, sides)

    def permutation(key: tf.Tensor) -> tf.Tensor:
        return tf.argsort(tf.random.stateless_uniform((grid * grid,), key))

    spec = tf.TensorSpec((grid * grid,), tf.int32)
    # Other numbers than those of `perturbed`.
    order = draw_for_images(images, seed + 1, permutation, spec)
    return as_images_again(tf.gather(cells, order, axis=1, batch_dims=1), images, sides)


def as_patches(images: tf.Tensor, sides: Sequence[int]) -> tf.Tensor:
    """Patches (example, patch, pixel, channel) of images, row by row."""
    (height, width, channels), (rows, columns) = images.shape[1:], sides
    shape = (-1, height // rows, rows, width // columns, columns, channels)
    patches = tf.transpose(tf.reshape(images, shape), (0, 1, 3, 2, 4, 5))
    return tf.reshape(patches, (-1, height * width // (rows * columns), rows * columns, channels))


def as_images_again(patches: tf.Tensor, images: tf.Tensor, sides: Sequence[int]) -> tf.Tensor:
    """Images like others from their patches (example, patch, pixel, channel)."""
    (height, width, channels), (rows, columns) = images.shape[1:], sides
    patches = tf.reshape(patches, (-1, height // rows, width // columns, rows, columns, channels))
    return tf.reshape(tf.transpose(patches, (0, 1, 3, 2, 4, 5)), (-1, height, width, channels))


def low_frequencies(noise: tf.Tensor) -> tf.Tensor:
    """The part of noise (example, row, column, channel) below half the highest frequency."""
    rows, columns = (np.abs(np.fft.fftfreq(n)) for n in noise.shape[1:3])
    is_low = np.maximum.outer(rows, columns) <= 0.25  # in cycles per pixel
    kept = tf.constant(is_low, tf.complex64)
    spectrum = tf.signal.fft2d(tf.cast(tf.transpose(noise, (0, 3, 1, 2)), tf.complex64))
    return tf.transpose(tf.math.real(tf.signal.ifft2d(spectrum * kept)), (0, 2, 3, 1))
