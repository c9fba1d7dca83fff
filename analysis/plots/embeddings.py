"""The first layer of a Vision Transformer: filters of patches, similarity of positions."""

import numpy as np

from . import style
from .layers import FONT_SIZE


def plot_patch_filters(result, axes=None):
    """Principal components of the filters that embed patches (Figure 7 left of the ViT paper).

    Args:
        result: DataArray of dims (component, row, column, channel) from `patch_filters`, of one
            channel (drawn grey) or three (red, green, blue).
        axes: array of at least as many Matplotlib axes as components; new ones if None.

    Returns:
        ndarray of shape (components,) of the axes, each entitled with the share of the variance
        that the component explains. Every tile is scaled to its own range, darkest to brightest.

    Raises:
        ValueError: if the dims or the number of channels differ, or there are too few axes.
    """
    result = style.expect_array(result, ("component", "row", "column", "channel"))
    channels, count = result.sizes["channel"], result.sizes["component"]
    if channels not in (1, 3) or "explained_variance" not in result.coords:
        raise ValueError(
            "Expected 1 or 3 channels, and the coordinate explained_variance. "
            f"Received: {channels} channels and {sorted(map(str, result.coords))}"
        )
    if axes is None:
        title = style.titled("Principal components of the patch embedding", result)
        title += "\nshare of the variance above; each tile scaled to its own range"
        axes = style.new_panels(count, title, result.sizes["row"] / result.sizes["column"])
    axes = style.expect_axes(axes, count, "component")
    shares = result["explained_variance"].values
    for ax, tile, share in zip(axes, result.values, shares, strict=True):
        low, high = tile.min(), tile.max()
        scaled = (tile - low) / (high - low) if high > low else np.full_like(tile, 0.5)
        ax.imshow(np.repeat(scaled, 3 // channels, axis=2), interpolation="nearest")
        ax.set_title(f"{100 * share:.1f} %", fontsize=FONT_SIZE, pad=3)
        ax.set(xticks=[], yticks=[])
    return axes


def plot_position_similarity(result, ax=None):
    """Similarity of every position embedding to all (Figure 7 centre of the ViT paper).

    Args:
        result: DataArray of dims (row, column, other_row, other_column) from
            `position_similarity`.
        ax: Matplotlib axes; new ones if None.

    Returns:
        The axes: at the place of each patch a map of its similarity to the patches of all places.
        Colours are fixed to [-1, 1].

    Raises:
        ValueError: if the dims differ.
    """
    result = style.expect_array(result, ("row", "column", "other_row", "other_column"))
    rows, columns = result.sizes["row"], result.sizes["column"]
    gap = max(1, round(max(rows, columns) / 8))
    tiles = np.pad(result.values, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan)
    heights, widths = tiles.shape[2:]
    mosaic = tiles.swapaxes(1, 2).reshape(rows * heights, columns * widths)[:-gap, :-gap]
    mosaic = mosaic.round(6)  # the similarity of a position to itself is 1 but for rounding
    inches = float(np.clip(0.5 * max(rows, columns), 3.5, 7)) / max(rows, columns)
    width, height = inches * columns, inches * rows
    target = style.new_axes(width + 2, height + 1) if ax is None else ax
    look = {"cmap": style.colours("viridis").with_extremes(bad="white"), "vmin": -1, "vmax": 1}
    image = target.imshow(mosaic, interpolation="nearest", **look)
    _number(target.xaxis, columns, widths, result.sizes["other_column"])
    _number(target.yaxis, rows, heights, result.sizes["other_row"])
    target.set(xlabel="input patch column", ylabel="input patch row")
    target.spines[:].set_visible(False)
    target.tick_params(length=0, labelsize=FONT_SIZE)
    target.set_title(style.titled("Similarity of position embeddings", result), fontsize=11)
    style.colour_bar(target, image, "cosine similarity")
    if ax is None:
        style.shrink_wrap(target, width, height)
    return target


def _number(axis, count, step, size):
    """Numbers the maps along an axis from 1, at their middles, as many as there is room for."""
    places = np.arange(0, count, -(-count // 16))
    axis.set_ticks(places * step + (size - 1) / 2, labels=[str(place + 1) for place in places])
