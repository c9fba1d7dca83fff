"""Mean attention seen from the query: aligned maps, offsets, distances, and maps of queries."""

from __future__ import annotations

import numpy as np
import xarray as xr

from vit_tf import TokenGrid

from ..engine.results import CLS, PARTS, SPATIAL, mean_of, require_word, variable
from .attention import LEFT_OUT

NORMALIZERS = ("queries", "coverage")
UNITS = ("pixels", "unit")


def aligned_attention(mean: xr.Dataset, normalize: str = "queries") -> xr.DataArray:
    """Attention by the offset from the query to the key, averaged over the spatial queries.

        aligned(d) = 1 / N(d) sum over q of w(q) spatial(q, q + d),  q and q + d on the grid

    (aligned aggregated attention maps: Walmer et al. 2023, section 4.2, figure 3). Queries near an
    edge have no keys beyond it, so fewer queries add to a larger offset. The weight w(q) is 1, or
    the share of the examples that `mean_attention` did not leave out at this query.

    Args:
        mean: Dataset from `mean_attention`.
        normalize: `"queries"`, N(d) the sum of w over the queries, as in the paper: each map sums
            to 1 and is the distribution of offsets. Or `"coverage"`, N(d) its sum over the queries
            that have a key at that offset: uniform attention is flat, and maps do not sum to 1.

    Returns:
        DataArray of shape (layer, head, row_offset, column_offset), of 2 rows - 1 by
        2 columns - 1 offsets; the coordinates are in pixels, down and to the right, and the query
        is at (0, 0). The coordinate `left_out` of shape (layer, head) is the number of (example,
        query) pairs left out; where N(d) is 0, the map is NaN.

    Raises:
        ValueError: for another `normalize`, or a `mean` that is not of `mean_attention`.

    Examples:
        >>> mean = analysis.mean_attention(vit, images)
        >>> aligned = analysis.aligned_attention(mean)
        >>> aligned.dims
        ('layer', 'head', 'row_offset', 'column_offset')
        >>> aligned.row_offset.values.tolist()
        [-24, -16, -8, 0, 8, 16, 24]

    See also:
        `plots.plot_aligned_attention`, `mean_attention`, `attention_offset`; page
        measurements/attention/aligned-attention.md.
    """
    if normalize not in NORMALIZERS:
        raise ValueError(f"Expected normalize in {NORMALIZERS}. Received: normalize={normalize!r}")
    grid = grid_of_mean(mean)
    share, weights = _of_spatial_queries(mean, grid)
    aligned = _aligned_sum(grid.as_map(share * weights[..., None]), grid)
    if normalize == "queries":
        counted = weights.sum(axis=-1)[..., None, None]
    else:
        everywhere = (*weights.shape, grid.rows, grid.columns)
        counted = _aligned_sum(np.broadcast_to(weights[..., None, None], everywhere), grid)
    sides = [np.arange(1 - side, side) * grid.stride for side in (grid.rows, grid.columns)]
    coords = {
        f"{side}_offset": (f"{side}_offset", offsets, {"units": "pixels"})
        for side, offsets in zip(("row", "column"), sides, strict=True)
    }
    return xr.DataArray(
        mean_of(aligned, counted),
        dims=("layer", "head", *coords),
        coords=_heads(mean, left_out_of(mean)[:, :, grid.prefix :].sum(axis=-1)) | coords,
        name="aligned_attention",
        attrs=_facts(mean, "attention by offset from the query", "1") | {"normalize": normalize},
    )


def _aligned_sum(maps, grid):
    """Maps of shape (..., query, row, column), shifted to their query and added up."""
    rows, columns = grid.rows, grid.columns
    total = np.zeros((*maps.shape[:-3], 2 * rows - 1, 2 * columns - 1))
    for query in range(grid.num_spatial):
        top, left = rows - 1 - query // columns, columns - 1 - query % columns
        total[..., top : top + rows, left : left + columns] += maps[..., query, :, :]
    return total


