import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from attention_heads import OBLONG, features_of, head, mean_of, numbers, places, random_attention

from vit_tf import TokenGrid, analysis
from vit_tf.analysis import plots

OFFSETS = ("row_offset", "column_offset")


@pytest.fixture(autouse=True)
def _clean():
    yield
    plt.close("all")


@pytest.fixture
def random_mean(rng):
    """The mean of random attention over a grid with a CLS token, and the attention itself."""
    weights = random_attention(rng, OBLONG)
    return analysis.mean_attention(features_of(weights, OBLONG), numbers(5)), weights


def test_aligned_maps_are_those_of_a_loop_over_queries_and_keys(random_mean):
    mean, weights = random_mean
    total, pairs = np.zeros((2, 3, 5, 7)), np.zeros((5, 7))
    for layer, attention in enumerate(weights.values()):
        spatial = attention[:, :, 1:, 1:] / attention[:, :, 1:, 1:].sum(-1, keepdims=True)
        for query, (r, c) in enumerate(places(OBLONG)):
            for key, (r2, c2) in enumerate(places(OBLONG)):
                cell = r2 - r + 2, c2 - c + 3
                total[layer, :, *cell] += spatial[:, :, query, key].mean(0)
                pairs[cell] += layer == 0
    aligned = analysis.aligned_attention(mean)
    np.testing.assert_allclose(aligned, total / 12, rtol=1e-5)
    np.testing.assert_allclose(aligned.sum(OFFSETS), 1, rtol=1e-6)
    covered = analysis.aligned_attention(mean, normalize="coverage")
    np.testing.assert_allclose(covered, total / pairs, rtol=1e-5)
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
def test_a_head_that_looks_at_one_neighbour_has_its_peak_exactly_there(prefix, step, left_over):
    grid = TokenGrid(3, 4, prefix, 8)
    mean = mean_of(head(grid, lambda r, c: (r, c) == step), grid)
    offset = analysis.attention_offset(analysis.aligned_attention(mean, "coverage"))
    assert (offset.peak_row.item(), offset.peak_column.item()) == (8 * step[0], 8 * step[1])
    # Queries at the edge look at themselves: the mean falls short by their share.
    offset = analysis.attention_offset(analysis.aligned_attention(mean))
    centre = np.array([offset.row_offset.item(), offset.column_offset.item()])
    np.testing.assert_allclose(centre, 8 * left_over * np.array(step), atol=1e-12)
    assert offset.length.item() == pytest.approx(8 * left_over * np.hypot(*step))


def test_a_head_whose_every_query_can_look_left_is_offset_by_minus_a_stride_exactly():
    left = head(OBLONG, lambda r, c: (r, c) == (0, -1))
    left[::4] = 0
    aligned = analysis.aligned_attention(mean_of(left, OBLONG))
    offset = analysis.attention_offset(aligned)
    assert (offset.row_offset.item(), offset.column_offset.item()) == (0, -8)
    assert offset.length.item() == 8
    assert offset.length.attrs["units"] == "pixels"


def test_turning_the_image_turns_the_offset():
    score = {(0, 0): 1, (0, 1): 5, (1, 2): 2, (2, -1): 3}
    grid, turned = TokenGrid(3, 4, 0, 8), TokenGrid(4, 3, 0, 8)
    one = mean_of(head(grid, lambda r, c: score.get((r, c), 0.1)), grid)
    other = mean_of(head(turned, lambda r, c: score.get((c, r), 0.1)), turned)
    of_one, of_other = (
        analysis.attention_offset(analysis.aligned_attention(mean)) for mean in (one, other)
    )
    np.testing.assert_allclose(of_one.row_offset, of_other.column_offset, rtol=1e-12)
    np.testing.assert_allclose(of_one.column_offset, of_other.row_offset, rtol=1e-12)
    np.testing.assert_allclose(of_one.length, of_other.length, rtol=1e-12)


def test_distance_in_pixels_is_the_attention_distance(random_mean):
    mean, weights = random_mean
    streamed = analysis.attention_distance(features_of(weights), numbers(5), OBLONG)
    distance = analysis.mean_distance(mean)
    np.testing.assert_allclose(distance, streamed, rtol=1e-5)
    assert distance.attrs["units"] == "pixels"


