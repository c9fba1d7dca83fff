"""Maps laid over the images that they were measured on."""

import numpy as np

from .. import style
from ..layers import FONT_SIZE, wrap


def plot_overlay(image, values, ax=None, *, opacity=0.7, low=None, high=None, label="value"):
    """A map over an image: one colour for each cell of a grid that tiles it.

    Args:
        image: array of shape (height, width, 3), integers in [0, 255] or floats in [-1, 1] as
            models of this package take them.
        values: array or DataArray of shape (rows, columns); NaN is grey.
        ax: Matplotlib axes; new ones, with a colour bar, if None.
        opacity: of the colours, from 0 to 1.
        low, high: values of the ends of the colours; by default those of the map.
        label: of the colour bar.

    Returns:
        The axes.

    Raises:
        ValueError: for an image or a map of another shape, or values that no image has.
    """
    image, values = as_levels(image), np.asarray(values, np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"Expected a map of shape (rows, columns). Received: {values.shape}")
    target = style.new_axes(4.6, 4) if ax is None else ax
    ends = style.span(values)
    given = {"vmin": low, "vmax": high}
    ends |= {name: value for name, value in given.items() if value is not None}
    height, width = image.shape[:2]
    options = {"extent": (-0.5, width - 0.5, height - 0.5, -0.5), "interpolation": "nearest"}
    target.imshow(image, **options)
    shown = target.imshow(
        np.ma.masked_invalid(values),
        cmap=style.colours("magma"),
        alpha=opacity,
        **ends,
        **options,
    )
    target.set_xticks([])
    target.set_yticks([])
    if ax is None:
        style.colour_bar(target, shown, label)
    return target


def as_levels(image):
    """An image as floats in [0, 1], from integers in [0, 255] or floats in [-1, 1]."""
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"Expected an image of shape (height, width, 3). Received: {image.shape}")
    whole = np.issubdtype(image.dtype, np.integer)
    levels = image / 255 if whole else (image.astype(np.float64) + 1) / 2
    if not -1e-6 <= levels.min() <= levels.max() <= 1 + 1e-6:
        raise ValueError(
            "Expected an image of integers in [0, 255] or floats in [-1, 1]. "
            f"Received: {image.dtype} from {image.min():.4g} to {image.max():.4g}"
        )
    return levels.clip(0, 1)


def draw_panels(panels, title, axes=None, unit="share of the panel's maximum", curve=None):
    """Maps over images, each scaled to its own maximum, with one colour bar.

    Args:
        panels: list of (name, image or None for none, map of shape (rows, columns), cell to frame
            as (row, column) or None).
        title: of a new figure.
        axes: array of at least as many Matplotlib axes; new ones if None.
        unit: label of the colour bar.
        curve: function of the shares that are drawn, such as `np.sqrt`; None for none.

    Returns:
        ndarray of the axes drawn on.
    """
    if axes is None:
        rows, columns = np.shape(panels[0][2])
        axes = style.new_panels(len(panels), title, rows / columns)
    axes = style.expect_axes(axes, len(panels), "map")
    for ax, (name, image, values, framed) in zip(axes, panels, strict=True):
        values = np.asarray(values, np.float64)
        peak = np.nanmax(values, initial=0)
        shares = values / peak if peak else values
        shares = curve(shares) if curve else shares
        if image is None:
            ax.imshow(shares, cmap=style.colours("magma"), vmin=0, vmax=1)
            ax.set_xticks([])
            ax.set_yticks([])
        else:
            plot_overlay(image, shares, ax, low=0, high=1)
        ax.set_title(wrap(name), fontsize=FONT_SIZE)
        if framed is not None:
            _frame(ax, framed, values.shape)
    bar = axes[0].figure.colorbar(axes[0].images[-1], ax=list(axes), aspect=25, pad=0.015)
    bar.set_label(unit, fontsize=8)
    bar.ax.tick_params(labelsize=8)
    return axes


def _frame(ax, cell, shape):
    """A frame around a cell of a map that fills the axes."""
    from matplotlib.patches import Rectangle

    left, right, bottom, top = ax.images[-1].get_extent()
    width, height = (right - left) / shape[1], (bottom - top) / shape[0]
    corner = left + cell[1] * width, top + cell[0] * height
    ax.add_patch(
        Rectangle(corner, width, height, fill=False, edgecolor=style.ACCENT, linewidth=1.8)
    )


def grid_of(result):
    """(rows, columns, prefix) of a result with these attributes, or a `ValueError`."""
    missing = {"rows", "columns", "prefix"} - set(result.attrs)
    if missing:
        raise ValueError(f"Expected the attributes {sorted(missing)}. Received: no such")
    return tuple(int(result.attrs[name]) for name in ("rows", "columns", "prefix"))


def pick(result, dim, chosen):
    """The part of a result at a label of a dim, its last label if None, and that label."""
    labels = list(result[dim].values)
    chosen = labels[-1] if chosen is None else chosen
    if chosen not in labels:
        raise ValueError(f"Expected {dim} among {labels}. Received: {chosen!r}")
    return result.isel({dim: labels.index(chosen)}), chosen
