"""Results of single images, drawn over the images themselves."""

from typing import TYPE_CHECKING

import numpy as np
import xarray as xr

from ..engine.results import expect_array, layer_names, select_labels
from . import style
from .primitives import draw_maps, overlay, renamed_arguments

if TYPE_CHECKING:
    from matplotlib.axes import Axes


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
    """A map over an image: one colour for each cell of a grid that tiles it.

    Args:
        image: array of shape (height, width, 3), integers in [0, 255] or floats in [-1, 1] as
            models of this package take them.
        values: array or DataArray of shape (rows, columns); NaN is grey.
        ax: Matplotlib axes; those of a new figure, with a colour bar, if None.
        opacity: of the colours, from 0 to 1.
        low, high: values of the ends of the colours; by default those of the map.
        label: of the colour bar.

    Returns:
        The axes.

    Raises:
        ValueError: for an image or a map of another shape, or values that no image has.

    Examples:
        >>> maps = analysis.grad_cam(model, images)
        >>> ax = analysis.plot_overlay(images[0], maps[0, 0, -1], label="Grad-CAM")

    See also:
        `plot_grad_cam`, `plot_attention_rows`.
    """
    values = np.asarray(values, np.float64)
    if values.ndim != 2 or not values.size:
        raise ValueError(f"Expected a map of shape (rows, columns). Received: {values.shape}")
    limits = style.span(values)
    limits |= {key: end for key, end in (("vmin", low), ("vmax", high)) if end is not None}
    target = style.new_axes(4.6, 4) if ax is None else ax
    drawn = overlay(target, image, values, opacity=opacity, cmap=style.colours("magma"), **limits)
    if ax is None:
        style.colour_bar(target, drawn, label)
    return target


@renamed_arguments(axes="ax")
def plot_input_gradients(
    result: xr.DataArray,
    ax: "Axes | None" = None,
    image: np.ndarray | None = None,
    example: int = 0,
) -> "Axes":
    """Absolute input gradients, summed over image channels, a panel for each class.

    Args:
        result: DataArray of dims (example, class, row, column, channel) from `input_gradients`.
        ax: Matplotlib axes; those of a new figure if None.
        image: that of the example, as for `plot_overlay`; None draws the maps alone.
        example: number of the image.

    Returns:
        The axes, with `ax.panels` of shape (class,). Every panel is scaled to its own maximum.

    Raises:
        ValueError: for another result, or an example that it does not have.

    Examples:
        >>> gradients = analysis.input_gradients(model, images)
        >>> ax = analysis.plot_input_gradients(gradients, image=images[0])

    See also:
        `input_gradients`, `plot_grad_cam`.
    """
    result = expect_array(result, ("example", "class", "row", "column", "channel"))
    maps = np.abs(select_labels(result, example=example)).sum("channel")
    names = [f"class {name}" for name in result["class"].values]
    return _draw(maps, names, style.titled("Input gradients", result), ax, image)


@renamed_arguments(axes="ax", of="class_label")
def plot_grad_cam(
    result: xr.DataArray,
    ax: "Axes | None" = None,
    image: np.ndarray | None = None,
    class_label: int | str | None = None,
    example: int = 0,
) -> "Axes":
    """Grad-CAM of a class, a panel for each layer.

    Args:
        result: DataArray of dims (example, class, layer, row, column) from `grad_cam`.
        ax: Matplotlib axes; those of a new figure if None.
        image: that of the example, as for `plot_overlay`; None draws the maps alone.
        class_label: the class, as the coordinate `class` has it; the first if None.
        example: number of the image.

    Returns:
        The axes, with `ax.panels` of shape (layer,). Every panel is scaled to its own maximum.

    Raises:
        ValueError: for another result, or a class or example that it does not have.

    Examples:
        >>> maps = analysis.grad_cam(model, images)
        >>> ax = analysis.plot_grad_cam(maps, image=images[0])

    See also:
        `grad_cam`, `plot_input_gradients`.
    """
    result = expect_array(result, ("example", "class", "layer", "row", "column"))
    label = result["class"].values[0] if class_label is None else class_label
    maps = select_labels(result, **{"example": example, "class": label})
    title = style.titled(f"Grad-CAM of class {label}", result)
    return _draw(maps, layer_names(result), title, ax, image)


