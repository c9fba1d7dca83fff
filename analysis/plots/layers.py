"""Names of layers on an axis, and lines through the depth of several models."""

import itertools
import math

import numpy as np

from ..engine.results import layer_names
from . import style

FONT_SIZE = 7.5
LONGEST = 26  # letters of a name
ENOUGH_GROUPS = 8
LEFT_BY_LAYOUT = 0.75
NORMALISED = "normalised depth (0: first layer, 1: last layer)"


def shorten(names):
    """Leave out the leading and trailing path components that all names share.

    Returns:
        The list of shorter names, and what they were cut from: "vit/…/attention" turns
        "vit/block3/attention" into "block3". Empty if nothing was cut.
    """
    parts = [name.split("/") for name in names]
    room = min(map(len, parts)) - 1 if len(names) > 1 else 0
    tail = _shared([part[::-1] for part in parts], room)
    head = _shared(parts, room - tail)
    short = ["/".join(part[head : len(part) - tail]) for part in parts]
    first = parts[0]
    cut = "/".join([*first[:head], "…", *first[len(first) - tail :]]) if head + tail else ""
    return short, cut


def _shared(parts, most):
    """How many leading components all lists share, at most `most`."""
    columns = zip(*parts, strict=False)
    same = itertools.takewhile(lambda column: len(set(column)) == 1, columns)
    return min(most, len(list(same)))


def layer_label(cut, model=""):
    """The name of an axis of layers whose names were shortened by `cut`."""
    return "layer" + (f" of {model}" if model else "") + (f" ({cut})" if cut else "")


def group_layers(names, capacity):
    """Group layers in depth order into blocks whose names fit.

    Args:
        names: slash-joined layer names, in depth order.
        capacity: how many names fit on the axis.

    Returns:
        List of (name, start, stop), half-open runs that cover all layers, of the shallowest level
        of the hierarchy with enough blocks; or None if no level has between 3 and `capacity`.
    """
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


def _groups_at(names, depth):
    """Runs of layers that share `depth` path components; shallower neighbours form one run."""

    def key(index):
        parts = names[index].split("/")
        return "/".join(parts[:depth]) if len(parts) > depth else None

    groups = []
    for name, run in itertools.groupby(range(len(names)), key):
        run = list(run)
        ends = dict.fromkeys([names[run[0]], names[run[-1]]])
        groups.append((name or " … ".join(ends), run[0], run[-1] + 1))
    return groups


def name_layers(ax, which, names, positions, inches=None):
    """Write layer names on an axis: all if they fit, else of blocks between ticks at their edges.

    Args:
        ax: Matplotlib axes.
        which: "x" or "y".
        names: layer names, in depth order.
        positions: array of shape (layers,), where on the axis each layer lies, ascending.
        inches: how long the axis will be; estimated if None, since labels are not laid out yet.
    """
    axis = getattr(ax, f"{which}axis")
    points = 72 * (inches or _guess_inches(ax, which))
    scale = points / (positions[-1] - positions[0] or 1)
    capacity = max(2, int(points / (FONT_SIZE * 1.3)))
    groups = group_layers(names, capacity) if len(names) > capacity else None
    if groups:
        edges = [(positions[start - 1] + positions[start]) / 2 for _, start, _ in groups[1:]]
        labels, places = _apart(groups, positions, FONT_SIZE * 1.15 / scale)
        axis.set_ticks(edges, labels=[""] * len(edges))
        axis.set_ticks(places, labels=labels, minor=True)
    else:
        step = math.ceil(len(names) / capacity)
        labels, places = [elide(name) for name in names[::step]], positions[::step]
        axis.set_ticks(places, labels=labels)
        axis.set_ticks([], minor=True)
    axis.set_tick_params(which="minor", length=0, pad=7, labelsize=FONT_SIZE)
    axis.set_tick_params(which="major", length=6 if groups else 2.5, labelsize=FONT_SIZE)
    if which == "x":
        flat = _fits_flat(labels, np.asarray(places) * scale)
        axis.set_tick_params(which="both", labelrotation=0 if flat else 90)


