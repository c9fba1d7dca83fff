"""How many dimensions the representations of images span: intrinsic dimension, effective rank."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.common.names import format_list
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import pool
from ..engine.preparation import ImagesLike, prepare
from ..engine.results import DEFAULT, dataset_of, facts_of, require_finite, variable
from ..engine.stream import Statistic, Totals, evaluate

TWO_NN, PARTICIPATION, EFFECTIVE_RANK = "two_nn", "participation_ratio", "effective_rank"
MEASURES = (TWO_NN, PARTICIPATION, EFFECTIVE_RANK)
CENSORED = 0.1  # of the ratios, the largest, as Facco et al. leave out
NUM_GROUPS = 10  # of images, without each of which the values are computed
LEAST_IMAGES = 20
DECIMATIONS = (1, 2, 4, 8)  # into how many subsets of equal size the images are divided
BLOCK_SIZE = 512  # rows of the matrix of distances in memory at once
ESTIMATOR = "TwoNN by maximum likelihood, eigenvalues of the covariance; jackknife over images"


@measurement("outputs")
def intrinsic_dimension(
    model: ModelLike,
    images: ImagesLike | None = None,
    tokens: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Intrinsic dimension, participation ratio and effective rank of every layer.

        two_nn              = d of P(r2 / r1 > m) = m^-d
        participation_ratio = (sum_i l_i)^2 / sum_i l_i^2
        effective_rank      = exp(-sum_i p_i log p_i),  p_i = sqrt(l_i) / sum_j sqrt(l_j)

    Here, `r1` and `r2` are the distances from an image to its nearest and second nearest neighbour
    (Facco et al. 2017, https://doi.org/10.1038/s41598-017-11873-y, equation 2). The `l_i` are the
    eigenvalues of the covariance over images (Roy and Vetterli 2007, for the effective rank). TwoNN
    counts the directions in which neighbours differ, even if images lie on a curved manifold. The
    other two measures count the linear directions with much variance.

    TwoNN describes the data at the scale of the distance between neighbours. With fewer images,
    this scale is larger (Facco et al. 2017, figure 3); `two_nn_by_images` is the estimate on
    subsets of the images. If the estimate is smaller with fewer images, the dimensions at the small
    scale are noise around a manifold of lower dimension. For example, noise of standard deviation
    0.01 around a sheet of two dimensions in 50 makes 1,000 points look 17-dimensional.

    All three measures grow with the number of images up to a limit. For example, `n` samples of a
    `d`-dimensional Gaussian with equal variances have a participation ratio of about `d n / (n +
    d)`. Compare models on equally many images.

    TwoNN is the maximum-likelihood estimate of `d`. Facco et al. 2017 discard the tenth of the
    images with the largest ratios `r2 / r1`. This function keeps these images as censored
    observations: the estimate uses only the fact that their ratios are larger than the ratios of
    all other images, not the exact values.

    Args:
        model, images, tokens: as in `vit_tf.analysis`.

    Returns:
        Dataset with the following variables and attribute. The measures are `"two_nn"`,
        `"participation_ratio"` and `"effective_rank"`.

        * `dimension` and `stderr`, of shape (measure, layer): the values and their standard errors,
          computed from `leave_one_out` by the jackknife.
        * `leave_one_out`, of shape (batch, measure, layer): the values without each of 10 groups of
          images, for paired comparisons of models. For the participation ratio and the effective
          rank, `leave_one_out` is a first-order approximation.
        * `two_nn_by_images`, of shape (images, layer): TwoNN on all images, and on disjoint subsets
          of a half, a quarter and an eighth of them, averaged over the subsets of a size. The dim
          `images` lists the sizes, at least 20.
        * The attribute `duplicates` counts the images whose features equal the features of another
          image, in the layer with the most such images. TwoNN keeps the first of equal images.

    Raises:
        ValueError: if there are fewer than 20 images, if activations are not finite, or if a layer
            has fewer than 20 distinct feature vectors (the message names the layer).

    Examples:
        >>> dimension = analysis.intrinsic_dimension(vit, images)
        >>> dimension.dimension.dims
        ('measure', 'layer')
        >>> dimension.measure.values.tolist()
        ['two_nn', 'participation_ratio', 'effective_rank']
        >>> ax = analysis.plot(dimension)

    See also:
        `plots.plot_intrinsic_dimension`, `cka`, `ridge_probe`; page
        measurements/similarity/intrinsic-dimension.md.
    """
    features, batches = prepare(model, images, kind="outputs", layers=layers, detail=detail)
    statistic = intrinsic_dimension_statistic(features, tokens)
    return evaluate(statistic, batches, features, description="intrinsic dimension")


