"""How representations form while a model is trained: layers against epochs."""

import numpy as np

from . import style
from .layers import FONT_SIZE, layer_label, name_layers, shorten

# Title, colour map and label of the colour bar of each quantity.
PANELS = {
    "cka_to_start": ("similarity to the start", "magma", "CKA"),
    "cka_to_previous": ("similarity to the record before", "magma", "CKA"),
    "accuracy": ("ridge classifier", "viridis", "test accuracy (%)"),
}
WIDTH = 3.4  # inches of a panel


def plot_formation(result, axes=None):
    """Layers against epochs: how far from the start they are, how much they move, what they tell.

    Args:
        result: Dataset of dims (epoch, layer) from `FormationRecorder.result`.
        axes: array of at least as many Matplotlib axes as quantities; new ones if None.

    Returns:
        ndarray of shape (quantity,) of the axes, a heatmap each: `cka_to_start`, `cka_to_previous`,
        colours fixed to [0, 1], and `accuracy` where there is one, colours from the lowest to the
        highest. Layers run upwards, and each record fills the place around its epoch.

    Raises:
        ValueError: if `result` is no such Dataset, or there are too few axes.
    """
    names = [name for name in PANELS if name != "accuracy" or name in result]
    values = [style.expect_variable(result, name, ("epoch", "layer")) for name in names]
    axes = _new_axes(len(names), result) if axes is None else axes
    axes = style.expect_axes(axes, len(names), "quantity")
    for ax, name, of in zip(axes, names, values, strict=True):
        _draw(ax, of, *PANELS[name], limits=(None, None) if name == "accuracy" else (0, 1))
    axes[0].set_ylabel(layer_label(shorten(style.layer_names(result))[1]))
    return axes


def _draw(ax, values, title, colours, label, limits):
    """One heatmap, with its colour bar."""
    epochs, layers = values["epoch"].values, style.layer_names(values)
    low, high = limits
    image = ax.pcolormesh(
        _edges(epochs),
        np.arange(len(layers) + 1) - 0.5,
        np.ma.masked_invalid(values.values.T),
        cmap=style.colours(colours),
        vmin=low,
        vmax=high,
    )
    ax.set_facecolor("0.85")  # where there is no value
    ax.set_title(title, fontsize=10)
    ax.set_xlabel("epoch")
    ax.tick_params(labelsize=FONT_SIZE)
    ax.xaxis.get_major_locator().set_params(integer=True)
    name_layers(ax, "y", shorten(layers)[0], np.arange(len(layers)))
    ax.label_outer()
    bar = style.colour_bar(ax, image, label)
    if limits == (None, None):
        bar.ax.yaxis.set_major_formatter(lambda share, _: f"{100 * share:g}")


def _edges(epochs):
    """Between neighbouring epochs, and as far beyond the first and last."""
    epochs = np.asarray(epochs, float)
    if len(epochs) == 1:
        return np.array([epochs[0] - 0.5, epochs[0] + 0.5])
    middle = (epochs[1:] + epochs[:-1]) / 2
    return np.concatenate([[2 * epochs[0] - middle[0]], middle, [2 * epochs[-1] - middle[-1]]])


def _new_axes(count, result):
    """Axes in a row, under the name of the model."""
    import matplotlib.pyplot as plt

    size = (WIDTH * count + 0.8, 0.8 * style.side(result.sizes["layer"]) + 0.9)
    figure, axes = plt.subplots(1, count, figsize=size, layout="constrained", squeeze=False)
    figure.suptitle(style.titled("How representations form", result), fontsize=11)
    return axes.ravel()
