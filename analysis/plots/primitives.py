"""What plots are made of: named layers on axes, lines, panels, maps in panels, matrices."""

import itertools
import math
import re
import textwrap
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import numpy as np
import xarray as xr

from ..engine.results import decode_picture, layer_names
from . import style

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colorbar import Colorbar
    from matplotlib.colors import Normalize
    from matplotlib.image import AxesImage
    from matplotlib.typing import ColorType

    class AxesWithPanels(Axes):
        """Axes that panels replace."""

        panels: np.ndarray  # of axes


# Lines of dims (layer,), by their label in the legend and the key of what they show.
Lines: TypeAlias = Mapping[tuple[str, Any], xr.DataArray]
Group: TypeAlias = tuple[str, int, int]  # name of a run of layers, and where it starts and stops
FONT_SIZE = 7.5
LONGEST = 26  # letters of a name
ENOUGH_GROUPS = 8
LEFT_BY_LAYOUT = 0.75
LETTER, SMALLEST = 0.55, 5.5  # width of a letter in font sizes; points
TITLE_LETTER, BAR_WIDTH = 0.085, 0.9  # inches of a letter of a title, and of a colour bar
NORMALISED = "normalised depth (0: first layer, 1: last layer)"


def shorten(names: Sequence[str]) -> tuple[list[str], str]:
    """The names without the components that all share, and these as "vit/…/attention", or ""."""
    parts = [name.split("/") for name in names]
    most = min(map(len, parts)) - 1 if len(names) > 1 else 0
    tail = _shared([part[::-1] for part in parts], most)
    head = _shared(parts, most - tail)
    short = ["/".join(part[head : len(part) - tail]) for part in parts]
    first = parts[0]
    cut = "/".join([*first[:head], "…", *first[len(first) - tail :]]) if head + tail else ""
    return short, cut


def _shared(parts: Sequence[Sequence[str]], most: int) -> int:
    """How many leading components all lists share, at most `most`."""
    columns = zip(*parts, strict=False)
    same = itertools.takewhile(lambda column: len(set(column)) == 1, columns)
    return min(most, len(list(same)))


def class_titles(result: xr.DataArray) -> list[str]:
    """The names of the classes of a result or of one class; "class 3" where they are not known."""
    if "class_name" in result.coords:
        return [str(name) for name in np.atleast_1d(result["class_name"].values)]
    return [f"class {number}" for number in np.atleast_1d(result["class"].values)]


def layer_label(cut: str, model: str = "") -> str:
    """The name of an axis of layers whose names were shortened by `cut`."""
    return "layer" + (f" of {model}" if model else "") + (f" ({cut})" if cut else "")


def group_layers(names: Sequence[str], capacity: int) -> list[Group] | None:
    """Runs (name, start, stop) of layers at the shallowest level of 3 to `capacity` blocks."""
    best = None
    for depth in range(1, max(name.count("/") for name in names) + 1):
        groups = _groups_at(names, depth)
        if len(groups) > capacity:
            break
        if len(groups) >= 3:
            best = groups
        if len(groups) >= ENOUGH_GROUPS:
            break
    return best


def _groups_at(names: Sequence[str], depth: int) -> list[Group]:
    """Runs of layers that share `depth` path components; shallower neighbours form one run."""

    def key(index: int) -> str | None:
        parts = names[index].split("/")
        return "/".join(parts[:depth]) if len(parts) > depth else None

    groups = []
    for name, run in itertools.groupby(range(len(names)), key):
        run = list(run)
        ends = dict.fromkeys([names[run[0]], names[run[-1]]])
        groups.append((name or " … ".join(ends), run[0], run[-1] + 1))
    return groups


