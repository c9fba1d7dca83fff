"""Mean attention maps, and what follows from them: aligned maps, offsets, distances, head types."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import TokenGrid
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import PartialGrid, require_grid
from ..engine.preparation import ImagesLike
from ..engine.results import (
    CLS,
    SPATIAL,
    ResultDataset,
    array_of,
    dataset_of,
    facts_of,
    mean_of,
    query_position,
    require_finite,
    require_word,
    variable,
)
from ..engine.stream import Statistic, Totals, evaluate
from .attention_distance import (
    DIMS,
    LEFT_OUT,
    attention_weights,
    prepare_attention,
    summed_spatial,
)


@measurement("attention")
def mean_attention(
    model: ModelLike,
    images: ImagesLike | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Attention weights averaged over examples, raw and renormalised over the spatial keys.

        raw(q, k)     = mean over examples of a(q, k)
        spatial(q, k) = mean over examples of a(q, k) / sum_j a(q, j),  j and k spatial keys

    CLS maps, aligned maps and offsets are all computed from this result, because averaging over
    examples commutes with aligning and with averaging over queries (Walmer et al. 2023, section 4).
    If a query attends to prefix tokens such as CLS only (its attention to the spatial tokens is 0
    in float32), `spatial` is undefined for this query and example. The mean `spatial` of the query
    excludes the example, and `left_out` counts such examples.

    Args:
        model: a model, or a callable that maps images to a dict from layer name to attention
            weights of shape (example, head, query, key). If the names of some layers end in
            `"weights"`, as in the models of this package, only these layers are used.
        images, grid: as in `vit_tf.analysis`.

    Returns:
        Dataset with three variables.

        * `raw`, of shape (layer, head, query, key): the mean attention over all tokens. Values sum
          to 1 over the keys.
        * `spatial`, of shape (layer, head, query, spatial_key): the mean of the attention
          renormalised over the spatial keys. Values sum to 1 over these keys, and are NaN if no
          example remains.
        * `left_out`, of shape (layer, head, query): the number of examples that the mean `spatial`
          excludes.

    Raises:
        ValueError: if a layer does not return attention weights over the tokens of the grid, or if
            weights are not finite.

    Examples:
        >>> mean = analysis.mean_attention(vit, images)
        >>> mean.raw.dims
        ('layer', 'head', 'query', 'key')
        >>> bool(np.allclose(mean.raw.sum("key"), 1))
        True

    See also:
        `plots.plot_mean_attention`, `aligned_attention`, `attention_maps`; page
        measurements/attention/mean-attention.md.
    """
    features, batches, grid = prepare_attention(model, images, grid, layers=layers, detail=detail)
    return evaluate(
        mean_attention_statistic(features, grid), batches, features, description="mean attention"
    )


