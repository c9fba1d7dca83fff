import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.engine.matching import match_maps


def match_oracle(values, rows, columns, side):
    """Patches cut out one by one, flattened, and averaged over each place of the result."""
    count, height, width, depth = values.shape
    result = np.zeros((count, rows, columns, side * side * depth))
    high, wide = height // rows, width // columns
    for row in range(rows):
        for column in range(columns):
            patches = [
                values[:, top : top + side, left : left + side].reshape(count, -1)
                for top in range(row * high, (row + 1) * high, side)
                for left in range(column * wide, (column + 1) * wide, side)
            ]
            result[:, row, column] = np.mean(patches, axis=0, dtype=np.float64)
    return result


def matched(values, grid, channels):
    return match_maps(lambda images: {"map": images}, channels, grid)(tf.constant(values))["map"]


@pytest.mark.parametrize(
    ("shape", "grid", "channels", "side"),
    [
        ((8, 8, 4), (2, 2), 16, 2),
        ((8, 12, 4), (2, 3), 16, 2),
        ((8, 12, 4), (2, 3), 64, 4),
        ((12, 6, 3), (2, 1), 20, 3),
        ((12, 6, 3), (2, 1), 12, 2),
        ((4, 8, 3), (2, 2), 1000, 2),
        ((4, 6, 5), (4, 6), 5, 1),
        ((6, 4, 5), (2, 2), 1, 1),
    ],
)
def test_equals_the_definition(rng, shape, grid, channels, side):
    values = rng.normal(size=(3, *shape)).astype("float32")
    result = matched(values, TokenGrid(*grid, 0, 8), channels)
    assert result.shape == (3, *grid, side * side * shape[-1])
    np.testing.assert_allclose(result, match_oracle(values, *grid, side), atol=1e-6)


def test_the_nearest_number_of_channels_wins_and_of_equals_the_smaller(rng):
    grid = TokenGrid(2, 2, 0, 8)
    for channels, expected in [(9, 4), (10, 4), (11, 16), (39, 16), (40, 16), (41, 64)]:
        assert matched(np.zeros((1, 8, 8, 4), "float32"), grid, channels).shape[-1] == expected


@pytest.mark.slow
def test_a_resnet_is_probed_at_equal_sizes(rng):
    bit = vit_tf.BiT((8, 16, 3), units=(1, 1), width_factor=0.5, num_classes=3)
    features = vit_tf.submodel(bit, "stage*/sum")
    shapes = {tap: x.shape[1:] for tap, x in features(np.zeros((1, 8, 16, 3), "float32")).items()}
    rows, columns, channels = shapes["stage2/unit01/sum"]
    maps = match_maps(features, channels)
    images = rng.normal(size=(24, 8, 16, 3)).astype("float32")
    for tap, values in maps(images).items():
        assert values.shape[1:3] == (rows, columns)
        np.testing.assert_allclose(
            tf.reduce_mean(values), tf.reduce_mean(features(images)[tap]), atol=1e-4
        )
    data = images, rng.integers(0, 3, 24)
    probe = analysis.ridge_probe(maps, data, data, 3, l2=1.0)
    assert list(probe.layer) == list(shapes) and probe.attrs["model"] == bit.name


def test_errors():
    grid = TokenGrid(2, 3, 0, 8)
    for shape in [(1, 5, 6, 2), (1, 4, 5, 2), (1, 1, 3, 2), (1, 6, 4)]:
        with pytest.raises(
            ValueError, match=r"a multiple of 2 and columns a multiple of 3.*'map' of shape"
        ):
            matched(np.zeros(shape, "float32"), grid, 8)
    with pytest.raises(ValueError, match=r"Expected grid= to be a vit_tf.TokenGrid"):
        match_maps(lambda images: {"map": images}, 8)
