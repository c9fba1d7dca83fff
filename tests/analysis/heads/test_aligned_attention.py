import numpy as np
import pytest
from attention_heads import OBLONG, head, mean_of, places, random_attention
from tables import features_of, numbers

from vit_tf import TokenGrid, analysis

pytestmark = pytest.mark.usefixtures("without_graphs")

OFFSETS = ("row_offset", "column_offset")
GAP = TokenGrid(3, 4, 0, 8)


@pytest.fixture
def random_mean(rng):
    """The mean of random attention over a grid with a CLS token, and the attention itself."""
    weights = random_attention(rng, OBLONG)
    return analysis.mean_attention(features_of(weights, OBLONG), numbers(5)), weights


def test_offsets_of_aligned_maps_are_pixels(random_mean):
    """Their values are those of loops in test_saturated_attention.py."""
    aligned = analysis.aligned_attention(random_mean[0])
    np.testing.assert_allclose(aligned.sum(OFFSETS), 1, rtol=1e-6)
    assert aligned.row_offset.values.tolist() == [-16, -8, 0, 8, 16]
    assert aligned.column_offset.values.tolist() == [-24, -16, -8, 0, 8, 16, 24]
    assert aligned.row_offset.attrs["units"] == "pixels"


def test_uniform_attention_is_flat_by_coverage_and_a_pyramid_by_queries():
    mean = mean_of(head(OBLONG, lambda r, c: 1), OBLONG)
    np.testing.assert_allclose(analysis.aligned_attention(mean, "coverage"), 1 / 12)
    pyramid = np.outer([1, 2, 3, 2, 1], [1, 2, 3, 4, 3, 2, 1]) / 144
    np.testing.assert_allclose(analysis.aligned_attention(mean)[0, 0], pyramid)


@pytest.mark.parametrize("prefix", [0, 1, 2])
@pytest.mark.parametrize(
    ("step", "left_over"), [((0, -1), 3 / 4), ((1, 0), 2 / 3), ((-1, 2), 2 / 3 * 2 / 4)]
)
def test_a_head_that_attends_to_one_neighbour_has_its_peak_there(prefix, step, left_over):
    grid = TokenGrid(3, 4, prefix, 8)
    mean = mean_of(head(grid, lambda r, c: (r, c) == step), grid)
    offset = analysis.attention_offset(analysis.aligned_attention(mean, "coverage"))
    assert (offset.peak_row.item(), offset.peak_column.item()) == (8 * step[0], 8 * step[1])
    # Queries at the edge look at themselves: the mean falls short by their share.
    offset = analysis.attention_offset(analysis.aligned_attention(mean))
    centre = np.array([offset.row_offset.item(), offset.column_offset.item()])
    np.testing.assert_allclose(centre, 8 * left_over * np.array(step), atol=1e-12)
    assert offset.length.item() == pytest.approx(8 * left_over * np.hypot(*step))


def test_distance_on_the_unit_square_does_not_depend_on_the_stride():
    for grid in (TokenGrid(3, 4, 1, 8), TokenGrid(3, 4, 0, 32)):
        across = np.zeros((12, 12))
        across[range(12), range(11, -1, -1)] = 1  # each corner looks at the opposite one
        place = [(r / 2, c / 3) for r, c in places(grid)]
        expected = np.mean([np.hypot(1 - 2 * r, 1 - 2 * c) for r, c in place])
        distance = analysis.mean_distance(mean_of(across, grid), units="unit")
        assert distance.item() == pytest.approx(expected, rel=1e-12)
    one_row = mean_of(np.eye(4)[::-1], TokenGrid(1, 4, 0, 8))
    assert analysis.mean_distance(one_row, "unit").item() == pytest.approx((1 + 1 / 3) / 2)


def test_the_map_of_one_token(in_graphs, random_mean):
    """Those of CLS and of the spatial tokens are in test_saturated_attention.py."""
    mean, weights = random_mean
    for outputs, attention in zip(
        analysis.attention_maps(mean, query=5), weights.values(), strict=True
    ):
        share = attention[:, :, 5, 1:] / attention[:, :, 5, 1:].sum(-1, keepdims=True)
        np.testing.assert_allclose(outputs, share.mean(0).reshape(3, 3, 4), rtol=1e-5)
    cls = analysis.attention_maps(mean)
    assert cls.attrs["query"] == "cls" and cls.attrs["model"] == "features"


@pytest.mark.parametrize(
    ("call", "word"),
    [
        (lambda mean: analysis.aligned_attention(mean, "keys"), "normalize='keys'"),
        (lambda mean: analysis.mean_distance(mean, "cm"), "units='cm'"),
        (lambda mean: analysis.aligned_attention(mean.spatial), "mean_attention"),
        (lambda mean: analysis.attention_maps(mean, query=13), "query=13"),
        (lambda mean: analysis.attention_maps(mean, query="gap"), "query='gap'"),
        (lambda mean: analysis.attention_maps(mean_of(np.eye(12), GAP)), "no CLS token"),
    ],
)
def test_errors(random_mean, call, word):
    with pytest.raises(ValueError, match=word):
        call(random_mean[0])
