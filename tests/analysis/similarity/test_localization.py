import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from measure_oracles import minibatch_cka

import vit_tf
from vit_tf import TokenGrid
from vit_tf.analysis.similarity.localization import input_patches, localization

pytestmark = [
    pytest.mark.usefixtures("without_graphs"),
    pytest.mark.filterwarnings("error::RuntimeWarning"),
]
GRID = TokenGrid(2, 3, 1, 4)


def noise(rng, count, grid=GRID, channels=2):
    """Images whose patches differ in size, so that no normalisation goes unnoticed."""
    shape = (count, grid.rows, grid.stride, grid.columns, grid.stride, channels)
    scale = rng.uniform(0.5, 2, (1, grid.rows, 1, grid.columns, 1, 1))
    values = scale * rng.normal(size=shape) + 3
    values = values.reshape(count, grid.rows * grid.stride, grid.columns * grid.stride, channels)
    return values.astype("float32")


def copied(images, grid=GRID):
    """Tokens that are their own patch, behind a prefix token that is the mean of the image."""
    patches = input_patches(images, grid)
    return {"copy": tf.concat([tf.reduce_mean(patches, 1, keepdims=True), patches], axis=1)}


def mixed(images):
    """Tokens that see several patches, in two layers."""
    patches = input_patches(images, GRID)
    mixing = np.random.default_rng(5).normal(size=(7, 6)).astype("float32")
    tokens = tf.einsum("tp,epc->etc", mixing, patches)
    return {"one": tokens, "two": tf.sin(tokens[:, ::-1])[..., :5]}


def test_patches_are_the_pixels_of_their_place(rng):
    images = noise(rng, 3)
    patches = input_patches(images, GRID).numpy()
    assert patches.shape == (3, 6, 4 * 4 * 2)
    np.testing.assert_array_equal(patches[:, 4], images[:, 4:8, 4:8].reshape(3, -1))


def test_copies_of_patches_are_found_at_their_own_place(rng):
    result = localization(copied, noise(rng, 256), GRID)
    assert result.dims == ("layer", "token", "row", "column") and result.shape == (1, 7, 2, 3)
    for token in result.token.values[1:]:
        own = result.sel(layer="copy", token=token)
        place = int(own.token_row), int(own.token_column)
        assert GRID.prefix + place[0] * GRID.columns + place[1] == token
        assert np.unravel_index(own.values.argmax(), own.shape) == place
        assert own.values[place] == pytest.approx(1, abs=1e-5)
        assert np.delete(own.values.ravel(), token - 1).max() < 0.1
    assert np.isnan(result.token_row[0]) and np.isnan(result.token_column[0])


@pytest.mark.usefixtures("in_graphs")
def test_equals_the_float64_oracle(rng):
    images = noise(rng, 48)
    data = tf.data.Dataset.from_tensor_slices(images).batch(16)
    result = localization(mixed, data, GRID)
    patches = np.asarray(input_patches(images, GRID))
    for layer, tokens in mixed(images).items():
        expected = [
            [minibatch_cka(np.asarray(tokens[:, t]), patches[:, p], 16) for p in range(6)]
            for t in range(7)
        ]
        actual = result.sel(layer=layer).values.reshape(7, 6)
        np.testing.assert_allclose(actual, expected, atol=1e-4)
    assert result.attrs["examples"] == 48 and result.attrs["batch_size"] == 16
    some = localization(mixed, data, GRID, tokens=(0, 5))
    xr.testing.assert_allclose(some, result.sel(token=[0, 5]), atol=1e-6)


def test_places_of_maps_are_tokens(rng):
    images = noise(rng, 64, TokenGrid(3, 2, 0, 4))

    def features(batch):
        return {"map": tf.nn.avg_pool2d(batch, 2, 2, "VALID")}

    result = localization(features, images, tokens=[23])
    assert result.shape == (1, 1, 6, 4) and result.attrs["stride"] == 2
    assert (result.token_row.item(), result.token_column.item()) == (5, 3)
    assert np.unravel_index(result.values[0, 0].argmax(), (6, 4)) == (5, 3)


def test_constant_patches_are_missing_and_counted(rng):
    images = noise(rng, 64)
    images[:, :4, :4] = 0.3
    images[:, 4:, 8:] = 0.3
    images[[5, 40], 4:, 8:] += 1  # in one image of each batch
    data = tf.data.Dataset.from_tensor_slices(images).batch(32)
    result = localization(lambda x: {"one": mixed(x)["one"]}, data, GRID)
    assert result.attrs["constant_patches"] == 2
    missing = np.zeros((2, 3), bool)
    missing[0, 0] = missing[1, 2] = True
    np.testing.assert_array_equal(np.isnan(result[0]), np.broadcast_to(missing, (7, 2, 3)))


def test_a_model_knows_its_grid(rng):
    vit = vit_tf.ViT((16, 24, 3), 8, 2, 2, 8, 16, 5)
    features = vit_tf.submodel(vit, "block*/mlp/sum")
    images = rng.normal(size=(16, 16, 24, 3)).astype("float32")
    xr.testing.assert_identical(
        localization(features, images), localization(features, images, vit.token_grid)
    )


def still(batch):
    return {"block00": mixed(batch)["one"] * np.eye(7)[:, [3]].astype("float32")}


def broken(batch):
    return mixed(batch) | {"broken": mixed(batch)["one"] * np.nan}


@pytest.mark.parametrize(
    ("features", "arguments", "words"),
    [
        (still, {}, r"constant token: block00 \(token 0\)"),
        (broken, {}, "finite.*broken"),
        (mixed, {"tokens": [7]}, r"from 0 to 6.*\[7\]"),
        (mixed, {"tokens": []}, "tokens from 0 to 6"),
        (mixed, {"grid": TokenGrid(3, 2, 1, 4)}, "tile the images.*8 x 12"),
        (mixed, {"grid": TokenGrid(3, 2, 0, 4)}, "'one' of shape"),
        (mixed, {"grid": None}, "on a grid"),
        (
            lambda x: {"a": x, "b": x[:, ::2, ::2]},
            {"grid": None},
            "different token grids.*'a'.*'b'",
        ),
        (lambda x: {"pooled": x[:, 0, 0]}, {}, "'pooled' of shape"),
        (mixed, {"images": noise(np.random.default_rng(0), 3)}, "at least 4 images.*a batch of 3"),
        (mixed, {"images": np.full((16, 8, 12, 2), np.nan)}, "finite.*image 0"),
    ],
)
def test_errors(rng, features, arguments, words):
    with pytest.raises(ValueError, match=words):
        localization(features, **{"images": noise(rng, 16), "grid": GRID} | arguments)
