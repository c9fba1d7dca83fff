"""Receptive fields, residual connections, the first layer and the logit lens."""

import re
from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..engine.results import (
    expect_array,
    expect_variable,
    layer_names,
    select_labels,
    select_layers,
)
from . import style
from .layers import FONT_SIZE, depth_axis, draw_lines, shorten
from .primitives import SCALED, draw_maps, draw_matrix, panels, renamed_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes

SKIP_LABELS = {
    "norm_ratio": "skip-to-branch norm ratio",
    "cosine": "cosine similarity of skip and branch",
}


@renamed_arguments(axes="ax")
def plot_receptive_field(
    result: xr.DataArray, ax: "Axes | None" = None, layers: list[str] | None = None
) -> "Axes":
    """Effective receptive field of each layer's centre position (Figure 6 of Raghu et al. 2021).

    Every panel is divided by its own maximum and coloured by the square root of that fraction,
    since the centre exceeds the rest by orders of magnitude.

    Args:
        result: DataArray of dims (layer, row, column) from `receptive_field`, absolute gradients at
            each pixel.
        ax: Matplotlib axes; those of a new figure if None.
        layers: names of the layers to draw, in order; all if None.

    Returns:
        The axes, with `ax.panels` of shape (layer,).

    Raises:
        ValueError: for another result, or a layer that it does not have.

    Examples:
        >>> field = analysis.receptive_field(model, images)
        >>> ax = analysis.plot_receptive_field(field)

    See also:
        `receptive_field`, `plot_place_fields`.
    """
    from matplotlib.colors import PowerNorm

    result = select_layers(expect_array(result, ("layer", "row", "column")), layers)
    title = f"{style.titled('Effective receptive fields', result)}\n{SCALED}"
    look = {"norm": PowerNorm(0.5, vmin=0, vmax=1), "unit": "pixel"}
    label = "|gradient| / panel maximum (√ scale)"
    names = layer_names(result)
    ax, bar = draw_maps(ax, result.values, names, title, "layer", bar=label, **look)
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
    bar.ax.yaxis.set_major_formatter(lambda fraction, _: f"{fraction:.0%}")
    return ax


def plot_skip_ratio(
    results: style.Datasets,
    ax: "Axes | None" = None,
    variable: str = "norm_ratio",
    tokens: int = 16,
) -> "Axes":
    """Skip-to-branch norm ratio by layer and token (Figures 7 left and E.1 of Raghu et al. 2021).

    Args:
        results: Dataset with `norm_ratio` and `cosine` of dims (layer, token), NaN where a layer
            has fewer tokens (drawn grey). The attribute `prefix` is the number of prefix tokens. A
            dict from label to several is drawn by `plot_skip_ratio_lines`.
        ax: Matplotlib axes; those of a new figure if None.
        variable: "norm_ratio", ||skip|| / ||branch|| in log colours centred on 1, or "cosine", of
            skip and branch in [-1, 1].
        tokens: how many of the first tokens to draw.

    Returns:
        The axes: layers left to right, tokens downwards.

    Raises:
        ValueError: for another result or variable.

    Examples:
        >>> ratio = analysis.skip_ratio(model, images)
        >>> ax = analysis.plot_skip_ratio(ratio, variable="cosine")

    See also:
        `skip_ratio`, `plot_skip_ratio_lines`.
    """
    if isinstance(results, dict):
        return plot_skip_ratio_lines(results, ax, variable)
    variable = _expect_skip_variable(variable)
    values = expect_variable(results, variable, ("layer", "token"))
    count = values.sizes["token"]
    shown = values.isel(token=slice(tokens))
    look = {"cmap": style.colours("PuOr"), "norm": _skip_norm(variable, shown.values)}
    ax, image = draw_matrix(shown, ax, height=3, **look)
    _name_tokens(ax, shown.sizes["token"], results.attrs.get("prefix", 0))
    part = f"first {shown.sizes['token']} of {count}" if tokens < count else "all"
    name = SKIP_LABELS[variable]
    title = style.titled(f"{name[0].upper()}{name[1:]}, {part} tokens", results)
    ax.set_title(title, fontsize=11)
    gaps = "\n(grey: no such token)" if np.isnan(shown.values).any() else ""
    bar = style.colour_bar(ax, image, name + gaps)
    if variable == "norm_ratio":
        style.plain_log(bar.ax.yaxis)
    return ax


