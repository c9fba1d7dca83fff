"""Outlier tokens: none in Gaussians, planted ones, and what is known of their roles."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy.stats import chi2

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.flow.outliers import cross_validated, norm_threshold, second_mode

pytestmark = pytest.mark.usefixtures("without_graphs")

GRID = TokenGrid(4, 4, prefix=1, stride=4)
SPECTRA = {
    "1": [1.0],
    "2": [1.0, 1.0],
    "3": [1.0] * 3,
    "16": [1.0] * 16,
    "one large": [1.0, *[0.05] * 64],
    "slow decay": 1 / np.arange(1.0, 40.0),
    "two large": [1.0, 0.9, *[0.1] * 30],
}


@pytest.mark.parametrize(("count", "repeats"), [(64, 400), (1024, 80)])
@pytest.mark.parametrize("spectrum", SPECTRA.values(), ids=SPECTRA)
def test_gaussians_of_any_spectrum_have_outliers_as_rarely_as_the_level_says(
    spectrum, count, repeats
):
    rng = np.random.default_rng(len(spectrum) + count)
    level = 0.05
    norms = np.sqrt(rng.chisquare(1, (repeats, count, len(spectrum))) @ np.array(spectrum))
    found = sum(x.max() > norm_threshold(x, level) for x in norms)
    # Three binomial standard errors above the level.
    assert found <= repeats * level + 3 * np.sqrt(repeats * level * (1 - level))


def test_the_level_is_not_far_from_exact_for_one_dimension():
    """With many tokens, where the margin for the quantiles' own error vanishes."""
    rng = np.random.default_rng(0)
    norms = np.abs(rng.normal(size=(200, 20_000)))
    found = sum(x.max() > norm_threshold(x, 0.5) for x in norms)
    assert 40 <= found <= 110


def test_threshold_is_the_extrapolated_quantile():
    """On exact quantiles of the chi-squared distribution it is that of the level."""
    count = 100_000
    norms = np.sqrt(chi2.ppf((np.arange(count) + 0.5) / count, 1))
    exact = np.sqrt(chi2.isf(0.01 / count, 1))
    assert exact < norm_threshold(norms, 0.01) < 1.02 * exact


def test_the_smallest_outlier_has_twice_the_median_norm():
    norms = np.full(1000, 3.0)
    norms[:5] = 5.9
    assert norm_threshold(norms, 0.01) == 6


LONG_TAILS = {
    "normal": lambda rng, size: np.abs(rng.normal(size=size)),
    "lognormal 0.5": lambda rng, size: np.exp(0.5 * rng.normal(size=size)),
    "lognormal 1": lambda rng, size: np.exp(rng.normal(size=size)),
    "Cauchy": lambda rng, size: np.abs(rng.standard_cauchy(size=size)),
    "images": lambda rng, size: np.exp(
        0.5 * rng.normal(size=(size[0], 1)) + 0.1 * rng.normal(size=size)
    ),
}


@pytest.mark.parametrize("tail", LONG_TAILS)
@pytest.mark.parametrize("size", [(40, 16), (200, 64)])
def test_a_long_tail_with_one_mode_holds_no_outliers(rng, tail, size):
    level, repeats = 0.05, 100
    found = sum(
        np.isfinite(second_mode(LONG_TAILS[tail](rng, size), level)) for _ in range(repeats)
    )
    assert found <= repeats * level


@pytest.mark.parametrize("factor", [2.5, 3, 10])
@pytest.mark.parametrize("share", [0.02, 0.1, 0.2])
def test_a_second_mode_begins_between_ordinary_and_planted_tokens(rng, factor, share):
    norms = np.sqrt(rng.chisquare(32, size=(200, 64)))
    is_planted = rng.random(norms.shape) < share
    start = second_mode(np.where(is_planted, factor, 1) * norms, 0.01 / 12)
    assert norms[~is_planted].max() * 0.8 < start < np.median(factor * norms[is_planted])
    # A few images show none.
    assert second_mode(np.where(is_planted, factor, 1)[:10] * norms[:10], 0.01 / 12) == np.inf


def planted(rng, images=40, share=0.1, factor=10.0, channels=32):
    """Tokens (example, token, channel), and which spatial ones are `factor` times as long."""
    tokens = rng.normal(size=(images, GRID.num_tokens, channels))
    is_planted = rng.random((images, GRID.num_spatial)) < share
    tokens[:, GRID.prefix :] *= np.where(is_planted, factor, 1.0)[..., None]
    return tokens.astype("float32"), is_planted