def name_layers(
    ax: "Axes",
    which: str,
    names: Sequence[str],
    positions: Sequence[float] | np.ndarray,
    inches: float | None = None,
) -> None:
    """Name layers at ascending positions on an axis: all if they fit, else blocks of them."""
    axis = getattr(ax, f"{which}axis")
    points = 72 * (inches or _guess_inches(ax, which))
    scale = points / (positions[-1] - positions[0] or 1)
    capacity = max(2, int(points / (FONT_SIZE * 1.3)))
    groups = group_layers(names, capacity) if len(names) > capacity else None
    if groups:
        edges = [(positions[start - 1] + positions[start]) / 2 for _, start, _ in groups[1:]]
        labels, locations = _apart(groups, positions, FONT_SIZE * 1.15 / scale)
        axis.set_ticks(edges, labels=[""] * len(edges))
        axis.set_ticks(locations, labels=labels, minor=True)
    else:
        step = math.ceil(len(names) / capacity)
        labels, locations = [elide(name) for name in names[::step]], positions[::step]
        axis.set_ticks(locations, labels=labels)
        axis.set_ticks([], minor=True)
    axis.set_tick_params(which="minor", length=0, pad=7, labelsize=FONT_SIZE)
    axis.set_tick_params(which="major", length=6 if groups else 2.5, labelsize=FONT_SIZE)
    if which == "x":
        widths = np.array([len(label) * FONT_SIZE * 0.65 for label in labels])
        flat = ((widths[1:] + widths[:-1]) / 2 < np.diff(np.asarray(locations) * scale)).all()
        axis.set_tick_params(which="both", labelrotation=0 if flat else 90)


def depth_axis(ax: "Axes", layers: Sequence[Sequence[str]]) -> list[np.ndarray]:
    """Name shared layers on the x axis, or normalise depth to [0, 1]; positions of each model."""
    if any(names != layers[0] for names in layers):
        ax.set_xlabel(NORMALISED)
        return [np.linspace(0, 1, len(names)) for names in layers]
    names, cut = shorten(layers[0])
    locations = np.arange(len(names))
    name_layers(ax, "x", names, locations)
    ax.set_xlabel(layer_label(cut))
    return [locations] * len(layers)


def name_positions(ax: "Axes", shape: tuple[int, int], unit: str) -> None:
    """Number the first and last row and column of a map of this shape, outer panels only."""
    rows, columns = shape
    ax.set_xticks(sorted({0, columns - 1}))
    ax.set_yticks(sorted({0, rows - 1}))
    if columns > 1:
        for text, inwards in zip(ax.get_xticklabels(), ("left", "right"), strict=True):
            text.set_horizontalalignment(inwards)
    ax.tick_params(labelsize=FONT_SIZE, length=2)
    ax.set_xlabel(f"column ({unit})", fontsize=FONT_SIZE, labelpad=1)
    ax.set_ylabel(f"row ({unit})", fontsize=FONT_SIZE, labelpad=1)
    ax.label_outer()


def _guess_inches(ax: "Axes", which: str) -> float:
    """The length of an axis that the layout will probably leave."""
    sides = {"x": ax.bbox.width, "y": ax.bbox.height}
    side = sides[which] if ax.get_aspect() == "auto" else min(sides.values())
    return LEFT_BY_LAYOUT * side / ax.figure.dpi


def _apart(
    groups: Sequence[Group], positions: Sequence[float] | np.ndarray, gap: float
) -> tuple[list[str], list[float]]:
    """Names and centres of groups; small groups are omitted where labels would touch."""
    labelled = []
    for name, start, stop in sorted(groups, key=lambda group: group[1] - group[2]):
        location = (positions[start] + positions[stop - 1]) / 2
        if all(abs(location - other) >= gap for other, _ in labelled):
            labelled.append((location, name))
    labelled.sort()
    return [name for _, name in labelled], [location for location, _ in labelled]


def elide(name: str, width: int = LONGEST) -> str:
    """The end of a layer name that is too long: the part that differs from its neighbours."""
    return name if len(name) <= width else f"…{name[1 - width :]}"


def wrap(name: str, width: int = 22) -> str:
    """Break a long layer name over two lines at the slash nearest its middle."""
    slashes = [index for index, letter in enumerate(name) if letter == "/"]
    if len(name) <= width or not slashes:
        return elide(name)
    cut = min(slashes, key=lambda index: abs(index - len(name) / 2)) + 1
    return f"{elide(name[:cut])}\n{elide(name[cut:])}"


