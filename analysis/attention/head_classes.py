"""Kinds of attention heads: strict local, soft local, axial, offset and global."""

from __future__ import annotations

import numpy as np
import xarray as xr

from .aligned_attention import aligned_attention, grid_of_mean, require_tokens

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
    """The kind of each attention head, by where it looks from its queries.

    Walmer et al. 2023 (section 4.2, figures 3 and 14) distinguish these kinds by eye; here
    numeric bounds do. With d the offset from query to key, distributed as in the aligned map, m its
    median by row and column, and "uniform" the same for a head that attends to all keys equally, a
    head is of the first kind that fits:

        strict   own token's share >= `strict`
        offset   local, and E|d - m| <= `offset` E|d|
        axial    both: E|d_row d_column| <= E|d_row| E|d_column| / `elongation`, neither of these
                 `elongation` times the other, in tokens or as a share of uniform;
                 a row: E|d_column| >= `elongation` E|d_row|, and E|d_row| <= `local` uniform;
                 a column: the other way round
        soft     local
        global   none of the above
        none     at no place: all its queries attend to prefix tokens only

    where local means E|d - m| <= `local` uniform. It is a median because queries at an edge, which
    cannot look beyond it, move a mean by far more. Attention of any reach along a row is axial, and
    attention to both neighbours in a row as well. Attention to one place of the image, from
    wherever, is global. The bounds are conventions, far from what constructed heads of each kind
    have; trained heads come in between, and the statistics say how far.

    Args:
        mean: Dataset from `mean_attention`.
        strict: share of attention on the own token from which on a head is strict local.
        local: share of the uniform head's reach up to which a head is local.
        offset: share of its mean distance to the query up to which a head's mean distance to the
            median makes it an offset head.
        elongation: how many times longer than wide an axial head's attention is.

    Returns:
        Dataset of strings `kind` and `direction`, and of what they follow from: `own` (the share of
        d = 0), `row_median` and `column_median` (m, down and to the right), `reach` (E|d|),
        `row_reach`, `column_reach` and `spread` (E|d - m|) in tokens, `relative_spread` (divided
        by uniform), `nearer` (E|d - m| / E|d|, 1 if d is always 0) and `crossing` (E|d_row
        d_column| / (E|d_row| E|d_column|): 1 if rows and columns are independent or one does not
        vary, 0 for a cross). All of shape (layer, head), numbers of a head that is `"none"` NaN;
        the coordinate `left_out` is that of `aligned_attention`. `direction` is one of eight, such
        as `"up-left"`, of an offset head, `"row"`, `"column"` or `"both"` of an axial one, else
        empty.

    Raises:
        ValueError: for a grid of a single token, bounds that are not positive, or a `mean` that is
            not of `mean_attention`.

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
    numbers = offset_statistics(aligned.values)
    uniform = offset_statistics(_uniform_offsets(grid))
    numbers["relative_spread"] = numbers["spread"] / uniform["spread"]
    kind, direction = _classify(numbers, uniform, **bounds)
    dims = ("layer", "head")
    shares = ("own", "relative_spread", "nearer", "crossing")
    shown = {
        name: (dims, values, {"units": "1" if name in shares else "tokens"})
        for name, values in numbers.items()
    }
    return xr.Dataset(
        {"kind": (dims, kind), "direction": (dims, direction)} | shown,
        coords={name: aligned[name] for name in ("layer", "head", "left_out")},
        attrs=mean.attrs | bounds,
    )


def offset_statistics(share):
    """Shares, medians and mean distances, in tokens, of distributions of offsets.

    Args:
        share: array of shape (..., 2 rows - 1, 2 columns - 1) that sums to 1 over the offsets.

    Returns:
        dict from name to array of shape (...), as `head_classes` says.
    """
    rows, columns = (side // 2 for side in share.shape[-2:])
    row = np.arange(-rows, rows + 1)[:, None]
    column = np.arange(-columns, columns + 1)

    def expected(values):
        return (share * values).sum(axis=(-2, -1))

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


def _median(share):
    """The smallest offset up to which half of the shares (..., 2 side - 1) lie, NaN of NaN."""
    half = np.cumsum(share, axis=-1) >= 0.5 - ROUNDING
    return np.where(half.any(axis=-1), half.argmax(axis=-1) - share.shape[-1] // 2, np.nan)


def _ratio(part, whole):
    """`part / whole`, 1 where both are 0."""
    return np.where(whole == 0, 1.0, part / np.where(whole == 0, 1, whole))


def _uniform_offsets(grid):
    """Distribution of the offsets of a head that attends to all keys alike."""
    row, column = (side - abs(np.arange(1 - side, side)) for side in (grid.rows, grid.columns))
    return np.outer(row, column) / grid.num_spatial**2


def _classify(numbers, uniform, strict, local, offset, elongation):
    """Kinds and directions, two arrays of strings of shape (layer, head)."""
    is_local = numbers["relative_spread"] <= local
    reach = {side: numbers[f"{side}_reach"] for side in ("row", "column")}
    widths = {side: uniform[f"{side}_reach"] for side in reach}  # 0 where there is but one
    narrow = {side: (widths[side] > 0) & (reach[side] <= local * widths[side]) for side in reach}
    shares = {side: _ratio(reach[side], widths[side]) for side in reach}
    alike = np.logical_or(*(_alike(*sides.values(), elongation) for sides in (reach, shares)))
    along = {
        "both": (numbers["crossing"] <= 1 / elongation) & alike,
        "row": (reach["column"] >= elongation * reach["row"]) & narrow["row"],
        "column": (reach["row"] >= elongation * reach["column"]) & narrow["column"],
    }
    axis = np.select(list(along.values()), list(along), default="")
    fits = {
        "none": np.isnan(numbers["own"]),
        "strict": numbers["own"] >= strict,
        "offset": is_local & (numbers["nearer"] <= offset),
        "axial": axis != "",
        "soft": is_local,
    }
    kind = np.select(list(fits.values()), list(fits), default="global")
    angle = np.arctan2(numbers["row_median"], numbers["column_median"])
    pointing = kind == "offset"
    eighth = np.round(np.where(pointing, angle, 0) / (np.pi / 4)).astype(int) % 8
    pointed = np.where(pointing, np.array(DIRECTIONS)[eighth], "")
    return kind, np.where(kind == "axial", axis, pointed)


def _alike(one, other, times):
    """Whether neither of two arrays is so many times the other."""
    return np.maximum(one, other) < times * np.minimum(one, other)
