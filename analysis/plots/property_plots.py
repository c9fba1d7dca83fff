"""Properties of layers and of predictions: dimension, frequencies, equivariance, robustness."""

from typing import TYPE_CHECKING

from ..engine.results import require_word
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
