import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from probe_data import POOL, batches, clouds, sequences
from scipy.special import comb
from sklearn.cluster import KMeans

from vit_tf import TokenGrid, analysis

pytestmark = pytest.mark.usefixtures("without_graphs")

GRID = TokenGrid(2, 3, 1, 4)


def table(labels, clusters):
    """How many examples of each class are in each cluster, counted one by one."""
    counts = np.zeros((labels.max() + 1, clusters.max() + 1))
    for label, cluster in zip(labels, clusters, strict=True):
        counts[label, cluster] += 1
    return counts


def mutual_information(counts):
    """Normalised by the mean of both entropies."""
    p = counts / counts.sum()
    rows, columns = p.sum(1), p.sum(0)
    mutual = sum(p[i, j] * np.log(p[i, j] / rows[i] / columns[j]) for i, j in np.argwhere(p > 0))
    entropies = [-(q[q > 0] * np.log(q[q > 0])).sum() for q in (rows, columns)]
    return mutual / np.mean(entropies)


def adjusted_rand(counts):
    """Hubert and Arabie 1985, equation 5."""
    pairs = comb(counts, 2).sum()
    rows, columns = comb(counts.sum(1), 2).sum(), comb(counts.sum(0), 2).sum()
    expected = rows * columns / comb(counts.sum(), 2)
    return (pairs - expected) / ((rows + columns) / 2 - expected)


def scores(counts):
    """Purity, normalised mutual information and adjusted Rand index of a table."""
    purities = counts.max(0).sum() / counts.sum()
    return [purities, mutual_information(counts), adjusted_rand(counts)]


def assert_scores(result, expected):
    np.testing.assert_allclose([result[name] for name in ("purity", "nmi", "ari")], expected)


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("tokens", POOL)
def test_scores_are_those_of_the_tables_of_classes_and_clusters(rng, tokens):
    images, labels = clouds(rng, 120, 5, spread=1.0)
    result = analysis.clustering(sequences, batches((images, labels), 50), 4, tokens, 5, starts=3)
    for layer, x in (("tokens", images), ("cubes", images**3)):
        means = KMeans(4, n_init=3, random_state=5)
        counts = table(labels, means.fit_predict(POOL[tokens](x).astype(float)))
        assert_scores(result.sel(layer=layer), scores(counts))
        assert 0.2 < result.purity.sel(layer=layer).item() < 0.98
    assert result.attrs["tokens"] == tokens and result.attrs["clusters"] == 4


def test_separated_classes_are_clusters_for_every_seed(rng):
    result = analysis.clustering(lambda x: {"x": x[..., 0]}, clouds(rng, 100, 5, 6, 0.01), 5, "all")
    assert_scores(result, [[1]] * 3)
    data = clouds(rng, 100, 5, 6, 3.0)
    xr.testing.assert_identical(*(analysis.clustering(sequences, data, 7, seed=2) for _ in "ab"))


def test_masked_features_are_the_means_over_the_pixels(rng):
    tokens = rng.normal(size=(2, 7, 5)).astype("float32")
    masks = rng.uniform(size=(2, 3, 8, 12)) < 0.3
    masks[1, 2] = False
    drawn = tokens[:, 1:].reshape(2, 2, 3, 5).repeat(4, 1).repeat(4, 2)
    means = analysis.masked_features(tf.constant(tokens), tf.constant(masks), GRID)
    for example in range(2):
        for element in range(3 - example):
            expected = drawn[example][masks[example, element]].astype(float).mean(0)
            np.testing.assert_allclose(means[example, element], expected, atol=1e-6)
    assert np.isnan(means[1, 2]).all()
    soft = tf.constant([[[[0.5, 0.0, 0.0], [0.0, 0.25, 0.0]]]])
    mean = analysis.masked_features(tf.constant(tokens[:1]), soft, GRID)
    np.testing.assert_allclose(mean[0, 0], (2 * tokens[0, 1] + tokens[0, 5]) / 3, atol=1e-6)
    with pytest.raises(ValueError, match=r"masks of shape \(example, object, row, column\)"):
        analysis.masked_features(tf.constant(tokens), tf.constant(masks[:, 0]), GRID)