def test_planted_outliers_are_found_with_the_attention_that_they_receive(rng):
    tokens, is_planted = planted(rng)
    plain = rng.normal(size=tokens.shape).astype("float32")
    weights = rng.random((40, 2, GRID.num_tokens, GRID.num_tokens))
    weights[..., GRID.prefix :] += 5 * is_planted[:, None, None]
    weights /= weights.sum(axis=-1, keepdims=True)
    layers = {"a": plain, "b": tokens, "c/weights": weights.astype("float32"), "d": tokens[::-1]}
    flat = np.concatenate([x.reshape(40, -1) for x in layers.values()], axis=1)

    def features(rows):
        parts = tf.split(rows, [x[0].size for x in layers.values()], axis=1)
        shapes = [x.shape[1:] for x in layers.values()]
        return {
            name: tf.reshape(part, (-1, *shape))
            for name, part, shape in zip(layers, parts, shapes, strict=True)
        }

    data = tf.data.Dataset.from_tensor_slices(flat).batch(16)
    result = analysis.outlier_tokens(features, data, grid=GRID)
    assert result["layer"].values.tolist() == ["a", "b", "d"]
    shares = is_planted.mean(axis=1)
    np.testing.assert_allclose(result["share"], [0, shares.mean(), shares.mean()])
    error = shares.std(ddof=1) / np.sqrt(40)
    np.testing.assert_allclose(result["stderr"], [0, error, error])
    np.testing.assert_allclose(result["images"][1], is_planted.any(axis=1).mean())
    norms = np.linalg.norm(tokens[:, 1:], axis=-1)
    ratio = np.median(norms[is_planted]) / np.median(norms[~is_planted])
    np.testing.assert_allclose(result["norm_ratio"], [np.nan, ratio, ratio], rtol=1e-5)
    # The weights read the layer before them.
    received = weights.mean(axis=(1, 2)) * GRID.num_tokens
    expected = []
    for mask in (is_planted, ~is_planted):
        some = mask.any(axis=1)
        means = [x[1:][m].mean() for x, m in zip(received[some], mask[some], strict=True)]
        expected.append(np.mean(means))
    expected.append(received[:, 0].mean())
    np.testing.assert_allclose(result["attention"].sel(layer="b"), expected, rtol=1e-5)
    assert result["attention"].sel(layer=["a", "d"]).isnull().all()
    assert result["attention_stderr"].sel(layer="b").notnull().all()
    assert analysis.plot(result).panels.shape == (3,)


def test_refuses_what_has_no_norms_to_compare(rng):
    tokens, _ = planted(rng)
    with pytest.raises(ValueError, match="level"):
        analysis.outlier_tokens({"a": tokens}, grid=GRID, level=1.0)
    with pytest.raises(ValueError, match="at a"):
        analysis.outlier_tokens({"a": tokens * np.nan}, grid=GRID)
    with pytest.raises(ValueError, match="token grid of the model is unknown"):
        analysis.outlier_tokens({"a": tokens})
    with pytest.raises(ValueError, match="16 tokens"):
        analysis.outlier_tokens({"a": tokens[:1, :10]}, grid=TokenGrid(3, 3, 1, 4))


def test_a_probe_reads_what_is_there_and_nothing_else(rng):
    labels = rng.integers(4, size=400)
    x = rng.normal(size=(400, 6))
    assert abs(cross_validated(x, labels, 0).mean() - 0.25) < 3 * np.sqrt(0.25 * 0.75 / 400)
    # Scale and offset of a channel do not matter.
    x[:, :4] += 6 * np.eye(4)[labels]
    np.testing.assert_array_equal(
        cross_validated(x, labels, 0), cross_validated(1000 * x - 7, labels, 0)
    )
    assert cross_validated(x, labels, 0).mean() > 0.95
    wide = np.concatenate([x, rng.normal(size=(400, 340))], axis=1)
    assert cross_validated(wide, labels, 0).mean() > 0.6


@pytest.fixture(scope="module")
def model():
    """An untrained ViT of 4 x 4 patches."""
    keras.utils.set_random_seed(0)
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16}
    return vit_tf.ViT((16, 16, 3), 4, **sizes, num_classes=3)


def test_roles_of_outliers(model, rng):
    """One patch is bright, at a random place; its brightness in a channel is the class."""
    labels = rng.integers(3, size=120)
    images = rng.normal(size=(120, 16, 16, 3)).astype("float32") * 0.02
    places = rng.integers(16, size=120)
    for image, label, place in zip(images, labels, places, strict=True):
        row, column = divmod(place, 4)
        image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4, label] = 1
    features = vit_tf.submodel(model, "embedding", "logits")
    position = model.position_embedding
    assert np.abs(position).max() < 1
    result = analysis.outlier_roles(features, (images, labels))
    found = analysis.outlier_tokens(vit_tf.submodel(model, "embedding"), images)
    np.testing.assert_allclose(found["share"], 1 / 16)
    one = result.sel(layer="embedding")
    probes = one["probe_accuracy"]
    # Noise of 0.02 in the other patches hides neither class nor position of the bright one.
    assert probes.sel(content="class", tokens="outlier") == 1
    assert probes.sel(content="class", tokens="ordinary") < 0.5
    difference = probes.sel(tokens="outlier") - probes.sel(tokens="ordinary")
    np.testing.assert_allclose(one["probe_difference"], difference)
    np.testing.assert_allclose(one["chance"].sel(content="class"), np.bincount(labels).max() / 120)
    # Replacing the outliers by zero is the model without them.
    tokens = vit_tf.submodel(model, "embedding")(images)["embedding"].numpy()
    tokens[np.arange(120), 1 + places] = 0
    edit = {"embedding": vit_tf.edits.constant(tokens)}
    without = vit_tf.intervene(model, edit, "logits")(images)["logits"]
    before = tf.nn.log_softmax(model(images))
    change = tf.reduce_sum(tf.exp(before) * (before - tf.nn.log_softmax(without)), axis=1)
    zero = one["output_change"].sel(tokens="outlier", replacement="zero")
    np.testing.assert_allclose(zero, tf.reduce_mean(change), rtol=1e-4, atol=1e-7)
    assert result["output_change"].sel(tokens="ordinary").notnull().all()
    assert analysis.plot(result).panels.shape == (3,)
    fed = analysis.outlier_roles(features, (images, labels), outliers=found)
    np.testing.assert_allclose(fed["probe_accuracy"], result["probe_accuracy"])


@pytest.mark.slow
def test_without_outliers_there_are_no_roles(model, rng):
    images = rng.normal(size=(24, 16, 16, 3)).astype("float32") * 0.1
    result = analysis.outlier_roles(model, (images, np.arange(24) % 3))
    assert all(result[name].isnull().all() for name in result.data_vars)
