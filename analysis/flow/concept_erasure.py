"""Concept erasure: does a model use what a linear probe finds in a layer?"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import xarray as xr
from ml_dtypes import finfo
from numpy.typing import ArrayLike

from vit_tf import TokenGrid, edits
from vit_tf.common.names import unknown_name
from vit_tf.data.labels import require_label_type
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail, Shape
from vit_tf.features.noise import draw_for_images
from vit_tf.features.tokens import prefix_names

from ..engine.class_scores import require_scores
from ..engine.least_squares import ridge_inverse
from ..engine.measurements import labels_after_images, measurement
from ..engine.pooling import as_tokens
from ..engine.preparation import ImagesLike, prepare_scored
from ..engine.results import ALL, SPATIAL, ResultDataset, require_finite, variable
from ..engine.stream import Statistic, Totals, evaluate
from ..engine.traces import reusable
from ..statistics.intervals import t_interval
from .ablation import CHANGES, as_table, effects_statistic, layers_to_edit, measure_effects

CLASS, COLOUR, POSITION, COLUMN = "class", "colour", "position", "column"
CONCEPT, RANDOM = "concept", "random"
PROBED = {
    "r_squared": "held-out share of the concept's variance that a probe predicts",
    "erased_r_squared": "the same after the erasure",
    "rank": "number of erased directions",
}
NUM_QUARTERS = 4
# Standard deviations below this many roundings of the largest one are rounding errors.
NUM_ROUNDINGS = 4
FLOAT32_ROUNDING = float(np.finfo(np.float32).eps)
MIN_CORRELATION = 1e-6  # canonical correlations below this are rounding errors

# The sums of `sums_of_tokens` in each quarter of the images.
Quarters: TypeAlias = Sequence[Mapping[str, np.ndarray]]


@measurement("scored")
@labels_after_images
def concept_erasure(
    model: ModelLike,
    images: ImagesLike,
    concept: str | ArrayLike = CLASS,
    scores: str | None = None,
    draws: int = 8,
    l2: float = 0.1,
    seed: int = 0,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Change of a model's predictions when a concept is erased from one layer.

        r(x) = x - W^+ P W (x - mean x)

    `x` are the vectors of a layer, and `z` are the values of the concept. `W` is the pseudo-inverse
    square root of Cov(x), and `P` is the orthogonal projection onto the columns of W Cov(x, z).
    After this map, no linear probe predicts `z` better than a constant does. Among all affine maps
    with this property, this one changes `x` the least (LEACE, Belrose et al. 2023,
    https://arxiv.org/abs/2306.03819, theorem 4.3). The model continues from `r(x)`. If its
    predictions change more than after the erasure of random subspaces of the same rank, it uses the
    concept at this layer (amnesic probing, Elazar et al. 2021, https://arxiv.org/abs/2006.00995).

    Each prefix token, such as CLS, has its own map, and all spatial tokens share one map. Images
    are divided into two halves by their content. Each half is erased with the map that is fitted on
    the other half, since a map also removes what correlates with the concept by chance in the
    images on which it is fitted.

    Args:
        model: a model, or a submodel that returns the layers and the class scores, as in
            `vit_tf.submodel(vit, "block*/mlp/sum", "logits")`.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays. Use several
            times as many images as a layer has channels.
        concept: what to erase. `"class"` is the label, `"colour"` is the mean of each colour
            channel of the image, and `"position"` is the position of a spatial token; layers
            without positions are then skipped. Or an array with a row for each image, in the order
            of the images: integers or strings of shape (example,) are classes, and floats of shape
            (example,) or (example, value) are real values.
        scores: name of the layer that returns the class scores before a softmax, of shape (example,
            class). By default, it is found in the model.
        draws: number of random subspaces, at least 2.
        l2: ridge penalty of the probes for `r_squared`, relative to the mean variance of the
            channels.
        seed: seed of the random subspaces and of the division of the images.

    Returns:
        Dataset with the following variables.

        * `accuracy_change`, `loss_change` and `output_change`, of shape (layer, erased): the
          changes, as defined in `head_ablation`. The dim `erased` lists `"concept"`, and `"random"`
          for the mean over random subspaces of the same rank.
        * `accuracy_change_stderr` and so on, of shape (layer, erased): the standard errors over
          images. For `"random"`, this is the mean of the standard errors of the single subspaces,
          an upper bound.
        * `accuracy_change_low`, `accuracy_change_high` and so on, of shape (layer,): the 95 %
          prediction interval of the effect of one random subspace (Student's t over the draws).
        * `r_squared` and `erased_r_squared`, of shape (layer, tokens): the share of the concept's
          variance that a ridge probe predicts on held-out images, before and after the erasure. It
          may be negative. The dim `tokens` lists the prefix tokens, `"spatial"`, and `"all"` for
          layers that are a single vector.
        * `rank`, of shape (layer, tokens): the number of directions that are erased.
        * `accuracy` and `loss`, scalars: the accuracy and the cross-entropy of the unmodified
          model.

    Raises:
        ValueError: if the submodel does not return class scores and other layers, if the concept is
            unknown, constant or not finite, or differs from the images in length, if there are too
            few images for four parts, or if activations are not finite.

    Examples:
        >>> effect = analysis.concept_erasure(vit, (images, labels), draws=2)
        >>> effect.erased.values.tolist()
        ['concept', 'random']
        >>> ax = analysis.plot(effect)

    See also:
        `plots.plot_concept_erasure`, `ridge_probe`, `head_ablation`; page
        measurements/flow/concept-erasure.md.
    """
    if draws < 2 or l2 < 0:
        raise ValueError(
            f"Expected at least 2 draws and an l2 of at least 0. Received: draws={draws}, l2={l2}"
        )
    features, images, scores = prepare_scored(
        model,
        images,
        scores,
        kind="scored",
        layers=layers,
        detail=detail,
        keep_order=True,  # that of the rows of a concept
        labelled=True,
    )
    shapes = layers_to_edit(features, scores)
    columns = None
    if isinstance(concept, str):
        if concept not in (CLASS, COLOUR, POSITION):
            raise unknown_name("concept", concept, (CLASS, COLOUR, POSITION))
    else:
        columns, concept = as_columns(concept), COLUMN
    grid = features.facts.grid
    if concept == POSITION:
        shapes = {layer: x for layer, x in shapes.items() if SPATIAL in token_groups(x, grid)}
    if not shapes:
        raise ValueError(
            f"Expected layers with spatial tokens or positions. Received: {features.facts.shapes}"
        )

    # The first pass sums what all maps and probes follow from.
    moments = _moments_statistic(features, concept, tuple(shapes), scores, seed)
    data = images if columns is None else _with_columns(images, columns)
    totals = evaluate(moments, data, features, description="covariances")
    if columns is not None and totals["examples"] != len(columns):
        raise ValueError(
            "Expected concept= to have a row for each image. "
            f"Received: {len(columns)} rows for {int(totals['examples'])} images"
        )
    sums_of_layers = [
        np.concatenate([quarter["x"] for quarters in by_tokens.values() for quarter in quarters])
        for by_tokens in totals["sums"].values()
    ]
    require_finite("concept erasure", sums_of_layers, totals["sums"])
    roundings = {layer: x / totals["batches"] for layer, x in totals["roundings"].items()}
    maps, probed = _fit_layers(totals["sums"], roundings, draws=draws, l2=l2, seed=seed)

    # The second pass continues from each erased layer.
    cells = [(layer, name) for layer in shapes for name in (CONCEPT, *range(draws))]
    result = measure_effects(
        features,
        replace(_erased_statistic(features, scores, tuple(shapes), draws, seed), state=maps),
        [(layer, str(name)) for layer, name in cells],
        ("layer", "erased"),
        images,
        scores=scores,
        description="concept erasure",
        concept=concept,
        draws=draws,
        l2=l2,
        seed=seed,
    )
    return _summary(result, probed)