def draw_lines(
    lines: Lines,
    kinds: Mapping[Any, str],
    ax: "Axes | None" = None,
    baselines: Sequence[str] = (),
    errors: Lines | None = None,
    points: Lines | None = None,
    **labels: Any,
) -> "Axes":
    """Draw lines (layer,) by (label, kind), named in `kinds`, with errors or points; set labels."""
    ax = style.new_axes(8, 4.2) if ax is None else ax
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    colours = style.line_colours((label for label, _ in lines), baselines)
    for depth, ((label, kind), line) in zip(depths, lines.items(), strict=True):
        order = list(kinds).index(kind)
        name = ": ".join(filter(None, [label, kinds[kind] if len(kinds) > 1 or not label else ""]))
        colour = colours[label]
        look: dict[str, Any] = {
            "linestyle": style.line_style(order),
            "label": name,
            "color": colour,
            "marker": style.marker(order),
            "markersize": 4.5,
        }
        if label in baselines:
            look |= {"linewidth": 1.1, "markersize": 3, "zorder": 1.5}
        draw_line(ax, depth, line.values, errors[label, kind].values if errors else None, **look)
        if points:
            y = points[label, kind].values
            dots = {"s": 12, "color": colour, "alpha": 0.45, "linewidth": 0}
            dots["marker"] = style.marker(order)
            ax.scatter(np.repeat(depth, y.shape[1]), y.ravel(), **dots)
    style.tidy(ax, **labels)
    if "(%)" in labels.get("ylabel", ""):
        style.percent(ax.yaxis)
    style.legend(ax, "band: 95 % CI" if errors else None)
    return ax


def draw_line(
    ax: "Axes", x: np.ndarray, y: np.ndarray, stderr: np.ndarray | None, **look: Any
) -> None:
    """A line with a band for its 95 % CI, where the standard errors are known."""
    (line,) = ax.plot(x, y, **look)
    if stderr is not None:
        draw_band(ax, x, y, 1.96 * stderr, line.get_color())


def draw_band(
    ax: "Axes", depth: np.ndarray, middle: np.ndarray, half_width: np.ndarray, colour: "ColorType"
) -> None:
    """A band to either side of a line, where its half width is known."""
    is_finite = np.isfinite(half_width)
    if is_finite.any():
        low, high = middle - half_width, middle + half_width
        ax.fill_between(depth, low, high, where=is_finite, color=colour, alpha=0.18, linewidth=0)


SCALED = "each panel scaled to its own maximum"


def panels(
    ax: "Axes | None",
    shape: int | tuple[int, ...],
    title: str,
    names: Sequence[str] = (),
    *,
    columns: int | None = None,
    cells: Sequence[tuple[int, int]] | None = None,
    inches: tuple[float, float] = (1.6, 1.6),
    size: float = FONT_SIZE,
    pad: float | None = None,
    label: str = "",
) -> tuple["AxesWithPanels", np.ndarray]:
    """Lay out titled panels in place of axes, and return these, with `ax.panels`, and the panels.

    `shape` is their number or (rows, columns), `cells` the (row, column) of each, `inches` the size
    of a panel in a new figure, and `label` that to the left of all. Panels without a name among
    `names` have no title.
    """
    shape = (shape,) if isinstance(shape, int) else shape
    count = math.prod(shape)
    if cells is None:
        most = max(3, min(7, math.ceil(math.sqrt(1.6 * count))))  # rows about 1.6 times as long
        columns = columns or (shape[1] if len(shape) == 2 else most)
        cells = [divmod(index, min(columns, count)) for index in range(count)]
    num_rows, num_columns = (1 + max(numbers) for numbers in zip(*cells, strict=True))
    host_size = 11
    if ax is not None:
        width = ax.bbox.width / ax.figure.dpi
        (title,), host_size = _fit([title], 1.2 * width, host_size)
        names, size = _fit(names, LEFT_BY_LAYOUT * width / num_columns, size)
    lines = 1 + max((name.count("\n") for name in names), default=0)
    if ax is None:
        panels_width = num_columns * (inches[0] + 0.1)
        # The title is centred over the panels, which the colour bar moves to the left.
        title_width = TITLE_LETTER * max(map(len, title.split("\n"))) + BAR_WIDTH
        width = max(panels_width + 1.5 + 0.3 * bool(label), title_width, 3.2)
        height = num_rows * (inches[1] + 0.17 * lines + 0.1) + 0.2 * (2 + title.count("\n")) + 0.3
        height = max(height, 2.6)
        ax = style.new_axes(width, height, "compressed")
    if spec := ax.get_subplotspec():
        grid = spec.subgridspec(num_rows, num_columns)
    else:  # of `Figure.add_axes`
        box = ax.get_position(original=True)
        grid = ax.figure.add_gridspec(
            num_rows, num_columns, left=box.x0, right=box.x1, bottom=box.y0, top=box.y1
        )
    ax.set_subplotspec(grid[:, :])
    ax.set(xticks=[], yticks=[], facecolor="none")
    ax.spines[:].set_visible(False)
    ax.set_title(title, fontsize=host_size, pad=6 + 13 * lines)
    ax.set_ylabel(label, fontsize=9, labelpad=16)
    flat = np.array([ax.figure.add_subplot(grid[row, column]) for row, column in cells])
    for panel, name in zip(flat, names, strict=False):
        panel.set_title(name, fontsize=size, pad=pad)
    host = cast("AxesWithPanels", ax)
    host.panels = flat.reshape(shape)
    return host, flat


