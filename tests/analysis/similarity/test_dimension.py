"""Intrinsic dimension and effective rank of distributions whose dimension is known."""

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.similarity.dimension import (
    MEASURES,
    NUM_GROUPS,
    covariance_eigenvalues,
    decimated_two_nn,
    layer_dimensions,
    nearest_distances,
    two_nn,
)


def measure(rows, **options):
    """The dimension of rows (example, channel), by measure."""
    result = analysis.intrinsic_dimension({"layer": np.asarray(rows, "float32")}, **options)
    return result.isel(layer=0)


def linearly_embedded(x, rng, channels=40):
    """Points at other coordinates of a larger space, by an isometry."""
    return x @ np.linalg.qr(rng.normal(size=(channels, x.shape[1])))[0].T


@pytest.mark.parametrize(
    ("shape", "dimension"),
    [
        ("hypercube", 2),
        ("sphere", 5),
        *(pytest.param("hypercube", n, marks=pytest.mark.slow) for n in (1, 5)),
        *(pytest.param("sphere", n, marks=pytest.mark.slow) for n in (1, 2)),
    ],
)
def test_two_nn_is_the_dimension_of_cubes_and_spheres(rng, shape, dimension):
    x = rng.uniform(size=(2000, dimension))
    if shape == "sphere":
        x = rng.normal(size=(2000, dimension + 1))
        x /= np.linalg.norm(x, axis=1, keepdims=True)
    result = measure(linearly_embedded(x, rng)).sel(measure="two_nn")
    # A ratio is exponential with rate d: the standard error of d is d / sqrt(n), or a little more.
    error = float(result.stderr)
    assert 0.5 < error / (dimension / np.sqrt(1800)) < 3
    # Neighbours beyond a face of the cube are missing, by which 5 dimensions look like 4.7.
    bias = {5: 0.4}.get(dimension, 0.0) if shape == "hypercube" else 0.0
    assert abs(float(result.dimension) - dimension) < 3.5 * error + bias


def test_a_curved_sheet_has_two_dimensions_and_more_linear_ones(rng):
    angle, height = rng.uniform(0, 4 * np.pi, 1500), rng.uniform(size=1500)
    sheet = np.stack([angle * np.cos(angle), angle * np.sin(angle), 8 * height], axis=1)
    result = measure(sheet).dimension
    assert abs(float(result.sel(measure="two_nn")) - 2) < 0.25
    assert float(result.sel(measure="effective_rank")) > 2.5


@pytest.mark.parametrize(("examples", "dimension"), [(400, 20), (100, 50)])
def test_linear_dimensions_of_isotropic_gaussians(rng, examples, dimension):
    results = [layer_dimensions(rng.normal(size=(examples, dimension)))[0] for _ in range(20)]
    _, ratios, ranks = np.transpose(results)
    expected = dimension * examples / (examples + dimension)
    np.testing.assert_allclose(np.mean(ratios), expected, rtol=0.02)
    assert np.mean(ratios) < np.mean(ranks) < dimension


def test_values_equal_definitions_in_float64(rng):
    x = rng.normal(size=(60, 8)).astype("float32") * np.arange(1, 9, dtype="float32")
    result = measure(x).dimension
    x = x.astype("float64")
    scales = np.linalg.svd(x - x.mean(axis=0), compute_uv=False)
    shares = scales / scales.sum()
    expected = np.exp(-(shares * np.log(shares)).sum())
    np.testing.assert_allclose(result.sel(measure="effective_rank"), expected, rtol=1e-10)
    expected = (scales**2).sum() ** 2 / (scales**4).sum()
    np.testing.assert_allclose(result.sel(measure="participation_ratio"), expected, rtol=1e-10)
    distances = np.linalg.norm(x[:, None] - x, axis=-1)
    first, second = np.sort(distances, axis=1)[:, 1:3].T
    logs = np.sort(np.log(second / first))
    expected = 53 / (logs[:54].sum() + 6 * logs[53])
    np.testing.assert_allclose(result.sel(measure="two_nn"), expected, rtol=1e-10)


def test_values_without_a_group_are_those_of_the_other_images(rng):
    x = rng.normal(size=(200, 6))
    group = np.arange(200) % 10
    _, rest, _ = layer_dimensions(x)
    others, _, _ = layer_dimensions(x[group != 3])
    np.testing.assert_allclose(rest[3, 0], others[0], rtol=1e-12)
    # Those of eigenvalues are of first order; an eigenvector of its own is a group's exactly.
    np.testing.assert_allclose(rest[3], others, rtol=0.01)
    apart = np.zeros((60, 3))
    apart[:, 0], apart[::10, 1], apart[3::10, 2] = np.arange(60) % 2, 1, [1, 1, -1, -1, 2, -2]
    eigenvalues, without = covariance_eigenvalues(apart - apart.mean(axis=0), np.arange(60) % 10)
    np.testing.assert_allclose(without[3].min(), 0, atol=1e-12)
    assert eigenvalues.shape == (3,) and without.shape == (10, 3)


