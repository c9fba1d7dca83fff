"""Properties of layers and of predictions: dimension, frequencies, equivariance, robustness."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..engine.results import layer_names, require_word, select_labels
from . import style
from .primitives import depth_axis, draw_line, draw_lines, draw_matrix, panels
from .rule import draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes

DIMENSIONS = {
    "two_nn": "intrinsic dimension (TwoNN)",
    "participation_ratio": "participation ratio",
    "effective_rank": "effective rank",
}


@draws(dict.fromkeys(("dimension", "stderr"), "measure layer"), several=True)
def plot_intrinsic_dimension(
    results: style.Datasets,
    ax: "Axes | None",
    *,
    measure: str | None = None,
    baselines: Sequence[str] = (),
) -> "Axes":
    """Intrinsic dimension, participation ratio and effective rank by layer, on a log scale.

    Each line shows one combination of result and measure, with a band for its 95 % CI.

    Args:
        results: Dataset with `dimension` and `stderr` of dims (measure, layer), from
            `intrinsic_dimension`, or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        measure: `"two_nn"`, `"participation_ratio"` or `"effective_rank"`. None means all three.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.intrinsic_dimension(model, images)
        >>> ax = analysis.plots.plot_intrinsic_dimension(result)

    See also:
        `intrinsic_dimension`.
    """
    values = style.labelled(results, "dimension")
    errors = style.labelled(results, "stderr")
    if measure is not None:
        require_word(measure, tuple(DIMENSIONS), "measure")
    # A selection of a result may hold some of the measures only.
    held = {name for result in values.values() for name in result["measure"].values.tolist()}
    measures = [measure] if measure is not None else [name for name in DIMENSIONS if name in held]
    pairs = [(label, name) for label in values for name in measures]
    lines = {(label, name): select_labels(values[label], measure=name) for label, name in pairs}
    bands = {(label, name): select_labels(errors[label], measure=name) for label, name in pairs}
    kinds = {name: DIMENSIONS[name] for name in measures}
    ax = draw_lines(
        lines,
        kinds,
        ax,
        baselines,
        errors=bands,
        title=style.titled("Dimension of representations", results),
        ylabel=kinds[measure] if measure else "number of dimensions",
    )
    ax.set_yscale("log")
    style.plain_log(ax.yaxis)
    return ax


@draws(dict.fromkeys(("amplitude", "stderr"), "layer frequency"), several=True)
def plot_frequency_amplitude(
    results: style.Datasets,
    ax: "Axes | None",
    *,
    frequency: float = 1.0,
    baselines: Sequence[str] = (),
) -> "Axes":
    """Log amplitude at a high frequency by layer (Figure 2 of Park and Kim 2022).

    Each line shows one result, with a band for its 95 % CI.

    Args:
        results: Dataset with `amplitude` and `stderr` of dims (layer, frequency), from
            `frequency_amplitude`, or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        frequency: the frequency to draw, as a value of the coordinate `frequency` (1 is the highest
            frequency).
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.frequency_amplitude(model, images)
        >>> ax = analysis.plots.plot_frequency_amplitude(result)

    See also:
        `frequency_amplitude`.
    """
    words = "log amplitude relative to frequency 0"
    lines, errors = (
        {
            (label, words): select_labels(values, frequency=frequency)
            for label, values in style.labelled(results, name).items()
        }
        for name in ("amplitude", "stderr")
    )
    share = "the highest frequency" if frequency == 1 else f"{frequency:g} of the highest frequency"
    return draw_lines(
        lines,
        {words: words},
        ax,
        baselines,
        errors=errors,
        title=style.titled(f"Amplitude at {share}", results),
        ylabel=words,
    )


@draws(dict.fromkeys(("error", "stderr"), "transform layer"), several=True)
def plot_equivariance_error(
    results: style.Datasets, ax: "Axes | None", *, baselines: Sequence[str] = ()
) -> "Axes":
    """Equivariance error by layer and transform.

    Each line shows one combination of result and transform, with a band for its 95 % CI. A point is
    missing if a shift does not move the map of the layer by whole positions.

    Args:
        results: Dataset with `error` and `stderr` of dims (transform, layer), from
            `equivariance_error`, or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.equivariance_error(model, images)
        >>> ax = analysis.plots.plot_equivariance_error(result)

    See also:
        `equivariance_error`.
    """
    lines = style.split(style.labelled(results, "error"), "transform")
    errors = style.split(style.labelled(results, "stderr"), "transform")
    kinds = {name: name for _, name in lines}
    return draw_lines(
        lines,
        kinds,
        ax,
        baselines,
        errors=errors,
        title=style.titled("Equivariance error of layers", results),
        ylabel="equivariance error\n(0: moves along, 1: another image)",
    )


@draws(
    {
        **dict.fromkeys(("accuracy", "accuracy_change_stderr"), "perturbation strength"),
        **dict.fromkeys(("shuffled_accuracy", "shuffled_change_stderr"), "grid"),
        "intact_accuracy": "",
    },
    several=True,
)
def plot_robustness(
    results: style.Datasets, ax: "Axes | None", *, baselines: Sequence[str] = ()
) -> "Axes":
    """Accuracy versus strength of every perturbation, and on shuffled images (Naseer et al. 2021).

    Each line shows one result. Its band is the 95 % CI of the difference from the accuracy on
    intact images. In the last panel, which shows shuffled images, a grid of one cell is the intact
    image.

    Args:
        results: Dataset with `accuracy` and `accuracy_change_stderr` of dims (perturbation,
            strength), `shuffled_accuracy` and `shuffled_change_stderr` of dims (grid,) and
            `intact_accuracy` of dims (), from `robustness`, or a dict from label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (perturbation + 1,).

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.robustness(model, (images, labels))
        >>> ax = analysis.plots.plot_robustness(result)

    See also:
        `robustness`.
    """
    named = style.by_label(results)
    perturbations = layer_names(next(iter(named.values())), "perturbation")
    title = style.titled("Accuracy on perturbed images", results)
    names = [*perturbations, SHUFFLED]
    columns = (len(names) + 1) // 2 if len(names) > 3 else len(names)
    ax, flat = panels(ax, len(names), title, names, columns=columns, inches=(2.2, 1.9), size=9)
    colours = style.line_colours(named, baselines)
    for index, (panel, name) in enumerate(zip(flat, names, strict=True)):
        is_shuffled = name == SHUFFLED
        for label, result in named.items():
            part = result if is_shuffled else result.sel(perturbation=name)
            start, variables = (1, SHUFFLED_LINE) if is_shuffled else (0, PERTURBED_LINE)
            x, accuracy, errors = (part[variable].values for variable in variables)
            x = np.append(start, x)
            accuracy = np.append(result["intact_accuracy"].item(), accuracy)
            look: dict[str, Any] = {"color": colours[label], "marker": "o", "markersize": 3}
            errors = np.append(0.0, errors)
            draw_line(panel, x, accuracy, errors, label=label or "accuracy", **look)
        style.tidy(panel, ylim=(0, 1))
        style.percent(panel.yaxis)
        panel.tick_params(labelsize=7.5)
        if is_shuffled or index // columns == (len(perturbations) - 1) // columns:
            panel.set_xlabel("cells in a row" if is_shuffled else "strength", fontsize=8)
        if index % columns == 0:
            panel.set_ylabel("accuracy (%)", fontsize=8)
    if len(named) > 1:
        flat[0].legend(fontsize=7.5, frameon=False)
    return ax


SHUFFLED = "shuffled grid"
# What the panels of `plot_robustness` draw: x, accuracy and its standard error.
SHUFFLED_LINE = ("grid", "shuffled_accuracy", "shuffled_change_stderr")
PERTURBED_LINE = ("strength", "accuracy", "accuracy_change_stderr")

STITCHED = {
    "loss_change": "change in cross-entropy (nat)",
    "accuracy_change": f"change in accuracy ({style.POINTS})",
    "output_change": "divergence of predictions (nat)",
}


@draws(dict.fromkeys(STITCHED, "layer_x layer_y"))
def plot_stitching(result: xr.Dataset, ax: "Axes | None", *, change: str = "loss_change") -> "Axes":
    """Change of a model's predictions when a linear map of another model's layer replaces a layer.

    `layer_x`, the layer that is mapped, runs from left to right. `layer_y`, the layer that is
    replaced, runs from bottom to top.

    Args:
        result: Dataset with `loss_change` and `accuracy_change` and `output_change` of dims
            (layer_x, layer_y), from `stitching`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        change: the change to draw: `"accuracy_change"`, `"loss_change"` or `"output_change"`.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.stitching(model, model, images, (images, labels))
        >>> ax = analysis.plots.plot_stitching(result)

    See also:
        `stitching`, `plot_cka`.
    """
    require_word(change, tuple(STITCHED), "change")
    limits = style.span(result[change].values)
    limits |= {"vmin": 0.0} if change == "output_change" else {}
    return draw_matrix(
        result[change],
        ax,
        title="Predictions behind stitched layers",
        bar=STITCHED[change],
        models=style.models(result),
        cmap=style.colours("magma" if change == "accuracy_change" else "magma_r"),
        **limits,
    )[0]


@draws(
    {
        **dict.fromkeys(("share", "stderr", "norm_ratio"), "layer"),
        **dict.fromkeys(("attention", "attention_stderr"), "layer tokens"),
    },
    several=True,
)
def plot_outlier_tokens(
    results: style.Datasets, ax: "Axes | None", *, baselines: Sequence[str] = ()
) -> "Axes":
    """Share of outlier tokens by layer, their relative norm, and the attention that tokens receive.

    In the panel of attention received, each line shows one kind of token of one result. In the
    other two panels, each line shows one result. Bands show 95 % CIs. For layers without outliers,
    the norm and the attention of outliers are missing.

    Args:
        results: Dataset with `share` and `stderr` and `norm_ratio` of dims (layer,) and `attention`
            and `attention_stderr` of dims (layer, tokens), from `outlier_tokens`, or a dict from
            label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (3,).

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.outlier_tokens(model, images)
        >>> ax = analysis.plots.plot_outlier_tokens(result)

    See also:
        `outlier_tokens`.
    """
    named = style.by_label(results)
    title = style.titled("Outlier tokens", results)
    names = ("share of tokens", "norm relative to others", "attention received")
    ax, flat = panels(ax, 3, title, names, columns=3, inches=(2.6, 2.4), size=9)
    colours = style.line_colours(named, baselines)
    share, ratio, attention = flat
    for panel in flat:
        depths = depth_axis(panel, [layer_names(result) for result in named.values()])
        for depth, (label, result) in zip(depths, named.items(), strict=True):
            look: dict[str, Any] = {"color": colours[label], "marker": "o", "markersize": 3}
            if panel is share:
                values, errors = result["share"].values, result["stderr"].values
                draw_line(panel, depth, values, errors, label=label or "outliers", **look)
            elif panel is ratio:
                panel.plot(depth, result["norm_ratio"].values, **look)
            else:
                for order, tokens in enumerate(result["tokens"].values):
                    received = result.sel(tokens=tokens)
                    line, errors = (received[x].values for x in ("attention", "attention_stderr"))
                    if np.isfinite(line).any():
                        look["label"] = ": ".join(filter(None, [label, str(tokens)]))
                        look["linestyle"] = style.line_style(order)
                        draw_line(panel, depth, line, errors, **look)
    largest = max(float(result["share"].max()) for result in named.values())
    style.tidy(share, ylabel="share (%)", ylim=(0, max(1.2 * largest, 0.01)))
    style.percent(share.yaxis)
    has_outliers = any(result["norm_ratio"].notnull().any() for result in named.values())
    style.tidy(ratio, ylabel="median norm (others: 1)", ylim=(1, None if has_outliers else 10))
    if not has_outliers:
        ratio.text(0.5, 0.5, "no outliers", transform=ratio.transAxes, ha="center", fontsize=9)
    style.tidy(attention, ylabel="attention (uniform: 1)", ylim=(0, None))
    for panel in (share, attention):
        if len(panel.lines) > 1:
            panel.legend(fontsize=7.5, frameon=False)
    return ax


@draws(
    {
        "probe_accuracy": "layer content tokens",
        "probe_accuracy_stderr": "layer content tokens",
        "chance": "layer content tokens",
        "output_change": "layer tokens replacement",
        "output_change_stderr": "layer tokens replacement",
    }
)
def plot_outlier_roles(result: xr.Dataset, ax: "Axes | None") -> "Axes":
    """What outlier and ordinary tokens encode, and the effect of replacing them, by layer.

    Two panels show the accuracy of probes of a single token, which predict the class of the image
    and the position of the token. Dotted lines show chance. The third panel shows the KL divergence
    of the predictions after each kind of replacement. Bands show 95 % CIs.

    Args:
        result: Dataset with `probe_accuracy` and `probe_accuracy_stderr` and `chance` of dims
            (layer, content, tokens) and `output_change` and `output_change_stderr` of dims (layer,
            tokens, replacement), from `outlier_roles`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (3,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.outlier_roles(model, (images, labels))
        >>> ax = analysis.plots.plot_outlier_roles(result)

    See also:
        `outlier_roles`.
    """
    contents = layer_names(result, "content")
    titles = [f"probe of the {content}" for content in contents] + ["replaced tokens"]
    title = style.titled("Outlier tokens and as many ordinary ones", result)
    ax, flat = panels(ax, len(titles), title, titles, columns=3, inches=(2.6, 2.4), size=9)
    kinds = layer_names(result, "tokens")
    colours = style.line_colours(kinds, baselines=["ordinary"])

    for panel, content in zip(flat, [*contents, None], strict=True):
        (depth,) = depth_axis(panel, [layer_names(result)])
        for tokens in kinds:
            look: dict[str, Any] = {"color": colours[tokens], "marker": "o", "markersize": 3}
            part = result.sel(tokens=tokens)
            if content is not None:
                part = part.sel(content=content)
                panel.plot(depth, part["chance"].values, ":", color=colours[tokens])
                values, errors = (part[f"probe_accuracy{x}"].values for x in ("", "_stderr"))
                draw_line(panel, depth, values, errors, label=tokens, **look)
                continue
            for order, replacement in enumerate(layer_names(result, "replacement")):
                replaced = part.sel(replacement=replacement)
                values, errors = (replaced[f"output_change{x}"].values for x in ("", "_stderr"))
                look |= {"label": f"{tokens}: {replacement}", "linestyle": style.line_style(order)}
                draw_line(panel, depth, values, errors, **look)
        panel.legend(fontsize=7, frameon=False)
    for panel in flat[:-1]:
        style.tidy(panel, ylabel="accuracy (%)", ylim=(0, 1))
        style.percent(panel.yaxis)
    style.tidy(flat[-1], ylabel="divergence of predictions (nat)", ylim=(0, None))
    return ax


@draws(
    {
        **dict.fromkeys(("shape_bias", "low", "high"), ""),
        **dict.fromkeys(("class_shape_bias", "class_low", "class_high"), "class"),
    },
    several=True,
)
def plot_shape_bias(
    results: style.Datasets, ax: "Axes | None", *, baselines: Sequence[str] = ()
) -> "Axes":
    """Shape bias for each class and over all images (Figure 4 of Geirhos et al. 2019).

    Each point shows the bias of one result over the images whose shape is of one class, with its 95
    % CI. A vertical line shows the bias over all images, with a band for its 95 % CI. Results with
    labels of the form "MODEL: KIND" have the colour of the model, and a line style for each kind.

    Args:
        results: Dataset with `shape_bias` and `low` and `high` of dims () and `class_shape_bias`
            and `class_low` and `class_high` of dims (class,), from `shape_bias`, or a dict from
            label to such a result.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        baselines: labels of the results to draw in grey.

    Returns:
        The Matplotlib axes.

    Raises:
        ValueError: if the dims or variables of a result differ from those above, if the dict is
            empty, or if an option is invalid.

    Examples:
        >>> result = analysis.shape_bias(model, (images, labels))
        >>> ax = analysis.plots.plot_shape_bias(result)

    See also:
        `shape_bias`.
    """
    named = style.by_label(results)
    classes = layer_names(next(iter(named.values())), "class")
    ax = style.new_axes(6, 0.8 + 0.3 * len(classes) + 0.2 * len(named)) if ax is None else ax
    models = {label: label.partition(": ")[0] for label in named}
    kinds = list(dict.fromkeys(label.partition(": ")[2] for label in named))
    colours = style.line_colours(models.values(), [models[label] for label in baselines])
    for order, (label, result) in enumerate(named.items()):
        colour, kind = colours[models[label]], kinds.index(label.partition(": ")[2])
        value, *ends = (result[f"class_{name}"].values for name in ("shape_bias", "low", "high"))
        y = np.arange(len(value)) + 0.18 * (order - (len(named) - 1) / 2)
        widths = np.abs(np.stack(ends) - value)
        look: dict[str, Any] = {"color": colour, "marker": style.marker(kind), "markersize": 4.5}
        name = f"{result['shape_bias'].item():.2f} ({label or 'all classes'})"
        ax.errorbar(value, y, xerr=widths, linestyle="", linewidth=1, **look)
        ax.axvline(
            result["shape_bias"].item(),
            color=colour,
            label=name,
            linewidth=1.2,
            linestyle=style.line_style(kind),
        )
        low, high = result["low"].item(), result["high"].item()
        ax.axvspan(low, high, color=colour, alpha=0.15, linewidth=0)
    style.tidy(
        ax,
        xlabel="shape bias (0: texture, 1: shape)",
        ylabel="class of the shape",
        title=style.titled("Shape bias", results),
        xlim=(-0.03, 1.03),
    )
    ax.set_yticks(range(len(classes)), classes)
    ax.invert_yaxis()
    style.legend(ax, "all; band: 95 % CI")
    return ax
