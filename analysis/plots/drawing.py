"""Plots of several results in one figure, made of the plots of one."""

import numpy as np
import xarray as xr

from .lines import plot_attention_distance
from .localization import plot_localization
from .probes import plot_probe_variants as plot_variants
from .probes import plot_ridge_probe
from .similarity import plot_counterparts


def plot_localization_by_layer(result):
    """`plot_localization` of all layers."""
    return plot_localization(result, layer=list(result.layer.values))


# What heads of each kind do, in a sentence.
KINDS = {
    "strict": "look at their own token",
    "soft": "look at their own token and around it",
    "axial": "look along a row or a column",
    "offset": "look at a neighbour in one direction",
    "global": "look everywhere in the image",
    "none": "attend to no place",
}


def one_kind(results):
    """The sentence for a model whose attention heads are all of one kind; None for others."""
    (result,) = results.values()
    kinds, directions = (np.unique(result[name]) for name in ("kind", "direction"))
    if len(kinds) > 1 or len(directions) > 1:
        return None
    along = f" ({directions[0]})" if directions[0] else ""
    return (
        f"All {result['kind'].size} heads, of {result.sizes['layer']} layers, are of one kind, "
        f"{kinds[0]}{along}: they {KINDS[kinds[0]]}."
    )


def plot_attention_distances(results):
    """A panel for each model, at most three a row, on one scale."""
    import matplotlib.pyplot as plt

    columns = min(3, len(results))
    rows = -(-len(results) // columns)
    size = (3.8 * columns + 1.8, 3.6 * rows + 0.6)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    figure.suptitle("Mean attention distance")
    drawn = axes.ravel()[: len(results)]
    for ax in axes.ravel()[len(results) :]:
        ax.remove()
    for ax, (name, result) in zip(drawn, results.items(), strict=True):
        plot_attention_distance(result, ax=ax).set_title(name, fontsize=10)
    top = max(ax.get_ylim()[1] for ax in drawn)
    layers = {tuple(result.layer.values) for result in results.values()}
    for ax in drawn:
        ax.set_ylim(0, top)
        if len(layers) == 1 and ax is not axes[0, -1] and ax.get_legend():
            ax.get_legend().remove()
    return drawn


def plot_token_probes(results):
    """A line for each model, and the range of its tokens that have a place."""
    ax = None
    for name, result in results.items():
        spatial = result.isel(token=slice(int(result.attrs["prefix"]), None))
        ax = plot_ridge_probe(spatial, ax=ax, label=name)
    return ax


def plot_summary_probes(results):
    """Lines for each model and summary of its tokens, at the layers that have them all."""
    shared = {}
    for label, result in results.items():
        layers = shared.setdefault(label.partition(": ")[0], list(result.layer.values))
        layers[:] = [layer for layer in layers if layer in result.layer.values]
    chosen = {
        label: result.sel(layer=shared[label.partition(": ")[0]])
        for label, result in results.items()
    }
    return plot_variants(chosen)


def plot_probes(results):
    """One line for each model, with bars where there are several trainings of it.

    Args:
        results: dict from label to accuracy of dims (layer,); further trainings of a model are
            labelled "MODEL: seed 1".
    """
    trainings, ax = {}, None
    for label, result in results.items():
        trainings.setdefault(label.partition(": seed ")[0], []).append(result)
    for model, seeds in trainings.items():
        result = xr.concat(seeds, dim="seed", combine_attrs="drop_conflicts")
        ax = plot_ridge_probe(result, ax=ax, label=model)
    return ax


def plot_data_scale(results):
    """A line for each share of the training images."""
    (result,) = results.values()
    lines = {
        f"{100 * share:g} % of the data": result.sel(fraction=share)
        for share in result.fraction.values
    }
    return plot_counterparts(lines)