def _fit_layers(
    sums: Mapping[str, Mapping[str, Quarters]],
    roundings: Mapping[str, float],
    *,
    draws: int,
    l2: float,
    seed: int,
) -> tuple[dict[str, Any], xr.Dataset]:
    """The erasers of both halves of the images by layer and tokens, and what describes them."""
    maps: dict[str, Any] = {}
    probed: dict[tuple[str, str], tuple[float, ...]] = {}  # the values of `PROBED`
    rng = np.random.default_rng(seed)
    for layer, quarters_by_tokens in sums.items():
        maps[layer] = {}
        for tokens, quarters in quarters_by_tokens.items():
            if min(quarter["count"] for quarter in quarters) < 2:
                raise ValueError(
                    "The images are divided into quarters, each of which needs at least 2 "
                    "vectors: use more images. Received: "
                    f"{[int(q['count']) for q in quarters]} vectors"
                )
            halves = [Covariances.from_sums(quarters[:2]), Covariances.from_sums(quarters[2:])]
            # The images of each half are erased with the map of the other one.
            fitted = [fit_erasers(x, draws, rng, roundings[layer]) for x in halves[::-1]]
            maps[layer][tokens] = [
                {
                    "mean": own[0].mean,
                    "read": np.stack([eraser.read for eraser in own]),
                    "write": np.stack([eraser.write for eraser in own]),
                }
                for own in fitted
            ]
            parts = [Covariances.from_sums([quarter]) for quarter in quarters]
            of_concept = [own[0] for own in fitted]
            probed[layer, tokens] = (
                held_out_r_squared(parts, None, l2),
                held_out_r_squared(parts, of_concept, l2),
                max(eraser.read.shape[1] for eraser in of_concept),
            )
    columns = zip(*probed.values(), strict=True)
    variables = {
        name: variable("intervention", list(column), words)
        for (name, words), column in zip(PROBED.items(), columns, strict=True)
    }
    return maps, as_table(variables, {}, probed, ("layer", "tokens"))


