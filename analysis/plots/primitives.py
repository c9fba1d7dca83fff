"""What plots are made of, besides lines: panels, maps in panels, images below maps, matrices."""

import functools
import math
import warnings

import numpy as np

from ..engine.results import layer_names
from . import style
from .layers import FONT_SIZE, layer_label, name_layers, name_positions, shorten, wrap

SCALED = "each panel scaled to its own maximum"


def renamed_arguments(**new_names):
    """Decorator: former names of arguments are accepted with a `DeprecationWarning`."""

    def decorate(plot):
        @functools.wraps(plot)
        def accept(*args, **options):
            for old in new_names.keys() & options.keys():
                new = new_names[old]
                warnings.warn(
                    f"{plot.__name__}({old}=...) is deprecated: use {new}=",
                    DeprecationWarning,
                    stacklevel=2,
                )
                options[new] = options.pop(old)
            return plot(*args, **options)

        return accept

    return decorate


def panels(ax, shape, title, of, columns=None, cells=None, inches=(1.6, 1.6), lines=1, label=""):
    """Lay out panels where axes are.

    Args:
        ax: axes that the panels replace, those of a new figure if None. An array of axes, one
            for each panel, is deprecated: then the array itself is returned.
        shape: number of panels, or (rows, columns).
        title: above all panels.
        of: what a panel stands for, in errors.
        columns: number of panels in a row; None for a choice by their number.
        cells: list of the (row, column) of each panel; None for row by row.
        inches: width and height of a panel in a new figure.
        lines: number of lines of a panel's own title.
        label: to the left of all panels.

    Returns:
        Pair of the axes, with the panels as `ax.panels` of this shape, and the flat panels.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    count = math.prod(shape)
    if isinstance(ax, list | tuple | np.ndarray):
        axes = np.asarray(ax).ravel()[:count]
        if len(axes) < count:
            raise ValueError(f"Expected at least {count} axes, one per {of}. Received: {len(axes)}")
        return axes.reshape(shape), axes
    if cells is None:
        columns = columns or (shape[1] if len(shape) == 2 else _most_columns(count))
        cells = [divmod(index, min(columns, count)) for index in range(count)]
    rows, columns = (1 + max(place) for place in zip(*cells, strict=True))
    if ax is None:
        widest = max(map(len, title.split("\n")))
        width = max(columns * (inches[0] + 0.1) + 1.5 + 0.3 * bool(label), 0.085 * widest, 3.2)
        height = rows * (inches[1] + 0.17 * lines + 0.1) + 0.2 * (2 + title.count("\n")) + 0.3
        height = max(height, 2.6)
        ax = style.new_axes(width, height, "compressed", axes_class=_panel_axes())
    grid = _grid_in(ax, rows, columns)
    ax.set_subplotspec(grid[:, :])
    ax.set(xticks=[], yticks=[], facecolor="none")
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=11, pad=6 + 13 * lines)
    ax.set_ylabel(label, fontsize=9, labelpad=16)
    flat = np.array([ax.figure.add_subplot(grid[row, column]) for row, column in cells])
    ax.panels = flat.reshape(shape)
    return ax, flat


@functools.cache
def _panel_axes():
    """The class of axes with panels in a new figure, which may be indexed for one more release."""
    from matplotlib.axes import Axes

    class PanelAxes(Axes):
        """Axes that `panels` replace."""

        def _former_array(self):
            words = "a plot is no array of axes any more: use .panels"
            warnings.warn(words, DeprecationWarning, stacklevel=3)
            return self.panels

        def __getitem__(self, index):
            return self._former_array()[index]

        def __iter__(self):
            return iter(self._former_array())

        def __len__(self):
            return len(self._former_array())

        def __bool__(self):
            return True

    return PanelAxes


def _most_columns(count):
    """Number of columns that makes rows about 1.6 times as long as there are rows."""
    return max(3, min(7, math.ceil(math.sqrt(1.6 * count))))


def _grid_in(ax, rows, columns):
    """A grid of axes where axes are, which `Figure.add_axes` may have made."""
    place = ax.get_subplotspec()
    if place is not None:
        return place.subgridspec(rows, columns)
    box = ax.get_position(original=True)
    edges = {"left": box.x0, "right": box.x1, "bottom": box.y0, "top": box.y1}
    return ax.figure.add_gridspec(rows, columns, **edges)


def draw_maps(
    ax, maps, names, title, of, *, bar="fraction of maximum", images=None, frames=None,
    unit=None, scaled=True, cmap="magma", norm=None, shape=None, inches=None, label="", **options,
):  # fmt: skip
    """Maps in panels with one colour bar.

    Args:
        ax, title, of, label: as for `panels`.
        maps: array of shape (panels, rows, columns).
        names: titles of the panels; None for none.
        bar: label of the colour bar.
        images: list of images to lie below the maps, or None.
        frames: list of the cell to frame in each panel, as (row, column) or None.
        unit: of the numbered rows and columns; None leaves them unnumbered.
        scaled: whether each map is divided by its own maximum.
        cmap, norm: colours of what is drawn.
        shape: as for `panels`; None for the number of maps.
        **options: as for `imshow`.

    Returns:
        Pair of the axes as `panels` returns them, and the colour bar.
    """
    from matplotlib.colors import Normalize

    maps = np.asarray(maps, np.float64)
    tall = maps.shape[1] / maps.shape[2]
    names = None if names is None else [wrap(str(name)) for name in names]
    lines = 1 + max((name.count("\n") for name in names or []), default=0)
    inches = inches or ((1.6, 1.6 * tall) if tall < 1.5 else (1.6 * 1.5 / tall, 2.4))
    shape = len(maps) if shape is None else shape
    ax, flat = panels(ax, shape, title, of, inches=inches, lines=lines, label=label)
    look = {"cmap": style.colours(cmap), "norm": norm or Normalize(0, 1)}
    for index, (panel, values) in enumerate(zip(flat, maps, strict=True)):
        if scaled and (peak := np.nanmax(values, initial=0)):
            values = values / peak
        if images is None:
            image = panel.imshow(values, interpolation="nearest", **look, **options)
        else:
            image = overlay(panel, images[index], values, **look)
        if names:
            panel.set_title(names[index], fontsize=FONT_SIZE, pad=4)
        panel.set(xticks=[], yticks=[])
        if unit:
            name_positions(panel, values.shape, unit)
        if frames and frames[index] is not None:
            style.frame_cell(panel, *frames[index])
    return ax, style.colour_bar(flat, image, bar)


def overlay(ax, image, values, *, opacity=0.7, **look):
    """Draw an image and a map of shape (rows, columns) over it; return the map's artist."""
    image = as_levels(image)
    height, width = image.shape[:2]
    extent = {"extent": (-0.5, width - 0.5, height - 0.5, -0.5), "interpolation": "nearest"}
    ax.imshow(image, **extent)
    ax.set(xticks=[], yticks=[])
    return ax.imshow(np.ma.masked_invalid(values), alpha=opacity, **look, **extent)