def attention_offset(aligned: xr.DataArray) -> xr.Dataset:
    """Where heads look from the query on average, and most: centre of mass and peak.

    Keys beyond an edge cannot be attended to, so a head that looks one token to the left has its
    peak there, and its centre of mass nearer by what its queries at the edge do instead.

    Args:
        aligned: DataArray from `aligned_attention`.

    Returns:
        Dataset of `row_offset`, `column_offset` (down and to the right) and `length` of the centre
        of mass, and `peak_row` and `peak_column`, the offset that is attended to most; all of
        shape (layer, head), in pixels, and NaN for a head whose map is.

    Examples:
        >>> mean = analysis.mean_attention(vit, images)
        >>> offset = analysis.attention_offset(analysis.aligned_attention(mean))
        >>> offset.length.dims
        ('layer', 'head')
        >>> offset.length.units
        'pixels'

    See also:
        `plots.plot_attention_offset`, `aligned_attention`, `head_classes`; page
        measurements/attention/aligned-attention.md.
    """
    dims = ("row_offset", "column_offset")
    share = aligned / aligned.sum(dims)
    row, column = ((share * aligned[dim]).sum(dims, min_count=1) for dim in dims)
    peak = {dim: at.where(row.notnull()) for dim, at in _peak(aligned, dims).items()}
    values = {
        "row_offset": (row, "mean offset, down"),
        "column_offset": (column, "mean offset, to the right"),
        "length": (np.hypot(row, column), "length of the mean offset"),
        "peak_row": (peak[dims[0]], "offset of the peak, down"),
        "peak_column": (peak[dims[1]], "offset of the peak, to the right"),
    }
    variables = {
        name: variable(("layer", "head"), value.values, words, "pixels")
        for name, (value, words) in values.items()
    }
    attrs = {name: aligned.attrs[name] for name in aligned.attrs if name not in _OF_VALUES}
    labels = {name: of for name, of in aligned.coords.items() if name not in dims}
    return xr.Dataset(variables, labels, attrs)


def _peak(aligned, dims):
    """The offsets that are attended to most: dict from dim to DataArray of dims (layer, head)."""
    place = aligned.fillna(-1.0).argmax(dims)
    return {dim: aligned[dim][place[dim]] for dim in dims}


def mean_distance(mean: xr.Dataset, units: str = "pixels") -> xr.DataArray:
    """Mean distance between a query and the keys that each head attends to.

        distance = mean over q of sum_k spatial(q, k) |position(q) - position(k)|

    over spatial queries and keys, each query with the weight of `aligned_attention`. In
    pixels it equals `attention_distance`.

    Args:
        mean: Dataset from `mean_attention`.
        units: `"pixels"`, or `"unit"`: the centres of the corner tokens are the corners of a square
            of side 1, which compares models of different grids (Walmer et al. 2023, section 4.3,
            appendix C.2).

    Returns:
        DataArray of shape (layer, head), with the coordinate `left_out` as of
        `attention_distance`.

    Raises:
        ValueError: for other `units`, or a `mean` that is not of `mean_attention`.

    Examples:
        >>> mean = analysis.mean_attention(vit, images)
        >>> distance = analysis.mean_distance(mean, units="unit")
        >>> distance.units
        'sides of the grid'

    See also:
        `mean_attention`, `attention_distance`, `plots.plot_mean_distance`; page
        measurements/attention/attention-distance.md.
    """
    if units not in UNITS:
        raise ValueError(f"Expected units in {UNITS}. Received: units={units!r}")
    grid = grid_of_mean(mean)
    distances = grid.distances() if units == "pixels" else _unit_distances(grid)
    share, weights = _of_spatial_queries(mean, grid)
    of = {"pixels": "pixels", "unit": "sides of the grid"}[units]
    summed = np.einsum("lhqk,qk,lhq->lh", share, distances, weights, optimize=True)
    return xr.DataArray(
        mean_of(summed, weights.sum(axis=-1)),
        dims=("layer", "head"),
        coords=_heads(mean, left_out_of(mean)[:, :, grid.prefix :].sum(axis=-1)),
        name="mean_distance",
        attrs=_facts(mean, "mean attention distance", of),
    )


def _unit_distances(grid):
    """Distances between spatial tokens whose corners lie on the unit square's."""
    sides = [np.linspace(0, 1, side) for side in (grid.rows, grid.columns)]
    places = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.linalg.norm(places[:, None] - places[None], axis=-1)


