"""Ablation of heads, skips and tokens, and activation patching."""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..engine.results import expect_variable, layer_names
from . import style
from .layers import depth_axis
from .primitives import draw_matrix, panels

if TYPE_CHECKING:
    from matplotlib.axes import Axes

EFFECTS = {
    "accuracy_change": "change in accuracy",
    "loss_change": "change in loss (nats)",
    "output_change": "KL divergence of the output (nats)",
}


def plot_head_ablation(
    result: xr.Dataset, ax: "Axes | None" = None, change: str = "output_change"
) -> "Axes":
    """Effect of ablating each attention head: a cell per layer and head.

    Args:
        result: Dataset with the changes, of dims (layer, head), from `head_ablation`.
        ax: Matplotlib axes; those of a new figure if None.
        change: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The axes: layers left to right, heads downwards; grey where there is no head.

    Raises:
        ValueError: for another result or change.

    Examples:
        >>> effect = analysis.head_ablation(model, (images, labels))
        >>> ax = analysis.plot_head_ablation(effect, change="accuracy_change")

    See also:
        `head_ablation`, `plot_head_effects`.
    """
    values = expect_variable(result, _effect(change), ("layer", "head"))
    return _draw_cells(values, ax, style.titled("Head ablation", result), EFFECTS[change])


def plot_activation_patching(result: xr.Dataset, ax: "Axes | None" = None) -> "Axes":
    """How far patching each token of each layer moves the scores to those of another run.

    Args:
        result: Dataset with `transfer` of dims (layer, token) from `activation_patching`.
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes: layers left to right, tokens downwards.

    Raises:
        ValueError: for another result.

    Examples:
        >>> effect = analysis.activation_patching(model, (images, other_images))
        >>> ax = analysis.plot_activation_patching(effect)

    See also:
        `activation_patching`, `plot_token_ablation`.
    """
    values = expect_variable(result, "transfer", ("layer", "token"))
    title = style.titled("Activation patching", result)
    return _draw_cells(values, ax, title, "transfer (fraction of the score difference)")


def _draw_cells(values, ax, title, label):
    """A matrix of an array (layer, unit), in colours centred on 0."""
    limit = float(np.nanmax(np.abs(values.values), initial=0)) or 1.0
    look = {"cmap": style.colours("RdBu"), "vmin": -limit, "vmax": limit}
    ax, image = draw_matrix(values, ax, height=3, **look)
    ax.set_title(title)
    style.colour_bar(ax, image, label)
    return ax


def plot_head_effects(
    results: style.Datasets, ax: "Axes | None" = None, change: str = "output_change"
) -> "Axes":
    """Effect of ablating each attention head against its attention distance.

    Args:
        results: Dataset of `head_ablation` with the `distance` of each head in a further variable,
            or a dict from label to several.
        ax: Matplotlib axes; those of a new figure if None.
        change: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The axes: a point for each head.

    Raises:
        ValueError: for another result or change, or an empty dict.

    Examples:
        >>> effect = analysis.head_ablation(model, (images, labels))
        >>> effect["distance"] = analysis.attention_distance(model, images)
        >>> ax = analysis.plots.plot_head_effects(effect)

    See also:
        `head_ablation`, `attention_distance`.
    """
    effects = style.labelled(results, ("layer", "head"), _effect(change))
    distances = style.labelled(results, ("layer", "head"), "distance")
    ax = style.new_axes(7, 4.2) if ax is None else ax
    colours = style.line_colours(effects)
    for label, effect in effects.items():
        distance, colour = distances[label].reindex_like(effect), colours[label]
        points = distance.values.ravel(), effect.values.ravel()
        ax.scatter(*points, s=18, color=colour, label=label)
    units = next(iter(distances.values())).attrs.get("units", "no unit")
    ax.set(xlabel=f"mean attention distance ({units})", ylabel=EFFECTS[change])
    ax.set_title(style.titled("Head ablation and attention distance", results))
    style.tidy(ax)
    if any(effects):
        style.legend(ax)
    return ax