def as_levels(image):
    """An image as floats in [0, 1], from integers in [0, 255] or floats in [-1, 1]."""
    image = np.asarray(image)
    if image.ndim != 3 or image.shape[2] != 3:
        raise ValueError(f"Expected an image of shape (height, width, 3). Received: {image.shape}")
    integers = np.issubdtype(image.dtype, np.integer)
    levels = image / 255 if integers else (image.astype(np.float64) + 1) / 2
    if not -1e-6 <= levels.min() <= levels.max() <= 1 + 1e-6:
        raise ValueError(
            "Expected an image of integers in [0, 255] or floats in [-1, 1]. "
            f"Received: {image.dtype} from {image.min():.4g} to {image.max():.4g}"
        )
    return levels.clip(0, 1)


def draw_matrix(values, ax=None, *, height=None, room=0.0, models=("", ""), square=None, **look):
    """A heatmap of an array (layer, other): layers left to right, its second dim on the y axis.

    Args:
        values: DataArray of two dims; layers along y run upwards, other units downwards.
        ax: axes to draw in; those of a new figure if None.
        height: inches of the y axis of a new figure; None for that of so many layers.
        room: additional inches above the matrix in a new figure.
        models: names of the models along x and y.
        square: whether cells are squares; None if both axes show the same layers of one model.
        **look: as for `imshow`.

    Returns:
        Pair of the axes and the image.
    """
    dims = values.dims
    layers = [layer_names(values, dim) for dim in dims]
    upwards = dims[1].startswith("layer")
    if square is None:
        square = layers[0] == layers[1] and models[0] == models[1]
    new = ax is None
    inches = style.side(len(layers[0])), height or style.side(len(layers[1]))
    if new:
        letters = 0.07 * max(map(len, shorten(layers[0])[0]))
        size = inches[0] + (2.6 if upwards else 2), inches[1] + 1 + min(letters, 1.8) + room
        ax = style.new_axes(*size, "compressed" if square else "constrained")
    look = {"interpolation": "nearest", "origin": "lower" if upwards else "upper"} | look
    image = ax.imshow(values.values.T, aspect="equal" if square else "auto", **look)
    for which, names, model, length in zip("xy", layers, models, inches, strict=True):
        if which == "y" and not upwards:
            step = max(1, -(-len(names) // 24))
            ax.set_yticks(range(0, len(names), step), names[::step], fontsize=FONT_SIZE)
            ax.set_ylabel(dims[1])
        else:
            label_layers(ax, which, names, model, length if new else None)
    return ax, image


def label_layers(ax, which, names, model="", inches=None):
    """Name the layers and the model along an axis, "x" or "y"."""
    short, cut = shorten(names)
    name_layers(ax, which, short, np.arange(len(names)), inches)
    ax.set(**{f"{which}label": layer_label(cut, model)})