def _expect_skip_variable(variable):
    if variable not in SKIP_LABELS:
        raise ValueError(f"Expected variable in {list(SKIP_LABELS)}. Received: {variable!r}")
    return variable


def _skip_norm(variable, values):
    """Colours centred on a ratio of 1, or on a cosine of 0."""
    from matplotlib.colors import LogNorm, Normalize

    if variable == "cosine":
        return Normalize(-1, 1)
    positive = values[np.isfinite(values) & (values > 0)]
    limit = max(positive.max(initial=1.2), 1 / positive.min(initial=1))
    limit *= 1 + 1e-6  # else rounding puts the extreme value beyond the end of the colours
    return LogNorm(1 / limit, limit)


def _name_tokens(ax, count, prefix):
    """Number the tokens down the y axis, with the role of prefix tokens."""
    rows = np.arange(0, count, 2 ** int(np.ceil(np.log2(max(1, count / 24)))))
    labels = [f"{row} ({'prefix' if row else 'CLS'})" if row < prefix else str(row) for row in rows]
    ax.set_yticks(rows, labels, fontsize=FONT_SIZE)


def plot_skip_ratio_lines(
    results: style.Datasets, ax: "Axes | None" = None, variable: str = "norm_ratio"
) -> "Axes":
    """Skip-to-branch norm ratio by layer, mean over tokens (Figures 7 right and E.2 of Raghu).

    Args:
        results: Dataset with `norm_ratio` and `cosine` of dims (layer, token) and the attribute
            `prefix`, the number of prefix tokens (0: ResNets, GAP), or a dict from label to
            several.
        ax: Matplotlib axes; those of a new figure if None.
        variable: "norm_ratio", ||skip|| / ||branch||, or "cosine", of skip and branch.

    Returns:
        The axes. Colours distinguish models and kinds of token, line styles the sites of a block.

    Raises:
        ValueError: for another result or variable, or an empty dict.

    Examples:
        >>> ratio = analysis.skip_ratio(model, images)
        >>> ax = analysis.plot_skip_ratio_lines({"ViT": ratio, "other": ratio})

    See also:
        `skip_ratio`, `plot_skip_ratio`.
    """
    variable = _expect_skip_variable(variable)
    lines = {
        f"{label}: {kind}" if label else kind: line
        for label, result in style.by_label(results).items()
        for kind, line in _token_means(result, variable)
    }
    layers = [layer_names(line) for line in lines.values()]
    ax = style.new_axes(8.5, 4.4) if ax is None else ax
    ax.axhline(1 if variable == "norm_ratio" else 0, color="0.55", linewidth=0.9, zorder=1)
    colours, depths = style.distinct_colours(len(lines)), depth_axis(ax, layers)
    for names, depth, colour, (label, line) in zip(
        layers, depths, colours, lines.items(), strict=True
    ):
        _plot_sites(ax, depth, line.values, names, label, colour)
    name = SKIP_LABELS[variable]
    ax.set_title(style.titled(f"{name[0].upper()}{name[1:]}, mean over tokens", results))
    ax.set(ylabel=name)
    if variable == "norm_ratio":
        ax.set_yscale("log")
        style.plain_log(ax.yaxis)
    else:
        ax.set_ylim(-1.05, 1.05)
    style.tidy(ax)
    style.legend(ax)
    return ax


def _token_means(result, variable):
    """List of (kind of token, mean over its tokens of dims (layer,)), NaN left out."""
    values = expect_variable(result, variable, ("layer", "token"))
    if "prefix" not in result.attrs:
        raise ValueError(f"Expected the attribute 'prefix'. Received: {sorted(result.attrs)}")
    prefix = int(result.attrs["prefix"])
    spatial = ("spatial tokens", values.isel(token=slice(prefix, None)).mean("token"))
    if not prefix:
        return [spatial]
    first = [("CLS token", values.isel(token=0))]
    if prefix > 1:
        others = values.isel(token=slice(1, prefix)).mean("token")
        first.append(("other prefix tokens", others))
    return [*first, spatial]


