import numpy as np
import pytest
import xarray as xr
from attention_heads import OBLONG, mean_of, patterns_by_loop, random_attention
from scipy.stats import entropy
from tables import features_of, numbers

from vit_tf import TokenGrid, analysis

pytestmark = pytest.mark.usefixtures("without_graphs")

GRID = TokenGrid(6, 6, 1, 8)


def spikes(where, share=0.9):
    """A map of 36 tokens with most of its attention on a few."""
    item = np.full(36, (1 - share) / 36)
    item[list(where)] += share / len(where)
    return item


def attention(maps):
    """Weights of GRID in which all queries have the map of their (example, layer, head)."""
    maps = np.asarray(maps)
    keys = np.concatenate([np.zeros((*maps.shape[:3], 1)), maps], axis=-1)
    weights = np.repeat(keys[:, :, :, None], 37, axis=3)
    return {
        f"block{layer:02}/attention/weights": weights[:, layer] for layer in range(len(maps[0]))
    }


def patterns(maps):
    return analysis.attention_patterns(features_of(attention(maps), GRID), numbers(len(maps)))


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("prefix", [0, 1])
def test_terms_are_those_of_a_loop_over_pairs_of_heads(rng, prefix):
    grid = TokenGrid(3, 4, prefix, 8)
    weights = random_attention(rng, grid, layers=3)
    result = analysis.attention_patterns(features_of(weights, grid), numbers(5))
    for query in result["query"].values:
        rows = slice(1) if query == "cls" else slice(prefix, None)
        maps = np.stack([x[:, :, rows, prefix:].mean(2) for x in weights.values()], axis=1)
        peak, *expected = patterns_by_loop(maps / maps.sum(-1, keepdims=True))
        here = result.sel(query=query)
        np.testing.assert_allclose(here.peak, peak, rtol=1e-5)
        for name, values in zip(("similarity", "repetition"), expected, strict=True):
            np.testing.assert_allclose(here[name], values, rtol=0, atol=1e-6)


def test_the_same_few_spikes_in_all_heads_repeat_though_they_differ_between_images():
    maps = [np.tile(spikes(where), (3, 4, 1)) for where in ([3, 17], [8, 30], [11, 24], [0, 35])]
    result = patterns(maps)
    peak = 1 - entropy(spikes([3, 17])) / np.log(36)
    np.testing.assert_allclose(result.similarity, 1, rtol=1e-5)
    np.testing.assert_allclose(result.repetition, peak, rtol=1e-5)
    assert peak > 0.6
    # Averaged over the images they are spread over eight tokens: less of a peak to see.
    mean = analysis.mean_attention(features_of(attention(maps), GRID), numbers(4))
    assert analysis.mean_patterns(mean).repetition.max() < 0.6 * peak


def test_diffuse_heads_do_not_repeat(rng):
    flat = np.full((2, 3, 4, 36), 1 / 36)
    assert abs(patterns(flat).repetition).max() < 1e-6
    assert abs(patterns(flat).similarity).max() < 1e-2
    nearly = rng.dirichlet(np.full(36, 50.0))
    alike = patterns(np.tile(nearly, (2, 3, 4, 1)))
    assert alike.repetition.max() < 0.05 and alike.similarity.min() > 0.99


def test_of_one_image_the_mean_is_the_image(rng):
    maps = rng.dirichlet(np.full(36, 0.1), size=(1, 2, 3))
    mean = analysis.mean_attention(features_of(attention(maps), GRID), numbers(1))
    of_image = patterns(maps).drop_vars("leave_one_out")  # of which there is none of one image
    xr.testing.assert_allclose(analysis.mean_patterns(mean), of_image, atol=1e-5)


def test_a_single_head_has_no_pair_in_its_layer(rng):
    result = patterns(np.tile(spikes([4]), (2, 2, 1, 1)))
    repetition = result.repetition[0].values
    assert np.isnan(np.diag(repetition)).all() and repetition[0, 1] > 0.6


def test_errors(rng):
    with pytest.raises(ValueError, match="more than one spatial token"):
        analysis.mean_patterns(mean_of(np.ones((1, 1)), TokenGrid(1, 1, 0, 8)))
    weights = random_attention(rng, OBLONG)
    weights["block01/attention/weights"][3] = np.nan
    with pytest.raises(ValueError, match=r"finite.*block01"):
        analysis.attention_patterns(features_of(weights, OBLONG), numbers(5))