@renamed_arguments(axes="ax")
def plot_place_fields(
    result: xr.DataArray,
    place: int | None = None,
    ax: "Axes | None" = None,
    image: np.ndarray | None = None,
    example: int = 0,
) -> "Axes":
    """Effective receptive field at one position of an image, a panel for each layer.

    Args:
        result: DataArray of dims (example, layer, place, row, column) from `place_fields`.
        place: the cell, counted row by row; the middle one if None.
        ax: Matplotlib axes; those of a new figure if None.
        image: that of the example, as for `plot_overlay`; None draws the maps alone.
        example: number of the image.

    Returns:
        The axes, with `ax.panels` of shape (layer,). Every panel is scaled to its own maximum;
        colours follow the square root.

    Raises:
        ValueError: for another result, or a position or example that it does not have.

    Examples:
        >>> fields = analysis.place_fields(model, images)
        >>> ax = analysis.plot_place_fields(fields, 5, image=images[0])

    See also:
        `place_fields`, `plot_receptive_field`.
    """
    result = expect_array(result, ("example", "layer", "place", "row", "column"))
    place = result["place"].values[result.sizes["place"] // 2] if place is None else place
    maps = np.sqrt(select_labels(result, example=example, place=place))
    title = style.titled(f"Effective receptive field at position {place}", result)
    label = "√ of the fraction of maximum"
    return _draw(maps, layer_names(result), title, ax, image, bar=label)


def _draw(maps, names, title, ax, image, **options):
    """Maps of one image, each over the image where there is one."""
    images = None if image is None else [image] * len(names)
    return draw_maps(ax, maps.values, names, title, maps.dims[0], images=images, **options)[0]


@renamed_arguments(axes="ax")
def plot_token_similarity(
    result: xr.DataArray,
    token: int | None = None,
    ax: "Axes | None" = None,
    images: list[np.ndarray] | None = None,
    layer: str | None = None,
    example: int = 0,
) -> "Axes":
    """Similarity of one token to those of every image; in others the most similar is framed.

    Args:
        result: DataArray of dims (layer, example, token, other_example, other_token) from
            `token_similarity`.
        token: position on the grid, row by row, without the prefix; the middle one if None.
        ax: Matplotlib axes; those of a new figure if None.
        images: list of the images, as for `plot_overlay`; None draws the maps alone.
        layer: name of the layer; the last if None.
        example: number of the token's image.

    Returns:
        The axes, with `ax.panels` of shape (image,). Colours run from the least similar token of
        all to a cosine of 1.

    Raises:
        ValueError: for another result, or a token, layer or example that it does not have.

    Examples:
        >>> similarity = analysis.token_similarity(model, images)
        >>> ax = analysis.plot_token_similarity(similarity, 5)

    See also:
        `token_similarity`, `plot_attention_rows`.
    """
    from matplotlib.colors import Normalize

    dims = ("layer", "example", "token", "other_example", "other_token")
    result = expect_array(result, dims)
    _, (rows, columns) = style.token_layout(result)
    layer = layer_names(result)[-1] if layer is None else layer
    if token is None:
        token = (rows // 2) * columns + columns // 2
    values = select_labels(result, layer=layer, example=example, token=token).values
    low = float(values.min())
    best = [token if other == example else int(row.argmax()) for other, row in enumerate(values)]
    return draw_maps(
        ax,
        values.reshape(-1, rows, columns),
        ["same image" if other == example else f"image {other}" for other in range(len(values))],
        style.titled(f"Similarity to token {token} of {layer}", result),
        "image",
        images=images,
        frames=[divmod(cell, columns) for cell in best],
        bar="cosine similarity",
        scaled=False,
        norm=Normalize(low, max(1, low + 1e-6)),
    )[0]