def plot_skip_ablation(
    results: style.Datasets, ax: "Axes | None" = None, change: str = "accuracy_change"
) -> "Axes":
    """Effect of removing the skips, or the branches, of each block.

    Args:
        results: Dataset with the changes, of dims (layer, path), from `skip_ablation`, or a dict
            from label to several.
        ax: Matplotlib axes; those of a new figure if None.
        change: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The axes: a line for each model and path, with bars of 1.96 standard errors.

    Raises:
        ValueError: for another result or change, or an empty dict.

    Examples:
        >>> effect = analysis.skip_ablation(model, (images, labels))
        >>> ax = analysis.plot_skip_ablation(effect)

    See also:
        `skip_ablation`, `plot_skip_ratio`.
    """
    lines = style.labelled(results, ("layer", "path"), _effect(change))
    errors = style.labelled(results, ("layer", "path"), f"{change}_stderr")
    ax = style.new_axes(8, 4.2) if ax is None else ax
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    colours = style.line_colours(lines)
    for depth, (label, line) in zip(depths, lines.items(), strict=True):
        for number, path in enumerate(line["path"].values):
            options = {"color": colours[label], "marker": style.marker(number), "markersize": 4.5}
            options["linestyle"] = style.line_style(number)
            error = 1.96 * errors[label].sel(path=path).values
            name = f"{label}: without {path}" if label else f"without {path}"
            ax.errorbar(depth, line.sel(path=path).values, error, label=name, **options)
    ax.set_title(style.titled("Ablation of skips and branches by block", results))
    _finish(ax, change)
    style.legend(ax, title="bars: 95 % CI")
    return ax


def plot_token_ablation(
    results: style.Datasets, ax: "Axes | None" = None, change: str = "accuracy_change"
) -> "Axes":
    """Effect of replacing a growing fraction of the tokens, in several orders.

    Args:
        results: Dataset with the changes, of dims (tokens, share), from `token_ablation`; a dict
            from label to several is drawn as a panel each, on one scale.
        ax: Matplotlib axes; those of a new figure if None.
        change: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The axes: a line for each order, with bars of 1.96 standard errors; prefix tokens, replaced
        together, are points at 1.

    Raises:
        ValueError: for another result or change, or an empty dict.

    Examples:
        >>> effect = analysis.token_ablation(model, (images, labels))
        >>> ax = analysis.plot_token_ablation(effect)

    See also:
        `token_ablation`, `plot_activation_patching`.
    """
    for result in style.by_label(results).values():
        expect_variable(result, _effect(change), ("tokens", "share"))
    title = style.titled("Token ablation", results)
    if not isinstance(results, dict):
        ax = style.new_axes(7, 4.2) if ax is None else ax
        _draw_orders(ax, results, change, _orders([results]))
        ax.set_title(title)
        style.legend(ax, title="tokens (bars: 95 % CI)")
        return ax
    count, orders = len(results), _orders(results.values())
    ax, flat = panels(ax, count, title, "result", min(count, 3), inches=(3.6, 2.8))
    for panel in flat[1:]:
        panel.sharey(flat[0])
    for panel, (label, result) in zip(flat, results.items(), strict=True):
        _draw_orders(panel, result, change, orders)
        panel.set_title(label, fontsize=10)
        panel.label_outer()
    shown = {bars.get_label(): bars for panel in flat for bars in panel.containers}
    handles = [shown[name] for name in orders if name in shown]
    ax.legend(handles=handles, title="tokens (bars: 95 % CI)", **style.BESIDE)
    return ax


def _orders(results):
    """Colour and marker of each order of tokens: dict from its name."""
    names = [str(name) for result in results for name in result["tokens"].values]
    names = list(dict.fromkeys(names))
    colours = style.line_colours(names)
    return {
        name: {"color": colours[name], "marker": style.marker(number), "label": name}
        for number, name in enumerate(names)
    }


def _draw_orders(ax, result, change, orders):
    """A line for each order of tokens, without a legend."""
    values = expect_variable(result, _effect(change), ("tokens", "share"))
    errors = expect_variable(result, f"{change}_stderr", ("tokens", "share"))
    for name in map(str, values["tokens"].values):
        line, error = values.sel(tokens=name), 1.96 * errors.sel(tokens=name).values
        known = np.isfinite(line.values)
        shares = values["share"].values[known]
        ax.errorbar(shares, line.values[known], error[known], markersize=4.5, **orders[name])
    ax.set(xlabel="fraction of tokens replaced")
    _finish(ax, change)


def _finish(ax, change):
    """A line at no change, and the label of the y axis."""
    ax.axhline(0, color="grey", linewidth=0.8)
    ax.set_ylabel(EFFECTS[change])
    style.tidy(ax)


def _effect(change):
    if change not in EFFECTS:
        raise ValueError(f"Expected change in {list(EFFECTS)}. Received: {change!r}")
    return change
