"""A grid is given as a `TokenGrid`, as a pair (rows, columns) or not at all, by one function."""

import functools
import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.objects.dense_features import maps_of
from vit_tf.features.layers import grid_of_shapes
from vit_tf.features.tokens import as_grid

GRID = TokenGrid(2, 3, 1, 8)
PATTERNS = ("block00/*/*",)


@pytest.fixture(scope="module")
def vit():
    return vit_tf.ViT((16, 24, 3), 8, 1, 2, 8, 16, 5)


@pytest.fixture(scope="module")
def taps_of(vit):
    """Function from patterns to the submodel, which is made once."""
    return functools.cache(lambda patterns: vit_tf.submodel(vit, *patterns))


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)
    images = rng.normal(size=(6, 16, 24, 3)).astype("float32")
    masks = rng.uniform(size=(6, 2, 16, 24)) < 0.4
    return images, masks, np.arange(12).reshape(6, 2) % 2


WEIGHTS, SUMS = ("block00/attention/weights",), ("block00/*/sum",)
MEASUREMENTS = {
    "attention_distance": (WEIGHTS, lambda f, d, g: analysis.attention_distance(f, d[0], g)),
    "mean_attention": (WEIGHTS, lambda f, d, g: analysis.mean_attention(f, d[0], g)),
    "attention_patterns": (WEIGHTS, lambda f, d, g: analysis.attention_patterns(f, d[0], g)),
    "attention_saliency": (
        WEIGHTS,
        lambda f, d, g: analysis.attention_saliency(f, (d[0], d[1][:, 0]), g),
    ),
    "attention_rollout": (PATTERNS, lambda f, d, g: analysis.attention_rollout(f, d[0], g)),
    "rollout_of_images": (PATTERNS, lambda f, d, g: analysis.rollout_of_images(f, d[0], g)),
    "head_similarity": (
        PATTERNS,
        lambda f, d, g: analysis.head_similarity(f, lambda x: {"x": x}, d[0], g),
    ),
    "skip_ratio": (PATTERNS, lambda f, d, g: analysis.skip_ratio(f, d[0], g)),
    "localization": (SUMS, lambda f, d, g: analysis.localization(f, d[0], g, tokens=[3])),
    "receptive_field": (SUMS, lambda f, d, g: analysis.receptive_field(f, d[0], grid=g)),
    "object_clustering": (SUMS, lambda f, d, g: analysis.object_clustering(f, d, 2, grid=g)),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MEASUREMENTS)
def test_a_pair_is_completed_from_the_tokens_and_the_images(taps_of, data, name):
    patterns, measure = MEASUREMENTS[name]
    model = taps_of(patterns)

    def features(images):
        return model(images)

    xr.testing.assert_identical(measure(features, data, (2, 3)), measure(features, data, GRID))


@pytest.mark.parametrize("name", MEASUREMENTS)
@pytest.mark.parametrize(
    "grid", [TokenGrid(3, 2, 1, 8), TokenGrid(2, 3, 1, 4), TokenGrid(4, 6, 1, 4), (3, 2), [2, 2]]
)
def test_a_grid_that_contradicts_that_of_the_features_is_refused(taps_of, data, name, grid):
    patterns, measure = MEASUREMENTS[name]
    words = r"Expected grid to be None or that of the features, TokenGrid\(rows=2, columns=3, pre"
    with pytest.raises(ValueError, match=words):
        measure(taps_of(patterns), data, grid)


@pytest.mark.parametrize("name", MEASUREMENTS)
def test_a_grid_without_the_prefix_of_the_features_is_refused(taps_of, data, name):
    patterns, measure = MEASUREMENTS[name]
    with pytest.raises(ValueError, match=r"prefix=0"):
        measure(taps_of(patterns), data, TokenGrid(2, 3, 0, 8))


@pytest.mark.slow
def test_a_pair_that_agrees_with_the_features_is_their_own(vit, data):
    features = vit_tf.submodel(vit, *WEIGHTS)
    known = analysis.attention_distance(features, data[0])
    xr.testing.assert_identical(analysis.attention_distance(features, data[0], (2, 3)), known)
    xr.testing.assert_identical(analysis.attention_distance(features, data[0], GRID), known)
    assert known.attrs["stride"] == 8 and known.attrs["prefix"] == 1


