import itertools

import numpy as np
import pytest
import tensorflow as tf

from vit_tf import TokenGrid, analysis
from vit_tf.features.noise import PRIME, content_key


class Features:
    """Two layers, with a grid; running them is an error."""

    name = "model_taps"
    token_grid = TokenGrid(2, 2, 1, 4)

    def __call__(self, images):
        tokens = tf.numpy_function(self._fail, [images], tf.float32)
        return {
            "tokens": tf.ensure_shape(tokens, (None, 5, 64)),
            "map": tf.repeat(images, 7, axis=-1),
        }

    @staticmethod
    def _fail(images):
        raise AssertionError("the features were run")


@pytest.fixture
def images(rng):
    return rng.normal(size=(64, 8, 8, 3)).astype("float32")


@pytest.fixture
def noise():
    return analysis.engine.gaussian_like(Features(), seed=4)


def test_it_has_the_shapes_of_the_features_and_normal_values(images, noise):
    taps = noise(images)
    assert {tap: x.shape.as_list() for tap, x in taps.items()} == {
        "tokens": [64, 5, 64],
        "map": [64, 8, 8, 21],
    }
    assert noise.facts.grid == Features.token_grid and noise.name == "model as noise"
    values = taps["map"].numpy().ravel()  # 86,016 of them: a standard error of 0.0034
    assert abs(values.mean()) < 0.015 and abs(values.std() - 1) < 0.01
    assert abs((values**4).mean() - 3) < 0.15
    inside = [(np.abs(values) < bound).mean() for bound in (1, 2)]
    np.testing.assert_allclose(inside, [0.6827, 0.9545], atol=0.008)


def test_vectors_are_distributed_as_means_over_tokens(images, noise):
    means = noise(images)["map"].numpy().mean(axis=(1, 2)) * 8  # of 64 positions
    vectors = analysis.engine.gaussian_like(Features(), seed=4, vectors=True)(images)
    assert {tap: x.shape.as_list() for tap, x in vectors.items()} == {
        "tokens": [64, 64],
        "map": [64, 21],
    }
    for values in (means, vectors["map"].numpy(), vectors["tokens"].numpy()):
        assert abs(values.mean()) < 0.1 and abs(values.std() - 1) < 0.06
        assert np.abs(np.corrcoef(values.T) - np.eye(values.shape[1])).max() < 0.6


def test_values_are_independent_across_examples_taps_and_channels(images, noise):
    tokens, maps = (noise(images)[tap].numpy().reshape(64, -1) for tap in ("tokens", "map"))
    for rows in (tokens, tokens.T, np.concatenate([tokens[:, :320], maps[:, :320]])):
        correlation = np.corrcoef(rows)
        off = correlation[~np.eye(len(rows), dtype=bool)]
        assert abs(off.mean()) < 0.01 and np.abs(off).max() < 6 / np.sqrt(rows.shape[1])


def test_an_image_has_its_noise_wherever_it_is(images, noise):
    whole = noise(images)
    order = np.random.default_rng(1).permutation(64)[:9]
    some = tf.function(noise)(images[order])
    for tap, values in whole.items():
        np.testing.assert_array_equal(some[tap], values.numpy()[order])
    other = analysis.engine.gaussian_like(Features(), seed=5)(images)
    assert not np.isclose(other["tokens"], whole["tokens"]).all(axis=(1, 2)).any()


def test_images_of_few_values_have_keys_of_their_own():
    factors = np.random.default_rng(0).integers(1, PRIME, (2 * 12, 2))
    keys = {
        tuple(content_key(tf.reshape(tf.constant(values, tf.float32), (2, 2, 3)), factors).numpy())
        for values in itertools.islice(itertools.product((0, 1), repeat=12), 0, 4096, 5)
    }
    assert len(keys) == 820
    minus = content_key(tf.constant(-0.0, shape=(2, 2, 3)), factors).numpy()
    assert tuple(minus) in keys  # that of zeros


@pytest.mark.slow
def test_it_knows_nothing_of_the_images(rng, images, noise):
    labels = rng.integers(0, 3, 64)
    coloured = images + np.eye(3, dtype="float32")[labels][:, None, None]
    data = (coloured[:32], labels[:32]), (coloured[32:], labels[32:])
    assert analysis.knn_accuracy(noise, *data, 3, (5,), "all")[..., 0].max() < 0.6
    both = tf.data.Dataset.from_tensor_slices((coloured, labels)).batch(16)
    assert np.abs(analysis.clustering(noise, both, 3, "all").ari).max() < 0.15
    cka = analysis.cka(noise, both).cka.values
    assert abs(cka[0, 1]) < 0.1 and cka[0, 0] == pytest.approx(1)

    def pixels(x):
        return {"pixels": x}

    assert analysis.knn_accuracy(pixels, *data, 3, (5,), "all")[0, 0, 0] > 0.9


def test_unknown_shapes_are_refused(images):
    def features(x):
        return {"ragged": tf.reshape(x, (tf.shape(x)[0], -1, 3 + 0 * tf.shape(x)[0]))}

    with pytest.raises(ValueError, match=r"Expected layer outputs of known shapes.*ragged"):
        analysis.engine.gaussian_like(features)(images)
