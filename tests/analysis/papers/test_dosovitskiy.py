"""The claims of the ViT paper on accuracies and positions whose truth is known."""

import numpy as np
import pytest
import xarray as xr
from study_models import study_model_of

from vit_tf.analysis.flow.embeddings import position_similarity
from vit_tf.analysis.papers.dosovitskiy import (
    FIGURE_3,
    accuracy_table,
    distance_grows_with_depth,
    first_heads_global,
    near_positions_are_similar,
    positions_have_rows_and_columns,
)
from vit_tf.analysis.report.scorecard import evaluate, scorecard
from vit_tf.analysis.statistics.claims import NotTested

OTHERS = {"fraction": "vit-3", "resnet_fraction": "bit-3", "hybrid": "stem", "tuned": "tuned"}


def evaluated(name, images=2000, **accuracies):
    values = {model.replace("_", "-"): (value, images) for model, value in accuracies.items()}
    options = {"accuracy": values, "training_images": 10**8}
    claims = scorecard({}, vit="vit", resnet="bit", **OTHERS, **options)
    return next(claim for claim in claims if claim.name == name)


@pytest.mark.parametrize(
    ("name", "accuracies", "value"),
    [
        ("vit-gains-more-from-data", (0.8, 0.75, 0.4, 0.6), np.log(4 / 3 / (4 / 6 / 1.5))),
        ("resnet-better-on-little-data", (0.8, 0.75, 0.4, 0.6), 0.2),
        ("vit-better-on-all-data", (0.8, 0.75, 0.4, 0.6), 0.05),
    ],
)
def test_gaps_of_accuracy_by_amount_of_data(name, accuracies, value):
    given = dict(zip(("vit", "bit", "vit_3", "bit_3"), accuracies, strict=True))
    claim = evaluated(name, **given)
    low, high = claim.estimate.interval
    assert claim.estimate.value == pytest.approx(value) and low < value < high
    assert sum(claim.estimate.arms) == pytest.approx(value)
    del given["bit_3"]
    assert isinstance(evaluated(name, **given), NotTested)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("extreme", [0.0, 1.0])
def test_log_odds_of_0_or_100_percent_are_not_tested(extreme):
    claim = evaluated("vit-gains-more-from-data", vit=0.9, bit=extreme, vit_3=0.4, bit_3=0.6)
    assert isinstance(claim, NotTested)
    assert f"90 %, {100 * extreme:.0f} %, 40 %, 60 %" in claim.reason


@pytest.mark.parametrize(
    ("of_vit", "of_resnet", "gap"),
    [((0.03, 0.1), (0.1, 0.3), 0.3), ((0.1, 0.3), (0.1, 0.3), 0.3), ((0.03,), (0.1,), None)],
)
def test_both_models_are_compared_on_the_same_fraction(of_vit, of_resnet, gap):
    accuracies = {
        "vit": {0.03: 0.1, 0.1: 0.2, 0.3: 0.5},
        "bit": {0.03: 0.3, 0.1: 0.5, 0.3: 0.6},
    }
    models = []
    for name, role, fractions in (("vit", "vit", of_vit), ("bit", "resnet", of_resnet)):
        base = study_model_of(name, role, name, (), None, None, accuracy=(0.8, 2000))
        models.append(base)
        for fraction in fractions:
            facts = {"detail": fraction, "base": base}
            facts["accuracy"] = (accuracies[name][fraction], 2000)
            own_name = f"{name} {fraction}"
            models.append(study_model_of(own_name, "fraction", own_name, (), None, None, **facts))
    rows = {row.name: row for row in evaluate([FIGURE_3], models, {})}
    claim = rows["resnet-better-on-little-data"]
    if gap is None:
        assert isinstance(claim, NotTested) and "the same fractions" in claim.reason
    else:
        assert claim.estimate.value == pytest.approx(gap)


def test_hybrids_and_pre_trained_models_are_compared_with_the_vit():
    accuracies = {"vit": 0.6, "stem": 0.7, "tuned": 0.55}
    gaps = {"hybrid-better-at-small-compute": 0.1, "masked-pretraining-helps": -0.05}
    for name, gap in gaps.items():
        assert evaluated(name, **accuracies).estimate.value == pytest.approx(gap)


def embeddings(kind, rows=6, columns=6):
    """Positions whose similarity falls with distance only, or is of rows and columns too."""
    row, column = np.indices((rows, columns)).reshape(2, -1)
    squares = (row[:, None] - row) ** 2 + (column[:, None] - column) ** 2
    gram = np.exp(-squares / 8)
    if kind == "axes":
        gram += (row[:, None] == row) / 2.0 + (column[:, None] == column) / 2.0
    return np.linalg.cholesky(gram + 1e-9 * np.eye(len(gram)))


def test_rows_and_columns_are_more_than_distance():
    """A Gaussian kernel has neither, though neighbours in a row are similar."""
    similarity = {
        kind: position_similarity(embeddings(kind), (6, 6)) for kind in ("isotropic", "axes")
    }
    for each in similarity.values():
        assert near_positions_are_similar(each).value < -0.5
    isotropic, axes = (positions_have_rows_and_columns(each) for each in similarity.values())
    assert abs(isotropic.value) < 0.02 and axes.value > 0.15
    assert axes.interval is None
    noise = np.random.default_rng(0).normal(size=(36, 400))
    untrained = position_similarity(noise, (6, 6))
    assert abs(near_positions_are_similar(untrained).value) < 0.1
    assert abs(positions_have_rows_and_columns(untrained).value) < 0.02


def test_the_table_by_amount_of_data_has_the_intervals_of_its_accuracies():
    table = accuracy_table([0.1, 1.0], [(0.5, 100), (0.9, 1000)])
    assert table["fraction"].values.tolist() == [0.1, 1.0]
    widths = (table["high"] - table["low"]).values
    assert widths[0] == pytest.approx(0.192, abs=2e-3)
    assert widths[1] == pytest.approx(0.037, abs=2e-3)


def test_attention_that_widens_with_depth_and_a_head_that_is_global_from_the_start():
    values = np.array([[0.1, 0.6], [0.2, 0.3], [0.4, 0.5], [0.5, 0.6]])
    rest = values + 0.001 * np.random.default_rng(0).normal(size=(8, 4, 2))
    attrs = {"examples": 80, "leave_one_out": rest.ravel()}
    distance = xr.DataArray(values, dims=("layer", "head"), attrs=attrs)
    assert distance_grows_with_depth(distance).value == pytest.approx(0.5 - 0.3)
    assert first_heads_global(distance).value == pytest.approx(0.6)
    assert first_heads_global(distance).interval is not None