@pytest.mark.slow
def test_dense_measurements_take_a_pair_for_features_with_a_grid(rng):
    def features(images):
        return {"means": tf.nn.avg_pool2d(images, 4, 4, "VALID")}

    images = rng.normal(size=(2, 20, 30, 3)).astype("float32")
    whole = TokenGrid(3, 3, 0, 4)
    expected = analysis.dense_features(features, images, whole)["means"]
    with pytest.raises(
        ValueError, match=r"does not specify the patch size.*Received: grid=\(3, 3\)"
    ):
        analysis.dense_features(features, images, (3, 3))
    features.token_grid = whole
    for grid in (None, (3, 3), np.array([3, 3]).tolist()):
        found = analysis.dense_features(features, images, grid)["means"]
        np.testing.assert_array_equal(found, expected)
    with pytest.raises(ValueError, match=r"that of the features.*Received: grid=\(4, 4\)"):
        analysis.dense_features(features, images, (4, 4))
    with pytest.raises(ValueError, match=r"that of the features.*Received: grid=\(4, 4\)"):
        analysis.keypoint_correspondence(features, [], (4, 4))
    with pytest.raises(ValueError, match=r"that of the features.*Received: grid=\(4, 4\)"):
        analysis.engine.match_maps(features, 8, (4, 4))
    video = np.zeros((3, 12, 12, 3), "float32"), np.ones((3, 12, 12), int)
    with pytest.raises(ValueError, match=r"that of the features.*Received: grid=\(4, 4\)"):
        analysis.label_propagation(features, [video], (4, 4))
    # The grid of maps at another depth is theirs, and maps that are not on it are told.
    with pytest.raises(ValueError, match=r"positions of TokenGrid\(rows=2.*'map': \(1, 4, 2, 3\)"):
        maps_of(lambda images: {"map": images}, tf.zeros((1, 4, 2, 3)), TokenGrid(2, 4, 0, 8))


@pytest.mark.slow
def test_positions_masks_and_patches_take_pairs(vit, rng):
    positions = rng.normal(size=(7, 5))
    xr.testing.assert_identical(
        analysis.position_similarity(positions, (2, 3)),
        analysis.position_similarity(positions, GRID),
    )
    tokens = rng.normal(size=(1, 7, 4)).astype("float32")
    for size in ((2, 3), (16, 24)):
        masks = rng.uniform(size=(1, 2, *size)) < 0.5
        found = analysis.masked_features(tokens, tf.constant(masks), (2, 3))
        expected = analysis.masked_features(tokens, tf.constant(masks), GRID)
        np.testing.assert_array_equal(found, expected)
    images = rng.normal(size=(2, 16, 24, 3)).astype("float32")
    batches = tf.data.Dataset.from_tensor_slices((images, [0, 1])).batch(2)
    one, other = (
        next(iter(vit_tf.data.mask_patches(batches, grid, fixed=True))) for grid in ((2, 3), GRID)
    )
    for a, b in zip(tf.nest.flatten(one), tf.nest.flatten(other), strict=True):
        np.testing.assert_array_equal(a, b)


def test_pairs_are_completed():
    assert as_grid((2, 3), 7, (16, 24, 3)) == GRID
    assert as_grid([2, 3], 6, (16, 24)) == TokenGrid(2, 3, 0, 8)
    assert as_grid((np.int64(2), 3)) == TokenGrid(2, 3, 0, 1)
    assert as_grid(GRID, 100, (1, 1)) is GRID


@pytest.mark.parametrize("grid", ["8x8", 8, (8,), (8, 8, 8), (0, 3), (2.0, 3), None])
def test_what_is_no_grid_is_refused(grid):
    with pytest.raises(ValueError, match=r"a vit_tf.TokenGrid or a pair of integers"):
        as_grid(grid, 7, (16, 24))


