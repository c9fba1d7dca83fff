"""Dense features against windows filled by loops and against means of the resized image."""

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis import dense_size
from vit_tf.analysis.objects.dense_features import plan_windows

GRID = TokenGrid(3, 3, 1, 4)  # takes 12 x 12 pixels


def patch_means(images):
    """Tokens that hold the mean of their patch, after a prefix token that holds 1000."""
    images = tf.convert_to_tensor(images)
    means = tf.nn.avg_pool2d(images, GRID.stride, GRID.stride, "VALID")
    tokens = tf.reshape(means, (-1, 9, 3))
    return {"means": tf.concat([tf.fill((tf.shape(tokens)[0], 1, 3), 1000.0), tokens], axis=1)}


@pytest.mark.parametrize("height", [12, 24, 28, 32, 36])
@pytest.mark.parametrize("width", [12, 16, 24, 44, 60])
def test_each_token_is_filled_once_by_the_first_window_that_holds_it(height, width):
    windows = plan_windows(height, width, 12, 4)
    window_of = np.full((height // 4, width // 4), -1)
    for number, window in enumerate(windows):
        assert 0 <= window.top <= height - 12 and 0 <= window.left <= width - 12
        rows, columns = (slice(edge // 4, edge // 4 + 3) for edge in (window.top, window.left))
        new = np.zeros((3, 3), bool)
        new[window.filled_rows :, window.filled_columns :] = True
        np.testing.assert_array_equal(window_of[rows, columns] < 0, new)
        window_of[rows, columns] = number
    assert (window_of >= 0).all()
    assert len(windows) == -(-height // 12) * -(-width // 12)


def test_windows_overlap_at_the_far_edge_alone():
    windows = plan_windows(448, 640, 224, 16)
    places = [(w.top, w.left, w.filled_rows, w.filled_columns) for w in windows]
    assert places == [
        *((0, 0, 0, 0), (0, 224, 0, 0), (0, 416, 0, 2)),
        *((224, 0, 0, 0), (224, 224, 0, 0), (224, 416, 0, 2)),
    ]


def test_sizes_are_twice_the_input_and_the_nearest_multiple_of_the_patch():
    assert dense_size(480, 854, 224, 16) == (448, 800)  # 797.07 pixels
    assert dense_size(854, 480, 224, 16) == (800, 448)
    assert dense_size(480, 854, 224, 32) == (448, 800)
    assert dense_size(480, 840, 224, 32) == (448, 800)  # 784 is as near to 768
    assert dense_size(100, 100, 224, 16) == (448, 448)
    assert dense_size(480, 500, 12, 4) == (24, 24)
    for width in range(24, 60):
        actual = dense_size(24, width, 12, 4)[1]
        assert abs(actual - width) == min(abs(n - width) for n in range(0, 80, 4))


@pytest.mark.parametrize("size", [(24, 24), (17, 29), (71, 50)])
def test_tokens_that_copy_their_patch_give_the_means_of_the_resized_image(rng, size):
    images = rng.normal(size=(3, *size, 3)).astype("float32")
    height, width = dense_size(*size, 12, 4)
    resized = tf.image.resize(images, (height, width), antialias=True).numpy()
    expected = resized.reshape(3, height // 4, 4, width // 4, 4, 3).mean((2, 4))
    for data in (images, tf.data.Dataset.from_tensor_slices(images).batch(2)):
        actual = analysis.dense_features(patch_means, data, GRID)["means"]
        np.testing.assert_allclose(actual, expected, atol=1e-5)


def test_each_window_is_what_a_vit_makes_of_it(rng):
    vit = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 5)
    images = rng.normal(size=(2, 16, 20, 3)).astype("float32")  # of the dense size: not resized
    layer = "block00/mlp/sum"
    actual = analysis.dense_features(vit_tf.submodel(vit, layer), images)[layer]
    assert actual.shape == (2, 4, 5, 8)
    windows = {(r, c): images[:, r : r + 8, c : c + 8] for r in (0, 8) for c in (0, 8, 12)}
    tokens = {
        place: vit.intermediates(window)[layer].numpy()[:, 1:].reshape(2, 2, 2, 8)
        for place, window in windows.items()
    }
    upper, lower = (
        np.concatenate([tokens[r, 0], tokens[r, 8], tokens[r, 12][:, :, 1:]], axis=2)
        for r in (0, 8)
    )
    np.testing.assert_allclose(actual, np.concatenate([upper, lower], axis=1), atol=1e-5)


@pytest.mark.parametrize(
    ("grids", "words"),
    [
        ((), "Expected grid= to be"),
        ((TokenGrid(2, 3, 0, 4),), "as many rows as columns"),
        ((TokenGrid(3, 3, 0, 4),), r"known grid.*'means': \(4, 10, 3\)"),
    ],
)
def test_grids_that_do_not_fit(rng, grids, words):
    with pytest.raises(ValueError, match=words):
        analysis.dense_features(patch_means, np.zeros((1, 24, 24, 3), "float32"), *grids)


def test_images_whose_size_is_not_known_are_refused():
    spec = tf.TensorSpec((None, None, None, 3))
    unknown = tf.data.Dataset.from_generator(lambda: iter([]), output_signature=spec)
    with pytest.raises(ValueError, match="images of one size"):
        analysis.dense_features(patch_means, unknown, GRID)
