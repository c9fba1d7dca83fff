import numpy as np
import pytest
import tensorflow as tf
from oracles import randomize

import vit_tf
from vit_tf import TokenGrid, analysis


def test_cosines_of_all_pairs_by_loops(rng):
    vit = vit_tf.ViT((8, 12, 3), 4, 2, 2, 8, 16, 5)
    randomize(vit)
    images = rng.uniform(-1, 1, size=(3, 8, 12, 3)).astype("float32")
    features = vit_tf.submodel(vit, "block*/mlp/sum")
    result = analysis.token_similarity(features, images)
    for layer, values in features(images).items():
        tokens = values.numpy().astype(float)[:, 1:]
        for a, t, b, u in np.ndindex(3, 6, 3, 6):
            x, y = tokens[a, t], tokens[b, u]
            expected = x @ y / np.sqrt((x @ x) * (y @ y))
            actual = float(result.sel(layer=layer)[a, t, b, u])
            assert actual == pytest.approx(expected, abs=1e-5)


def test_a_shifted_image_corresponds_to_its_shift(rng):
    """Patches as their own features: what was in column c is found in column c + 1."""
    image = rng.normal(size=(8, 16, 3)).astype("float32")
    images = np.stack([image, np.roll(image, 4, axis=1)])

    def features(batch):
        return {"patches": tf.nn.space_to_depth(batch, 4)}

    result = analysis.token_similarity(features, images, TokenGrid(2, 4, 0, 4))
    best = result.values[0, 0, :, 1].argmax(axis=-1)
    np.testing.assert_array_equal(best, [1, 2, 3, 0, 5, 6, 7, 4])
    np.testing.assert_allclose(result.values[0, 0, np.arange(8), 1, best], 1, atol=1e-6)


def test_tokens_of_zeros_have_no_direction():
    images = np.zeros((1, 4, 4, 2), "float32")
    images[0, 1] = 3

    def features(batch):
        return {"pixels": batch}

    result = analysis.token_similarity(features, images, TokenGrid(4, 4, 0, 1)).values[0, 0, :, 0]
    existing = np.zeros(16, bool)
    existing[4:8] = True
    np.testing.assert_array_equal(np.isfinite(result), existing[:, None] & existing)
    np.testing.assert_allclose(result[np.ix_(existing, existing)], 1)


def test_tokens_that_are_not_finite_are_named():
    def features(images):
        return {"worse": images * np.inf}

    with pytest.raises(ValueError, match="NaN or infinity at worse"):
        analysis.token_similarity(features, np.ones((1, 4, 4, 3), "float32"))
