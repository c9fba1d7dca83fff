"""Receptive fields, residual connections, the first layer, the logit lens and interventions.

`draws` checks before each call that a result has the variables and dims that are declared. The
functions check what the declaration does not cover, such as the variable that `change` names.
"""

import re
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..engine.results import (
    expect_variable,
    layer_names,
    require_word,
    select_labels,
    select_layers,
)
from . import style
from .primitives import (
    FONT_SIZE,
    SCALED,
    class_titles,
    depth_axis,
    draw_lines,
    draw_maps,
    draw_matrix,
    overlay,
    panels,
    picture_of,
    shorten,
)
from .rule import draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.colors import Normalize
    from matplotlib.typing import ColorType

SKIP_LABELS = {
    "norm_ratio": "skip-to-branch norm ratio",
    "cosine": "cosine similarity of skip and branch",
}


@draws("layer row column")
def plot_receptive_field(
    result: xr.DataArray, ax: "Axes | None", *, layers: list[str] | None = None
) -> "Axes":
    """Effective receptive field of the centre position of each layer (Figure 6 of Raghu et al.
    2021).

    The values are absolute gradients with respect to each pixel. Each panel is divided by its own
    maximum. Colours follow the square root of the values, since values at the centre exceed values
    elsewhere by orders of magnitude.

    Args:
        result: DataArray of dims (layer, row, column), from `receptive_field`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layers: names of the layers to draw, in order. None means all layers.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.receptive_field(model, images)
        >>> ax = analysis.plots.plot_receptive_field(result)

    See also:
        `receptive_field`, `plot_position_attribution`.
    """
    from matplotlib.colors import PowerNorm

    result = select_layers(result, layers)
    title = f"{style.titled('Effective receptive fields', result)}\n{SCALED}"
    ax, bar = draw_maps(
        ax,
        result.values,
        layer_names(result),
        title,
        bar="|gradient| / panel maximum (√ scale)",
        norm=PowerNorm(0.5, vmin=0, vmax=1),
        axis_unit="pixel",
    )
    bar.set_ticks([0, 0.01, 0.05, 0.1, 0.25, 0.5, 1])
    bar.ax.yaxis.set_major_formatter(lambda fraction, _: f"{fraction:.0%}")
    return ax


@draws(dict.fromkeys(SKIP_LABELS, "layer token"), several=True)
def plot_skip_ratio(
    results: style.Datasets, ax: "Axes | None", *, variable: str = "norm_ratio", tokens: int = 16
) -> "Axes":
    """Skip-to-branch norm ratio by layer and token (Figures 7 left and E.1 of Raghu et al. 2021).

    Layers run from left to right, and tokens downwards. Cells are grey (NaN) for tokens that a
    layer does not have. If `results` is a dict, this function calls `plot_skip_ratio_lines`, which
    ignores `tokens`.

    Args:
        results: Dataset with `norm_ratio` and `cosine` of dims (layer, token), from `skip_ratio`,
            or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        variable: "norm_ratio" is ||skip|| / ||branch||, with logarithmic colours centred on 1.
            "cosine" is the cosine similarity of skip and branch, in [-1, 1].
        tokens: number of tokens to draw, starting with the first token.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.skip_ratio(model, images)
        >>> ax = analysis.plots.plot_skip_ratio(result)

    See also:
        `skip_ratio`, `plot_skip_ratio_lines`.
    """
    if isinstance(results, dict):
        return plot_skip_ratio_lines(results, ax, variable=variable)
    require_word(variable, tuple(SKIP_LABELS), "variable")
    values = results[variable]
    count = values.sizes["token"]
    shown = values.isel(token=slice(tokens))
    part = f"first {shown.sizes['token']} of {count}" if tokens < count else "all"
    name = SKIP_LABELS[variable]
    title = style.titled(f"{name[0].upper()}{name[1:]}, {part} tokens", results)
    gaps = "\n(grey: no such token)" if np.isnan(shown.values).any() else ""
    ax, bar = draw_matrix(
        shown,
        ax,
        height=3,
        title=title,
        bar=name + gaps,
        cmap=style.colours("PuOr"),
        norm=_skip_norm(variable, shown.values),
    )
    prefix, num_shown = results.attrs.get("prefix", 0), shown.sizes["token"]
    # Every row, every second, every fourth and so on: at most 24 labels, which stay legible.
    rows = np.arange(0, num_shown, 2 ** int(np.ceil(np.log2(max(1, num_shown / 24)))))
    labels = [f"{row} ({'prefix' if row else 'CLS'})" if row < prefix else str(row) for row in rows]
    ax.set_yticks(rows, labels, fontsize=FONT_SIZE)
    if tokens < count:
        ax.set_ylabel(f"token ({part})")
    if variable == "norm_ratio" and bar is not None:
        style.plain_log(bar.ax.yaxis)
    return ax