@pytest.mark.parametrize("grid", [(2, 4), (1, 3)])
def test_pairs_that_do_not_fit_the_tokens_are_refused(grid):
    with pytest.raises(
        ValueError, match=r"of the 7 tokens except for a few prefix tokens.*Received: grid="
    ):
        as_grid(grid, 7, (16, 24))


@pytest.mark.parametrize("shape", [(16, 16), (17, 24), (None, None)])
def test_pairs_that_do_not_tile_the_images_are_refused(shape):
    with pytest.raises(ValueError, match=r"square patches that tile the images.*for images of"):
        as_grid((2, 3), 7, shape)


def test_taps_that_are_no_attention_raise_before_the_grid(data):
    with pytest.raises(ValueError, match=r"as many queries as keys. Received: 'x' of shape"):
        analysis.attention_distance(lambda images: {"x": images}, data[0], (2, 3))


GRIDS_OF_LENGTHS = {
    "vit": ([(17, 8)] * 3, TokenGrid(4, 4, 1, 8)),
    "late CLS token": ([(16, 8), (16, 8), (17, 8)], TokenGrid(4, 4, 1, 8)),
    "dropped CLS token": ([(17, 8), (17, 8), (16, 8)], TokenGrid(4, 4, 0, 8)),
    "class attention": ([(17, 8), (17, 8), (1, 8), (1, 8)], TokenGrid(4, 4, 1, 8)),
    "pooled to 3 tokens": ([(16, 8), (16, 8), (3, 8)], TokenGrid(4, 4, 0, 8)),
    "stages": ([(64, 8), (64, 8), (16, 16), (16, 16), (4, 32)], TokenGrid(2, 2, 0, 16)),
    "several scales": ([(65, 8), (17, 8), (5, 8), (65, 8), (3, 8)], TokenGrid(8, 8, 1, 4)),
    "stages with merged patches": (
        [(64, 8), (16, 32), (16, 16), (4, 64), (4, 32)],
        TokenGrid(2, 2, 0, 16),
    ),
}


@pytest.mark.parametrize("name", GRIDS_OF_LENGTHS)
def test_the_grid_of_sequences_is_that_of_all_of_one_width(name):
    shapes, expected = GRIDS_OF_LENGTHS[name]
    layers = {str(number): shape for number, shape in enumerate(shapes)}
    assert grid_of_shapes(layers, layers, (32, 32)) == expected


@pytest.mark.parametrize(
    "counts",
    [
        [17, 5, 5],
        [17, 7, 7],
        [17, 10, 10],
        [65, 46, 33, 24],
        [64, 16, 16],
        [65, 63, 61, 59, 57],
        [17, 15, 13, 11, 9],
    ],
)
@pytest.mark.parametrize("part", ["", "/attention/weights"])
def test_pruned_tokens_have_no_grid(counts, part):
    size = (64, 64) if counts[0] > 60 else (32, 32)
    shapes = {f"{i}{part}": (2, n, n) if part else (n, 2) for i, n in enumerate(counts)}
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        assert grid_of_shapes(shapes, shapes, size) is None
    assert all("prune or merge tokens" in str(each.message) for each in caught)


class _Pruned(keras.layers.Layer):
    """Keeps the CLS token and the first 4 patches."""

    def call(self, tokens):
        return tokens[:, :5]


class _WithCLS(keras.layers.Layer):
    """Tokens after one more, and positions."""

    def build(self, shape):
        self.cls = self.add_weight(shape=(1, 1, shape[-1]), initializer="normal")
        self.positions = self.add_weight(shape=(shape[1] + 1, shape[-1]), initializer="normal")

    def call(self, tokens):
        cls = keras.ops.repeat(self.cls, keras.ops.shape(tokens)[0], axis=0)
        return keras.ops.concatenate([cls, tokens], axis=1) + self.positions


