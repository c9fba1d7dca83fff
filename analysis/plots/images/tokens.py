"""What the tokens of an image attend to, come from, and resemble."""

import numpy as np

from ...engine.results import expect_array, expect_variable, token_name
from .. import style
from .overlay import draw_panels, grid_of, pick


def plot_attention_rows(result, query=None, axes=None, image=None, layer=None, example=0):
    """Attention of one query in all heads of a layer, over the image.

    Args:
        result: Dataset of `attention_rows`.
        query: position in the sequence; by default CLS where there is a prefix, else the centre.
        axes: array of at least as many Matplotlib axes as heads; new ones if None.
        image: that of the example, as for `plot_overlay`; None draws the maps alone.
        layer: name of the layer; the last if None.
        example: number of the image.

    Returns:
        ndarray of shape (heads,) of the axes drawn on. Every panel is scaled to its own maximum.

    Raises:
        ValueError: if the result is another, or has no such query, layer or example.
    """
    dims = ("example", "layer", "head", "query", "key")
    attention = expect_variable(result, "attention", dims)
    rows, columns, prefix = grid_of(result)
    of_layer, layer = pick(pick(attention, "example", example)[0], "layer", layer)
    centre = prefix + (rows // 2) * columns + columns // 2
    query = (0 if prefix else centre) if query is None else query
    values = pick(of_layer, "query", query)[0].values[:, prefix:].reshape(-1, rows, columns)
    cell = divmod(query - prefix, columns) if query >= prefix else None
    panels = [(f"head {head}", image, one, cell) for head, one in enumerate(values)]
    title = f"Attention of {token_name(query, prefix)} in {layer}"
    return draw_panels(panels, style.titled(title, result), axes)


def plot_gradient_attention(result, axes=None, image=None, example=0):
    """Gradient-weighted attention of what the head reads, a panel for each class.

    Args:
        result: DataArray of `gradient_attention`; what the head reads is CLS where there is a
            prefix, else the mean over all queries.
        axes, image, example: as for `plot_attention_rows`, one of the axes for each class.

    Returns:
        ndarray of shape (classes,) of the axes drawn on. Every panel is scaled to its own maximum.

    Raises:
        ValueError: if the result is another, or has no such example.
    """
    result = expect_array(result, ("example", "class", "query", "key"))
    rows, columns, prefix = grid_of(result)
    of_example = pick(result, "example", example)[0].values
    read = of_example[:, 0] if prefix else of_example.mean(axis=1)
    maps = read[:, prefix:].reshape(-1, rows, columns)
    names = [f"class {position}" for position in result["class"].values]
    panels = [(name, image, one, None) for name, one in zip(names, maps, strict=True)]
    return draw_panels(panels, style.titled("Gradient-weighted attention", result), axes)


def plot_token_similarity(result, token, axes=None, images=None, layer=None, example=0):
    """Similarity of one token to those of every image; in others the most similar is framed.

    Args:
        result: DataArray of `token_similarity`.
        token: position on the grid, row by row, without the prefix.
        axes: array of at least as many Matplotlib axes as images; new ones if None.
        images: list of the images, as for `plot_overlay`; None draws the maps alone.
        layer: name of the layer; the last if None.
        example: number of the token's image.

    Returns:
        ndarray of shape (images,) of the axes drawn on. Colours run from the least similar token of
        all to a cosine of 1.

    Raises:
        ValueError: if the result is another, or has no such token, layer or example.
    """
    dims = ("layer", "example", "token", "other_example", "other_token")
    result = expect_array(result, dims)
    rows, columns, _ = grid_of(result)
    of_layer, layer = pick(result, "layer", layer)
    of_token = pick(pick(of_layer, "example", example)[0], "token", token)[0]
    low = float(of_token.min())
    panels = []
    for other, values in enumerate(of_token.values):
        shares = (values - low) / (1 - low or 1)
        best = token if other == example else int(np.argmax(values))
        name = "within the image" if other == example else f"image {other}"
        image = None if images is None else images[other]
        panels.append((name, image, shares.reshape(rows, columns), divmod(best, columns)))
    title = style.titled(f"Similarity to token {token} of {layer}", result)
    return draw_panels(panels, title, axes, f"from the least similar ({low:.2g}) to the most")
