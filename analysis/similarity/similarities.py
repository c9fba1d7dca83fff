"""Several measures of the similarity of layers, in one pass."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from itertools import chain

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.names import listed

from ..engine.estimates import LEAST_EXAMPLES, ranks
from ..engine.features import Images, Model, measurement, statistic_of
from ..engine.pooling import as_tokens, grid_of, pool
from ..engine.results import POOLED, model_name, provenance, require_word, variable
from ..engine.stream import Statistic, evaluate
from .cka import jackknife, varying_layers
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


@measurement()
def similarities(
    features_x: Model,
    images: Images | None = None,
    features_y: Model | None = None,
    measures: Sequence[str | Measure] | None = None,
    tokens: str | None = None,
) -> xr.Dataset:
    """Several measures of the similarity of layers, of one or two models, in one pass over images.

    The measures are those of `cka`, `rbf_cka`, `token_cka`, `procrustes`, `svcca`, `cca`, `pwcca`,
    `rsa`, `mutual_knn` and `linear_predictivity`, which describe their invariances and scales.
    All but `token_cka` and `pwcca` follow from the images x images kernels of a batch, which are
    made once for all of them: memory does not grow with the width of a layer nor with the number of
    batches, but with layers x n x n for batches of n images, of which about eight float64 matrices
    are held for each layer. The batch is the sample that a measure is of: its size is part of the
    definition, no image is left out, and the values of batches are averaged (of CKA and of
    `linear_predictivity`, summed before the ratio). Drop a remainder that is much smaller.

    Args:
        features_x: a model, or a callable from images to `{layer: tensor of shape (example, ...)}`;
            or, without images, activations at hand: `{layer: array of shape (example, ...)}`.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        features_y: the second model, or its activations; by default the layers of the first are
            compared.
        measures: list of names or of measures with settings of their own, `["cka", rbf_cka(0.2)]`;
            by default all, of pooled tokens all but `"token_cka"`.
        tokens: what stands for an image: by default all activations of a layer, flattened, as in
            `cka`; or `"cls"`, the mean of the `"spatial"` tokens, or of `"all"`.

    Returns:
        Dataset with `similarity` and `stderr`, both of shape (measure, layer_x, layer_y),
        `disagreement` of shape (layer_x, layer_y), as `disagreement` makes it, and
        `invariant(measure)`, in words. The standard error is the jackknife over batches; of a
        single batch it is NaN, with a warning. A pair of layers without a value is NaN, with a
        warning that names the reason. In the attributes `settings` are those of the measures,
        `remainder` counts the examples of a last batch too small, and `constant_layers` names the
        layers that were left out.

    Raises:
        ValueError: for unknown or repeated measures or `tokens`, a batch, not the last of several,
            that is smaller than a measure asks for, a model of constant layers only, or activations
            that are not finite; the layer is named.

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
    features = (features_x,) if features_y is None else (features_x, features_y)
    statistic = similarities_statistic(*features, measures=measures, tokens=tokens)
    return evaluate(statistic, images, *features, description="similarities")


@statistic_of(similarities)
def similarities_statistic(features_x, features_y=None, measures=None, tokens=None):
    """The `Statistic` of `similarities`: of one model's taps, or of two."""
    chosen = _chosen(measures, tokens)
    models = (features_x,) if features_y is None else (features_x, features_y)
    grids = [grid_of(features, None) for features in models]
    names = []  # of the layers of each model show in its taps

    def step(images, *taps):
        names[:] = [list(of) for of in taps]
        layers = _layers(taps, grids, tokens, "token_cka" in [one.name for one in chosen])
        places = _places(names)
        each = {one.name: one.terms(layers, places) for one in chosen}
        rows = {"measures": each, "hsic": layers.hsic, "scales": layers.unbiased[1]}
        return {
            "rows": tf.nest.map_structure(lambda x: x[None], rows),
            "examples": tf.shape(images)[0],
        }

    def finish(totals):
        rows, places, layers = totals["rows"], _places(names), list(chain(*names))
        numbers = tuple(map(np.array, (places.x, places.y)))
        varies, constant = varying_layers(rows["hsic"], rows["scales"], layers, numbers)

        def values(sums):
            return np.stack([one.value(sums[one.name], places) for one in chosen])

        rows = tf.nest.map_structure(lambda x: x.astype(np.float64), rows["measures"])
        with np.errstate(invalid="ignore", divide="ignore"):  # of layers that are left out
            found = jackknife(values, rows)
        kept = [of[varies[of]] for of in numbers]
        found = [part[:, varies[numbers[0]]][:, :, varies[numbers[1]]] for part in found]
        coords = {"measure": [one.name for one in chosen]}
        coords |= {
            f"layer_{side}": np.array(layers)[of].tolist()
            for side, of in zip("xy", kept, strict=True)
        }
        _warn_unknown(chosen, found[0], coords)
        facts = {"remainder": int(totals["remainder"]), "constant_layers": constant}
        batches = len(totals["rows"]["hsic"])
        facts |= {"tokens": tokens or "flattened"}
        attributes = _attributes(models, chosen, totals["examples"], batches, facts)
        return _labelled(found, coords, chosen).assign_attrs(attributes)

    least = max(LEAST_EXAMPLES, *(one.min_batch for one in chosen))
    return Statistic(step, finish, min_batch=least)