def depth_axis(ax, layers):
    """Make depth the x axis of several models: layers named if they share them, else in [0, 1].

    Args:
        ax: Matplotlib axes.
        layers: list of the lists of layer names of each model, in depth order.

    Returns:
        List of arrays of shape (layers,): where on the axis the layers of each model lie.
    """
    if any(names != layers[0] for names in layers):
        ax.set_xlabel(NORMALISED)
        return [np.linspace(0, 1, len(names)) for names in layers]
    names, cut = shorten(layers[0])
    places = np.arange(len(names))
    name_layers(ax, "x", names, places)
    ax.set_xlabel(layer_label(cut))
    return [places] * len(layers)


def name_positions(ax, shape, unit):
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


def _guess_inches(ax, which):
    """The length of an axis that the layout will probably leave."""
    sides = {"x": ax.bbox.width, "y": ax.bbox.height}
    side = sides[which] if ax.get_aspect() == "auto" else min(sides.values())
    return LEFT_BY_LAYOUT * side / ax.figure.dpi


def _apart(groups, positions, gap):
    """Names and centres of groups, those of small groups left out where they would touch."""
    kept = []
    for name, start, stop in sorted(groups, key=lambda group: group[1] - group[2]):
        place = (positions[start] + positions[stop - 1]) / 2
        if all(abs(place - other) >= gap for other, _ in kept):
            kept.append((place, name))
    kept.sort()
    return [name for _, name in kept], [place for place, _ in kept]


def _fits_flat(labels, points):
    """Whether labels centred at these points fit side by side without turning them."""
    widths = np.array([len(label) * FONT_SIZE * 0.65 for label in labels])
    return bool(((widths[1:] + widths[:-1]) / 2 < np.diff(points)).all())


def elide(name, width=LONGEST):
    """The end of a layer name that is too long: the part that differs from its neighbours."""
    return name if len(name) <= width else f"…{name[1 - width :]}"


def wrap(name, width=22):
    """Break a long layer name over two lines at the slash nearest its middle."""
    slashes = [index for index, letter in enumerate(name) if letter == "/"]
    if len(name) <= width or not slashes:
        return elide(name)
    cut = min(slashes, key=lambda index: abs(index - len(name) / 2)) + 1
    return f"{elide(name[:cut])}\n{elide(name[cut:])}"


def draw_lines(lines, kinds, ax=None, baselines=(), errors=None):
    """Draw lines through the depth: a colour per label, a style per kind, and a legend.

    Args:
        lines: dict from (label, kind) to a DataArray of dims (layer,).
        kinds: dict from kind, in the order of their styles, to its name in the legend, which is
            shown where there are several kinds, or where labels are empty.
        ax: Matplotlib axes; new ones if None.
        baselines: labels that are drawn in grey.
        errors: dict from (label, kind) to standard errors of dims (layer,), drawn as bands of 1.96.

    Returns:
        The axes. Layers are named if all lines share them; otherwise depth is normalised to [0, 1].
    """
    ax = style.new_axes(8, 4.2) if ax is None else ax
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    colours = style.line_colours([label for label, _ in lines], baselines)
    for depth, ((label, kind), line) in zip(depths, lines.items(), strict=True):
        order = list(kinds).index(kind)
        name = ": ".join(filter(None, [label, kinds[kind] if len(kinds) > 1 or not label else ""]))
        look = {"linestyle": style.line_style(order), "label": name, "color": colours[label]}
        look |= {"marker": style.marker(order), "markersize": 4.5}
        if label in baselines:
            look |= {"linewidth": 1.1, "markersize": 3, "zorder": 1.5}
        ax.plot(depth, line.values, **look)
        if errors:
            draw_band(ax, depth, line.values, 1.96 * errors[label, kind].values, colours[label])
    style.tidy(ax)
    style.legend(ax)
    return ax


def draw_band(ax, depth, middle, half_width, colour):
    """A band to either side of a line, where its half width is known."""
    known = np.isfinite(half_width)
    if known.any():
        low, high = middle - half_width, middle + half_width
        ax.fill_between(depth, low, high, where=known, color=colour, alpha=0.18, linewidth=0)
