"""Correspondence: which places of an image, or of another one, a place resembles most."""

from __future__ import annotations

import numpy as np
import xarray as xr

from ..engine.front import measurement
from ..engine.results import provenance, require_finite
from ..engine.stream import Statistic, evaluate
from ..engine.tokens import as_tokens, grid_of, shared_grid
from ..engine.types import Grid, Images, Model


@measurement("tokens")
def token_similarity(features: Model, images: Images, grid: Grid | None = None) -> xr.DataArray:
    """Cosine similarity of every token that has a place to every other, of all pairs of images.

        cosine(t, u) = <x_t, x_u> / (|x_t| |x_u|)

    over the channels of a layer, within an image and from one to another, where the most similar
    token is what corresponds. For a few images to look at.

    Args:
        features: a model, or a callable from images to `{layer: tensor}`, as for `localization`.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        grid: `TokenGrid` of the tokens, or a pair (rows, columns); by default the features' own,
            and that of the maps.

    Returns:
        DataArray of shape (layer, example, token, other_example, other_token); tokens are counted
        without the prefix, row by row. A token that is zero, as behind a ReLU that is off, has no
        direction: its cosines are NaN.

    Raises:
        ValueError: for taps that do not share one grid that tiles the images, or tokens that are
            not finite; the layer is named.

    Examples:
        >>> similarity = analysis.token_similarity(vit, images[:2])
        >>> similarity.dims
        ('layer', 'example', 'token', 'other_example', 'other_token')

    See also:
        `plots.plot_token_similarity`, `keypoint_correspondence`; page guides/one-image.md.
    """
    known, seen = grid_of(features, grid), []

    def step(images, taps):
        seen[:] = [shared_grid(taps, known, grid is not None, images.shape)]
        tokens = {tap: as_tokens(tap, x)[:, seen[0].prefix :] for tap, x in taps.items()}
        return {"rows": tokens}

    def finish(totals):
        layers = list(totals["rows"])
        require_finite("the similarity of tokens", list(totals["rows"].values()), layers)
        cosines = [_cosines(x.astype(np.float64)) for x in totals["rows"].values()]
        places, examples = np.arange(seen[0].num_spatial), np.arange(len(cosines[0]))
        return xr.DataArray(
            np.stack(cosines),
            dims=("layer", "example", "token", "other_example", "other_token"),
            coords={
                "layer": layers,
                "example": examples,
                "token": places,
                "other_example": examples,
                "other_token": places,
            },
            name="token_similarity",
            attrs=provenance(
                features,
                len(examples),
                1,
                long_name="cosine similarity",
                units="1",
                estimator="cosine of single tokens",
                **vars(seen[0]),
            ),
        )

    return evaluate(Statistic(step, finish), images, features, description="token similarity")


def _cosines(tokens):
    """Cosines of tokens (example, token, channel): (example, token, example, token)."""
    norms = np.linalg.norm(tokens, axis=-1, keepdims=True)
    directions = np.where(norms > 0, tokens / np.where(norms > 0, norms, 1), np.nan)
    return np.einsum("atc,buc->atbu", directions, directions, optimize=True)
