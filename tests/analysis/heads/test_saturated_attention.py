"""Queries that attend to prefix tokens only are left out of every measurement, and counted."""

import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from attention_heads import (
    OBLONG,
    iou_by_loop,
    mean_of_known,
    patterns_by_loop,
    pixel_distances,
    places,
)
from tables import features_of, numbers

from vit_tf import analysis
from vit_tf.analysis import plots

pytestmark = pytest.mark.usefixtures("without_graphs")

SITE_TAPS = ("attention/skip", "attention/sum", "mlp/skip", "mlp/sum")
TAPS = [f"block{layer:02}/attention/weights" for layer in range(2)]
SITES = [f"block0{n}/{site}" for n in range(2) for site in SITE_TAPS]
EXAMPLES, HEADS, TOKENS = 5, 3, OBLONG.num_tokens
PLACES = np.array(places(OBLONG), float)
DISTANCES = pixel_distances(OBLONG)


@pytest.fixture
def lost(rng):
    """Which queries are saturated: bool of shape (layer, example, head, query)."""
    lost = rng.uniform(size=(2, EXAMPLES, HEADS, TOKENS)) < 0.3
    lost[0, :, 0] = False
    lost[0, :, 1, 4] = True  # one query, in all examples
    lost[1, :, 2] = True  # a head that looks at no place
    lost[1, 2, 1] = True
    return lost


@pytest.fixture
def weights(rng, lost):
    """Float32 softmax of logits, with a gap of 120 to CLS where queries are saturated."""
    logits = rng.normal(0, 2, (*lost.shape, TOKENS))
    logits[..., 0] += 120.0 * lost
    measured_values = np.asarray(tf.nn.softmax(tf.constant(logits, tf.float32)))
    assert ((measured_values[..., 1:].sum(-1) == 0) == lost).all()
    return measured_values


@pytest.fixture
def features(weights):
    return features_of(dict(zip(TAPS, weights, strict=True)), OBLONG)


@pytest.fixture
def images():
    return numbers(EXAMPLES, batch=2)


def renormalised(weights):
    """Shares of the spatial keys in float64, NaN for a query that has none."""
    spatial = weights[..., 1:].astype(float)
    with np.errstate(invalid="ignore"):
        return spatial / spatial.sum(-1, keepdims=True)


def test_distances_are_means_over_the_other_queries(weights, lost, features, images):
    result = analysis.attention_distance(features, images)
    each = (renormalised(weights)[..., 1:, :] * DISTANCES).sum(-1)
    expected = mean_of_known(each, (1, 3))
    assert np.isnan(expected[1, 2]) and np.isfinite(expected[0]).all()
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    np.testing.assert_array_equal(result.left_out, lost[..., 1:].sum((1, 3)))


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32"])
def test_one_saturated_query_does_not_end_a_measurement(dtype):
    logits = np.zeros((1, 1, TOKENS, TOKENS))
    logits[0, 0, 5, 0] = 30.0 if dtype == "float16" else 120.0
    weights = tf.cast(tf.nn.softmax(tf.constant(logits, tf.float32)), dtype)
    result = analysis.attention_distance(lambda _: {"weights": weights}, numbers(1), OBLONG)
    reference = [query for query in range(12) if query != 4]
    assert result.item() == pytest.approx(DISTANCES[reference].mean(), rel=1e-6)
    assert result.left_out.item() == 1


