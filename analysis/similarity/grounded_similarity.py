"""Grounded similarity: which measure ranks pairs of models as their behaviour does?"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import xarray as xr
from numpy.typing import ArrayLike

from vit_tf.common.names import format_list
from vit_tf.data.labels import require_labels
from vit_tf.features.conversion import LayerSelection, ModelLike, name_models
from vit_tf.features.features import Features, ScoreKind
from vit_tf.features.layers import Detail

from ..engine.class_scores import (
    ONE_SCORE,
    class_divergence,
    class_probabilities,
    require_scores,
)
from ..engine.least_squares import ridge_weights
from ..engine.measurements import labels_after_images, measurement
from ..engine.pooling import pool
from ..engine.preparation import (
    ImagesLike,
    prepare_images,
    read_model,
    require_labelled,
    require_same_classes,
    score_layer,
)
from ..engine.results import ALL, DEFAULT, dataset_of, facts_of, variable
from ..engine.stream import Statistic, Totals, evaluate, mean_per_batch
from ..engine.traces import reusable
from .cka import LEAST_EXAMPLES, names_of_layers, varying_layers
from .measures import Layers, Measure, Places
from .similarities import DECIMALS, MEASURES, select_measures

# Dissimilarities (measure, model, model), differences (model, model) by name, and the totals.
Tables: TypeAlias = tuple[np.ndarray, dict[str, np.ndarray], Totals]
MIN_MODELS = 4
MIN_RESAMPLES = 100  # of the models, and permutations
# Resamples of fewer different models have too few pairs for a rank correlation.
MIN_RESAMPLED = 3
PROBE_L2 = 0.1  # relative to the mean variance of the channels
DISAGREEMENT, DIVERGENCE = "disagreement", "divergence"
ACCURACY, PROBE_LOSS = "accuracy", "probe_loss"


@measurement("scored", arguments="{models}, {images}")
@labels_after_images
def grounded_similarity(
    models: Mapping[str, ModelLike] | Sequence[ModelLike],
    images: ImagesLike,
    measures: Sequence[str | Measure] | None = None,
    tokens: str | None = None,
    scores: str | None = None,
    differences: Mapping[str, ArrayLike] | None = None,
    resamples: int = 999,
    seed: int = 0,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Rank correlation of dissimilarity measures with differences in what models predict.

        correlation = Spearman's rho over pairs of models of
                      (1 - similarity of their layers, difference of their functions)

    Measures of similarity disagree with each other. A good measure ranks pairs of models in the
    same order as the differences between their functions do (Ding et al. 2021,
    https://arxiv.org/abs/2108.01661; Klabunde et al. 2024, https://arxiv.org/abs/2408.00531). The
    models may be seeds, checkpoints, sizes, or copies of a model that `vit_tf.edits.intervene`
    edits. All take the same images and predict the same classes, and each image is read once.

    The functional differences are the following.

    * `"disagreement"`: the share of images for which the models predict different classes.
    * `"divergence"`: the mean Jensen-Shannon divergence of their class probabilities, in nats.
    * `"accuracy"`: the absolute difference of their accuracies, if images have labels.
    * `"probe_loss"`: the absolute difference of the losses of linear probes of the layer, if images
      have labels. A ridge probe of the classes is fitted on each half of the images. The loss is
      its mean squared error on the other half, divided by the error of the mean as prediction.
    * the `differences` of the caller, such as the cost of `stitching`.

    Args:
        models: dict from name to model, or list of models, at least 4. Ten or more are recommended.
        images: as in `vit_tf.analysis`, with or without labels.
        measures: as for `similarities`; by default, all but `"token_cka"`. The canonical
            correlations of `cca` and `pwcca` need batches of more than twice as many images as a
            layer has channels.
        tokens: how the tokens of a layer are summarized, as in `vit_tf.analysis`.
        scores: name of the layer that returns the class scores before a softmax, of shape (example,
            class). By default, it is found in the model.
        differences: further functional differences by name, of shape (model, model). The mean of
            both directions is used.
        resamples: number of bootstrap resamples of the models, and of permutations.
        seed: seed of resamples and permutations.
        layers, detail: the layer to compare; of several layers, the last one is used. By default,
            it is the last block.

    Returns:
        Dataset with the following variables and attributes.

        * `correlation`, of shape (measure, function): the rank correlation. It is NaN if all pairs
          are equal, or if a measure is undefined for a pair of models; a warning then states the
          reason.
        * `correlation_low` and `correlation_high`, of the same shape: the 95 % interval of a
          bootstrap over models (percentiles), without pairs of a model with itself.
        * `p_value`, of the same shape: the two-sided p-value of Mantel's permutation test (1967)
          for no relation. Unlike the interval, it is valid for few models, too.
        * `dissimilarity`, of shape (measure, model_x, model_y): 1 minus the similarity. If a
          measure is not symmetric, this is the mean of both directions.
        * `difference`, of shape (function, model_x, model_y): the functional differences.
        * The attribute `layers` names the compared layer of each model.

    Raises:
        ValueError: if there are fewer than 4 models, if models differ in their classes, if a
            model's layer is constant or not finite, or if `differences` have another shape. Further
            errors are those of `similarities`.

    Examples:
        >>> layers = "block01/mlp/sum", "logits"
        >>> copies = {
        ...     f"{share:.0%}": vit_tf.edits.intervene(
        ...         vit, {"block01/*/branch": vit_tf.edits.scaled(share)}, *layers
        ...     )
        ...     for share in (0.0, 0.15, 0.65, 1.0)
        ... }
        >>> result = analysis.grounded_similarity(copies, images, ["cka", "procrustes"])
        >>> result.function.values.tolist()
        ['disagreement', 'divergence']
        >>> ax = analysis.plot(result)

    See also:
        `plots.plot_grounded_similarity`, `similarities`, `stitching`; page
        measurements/similarity/grounded-similarity.md.
    """
    named = name_models(models)
    if len(named) < MIN_MODELS:
        raise ValueError(f"Expected at least {MIN_MODELS} models. Received: {list(named)}")
    if resamples < MIN_RESAMPLES:
        raise ValueError(
            f"Expected at least {MIN_RESAMPLES} resamples. Received: resamples={resamples}"
        )
    further = {name: as_table(name, x, len(named)) for name, x in (differences or {}).items()}
    if own := sorted({DISAGREEMENT, DIVERGENCE, ACCURACY, PROBE_LOSS} & set(further)):
        raise ValueError(
            f"These names in differences= are those of built-in measures: {own}. Choose other "
            "names."
        )
    if measures is None:
        measures = [name for name in MEASURES if name != "token_cka"]
    selected = select_measures(measures, tokens or ALL)
    if layers is None and detail is None:
        detail = "blocks"
    read = [read_model(model, "scored", layers, detail, images=images) for model in named.values()]
    features, (batches,) = prepare_images(read, {"images": images}, scores=[scores] * len(read))
    is_labelled = isinstance(batches.element_spec, tuple)
    # Folders without classes have labels of -1 and no names.
    is_labelled = is_labelled and getattr(batches, "class_names", None) != ()
    if is_labelled:
        require_labelled("images", batches)
        for each in features:
            require_same_classes(each, batches, scores)
    statistic = _tables_statistic(
        dict(zip(named, features, strict=True)),
        selected,
        tokens,
        [score_layer(each, scores) for each in features],
        is_labelled,
    )
    dissimilarity, own_differences, totals = evaluate(
        statistic, batches, *features, description="grounded similarity"
    )
    by_function = own_differences | further
    difference = np.stack(list(by_function.values()))
    x, y = np.triu_indices(len(named), 1)
    pairs = difference[:, x, y]
    # Differences of the caller may have any unit: equal are those that differ by 1e-6 of it.
    given = pairs[len(own_differences) :]
    given /= np.abs(given).max(axis=1, keepdims=True, initial=np.finfo(float).tiny)
    estimates = correlate_pairs(dissimilarity[:, x, y], pairs, resamples, seed)
    words = {
        "correlation": "rank correlation of dissimilarity and functional difference",
        "correlation_low": "lower end of the 95 % interval of the correlation",
        "correlation_high": "upper end of the 95 % interval of the correlation",
        "p_value": "p-value of the permutation test for no relation",
    }
    models_of_pair = ("model_x", "model_y")
    variables = {
        name: variable(("measure", "function"), estimates[name], long_name)
        for name, long_name in words.items()
    }
    variables["dissimilarity"] = variable(
        ("measure", *models_of_pair), dissimilarity, "1 minus the similarity of the layers"
    )
    variables["difference"] = variable(
        ("function", *models_of_pair), difference, "difference of the functions"
    )
    coords = {
        "measure": [measure.name for measure in selected],
        "function": list(by_function),
        **{dim: list(named) for dim in models_of_pair},
    }
    facts = facts_of(
        features[0],
        totals,
        "Spearman; bootstrap and permutations of models",
        layers=[layer for (layer,) in totals["layers"]],
        tokens=tokens or DEFAULT,
        resamples=resamples,
        seed=seed,
        remainder=int(totals["remainder"]),
    )
    del facts["model"]  # the first, while the coordinates name all
    return dataset_of(variables, facts, **coords)