def _skip_norm(variable: str, values: np.ndarray) -> "Normalize":
    """Colours centred on a ratio of 1, or on a cosine of 0."""
    from matplotlib.colors import LogNorm, Normalize

    if variable == "cosine":
        return Normalize(-1, 1)
    positive = values[np.isfinite(values) & (values > 0)]
    limit = max(positive.max(initial=1.2), 1 / positive.min(initial=1))
    limit *= 1 + 1e-6  # else rounding puts the extreme value beyond the end of the colours
    return LogNorm(1 / limit, limit)


@draws(dict.fromkeys(SKIP_LABELS, "layer token"), several=True, by_name_only=True, size=(8.5, 4.4))
def plot_skip_ratio_lines(
    results: style.Datasets, ax: "Axes", *, variable: str = "norm_ratio"
) -> "Axes":
    """Skip-to-branch norm ratio by layer, averaged over tokens (Figures 7 right and E.2 of Raghu).

    Each model has a colour, and each kind of token (CLS, other prefix tokens, spatial tokens) a
    line style. Markers are filled for attention and hollow for the MLP of a block. ResNets and ViTs
    without prefix tokens have lines for spatial tokens only. The attribute `prefix` of a result
    states the number of prefix tokens.

    Args:
        results: Dataset with `norm_ratio` and `cosine` of dims (layer, token), from `skip_ratio`,
            or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        variable: "norm_ratio" is ||skip|| / ||branch||. "cosine" is the cosine similarity of skip
            and branch.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.skip_ratio(model, images)
        >>> ax = analysis.plots.plot_skip_ratio_lines(result)

    See also:
        `skip_ratio`, `plot_skip_ratio`.
    """
    require_word(variable, tuple(SKIP_LABELS), "variable")
    lines = {
        (label, kind): line
        for label, result in style.by_label(results).items()
        for kind, line in _token_means(result, variable)
    }
    kinds = list(dict.fromkeys(kind for _, kind in lines))
    layers = [layer_names(line) for line in lines.values()]
    ax.axhline(1 if variable == "norm_ratio" else 0, color="0.55", linewidth=0.9, zorder=1)
    colours, depths = style.line_colours(label for label, _ in lines), depth_axis(ax, layers)
    for names, depth, ((label, kind), line) in zip(layers, depths, lines.items(), strict=True):
        words = f"{label}: {kind}" if label else kind
        look = {"color": colours[label], "linestyle": style.line_style(kinds.index(kind))}
        _plot_sites(ax, depth, line.values, names, words, look)
    name = SKIP_LABELS[variable]
    title = style.titled(f"{name[0].upper()}{name[1:]}, mean over tokens", results)
    if variable == "norm_ratio":
        ax.set_yscale("log")
        style.plain_log(ax.yaxis)
    else:
        ax.set_ylim(-1.05, 1.05)
    style.tidy(ax, title=title, ylabel=name)
    style.legend(ax)
    return ax


def _token_means(result: xr.Dataset, variable: str) -> list[tuple[str, xr.DataArray]]:
    """List of (kind of token, mean over its tokens of dims (layer,)), NaN left out."""
    values = result[variable]
    if "prefix" not in result.attrs:
        raise ValueError(
            f"Expected a result with the attribute 'prefix'. Received: {sorted(result.attrs)}"
        )
    prefix = int(result.attrs["prefix"])
    # Kinds that the model lacks are empty slices, and are left out below.
    parts = {
        "CLS token": slice(1 if prefix else 0),
        "other prefix tokens": slice(1, max(prefix, 1)),
        "spatial tokens": slice(prefix, None),
    }
    kinds = {kind: values.isel(token=part) for kind, part in parts.items()}
    return [(kind, x.mean("token")) for kind, x in kinds.items() if x.sizes["token"]]


