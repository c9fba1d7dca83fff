"""Several measures of the similarity of layers, in one pass."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr
from scipy.stats import rankdata

from vit_tf.common.names import format_list
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import as_tokens, pool
from ..engine.preparation import ImagesLike, prepare_pair
from ..engine.results import POOLED, dataset_of, model_name, provenance, require_word, variable
from ..engine.standard_errors import jackknife
from ..engine.stream import Statistic, Totals, evaluate
from .cka import LEAST_EXAMPLES, names_of_layers, sides, varying_layers
from .measures import (
    Layers,
    Measure,
    Places,
    cca,
    linear_cka,
    linear_predictivity,
    mutual_knn,
    procrustes,
    pwcca,
    rbf_cka,
    rsa,
    svcca,
    token_cka,
)

DECIMALS = 6  # to which similarities are compared
# By name, with their usual settings.
MEASURES = {
    "cka": linear_cka,
    "rbf_cka": rbf_cka,
    "token_cka": token_cka,
    "procrustes": procrustes,
    "svcca": svcca,
    "cca": cca,
    "pwcca": pwcca,
    "rsa_pearson": rsa,
    "rsa_spearman": lambda: rsa("spearman"),
    "mutual_knn": mutual_knn,
    "linear_predictivity": linear_predictivity,
}


@measurement(arguments="{model}, {images}, {other}")
def similarities(
    features_x: ModelLike,
    images: ImagesLike | None = None,
    features_y: ModelLike | None = None,
    measures: Sequence[str | Measure] | None = None,
    tokens: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Several similarity measures between layers of one or two models, in one pass over the images.

    The measures are `cka`, `rbf_cka`, `token_cka`, `procrustes`, `svcca`, `cca`, `pwcca`, `rsa`,
    `mutual_knn` and `linear_predictivity`. The docstring of each measure describes its range and
    its invariances.

    Most measures are computed on each batch and averaged over batches, so their values depend on
    the batch size. The CKA measures and `linear_predictivity` are ratios of sums over all batches.
    Drop a last batch that is much smaller than the others.

    All measures except `token_cka` and `pwcca` use only the kernel of each layer, of shape
    (example, example). This kernel is computed once per batch for all measures. Therefore, memory
    does not grow with the width of a layer or the number of batches: each layer needs about eight
    float64 matrices of shape (example, example).

    Args:
        features_x: a model, or a callable from images to `{layer: tensor of shape (example, ...)}`.
            If `images` is not given, `features_x` is a dict from layer to an array of precomputed
            activations, of shape (example, ...).
        images: as in `vit_tf.analysis`.
        features_y: the second model, or its precomputed activations. By default, the layers of the
            first model are compared with each other.
        measures: list of measure names, or of measures with their own settings, such as `["cka",
            rbf_cka(0.2)]`. The default is all measures. If `tokens` is given, the default does not
            include `"token_cka"`.
        tokens: how an image is represented by a layer. The default uses all activations of the
            layer, flattened, as in `cka`. `"cls"` uses the CLS token, `"spatial"` the mean of the
            spatial tokens, and `"all"` the mean of all tokens.

    Returns:
        Dataset with the following variables and attributes.

        * `similarity`, of shape (measure, layer_x, layer_y): the similarities. If a measure is
          undefined for a pair of layers, the value is NaN, and a warning names the reason.
        * `stderr`, of the same shape: the standard error, a jackknife over batches. With a single
          batch, `stderr` is NaN, with a warning.
        * `disagreement`, of shape (layer_x, layer_y): how differently the measures rank a pair of
          layers. Each measure ranks all pairs from 0 (the least similar pair) to 1 (the most
          similar pair); the disagreement is the largest rank of the pair minus its smallest rank.
        * `invariant`, of shape (measure,): the invariances of each measure, in words.
        * The attribute `settings` holds the settings of the measures. The attribute `remainder`
          counts the examples in a last batch that was too small. The attribute `constant_layers`
          names the layers without values, whose activations do not vary.

    Raises:
        ValueError: if a measure is unknown or repeated, or if `tokens` is unknown. It is also
            raised if a batch other than the last is smaller than a measure requires, if all layers
            of a model are constant, or if activations are not finite (the message names the layer).

    Examples:
        >>> similarity = analysis.similarities(vit, images, measures=["cka", analysis.rbf_cka(0.2)])
        >>> similarity.similarity.dims
        ('measure', 'layer_x', 'layer_y')
        >>> similarity.measure.values.tolist()
        ['cka', 'rbf_cka']
        >>> ax = analysis.plot(similarity)

    See also:
        `plots.plot_similarities`, `cka`; page measurements/similarity/measures.md.
    """
    features, batches = prepare_pair(features_x, images, features_y, layers=layers, detail=detail)
    statistic = similarities_statistic(*features, measures=measures, tokens=tokens)
    return evaluate(statistic, batches, *features, description="similarities")


