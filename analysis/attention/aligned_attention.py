"""Mean attention seen from the query: aligned maps, offsets, distances, and maps of queries."""

import numpy as np
import xarray as xr

from vit_tf import TokenGrid

NORMALIZERS = ("queries", "coverage")
UNITS = ("pixels", "unit")


def aligned_attention(mean, normalize="queries"):
    """Attention by the offset from the query to the key, averaged over the queries with a place.

        aligned(d) = 1 / N(d) sum over q of spatial(q, q + d),  q and q + d on the grid

    (aligned aggregated attention maps: Walmer et al. 2023, section 4.2, figure 3). Queries near an
    edge have no keys beyond it, so fewer queries add to a larger offset.

    Args:
        mean: Dataset from `mean_attention`.
        normalize: `"queries"`, N(d) the number of queries, as in the paper: each map sums to 1 and
            is the distribution of offsets. Or `"coverage"`, N(d) the number of queries that have a
            key at that offset: uniform attention is flat, and maps do not sum to 1.

    Returns:
        DataArray of shape (layer, head, row_offset, column_offset), of 2 rows - 1 by
        2 columns - 1 offsets; the coordinates are in pixels, down and to the right, and the query
        is at (0, 0).

    Raises:
        ValueError: for another `normalize`, or a `mean` that is not of `mean_attention`.
    """
    if normalize not in NORMALIZERS:
        raise ValueError(f"Expected normalize in {NORMALIZERS}. Received: normalize={normalize!r}")
    grid = grid_of_mean(mean)
    maps = grid.as_map(_of_spatial_queries(mean, grid))
    counted, one = _aligned_sum(maps, grid), np.ones((grid.num_spatial, grid.rows, grid.columns))
    counted /= grid.num_spatial if normalize == "queries" else _aligned_sum(one, grid)
    sides = [np.arange(1 - side, side) * grid.stride for side in (grid.rows, grid.columns)]
    coords = {
        f"{side}_offset": (f"{side}_offset", offsets, {"units": "pixels"})
        for side, offsets in zip(("row", "column"), sides, strict=True)
    }
    return xr.DataArray(
        counted,
        dims=("layer", "head", *coords),
        coords={"layer": mean["layer"], "head": mean["head"]} | coords,
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


def attention_offset(aligned):
    """Where heads look from the query on average, and most: centre of mass and peak.

    Keys beyond an edge cannot be attended to, so a head that looks one token to the left has its
    peak there, and its centre of mass nearer by what its queries at the edge do instead.

    Args:
        aligned: DataArray from `aligned_attention`.

    Returns:
        Dataset of `row_offset`, `column_offset` (down and to the right) and `length` of the centre
        of mass, and `peak_row` and `peak_column`, the offset that is attended to most; all of
        shape (layer, head), in pixels.
    """
    dims = ("row_offset", "column_offset")
    share = aligned / aligned.sum(dims)
    row, column = ((share * aligned[dim]).sum(dims) for dim in dims)
    peak = aligned.argmax(dims)
    values = {
        "row_offset": (row, "mean offset, down"),
        "column_offset": (column, "mean offset, to the right"),
        "length": (np.hypot(row, column), "length of the mean offset"),
        "peak_row": (aligned[dims[0]][peak[dims[0]]], "offset of the peak, down"),
        "peak_column": (aligned[dims[1]][peak[dims[1]]], "offset of the peak, to the right"),
    }
    variables = {
        name: (("layer", "head"), value.values, {"long_name": words, "units": "pixels"})
        for name, (value, words) in values.items()
    }
    attrs = {name: aligned.attrs[name] for name in aligned.attrs if name not in _OF_VALUES}
    return xr.Dataset(variables, {name: aligned[name] for name in ("layer", "head")}, attrs)


def mean_distance(mean, units="pixels"):
    """Mean distance between a query and the keys that each head attends to.

        distance = mean over q of sum_k spatial(q, k) |position(q) - position(k)|

    over queries and keys that have a place. In pixels it equals `attention_distance`.

    Args:
        mean: Dataset from `mean_attention`.
        units: `"pixels"`, or `"unit"`: the centres of the corner tokens are the corners of a square
            of side 1, which compares models of different grids (Walmer et al. 2023, section 4.3,
            appendix C.2).

    Returns:
        DataArray of shape (layer, head).

    Raises:
        ValueError: for other `units`, or a `mean` that is not of `mean_attention`.
    """
    if units not in UNITS:
        raise ValueError(f"Expected units in {UNITS}. Received: units={units!r}")
    grid = grid_of_mean(mean)
    distances = grid.distances() if units == "pixels" else _unit_distances(grid)
    share = _of_spatial_queries(mean, grid)
    of = {"pixels": "pixels", "unit": "sides of the grid"}[units]
    return xr.DataArray(
        np.einsum("lhqk,qk->lh", share, distances) / grid.num_spatial,
        dims=("layer", "head"),
        coords={"layer": mean["layer"], "head": mean["head"]},
        name="mean_distance",
        attrs=_facts(mean, "mean attention distance", of),
    )


def _unit_distances(grid):
    """Distances between spatial tokens whose corners lie on the unit square's."""
    sides = [np.linspace(0, 1, side) for side in (grid.rows, grid.columns)]
    places = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
    return np.linalg.norm(places[:, None] - places[None], axis=-1)


def attention_maps(mean, query="cls"):
    """Mean attention of a query, or of all queries with a place, on the grid of keys.

    Args:
        mean: Dataset from `mean_attention`.
        query: `"cls"`, the first token; `"spatial"`, the mean over the queries that have a place;
            or the position of one token in the sequence, prefix included.

    Returns:
        DataArray of shape (layer, head, row, column); each map sums to 1.

    Raises:
        ValueError: for a query that the tokens do not have, or a `mean` not of `mean_attention`.
    """
    grid = grid_of_mean(mean)
    spatial = mean["spatial"].transpose("layer", "head", "query", "spatial_key").values
    if isinstance(query, str) and query == "spatial":
        share = spatial[:, :, grid.prefix :].mean(axis=2)
    else:
        share = spatial[:, :, _position(query, grid)]
    return xr.DataArray(
        grid.as_map(share),
        dims=("layer", "head", "row", "column"),
        coords={
            "layer": mean["layer"],
            "head": mean["head"],
            "row": np.arange(grid.rows),
            "column": np.arange(grid.columns),
        },
        name="attention_maps",
        attrs=_facts(mean, "mean attention", "1") | {"query": query},
    )


def _position(query, grid):
    """The position in the sequence of `"cls"` or of a number."""
    if isinstance(query, str):
        if query == "cls" and grid.prefix:
            return 0
        names = "'cls' or 'spatial'" if grid.prefix else "'spatial' (there is no CLS token)"
        raise ValueError(f"Expected query to be {names}. Received: query={query!r}")
    if query not in range(grid.num_tokens):
        raise ValueError(
            f"Expected query among 0 to {grid.num_tokens - 1}. Received: query={query}"
        )
    return query


def _of_spatial_queries(mean, grid):
    """Attention of the queries that have a place: (layer, head, query, spatial_key)."""
    spatial = mean["spatial"].transpose("layer", "head", "query", "spatial_key")
    return spatial.values[:, :, grid.prefix :].astype(np.float64)


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


_OF_VALUES = ("long_name", "units")


def _facts(mean, long_name, units):
    """The provenance of the mean, and words for what is made of it."""
    return mean.attrs | {"long_name": long_name, "units": units}