@reusable
def _tables_statistic(
    models: Mapping[str, Features],
    measures: Sequence[Measure],
    tokens: str | None,
    scores: Sequence[str],
    is_labelled: bool,
) -> Statistic[Tables]:
    """`Statistic` with the tables of all pairs of models: dissimilarities and differences."""
    kinds = {features.facts.score_kind for features in models.values()}
    if len(kinds) > 1:
        raise ValueError(
            "Expected models that all end in a softmax, or all in sigmoids. "
            f"Received: {format_list(sorted(map(str, kinds)))}"
        )
    (kind,) = kinds
    places = Places(list(range(len(models))), list(range(len(models))))

    def step(images: tf.Tensor, *labels_and_taps: Any) -> dict[str, Any]:
        taps_of_models = labels_and_taps[1:] if is_labelled else labels_and_taps
        layers, vectors, class_scores = [], [], {}
        for (name, features), taps, own in zip(models.items(), taps_of_models, scores, strict=True):
            if require_scores(taps, own, [0]) < 2:
                raise ValueError(ONE_SCORE.format(f"{own!r} of {name!r}"))
            class_scores[name] = tf.cast(taps[own], tf.float64)
            if not (others := [layer for layer in taps if layer != own]):
                raise ValueError(
                    f"Expected models with a layer before the scores. Received: {name!r}"
                )
            layers.append(others[-1:])
            pooled = pool({others[-1]: taps[others[-1]]}, tokens, features.facts.grid)
            vectors += pooled.values()
        counts = {name: x.shape[-1] for name, x in class_scores.items()}
        if len(set(counts.values())) > 1:
            raise ValueError(f"Expected models of the same classes. Received: {counts} classes")

        batch = Layers(vectors)
        every_score = tf.stack(list(class_scores.values()))
        predicted = tf.argmax(every_score, axis=-1)  # (model, example)
        differs = tf.not_equal(predicted[:, None], predicted)
        rows: dict[str, Any] = {"hsic": batch.hsic[None], "scales": batch.unbiased[1][None]}
        if is_labelled:
            rows |= {"labels": labels_and_taps[0], "predicted": tf.transpose(predicted)}
            rows["vectors"] = [tf.cast(x, tf.float32) for x in vectors]
        return {
            "rows": rows,
            "measures": {measure.name: measure.terms(batch, places) for measure in measures},
            DISAGREEMENT: tf.math.count_nonzero(differs, axis=-1),
            DIVERGENCE: tf.reduce_sum(pairwise_divergence(every_score, kind), axis=-1),
            "layers": names_of_layers(layers),
            "num_classes": next(iter(counts.values())),
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> Tables:
        rows = totals["rows"]
        *_, constant = varying_layers(rows["hsic"], rows["scales"], [list(models)])
        if constant:
            raise ValueError(
                "Expected models whose layers vary between images. "
                f"Received: {format_list(constant)}"
            )
        similarity = np.stack([m.value(totals["measures"][m.name], places) for m in measures])
        for measure, values in zip(measures, similarity, strict=True):
            if unknown := [x for x, row in zip(models, values, strict=True) if np.isnan(row).any()]:
                warnings.warn(
                    f"{measure.name} has no correlation, because it is NaN for some pairs of "
                    f"models ({measure.nan_reason}), which include {format_list(unknown)}",
                    stacklevel=2,
                )
        differences = {
            name: totals[name] / totals["examples"] for name in (DISAGREEMENT, DIVERGENCE)
        }
        if is_labelled:
            labels, num_classes = rows["labels"], mean_per_batch(totals, "num_classes")
            require_labels(labels, num_classes)
            accuracies = (rows["predicted"] == labels[:, None]).mean(axis=0)
            losses = np.array([probe_loss(x, labels, num_classes) for x in rows["vectors"]])
            for name, values in ((ACCURACY, accuracies), (PROBE_LOSS, losses)):
                differences[name] = np.abs(values[:, None] - values)
        return 1 - (similarity + similarity.swapaxes(1, 2)) / 2, differences, totals

    least = max(LEAST_EXAMPLES, *(measure.min_batch for measure in measures))
    return Statistic(step, finish, min_batch=least, with_labels=is_labelled)


def pairwise_divergence(scores: tf.Tensor, kind: ScoreKind) -> tf.Tensor:
    """Jensen-Shannon divergences (model, model, example) of scores (model, example, class)."""
    probabilities = class_probabilities(scores, kind)
    tiny = np.finfo(np.float64).tiny
    rows = []
    for own, own_scores in zip(tf.unstack(probabilities), tf.unstack(scores), strict=True):
        mixture = (probabilities + own) / 2
        of_mixture = tf.math.log(tf.maximum(mixture, tiny))
        if kind is not ScoreKind.SOFTMAX:
            of_mixture -= tf.math.log(tf.maximum(1 - mixture, tiny))
        parts = [class_divergence(x, of_mixture, kind) for x in (scores, own_scores[None])]
        rows.append(tf.add_n(parts) / 2)
    return tf.stack(rows)


def probe_loss(x: np.ndarray, labels: np.ndarray, num_classes: int) -> float:
    """Held-out squared error of ridge probes of one-hot labels, divided by that of their mean.

    A probe is fitted to every other vector (example, channel) of each class and tested on the rest,
    and the other way round.
    """
    # By class: labels that take turns would leave a half without some classes.
    order = np.argsort(labels, kind="stable")
    x, targets = x[order].astype(np.float64), np.eye(num_classes)[labels[order]]
    halves = slice(0, None, 2), slice(1, None, 2)
    error = total = 0.0
    for fitted, tested in (halves, halves[::-1]):
        mean, mean_target = x[fitted].mean(axis=0), targets[fitted].mean(axis=0)
        rows, own_targets = x[fitted] - mean, targets[fitted] - mean_target
        if len(rows) < rows.shape[1]:
            terms = {"rows": rows[None], "targets": own_targets}
        else:
            terms = {"xx": (rows.T @ rows)[None], "xy": (rows.T @ own_targets)[None]}
        penalty = PROBE_L2 * np.square(rows).sum() / rows.shape[1]
        # A layer that does not vary predicts nothing, and needs a penalty above 0.
        weights = ridge_weights(np.array([max(penalty, 1e-100)]), **terms)[0, 0]
        residual = targets[tested] - mean_target - (x[tested] - mean) @ weights
        error += np.square(residual).sum()
        total += np.square(targets[tested] - mean_target).sum()
    if not total:
        raise ValueError("Expected labels of two classes or more. Received: one class")
    return error / total


def as_table(name: str, values: ArrayLike, num_models: int) -> np.ndarray:
    """The mean of both directions of a caller's differences (model, model)."""
    table = np.asarray(values, np.float64)
    off_diagonal = table[~np.eye(*table.shape, dtype=bool)] if table.ndim == 2 else table
    if table.shape != (num_models, num_models) or not np.isfinite(off_diagonal).all():
        raise ValueError(
            f"Expected differences of shape ({num_models}, {num_models}), finite between different "
            f"models. Received: {name!r} of shape {table.shape}"
        )
    return (table + table.T) / 2


def correlate_pairs(
    dissimilarity: np.ndarray, difference: np.ndarray, resamples: int, seed: int
) -> dict[str, np.ndarray]:
    """Rank correlations of values (measure, pair) and (function, pair), intervals and p-values.

    The pairs are those of `np.triu_indices` of the models.
    """
    num_models = round((1 + np.sqrt(1 + 8 * dissimilarity.shape[1])) / 2)
    first, second = np.triu_indices(num_models, 1)
    # Values that differ by rounding errors are equal.
    x, y = (
        np.sign(values[:, :, None] - values[:, None])
        for values in (dissimilarity.round(DECIMALS), difference.round(DECIMALS))
    )
    rng = np.random.default_rng(seed)

    # A resample of models holds a pair as often as the product of the counts of its models.
    counts = rng.multinomial(num_models, np.full(num_models, 1 / num_models), size=resamples)
    counts = counts[(counts > 0).sum(axis=1) >= MIN_RESAMPLED]
    (correlation,) = rank_correlations(x, y, np.ones((1, len(first))))
    resampled = rank_correlations(x, y, counts[:, first] * counts[:, second])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "All-NaN slice", RuntimeWarning)
        low, high = np.nanquantile(resampled, (0.025, 0.975), axis=0)

    # Permuted models: the ranks of the differences move from pair to pair.
    position = np.zeros((num_models, num_models), int)
    position[first, second] = position[second, first] = np.arange(len(first))
    order = rng.permuted(np.tile(np.arange(num_models), (resamples, 1)), axis=1)
    ranks_x, ranks_y = x.sum(axis=-1), y.sum(axis=-1)
    moved = ranks_y[:, position[order[:, first], order[:, second]]]
    permuted = np.einsum("mp,frp->rmf", ranks_x, moved)
    is_extreme = np.abs(permuted) >= np.abs(ranks_x @ ranks_y.T) - 1e-6
    p_value = (1 + is_extreme.sum(axis=0)) / (1 + resamples)
    return {
        "correlation": correlation,
        "correlation_low": low,
        "correlation_high": high,
        "p_value": np.where(np.isnan(correlation), np.nan, p_value),
    }


def rank_correlations(x: np.ndarray, y: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Spearman's correlations (resample, measure, function), NaN where all values are equal.

    `x` (measure, pair, pair) and `y` (function, pair, pair) are the signs of the differences of the
    values of two pairs, and `weights` (resample, pair) say how often a resample holds a pair. The
    weighted sum of the signs is twice the deviation of a pair from the mean rank.
    """
    ranks_x, ranks_y = x @ weights.T, y @ weights.T
    covariance = np.einsum("mpr,fpr,rp->rmf", ranks_x, ranks_y, weights)
    squares_x, squares_y = (np.einsum("mpr,rp->rm", z**2, weights) for z in (ranks_x, ranks_y))
    with np.errstate(invalid="ignore"):
        return covariance / np.sqrt(squares_x[:, :, None] * squares_y[:, None])
