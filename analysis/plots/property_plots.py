"""Properties of layers and of predictions: dimension, frequencies, equivariance, robustness."""

from typing import TYPE_CHECKING

from ..engine.results import require_word, select_labels
from . import style
from .primitives import draw_lines
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
