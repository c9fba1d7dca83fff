from itertools import combinations

import numpy as np
import pytest
import xarray as xr
from scipy.stats import spearmanr

from vit_tf.analysis.papers.ding import AGREEMENT, mean_rank_correlation, measures_disagree
from vit_tf.analysis.study.claims import scorecard
from vit_tf.analysis.study.figure import all_figures


def result(maps):
    """What `similarities` returns, of maps (measure, layer, layer); 1 for a layer with itself."""
    maps = np.where(np.eye(maps.shape[1], dtype=bool), 1.0, maps)
    names = [f"block{number:02}/mlp/sum" for number in range(maps.shape[1])]
    dims = ("measure", "layer_x", "layer_y")
    coords = {"layer_x": names, "layer_y": names}
    return xr.Dataset({"similarity": (dims, maps)}, coords)


def symmetric(rng, layers=10):
    values = rng.uniform(size=(layers, layers))
    return (values + values.T) / 2


def test_measures_that_are_curves_of_each_other_agree(rng):
    item = symmetric(rng)
    estimate = measures_disagree(result(np.stack([item, item**3, np.exp(item)])))
    assert estimate.value == pytest.approx(1) and np.isnan(estimate.low)  # no variance is known
    assert measures_disagree(result(np.stack([item, 1 - item]))).value == pytest.approx(-1)


def test_a_measure_that_does_not_give_one_for_equal_layers_is_left_out(rng):
    """Predictions from few images disagree with other measures, and with themselves."""
    item = symmetric(rng)
    noisy = result(np.stack([item, item**2, rng.uniform(size=item.shape)]))
    noisy["similarity"].values[2, range(10), range(10)] = 0.4
    assert measures_disagree(noisy).value == pytest.approx(1)
    with pytest.raises(ValueError, match="two measures"):
        measures_disagree(noisy.isel(measure=[0, 2]))


def test_value_is_the_mean_of_the_rank_correlations_of_pairs_of_layers(rng):
    maps = np.stack([symmetric(rng) for _ in range(3)])
    upper = np.triu_indices(10, 1)
    wanted = [spearmanr(*pair).statistic for pair in combinations([m[upper] for m in maps], 2)]
    estimate = measures_disagree(result(maps))
    assert estimate.value == pytest.approx(np.mean(wanted))
    assert estimate.low < 0 < estimate.high


def test_a_measure_that_is_not_symmetric_counts_by_the_mean_of_both_orders(rng):
    item = symmetric(rng)
    tilt = rng.normal(size=item.shape)
    assert measures_disagree(result(np.stack([item, item + tilt - tilt.T]))).value == pytest.approx(
        1
    )


def test_a_constant_measure_has_no_order():
    assert np.isnan(mean_rank_correlation(np.array([[1.0, 1, 1], [1, 2, 3]])))


def test_the_claim_is_tested_on_the_vit_and_not_in_the_quick_study(rng):
    item = symmetric(rng, 30)
    results = {"similarities.vit": result(np.stack([item, symmetric(rng, 30)]))}
    claims = scorecard(results, vit="vit")
    (claim,) = [claim for claim in claims if claim.name == "measures-disagree"]
    assert claim.outcome == "replicates" and claim.source[0] == "Ding et al. (2021)"
    assert AGREEMENT in all_figures() and AGREEMENT.models.all_roles == ("seed",)