def test_what_follows_from_the_mean_counts_as_the_pairs_do(
    in_graphs, weights, lost, features, images
):
    mean = analysis.mean_attention(features, images)
    assert mean.attrs["examples"] == EXAMPLES
    assert mean["spatial_key"].values.tolist() == list(range(1, TOKENS))
    shares = renormalised(weights)
    np.testing.assert_allclose(mean["raw"], weights.mean(1), rtol=1e-5)
    np.testing.assert_allclose(mean["spatial"], mean_of_known(shares, 1), rtol=1e-5)
    np.testing.assert_array_equal(mean["left_out"], lost.sum(1))
    assert mean["spatial"].isnull().all("spatial_key").values[0, 1, 4]
    distance = analysis.mean_distance(mean)
    np.testing.assert_allclose(distance, analysis.attention_distance(features, images), rtol=1e-5)
    np.testing.assert_array_equal(distance.left_out, lost[..., 1:].sum((1, 3)))
    assert distance.attrs["units"] == "pixels"
    maps = analysis.attention_maps(mean, query="spatial").values.reshape(2, HEADS, 12)
    np.testing.assert_allclose(maps, mean_of_known(shares[..., 1:, :], (1, 3)), rtol=1e-5)
    cls = analysis.attention_maps(mean, query="cls")
    np.testing.assert_allclose(
        cls.values.reshape(2, HEADS, 12), mean_of_known(shares[..., 0, :], 1), rtol=1e-5
    )
    np.testing.assert_array_equal(cls.left_out, lost[..., 0].sum(1))


@pytest.mark.parametrize("normalize", ["queries", "coverage"])
def test_aligned_maps_are_those_of_a_loop_over_pairs(weights, lost, features, images, normalize):
    summed, covered = np.zeros((2, 2, HEADS, 5, 7))
    for layer, example, head, query in np.argwhere(~lost[..., 1:]):
        share = renormalised(weights[layer, example, head, query + 1])
        for key, value in enumerate(share):
            row, column = (PLACES[key] - PLACES[query]).astype(int)
            summed[layer, head, row + 2, column + 3] += value
            covered[layer, head, row + 2, column + 3] += 1
    if normalize == "queries":
        covered = (~lost[..., 1:]).sum((1, 3))[..., None, None]
    with np.errstate(invalid="ignore"):
        expected = summed / covered
    mean = analysis.mean_attention(features, images)
    aligned = analysis.aligned_attention(mean, normalize)
    np.testing.assert_allclose(aligned, expected, rtol=1e-4)
    np.testing.assert_array_equal(aligned.left_out, lost[..., 1:].sum((1, 3)))
    offset = analysis.attention_offset(aligned)
    np.testing.assert_array_equal(offset.left_out, aligned.left_out)
    unknown = np.zeros((2, HEADS), bool)
    unknown[1, 2] = True
    for values in offset.data_vars.values():
        np.testing.assert_array_equal(values.isnull(), unknown)


def test_a_head_without_spatial_attention_has_no_kind(features, images):
    mean = analysis.mean_attention(features, images)
    result = analysis.head_classes(mean)
    assert (result.kind == "none").values.nonzero() == (1, 2)
    assert result.direction.values[1, 2] == "" and result.left_out.values[1, 2] == 60
    others = mean.isel(head=[0, 1])
    xr.testing.assert_allclose(analysis.head_classes(others), result.isel(head=[0, 1]))
    for name in ("own", "row_median", "spread", "nearer", "crossing", "relative_spread"):
        assert np.isnan(result[name].values[1, 2])
    ax = plots.plot_head_classes(result)
    assert ax.get_legend().get_texts()[-1].get_text() == "prefix tokens only: 1"
    plots.plot_attention_offset(analysis.attention_offset(analysis.aligned_attention(mean)))


