import numpy as np
from attention_heads import OBLONG, head, random_attention
from tables import features_of, numbers

from vit_tf import TokenGrid, analysis


def test_rows_distances_and_masses_by_loops(rng):
    weights = random_attention(rng, OBLONG, examples=3)
    result = analysis.attention_rows(features_of(weights, OBLONG), numbers(3))
    assert result.attention.dims == ("example", "layer", "head", "query", "key")
    positions = OBLONG.positions()
    for layer, values in weights.items():
        np.testing.assert_allclose(result.attention.sel(layer=layer), values, rtol=1e-6)
        for place in np.ndindex(3, 3, OBLONG.num_tokens):
            row, query = values[place], place[2]
            own = {"example": place[0], "head": place[1], "query": query}
            outputs = result.sel(layer=layer, **own)
            prefix = row[0] if query else 0.0
            mass = [prefix, row[query], row.sum() - prefix - row[query]]
            np.testing.assert_allclose(outputs.mass, mass, atol=1e-6)
            if query == 0:
                assert np.isnan(outputs.distance)
                continue
            lengths = [np.linalg.norm(positions[query - 1] - other) for other in positions]
            expected = np.dot(row[1:], lengths) / row[1:].sum()
            np.testing.assert_allclose(outputs.distance, expected, rtol=1e-5)


def test_a_head_that_attends_to_the_right_neighbour():
    grid = TokenGrid(3, 4, 0, 8)
    right = head(grid, lambda rows, columns: (rows, columns) == (0, 1))
    result = analysis.attention_rows(
        features_of({"a/weights": right[None, None]}, grid), numbers(1)
    )
    distance = grid.as_map(result.distance.values[0, 0, 0])
    np.testing.assert_array_equal(distance, [[8, 8, 8, 0]] * 3)
    parts = grid.as_map(np.moveaxis(result.mass.values[0, 0, 0], -1, 0))
    at_edge = [[0, 0, 0, 1]] * 3
    np.testing.assert_array_equal(parts, [np.zeros((3, 4)), at_edge, 1 - np.array(at_edge)])


def test_queries_that_attend_to_cls_only_have_no_distance():
    weights = np.zeros((1, 1, 13, 13))
    weights[..., 0] = 1
    result = analysis.attention_rows(features_of({"a/weights": weights}, OBLONG), numbers(1))
    assert np.isnan(result.distance).all()
    np.testing.assert_array_equal(result.mass[0, 0, 0, 1:], [[1, 0, 0]] * 12)
    np.testing.assert_array_equal(result.mass[0, 0, 0, 0], [0, 1, 0])
