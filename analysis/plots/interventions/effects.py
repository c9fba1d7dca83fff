"""What a model loses without heads, skips and tokens, and what tokens hand on."""

import numpy as np

from ...engine.results import expect_variable, layer_names
from .. import style
from ..layers import depth_axis, layer_label, name_layers, shorten

EFFECTS = {
    "accuracy_change": "change of accuracy",
    "loss_change": "change of the loss (nat)",
    "output_change": "divergence of the output (nat)",
}


def plot_head_ablation(result, ax=None, change="output_change"):
    """What a model loses with each of its heads: a cell per layer and head.

    Args:
        result: Dataset of `head_ablation`.
        change: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The axes: layers left to right, heads downwards; grey where there is no head.
    """
    values = expect_variable(result, _effect(change), ("layer", "head"))
    title = style.titled("Without single heads", result)
    return _draw_cells(values, ax, title, EFFECTS[change])


def plot_activation_patching(result, ax=None):
    """How far each token of each layer moves the scores to those of another run.

    Args:
        result: Dataset of `activation_patching`.

    Returns:
        The axes: layers left to right, tokens downwards.
    """
    values = expect_variable(result, "transfer", ("layer", "token"))
    title = style.titled("Activation patching", result)
    return _draw_cells(values, ax, title, "share of the way to the other run")


def plot_head_effects(results, ax=None, change="output_change"):
    """What is lost with each head against how far it looks.

    Args:
        results: Dataset of `head_ablation` with the `distance` of each head in a further variable,
            or a dict from label to several.
        change: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The axes: a point for each head.
    """
    effects = style.labelled(results, ("layer", "head"), _effect(change))
    distances = style.labelled(results, ("layer", "head"), "distance")
    ax = style.new_axes(7, 4.2) if ax is None else ax
    colours = style.line_colours(effects)
    for label, effect in effects.items():
        far, colour = distances[label].reindex_like(effect), colours[label]
        ax.scatter(far.values.ravel(), effect.values.ravel(), s=18, color=colour, label=label)
    units = next(iter(distances.values())).attrs.get("units", "no unit")
    ax.set(xlabel=f"mean attention distance ({units})", ylabel=EFFECTS[change])
    ax.set_title(style.titled("Without single heads", results))
    style.tidy(ax)
    if any(effects):
        style.legend(ax)
    return ax


def plot_skip_ablation(results, ax=None, change="accuracy_change"):
    """What models lose without the skips, and without the branches, of each block.

    Bars are 1.96 standard errors.

    Args:
        results: Dataset of `skip_ablation`, or a dict from label to several.
        change: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The axes: a line for each model and path.
    """
    lines = style.labelled(results, ("layer", "path"), _effect(change))
    errors = style.labelled(results, ("layer", "path"), f"{change}_stderr")
    ax = style.new_axes(8, 4.2) if ax is None else ax
    depths = depth_axis(ax, [layer_names(line) for line in lines.values()])
    colours = style.line_colours(lines)
    for depth, (label, line) in zip(depths, lines.items(), strict=True):
        for number, path in enumerate(line["path"].values):
            options = {"color": colours[label], "marker": style.marker(number), "markersize": 4.5}
            options |= {"linestyle": style.LINE_STYLES[number % len(style.LINE_STYLES)]}
            reach = 1.96 * errors[label].sel(path=path).values
            name = f"{label}: without {path}" if label else f"without {path}"
            ax.errorbar(depth, line.sel(path=path).values, reach, label=name, **options)
    ax.axhline(0, color="grey", linewidth=0.8)
    ax.set_ylabel(EFFECTS[change])
    ax.set_title(style.titled("Without the skips or branches of a block", results))
    style.tidy(ax)
    style.legend(ax)
    return ax


