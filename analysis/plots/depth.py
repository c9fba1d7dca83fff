"""Lines through the depth of several models, beside those of baselines."""

from . import style
from .layers import depth_axis


def draw_lines(lines, kinds, words, ax=None, baselines=()):
    """Draw lines through the depth: a colour per label, a style per kind, and a legend.

    Args:
        lines: dict from (label, kind) to a DataArray of dims (layer,).
        kinds: all kinds, in the order of their styles.
        words: for each kind; shown where there are several, or where labels are empty.
        ax: Matplotlib axes; new ones if None.
        baselines: labels that are drawn in grey.

    Returns:
        The axes. Layers are named if all lines share them; otherwise depth is normalised to [0, 1].
    """
    ax = style.new_axes(8, 4.2) if ax is None else ax
    depths = depth_axis(ax, [style.layer_names(line) for line in lines.values()])
    colours = style.line_colours([label for label, _ in lines], baselines)
    for depth, ((label, kind), line) in zip(depths, lines.items(), strict=True):
        order = kinds.index(kind)
        name = ": ".join(filter(None, [label, words[order] if len(kinds) > 1 or not label else ""]))
        look = {"linestyle": style.LINE_STYLES[order % len(style.LINE_STYLES)], "label": name}
        look |= {"color": colours[label], "marker": style.marker(order), "markersize": 4.5}
        if label in baselines:
            look |= {"linewidth": 1.1, "markersize": 3, "zorder": 1.5}
        ax.plot(depth, line.values, **look)
    style.tidy(ax)
    style.legend(ax)
    return ax
