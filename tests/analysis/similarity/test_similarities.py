from functools import partial

import measure_oracles as oracles
import numpy as np
import pytest
import tensorflow as tf

from vit_tf import analysis
from vit_tf.analysis.similarity.similarities import MEASURES, disagreement
from vit_tf.data.batches import RANDOM

pytestmark = pytest.mark.usefixtures("without_graphs")

BATCH, TOKENS = 48, 3
MEAN = {
    "procrustes": oracles.procrustes,
    "svcca": lambda x, y: oracles.svcca(x, y, 0.99),
    "cca": oracles.cca,
    "pwcca": oracles.pwcca,
    "rsa_pearson": lambda x, y: oracles.rsa(x, y, "pearson"),
    "rsa_spearman": lambda x, y: oracles.rsa(x, y, "spearman"),
    "mutual_knn": lambda x, y: oracles.mutual_knn(x, y, 10),
}
SUMMED = {
    "cka": oracles.cka,
    "rbf_cka": lambda batches: oracles.rbf_cka(batches, 0.5),
    "token_cka": oracles.token_cka,
    "linear_predictivity": lambda batches: oracles.predictivity(batches, 0.1, 5),
}


def activations(rng, count=2 * BATCH):
    """Three layers of three tokens that have something in common, their means far from zero."""
    x = rng.normal(size=(count, TOKENS, 4)) * [3.0, 1.0, 0.5, 0.1] + 2.0
    y = np.tanh(x @ rng.normal(size=(4, 5))) + 0.3 * rng.normal(size=(count, TOKENS, 5)) - 1.0
    z = y @ rng.normal(size=(5, 2)) * 1e3 + rng.normal(size=(count, TOKENS, 2))
    return {name: values.astype("float32") for name, values in {"x": x, "y": y, "z": z}.items()}


def batched(of, names, size=BATCH, flat=True):
    """Pairs of batches of two layers, as float64."""
    arrays = [of[name].astype(np.float64) for name in names]
    arrays = [a.reshape(len(a), -1) for a in arrays] if flat else arrays
    starts = range(0, len(arrays[0]), size)
    return [tuple(a[start : start + size] for a in arrays) for start in starts]


def oracle(measure, of, names, batches=slice(None)):
    pairs = batched(of, names, flat=measure != "token_cka")[batches]
    if measure in SUMMED:
        return SUMMED[measure](pairs)
    return np.mean([MEAN[measure](x, y) for x, y in pairs])


@pytest.fixture(scope="module")
def of():
    return activations(np.random.default_rng(0))


@pytest.fixture(scope="module")
def found(of):
    """All measures, computed in a graph: a module's fixture is set up before `without_graphs`."""
    columns = {name: values.reshape(len(values), -1) for name, values in of.items()}
    sizes = [column.shape[1] for column in columns.values()]

    def features(rows):
        parts = tf.split(rows, sizes, axis=1)
        return {
            n: tf.reshape(p, (-1, *of[n].shape[1:])) for n, p in zip(columns, parts, strict=True)
        }

    rows = np.concatenate(list(columns.values()), axis=1)
    return analysis.similarities(features, tf.data.Dataset.from_tensor_slices(rows).batch(BATCH))


@pytest.mark.parametrize("measure", MEASURES)
def test_equals_the_float64_oracle(measure, of, found):
    values = found.similarity.sel(measure=measure)
    for names in [("x", "y"), ("y", "x"), ("x", "z"), ("z", "y"), ("x", "x")]:
        wanted = oracle(measure, of, names)
        got = values.sel(layer_x=names[0], layer_y=names[1]).item()
        assert got == pytest.approx(wanted, rel=1e-4, abs=1e-5), names


@pytest.mark.parametrize("measure", MEASURES)
def test_errors_are_the_jackknife_over_batches(measure, of, found):
    one, other = (oracle(measure, of, ("x", "y"), slice(at, at + 1)) for at in (0, 1))
    # Of two batches what is left out leaves one: sqrt(1/2 sum of (value - mean)^2) is this.
    wanted = abs(one - other) / 2
    got = found.stderr.sel(measure=measure, layer_x="x", layer_y="y").item()
    assert got == pytest.approx(wanted, rel=1e-2, abs=2e-5)


