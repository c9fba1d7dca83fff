"""Rotary positions against complex numbers in float64, and what follows from them."""

import numpy as np
import pytest
from archive_files import refuses

import vit_tf
from vit_tf import TokenGrid
from vit_tf.models.transformer import Rotation, rotary_angles, rotate

SIZES = {"patch_size": 4, "num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 24}
TINY = SIZES | {"num_classes": 3, "registers": 4}


@pytest.fixture(scope="module")
def model():
    rng = np.random.default_rng(0)
    model = vit_tf.RotaryViT((12, 20, 3), **TINY, layer_scale=1.0)
    model.set_weights([0.5 * rng.normal(size=w.shape) for w in model.get_weights()])
    return model


def pictures(*shape):
    return np.random.default_rng(1).normal(size=(2, *shape, 3)).astype("float32")


def turned(x, rows, columns):
    """Channels `k` and `k + D / 2` as one complex number, turned by its angle."""
    half = x.shape[-1] // 2
    for place in range(rows * columns):
        row, column = divmod(place, columns)
        y, x_ = 2 * (row + 0.5) / rows - 1, 2 * (column + 0.5) / columns - 1
        for k in range(half):
            quarter = half // 2
            at, wave = (y, k) if k < quarter else (x_, k - quarter)
            angle = 2 * np.pi * at / 100 ** (wave / quarter)
            pair = x[..., place, k] + 1j * x[..., place, k + half]
            pair = pair * np.exp(1j * angle)
            x[..., place, k], x[..., place, k + half] = pair.real, pair.imag
    return x


def test_rotation_is_that_of_complex_numbers():
    grid = TokenGrid(3, 5, 2, 4)
    x = np.random.default_rng(2).normal(size=(2, 3, 17, 8))
    actual = np.asarray(rotate(x.astype("float32"), Rotation(grid, 8)(x[0, 0])))
    expected = x.copy()
    expected[..., 2:, :] = turned(x[..., 2:, :].copy(), 3, 5)
    np.testing.assert_allclose(actual, expected, atol=2e-6)
    np.testing.assert_array_equal(actual[..., :2, :], x[..., :2, :].astype("float32"))


def test_scores_depend_on_how_far_places_are_apart():
    """Of one query and one key at every place of a grid, all pairs one row apart score alike."""
    angles = rotary_angles(TokenGrid(4, 4, 0, 1), 8)
    rng = np.random.default_rng(3)
    q, k = rng.normal(size=(2, 4, 2)) @ [1, 1j]
    queries, keys = q * np.exp(1j * angles), k * np.exp(1j * angles)
    scores = (queries[:, None] * keys[None].conj()).real.sum(-1).reshape(4, 4, 4, 4)
    for r, c in ((0, 1), (1, 2), (2, 3)):
        np.testing.assert_allclose(scores[r, c, r + 1, c - 1], scores[0, 1, 1, 0])
    assert abs(scores[0, 0, 1, 0] - scores[0, 0, 0, 1]) > 1e-3


def test_weights_are_after_rotation_and_the_model_is_blind_without_it(model):
    images = pictures(12, 20)
    taps = model.intermediates(images)
    block = model.blocks[0]
    x = np.asarray(taps["block00/attention/norm"], "float64")
    heads = []
    for layer in (block.query, block.key):
        y = x @ layer.kernel.numpy() + (0 if layer.bias is None else layer.bias.numpy())
        y = y.reshape(2, 20, 2, 8).swapaxes(1, 2)
        heads.append(np.concatenate([y[:, :, :5], turned(y[:, :, 5:].copy(), 3, 5)], axis=2))
    scores = heads[0] @ heads[1].swapaxes(2, 3) / np.sqrt(8)
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    weights /= weights.sum(-1, keepdims=True)
    np.testing.assert_allclose(taps["block00/attention/weights"], weights, atol=2e-6)
    # The mean patch of a picture and of its mirror image is the same but for the places.
    mirrored = images.reshape(2, 3, 4, 5, 4, 3)[:, :, :, ::-1].reshape(images.shape)
    assert np.abs(model(mirrored) - taps["logits"]).max() > 1e-3
    config = model.get_config() | {"position_type": "sincos"}
    assert config.pop("key_bias") is False
    plain = vit_tf.ViT.from_config(config)
    plain.embedding.positions.assign(np.zeros_like(plain.embedding.positions))
    named = {w.path.partition("/")[2]: w for w in model.weights}
    for weight in plain.weights:
        if (path := weight.path.partition("/")[2]) in named:
            weight.assign(named[path])
    np.testing.assert_allclose(plain(mirrored), plain(images), atol=1e-5)


def test_at_any_size_nothing_is_resampled(model):
    larger = vit_tf.at_resolution(model, (16, 8))
    assert larger.token_grid == TokenGrid(4, 2, 5, 4) and larger.position_embedding is None
    for old, new in zip(model.get_weights(), larger.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    assert np.isfinite(larger(pictures(16, 8))).all()


def test_odd_heads_are_refused():
    with refuses("6 channels of a head"):
        vit_tf.RotaryViT((8, 8, 3), **TINY | {"hidden_dim": 12})