def _plot_sites(ax, depth, values, names, label, colour):
    """One line per site of a block ("attention", "mlp"): a single line would zigzag."""
    last = [name.rpartition("/")[2] for name in shorten(names)[0]]
    sites = np.array(["" if re.search(r"\d", name) else name for name in last])
    for order, site in enumerate(dict.fromkeys(sites)):
        here = sites == site
        look = {"color": colour, "markersize": 4.5, "linestyle": style.line_style(order)}
        look |= {"marker": style.marker(order), "markerfacecolor": "white" if order else colour}
        ax.plot(depth[here], values[here], label=f"{label}, {site}" if site else label, **look)


def plot_path_norms(result: xr.Dataset, ax: "Axes | None" = None, example: int = 0) -> "Axes":
    """Norms of skip and branch by layer for one image: mean over tokens within their range.

    Args:
        result: Dataset with `skip` and `branch` of dims (example, layer, token) from `path_norms`.
        ax: Matplotlib axes; those of a new figure if None.
        example: number of the image.

    Returns:
        The axes: two lines, each in a band from the smallest to the largest token.

    Raises:
        ValueError: for another result, or an example that it does not have.

    Examples:
        >>> norms = analysis.path_norms(model, images)
        >>> ax = analysis.plot_path_norms(norms, example=1)

    See also:
        `path_norms`, `plot_skip_ratio`.
    """
    dims = ("example", "layer", "token")
    norms = {
        name: select_labels(expect_variable(result, name, dims), example=example)
        for name in ("skip", "branch")
    }
    ax = draw_lines({(name, ""): norm.mean("token") for name, norm in norms.items()}, {"": ""}, ax)
    for line, norm in zip(list(ax.lines)[-2:], norms.values(), strict=True):
        low, high = norm.min("token"), norm.max("token")
        ax.fill_between(line.get_xdata(), low, high, color=line.get_color(), alpha=0.15)
    ax.set(ylabel="Euclidean norm (band: token range)")
    ax.set_ylim(bottom=0)
    ax.set_title(style.titled("Skip and branch norms", result))
    return ax