def plot_token_ablation(result, ax=None, change="accuracy_change"):
    """What a model loses with growing shares of its tokens: a line for each order.

    Bars are 1.96 standard errors; tokens without a place, replaced as a whole, are points at 1.

    Args:
        result: Dataset of `token_ablation`.
        change: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The axes: share of the tokens against the change.
    """
    ax = style.new_axes(7, 4.2) if ax is None else ax
    _draw_orders(ax, result, change, _orders([result]))
    ax.set_title(style.titled("Without some tokens", result))
    style.legend(ax, title="tokens")
    return ax


def plot_token_ablations(results, change="accuracy_change"):
    """`plot_token_ablation` of several models, a panel each, on one scale.

    Args:
        results: dict from label to Dataset of `token_ablation`.
        change: as there.

    Returns:
        ndarray of shape (models,) of the axes of a new figure.
    """
    columns = min(len(results), 3)
    rows = -(-len(results) // columns)
    title = style.titled("Without some tokens", results)
    axes = style.new_grid(
        rows, columns, (4.2 * columns + 1.6, 3.4 * rows + 0.4), title, "constrained"
    )
    axes, orders = style.leading(axes, len(results)), _orders(results.values())
    for ax in axes[1:]:
        ax.sharey(axes[0])
    for ax, (label, result) in zip(axes, results.items(), strict=True):
        _draw_orders(ax, result, change, orders)
        ax.set_title(label)
        ax.label_outer()
    shown = {bars.get_label(): bars for ax in axes for bars in ax.containers}
    handles = [shown[name] for name in orders if name in shown]
    place = {"loc": "outside right center", "frameon": False}
    axes[0].figure.legend(handles=handles, title="tokens", **place)
    return axes


def _orders(results):
    """Colour and marker of each order of tokens: dict from its name."""
    names = list(dict.fromkeys(str(name) for of in results for name in of["tokens"].values))
    colours = style.line_colours(names)
    return {
        name: {"color": colours[name], "marker": style.marker(number), "label": name}
        for number, name in enumerate(names)
    }


def _draw_orders(ax, result, change, orders):
    """A line for each order of tokens, as `plot_token_ablation` has them, without a legend."""
    values = expect_variable(result, _effect(change), ("tokens", "share"))
    errors = expect_variable(result, f"{change}_stderr", ("tokens", "share"))
    for name in map(str, values["tokens"].values):
        line, reach = values.sel(tokens=name), 1.96 * errors.sel(tokens=name).values
        known = np.isfinite(line.values)
        shares = values["share"].values[known]
        ax.errorbar(shares, line.values[known], reach[known], markersize=4.5, **orders[name])
    ax.axhline(0, color="grey", linewidth=0.8)
    ax.set(xlabel="share of the tokens that is replaced", ylabel=EFFECTS[change])
    style.tidy(ax)


def _effect(change):
    if change not in EFFECTS:
        raise ValueError(f"Expected change in {list(EFFECTS)}. Received: {change!r}")
    return change


def _draw_cells(values, ax, title, label):
    """A heatmap of an array (layer, unit), in colours centred on 0."""
    from matplotlib.colors import Normalize

    unit = values.dims[1]
    names, cut = shorten(layer_names(values))
    width = style.side(len(names)) if ax is None else None
    target = style.new_axes(width + 2.4, 4.4) if ax is None else ax
    reach = float(np.nanmax(np.abs(values.values), initial=0)) or 1.0
    options = {"cmap": style.colours("RdBu"), "interpolation": "nearest", "aspect": "auto"}
    image = target.imshow(values.values.T, norm=Normalize(-reach, reach), **options)
    name_layers(target, "x", names, np.arange(len(names)), width)
    ticks = np.arange(0, values.shape[1], max(1, -(-values.shape[1] // 16)))
    target.set_yticks(ticks, [str(values[unit].values[tick]) for tick in ticks])
    target.set(xlabel=layer_label(cut), ylabel=unit)
    target.set_title(title)
    style.colour_bar(target, image, label)
    if ax is None:
        style.shrink_wrap(target, width, 3)
    return target