def _plot_sites(
    ax: "Axes",
    depth: np.ndarray,
    values: np.ndarray,
    names: Sequence[str],
    label: str,
    look: dict[str, Any],
) -> None:
    """One line per site of a block ("attention", "mlp"): a single line would zigzag."""
    # A last part with a digit counts blocks or units, and names no site.
    last = [name.rpartition("/")[2] for name in shorten(names)[0]]
    sites = np.array(["" if re.search(r"\d", name) else name for name in last])
    for order, site in enumerate(dict.fromkeys(sites)):
        here = sites == site
        ax.plot(
            depth[here],
            values[here],
            label=f"{label}, {site}" if site else label,
            marker=style.marker(order),
            markersize=4.5,
            markerfacecolor="white" if order else look["color"],
            **look,
        )


@draws(dict.fromkeys(("skip", "branch"), "example layer token"))
def plot_branch_norms(result: xr.Dataset, ax: "Axes | None", *, example: int = 0) -> "Axes":
    """Norms of skip and branch by layer for one image, with mean and range over tokens.

    Two lines show the means over tokens. The band around each line ranges from the token with the
    smallest norm to the token with the largest norm.

    Args:
        result: Dataset with `skip` and `branch` of dims (example, layer, token), from
            `branch_norms`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        example: index of the image.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.branch_norms(model, images)
        >>> ax = analysis.plots.plot_branch_norms(result)

    See also:
        `branch_norms`, `plot_skip_ratio`.
    """
    norms = {name: select_labels(result[name], example=example) for name in ("skip", "branch")}
    # `draw_lines` takes lines by (label, kind), and the names of kinds: here all are of one kind.
    lines = {(name, ""): norm.mean("token") for name, norm in norms.items()}
    title = style.titled("Skip and branch norms", result)
    ylabel = "Euclidean norm (band: token range)"
    ax = draw_lines(lines, {"": ""}, ax, title=title, ylabel=ylabel)
    # The last two lines of the axes are those just drawn: given axes may have others.
    for line, norm in zip(list(ax.lines)[-2:], norms.values(), strict=True):
        low, high = norm.min("token"), norm.max("token")
        ax.fill_between(line.get_xdata(), low, high, color=line.get_color(), alpha=0.15)
    ax.set_ylim(bottom=0)
    return ax