def test_distance_on_the_unit_square_spans_it_and_knows_no_stride():
    for grid in (TokenGrid(3, 4, 1, 8), TokenGrid(3, 4, 0, 32)):
        across = np.zeros((12, 12))
        across[range(12), range(11, -1, -1)] = 1  # each corner looks at the opposite one
        place = [(r / 2, c / 3) for r, c in places(grid)]
        expected = np.mean([np.hypot(1 - 2 * r, 1 - 2 * c) for r, c in place])
        distance = analysis.mean_distance(mean_of(across, grid), units="unit")
        assert distance.item() == pytest.approx(expected, rel=1e-12)
    one_row = mean_of(np.eye(4)[::-1], TokenGrid(1, 4, 0, 8))
    assert analysis.mean_distance(one_row, "unit").item() == pytest.approx((1 + 1 / 3) / 2)


def test_maps_of_cls_of_the_spatial_tokens_and_of_one_token(random_mean):
    mean, weights = random_mean
    cls = analysis.attention_maps(mean)
    every = analysis.attention_maps(mean, "spatial")
    one = analysis.attention_maps(mean, 5)
    for layer, attention in enumerate(weights.values()):
        share = attention[..., 1:] / attention[..., 1:].sum(-1, keepdims=True)
        share = share.mean(0).reshape(3, 13, 3, 4)
        np.testing.assert_allclose(cls[layer], share[:, 0], rtol=1e-5)
        np.testing.assert_allclose(every[layer], share[:, 1:].mean(1), rtol=1e-5)
        np.testing.assert_allclose(one[layer], share[:, 5], rtol=1e-5)
    assert cls.attrs["query"] == "cls" and cls.attrs["model"] == "features"


def test_results_survive_netcdf(random_mean, tmp_path):
    mean, _ = random_mean
    aligned = analysis.aligned_attention(mean)
    aligned.to_netcdf(tmp_path / "aligned.nc")
    xr.testing.assert_identical(xr.load_dataarray(tmp_path / "aligned.nc"), aligned)
    offset = analysis.attention_offset(aligned)
    offset.to_netcdf(tmp_path / "offset.nc")
    xr.testing.assert_identical(xr.load_dataset(tmp_path / "offset.nc"), offset)


def test_errors(random_mean):
    mean, _ = random_mean
    with pytest.raises(ValueError, match=r"queries.*coverage.*Received: normalize='keys'"):
        analysis.aligned_attention(mean, "keys")
    with pytest.raises(ValueError, match=r"pixels.*unit.*Received: units='cm'"):
        analysis.mean_distance(mean, "cm")
    with pytest.raises(ValueError, match=r"from mean_attention. Received: DataArray"):
        analysis.aligned_attention(mean.spatial)
    with pytest.raises(ValueError, match=r"among 0 to 12. Received: query=13"):
        analysis.attention_maps(mean, 13)
    with pytest.raises(ValueError, match=r"one of \('cls', 'spatial'\). Received: query='gap'"):
        analysis.attention_maps(mean, "gap")
    no_cls = mean_of(np.eye(12), TokenGrid(3, 4, 0, 8))
    with pytest.raises(ValueError, match=r"no CLS token.* Received: query='cls'"):
        analysis.attention_maps(no_cls)


def test_the_plot_of_aligned_maps_has_a_panel_per_head_scaled_to_its_maximum(random_mean):
    aligned = analysis.aligned_attention(random_mean[0])
    axes = plots.plot_aligned_attention(aligned).panels
    assert axes.shape == (2, 3)
    for index in np.ndindex(2, 3):
        (image,) = axes[index].get_images()
        expected = aligned.values[index] / aligned.values[index].max()
        np.testing.assert_array_equal(image.get_array(), expected)
        assert image.get_extent() == [-28, 28, 20, -20]
    assert [ax.get_title() for ax in axes[0]] == ["head 0", "head 1", "head 2"]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == ["block00", "block01"]
    assert axes[-1, 0].get_xlabel() == "offset (pixels)"
    with pytest.raises(ValueError, match="Expected at least 6 axes"):
        plots.plot_aligned_attention(aligned, axes=axes[0])


def test_the_plot_of_offsets_has_a_point_per_head_and_down_is_down(random_mean):
    offset = analysis.attention_offset(analysis.aligned_attention(random_mean[0]))
    ax = plots.plot_attention_offset(offset)
    for layer, points in enumerate(ax.collections):
        expected = np.stack([offset.column_offset[layer], offset.row_offset[layer]], axis=1)
        np.testing.assert_array_equal(points.get_offsets(), expected)
    low, high = ax.get_ylim()
    assert low > high and len(ax.collections) == 2
    assert (ax.get_xlabel(), ax.get_ylabel()) == (
        "column offset (pixels)",
        "row offset, downwards (pixels)",
    )
    assert ax.get_title() == "Mean attention offset from the query: features"