@statistic_of(intrinsic_dimension)
def intrinsic_dimension_statistic(
    features: Features, tokens: str | None = None
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `intrinsic_dimension`."""
    grid = features.facts.grid

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        rows = pool(taps, tokens, grid)
        return {"rows": rows, "examples": tf.shape(images)[0], "batches": 1}

    def finish(totals: Totals) -> xr.Dataset:
        layers, rows = list(totals["rows"]), list(totals["rows"].values())
        require_finite("intrinsic dimension", rows, layers)
        examples = int(totals["examples"])
        if examples < LEAST_IMAGES:
            raise ValueError(f"Expected at least {LEAST_IMAGES} images. Received: {examples}")
        dimensions = [layer_dimensions(x) for x in rows]
        few = [
            layer
            for layer, (value, *_) in zip(layers, dimensions, strict=True)
            if np.isnan(value).all()
        ]
        if few:
            raise ValueError(
                f"Expected at least {LEAST_IMAGES} images that differ in every layer. Received: "
                f"fewer at {format_list(few)}"
            )
        # Dimensions, and their errors by a jackknife over groups of images.
        value = np.stack([value for value, *_ in dimensions], axis=-1)
        rest = np.stack([rest for _, rest, _ in dimensions], axis=-1)
        spread = ((rest - rest.mean(axis=0)) ** 2).sum(axis=0)
        stderr = np.sqrt((NUM_GROUPS - 1) / NUM_GROUPS * spread)
        dims = ("measure", "layer")
        variables = {
            "dimension": variable(dims, value, "dimension"),
            "stderr": variable(dims, stderr, "standard error of the dimension"),
            "leave_one_out": variable(
                ("batch", *dims), rest, "dimension without each group of images"
            ),
        }
        # TwoNN on fewer images shows at which distances a dimension is measured.
        counts = [k for k in DECIMATIONS if examples // k >= LEAST_IMAGES]
        by_images = [[decimated_two_nn(x, count) for x in rows] for count in counts]
        variables["two_nn_by_images"] = variable(
            ("images", "layer"), np.array(by_images), "TwoNN on subsets of the images"
        )
        duplicates = max(duplicates for *_, duplicates in dimensions)
        facts = facts_of(
            features, totals, ESTIMATOR, tokens=tokens or DEFAULT, duplicates=duplicates
        )
        num_images = [examples // count for count in counts]
        return dataset_of(variables, facts, measure=list(MEASURES), layer=layers, images=num_images)

    return Statistic(step, finish)


def layer_dimensions(x: np.ndarray) -> tuple[np.ndarray, np.ndarray, int]:
    """The `MEASURES` of a layer (example, channel), of shape (measure,).

    Also the same without each group of examples, of shape (group, measure), from which errors are
    estimated, and the number of examples that equal another one. All are NaN for fewer than
    `LEAST_IMAGES` distinct examples.
    """
    # A power of two at the size of the activations: squares of 1e-200 and 1e+200 are finite too.
    largest = np.abs(x - x.mean(axis=0)).max()
    x = (x - x.mean(axis=0)) / 2.0 ** np.floor(np.log2(largest)) if largest else x
    group = np.arange(len(x)) % NUM_GROUPS
    distances, is_repeat = nearest_distances(x, group)
    duplicates = int((distances.min(axis=(1, 2)) == 0).sum())
    if (~is_repeat).sum() < LEAST_IMAGES:
        nothing = np.full((NUM_GROUPS, len(MEASURES)), np.nan)
        return nothing[0], nothing, duplicates
    # Copies of an image would be both neighbours of the images next to it, at one distance.
    distinct_group = group[~is_repeat]
    if duplicates:
        distances, _ = nearest_distances(x[~is_repeat], distinct_group)

    eigenvalues, eigenvalues_without = covariance_eigenvalues(x, group)

    def measures(eigenvalues: np.ndarray, left_out: int | None) -> list[float]:
        is_kept = distinct_group != left_out
        other_groups = distances[is_kept][:, np.arange(NUM_GROUPS) != left_out]
        nearest = np.partition(other_groups.reshape(len(other_groups), -1), 1, axis=1)[:, :2]
        return [two_nn(nearest), participation_ratio(eigenvalues), effective_rank(eigenvalues)]

    rest = [measures(own, number) for number, own in enumerate(eigenvalues_without)]
    return np.array(measures(eigenvalues, None)), np.array(rest), duplicates


def nearest_distances(x: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Distances from each row to its two nearest rows in each of `NUM_GROUPS` groups.

    Returns an array of shape (row, group, 2), and which rows equal an earlier one. A row is at
    distance infinity from itself, and from rows that a group lacks.
    """
    squares = np.einsum("nd,nd->n", x, x)
    members = [np.flatnonzero(group == number) for number in range(NUM_GROUPS)]
    nearest, is_repeat = np.full((len(x), NUM_GROUPS, 2), np.inf), np.zeros(len(x), bool)
    for start in range(0, len(x), BLOCK_SIZE):
        rows = np.arange(start, min(start + BLOCK_SIZE, len(x)))
        products = x[rows] @ x.T
        squared = squares[rows, None] + squares - 2 * products
        # Differences below the rounding of the products are none: these rows are duplicates.
        rounding = 1e-14 * (squares[rows, None] + squares)
        distances = np.sqrt(np.where(squared > rounding, squared, 0.0))
        distances[np.arange(len(rows)), rows] = np.inf
        is_repeat[rows] = ((distances == 0) & (np.arange(len(x)) < rows[:, None])).any(axis=1)
        for number, columns in enumerate(members):
            count = min(2, len(columns))
            ordered = np.partition(distances[:, columns], count - 1, axis=1) if count else distances
            nearest[rows, number, :count] = ordered[:, :count]
    return nearest, is_repeat


def two_nn(nearest: np.ndarray) -> float:
    """TwoNN of distances (example, 2) to the two nearest neighbours, without duplicates.

        d = (k - 1) / (sum of the k smallest log(r2 / r1) + (n - k) times the largest of these)

    The unbiased maximum-likelihood estimate for ratios of which the largest are censored.
    """
    nearest = nearest[nearest[:, 0] > 0]
    logs = np.sort(np.log(nearest[:, 1] / nearest[:, 0]))
    count = len(logs) - int(CENSORED * len(logs))
    total = logs[:count].sum() + (len(logs) - count) * logs[count - 1]
    return float((count - 1) / total) if total > 0 else np.nan


def decimated_two_nn(x: np.ndarray, count: int) -> float:
    """TwoNN of rows (example, channel), averaged over `count` disjoint subsets of them."""
    x = np.asarray(x, np.float64)
    largest = np.abs(x - x.mean(axis=0)).max()
    x = (x - x.mean(axis=0)) / (largest or 1.0)
    subsets = [x[start::count] for start in range(count)]
    nearest = [nearest_distances(rows, np.zeros(len(rows), int))[0][:, 0] for rows in subsets]
    return float(np.mean([two_nn(distances) for distances in nearest]))


def covariance_eigenvalues(x: np.ndarray, group: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of the scatter matrix of centred rows (example, channel), and without each group.

    Those without a group, of shape (group, eigenvalue), are of first order: the variance of the
    other rows along the same eigenvectors. Exact ones would show how fewer images lower a rank,
    not how other images change it.
    """
    if x.shape[1] <= len(x):
        projected = x @ np.linalg.eigh(x.T @ x)[1]
    else:
        eigenvalues, vectors = np.linalg.eigh(x @ x.T)
        projected = vectors * np.sqrt(np.maximum(eigenvalues, 0))  # rounding leaves some below 0

    def variances(rows: np.ndarray) -> np.ndarray:
        return ((rows - rows.mean(axis=0)) ** 2).sum(axis=0)

    without = [variances(projected[group != number]) for number in range(group.max() + 1)]
    return variances(projected), np.array(without)


def participation_ratio(eigenvalues: np.ndarray) -> float:
    """The square of the sum of eigenvalues over the sum of their squares."""
    return float(eigenvalues.sum() ** 2 / (eigenvalues**2).sum())


def effective_rank(eigenvalues: np.ndarray) -> float:
    """The exponential of the entropy of the singular values, the roots of the eigenvalues."""
    # Roots of rounding errors would count: 1e-8 each, of eigenvalues of 1e-16.
    scales = np.sqrt(eigenvalues[eigenvalues > 1e-13 * eigenvalues.max()])
    shares = scales / scales.sum()
    return float(np.exp(-(shares * np.log(shares)).sum()))