def test_saliency_leaves_out_images_without_a_map(rng, weights, lost, features):
    masks = rng.uniform(size=(EXAMPLES, 3, 4)) < 0.4
    masks[4] = False
    data = tf.data.Dataset.from_tensor_slices((numbers(EXAMPLES), masks)).batch(2)
    result = analysis.attention_saliency(features, data)
    for query, rows in {"cls": slice(1), "spatial": slice(1, None)}.items():
        maps = renormalised(weights[..., rows, :].astype(float).mean(-2))
        here = result.sel(query=query)
        for layer, head in np.ndindex(2, HEADS):
            reference = [e for e in range(4) if not lost[layer, e, head, rows].all()]
            ious = [iou_by_loop(maps[layer, e, head], masks[e]) for e in reference]
            assert here.left_out.values[layer, head] == 4 - len(reference)
            expected = np.mean(ious) if ious else np.nan
            np.testing.assert_allclose(here.iou[layer, head], expected, rtol=1e-5)
    assert result.attrs["left_out"] == 1  # the empty mask
    np.testing.assert_array_equal(result.best_iou, np.nanmax(result.iou, axis=-1))
    np.testing.assert_array_equal(result.best_head, np.nanargmax(result.iou, axis=-1))
    lines = plots.plot_attention_saliency(result).get_lines()
    np.testing.assert_array_equal(lines[1].get_ydata(), result.best_iou[1])


def test_a_layer_without_any_map_has_no_best_head(rng):
    saturated = np.tile(np.eye(TOKENS)[0], (2, 1, TOKENS, 1))
    data = numbers(2), np.ones((2, 3, 4))
    result = analysis.attention_saliency(features_of({TAPS[0]: saturated}, OBLONG), data)
    assert result.iou.isnull().all() and result.best_iou.isnull().all()
    assert (result.best_head == -1).all() and (result.left_out == 2).all()


def test_patterns_are_those_of_the_pairs_that_there_are(weights, lost, features, images):
    result = analysis.attention_patterns(features, images)
    for query, rows in {"cls": slice(1), "spatial": slice(1, None)}.items():
        maps = renormalised(weights[..., rows, :].astype(float).mean(-2))
        peak, similarity, repetition = patterns_by_loop(maps.swapaxes(0, 1))
        here = result.sel(query=query)
        np.testing.assert_allclose(here.peak, peak, rtol=1e-4, atol=1e-6)
        np.testing.assert_allclose(here.similarity, similarity, rtol=1e-3, atol=1e-5)
        np.testing.assert_allclose(here.repetition, repetition, rtol=1e-3, atol=1e-5)
        np.testing.assert_array_equal(here.left_out, lost[..., rows].all(-1).sum(1))
    mean = analysis.mean_patterns(analysis.mean_attention(features, images))
    assert mean.left_out.sum() == 2 and mean.repetition.notnull().all()


def test_the_plot_of_rollout_to_the_prefix_alone_is_zero():
    taps = {tap: np.ones((1, TOKENS, 2)) for tap in SITES}
    taps |= dict.fromkeys(TAPS, np.tile(np.eye(TOKENS)[0], (1, 1, TOKENS, 1)))
    rollout = analysis.attention_rollout(features_of(taps, OBLONG), numbers(1))
    axes = plots.plot_attention_rollout(rollout).panels
    assert all((ax.get_images()[-1].get_array() == 0).all() for ax in axes)


def test_heads_are_ordered_by_the_queries_with_spatial_attention(rng, weights, lost):
    names = "block00/attention/weights", "block00/attention/heads"
    outputs = rng.normal(size=(EXAMPLES, TOKENS, HEADS, 2))
    other = features_of({"x": rng.normal(size=(EXAMPLES, 4))})
    tables = dict(zip(names, (weights[0], outputs), strict=True))
    features = features_of(tables, OBLONG)
    result = analysis.head_similarity(features, other, numbers(EXAMPLES))
    each = (renormalised(weights[0])[..., 1:, :] * DISTANCES).sum(-1)
    distance = mean_of_known(each, (0, 2))
    near, count = np.argsort(distance), lost[0, ..., 1:].sum((0, 2))
    np.testing.assert_allclose(result.distance[0, 0], distance[near[0]], rtol=1e-5)
    np.testing.assert_array_equal(result.left_out[0], np.cumsum(count[near]))
    with pytest.raises(ValueError, match=r"'block00/attention/weights', whose heads \[2\] attend"):
        bad = features_of(tables | {names[0]: weights[1]}, OBLONG)
        analysis.head_similarity(bad, other, numbers(EXAMPLES))
