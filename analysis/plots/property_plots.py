"""Properties of layers and of predictions: dimension, frequencies, equivariance, robustness."""

from typing import TYPE_CHECKING

from ..engine.results import require_word
from . import style
from .primitives import draw_lines

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIMENSIONS = {
    "two_nn": "intrinsic dimension (TwoNN)",
    "participation_ratio": "participation ratio",
    "effective_rank": "effective rank",
}


def plot_intrinsic_dimension(
    results: style.Datasets,
    ax: "Axes | None" = None,
    measure: str | None = None,
    baselines: list[str] = (),
) -> "Axes":
    """Intrinsic dimension, participation ratio and effective rank by layer, on a log scale.

    Args:
        results: Dataset with `dimension` of dims (measure, layer) from `intrinsic_dimension`, or a
            dict from label to several.
        measure: `"two_nn"`, `"participation_ratio"` or `"effective_rank"`; all if None.

    Returns:
        The axes: a line per result and measure, with a band of the 95 % CI.

    Raises:
        ValueError: for a result of another measurement, or an unknown measure.

    Examples:
        >>> dimension = analysis.intrinsic_dimension(model, images)
        >>> ax = analysis.plots.plot_intrinsic_dimension(dimension, measure="two_nn")

    See also:
        `intrinsic_dimension`.
    """
    measures = [measure] if measure is not None else list(DIMENSIONS)
    values = style.labelled(results, ("measure", "layer"), "dimension")
    errors = style.labelled(results, ("measure", "layer"), "stderr")
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
