"""Attention heads made by hand, as results of `mean_attention`, and their maps by loops."""

import numpy as np
import xarray as xr
from scipy.stats import entropy

from vit_tf import TokenGrid


def places(grid):
    """The (row, column) of each spatial token."""
    return [(row, column) for row in range(grid.rows) for column in range(grid.columns)]


def pixel_distances(grid):
    """Distances in pixels between the centres of spatial tokens, of shape (query, key)."""
    centres = grid.stride * np.array(places(grid), float)
    return np.linalg.norm(centres[:, None] - centres, axis=-1)


def head(grid, score):
    """Attention (query, spatial_key) in proportion to `score(row offset, column offset)`.

    A query that scores nothing anywhere, as one at an edge that looks beyond it, looks at itself.
    """
    rows = []
    for index, (r, c) in enumerate(places(grid)):
        row = np.array([float(score(r2 - r, c2 - c)) for r2, c2 in places(grid)])
        rows.append(row / row.sum() if row.sum() else np.eye(grid.num_spatial)[index])
    return np.array(rows)


def mean_of(heads, grid, prefix_rows=None):
    """The Dataset of `mean_attention` of heads (layer, head, spatial query, spatial_key)."""
    heads = np.asarray(heads, float)
    heads = heads.reshape(*(1,) * (4 - heads.ndim), *heads.shape)
    if grid.prefix:
        uniform = np.full((*heads.shape[:2], grid.prefix, grid.num_spatial), 1 / grid.num_spatial)
        heads = np.concatenate([uniform if prefix_rows is None else prefix_rows, heads], axis=2)
    tokens = np.arange(grid.num_tokens)
    return xr.Dataset(
        {"spatial": (("layer", "head", "query", "spatial_key"), heads)},
        coords={
            "layer": [f"block{layer:02}/attention/weights" for layer in range(heads.shape[0])],
            "head": np.arange(heads.shape[1]),
            "query": tokens,
            "spatial_key": tokens[grid.prefix :],
        },
        attrs={"model": "by hand", **vars(grid)},
    )


def random_attention(rng, grid, examples=5, layers=2, heads=3):
    """Random attention weights: dict from tap to (example, head, query, key)."""
    shape = (examples, heads, grid.num_tokens)
    return {
        f"block{layer:02}/attention/weights": rng.dirichlet(np.ones(grid.num_tokens), size=shape)
        for layer in range(layers)
    }


def iou_by_loop(share, mask, mass=0.6):
    """IoU of the pixels of a mask and of the fewest tokens that hold a share of the attention.

    Args:
        share: of shape (token,), in the order of the tokens.
        mask: booleans (row, column), of tokens or of the pixels of their square patches.
    """
    kept, held = np.zeros(len(share), bool), 0.0
    for token in sorted(range(len(share)), key=lambda token: -share[token]):
        if held >= mass - 1e-6:
            break
        kept[token], held = True, held + share[token]
    stride = round(np.sqrt(mask.size / len(share)))
    pixels = np.kron(kept.reshape(mask.shape[0] // stride, -1), np.ones((stride, stride))) > 0
    return (pixels & mask).sum() / (pixels | mask).sum()


def mean_of_known(values, axis):
    """The mean over axes of what is not NaN, NaN where nothing is."""
    known = ~np.isnan(values)
    with np.errstate(invalid="ignore"):
        return np.where(known, values, 0).sum(axis) / known.sum(axis)


def correlation(x, y):
    return np.corrcoef(x, y)[0, 1]


def patterns_by_loop(maps):
    """Peaks (layer, head), similarity and repetition (layer, layer) of maps over pairs of heads.

    Args:
        maps: of shape (example, layer, head, key); NaN for a head without a map.
    """
    examples, layers, heads, keys = maps.shape
    none = np.isnan(maps).any(-1)
    peak = 1 - entropy(np.where(none[..., None], 1, maps), axis=-1) / np.log(keys)
    similarity, repetition = np.full((2, layers, layers, examples), np.nan)
    for one, other, e in np.ndindex(layers, layers, examples):
        pairs = [
            (correlation(maps[e, one, i], maps[e, other, j]), peak[e, one, i] * peak[e, other, j])
            for i, j in np.ndindex(heads, heads)
            if not ((one == other and i == j) or none[e, one, i] or none[e, other, j])
        ]
        if pairs:
            similarity[one, other, e] = np.mean([c for c, _ in pairs])
            repetition[one, other, e] = np.mean([c * np.sqrt(weight) for c, weight in pairs])
    peak = np.where(none, np.nan, peak)
    return mean_of_known(peak, 0), mean_of_known(similarity, 2), mean_of_known(repetition, 2)


OBLONG = TokenGrid(3, 4, 1, 8)