@pytest.mark.slow
def test_wide_layers_in_float32_equal_the_oracle():
    rng = np.random.default_rng(1)
    x = rng.normal(size=(40, 6)) @ rng.normal(size=(6, 5000)) + rng.normal(size=(40, 5000)) + 3
    of = {"x": x.astype("float32"), "y": (x[:, :8] + rng.normal(size=(40, 8))).astype("float32")}
    wanted = ["procrustes", "rsa_pearson", "rsa_spearman", "linear_predictivity", "rbf_cka"]
    with pytest.warns(UserWarning, match="two batches"):
        values = analysis.similarities(of, measures=wanted).similarity
    # The folds of linear predictivity follow the random order in which images are read.
    shuffled = {name: values[RANDOM.order(40)] for name, values in of.items()}
    ((wide, y),) = batched(shuffled, ("x", "y"), 40)
    left, values_of, _ = np.linalg.svd(wide - wide.mean(0), full_matrices=False)
    pairs = [(left * values_of, y)]  # the same distances in 40 channels
    for measure in wanted:
        told = SUMMED[measure](pairs) if measure in SUMMED else MEAN[measure](*pairs[0])
        got = values.sel(measure=measure, layer_x="x", layer_y="y").item()
        assert got == pytest.approx(told, rel=1e-4), measure


def test_two_models_equal_the_oracle(of):
    one, other = ({name: of[name] for name in names} for names in (["x", "y"], ["z"]))
    shuffled = {name: values[RANDOM.order(BATCH)] for name, values in of.items()}
    with pytest.warns(UserWarning, match="two batches"):
        first = {name: values[:BATCH] for name, values in one.items()}
        two = analysis.similarities(first, features_y={"z": other["z"][:BATCH]})
    assert two.similarity.dims == ("measure", "layer_x", "layer_y")
    assert two.similarity.shape == (len(MEASURES), 2, 1)
    for measure in MEASURES:
        for name in one:
            got = two.similarity.sel(measure=measure, layer_x=name, layer_y="z").item()
            wanted = oracle(measure, shuffled, (name, "z"), slice(0, 1))
            assert got == pytest.approx(wanted, rel=1e-4, abs=1e-5), (measure, name)


def test_too_many_directions_and_other_numbers_of_tokens_are_nan_and_told():
    rng = np.random.default_rng(2)
    x = rng.normal(size=(24, 2, 9)).astype("float32")
    of = {"x": x, "y": x[:, 0, :4], "still": np.ones((24, 3))}
    with pytest.warns(UserWarning) as told:
        found = analysis.similarities(of, measures=["cca", "svcca", "pwcca", "token_cka", "cka"])
    text = " ".join(str(one.message) for one in told)
    assert found.attrs["constant_layers"] == ["still"] and "left out: still" in text
    assert "cca is NaN for 1 of 4 pairs of layers (too few images for the number" in text
    assert "token_cka is NaN for 2 of 4 pairs of layers (layers of different numbers" in text
    known = found.similarity.notnull()
    for name in ("cca", "pwcca"):
        np.testing.assert_array_equal(known.sel(measure=name), [[False, True], [True, True]])
    np.testing.assert_array_equal(known.sel(measure="token_cka"), np.eye(2, dtype=bool))
    assert known.sel(measure="cka").all()


def test_pwcca_of_more_channels_than_images_equals_the_oracle():
    rng = np.random.default_rng(4)
    wide = rng.normal(size=(24, 3)) @ rng.normal(size=(3, 40))  # of three directions
    layers = {"wide": wide, "narrow": rng.normal(size=(24, 5))}
    with pytest.warns(UserWarning, match="two batches"):
        values = analysis.similarities(layers, measures=["cca", "pwcca"]).similarity
    assert values.notnull().all()
    # Three channels span the space of all 40, which the oracle needs to be of full rank.
    rho, directions = oracles.correlations(wide[:, :3], layers["narrow"])
    weights = np.abs(directions.T @ oracles.centred(wide)).sum(1)
    found = values.sel(measure="pwcca", layer_x="wide", layer_y="narrow").item()
    assert found == pytest.approx(weights @ rho / weights.sum(), abs=1e-5)
    found = values.sel(measure="pwcca", layer_x="narrow", layer_y="wide").item()
    assert found == pytest.approx(oracles.pwcca(layers["narrow"], wide[:, :3]), abs=1e-5)


def test_tokens_are_pooled_to_vectors(of):
    rng = np.random.default_rng(3)
    tokens = rng.normal(size=(24, 5, 3)).astype("float32")
    with pytest.warns(UserWarning, match="two batches"):
        pooled = analysis.similarities({"a": tokens, "b": of["x"][:24]}, tokens="all")
        means = {"a": tokens.mean(1), "b": of["x"][:24].mean(1)}
        alone = analysis.similarities(means, measures=[str(m) for m in pooled.measure.values])
    assert "token_cka" not in pooled.measure and pooled.attrs["tokens"] == "all"
    np.testing.assert_allclose(pooled.similarity, alone.similarity, atol=1e-5)


