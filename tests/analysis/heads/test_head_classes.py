import numpy as np
import pytest
from attention_heads import head, mean_of

from vit_tf import TokenGrid, analysis
from vit_tf.analysis.heads.mean_attention import DIRECTIONS, KINDS

GRIDS = [TokenGrid(7, 7, 0, 4), TokenGrid(6, 9, 1, 16), TokenGrid(14, 8, 5, 2)]
STEPS = {
    **{"right": (0, 1), "down-right": (1, 1), "down": (1, 0), "down-left": (1, -1)},
    **{"left": (0, -1), "up-left": (-1, -1), "up": (-1, 0), "up-right": (-1, 1)},
}


def mixed(*parts):
    """A score: shares, each with a score that is 1 at an offset (or a function of offsets)."""

    def score(row, column):
        return sum(share * ((row, column) == at) for share, at in parts)

    return score


def classified(scores, grid, **bounds):
    """`head_classes` of one layer of heads with these scores."""
    return analysis.head_classes(mean_of([head(grid, s) for s in scores], grid), **bounds)


def named(result):
    return [
        f"{kind} {direction}".strip()
        for kind, direction in zip(result.kind.values[0], result.direction.values[0], strict=True)
    ]


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_constructed_heads_of_each_kind(grid):
    scores = {
        "strict": lambda r, c: (r, c) == (0, 0),
        "soft": lambda r, c: np.exp(-(r**2 + c**2) / 2),
        "axial row": lambda r, c: r == 0,
        "axial column": lambda r, c: c == 0,
        "axial both": lambda r, c: r * c == 0,
        "global": lambda r, c: 1,
    }
    result = classified(scores.values(), grid)
    assert named(result) == list(scores)
    assert {name.split()[0] for name in scores} | {"offset"} == set(KINDS)


@pytest.mark.parametrize("grid", GRIDS, ids=str)
def test_offset_heads_point_where_they_look(grid):
    assert list(STEPS) == list(DIRECTIONS)
    result = classified([mixed((1, step)) for step in STEPS.values()], grid)
    assert named(result) == [f"offset {direction}" for direction in STEPS]
    steps = [result.row_median.values[0].tolist(), result.column_median.values[0].tolist()]
    assert list(zip(*steps, strict=True)) == list(STEPS.values())
    blobs = [
        lambda r, c, a=a, b=b: np.exp(-((r - 2 * a) ** 2 + (c - 2 * b) ** 2) / 2)
        for a, b in STEPS.values()
    ]
    assert named(classified(blobs, grid)) == [f"offset {direction}" for direction in STEPS]


def test_edge_queries_with_uniform_attention_do_not_hide_an_offset():
    grid = TokenGrid(5, 5, 0, 8)
    result = classified([lambda r, c: ((r, c) == (0, -1)) + 1e-6], grid)
    assert named(result) == ["offset left"]


def test_attention_to_one_place_of_the_image_is_global():
    grid = TokenGrid(7, 7, 1, 4)
    places = np.zeros((3, 49, 49))
    for index, place in enumerate((0, 24, 27)):
        places[index, :, place] = 1
    assert named(analysis.head_classes(mean_of(places, grid))) == ["global"] * 3


def test_an_elongated_blob_is_axial_and_a_round_one_is_not_whatever_the_grid():
    for grid in (TokenGrid(3, 12, 0, 8), TokenGrid(12, 12, 0, 8)):
        scores = [
            lambda r, c: np.exp(-(r**2 / 0.4 + c**2 / 10)),
            lambda r, c: np.exp(-(r**2 + c**2) / 1.0),
            lambda r, c: 1,
            mixed((1, (0, 1)), (1, (0, -1))),
        ]
        assert named(classified(scores, grid)) == ["axial row", "soft", "global", "axial row"]


def test_a_cross_has_two_similar_arms():
    scores = [
        lambda r, c: r * c == 0 and max(abs(r), abs(c)) < 3,
        lambda r, c: r == 0 or (c == 0) * 0.05,
        lambda r, c: c == 0 or (r == 0) * 0.05,
    ]
    for grid in (TokenGrid(8, 8, 0, 4), TokenGrid(5, 20, 0, 4)):
        assert named(classified(scores[:2], grid)) == ["axial both", "axial row"]
    assert named(classified(scores[2:], TokenGrid(8, 8, 0, 4))) == ["axial column"]