@renamed_arguments(axes="ax")
def plot_patch_filters(result: xr.DataArray, ax: "Axes | None" = None) -> "Axes":
    """Principal components of the patch embedding's filters (Figure 7 left of the ViT paper).

    Args:
        result: DataArray of dims (component, row, column, channel) from `patch_filters`, of one
            channel (drawn grey) or three (red, green, blue).
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes, with `ax.panels` of shape (component,), each titled with the fraction of the
        variance that the component explains. Every tile is scaled to its own range, darkest to
        brightest.

    Raises:
        ValueError: for another result or number of channels.

    Examples:
        >>> filters = analysis.patch_filters(kernel, 8)
        >>> ax = analysis.plot_patch_filters(filters)

    See also:
        `patch_filters`, `plot_position_similarity`.
    """
    result = expect_array(result, ("component", "row", "column", "channel"))
    channels, count = result.sizes["channel"], result.sizes["component"]
    if channels not in (1, 3) or "explained_variance" not in result.coords:
        raise ValueError(
            "Expected 1 or 3 channels, and the coordinate explained_variance. "
            f"Received: {channels} channels and {sorted(map(str, result.coords))}"
        )
    title = style.titled("Principal components of the patch embedding", result)
    title += "\nexplained variance above; each tile scaled to its own range"
    inches = (1.3, 1.3 * result.sizes["row"] / result.sizes["column"])
    ax, flat = panels(ax, count, title, "component", inches=inches)
    fractions = result["explained_variance"].values
    for panel, tile, fraction in zip(flat, result.values, fractions, strict=True):
        low, high = tile.min(), tile.max()
        scaled = (tile - low) / (high - low) if high > low else np.full_like(tile, 0.5)
        panel.imshow(np.repeat(scaled, 3 // channels, axis=2), interpolation="nearest")
        panel.set_title(f"{100 * fraction:.1f} %", fontsize=FONT_SIZE, pad=3)
        panel.set(xticks=[], yticks=[])
    return ax


def plot_position_similarity(result: xr.DataArray, ax: "Axes | None" = None) -> "Axes":
    """Similarity of every position embedding to all (Figure 7 centre of the ViT paper).

    Args:
        result: DataArray of dims (row, column, other_row, other_column) from
            `position_similarity`.
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes: at the position of each patch a map of its similarity to the patches at all
        positions. Colours are fixed to [-1, 1].

    Raises:
        ValueError: for another result.

    Examples:
        >>> similarity = analysis.position_similarity(embedding, grid)
        >>> ax = analysis.plot_position_similarity(similarity)

    See also:
        `position_similarity`, `plot_patch_filters`.
    """
    result = expect_array(result, ("row", "column", "other_row", "other_column"))
    rows, columns = result.sizes["row"], result.sizes["column"]
    gap = max(1, round(max(rows, columns) / 8))
    tiles = np.pad(result.values, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan)
    heights, widths = tiles.shape[2:]
    mosaic = tiles.swapaxes(1, 2).reshape(rows * heights, columns * widths)[:-gap, :-gap]
    mosaic = mosaic.round(6)  # the similarity of a position to itself is 1 but for rounding
    inches = float(np.clip(0.5 * max(rows, columns), 3.5, 7)) / max(rows, columns)
    size = inches * columns + 2, inches * rows + 1
    target = style.new_axes(*size, "compressed") if ax is None else ax
    look = {"cmap": style.colours("viridis").with_extremes(bad="white"), "vmin": -1, "vmax": 1}
    image = target.imshow(mosaic, interpolation="nearest", **look)
    for axis, count, step, dim in (
        (target.xaxis, columns, widths, "other_column"),
        (target.yaxis, rows, heights, "other_row"),
    ):
        shown = np.arange(0, count, -(-count // 16))
        axis.set_ticks(shown * step + (result.sizes[dim] - 1) / 2, labels=map(str, shown + 1))
    target.set(xlabel="input patch column", ylabel="input patch row")
    target.spines[:].set_visible(False)
    target.tick_params(length=0, labelsize=FONT_SIZE)
    target.set_title(style.titled("Similarity of position embeddings", result), fontsize=11)
    style.colour_bar(target, image, "cosine similarity")
    return target


def plot_logit_lens(
    result: xr.DataArray,
    ax: "Axes | None" = None,
    classes: list[int | str] | None = None,
    example: int = 0,
) -> "Axes":
    """Logit lens of one image: class scores of every layer under the model's own head.

    Args:
        result: DataArray of dims (example, layer, class) from `logit_lens`.
        ax: Matplotlib axes; those of a new figure if None.
        classes: the classes to draw, as the coordinate `class` has them; the five of the highest
            scores at the last layer if None.
        example: number of the image.

    Returns:
        The axes: a line for each class.

    Raises:
        ValueError: for another result, or a class or example that it does not have.

    Examples:
        >>> lens = analysis.logit_lens(model, images)
        >>> ax = analysis.plot_logit_lens(lens, classes=[0, 3])

    See also:
        `logit_lens`, `plot_lens_accuracy`.
    """
    result = expect_array(result, ("example", "layer", "class"))
    scores = select_labels(result, example=example)
    if classes is None:
        classes = scores["class"].values[np.argsort(-scores.values[-1], kind="stable")[:5]]
    lines = {(f"class {name}", ""): select_labels(scores, **{"class": name}) for name in classes}
    ax = draw_lines(lines, {"": "score"}, ax)
    ax.set_ylabel("class score")
    ax.set_title(style.titled("Logit lens", result))
    return ax


def plot_lens_accuracy(results: style.Datasets, ax: "Axes | None" = None) -> "Axes":
    """Accuracy of every layer under the logit lens, and its agreement with the last layer.

    Args:
        results: Dataset with `accuracy`, `agreement` and their `..._stderr` of dims (layer,) from
            `lens_accuracy`, or a dict from label to several.
        ax: Matplotlib axes; those of a new figure if None.

    Returns:
        The axes: two lines for each result, in bands of 1.96 standard errors.

    Raises:
        ValueError: for another result, or an empty dict.

    Examples:
        >>> accuracy = analysis.lens_accuracy(lens, labels)
        >>> ax = analysis.plot_lens_accuracy(accuracy)

    See also:
        `lens_accuracy`, `plot_logit_lens`.
    """
    kinds = {"accuracy": "accuracy", "agreement": "agreement with the last layer"}
    lines, errors = (
        {
            (label, kind): expect_variable(result, f"{kind}{ending}", ("layer",))
            for label, result in style.by_label(results).items()
            for kind in kinds
        }
        for ending in ("", "_stderr")
    )
    ax = draw_lines(lines, kinds, ax, errors=errors)
    ax.set_ylabel("fraction of images")
    ax.get_legend().set_title("band: 95 % CI")
    ax.set_ylim(0, 1.03)
    ax.set_title(style.titled("Logit-lens accuracy", results))
    return ax