def entitle(ax: "Axes", title: str) -> None:
    """Replace the title of axes, in lines that are little wider than the axes."""
    points = float(ax.title.get_fontsize())
    letters = 1.2 * ax.bbox.width / ax.figure.dpi * 72 / (LETTER * points)
    ax.title.set_text("\n".join(_broken(title, int(letters))))


def _fit(titles: Sequence[str], inches: float, size: float) -> tuple[Sequence[str], float]:
    """Titles and their font size: smaller, and broken into lines where they would be too wide."""
    points = 72 * inches / LETTER
    longest = max((len(line) for title in titles for line in title.split("\n")), default=1)
    if longest * SMALLEST > points:
        titles = ["\n".join(_broken(title, max(4, int(points / SMALLEST)))) for title in titles]
    return titles, float(np.clip(points / longest, SMALLEST, size))


def _broken(title: str, letters: int) -> Iterator[str]:
    """Lines of at most so many letters, broken at spaces outside of brackets and after slashes."""
    words = re.sub(r"/", "/ ", re.sub(r",\s", ",\N{NO-BREAK SPACE}", title))
    for line in words.split("\n"):
        for part in textwrap.wrap(line, letters, break_long_words=False, break_on_hyphens=False):
            yield elide(part.replace("/ ", "/"), letters)


def picture_of(result: xr.DataArray, image: Any, example: int | None = None) -> Any:
    """The image below maps: that of the caller, else the picture that the result holds, if any.

    `example` selects the picture of a result with several.
    """
    if image is not None or "picture" not in result.coords:
        return image
    picture = result.coords["picture"]
    if example is not None and "example" in picture.dims:
        picture = picture.sel(example=example)
    if picture.dims:
        return [decode_picture(str(text)) for text in picture.values]
    return decode_picture(str(picture.item()))


def draw_maps(
    ax: "Axes | None",
    maps: np.ndarray,
    names: Sequence[str],
    title: str,
    *,
    bar: str = "fraction of maximum",
    image: np.ndarray | None = None,
    images: Sequence[np.ndarray] | None = None,
    frames: Sequence[tuple[int, int] | None] | None = None,
    axis_unit: str | None = None,
    scaled: bool = True,
    faded: bool = False,
    cmap: str = "magma",
    norm: "Normalize | None" = None,
    shape: int | tuple[int, ...] | None = None,
    extent: tuple[float, float, float, float] | None = None,
    **layout: Any,
) -> tuple["AxesWithPanels", "Colorbar"]:
    """Draws maps (panel, row, column) in panels with one colour bar; returns the axes and the bar.

    `bar` is the label of the colour bar. `images`, or one `image`, are drawn below the maps.
    `frames` lists the (row, column) of the cell to frame in each map, or None. `axis_unit` is the
    unit of numbered rows and columns. `scaled` divides each map by its maximum, and `faded` makes
    low values transparent. Further options are as for `panels`.
    """
    from matplotlib.colors import Normalize

    maps = np.asarray(maps, np.float64)
    tall = maps.shape[1] / maps.shape[2]
    names = [name if "\n" in name else wrap(name) for name in map(str, names)]
    inches = (1.6, 1.6 * tall) if tall < 1.5 else (1.6 * 1.5 / tall, 2.4)
    layout = {"inches": inches, "pad": 4} | layout
    ax, flat = panels(ax, len(maps) if shape is None else shape, title, names, **layout)
    images = images if image is None else [image] * len(maps)
    look: dict[str, Any] = {"cmap": style.colours(cmap), "norm": norm or Normalize(0, 1)}
    for index, (panel, values) in enumerate(zip(flat, maps, strict=True)):
        if scaled and (peak := np.nanmax(values, initial=0)):
            values = values / peak
        if images is None:
            drawn = panel.imshow(values, interpolation="nearest", extent=extent, **look)
        else:
            opacity = 0.15 + 0.65 * np.nan_to_num(values) if faded else 0.7
            drawn = overlay(panel, images[index], values, opacity=opacity, **look)
        panel.set(xticks=[], yticks=[])
        if axis_unit:
            name_positions(panel, values.shape, axis_unit)
        frame = frames[index] if frames else None
        if frame is not None:
            style.frame_cell(panel, *frame)
    return ax, style.colour_bar(flat, drawn, bar)