def disagreement(values):
    """How differently measures rank each pair of layers: from 0 to 1.

    The rank of a pair is the share of the other pairs that are less similar by a measure, pairs of
    one value sharing the mean of theirs. The largest rank by any measure minus the smallest
    is 0 where all agree, 1 where a pair is the most similar by one and the least by another.

    Args:
        values: array of shape (measure, layer_x, layer_y), NaN where there is no value.

    Returns:
        Array of shape (layer_x, layer_y); NaN where no measure has a value.
    """
    places = np.full(values.shape, np.nan)
    for place, of in zip(places, values, strict=True):
        known = np.isfinite(of)
        place[known] = ranks(of[known]) / max(known.sum() - 1, 1)
    known = np.isfinite(places)
    low, high = np.where(known, places, 1.0), np.where(known, places, 0.0)
    return np.where(known.any(axis=0), high.max(axis=0) - low.min(axis=0), np.nan)


def _chosen(measures, tokens):
    """The list of `Measure`; a `ValueError` for what is none."""
    if tokens is not None:
        require_word(tokens, POOLED)
    if measures is None:
        measures = [name for name in MEASURES if tokens is None or name != "token_cka"]
    unknown = [one for one in measures if not isinstance(one, Measure) and one not in MEASURES]
    if unknown or not len(measures) or isinstance(measures, str):
        raise ValueError(f"Expected measures among {list(MEASURES)}. Received: {measures}")
    chosen = [one if isinstance(one, Measure) else MEASURES[one]() for one in measures]
    names = [one.name for one in chosen]
    if len(set(names)) < len(names):
        raise ValueError(f"Expected every measure once. Received: {names}")
    if tokens is not None and "token_cka" in names:
        raise ValueError(
            f"Expected measures of single vectors with tokens={tokens!r}. Received: {names}"
        )
    return chosen


def _layers(taps, grids, tokens, single):
    """The `Layers` of a batch, of all models."""
    if tokens is not None:
        taps = [pool(of, tokens, grid) for of, grid in zip(taps, grids, strict=True)]
    pairs = [pair for of in taps for pair in of.items()]
    kept = [as_tokens(tap, values) for tap, values in pairs] if single else None
    return Layers([values for _, values in pairs], kept)


def _places(names):
    """The `Places` of the layers of one model, or of two one after the other."""
    count = [len(of) for of in names]
    return Places(list(range(count[0])), list(range(sum(count)))[-count[-1] :])


def _warn_unknown(chosen, values, coords):
    """A warning for each measure that some pairs of layers have no value of."""
    for one, of in zip(chosen, values, strict=True):
        bad = np.isnan(of)
        layers = [n for n, row in zip(coords["layer_x"], bad, strict=True) if row.any()]
        if layers:
            warnings.warn(
                f"{one.name} is NaN for {bad.sum()} of {bad.size} pairs of layers, {one.unknown}: "
                f"those with {listed(layers)}",
                stacklevel=2,
            )


def _attributes(models, chosen, examples, batches, facts):
    settings = [
        f"{one.name}: {name}={value:g}" for one in chosen for name, value in one.settings.items()
    ]
    names = {"model_x": model_name(models[0]), "model_y": model_name(models[-1])}
    estimator = "of the images of each batch; jackknife over batches"
    facts = names | {"estimator": estimator, "units": "1", "settings": settings} | facts
    return provenance(models[0], examples, batches, **facts)


def _labelled(found, coords, chosen):
    """The Dataset of the values and their standard errors."""
    dims = tuple(coords)
    words = "measures of similarity", "standard error of the similarity"
    variables = {
        name: variable(dims, values, word)
        for name, values, word in zip(("similarity", "stderr"), found, words, strict=True)
    }
    apart = disagreement(found[0])
    variables["disagreement"] = variable(dims[1:], apart, "disagreement of the measures")
    variables["invariant"] = ("measure", [one.invariant for one in chosen])
    return xr.Dataset(variables, coords)