def test_the_interval_covers_the_mean_of_repeated_draws():
    rng = np.random.default_rng(1)
    draws = [layer_dimensions(rng.normal(size=(200, 4)) * [4, 3, 2, 1]) for _ in range(120)]
    values = np.array([value for value, *_ in draws])
    rest = np.array([rest for _, rest, _ in draws])
    errors = np.sqrt((NUM_GROUPS - 1) * rest.var(axis=1))
    # Student's quantile for 10 groups; 120 draws show 95 % as 89 to 99 %.
    covered = (abs(values - values.mean(axis=0)) < 2.262 * errors).mean(axis=0)
    assert (covered >= 0.88).all(), dict(zip(MEASURES, covered, strict=True))


@pytest.mark.parametrize("scale", [1e-18, 1.0, 1e18])
def test_neither_scale_shift_nor_rotation_matters(rng, scale):
    x = rng.normal(size=(80, 5)) * [5, 4, 3, 2, 1]
    expected = measure(x).dimension
    moved = measure(scale * (linearly_embedded(x, rng, 12) + 3)).dimension
    np.testing.assert_allclose(moved, expected, rtol=1e-3)


def test_duplicates_are_left_out_of_two_nn_and_counted(rng):
    x = rng.normal(size=(100, 3))
    result = measure(np.concatenate([x, x[:7]]))
    assert result.attrs["duplicates"] == 14
    assert np.isfinite(result.dimension).all()
    points, groups = np.array([[0.0], [1.0], [3.0], [7.0], [1.0]]), np.array([0, 1, 0, 1, 2])
    nearest, is_repeat = nearest_distances(points, groups)
    np.testing.assert_array_equal(nearest[0, :3], [[3, np.inf], [1, 7], [1, np.inf]])
    assert np.isinf(nearest[:, 3:]).all() and is_repeat.tolist() == [False] * 4 + [True]
    assert two_nn(np.array([[1, 2.0], [1, 2.0], [0, 1.0]])) == pytest.approx(0.5 / np.log(2))


@pytest.mark.parametrize("copies", [20, 80, 200])
def test_two_nn_with_duplicates_is_that_of_the_distinct_rows(rng, copies):
    """TwoNN in float64, with the largest tenth of the ratios censored."""
    x = rng.normal(size=(400, 5)).astype("float32")
    distances = np.sqrt(((x[:, None].astype(float) - x[None]) ** 2).sum(axis=-1))
    np.fill_diagonal(distances, np.inf)
    first, second = np.sort(distances, axis=1)[:, :2].T
    logs = np.sort(np.log(second / first))
    expected = 359 / (logs[:360].sum() + 40 * logs[359])
    result = measure(np.concatenate([x, x[:copies]]))
    np.testing.assert_allclose(result.dimension.sel(measure="two_nn"), expected, rtol=1e-5)
    assert float(result.stderr.sel(measure="two_nn")) < 1


@pytest.mark.slow
def test_layers_of_models_are_pooled_as_asked(rng):
    model = vit_tf.ViT((16, 24, 3), 8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=8)
    images = rng.uniform(-1, 1, (40, 16, 24, 3)).astype("float32")
    features = vit_tf.submodel(model, "block01/mlp/sum")
    data = tf.data.Dataset.from_tensor_slices(images).batch(12)
    tokens = np.asarray(features(images)["block01/mlp/sum"])
    for word, rows in (("cls", tokens[:, 0]), ("spatial", tokens[:, 1:].mean(axis=1))):
        result = analysis.intrinsic_dimension(model, data, word, layers="block01/mlp/sum")
        np.testing.assert_allclose(result.dimension.isel(layer=0), measure(rows).dimension, 2e-3)
    maps = analysis.intrinsic_dimension(lambda x: {"map": x}, images)
    np.testing.assert_allclose(
        maps.dimension.isel(layer=0), measure(images.mean(axis=(1, 2))).dimension, rtol=1e-3
    )


@pytest.mark.parametrize(
    ("rows", "named"),
    [
        (np.ones((30, 4)), "fewer at layer"),
        (np.random.default_rng(0).normal(size=(19, 4)), "Received: 19"),
        (np.full((30, 4), np.nan), "infinity at layer"),
    ],
)
def test_layers_without_a_dimension_are_refused(rows, named):
    with pytest.raises(ValueError, match=named):
        measure(rows)


def test_fewer_images_show_the_sheet_below_its_noise(rng):
    """Noise of 0.01 around a sheet in 50 dimensions: the more images, the more of it is seen."""
    sheet = linearly_embedded(rng.uniform(size=(1600, 2)), rng, channels=50)
    noisy = sheet + 0.01 * rng.normal(size=sheet.shape)
    result = measure(noisy)
    by_images = result["two_nn_by_images"]
    assert by_images["images"].values.tolist() == [1600, 800, 400, 200]
    assert (np.diff(by_images) < 0).all() and by_images[0] > 15 > 12 > by_images[-1]
    np.testing.assert_allclose(by_images[0], result["dimension"].sel(measure="two_nn"), rtol=1e-6)
    clean = measure(sheet)["two_nn_by_images"]
    np.testing.assert_allclose(clean, 2, atol=0.3)
    # Of subsets, it is the mean of their own estimates.
    halves = [measure(noisy[start::2])["dimension"].sel(measure="two_nn") for start in (0, 1)]
    np.testing.assert_allclose(decimated_two_nn(noisy, 2), np.mean(halves), rtol=1e-4)