def _summary(result: xr.Dataset, probed: xr.Dataset) -> xr.Dataset:
    """The result by concept and mean of the random subspaces, from that of each subspace."""
    of_concept = result.sel(erased=CONCEPT)
    of_draws = result.drop_sel(erased=CONCEPT)
    dims, variables = ("layer", "erased"), {}
    # What the erasure of the concept changes, next to that of random subspaces of the same rank.
    for change, (words, units) in CHANGES.items():
        for name, long_name in (
            (change, words.replace("the intervention", "the erasure")),
            (f"{change}_stderr", f"standard error of {change}"),
        ):
            values = np.stack([of_concept[name], of_draws[name].mean("erased")], axis=1)
            variables[name] = variable(dims, values, long_name, units)
        ends = random_interval(of_draws[change].transpose("erased", "layer").values)
        for end, values in zip(("low", "high"), ends, strict=True):
            long_name = f"{end}er end of the interval of {change} for a random subspace"
            variables[f"{change}_{end}"] = variable(("layer",), values, long_name, units)
    variables |= {name: result[name].variable for name in ("accuracy", "loss")}
    variables |= {name: values.variable for name, values in probed.items()}
    return ResultDataset(
        variables,
        {
            "layer": result["layer"].values,
            "erased": [CONCEPT, RANDOM],
            "tokens": probed["tokens"].values,
        },
        result.attrs,
    )