def attention_maps(mean: xr.Dataset, query: str | int = CLS) -> xr.DataArray:
    """Mean attention of a query, or of all spatial queries, on the grid of keys.

    Args:
        mean: Dataset from `mean_attention`.
        query: `"cls"`, the first token; `"spatial"`, the mean over the spatial queries,
            each with the weight of `aligned_attention`; or the position of one token in the
            sequence, prefix included.

    Returns:
        DataArray of shape (layer, head, row, column); each map sums to 1, or is NaN where all
        examples were left out. The coordinate `left_out` of shape (layer, head) is the number of
        (example, query) pairs left out.

    Raises:
        ValueError: for a query that the tokens do not have, or a `mean` not of `mean_attention`.

    Examples:
        >>> mean = analysis.mean_attention(vit, images)
        >>> maps = analysis.attention_maps(mean, query="spatial")
        >>> maps.dims
        ('layer', 'head', 'row', 'column')

    See also:
        `plots.plot_attention_maps`, `mean_attention`; page
        measurements/attention/mean-attention.md.
    """
    grid = grid_of_mean(mean)
    left_out = left_out_of(mean)
    if isinstance(query, str) and require_word(query, PARTS, "query") == SPATIAL:
        share, weights = _of_spatial_queries(mean, grid)
        summed = np.einsum("lhqk,lhq->lhk", share, weights)
        share = mean_of(summed, weights.sum(axis=-1)[..., None])
        left_out = left_out[:, :, grid.prefix :].sum(axis=-1)
    else:
        place = _position(query, grid)
        spatial = mean["spatial"].transpose("layer", "head", "query", "spatial_key")
        share, left_out = spatial.values[:, :, place], left_out[:, :, place]
    return xr.DataArray(
        grid.as_map(share),
        dims=("layer", "head", "row", "column"),
        coords=_heads(mean, left_out)
        | {"row": np.arange(grid.rows), "column": np.arange(grid.columns)},
        name="attention_maps",
        attrs=_facts(mean, "mean attention", "1") | {"query": query},
    )


def _position(query, grid):
    """The position in the sequence of `"cls"` or of a number."""
    if isinstance(query, str):
        if grid.prefix:
            return 0
        raise ValueError(
            f"Expected query to be 'spatial' (there is no CLS token). Received: query={query!r}"
        )
    if query not in range(grid.num_tokens):
        raise ValueError(
            f"Expected query among 0 to {grid.num_tokens - 1}. Received: query={query}"
        )
    return query


def _of_spatial_queries(mean, grid):
    """Attention of the spatial queries, and the share of examples that each was seen in.

    Returns:
        float64 arrays of shape (layer, head, query, spatial_key), zero for a query that was left
        out in all examples, and (layer, head, query).
    """
    spatial = mean["spatial"].transpose("layer", "head", "query", "spatial_key")
    share = spatial.values[:, :, grid.prefix :].astype(np.float64)
    left_out = left_out_of(mean)[:, :, grid.prefix :]
    weights = 1.0 - left_out / mean.attrs["examples"] if left_out.any() else np.ones(left_out.shape)
    return np.where(weights[..., None] > 0, share, 0.0), weights


def left_out_of(mean):
    """Numbers of examples that were left out: int array of shape (layer, head, query).

    A mean of other weights than those of `mean_attention`, which counts none, has lost none.
    """
    if "left_out" in mean:
        return mean["left_out"].transpose("layer", "head", "query").values
    return np.zeros([mean.sizes[dim] for dim in ("layer", "head", "query")], int)


def _heads(mean, left_out):
    """The coordinates of a result of shape (layer, head, ...)."""
    labels = {"layer": mean["layer"], "head": mean["head"]}
    return labels | {"left_out": (("layer", "head"), left_out, LEFT_OUT)}


def grid_of_mean(mean):
    """The `TokenGrid` of a result of `mean_attention`.

    Raises:
        ValueError: if it is not one.
    """
    fields = ("rows", "columns", "prefix", "stride")
    known = isinstance(mean, xr.Dataset) and "spatial" in mean and set(fields) <= set(mean.attrs)
    if not known:
        raise ValueError(f"Expected a Dataset from mean_attention. Received: {type(mean).__name__}")
    return TokenGrid(*(int(mean.attrs[name]) for name in fields))


def require_tokens(grid):
    """The grid, if it has more than one token with a place; else raises a `ValueError`."""
    if grid.num_spatial == 1:
        raise ValueError(f"Expected a grid of more than one token. Received: {grid}")
    return grid


_OF_VALUES = ("long_name", "units")


def _facts(mean, long_name, units):
    """The provenance of the mean, and words for what is made of it."""
    return mean.attrs | {"long_name": long_name, "units": units}