def overlay(
    ax: "Axes",
    image: np.ndarray,
    values: np.ndarray,
    *,
    opacity: float | np.ndarray = 0.7,
    **look: Any,
) -> "AxesImage":
    """Draw an image and a map of shape (rows, columns) over it; return the map's artist."""
    image = as_levels(image)
    height, width = image.shape[:2]
    extent = {"extent": (-0.5, width - 0.5, height - 0.5, -0.5), "interpolation": "nearest"}
    ax.imshow(image, **extent)
    ax.set(xticks=[], yticks=[])
    return ax.imshow(np.ma.masked_invalid(values), alpha=opacity, **look, **extent)


def as_levels(image: np.ndarray) -> np.ndarray:
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


def draw_matrix(
    values: xr.DataArray,
    ax: "Axes | None" = None,
    *,
    title: str,
    size: float | str = 11,
    pad: float | None = None,
    bar: str | None = None,
    height: float | None = None,
    above: float = 0.0,
    models: Sequence[str] = ("", ""),
    square: bool | None = None,
    **look: Any,
) -> tuple["Axes", "Colorbar | None"]:
    """A heatmap of an array (layer, other), layers left to right; the axes and the colour bar.

    Layers along y run upwards, other units downwards. `height` is that of the y axis of a new
    figure in inches, `above` the space above it, `models` name the models along x and y, and `bar`
    is the label of the colour bar, None for none; cells are `square` by default where both axes
    show the same layers of one model.
    """
    dims = [str(dim) for dim in values.dims]
    layers = [layer_names(values, dim) for dim in dims]
    upwards = dims[1].startswith("layer")
    if square is None:
        square = layers[0] == layers[1] and models[0] == models[1]
    new = ax is None
    inches = style.side(len(layers[0])), height or style.side(len(layers[1]))
    if new:
        letters = 0.07 * max(map(len, shorten(layers[0])[0]))
        figure_size = inches[0] + (2.6 if upwards else 2), inches[1] + 1 + min(letters, 1.8) + above
        ax = style.new_axes(*figure_size, "compressed" if square else "constrained")
    look = {
        "interpolation": "nearest",
        "origin": "lower" if upwards else "upper",
    } | look
    image = ax.imshow(values.values.T, aspect="equal" if square else "auto", **look)
    for which, names, model, length in zip("xy", layers, models, inches, strict=True):
        if which == "y" and not upwards:
            step = max(1, -(-len(names) // 24))
            ax.set_yticks(range(0, len(names), step), names[::step], fontsize=FONT_SIZE)
            ax.set_ylabel(dims[1])
        else:
            label_layers(ax, which, names, model, length if new else None)
    ax.set_title(title, fontsize=size, pad=pad)
    return ax, style.colour_bar(ax, image, bar) if bar else None


def write_cells(ax: "Axes", texts: np.ndarray, is_dark: np.ndarray, **look: Any) -> None:
    """Write texts (row, column) in the cells of a matrix, in white where these are dark."""
    for (row, column), text in np.ndenumerate(texts):
        colour = "white" if is_dark[row, column] else "black"
        ax.text(column, row, text, ha="center", va="center", color=colour, **look)


def number_texts(values: np.ndarray) -> np.ndarray:
    """Numbers with two decimals, without the sign of a zero; no text for NaN."""
    texts = np.vectorize("{:.2f}".format)(values.round(2) + 0.0)
    texts = np.char.replace(texts, "-", "\N{MINUS SIGN}")
    return np.where(np.isfinite(values), texts, "")


def label_layers(
    ax: "Axes", which: str, names: Sequence[str], model: str = "", inches: float | None = None
) -> None:
    """Name the layers and the model along an axis, "x" or "y"."""
    short, cut = shorten(names)
    name_layers(ax, which, short, np.arange(len(names)), inches)
    ax.set(**{f"{which}label": layer_label(cut, model)})