@dataclass(frozen=True)
class Covariances:
    """Covariances of vectors `x` of shape (channel,) and of the values `z` of a concept."""

    count: float
    mean_x: np.ndarray
    mean_z: np.ndarray
    xx: np.ndarray
    xz: np.ndarray
    zz: np.ndarray

    @classmethod
    def from_sums(cls, sums: Quarters) -> Covariances:
        """From `sums_of_tokens` of folds of the images."""
        total = {name: np.sum([part[name] for part in sums], axis=0) for name in sums[0]}
        count = float(total["count"])
        x, z = total["x"] / count, total["z"] / count
        return cls(
            count,
            mean_x=x,
            mean_z=z,
            xx=total["xx"] / count - np.outer(x, x),
            xz=total["xz"] / count - np.outer(x, z),
            zz=total["zz"] / count - np.outer(z, z),
        )


@dataclass(frozen=True)
class Eraser:
    """The map r(x) = x - ((x - mean) @ read) @ write.T; `read` and `write` are (channel, rank)."""

    mean: np.ndarray
    read: np.ndarray
    write: np.ndarray

    def __call__(self, x: np.ndarray) -> np.ndarray:
        return x - ((x - self.mean) @ self.read) @ self.write.T


def fit_erasers(
    covariances: Covariances,
    num_random: int = 0,
    rng: np.random.Generator | None = None,
    rounding: float = FLOAT32_ROUNDING,
) -> list[Eraser]:
    """The LEACE eraser of a concept, then erasers of random subspaces of the same rank.

    With W = V D V^T and an orthonormal basis Q of the directions to erase among whitened vectors
    (x - mean) V D, W^+ P W = (V D^-1 Q) (V D Q)^T: `write` and `read`.
    """
    vectors, deviations = _principal_axes(covariances.xx, rounding)
    # Whitened on both sides, the covariance has the canonical correlations as singular values.
    axes_z, deviations_z = _principal_axes(covariances.zz, FLOAT32_ROUNDING)
    whitened = (vectors / deviations).T @ covariances.xz @ (axes_z / deviations_z)
    left, correlations, _ = np.linalg.svd(whitened, full_matrices=False)
    bases = [left[:, correlations > MIN_CORRELATION]]
    for _ in range(num_random):
        assert rng is not None
        # Drawn in the axes of the channels, so that the subspace is a continuous function of x.
        draw = rng.normal(size=(len(vectors), bases[0].shape[1]))
        bases.append(np.linalg.qr(vectors.T @ draw)[0])
    return [
        Eraser(covariances.mean_x, vectors / deviations @ basis, vectors * deviations @ basis)
        for basis in bases
    ]


def _principal_axes(covariance: np.ndarray, rounding: float) -> tuple[np.ndarray, np.ndarray]:
    """Principal axes (channel, axis) and their standard deviations, without rounding errors."""
    variances, vectors = np.linalg.eigh(covariance)
    is_varied = variances > (NUM_ROUNDINGS * rounding) ** 2 * max(variances[-1], 0)
    return vectors[:, is_varied], np.sqrt(variances[is_varied])