@pytest.mark.parametrize(
    ("scores", "expected"),
    [
        # More, and less, than three quarters at the own token.
        ([mixed((0.76, (0, 0)), (0.24, (0, 1)))], ["strict"]),
        ([mixed((0.70, (0, 0)), (0.30, (0, 1)))], ["axial row"]),
        # More than half, by enough, look to one side.
        ([mixed((0.30, (0, 0)), (0.70, (0, 1)))], ["offset right"]),
        ([mixed((0.40, (0, 0)), (0.60, (0, 1)))], ["offset right"]),
        ([mixed((0.40, (0, 0)), (0.60, (0, -1)))], ["offset left"]),
        ([mixed((0.47, (0, 0)), (0.53, (0, 1)))], ["axial row"]),
        # Both sides alike are no offset, though half looks to one.
        ([mixed((0.5, (0, -1)), (0.5, (0, 1)))], ["axial row"]),
        ([mixed((0.25, (0, -1)), (0.75, (0, 1)))], ["offset right"]),
    ],
)
def test_borderline_heads(scores, expected):
    assert named(classified(scores, TokenGrid(12, 12, 0, 4))) == expected


@pytest.mark.parametrize(
    ("score", "bound", "measured", "above", "below"),
    [
        (lambda r, c: np.exp(-(r**2 + c**2) / 4), "local", "relative_spread", "soft", "global"),
        (lambda r, c: np.exp(-(r**2 + c**2) / 4), "strict", "own", "soft", "strict"),
        (lambda r, c: np.exp(-((r + 1.5) ** 2 + c**2) / 4), "offset", "nearer", "offset", "soft"),
        (lambda r, c: np.exp(-(r**2 / 0.6 + c**2 / 4)), "elongation", None, "soft", "axial"),
    ],
)
def test_bounds_part_the_kinds_where_they_say(score, bound, measured, above, below):
    grid = TokenGrid(6, 9, 0, 8)
    numbers = classified([score], grid)
    value = (numbers[measured] if measured else numbers.column_reach / numbers.row_reach).item()
    for factor, kind in ((1.001, above), (0.999, below)):
        assert classified([score], grid, **{bound: value * factor}).kind == kind


def test_statistics_are_those_of_a_loop_over_queries_and_keys(rng):
    grid = TokenGrid(3, 4, 1, 8)
    attention = rng.dirichlet(np.ones(12) * 0.3, size=12)
    result = analysis.head_classes(mean_of(attention, grid)).isel(layer=0, head=0)
    points = [(r, c) for r in range(3) for c in range(4)]
    pairs = [(q, k, points[k][0] - q[0], points[k][1] - q[1]) for q in points for k in range(12)]
    share = np.array([attention[points.index(q), k] / 12 for q, k, _, _ in pairs])
    row, column = (np.array([pair[axis] for pair in pairs]) for axis in (2, 3))
    medians = [min(m for m in side if share[side <= m].sum() >= 0.5) for side in (row, column)]
    assert [result.row_median.item(), result.column_median.item()] == medians
    spread = (share * np.hypot(row - medians[0], column - medians[1])).sum()
    reach = (share * np.hypot(row, column)).sum()
    uniform = np.hypot(row, column).mean()
    sides = (share * abs(row)).sum(), (share * abs(column)).sum()
    expected = {
        "own": np.trace(attention) / 12,
        "reach": reach,
        "row_reach": sides[0],
        "column_reach": sides[1],
        "spread": spread,
        "relative_spread": spread / uniform,
        "nearer": spread / reach,
        "crossing": (share * abs(row * column)).sum() / (sides[0] * sides[1]),
    }
    for name, value in expected.items():
        assert result[name].item() == pytest.approx(value, rel=1e-12), name


def test_a_grid_of_one_row_has_no_axial_heads():
    grid = TokenGrid(1, 12, 0, 8)
    result = classified([lambda r, c: 1, lambda r, c: np.exp(-(c**2)), mixed((1, (0, 1)))], grid)
    assert named(result) == ["global", "soft", "offset right"]


def test_errors():
    with pytest.raises(ValueError, match="more than one spatial token"):
        classified([lambda r, c: 1], TokenGrid(1, 1, 1, 8))
    with pytest.raises(ValueError, match=r"positive.*'local': 0"):
        classified([lambda r, c: 1], TokenGrid(3, 4, 1, 8), local=0)
