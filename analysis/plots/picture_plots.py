"""Pictures of images in the order of a ranking, and images as points: neighbours, mistakes."""

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import xarray as xr

from ..engine.results import layer_names, select_labels, select_layers
from . import style
from .primitives import elide, panels, shorten
from .rule import draws

if TYPE_CHECKING:
    from matplotlib.axes import Axes

ENOUGH_CLASSES = 20  # that colours distinguish
MOST_NEIGHBOUR_LAYERS = 6  # rows of a plot that selects layers itself


@draws({"position": "layer query rank", "similarity": "layer query rank"})
def plot_neighbours(
    result: xr.Dataset, ax: "Axes | None", *, query: int = 0, layers: list[str] | None = None
) -> "Axes":
    """The nearest images to a query image, with a row for each layer, from bottom to top.

    The query is the first image of each row. The number above each neighbour is its cosine
    similarity to the query.

    Args:
        result: Dataset with `position` and `similarity` of dims (layer, query, rank), from
            `neighbours`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        query: index of the query image.
        layers: names of the layers to draw, in order. By default, at most six layers are drawn,
            evenly spaced from the first to the last.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer, 1 + rank).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.neighbours(model, images, other_images)
        >>> ax = analysis.plots.plot_neighbours(result)

    See also:
        `neighbours`, `plot_projection`.
    """
    names = layer_names(result["position"])
    if layers is None:
        chosen = np.linspace(0, len(names) - 1, min(len(names), MOST_NEIGHBOUR_LAYERS))
        layers = [names[index] for index in np.unique(np.rint(chosen).astype(int))]
    result = select_labels(result, query=query)
    similarity = select_layers(result["similarity"], layers)
    pictures = select_layers(result["picture"], layers).values
    num_ranks = similarity.sizes["rank"]
    titles = []
    for row in similarity.values[::-1]:  # layers run upwards
        titles += ["query", *(f"{value:.3f}" for value in row)]
    shape = (len(layers), 1 + num_ranks)
    title = style.titled("Nearest images by layer, with their cosine similarity", result)
    ax, _ = panels(ax, shape, title, titles, inches=(1.0, 1.0), pad=2)
    ax.panels = ax.panels[::-1]
    query_picture = result["query_picture"].values
    for row in range(shape[0]):
        for panel, picture in zip(ax.panels[row], [query_picture, *pictures[row]], strict=True):
            _show_picture(panel, picture)
    for panel, name in zip(ax.panels[:, 0], shorten(layers)[0], strict=True):
        panel.set_ylabel(elide(name, 18), fontsize=8)
    return ax


@draws({"probability": "rank", "predicted": "rank", "label": "rank"})
def plot_mistakes(result: xr.Dataset, ax: "Axes | None") -> "Axes":
    """The most confidently misclassified images.

    The title of each image states the predicted class, its probability and the correct class.

    Args:
        result: Dataset with `probability` and `predicted` and `label` of dims (rank,), from
            `mistakes`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (rank,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above.

    Examples:
        >>> result = analysis.mistakes(model, (images, labels))
        >>> ax = analysis.plots.plot_mistakes(result)

    See also:
        `mistakes`, `plot_neighbours`.
    """
    num_ranks = result.sizes["rank"]
    counts = f"{result.attrs['mistakes']} mistakes on {result.attrs['examples']} images"
    title = style.titled("Most confident mistakes", result) + f"\n{counts}"
    predicted, label = (
        result[f"{name}_name" if f"{name}_name" in result else name].values
        for name in ("predicted", "label")
    )
    titles = [
        f"predicted {elide(str(wrong), 14)} ({100 * probability:.0f} %)\n"
        f"label {elide(str(right), 18)}"
        for wrong, right, probability in zip(
            predicted, label, result["probability"].values, strict=True
        )
    ]
    ax, flat = panels(ax, num_ranks, title, titles, inches=(1.3, 1.3), pad=3)
    for panel, picture in zip(flat, result["picture"].values, strict=True):
        _show_picture(panel, picture)
    return ax