def test_disagreement_is_the_range_of_places():
    values = np.array([[[0.1, 0.2], [0.3, 0.4]], [[0.4, 0.2], [0.3, np.nan]]])
    expected = [[1 - 0, 1 / 3 - 0], [2 / 3 - 1 / 2, 0]]
    np.testing.assert_allclose(disagreement(values), expected)
    # Rounding errors of layers that are each other's equal are no ranks.
    values = np.array([[[1, 0.2], [0.3, 1 + 1e-8]], [[1 + 1e-8, 0.2], [0.3, 1]]])
    np.testing.assert_allclose(disagreement(values), np.zeros((2, 2)))


@pytest.mark.slow
def test_a_remainder_too_small_is_left_out_of_all(of):
    first = {name: of[name][: BATCH + 1].reshape(BATCH + 1, -1) for name in ("x", "y")}
    rows = np.concatenate(list(first.values()), axis=1)
    width = first["x"].shape[1]
    batches = tf.data.Dataset.from_tensor_slices(rows).batch(BATCH)

    def features(rows):
        return {"x": rows[:, :width], "y": rows[:, width:]}

    with pytest.warns(UserWarning, match="two batches"):
        found = analysis.similarities(features, batches)
        alone = analysis.similarities(features, batches.take(1))
    assert found.attrs["remainder"] == 1
    np.testing.assert_allclose(found.similarity, alone.similarity, atol=1e-6)


def test_settings_are_used_and_noted(of):
    first = {name: of[name][:BATCH] for name in ("x", "y")}
    settings = [
        analysis.rbf_cka(0.2),
        analysis.svcca(0.8),
        analysis.mutual_knn(3),
        analysis.linear_predictivity(np.float32(1.0), np.int64(3)),
    ]
    with pytest.warns(UserWarning, match="two batches"):
        found = analysis.similarities(first, measures=settings)
    order = RANDOM.order(BATCH)
    ((x, y),) = batched({name: values[order] for name, values in first.items()}, ("x", "y"))
    expected = [
        oracles.rbf_cka([(x, y)], 0.2),
        oracles.svcca(x, y, 0.8),
        oracles.mutual_knn(x, y, 3),
        oracles.predictivity([(x, y)], 1.0, 3),
    ]
    got = found.similarity.sel(layer_x="x", layer_y="y").values
    np.testing.assert_allclose(got, expected, rtol=1e-4)
    assert "mutual_knn: k=3" in found.attrs["settings"]


NOT_FINITE = np.full((20, 2), np.nan)
statistic = partial(analysis.similarities.statistic, None)


@pytest.mark.parametrize(
    ("make", "word"),
    [
        (lambda: statistic(measures=["ckaa"]), "ckaa"),
        (lambda: statistic(measures="cka"), "measures"),
        (lambda: statistic(measures=[]), "measures"),
        (lambda: statistic(measures=["cka"] * 2), "once"),
        (lambda: statistic(tokens="first"), "tokens"),
        (
            lambda: statistic(measures=["token_cka"], tokens="all"),
            "token_cka does not support tokens='all'",
        ),
        (lambda: analysis.rbf_cka(0), "bandwidth"),
        (lambda: analysis.svcca(1.5), "variance"),
        (lambda: analysis.rsa("kendall"), "correlation"),
        (lambda: analysis.mutual_knn(0), "k to be at least 1"),
        (lambda: analysis.linear_predictivity(0.1, 1), "folds"),
        (lambda: analysis.similarities({"a": np.eye(9)}, measures=["mutual_knn"]), "at least 12"),
        (lambda: analysis.similarities({"a": NOT_FINITE}, measures=["procrustes"]), "NaN.*at a"),
        (lambda: analysis.similarities({"a": np.eye(9)}, np.eye(9)), "without images"),
    ],
)
def test_errors(make, word):
    with pytest.raises(ValueError, match=word):
        make()


def test_distances_correlate_as_rsatoolbox_says(of):
    rdm = pytest.importorskip("rsatoolbox.rdm")
    from rsatoolbox.data import Dataset

    first = {name: of[name][:BATCH] for name in ("x", "y")}
    measures = ["rsa_pearson", "rsa_spearman"]
    with pytest.warns(UserWarning, match="two batches"):
        found = analysis.similarities(first, measures=measures).similarity
    ((x, y),) = batched(first, ("x", "y"))
    theirs = [rdm.sqrt_transform(rdm.calc_rdm(Dataset(a), method="euclidean")) for a in (x, y)]
    wanted = [rdm.compare(*theirs, method=method).item() for method in ("corr", "spearman")]
    got = found.sel(layer_x="x", layer_y="y").values
    np.testing.assert_allclose(got, wanted, rtol=1e-4)
