"""CKA of the last layers of many models, by part of the sequence."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
import tensorflow as tf
import xarray as xr

from ..engine.estimates import LEAST_EXAMPLES
from ..engine.front import measurement, statistic_of
from ..engine.results import PARTS, provenance
from ..engine.stream import Statistic, evaluate
from ..engine.tokens import as_tokens, require_grid
from ..engine.types import Images, Model
from .cka import ESTIMATOR, similarity, unscaled, with_errors
from .kernels import layer_gram, pairwise_hsic, unbiased


@measurement("tokens")
def last_layer_cka(
    models: Mapping[str, Model] | Sequence[Model] | Model, images: Images
) -> xr.Dataset:
    """Minibatch CKA between the last layers of any number of models, by part of the sequence.

    The estimator is that of `cka`, over all channels of the first token, or of all tokens with a
    place (Walmer et al. 2023, section 5.1, figures 6 and 19).

    Args:
        models: dict from a model's name to its features, a callable from images to taps with a
            `token_grid`. Its last tap is compared: tokens of shape (example, token, channel) or a
            map on the grid.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.

    Returns:
        Dataset with `cka` and `stderr` of shape (model_x, model_y, part). A model without prefix
        tokens has no part `"cls"`: NaN. The attribute `layers` names the tap of each model.

    Raises:
        ValueError: without models or grids, for a last tap that is not on its grid, and as `cka`.

    Examples:
        >>> similarity = analysis.last_layer_cka({"ViT": vit, "BiT": bit}, images)
        >>> similarity.cka.dims
        ('model_x', 'model_y', 'part')

    See also:
        `plots.plot_last_layer_cka`, `cka`; page measurements/similarity/last-layer.md.
    """
    statistic = last_layer_statistic(models)
    return evaluate(statistic, images, *models.values(), description="last layers")


@statistic_of(last_layer_cka)
def last_layer_statistic(models):
    """The `Statistic` of `last_layer_cka`, of the features of all `models`, in their order."""
    if not models:
        raise ValueError("Expected at least one model. Received: {}")
    grids = {name: require_grid(features, None) for name, features in models.items()}
    parts = [(n, part) for n, grid in grids.items() for part in PARTS[0 if grid.prefix else 1 :]]
    layers = {}  # the names of the last taps show when the features are called

    def step(images, *taps):
        grams = []
        for (name, grid), of in zip(grids.items(), taps, strict=True):
            layers[name] = list(of)[-1]
            grams += map(layer_gram, _parts(layers[name], of[layers[name]], grid))
        kernels, scales = unbiased(*map(tf.stack, zip(*grams, strict=True)))
        return {
            "rows": {"hsic": pairwise_hsic(kernels, kernels)[None], "scales": scales[None]},
            "examples": tf.shape(images)[0],
        }

    def finish(totals):
        hsic, squares = unscaled(totals["rows"]["hsic"], totals["rows"]["scales"])
        values = similarity(hsic, squares, [f"{part} of {name}" for name, part in parts])
        facts = provenance(next(iter(models.values())), totals["examples"], len(hsic))
        facts["remainder"] = int(totals["remainder"])
        del facts["model"]  # there are many
        return _labelled(values, parts, list(models), facts | {"layers": list(layers.values())})

    return Statistic(step, finish, min_batch=LEAST_EXAMPLES)


def _parts(tap, values, grid):
    """The prefix token that comes first, where there is one, and the spatial tokens."""
    tokens = as_tokens(tap, values)
    if tokens.shape[1] != grid.num_tokens:
        raise ValueError(
            f"Expected the last tap to have the {grid.num_tokens} tokens of {grid}. "
            f"Received: {tap!r} of shape {tuple(values.shape)}"
        )
    return [*([grid.first(tokens)] if grid.prefix else []), grid.spatial(tokens)]


def _labelled(values, parts, names, attributes):
    """The result, from the CKA and its error of all pairs of `parts`, pairs of model and part."""
    places = {
        part: [(place, names.index(name)) for place, (name, p) in enumerate(parts) if p == part]
        for part in PARTS
    }
    whole = np.full((2, len(names), len(names), len(PARTS)), np.nan)
    for index, found in enumerate(places.values()):
        if found:
            rows, models = (np.array(numbers) for numbers in zip(*found, strict=True))
            chosen = np.stack(values)[:, rows[:, None], rows]
            whole[:, models[:, None], models, index] = chosen
    coords = {"model_x": names, "model_y": names, "part": list(PARTS)}
    return with_errors(*whole, coords).assign_attrs(attributes | {"estimator": ESTIMATOR})