@draws({"probability": "example rank", "class_number": "example rank"})
def plot_predict(result: xr.Dataset, ax: "Axes | None", *, examples: int = 8) -> "Axes":
    """Probabilities of the most probable classes, with a panel for each image.

    Args:
        result: Dataset with `probability` and `class_number` of dims (example, rank), from
            `predict`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        examples: number of images to draw, from the first image on.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (image,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.predict(model, images)
        >>> ax = analysis.plots.plot_predict(result)

    See also:
        `predict`, `plot_mistakes`.
    """
    if examples < 1:
        raise ValueError(f"Expected examples to be at least 1. Received: examples={examples}")
    result = result.isel(example=slice(examples))
    names = result["class_name" if "class_name" in result else "class_number"].values.astype(str)
    titles = [f"image {number}" for number in result["example"].values]
    title = style.titled("Predicted classes", result)
    inches = (2.2, 0.35 + 0.22 * result.sizes["rank"])
    ax, flat = panels(ax, len(titles), title, titles if len(titles) > 1 else (), inches=inches)
    for panel, labels, values in zip(flat, names, result["probability"].values, strict=True):
        ranks = np.arange(len(labels))
        panel.barh(ranks, values, color="tab:blue", height=0.7)
        panel.set_yticks(ranks, [elide(label, 22) for label in labels], fontsize=8)
        panel.set(xlim=(0, 1))
        panel.invert_yaxis()
        panel.spines[["top", "right"]].set_visible(False)
        style.percent(panel.xaxis)
        panel.tick_params(labelsize=8)
    ax.set_xlabel("predicted probability (%)", fontsize=9, labelpad=16)
    return ax


@draws("layer example component")
def plot_projection(
    result: xr.DataArray, ax: "Axes | None", *, layers: list[str] | None = None
) -> "Axes":
    """Images as points in two dimensions, with a panel for each layer and a colour for each class.

    Each panel has its own scale.

    Args:
        result: DataArray of dims (layer, example, component), from `projection`.
        ax: Matplotlib axes to draw in. None creates a figure.
        title: title of the plot. None uses a title that states what is drawn, and for which model.
        layers: names of the layers to draw, in order. None means all layers.

    Returns:
        The Matplotlib axes. The axes of the panels are `ax.panels`, of shape (layer,).

    Raises:
        ValueError: if the dims or variables of the result differ from those above, or if an option
            is invalid.

    Examples:
        >>> result = analysis.projection(model, (images, labels))
        >>> ax = analysis.plots.plot_projection(result)

    See also:
        `projection`, `plot_neighbours`.
    """
    if result.sizes["component"] < 2:
        raise ValueError(
            "Expected a projection with at least two components, the axes of the plot. "
            f"Received: {result.sizes['component']}"
        )
    result = select_layers(result, layers)
    names = result["class_name" if "class_name" in result.coords else "label"].values.astype(str)
    classes, firsts, codes = np.unique(
        result["label"].values, return_index=True, return_inverse=True
    )
    short_names, _ = shorten(layer_names(result))
    titles = [elide(name, 22) for name in short_names]
    if "explained_variance" in result.coords:
        shares = 100 * result["explained_variance"].sum("component").values
        titles = [
            f"{name}\n{share:.0f} % of variance" for name, share in zip(titles, shares, strict=True)
        ]
    method = str(result.attrs.get("estimator", ""))
    method = {"tsne": "t-SNE"}.get(method, method.upper())
    title = style.titled(f"Classes by layer, {method}" if method else "Classes by layer", result)
    ax, flat = panels(ax, len(titles), title, titles, inches=(1.9, 1.9), pad=3)
    has_legend = len(classes) <= ENOUGH_CLASSES
    spectrum = style.colours("turbo")(np.linspace(0, 1, len(classes)))
    colours = np.array(style.distinct_colours(len(classes)) if has_legend else spectrum)
    size = float(np.clip(1500 / math.sqrt(len(codes)) / 10, 3, 20))
    # Points in random order, so that no class covers the others.
    order = np.random.default_rng(0).permutation(len(codes))
    for panel, points in zip(flat, result.values, strict=True):
        panel.scatter(*points[order].T, s=size, c=colours[codes[order]], linewidths=0, alpha=0.8)
        panel.set(xticks=[], yticks=[])
    if has_legend:
        from matplotlib.lines import Line2D

        look: dict[str, Any] = {"marker": "o", "linestyle": "", "markersize": 5}
        handles = [
            Line2D([], [], color=colour, label=name, **look)
            for name, colour in zip(names[firsts], colours, strict=True)
        ]
        flat[0].figure.legend(
            handles=handles, loc="outside right upper", fontsize=8, frameon=False, title="class"
        )
    flat[-1].set_xlabel("component 1", fontsize=8)
    flat[-1].set_ylabel("component 2", fontsize=8)
    return ax


def _show_picture(panel: "Axes", picture: np.ndarray) -> None:
    """An 8-bit picture (row, column, colour) without ticks."""
    if not picture.size:
        raise ValueError(
            "Expected pictures of shape (pixel_row, pixel_column, colour) that are not empty. "
            f"Received: shape {picture.shape}"
        )
    panel.imshow(picture, interpolation="nearest")
    panel.set(xticks=[], yticks=[])
