"""The claims on outlier tokens, and their figures whole on a model that has some."""

from functools import partial

import keras
import numpy as np
import pytest
import xarray as xr
from study_models import study_model_of

import vit_tf
from vit_tf.analysis.engine.stream import as_dataset
from vit_tf.analysis.figures.data import Data
from vit_tf.analysis.figures.measure import measure_all
from vit_tf.analysis.papers import darcet
from vit_tf.analysis.statistics.claims import Outcome, decide

DIMS = ("layer", "content")


def roles(of_class, of_position, error=0.01):
    """Differences of the probes in three layers, the first without outliers."""
    values = np.array([[np.nan, np.nan], [of_class, of_position], [of_class, of_position]])
    variables = {
        "probe_difference": (DIMS, values),
        "probe_difference_stderr": (DIMS, np.where(np.isnan(values), np.nan, error)),
    }
    return xr.Dataset(variables, {"content": ["class", "position"]}, {"examples": 1000})


@pytest.mark.parametrize("sign", [1, -1])
def test_outcomes_and_values(sign):
    result = roles(0.2 * sign, -0.3 * sign)
    expected = Outcome.AS_IN_PAPER if sign == 1 else Outcome.OPPOSITE
    claims = {darcet.outliers_hold_the_class: 0.2, darcet.outliers_hold_no_position: -0.3}
    for claim, value in claims.items():
        estimate = claim(result)
        np.testing.assert_allclose(estimate.value, sign * value)
        np.testing.assert_allclose(np.ptp(estimate.interval), 2 * 1.962 * 0.01, rtol=1e-3)
        outcome = decide(estimate.interval, claim.paper, claim.least)
        assert outcome == expected


def test_without_outliers_nothing_is_tested():
    for claim in (darcet.outliers_hold_the_class, darcet.outliers_hold_no_position):
        with pytest.raises(ValueError, match="tokens of outlying norm"):
            claim(roles(np.nan, np.nan))


@pytest.mark.slow
def test_figures_are_measured_drawn_and_evaluated(tmp_path):
    """One patch of every image is bright, and its brightness in a channel is the class."""
    rng = np.random.default_rng(0)
    labels, places = rng.integers(3, size=60), rng.integers(16, size=60)
    images = rng.normal(size=(60, 16, 16, 3)).astype("float32") * 0.02
    for image, label, place in zip(images, labels, places, strict=True):
        row, column = divmod(place, 4)
        image[4 * row : 4 * row + 4, 4 * column : 4 * column + 4, label] = 1
    keras.utils.set_random_seed(0)
    model = vit_tf.ViT((16, 16, 3), 4, 1, 2, 8, 16, 3)
    features = partial(vit_tf.submodel, model)
    vit = study_model_of("ViT", "vit", "ViT", model.taps, model.token_grid, features)
    measurements = darcet.outliers_of(vit), darcet.roles_of(vit)
    data = Data(as_dataset((images, labels)), None, num_classes=3)
    results, problems = measure_all(measurements, data, tmp_path)
    assert not problems
    outliers, found = (results[m.name] for m in measurements)
    assert darcet.outliers_hold_the_class(found).value > 0.3
    assert darcet.ROLES.instead({"ViT": found}) is None
    without = found.where(found["output_change"] > np.inf)
    assert "in any layer of ViT" in darcet.ROLES.instead({"ViT": without})
    for figure, result in ((darcet.OUTLIERS, outliers), (darcet.ROLES, found)):
        assert figure.draw(result).panels.shape == (3,)
