"""What speaks for a class: pixels, maps, and the classes that layers are read as."""

import numpy as np

from ...engine.results import expect_array, expect_variable, layer_names
from .. import style
from ..layers import depth_axis, draw_lines
from .overlay import draw_panels, pick


def plot_input_gradients(result, axes=None, image=None, example=0):
    """Absolute input gradients, summed over image channels, a panel for each class.

    Args:
        result: DataArray of `input_gradients`.
        axes: array of at least as many Matplotlib axes as classes; new ones if None.
        image: that of the example, as for `plot_overlay`; None draws the maps alone.
        example: number of the image.

    Returns:
        ndarray of shape (classes,) of the axes drawn on. Every panel is scaled to its own maximum.

    Raises:
        ValueError: if the result is another, or has no such example.
    """
    result = expect_array(result, ("example", "class", "row", "column", "channel"))
    maps = np.abs(pick(result, "example", example)[0]).sum("channel").values
    names = [f"class {position}" for position in result["class"].values]
    panels = [(name, image, one, None) for name, one in zip(names, maps, strict=True)]
    return draw_panels(panels, style.titled("Input gradients", result), axes)


def plot_grad_cam(result, axes=None, image=None, of=None, example=0):
    """Grad-CAM of a class, a panel for each layer.

    Args:
        result: DataArray of `grad_cam`.
        axes, image, example: as for `plot_input_gradients`, one of the axes for each layer.
        of: the class; the first if None.

    Returns:
        ndarray of shape (layers,) of the axes drawn on. Every panel is scaled to its own maximum.

    Raises:
        ValueError: if the result is another, or has no such class or example.
    """
    result = expect_array(result, ("example", "class", "layer", "row", "column"))
    of = result["class"].values[0] if of is None else of
    chosen, _ = pick(pick(result, "example", example)[0], "class", of)
    names = layer_names(result)
    panels = [(name, image, one, None) for name, one in zip(names, chosen.values, strict=True)]
    return draw_panels(panels, style.titled(f"Grad-CAM of class {of}", result), axes)


def plot_place_fields(result, place, axes=None, image=None, example=0):
    """Effective receptive field of one place, a panel for each layer.

    Args:
        result: DataArray of `place_fields`.
        place: its cell, row by row.
        axes, image, example: as for `plot_input_gradients`, one of the axes for each layer.

    Returns:
        ndarray of shape (layers,) of the axes drawn on. Every panel is scaled to its own maximum;
        colours follow the square root.

    Raises:
        ValueError: if the result is another, or has no such place or example.
    """
    result = expect_array(result, ("example", "layer", "place", "row", "column"))
    chosen, _ = pick(pick(result, "example", example)[0], "place", place)
    names = layer_names(result)
    panels = [(name, image, one, None) for name, one in zip(names, chosen.values, strict=True)]
    title = style.titled(f"Effective receptive field of place {place}", result)
    return draw_panels(panels, title, axes, "√ of the share of the panel's maximum", np.sqrt)


def plot_logit_lens(result, ax=None, classes=None, example=0):
    """Scores of classes through the depth, as the model's own head reads each layer.

    Args:
        result: DataArray of `logit_lens`.
        ax: Matplotlib axes; new ones if None.
        classes: positions of the classes to draw; the five of the highest last scores if None.
        example: number of the image.

    Returns:
        The axes: a line for each class.

    Raises:
        ValueError: if the result is another, or has no such class or example.
    """
    result = expect_array(result, ("example", "layer", "class"))
    scores, _ = pick(result, "example", example)
    best = np.argsort(-scores.values[-1], kind="stable")[:5]
    classes = scores["class"].values[best] if classes is None else classes
    lines = {(f"class {one}", ""): pick(scores, "class", one)[0] for one in classes}
    ax = draw_lines(lines, {"": "score"}, ax)
    ax.set_ylabel("score by the model's own head")
    ax.set_title(style.titled("Classes that layers are read as", result))
    return ax


def plot_lens_accuracy(results, ax=None):
    """How often each layer is read as the right class, and as that of the last layer.

    Bands are 1.96 standard errors.

    Args:
        results: Dataset of `lens_accuracy`, or a dict from label to several.
        ax: Matplotlib axes; new ones if None.

    Returns:
        The axes: two lines for each result.

    Raises:
        ValueError: if a result is another.
    """
    kinds = {"accuracy": "right", "agreement": "as the last layer"}
    lines = {
        (label, kind): expect_variable(result, kind, ("layer",))
        for label, result in style.by_label(results).items()
        for kind in kinds
    }
    ax = draw_lines(lines, kinds, ax)
    for line, (label, kind) in zip(list(ax.lines), lines, strict=False):
        error = expect_variable(style.by_label(results)[label], f"{kind}_stderr", ("layer",))
        depth, middle = line.get_xdata(), np.asarray(line.get_ydata())
        reach = 1.96 * error.values
        ax.fill_between(
            depth, middle - reach, middle + reach, color=line.get_color(), alpha=0.15, linewidth=0
        )
    ax.set_ylabel("share of the images")
    ax.set_ylim(0, 1.03)
    ax.set_title(style.titled("Classes by the model's own head", results))
    return ax


def plot_path_norms(result, ax=None, example=0):
    """Norms of skip and branch through the depth, mean over tokens between their extremes.

    Args:
        result: Dataset of `path_norms`.
        ax: Matplotlib axes; new ones if None.
        example: number of the image.

    Returns:
        The axes: two lines, each in a band from the smallest to the largest token.

    Raises:
        ValueError: if the result is another, or has no such example.
    """
    dims = ("example", "layer", "token")
    norms = {
        name: pick(expect_variable(result, name, dims), "example", example)[0]
        for name in ("skip", "branch")
    }
    ax = style.new_axes(8, 4.2) if ax is None else ax
    (depth, _) = depth_axis(ax, [layer_names(norm) for norm in norms.values()])
    for (name, norm), colour in zip(norms.items(), style.distinct_colours(2), strict=True):
        ax.fill_between(depth, norm.min("token"), norm.max("token"), color=colour, alpha=0.15)
        ax.plot(depth, norm.mean("token"), color=colour, marker="o", markersize=4, label=name)
    ax.set_ylabel("Euclidean norm (band: all tokens)")
    ax.set_ylim(bottom=0)
    ax.set_title(style.titled("Skip and branch", result))
    style.tidy(ax)
    style.legend(ax)
    return ax