@statistic_of(mean_attention)
def mean_attention_statistic(features: Features, grid: PartialGrid = None) -> Statistic[xr.Dataset]:
    """The `Statistic` of `mean_attention`."""
    grid = require_grid(features, grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        weights = attention_weights(taps, grid)
        return {
            "raw": {
                layer: tf.reduce_sum(tf.cast(w, tf.float32), axis=0) for layer, w in weights.items()
            },
            "spatial": {layer: summed_spatial(w, grid) for layer, w in weights.items()},
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.Dataset:
        # A query that attends to prefix tokens alone has no share of the spatial keys to average.
        layers = list(totals["raw"])
        raw = np.stack(list(totals["raw"].values()))
        spatial, counted = map(np.stack, zip(*totals["spatial"].values(), strict=True))
        require_finite("mean attention", spatial, layers)
        spatial, left_out = mean_of(spatial, counted[..., None]), totals["examples"] - counted
        dims = ("layer", "head", "query")
        variables = {
            "raw": variable((*dims, "key"), raw / totals["examples"], "mean attention"),
            "spatial": variable(
                (*dims, "spatial_key"), spatial, "mean attention over the spatial keys"
            ),
            "left_out": (dims, left_out.astype(int), LEFT_OUT),
        }
        keys = np.arange(grid.prefix, grid.num_tokens)
        return dataset_of(
            variables,
            facts_of(features, totals, "mean over examples", **vars(grid)),
            layer=layers,
            spatial_key=keys,
        )

    return Statistic(step, finish)


NORMALIZERS = ("queries", "coverage")
UNITS = {"pixels": "pixels", "unit": "sides of the grid"}
TEXT_ATTRIBUTES = ("long_name", "units")
Coordinates: TypeAlias = dict[str, Any]  # of a result, by dimension, as xarray takes them


def aligned_attention(mean: xr.Dataset, normalize: str = "queries") -> xr.DataArray:
    """Attention as a function of the offset from query to key, averaged over the spatial queries.

        aligned(d) = 1 / N(d) sum over q of w(q) spatial(q, q + d),  q and q + d on the grid

    Walmer et al. (2023, section 4.2, figure 3) call the results aligned aggregated attention maps.
    A query near an edge has no keys beyond the edge, so fewer queries contribute to larger offsets.
    The weight w(q) is the share of the examples that contribute to `spatial` at the query q in
    `mean_attention`; usually w(q) is 1.

    Args:
        mean: Dataset from `mean_attention`.
        normalize: the normaliser N(d). With `"queries"`, as in the paper, N(d) is the sum of w over
            all queries. Each map then sums to 1 and is the distribution of offsets. With
            `"coverage"`, N(d) is the sum of w over the queries that have a key at offset d. Uniform
            attention then gives a constant map, and maps do not sum to 1.

    Returns:
        DataArray of shape (layer, head, row_offset, column_offset). A grid of R rows and C columns
        gives 2 R - 1 row offsets and 2 C - 1 column offsets. Offsets are in pixels, positive down
        and to the right, and the query is at (0, 0). The map is NaN where N(d) is 0. The coordinate
        `left_out` of shape (layer, head) counts the excluded (example, query) pairs, in which the
        query attends to prefix tokens only.

    Raises:
        ValueError: if `normalize` is unknown, or if `mean` is not from `mean_attention`.

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
    require_word(normalize, NORMALIZERS, "normalize")
    grid = grid_of_mean(mean)
    share, weights, coords = _select_spatial_queries(mean, grid)
    aligned = _aligned_sum(grid.as_map(share * weights[..., None]), grid)
    # Divided by the number of queries, or of the queries that have a key at an offset.
    if normalize == "queries":
        counted = weights.sum(axis=-1)[..., None, None]
    else:
        shape = (*weights.shape, grid.rows, grid.columns)
        counted = _aligned_sum(np.broadcast_to(weights[..., None, None], shape), grid)
    sides = {"row_offset": grid.rows, "column_offset": grid.columns}
    coords |= {
        name: (name, np.arange(1 - side, side) * grid.stride, {"units": "pixels"})
        for name, side in sides.items()
    }
    return array_of(
        "aligned_attention",
        mean_of(aligned, counted),
        (*DIMS, *sides),
        ("attention by offset from the query", "1"),
        mean.attrs | {"normalize": normalize},
        **coords,
    )


def _aligned_sum(maps: np.ndarray, grid: TokenGrid) -> np.ndarray:
    """Maps of shape (..., query, row, column), shifted to their query and added up."""
    rows, columns = grid.rows, grid.columns
    total = np.zeros((*maps.shape[:-3], 2 * rows - 1, 2 * columns - 1))
    for query in range(grid.num_spatial):
        top, left = rows - 1 - query // columns, columns - 1 - query % columns
        total[..., top : top + rows, left : left + columns] += maps[..., query, :, :]
    return total


def attention_offset(aligned: xr.DataArray) -> xr.Dataset:
    """Centre of mass and peak of each head's attention, relative to the query.

    Queries at an edge have no keys beyond the edge, so the peak and the centre of mass may differ.
    For example, if a head attends to the token on the left of each query, the peak of the attention
    is one token to the left of the query, but the centre of mass is nearer to the query.

    Args:
        aligned: DataArray from `aligned_attention`.

    Returns:
        Dataset with five variables of shape (layer, head), in pixels. For a head whose map in
        `aligned` is NaN everywhere, all variables are NaN.

        * `row_offset` and `column_offset`: the offset of the centre of mass, positive down and to
          the right.
        * `length`: the distance of the centre of mass from the query.
        * `peak_row` and `peak_column`: the offset that receives the most attention.

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
    # The mean offset, weighted by attention, and the offset with most attention.
    share = aligned / aligned.sum(dims)
    row, column = ((share * aligned[dim]).sum(dims, min_count=1) for dim in dims)
    largest = aligned.fillna(-1.0).argmax(dims)
    peak = {dim: aligned[dim][largest[dim]].where(row.notnull()) for dim in dims}
    values = {
        "row_offset": (row, "mean offset, down"),
        "column_offset": (column, "mean offset, to the right"),
        "length": (np.hypot(row, column), "length of the mean offset"),
        "peak_row": (peak[dims[0]], "offset of the peak, down"),
        "peak_column": (peak[dims[1]], "offset of the peak, to the right"),
    }
    variables = {
        name: variable(DIMS, value.values, words, "pixels")
        for name, (value, words) in values.items()
    }
    attrs = {name: aligned.attrs[name] for name in aligned.attrs if name not in TEXT_ATTRIBUTES}
    labels = {name: coordinate for name, coordinate in aligned.coords.items() if name not in dims}
    return ResultDataset(variables, labels, attrs)


def mean_distance(mean: xr.Dataset, units: str = "pixels") -> xr.DataArray:
    """Mean distance between a query and the keys that each head attends to.

        distance = mean over q of sum_k spatial(q, k) |position(q) - position(k)|

    The mean is over the spatial queries q, weighted as in `aligned_attention`, and the sum is over
    the spatial keys k. In pixels, the result equals `attention_distance`.

    Args:
        mean: Dataset from `mean_attention`.
        units: `"pixels"` or `"unit"`. With `"unit"`, the grid is scaled so that the centres of its
            corner tokens are the corners of a square of side 1. This allows a comparison of models
            with different grids (Walmer et al. 2023, section 4.3, appendix C.2).

    Returns:
        DataArray of shape (layer, head). The coordinate `left_out` is the same as in
        `attention_distance`.

    Raises:
        ValueError: if `units` is unknown, or if `mean` is not from `mean_attention`.

    Examples:
        >>> mean = analysis.mean_attention(vit, images)
        >>> distance = analysis.mean_distance(mean, units="unit")
        >>> distance.units
        'sides of the grid'

    See also:
        `mean_attention`, `attention_distance`, `plots.plot_mean_distance`; page
        measurements/attention/attention-distance.md.
    """
    require_word(units, tuple(UNITS), "units")
    grid = grid_of_mean(mean)
    distances = grid.distances()
    if units == "unit":
        sides = [np.linspace(0, 1, side) for side in (grid.rows, grid.columns)]
        centres = np.stack(np.meshgrid(*sides, indexing="ij"), axis=-1).reshape(-1, 2)
        distances = np.linalg.norm(centres[:, None] - centres[None], axis=-1)
    share, weights, coords = _select_spatial_queries(mean, grid)
    summed = np.einsum("lhqk,qk,lhq->lh", share, distances, weights, optimize=True)
    return array_of(
        "mean_distance",
        mean_of(summed, weights.sum(axis=-1)),
        DIMS,
        ("mean attention distance", UNITS[units]),
        mean.attrs,
        **coords,
    )


def attention_maps(
    mean: xr.Dataset | ModelLike, images: Any = None, query: str | int = CLS, **options: Any
) -> xr.DataArray:
    """Mean attention map of every head: from one query, or from all spatial queries, to the grid.

    Args:
        mean: Dataset from `mean_attention`; or a model, for which `mean_attention` is computed
            first.
        images: images for a model, as in `vit_tf.analysis`. A single image gives the maps of this
            image.
        query: the token that attends. `"cls"` is the first token. An integer is the position of a
            token in the sequence, prefix tokens included. With `"spatial"`, attention is averaged
            over the spatial queries, weighted as in `aligned_attention`.
        **options: for a model, further arguments of `mean_attention`, such as `layers=-1`.

    Returns:
        DataArray of shape (layer, head, row, column). Each map sums to 1. The mean excludes
        (example, query) pairs in which the query attends to prefix tokens only; the coordinate
        `left_out` of shape (layer, head) counts them. A map is NaN if no pair remains.

    Raises:
        ValueError: if there is no token `query`, or if `mean` is not from `mean_attention`.

    Examples:
        >>> mean = analysis.mean_attention(vit, images)
        >>> maps = analysis.attention_maps(mean, query="spatial")
        >>> maps.dims
        ('layer', 'head', 'row', 'column')
        >>> maps = analysis.attention_maps(vit, images[:1], layers=-1)  # of one image

    See also:
        `plots.plot_attention_maps`, `mean_attention`; page
        measurements/attention/mean-attention.md.
    """
    if not isinstance(mean, xr.Dataset):
        mean = mean_attention(mean, images, **options)
    grid = grid_of_mean(mean)
    if query == SPATIAL:
        share, weights, coords = _select_spatial_queries(mean, grid)
        summed = np.einsum("lhqk,lhq->lhk", share, weights)
        share = mean_of(summed, weights.sum(axis=-1)[..., None])
    else:
        spatial, left_out = _read_queries(mean)
        position = query_position(query, grid.prefix, grid.num_tokens)
        share, coords = spatial[:, :, position], _head_coords(mean, left_out[:, :, position])
    return array_of(
        "attention_maps",
        grid.as_map(share),
        (*DIMS, "row", "column"),
        ("mean attention", "1"),
        mean.attrs | {"query": query},
        **coords,
    )


def _select_spatial_queries(
    mean: xr.Dataset, grid: TokenGrid
) -> tuple[np.ndarray, np.ndarray, Coordinates]:
    """Attention (layer, head, query, key) of spatial queries, their weights, and coordinates."""
    share, left_out = (values[:, :, grid.prefix :] for values in _read_queries(mean))
    weights = 1.0 - left_out / mean.attrs["examples"] if left_out.any() else np.ones(left_out.shape)
    share = np.where(weights[..., None] > 0, share.astype(np.float64), 0.0)
    return share, weights, _head_coords(mean, left_out.sum(axis=-1))


def _read_queries(mean: xr.Dataset) -> tuple[np.ndarray, np.ndarray]:
    """Attention (layer, head, query, key), and numbers of examples left out, 0 where not saved."""
    dims = ("layer", "head", "query")
    spatial = mean["spatial"].transpose(*dims, "spatial_key").values
    if "left_out" in mean:
        return spatial, mean["left_out"].transpose(*dims).values
    return spatial, np.zeros(spatial.shape[:-1], int)


def _head_coords(mean: xr.Dataset, left_out: np.ndarray) -> Coordinates:
    """The coordinates of a result of shape (layer, head, ...)."""
    return {"layer": mean["layer"], "head": mean["head"], "left_out": (DIMS, left_out, LEFT_OUT)}


def grid_of_mean(mean: xr.Dataset) -> TokenGrid:
    """The `TokenGrid` of a result of `mean_attention`; a `ValueError` for another."""
    fields = ("rows", "columns", "prefix", "stride")
    is_mean = isinstance(mean, xr.Dataset) and "spatial" in mean and set(fields) <= set(mean.attrs)
    if not is_mean:
        raise ValueError(f"Expected a Dataset from mean_attention. Received: {type(mean).__name__}")
    return TokenGrid(*(int(mean.attrs[name]) for name in fields))


def require_tokens(grid: TokenGrid) -> TokenGrid:
    """The grid, if it has more than one spatial token; else raises a `ValueError`."""
    if grid.num_spatial == 1:
        raise ValueError(f"Expected a grid of more than one spatial token. Received: {grid}")
    return grid


KINDS = ("strict", "soft", "axial", "offset", "global")
# Clockwise from the right, in eighths of a circle; rows go down.
DIRECTIONS = ("right", "down-right", "down", "down-left", "left", "up-left", "up", "up-right")
# Largest rounding error of sums of shares that were computed in float32.
ROUNDING = 1e-6


def head_classes(
    mean: xr.Dataset,
    strict: float = 0.75,
    local: float = 0.5,
    offset: float = 0.85,
    elongation: float = 2.0,
) -> xr.Dataset:
    """Classifies attention heads by the distribution of offsets from a query to its attended keys.

    Walmer et al. 2023 (section 4.2, figures 3 and 14) assign types to heads by eye. This function
    assigns them by thresholds on the distribution of d, the offset from query to key in the
    aligned map of `aligned_attention`.

    * `reach` is E|d|, the mean distance of keys from the query. `row_reach` is E|d_row|, and
      `column_reach` is E|d_column|.
    * `spread` is E|d - m|, the mean distance of keys from the median offset m. The median is taken
      over rows and over columns separately.
    * A uniform head attends to all keys equally. A head is local if its `spread` is at most `local`
      times the `spread` of a uniform head.

    The types are tested in the order of the following list. A head has the first type whose
    condition it meets.

    * `"none"`: all queries of the head attend to prefix tokens only.
    * `"strict"`: the query's own token receives at least the share `strict` of the attention.
    * `"offset"`: the head is local, and `spread` is at most `offset` times `reach`.
    * `"axial"` along both axes: the attention forms a cross, that is, E|d_row d_column| is at most
      `row_reach` times `column_reach` divided by `elongation`. In addition, `row_reach` and
      `column_reach` differ by a factor of less than `elongation`, in tokens or relative to a
      uniform head.
    * `"axial"` along a row: `column_reach` is at least `elongation` times `row_reach`, and
      `row_reach` is at most `local` times the `row_reach` of a uniform head. The condition along a
      column has rows and columns exchanged.
    * `"soft"`: the head is local.
    * `"global"`: the head meets none of these conditions.

    The median is used because queries at an edge, which have no keys beyond the edge, shift a mean
    far more than a median. A head that attends along its row is axial at any distance, even if it
    attends to the left and right neighbours only. If all queries attend to one position of the
    image, the head is global. The thresholds are conventions. Heads that are constructed as
    examples of a type are far from the thresholds, but trained heads often lie between types. To
    find heads between types, compare their returned statistics with the thresholds.

    Args:
        mean: Dataset from `mean_attention`.
        strict: smallest share of attention on the query's own token for a strict head.
        local: largest `spread` of a local head, as a multiple of the `spread` of a uniform head.
        offset: largest `spread` of an offset head, as a multiple of the `reach` of this head.
        elongation: smallest ratio of length to width for an axial head.

    Returns:
        Dataset with variables of shape (layer, head). The statistics are NaN for a `"none"` head.
        The coordinate `left_out` is the same as in `aligned_attention`.

        * `kind`: the type of the head, a string.
        * `direction`: a string. For an offset head, it is one of eight directions such as
          `"up-left"`. For an axial head, it is `"row"`, `"column"` or `"both"`. For other heads, it
          is empty.
        * `row_median` and `column_median`: the median offset m in tokens, positive down and to the
          right.
        * `reach`, `row_reach`, `column_reach` and `spread`: the mean distances defined above, in
          tokens.
        * `own`: the share of attention at d = 0.
        * `relative_spread`: `spread` divided by the `spread` of a uniform head.
        * `nearer`: `spread` divided by `reach`, and 1 if d is always 0.
        * `crossing`: E|d_row d_column| / (E|d_row| E|d_column|). The value is 0 for a cross. It is
          1 if the row offset and the column offset are independent, or if one of these two offsets
          does not vary.

    Raises:
        ValueError: if the grid has a single token, if a threshold is not positive, or if `mean` is
            not from `mean_attention`.

    Examples:
        >>> mean = analysis.mean_attention(vit, images)
        >>> heads = analysis.head_classes(mean)
        >>> heads.kind.shape
        (2, 2)

    See also:
        `plots.plot_head_classes`, `mean_attention`, `attention_offset`; page
        measurements/attention/head-classes.md.
    """
    bounds = {"strict": strict, "local": local, "offset": offset, "elongation": elongation}
    if min(bounds.values()) <= 0:
        raise ValueError(f"Expected positive bounds. Received: {bounds}")
    grid = require_tokens(grid_of_mean(mean))
    aligned = aligned_attention(mean)
    statistics = offset_statistics(aligned.values)
    # Uniform attention gives each offset as much as there are pairs of tokens that far apart.
    sides = (side - abs(np.arange(1 - side, side)) for side in (grid.rows, grid.columns))
    uniform = offset_statistics(np.outer(*sides) / grid.num_spatial**2)
    statistics["relative_spread"] = statistics["spread"] / uniform["spread"]
    kind, direction = _classify(statistics, uniform, **bounds)
    without_units = ("own", "relative_spread", "nearer", "crossing")
    variables = {
        name: (DIMS, values, {"units": "1" if name in without_units else "tokens"})
        for name, values in statistics.items()
    }
    return ResultDataset(
        {"kind": (DIMS, kind), "direction": (DIMS, direction)} | variables,
        coords={name: aligned[name] for name in ("layer", "head", "left_out")},
        attrs=mean.attrs | bounds,
    )


def offset_statistics(share: np.ndarray) -> dict[str, np.ndarray]:
    """Shares, medians and mean distances, in tokens, of distributions of offsets."""
    rows, columns = (side // 2 for side in share.shape[-2:])
    row = np.arange(-rows, rows + 1)[:, None]
    column = np.arange(-columns, columns + 1)

    def expected(values: np.ndarray) -> np.ndarray:
        return (share * values).sum(axis=(-2, -1))

    # Distances from the query itself, and from the median offset, which is robust to far tokens.
    medians = [_median(share.sum(axis=other)) for other in (-1, -2)]
    from_median = (
        side - m[..., None, None] for side, m in zip((row, column), medians, strict=True)
    )
    reach, spread = expected(np.hypot(row, column)), expected(np.hypot(*from_median))
    sides = expected(abs(row)), expected(abs(column))
    return {
        "own": share[..., rows, columns],
        "row_median": medians[0],
        "column_median": medians[1],
        "reach": reach,
        "row_reach": sides[0],
        "column_reach": sides[1],
        "spread": spread,
        "nearer": _ratio(spread, reach),
        "crossing": _ratio(expected(abs(row * column)), sides[0] * sides[1]),
    }


def _median(share: np.ndarray) -> np.ndarray:
    """The smallest offset up to which half of the shares (..., 2 side - 1) lie, NaN of NaN."""
    half = np.cumsum(share, axis=-1) >= 0.5 - ROUNDING
    return np.where(half.any(axis=-1), half.argmax(axis=-1) - share.shape[-1] // 2, np.nan)


def _ratio(part: np.ndarray, total: np.ndarray) -> np.ndarray:
    """`part / total`, 1 where both are 0."""
    return np.where(total == 0, 1.0, part / np.where(total == 0, 1, total))


def _classify(
    statistics: dict[str, np.ndarray],
    uniform: dict[str, np.ndarray],
    strict: float,
    local: float,
    offset: float,
    elongation: float,
) -> tuple[np.ndarray, np.ndarray]:
    """Kinds and directions, two arrays of strings of shape (layer, head)."""
    is_local = statistics["relative_spread"] <= local
    reach = {side: statistics[f"{side}_reach"] for side in ("row", "column")}
    # Uniform attention has a `row_reach` of 0 on a grid of one row, and likewise for columns.
    widths = {side: uniform[f"{side}_reach"] for side in reach}
    narrow = {side: (widths[side] > 0) & (reach[side] <= local * widths[side]) for side in reach}
    shares = {side: _ratio(reach[side], widths[side]) for side in reach}
    extents = [(sides["row"], sides["column"]) for sides in (reach, shares)]
    similar = [np.maximum(*ends) < elongation * np.minimum(*ends) for ends in extents]
    along = {
        "both": (statistics["crossing"] <= 1 / elongation) & np.logical_or(*similar),
        "row": (reach["column"] >= elongation * reach["row"]) & narrow["row"],
        "column": (reach["row"] >= elongation * reach["column"]) & narrow["column"],
    }
    axis = np.select(list(along.values()), list(along), default="")
    conditions = {
        "none": np.isnan(statistics["own"]),
        "strict": statistics["own"] >= strict,
        "offset": is_local & (statistics["nearer"] <= offset),
        "axial": axis != "",
        "soft": is_local,
    }
    kind = np.select(list(conditions.values()), list(conditions), default="global")
    angle = np.arctan2(statistics["row_median"], statistics["column_median"])
    is_offset = kind == "offset"
    eighth = np.round(np.where(is_offset, angle, 0) / (np.pi / 4)).astype(int) % 8
    direction = np.where(is_offset, np.array(DIRECTIONS)[eighth], "")
    return kind, np.where(kind == "axial", axis, direction)