def test_attention_distance_of_a_model_that_prunes_tokens_is_refused(rng):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    images = keras.Input((32, 32, 3))
    x = _WithCLS()(layers.Reshape((16, 8))(layers.Conv2D(8, 8, 8)(images)))
    for number in range(3):
        y = layers.LayerNormalization()(x)
        x = layers.Add()([x, layers.MultiHeadAttention(2, 4, name=f"attention{number}")(y, y)])
        x = layers.Add()([x, layers.Dense(8, "gelu")(layers.LayerNormalization()(x))])
        x = _Pruned()(x) if number == 0 else x
    model = keras.Model(images, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))
    noise = rng.uniform(-1, 1, (4, 32, 32, 3)).astype("float32")
    for chosen in (None, "*/weights", "attention1/weights"):
        with (
            pytest.warns(UserWarning, match=r"same width: \[17, 5\]"),
            pytest.raises(ValueError, match=r"Expected grid= to be"),
        ):
            analysis.attention_distance(model, noise, layers=chosen)
    grid = TokenGrid(4, 4, 1, 8)
    with pytest.warns(UserWarning, match="prune or merge tokens"):
        found = analysis.attention_distance(model, noise, grid, layers="attention0/weights")
    with pytest.raises(ValueError, match="attention1/weights"):
        analysis.attention_distance(model, noise, grid)
    weights = vit_tf.submodel(model, "attention0/weights")(noise)["attention0/weights"].numpy()
    weights = weights[:, :, 1:, 1:] / weights[:, :, 1:, 1:].sum(-1, keepdims=True)
    expected = (weights * grid.distances()).sum(-1).mean((0, 2))
    np.testing.assert_allclose(found.values[0], expected, rtol=1e-4)


def _tokens_behind(first, order=(1, 2, 3)):
    """A model of patches behind a layer, whose axes of rows and columns may be exchanged."""
    keras.utils.set_random_seed(0)
    layers = keras.layers
    images = keras.Input((32, 32, 3))
    x = layers.Permute(order)(layers.Conv2D(8, 4, 4)(first(images)))
    x = layers.Reshape((-1, 8))(x)
    y = layers.LayerNormalization()(x)
    x = layers.Add(name="sum")([x, layers.MultiHeadAttention(2, 4, name="attention")(y, y)])
    return keras.Model(images, layers.Dense(3)(layers.GlobalAveragePooling1D()(x)))


MOVED = {
    "crop": (keras.layers.CenterCrop(16, 16), (1, 2, 3)),
    "another crop": (keras.layers.Cropping2D(8), (1, 2, 3)),
    "padding": (keras.layers.ZeroPadding2D(16), (1, 2, 3)),
    "slice": (keras.layers.Lambda(lambda x: x[:, 8:24, 8:24]), (1, 2, 3)),
    "columns first": (keras.layers.Identity(), (2, 1, 3)),
}


@pytest.mark.parametrize("name", MOVED)
def test_tokens_that_are_moved_have_no_grid(name, rng):
    model = _tokens_behind(*MOVED[name])
    noise = rng.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    with pytest.warns(UserWarning, match="crops or pads the image first"):
        facts = analysis.features_of(model).facts
    assert facts.grid is None and "another order" in facts.reasons["grid"]
    with pytest.warns(UserWarning, match="crops or pads"), pytest.raises(ValueError, match="grid="):
        analysis.attention_distance(model, noise)


@pytest.mark.parametrize("size", [16, 32, 64])
def test_tokens_of_the_whole_image_keep_their_grid(size):
    facts = analysis.features_of(_tokens_behind(keras.layers.Resizing(size, size))).facts
    assert facts.grid == TokenGrid(size // 4, size // 4, 0, 128 // size)


def test_a_cropped_map_is_not_enlarged_to_the_image(rng):
    keras.utils.set_random_seed(0)
    layers = keras.layers
    images = keras.Input((32, 32, 3))
    x = layers.Conv2D(8, 4, 4, activation="relu", name="maps")(layers.CenterCrop(16, 16)(images))
    model = keras.Model(images, layers.Dense(3)(layers.GlobalAveragePooling2D()(x)))
    noise = rng.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    with (
        pytest.warns(UserWarning, match="crops or pads the image first"),
        pytest.raises(ValueError, match="cannot be enlarged to the image"),
    ):
        analysis.grad_cam(model, noise, 0, layers="maps")
