"""Properties of layers and of predictions: dimension, frequencies, equivariance, robustness."""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..engine.results import layer_names, require_word, select_labels
from . import style
from .primitives import draw_band, draw_lines, draw_matrix, panels
from .rule import draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIMENSIONS = {
    "two_nn": "intrinsic dimension (TwoNN)",
    "participation_ratio": "participation ratio",
    "effective_rank": "effective rank",
}


@draws(dict.fromkeys(("dimension", "stderr"), "measure layer"), several=True)
def plot_intrinsic_dimension(
    results: style.Datasets,
    ax: "Axes | None",
    *,
    measure: str | None = None,
    baselines: list[str] = (),
) -> "Axes":
    """Intrinsic dimension, participation ratio and effective rank by layer, on a log scale.

    A line per result and measure, with a band of the 95 % CI.

    Args:
        measure: `"two_nn"`, `"participation_ratio"` or `"effective_rank"`; all if None.
    """
    measures = [measure] if measure is not None else list(DIMENSIONS)
    values = style.labelled(results, "dimension")
    errors = style.labelled(results, "stderr")
    for name in measures:
        require_word(name, tuple(DIMENSIONS), "measure")
    pairs = [(label, name) for label in values for name in measures]
    lines = {(label, name): values[label].sel(measure=name) for label, name in pairs}
    bands = {(label, name): errors[label].sel(measure=name) for label, name in pairs}
    kinds = {name: DIMENSIONS[name] for name in measures}
    labels = {"title": style.titled("Dimension of representations", results)}
    labels |= {"ylabel": kinds[measure] if measure else "number of dimensions"}
    ax = draw_lines(lines, kinds, ax, baselines, errors=bands, **labels)
    ax.set_yscale("log")
    style.plain_log(ax.yaxis)
    return ax


@draws(dict.fromkeys(("amplitude", "stderr"), "layer frequency"), several=True)
def plot_frequency_amplitude(
    results: style.Datasets,
    ax: "Axes | None",
    *,
    frequency: float = 1.0,
    baselines: list[str] = (),
) -> "Axes":
    """Log amplitude at a high frequency by layer (Figure 2 of Park and Kim 2022).

    A line per result, with a band of the 95 % CI.

    Args:
        frequency: one of the result's fractions of the highest frequency.
    """
    words = "log amplitude relative to frequency 0"
    lines, errors = (
        {
            (label, words): select_labels(values, frequency=frequency)
            for label, values in style.labelled(results, name).items()
        }
        for name in ("amplitude", "stderr")
    )
    share = "the highest frequency" if frequency == 1 else f"{frequency:g} of the highest frequency"
    labels = {"title": style.titled(f"Amplitude at {share}", results), "ylabel": words}
    return draw_lines(lines, {words: words}, ax, baselines, errors=errors, **labels)


@draws(dict.fromkeys(("error", "stderr"), "transform layer"), several=True)
def plot_equivariance_error(
    results: style.Datasets, ax: "Axes | None", *, baselines: list[str] = ()
) -> "Axes":
    """Equivariance error by layer and transform.

    A line per result and transform, with a band of the 95 % CI. Missing points are shifts that are
    no whole number of a layer's positions.
    """
    lines = style.split(style.labelled(results, "error"), "transform")
    errors = style.split(style.labelled(results, "stderr"), "transform")
    kinds = {name: name for _, name in lines}
    labels = {"title": style.titled("Equivariance error of layers", results)}
    labels |= {"ylabel": "equivariance error\n(0: moves along, 1: another image)"}
    return draw_lines(lines, kinds, ax, baselines, errors=errors, **labels)


@draws(
    {
        **dict.fromkeys(("accuracy", "accuracy_change_stderr"), "perturbation strength"),
        "intact_accuracy": "",
    },
    several=True,
    panels="(perturbation,)",
    example="analysis.robustness(model, (images, labels))",
)
def plot_robustness(
    results: style.Datasets, ax: "Axes | None", *, baselines: list[str] = ()
) -> "Axes":
    """Accuracy over the strength of every perturbation (Figures 3 and 8 of Naseer et al. 2021).

    A line per result, with a band of the 95 % CI of the change from intact images.
    """
    named = style.by_label(results)
    perturbations = layer_names(next(iter(named.values())), "perturbation")
    title = style.titled("Accuracy on perturbed images", results)
    columns = (len(perturbations) + 1) // 2 if len(perturbations) > 3 else len(perturbations)
    layout = {"columns": columns, "inches": (2.2, 1.9), "size": 9}
    ax, flat = panels(ax, len(perturbations), title, perturbations, **layout)
    colours = style.line_colours(named, baselines)
    for index, (panel, perturbation) in enumerate(zip(flat, perturbations, strict=True)):
        for label, result in named.items():
            part = result.sel(perturbation=perturbation)
            strength = np.append(0.0, part["strength"].values)
            accuracy = np.append(result["intact_accuracy"].item(), part["accuracy"].values)
            errors = np.append(0.0, part["accuracy_change_stderr"].values)
            look = {"color": colours[label], "marker": "o", "markersize": 3}
            panel.plot(strength, accuracy, label=label or "accuracy", **look)
            draw_band(panel, strength, accuracy, 1.96 * errors, colours[label])
        style.tidy(panel, ylim=(0, 1))
        style.percent(panel.yaxis)
        panel.tick_params(labelsize=7.5)
        if index // columns == (len(perturbations) - 1) // columns:
            panel.set_xlabel("strength", fontsize=8)
        if index % columns == 0:
            panel.set_ylabel("accuracy (%)", fontsize=8)
    if len(named) > 1:
        flat[0].legend(fontsize=7.5, frameon=False)
    return ax


STITCHED = {
    "loss_change": "change in cross-entropy (nat)",
    "accuracy_change": "change in accuracy",
    "output_change": "divergence of predictions (nat)",
}


@draws(
    dict.fromkeys(STITCHED, "layer_x layer_y"),
    example="analysis.stitching(model, model, images, (images, labels))",
    see="plot_cka",
)
def plot_stitching(result: xr.Dataset, ax: "Axes | None", *, change: str = "loss_change") -> "Axes":
    """Change of the second model's predictions behind a linear map of a layer of the first.

    `layer_x`, which is mapped, left to right, and `layer_y`, which is replaced, bottom up.
    """
    require_word(change, tuple(STITCHED), "change")
    models = style.models(result)
    cmap = style.colours("magma" if change == "accuracy_change" else "magma_r")
    look = {"models": models, "cmap": cmap, "bar": STITCHED[change], **style.span(result[change])}
    return draw_matrix(result[change], ax, title="Predictions behind stitched layers", **look)[0]
