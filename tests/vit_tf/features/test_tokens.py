import numpy as np
import pytest

from vit_tf import TokenGrid


def test_positions_are_patch_centres_row_by_row():
    grid = TokenGrid(rows=2, columns=3, prefix=1, stride=8)
    expected = [[4, 4], [4, 12], [4, 20], [12, 4], [12, 12], [12, 20]]
    np.testing.assert_array_equal(grid.positions(), expected)
    assert grid.num_tokens == 7
    assert grid.distances()[0, 5] == pytest.approx(np.hypot(8, 16))


def test_spatial_center_and_map_agree_on_an_oblong_grid():
    grid = TokenGrid(rows=4, columns=3, prefix=2, stride=16)
    tokens = np.arange(grid.num_tokens)[None, :, None]
    assert grid.center == 2 + 2 * 3 + 1
    assert grid.first(tokens)[0, 0] == 0
    as_map = grid.as_map(grid.spatial(tokens)[0, :, 0])
    assert as_map.shape == (4, 3)
    assert as_map[2, 1] == tokens[0, grid.center, 0]


@pytest.mark.parametrize("fields", [(0, 1, 0, 1), (1, 1, -1, 1), (1, 1, 0, 0)])
def test_impossible_grids_are_refused(fields):
    with pytest.raises(ValueError, match="Expected rows, columns and stride"):
        TokenGrid(*fields)