@statistic_of(similarities)
def similarities_statistic(
    features_x: Features,
    features_y: Features | None = None,
    measures: Sequence[str | Measure] | None = None,
    tokens: str | None = None,
) -> Statistic[xr.Dataset]:
    """The `Statistic` of `similarities`."""
    selected = select_measures(measures, tokens)
    models = (features_x,) if features_y is None else (features_x, features_y)
    grids = [features.facts.grid for features in models]
    names = [measure.name for measure in selected]

    def places_of(layers: list[list[str]]) -> Places:
        return Places(*(side.tolist() for side in sides(layers)))

    def step(images: tf.Tensor, *taps: Taps) -> dict[str, Any]:
        values_of_models = list(taps)
        if tokens is not None:
            values_of_models = [pool(x, tokens, grid) for x, grid in zip(taps, grids, strict=True)]
        pairs = [pair for values in values_of_models for pair in values.items()]
        single = [as_tokens(*pair) for pair in pairs] if "token_cka" in names else None
        batch, every = Layers([x for _, x in pairs], single), places_of(list(map(list, taps)))
        terms = {measure.name: measure.terms(batch, every) for measure in selected}
        rows = {"measures": terms, "hsic": batch.hsic, "scales": batch.unbiased[1]}
        return {
            "rows": tf.nest.map_structure(lambda x: x[None], rows),
            "layers": names_of_layers(taps),
            "examples": tf.shape(images)[0],
        }

    def finish(totals: Totals) -> xr.Dataset:
        rows, layers = totals["rows"], list(map(list, totals["layers"]))
        x, y, varying, constant = varying_layers(rows["hsic"], rows["scales"], layers)

        def values(sums: dict[str, Any]) -> np.ndarray:
            every = places_of(layers)
            return np.stack([measure.value(sums[measure.name], every) for measure in selected])

        sums = tf.nest.map_structure(lambda x: x.astype(np.float64), rows["measures"])
        with np.errstate(invalid="ignore", divide="ignore"):  # of layers that are left out
            estimates = jackknife(values, sums)
        first_y = sides(layers)[1][0]
        value, stderr = (part[:, x][:, :, y - first_y] for part in estimates)
        coords = {"measure": names} | varying
        # Warns of measures that are undefined for some pairs of layers.
        for measure, unknown in zip(selected, np.isnan(value), strict=True):
            pairs = zip(coords["layer_x"], unknown, strict=True)
            if layers_without := [layer for layer, row in pairs if row.any()]:
                warnings.warn(
                    f"{measure.name} is NaN for {unknown.sum()} of {unknown.size} pairs of layers "
                    f"({measure.nan_reason}), which include {format_list(layers_without)}",
                    stacklevel=2,
                )
        dims = tuple(coords)
        variables = {
            "similarity": variable(dims, value, "measures of similarity"),
            "stderr": variable(dims, stderr, "standard error of the similarity"),
            "disagreement": variable(dims[1:], disagreement(value), "disagreement of the measures"),
            "invariant": ("measure", [measure.invariant for measure in selected]),
        }
        # What the values depend on: models, estimator, and the settings of each measure.
        facts = provenance(
            models[0],
            totals["examples"],
            len(rows["hsic"]),
            model_x=model_name(models[0]),
            model_y=model_name(models[-1]),
            estimator="of the images of each batch; jackknife over batches",
            units="1",
            settings=[
                f"{measure.name}: {name}={value:g}"
                for measure in selected
                for name, value in measure.settings.items()
            ],
            remainder=int(totals["remainder"]),
            constant_layers=constant,
            tokens=tokens or "flattened",
        )
        return dataset_of(variables, facts, **coords)

    least = max(LEAST_EXAMPLES, *(measure.min_batch for measure in selected))
    return Statistic(step, finish, min_batch=least)


def disagreement(values: np.ndarray) -> np.ndarray:
    """How differently measures rank each pair of layers: from 0 to 1, (layer_x, layer_y).

    The rank of a pair is the share of the other pairs that are less similar by a measure, equal
    values (to six decimals) sharing the mean of theirs. The largest less the smallest rank by any
    measure: 0 where all agree, 1 where a pair is the most similar by one and the least by another.
    """
    places = np.full(values.shape, np.nan)
    for place, measure_values in zip(places, values, strict=True):
        has_value = np.isfinite(measure_values)
        # A layer is as similar to itself as any other is to itself, but for rounding errors.
        rounded = np.round(measure_values[has_value], DECIMALS)
        place[has_value] = (rankdata(rounded) - 1) / max(has_value.sum() - 1, 1)
    return np.fmax.reduce(places) - np.fmin.reduce(places)  # of those that are not NaN


def select_measures(measures: Sequence[str | Measure] | None, tokens: str | None) -> list[Measure]:
    """The list of `Measure`; a `ValueError` for what is none."""
    if tokens is not None:
        require_word(tokens, POOLED)
    if measures is None:
        measures = [name for name in MEASURES if tokens is None or name != "token_cka"]
    known = [isinstance(measure, Measure) or measure in MEASURES for measure in measures]
    if not all(known) or not known or isinstance(measures, str):
        raise ValueError(f"Expected measures among {list(MEASURES)}. Received: {measures}")
    selected = [
        measure if isinstance(measure, Measure) else MEASURES[measure]() for measure in measures
    ]
    names = [measure.name for measure in selected]
    if len(set(names)) < len(names):
        raise ValueError(f"Expected every measure once. Received: {names}")
    if tokens is not None and "token_cka" in names:
        raise ValueError(
            f"token_cka does not support tokens={tokens!r}: leave out token_cka or tokens=. "
            f"Received: {names}"
        )
    return selected
