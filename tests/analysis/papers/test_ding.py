from itertools import combinations

import numpy as np
import pytest
import xarray as xr
from scipy.stats import spearmanr

from vit_tf.analysis.papers.ding import AGREEMENT, mean_rank_correlation, measures_agree
from vit_tf.analysis.study.claims import scorecard
from vit_tf.analysis.study.figure import all_figures


def result(maps):
    """What `similarities` returns, of maps (measure, layer, layer)."""
    names = [f"block{number:02}/mlp/sum" for number in range(maps.shape[1])]
    dims = ("measure", "layer_x", "layer_y")
    coords = {"layer_x": names, "layer_y": names}
    return xr.Dataset({"similarity": (dims, maps)}, coords)


def symmetric(rng, layers=10):
    values = rng.uniform(size=(layers, layers))
    return (values + values.T) / 2


def test_measures_that_are_curves_of_each_other_agree(rng):
    item = symmetric(rng)
    estimate = measures_agree(result(np.stack([item, item**3, np.exp(item)])))
    assert estimate.value == pytest.approx(1) and estimate.low == pytest.approx(1)
    assert measures_agree(result(np.stack([item, 1 - item]))).high == pytest.approx(-1)


def test_value_is_the_mean_of_the_rank_correlations_of_pairs_of_layers(rng):
    maps = np.stack([symmetric(rng) for _ in range(3)])
    upper = np.triu_indices(10, 1)
    wanted = [spearmanr(*pair).statistic for pair in combinations([m[upper] for m in maps], 2)]
    estimate = measures_agree(result(maps))
    assert estimate.value == pytest.approx(np.mean(wanted))
    assert estimate.low < 0 < estimate.high


def test_a_measure_that_is_not_symmetric_counts_by_the_mean_of_both_orders(rng):
    item = symmetric(rng)
    tilt = rng.normal(size=item.shape)
    assert measures_agree(result(np.stack([item, item + tilt - tilt.T]))).value == pytest.approx(1)


def test_a_constant_measure_has_no_order():
    assert np.isnan(mean_rank_correlation(np.array([[1.0, 1, 1], [1, 2, 3]])))


def test_the_claim_is_tested_on_the_vit_and_not_in_the_quick_study(rng):
    item = symmetric(rng)
    results = {"similarities.vit": result(np.stack([item, item**2]))}
    claims = scorecard(results, vit="vit")
    (claim,) = [claim for claim in claims if claim.name == "measures-agree"]
    assert claim.outcome == "replicates" and claim.source[0] == "Ding et al. (2021)"
    assert AGREEMENT in all_figures() and AGREEMENT.models.all_roles == ("seed",)