def held_out_r_squared(
    quarters: Sequence[Covariances], erasers: Sequence[Eraser] | None, l2: float
) -> float:
    """Share of a concept's variance that ridge regression predicts in another quarter of the data.

    A probe is fitted on each quarter and tested on the other quarter of the same half, since both
    are erased with the same one of two `erasers`.
    """
    squared_error = total = 0.0
    for number, train in enumerate(quarters):
        test = quarters[number ^ 1]
        remaining = np.eye(len(train.mean_x))
        if erasers is not None:
            eraser = erasers[number // 2]
            remaining -= eraser.read @ eraser.write.T
        # Ridge regression of the concept on what remains of the features.
        covariance = remaining.T @ train.xx @ remaining
        inverse = ridge_inverse(covariance, l2)
        weights = remaining @ inverse @ remaining.T @ train.xz
        # Its error on the test quarter, from the second moments alone: |z - x W|^2 multiplied out.
        shift = test.mean_z - train.mean_z
        offset = shift - (test.mean_x - train.mean_x) @ weights
        squared_error += test.count * (
            np.trace(test.zz)
            - 2 * np.sum(weights * test.xz)
            + np.sum(weights * (test.xx @ weights))
            + offset @ offset
        )
        total += test.count * (np.trace(test.zz) + shift @ shift)
    return 1 - squared_error / total


def random_interval(effects_of_draws: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % prediction interval of one more draw, from effects of shape (draw, ...)."""
    count = len(effects_of_draws)
    deviation = effects_of_draws.std(axis=0, ddof=1)
    spread = deviation * np.sqrt(1 + 1 / count)
    return t_interval(effects_of_draws.mean(axis=0), spread, count - 1)


def as_columns(concept: ArrayLike) -> np.ndarray:
    """A user's concept as float64 values of shape (example, value), one-hot for classes."""
    values = np.asarray(concept)
    if values.ndim == 1 and values.dtype.kind in "iubU":
        classes, positions = np.unique(values, return_inverse=True)
        columns = np.eye(len(classes))[positions]
    elif values.ndim in (1, 2) and values.dtype.kind in "iuf":
        columns = values.reshape(len(values), -1).astype(np.float64)
        deviations = columns.std(axis=0)
        # Columns of different units count equally in the predicted share of the variance.
        columns = (columns - columns.mean(axis=0)) / np.where(deviations > 0, deviations, 1)
    else:
        raise ValueError(
            "Expected concept= to be classes of shape (example,), or real values of shape "
            f"(example,) or (example, value). Received: {values.dtype} of shape {values.shape}"
        )
    if not np.isfinite(columns).all() or not columns.std(axis=0).any():
        raise ValueError(
            "The values of concept= are not finite, or they do not vary between images."
        )
    return columns


def token_groups(shape: Shape, grid: TokenGrid | None) -> dict[str, slice]:
    """The tokens of a layer of this shape that share a map: slices of the sequence by name."""
    if len(shape) == 1:
        return {ALL: slice(None)}
    if len(shape) == 2 and grid is not None and shape[0] == grid.num_tokens:
        names = prefix_names(grid.prefix)
        prefix = {name.lower(): slice(i, i + 1) for i, name in enumerate(names)}
        return prefix | {SPATIAL: slice(grid.prefix, None)}
    return {SPATIAL: slice(None)}


def quarters_of(images: tf.Tensor, seed: int) -> tf.Tensor:
    """The quarter of the data, from 0 to 3, that each image belongs to by its content: int64."""
    spec = tf.TensorSpec((), tf.int64)
    return draw_for_images(images, seed, lambda key: key[0] % NUM_QUARTERS, spec)


def sums_of_tokens(x: tf.Tensor, z: tf.Tensor | None) -> dict[str, tf.Tensor]:
    """Sums over images and tokens of `x`, (example, token, channel), from which covariances follow.

    `z` are the values of the concept for each image, (example, value); None is the position.
    """
    count, length, channels = tf.unstack(tf.shape(x))
    flat = tf.reshape(x, (count * length, channels))
    # Without labels the concept is the position of a token, one-hot for each token.
    if z is None:
        xz = tf.transpose(tf.reduce_sum(x, axis=0))
        of_z = tf.fill([length], tf.cast(count, tf.float64))
        zz = tf.linalg.diag(of_z)
    else:
        repeats = tf.cast(length, tf.float64)
        xz = tf.matmul(tf.reduce_sum(x, axis=1), z, transpose_a=True)
        of_z, zz = repeats * tf.reduce_sum(z, axis=0), repeats * tf.matmul(z, z, transpose_a=True)
    return {
        "count": count * length,
        "x": tf.reduce_sum(flat, axis=0),
        "xx": tf.matmul(flat, flat, transpose_a=True),
        "z": of_z,
        "xz": xz,
        "zz": zz,
    }


@reusable
def _moments_statistic(
    features: Features, concept: str, layers: Sequence[str], scores: str, seed: int
) -> Statistic[Totals]:
    """`Statistic` with `sums_of_tokens` by layer and tokens in each quarter of the images."""
    shapes, grid = features.facts.shapes, features.facts.grid

    def step(images: tf.Tensor, labels: tf.Tensor, *rest: Any) -> dict[str, Any]:
        *columns, taps = rest
        z = None
        if concept == CLASS:
            require_label_type(labels)
            num_classes = require_scores(taps, scores, [0])
            z = tf.one_hot(tf.cast(labels, tf.int64), num_classes, dtype=tf.float64)
        elif concept == COLOUR:
            z = tf.reduce_mean(tf.cast(images, tf.float64), axis=(1, 2))
        elif concept == COLUMN:
            z = columns[0]
        quarters = quarters_of(images, seed)
        is_in = [tf.equal(quarters, quarter) for quarter in range(NUM_QUARTERS)]
        values_of_concept = [None if z is None else tf.boolean_mask(z, mask) for mask in is_in]
        sums: dict[str, Any] = {}
        for layer in layers:
            tokens = tf.cast(as_tokens(layer, taps[layer]), tf.float64)
            sums[layer] = {
                name: [
                    sums_of_tokens(tf.boolean_mask(tokens[:, part], mask), values)
                    for mask, values in zip(is_in, values_of_concept, strict=True)
                ]
                for name, part in token_groups(shapes[layer], grid).items()
                if concept != POSITION or name == SPATIAL
            }
        # What activations of fewer bits are rounded by; tokens are float32 at most.
        roundings = {
            layer: max(FLOAT32_ROUNDING, float(finfo(taps[layer].dtype.as_numpy_dtype).eps))
            for layer in layers
        }
        return {
            "sums": sums,
            "roundings": roundings,
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    return Statistic(step, lambda totals: totals, with_labels=True)


@reusable
def _erased_statistic(
    features: Features, scores: str, layers: Sequence[str], draws: int, seed: int
) -> Statistic[Totals]:
    """The `effects_statistic` of `concept_erasure`; its state are the maps of `_fit_layers`."""
    shapes, grid = features.facts.shapes, features.facts.grid

    def interventions(taps: Taps, images: tf.Tensor, state: Any) -> list[dict[str, Callable]]:
        is_first_half = (quarters_of(images, seed) < NUM_QUARTERS // 2)[:, None, None]

        def erased(layer: str, number: int) -> tf.Tensor:
            tokens = tf.cast(as_tokens(layer, taps[layer]), tf.float64)
            parts = []
            for name, part in token_groups(shapes[layer], grid).items():
                x = tokens[:, part]
                if name in state[layer]:
                    first, second = (
                        x - (x - own["mean"]) @ own["read"][number] @ tf.transpose(
                            own["write"][number]
                        )
                        for own in state[layer][name]
                    )  # fmt: skip
                    x = tf.where(is_first_half, first, second)
                parts.append(x)
            return tf.reshape(tf.concat(parts, axis=1), tf.shape(taps[layer]))

        return [
            {layer: edits.constant(erased(layer, number))}
            for layer in layers
            for number in range(1 + draws)
        ]

    return effects_statistic(features, interventions, scores, len(layers) * (1 + draws))


def _with_columns(images: tf.data.Dataset, columns: np.ndarray) -> tf.data.Dataset:
    """Batches of images, labels and the rows of a concept, in the order of the images."""
    rows = tf.constant(columns)

    def add_rows(start: tf.Tensor, batch: tuple[tf.Tensor, ...]) -> tuple[tf.Tensor, Any]:
        end = start + tf.shape(batch[0])[0]
        # Images beyond the last row get that row: their number is compared after the pass.
        positions = tf.minimum(tf.range(start, end), len(columns) - 1)
        return end, (batch[0], batch[1], tf.gather(rows, positions))

    return images.scan(0, add_rows).apply(
        tf.data.experimental.assert_cardinality(images.cardinality())
    )