def objects(rng, count=12):
    """Images of two objects of one colour each on a grey that varies, their masks and labels."""
    colours = np.eye(3)
    images = np.repeat(rng.uniform(size=(count, 1, 1, 1)), 3, -1) * np.ones((1, 8, 12, 1))
    masks, labels = np.zeros((count, 3, 8, 12), bool), np.full((count, 3), -1)
    for index in range(count):
        for element, column in enumerate((0, 8)):
            masks[index, element, 4 * (index % 2) :][:4, column : column + 4] = True
            labels[index, element] = rng.integers(3)
            images[index][masks[index, element]] = colours[labels[index, element]]
    masks[:, 2] = True  # of no object
    return images.astype("float32"), masks, labels


def patch_means(images):
    patches = tf.reshape(images, (-1, 2, 4, 3, 4, 3))
    spatial = tf.reshape(tf.reduce_mean(patches, (2, 4)), (-1, 6, 3))
    return {"patches": tf.concat([tf.zeros_like(spatial[:, :1]), spatial], 1)}


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.slow
def test_objects_are_found_under_their_masks(rng):
    images, masks, labels = objects(rng)
    result = analysis.object_clustering(patch_means, batches((images, masks, labels), 5), 3, GRID)
    assert_scores(result, [[1]] * 3)
    facts = {name: result.attrs[name] for name in ("objects", "left_out", "examples", "classes")}
    assert facts == {"objects": 24, "left_out": 0, "examples": 12, "classes": 3}
    elsewhere = analysis.object_clustering(
        patch_means, (images, masks[:, :, ::-1], labels), 3, GRID
    )
    assert elsewhere.purity.item() < 0.8
    masks[2, 1] = False
    fewer = analysis.object_clustering(patch_means, (images, masks, labels), 3, GRID)
    assert (fewer.attrs["objects"], fewer.attrs["left_out"]) == (23, 1)


@pytest.mark.usefixtures("in_graphs")
def test_objects_fall_into_more_clusters_than_classes_on_demand(rng):
    """80 clusters, the number in the code behind Walmer et al. 2023, of the means under masks."""
    images, masks, labels = objects(rng, 60)
    images += 0.2 * rng.normal(size=images.shape).astype("float32")
    result = analysis.object_clustering(patch_means, (images, masks, labels), 80, GRID)
    means = [
        images[example][masks[example, element]].astype(float).mean(0)
        for example, element in np.ndindex(60, 2)
    ]
    wanted = np.array([labels[example, element] for example, element in np.ndindex(60, 2)])
    counts = table(wanted, KMeans(80, n_init=10, random_state=0).fit_predict(np.array(means)))
    assert_scores(result.isel(layer=0), scores(counts))
    assert result.attrs["clusters"] == 80 and result.attrs["classes"] == 3


@pytest.mark.parametrize(
    ("features", "tokens", "words"),
    [
        (sequences, "each", "tokens to be one of"),
        (lambda x: {"flat": 0 * x[..., 0]}, "all", "at least 3 distinct .*1 at flat"),
        (lambda x: {"bad": x[..., 0] * np.nan}, "all", "finite.*bad"),
    ],
)
def test_errors(rng, features, tokens, words):
    with pytest.raises(ValueError, match=words):
        analysis.clustering(features, clouds(rng, 20), 3, tokens)


@pytest.mark.parametrize(
    ("change", "grid", "words"),
    [
        (lambda masks: masks[:, 0], GRID, r"\(example, object, row, column\)"),
        (lambda masks: masks[:, :, :3], GRID, "2 x 3 tokens or 8 x 12 pixels"),
        (lambda masks: 2.0 * masks, GRID, r"\[0, 1\]"),
        (lambda masks: masks, None, "Expected grid= to be"),
    ],
)
def test_errors_of_masks(rng, change, grid, words):
    images, masks, labels = objects(rng)
    with pytest.raises(ValueError, match=words):
        analysis.object_clustering(patch_means, (images, change(masks), labels), 3, grid)