@draws("component row column channel")
def plot_patch_filters(result: xr.DataArray, ax: "Axes | None") -> "Axes":
    """Principal components of the patch-embedding filters (Figure 7 left of the ViT paper).

    Each tile shows one component, scaled to its own range. Filters with one channel are drawn in
    grey, and filters with three channels are drawn in red, green and blue. The title of a tile
    states the fraction of the variance that the component explains.

    Args:
        result: DataArray of dims (component, row, column, channel), from `patch_filters`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (component,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.patch_filters(kernel, 8)
        >>> ax = analysis.plots.plot_patch_filters(result)

    See also:
        `patch_filters`, `plot_position_similarity`.
    """
    channels, count = result.sizes["channel"], result.sizes["component"]
    if channels not in (1, 3) or "explained_variance" not in result.coords:
        raise ValueError(
            "Expected a result of patch_filters with 1 or 3 channels and the coordinate "
            "explained_variance. "
            f"Received: {channels} channels and {sorted(map(str, result.coords))}"
        )
    title = style.titled("Principal components of the patch embedding", result)
    title += "\nexplained variance above; each tile scaled to its own range"
    inches = (1.3, 1.3 * result.sizes["row"] / result.sizes["column"])
    names = [f"{100 * fraction:.1f} %" for fraction in result["explained_variance"].values]
    ax, flat = panels(ax, count, title, names, inches=inches, pad=3)
    for panel, tile in zip(flat, result.values, strict=True):
        low, high = tile.min(), tile.max()
        scaled = (tile - low) / (high - low) if high > low else np.full_like(tile, 0.5)
        panel.imshow(np.repeat(scaled, 3 // channels, axis=2), interpolation="nearest")
        panel.set(xticks=[], yticks=[])
    return ax


@draws("row column other_row other_column")
def plot_position_similarity(result: xr.DataArray, ax: "Axes | None") -> "Axes":
    """Cosine similarity of every position embedding to all others (Figure 7 centre of the ViT
    paper).

    Each patch has a small map of the similarity of its position embedding to the embeddings of all
    patches. The maps are arranged as the patches are in the image. Colours are fixed to [-1, 1].

    Args:
        result: DataArray of dims (row, column, other_row, other_column), from
            `position_similarity`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.position_similarity(embedding, grid)
        >>> ax = analysis.plots.plot_position_similarity(result)

    See also:
        `position_similarity`, `plot_patch_filters`.
    """
    rows, columns = result.sizes["row"], result.sizes["column"]
    gap = max(1, round(max(rows, columns) / 8))
    tiles = np.pad(result.values, ((0, 0), (0, 0), (0, gap), (0, gap)), constant_values=np.nan)
    heights, widths = tiles.shape[2:]
    mosaic = tiles.swapaxes(1, 2).reshape(rows * heights, columns * widths)[:-gap, :-gap]
    mosaic = mosaic.round(6)  # the similarity of a position to itself is 1 but for rounding
    inches = float(np.clip(0.5 * max(rows, columns), 3.5, 7)) / max(rows, columns)
    size = inches * columns + 2, inches * rows + 1
    target = style.new_axes(*size, "compressed") if ax is None else ax
    image = target.imshow(
        mosaic,
        interpolation="nearest",
        cmap=style.colours("viridis").with_extremes(bad="white"),
        vmin=-1,
        vmax=1,
    )
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


@draws("example layer class")
def plot_logit_lens(
    result: xr.DataArray,
    ax: "Axes | None",
    *,
    classes: list[int | str] | None = None,
    example: int = 0,
) -> "Axes":
    """Logit lens of one image: the class scores that the final norm and head give for every layer.

    Args:
        result: DataArray of dims (example, layer, class), from `logit_lens`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        classes: the classes to draw, as values of the coordinate `class`. None means the five
            classes with the highest scores at the last layer.
        example: index of the image.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.logit_lens(model, images)
        >>> ax = analysis.plots.plot_logit_lens(result)

    See also:
        `logit_lens`, `plot_lens_accuracy`.
    """
    scores = select_labels(result, example=example)
    best = np.argsort(-scores.values[-1], kind="stable")[:5]
    shown = scores["class"].values[best].tolist() if classes is None else classes
    # One line for each class, all of one kind.
    selected = {name: select_labels(scores, **{"class": name}) for name in shown}
    lines = {(class_titles(line)[0], ""): line for line in selected.values()}
    return draw_lines(
        lines, {"": "score"}, ax, title=style.titled("Logit lens", result), ylabel="class score"
    )


LENS_LINES = {"accuracy": "accuracy", "agreement": "agreement with the last layer"}


@draws(
    {f"{name}{ending}": "layer" for ending in ("", "_stderr") for name in LENS_LINES}, several=True
)
def plot_lens_accuracy(results: style.Datasets, ax: "Axes | None") -> "Axes":
    """Accuracy of every layer under the logit lens, and its agreement with the last layer.

    Bands show 95 % CIs.

    Args:
        results: Dataset with `accuracy` and `agreement` and `accuracy_stderr` and
            `agreement_stderr` of dims (layer,), from `lens_accuracy`, or a dict from label to such
            a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, or if the dict is
            empty.

    Examples:
        >>> result = analysis.lens_accuracy(lens, labels)
        >>> ax = analysis.plots.plot_lens_accuracy(result)

    See also:
        `lens_accuracy`, `plot_logit_lens`.
    """
    lines, errors = (
        {
            (label, kind): result[f"{kind}{ending}"]
            for label, result in style.by_label(results).items()
            for kind in LENS_LINES
        }
        for ending in ("", "_stderr")
    )
    return draw_lines(
        lines,
        LENS_LINES,
        ax,
        errors=errors,
        ylabel="images (%)",
        title=style.titled("Logit-lens accuracy", results),
        ylim=(0, 1.03),
    )


EFFECTS = {
    "accuracy_change": f"change in accuracy ({style.POINTS})",
    "loss_change": "change in loss (nats)",
    "output_change": "KL divergence of the output (nats)",
}


@draws({"output_change": "layer head"}, {"accuracy_change": "layer head"})
def plot_head_ablation(
    result: xr.Dataset, ax: "Axes | None", *, change: str = "output_change"
) -> "Axes":
    """Effect of ablating each attention head, with a cell for each layer and head.

    Layers run from left to right, and heads downwards. A cell is grey if the layer has no such
    head.

    Args:
        result: Dataset with `output_change` of dims (layer, head) or Dataset with `accuracy_change`
            of dims (layer, head), from `head_ablation`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        change: the change to draw: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.head_ablation(model, (images, labels))
        >>> ax = analysis.plots.plot_head_ablation(result)

    See also:
        `head_ablation`, `plot_head_effects`.
    """
    values = expect_variable(result, _known_change(change), ("layer", "head"))
    title, is_signed = style.titled("Head ablation", result), change != "output_change"
    return _draw_cells(values, ax, title, EFFECTS[change], is_signed)


@draws({"transfer": "layer token"})
def plot_activation_patching(result: xr.Dataset, ax: "Axes | None") -> "Axes":
    """Effect on the scores when a token of a layer gets its value from another image.

    Layers run from left to right, and tokens downwards.

    Args:
        result: Dataset with `transfer` of dims (layer, token), from `activation_patching`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.activation_patching(model, (images, other_images))
        >>> ax = analysis.plots.plot_activation_patching(result)

    See also:
        `activation_patching`, `plot_token_ablation`.
    """
    title = style.titled("Activation patching", result)
    return _draw_cells(result["transfer"], ax, title, "transfer (fraction of the score difference)")


def _draw_cells(
    values: xr.DataArray, ax: "Axes | None", title: str, label: str, is_signed: bool = True
) -> "Axes":
    """A matrix of an array (layer, unit), in colours centred on 0, or from 0 for a divergence."""
    limit = float(np.nanmax(np.abs(values.values), initial=0)) or 1.0
    return draw_matrix(
        values,
        ax,
        height=3,
        title=title,
        size="large",
        bar=label,
        cmap=style.colours("RdBu" if is_signed else "magma"),
        vmin=-limit if is_signed else 0.0,
        vmax=limit,
    )[0]


@draws({"distance": "layer head"}, several=True, by_name_only=True, size=(7, 4.2))
def plot_head_effects(
    results: style.Datasets, ax: "Axes", *, change: str = "output_change"
) -> "Axes":
    """Effect of ablating each attention head versus its attention distance.

    Each point shows one head. If standard errors are known, a bar shows the 95 % CI of the effect.
    The result to draw is the result of `head_ablation`, to which the result of `attention_distance`
    is added as the variable `distance`.

    Args:
        results: Dataset with `distance` of dims (layer, head), from `head_ablation`, or a dict from
            label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        change: the change to draw: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.head_ablation(model, (images, labels)).assign(
        ...     distance=analysis.attention_distance(model, images)
        ... )
        >>> ax = analysis.plots.plot_head_effects(result)

    See also:
        `head_ablation`, `plot_head_ablation`.
    """
    effects = style.labelled(results, _known_change(change), "layer", "head")
    distances = style.labelled(results, "distance")
    datasets = style.by_label(results)
    errors = {label: dataset.get(f"{change}_stderr") for label, dataset in datasets.items()}
    colours = style.line_colours(effects)
    for label, effect in effects.items():
        distance, colour = distances[label].reindex_like(effect), colours[label]
        points = distance.values.ravel(), effect.values.ravel()
        ax.scatter(*points, s=18, color=colour, label=label)
        error = errors[label]
        if error is not None:
            reach = 1.96 * error.reindex_like(effect).values.ravel()
            x, y = points
            bars = np.stack([y - reach, y + reach, np.full_like(y, np.nan)], axis=1).ravel()
            ax.plot(np.repeat(x, 3), bars, color=colour, alpha=0.5, linewidth=1)
    units = next(iter(distances.values())).attrs.get("units", "no unit")
    title = style.titled("Head ablation and attention distance", results)
    xlabel = f"mean attention distance ({units})"
    style.tidy(ax, title=title, xlabel=xlabel, ylabel=EFFECTS[change])
    if any(effects):  # a single result has the label "", and needs no legend
        style.legend(ax)
    return ax


@draws({"accuracy_change": "layer path"}, several=True)
def plot_skip_ablation(
    results: style.Datasets, ax: "Axes | None", *, change: str = "accuracy_change"
) -> "Axes":
    """Effect of removing the skips, or the branches, of each block.

    For each model, one line shows the effect of removing skips, and another line shows the effect
    of removing branches. Bands show 1.96 standard errors on both sides.

    Args:
        results: Dataset with `accuracy_change` of dims (layer, path), from `skip_ablation`, or a
            dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        change: the change to draw: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.skip_ablation(model, (images, labels))
        >>> ax = analysis.plots.plot_skip_ablation(result)

    See also:
        `skip_ablation`, `plot_skip_ratio`.
    """
    lines, errors = (
        style.split(style.labelled(results, name, "layer", "path"), "path")
        for name in (_known_change(change), f"{change}_stderr")
    )
    kinds = {path: f"without {path}" for _, path in lines}
    title = style.titled("Ablation of skips and branches by block", results)
    ax = draw_lines(lines, kinds, ax, errors=errors, title=title)
    _finish(ax, change)
    return ax


@draws({"accuracy_change": "layer erased"}, several=True)
def plot_concept_erasure(
    results: style.Datasets,
    ax: "Axes | None",
    *,
    change: str = "accuracy_change",
    baselines: Sequence[str] = (),
) -> "Axes":
    """Effect of erasing a concept from each layer, and of erasing random subspaces.

    For each result, one line shows the effect of erasing the concept, with a band of 1.96 standard
    errors on both sides. Another line shows the mean effect of random subspaces of the same rank,
    with a band for the 95 % prediction interval of one of them. A concept outside this band has
    more effect than random directions have.

    Args:
        results: Dataset with `accuracy_change` of dims (layer, erased), from `concept_erasure`, or
            a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        change: the change to draw: `"accuracy_change"`, `"loss_change"` or `"output_change"`.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.concept_erasure(model, (images, labels))
        >>> ax = analysis.plots.plot_concept_erasure(result)

    See also:
        `concept_erasure`, `plot_skip_ablation`.
    """
    lines = style.split(style.labelled(results, _known_change(change), "layer", "erased"), "erased")
    errors = style.split(style.labelled(results, f"{change}_stderr", "layer", "erased"), "erased")
    for label, result in style.by_label(results).items():
        interval = expect_variable(result, f"{change}_high", ("layer",)) - result[f"{change}_low"]
        errors[label, "random"] = interval / 2 / 1.96  # `draw_lines` draws 1.96 of these
    kinds = {"concept": "concept erased", "random": "random subspace erased"}
    title = style.titled("Erasure of a concept by layer", results)
    ax = draw_lines(lines, kinds, ax, baselines, errors=errors, title=title)
    _finish(ax, change)
    return ax


@draws({"accuracy_change": "tokens share"}, several=True)
def plot_token_ablation(
    results: style.Datasets, ax: "Axes | None", *, change: str = "accuracy_change"
) -> "Axes":
    """Effect of replacing a growing fraction of the tokens, one after the other.

    Each line style is an order in which the tokens are replaced, with error bars of 1.96 standard
    errors. Prefix tokens are replaced all at once, and are therefore shown as points at a fraction
    of 1. If there are several results, each result has its own panel, and all panels have a common
    scale.

    Args:
        results: Dataset with `accuracy_change` of dims (tokens, share), from `token_ablation`, or a
            dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        change: the change to draw: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.token_ablation(model, (images, labels))
        >>> ax = analysis.plots.plot_token_ablation(result)

    See also:
        `token_ablation`, `plot_activation_patching`.
    """
    # Checks the change in all results before anything is drawn in given axes.
    from matplotlib.lines import Line2D

    style.labelled(results, _known_change(change), "tokens", "share")
    title = style.titled("Token ablation", results)
    if not isinstance(results, dict):
        ax = style.new_axes(7, 4.2) if ax is None else ax
        _draw_orders(ax, results, change, _orders([results]), style.line_colours([""])[""])
        ax.set_title(title)
        style.legend(ax, title="tokens (bars: 95 % CI)")
        return ax
    count, orders = len(results), _orders(results.values())
    ax, flat = panels(
        ax, count, title, list(results), columns=min(count, 3), inches=(3.6, 2.8), size=10
    )
    for panel in flat[1:]:
        panel.sharey(flat[0])
    colours = style.line_colours(results)
    for panel, (label, result) in zip(flat, results.items(), strict=True):
        _draw_orders(panel, result, change, orders, colours[label])
        panel.label_outer()
    handles = [Line2D([], [], color="0.3", **look) for look in orders.values()]
    ax.legend(handles=handles, title="tokens (bars: 95 % CI)", **style.LEGEND)
    return ax


def _orders(results: Iterable[xr.Dataset]) -> dict[str, dict[str, Any]]:
    """Line style and marker of each order of tokens: dict from its name."""
    names = [str(name) for result in results for name in result["tokens"].values]
    names = list(dict.fromkeys(names))
    return {
        name: {
            "linestyle": style.line_style(number),
            "marker": style.marker(number),
            "markersize": 4.5,
            "label": name,
        }
        for number, name in enumerate(names)
    }


def _draw_orders(
    ax: "Axes",
    result: xr.Dataset,
    change: str,
    orders: dict[str, dict[str, Any]],
    colour: "ColorType",
) -> None:
    """A line for each order of tokens, without a legend."""
    values = expect_variable(result, _known_change(change), ("tokens", "share"))
    errors = expect_variable(result, f"{change}_stderr", ("tokens", "share"))
    for name in map(str, values["tokens"].values):
        line, error = values.sel(tokens=name), 1.96 * errors.sel(tokens=name).values
        is_finite = np.isfinite(line.values)
        shares = values["share"].values[is_finite]
        ax.errorbar(shares, line.values[is_finite], error[is_finite], color=colour, **orders[name])
    _finish(ax, change, xlabel="fraction of tokens replaced")


def _finish(ax: "Axes", change: str, **labels: Any) -> None:
    """A line at no change, and the labels of the axes."""
    ax.axhline(0, color="grey", linewidth=0.8)
    style.tidy(ax, ylabel=EFFECTS[change], **labels)


def _known_change(change: str) -> str:
    """The name of a change; a `ValueError` for an unknown one."""
    return require_word(change, tuple(EFFECTS), "change")


def plot_overlay(
    image: np.ndarray,
    values: np.ndarray | xr.DataArray,
    ax: "Axes | None" = None,
    *,
    opacity: float = 0.7,
    low: float | None = None,
    high: float | None = None,
    label: str = "value",
) -> "Axes":
    """Draws a map over an image, with one colour for each cell of a grid that tiles the image.

    Args:
        image: array of shape (height, width, 3), with integers in [0, 255] or with floats in [-1,
            1], the range that models of this package expect.
        values: array or DataArray of shape (rows, columns). NaN is drawn in grey.
        ax: Matplotlib axes to draw in. None creates a figure with a colour bar.
        opacity: opacity of the colours, from 0 to 1.
        low, high: limits of the colour scale. The defaults are the smallest and the largest value.
        label: label of the colour bar.

    Returns:
        The axes.

    Raises:
        ValueError: if `image` or `values` does not have the shape stated above, or if values of the
            image are out of range.

    Examples:
        >>> maps = analysis.grad_cam(model, images)
        >>> ax = analysis.plots.plot_overlay(images[0], maps[0, 0, -1], label="Grad-CAM")

    See also:
        `plot_grad_cam`, `plot_attention_rows`.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"Expected a map of shape (rows, columns). Received: {values.shape}")
    limits = style.span(values)
    limits |= {key: end for key, end in (("vmin", low), ("vmax", high)) if end is not None}
    target = style.new_axes(4.6, 4, "compressed") if ax is None else ax
    drawn = overlay(target, image, values, opacity=opacity, cmap=style.colours("magma"), **limits)
    if ax is None:
        style.colour_bar(target, drawn, label)
    return target


@draws("example class row column channel")
def plot_input_gradients(
    result: xr.DataArray, ax: "Axes | None", *, image: np.ndarray | None = None, example: int = 0
) -> "Axes":
    """Absolute input gradients, summed over image channels, with a panel for each class.

    Each panel is scaled to its own maximum.

    Args:
        result: DataArray of dims (example, class, row, column, channel), from `input_gradients`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        image: image on which the maps are drawn, as the model receives it: an array in a format
            that `plot_overlay` accepts, or a PIL image. By default, the image stored in the
            result.
        example: index of the image.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (class,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.input_gradients(model, images)
        >>> ax = analysis.plots.plot_input_gradients(result)

    See also:
        `input_gradients`, `plot_grad_cam`.
    """
    return _draw_pixels(result, ax, "Input gradients", image, example)


def _draw_pixels(
    result: xr.DataArray, ax: "Axes | None", title: str, image: Any, example: int
) -> "Axes":
    """A map for each class of absolute values (row, column, channel), summed over channels."""
    maps = abs(select_labels(result, example=example)).sum("channel")
    title = style.titled(title, result)
    image = picture_of(maps, image)
    return draw_maps(ax, maps.values, class_titles(result), title, image=image)[0]


@draws("example class row column channel")
def plot_integrated_gradients(
    result: xr.DataArray, ax: "Axes | None", *, image: np.ndarray | None = None, example: int = 0
) -> "Axes":
    """Absolute attributions of the pixels, summed over image channels, a panel for each class.

    Each panel is scaled to its own maximum.

    Args:
        result: DataArray of dims (example, class, row, column, channel), from
            `integrated_gradients`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        image: image on which the maps are drawn, as the model receives it: an array in a format
            that `plot_overlay` accepts, or a PIL image. By default, the image stored in the
            result.
        example: index of the image.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (class,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.integrated_gradients(model, images)
        >>> ax = analysis.plots.plot_integrated_gradients(result)

    See also:
        `integrated_gradients`, `plot_input_gradients`.
    """
    return _draw_pixels(result, ax, "Integrated gradients", image, example)


@draws("example class layer row column")
def plot_grad_cam(
    result: xr.DataArray,
    ax: "Axes | None",
    *,
    image: np.ndarray | None = None,
    class_label: int | str | None = None,
    example: int = 0,
) -> "Axes":
    """Grad-CAM of one class, with a panel for each layer.

    Each panel is scaled to its own maximum.

    Args:
        result: DataArray of dims (example, class, layer, row, column), from `grad_cam`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        image: image on which the maps are drawn, as the model receives it: an array in a format
            that `plot_overlay` accepts, or a PIL image. By default, the image stored in the
            result.
        class_label: the class to draw, as a value of the coordinate `class`. None means the first
            class.
        example: index of the image.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.grad_cam(model, images)
        >>> ax = analysis.plots.plot_grad_cam(result)

    See also:
        `grad_cam`, `plot_input_gradients`.
    """
    label = result["class"].values[0] if class_label is None else class_label
    maps = select_labels(result, **{"example": example, "class": label})
    title = style.titled(f"Grad-CAM of {class_titles(maps)[0]}", result)
    image = picture_of(maps, image)
    return draw_maps(ax, maps.values, layer_names(result), title, image=image)[0]


@draws("example layer place row column")
def plot_position_attribution(
    result: xr.DataArray,
    ax: "Axes | None",
    *,
    place: int | None = None,
    image: np.ndarray | None = None,
    example: int = 0,
) -> "Axes":
    """Effective receptive field at one position of an image, with a panel for each layer.

    Each panel is scaled to its own maximum. Colours follow the square root of the result.

    Args:
        result: DataArray of dims (example, layer, place, row, column), from `position_attribution`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        place: index of the cell, counted row by row. None means the middle cell.
        image: image on which the maps are drawn, as the model receives it: an array in a format
            that `plot_overlay` accepts, or a PIL image. None draws the maps without an image.
        example: index of the image.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.position_attribution(model, images)
        >>> ax = analysis.plots.plot_position_attribution(result)

    See also:
        `position_attribution`, `plot_receptive_field`.
    """
    place = result["place"].values[result.sizes["place"] // 2] if place is None else place
    maps = np.sqrt(select_labels(result, example=example, place=place))
    title = style.titled(f"Effective receptive field at position {place}", result)
    return draw_maps(
        ax, maps, layer_names(result), title, bar="√ of the fraction of maximum", image=image
    )[0]


@draws("layer example token other_example other_token")
def plot_token_similarity(
    result: xr.DataArray,
    ax: "Axes | None",
    *,
    token: int | None = None,
    images: list[np.ndarray] | None = None,
    layer: str | None = None,
    example: int = 0,
) -> "Axes":
    """Cosine similarity of one token to all tokens of every image.

    Frames mark the most similar tokens. The colour scale ranges from the smallest cosine similarity
    to 1.

    Args:
        result: DataArray of dims (layer, example, token, other_example, other_token), from
            `token_similarity`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        token: position of the token on the grid, counted row by row without prefix tokens. None
            means the middle of the grid.
        images: list of the images, in a format that `plot_overlay` accepts. None draws the maps
            without images.
        layer: name of the layer. None means the last layer.
        example: index of the image that contains the token.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (image,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.token_similarity(model, images)
        >>> ax = analysis.plots.plot_token_similarity(result)

    See also:
        `token_similarity`, `plot_attention_rows`.
    """
    from matplotlib.colors import Normalize

    _, (rows, columns) = style.token_layout(result)
    layer = layer_names(result)[-1] if layer is None else layer
    if token is None:
        token = (rows // 2) * columns + columns // 2
    values = select_labels(result, layer=layer, example=example, token=token).values
    low = float(values.min())
    best = [token if other == example else int(row.argmax()) for other, row in enumerate(values)]
    names = ["same image" if other == example else f"image {other}" for other in range(len(best))]
    title = style.titled(f"Similarity to token {token} of {layer}", result)
    return draw_maps(
        ax,
        values.reshape(-1, rows, columns),
        names,
        title,
        frames=[divmod(cell, columns) for cell in best],
        bar="cosine similarity",
        images=images,
        scaled=False,
        norm=Normalize(low, max(1, low + 1e-6)),
    )[0]
