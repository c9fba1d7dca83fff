"""What each measure is blind to, and what it is not: maps of one of two representations."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
from hypothesis import given, settings, strategies as st

from vit_tf import analysis
from vit_tf.analysis.similarity.similarities import MEASURES

pytestmark = pytest.mark.usefixtures("without_graphs")

IMAGES, CHANNELS = 32, 5
OTHERS = ("y", "z")
MAPS = ("orthogonal", "scaled", "moved", "linear", "lengthened")
EVERY = {"orthogonal", "scaled", "moved"}
# Maps that leave a measure as it is; for measures that are not symmetric, of layer_x and layer_y.
BLIND = dict.fromkeys(MEASURES, EVERY) | {
    "cca": EVERY | {"linear"},
    "pwcca": {"scaled", "moved"},
    "mutual_knn": {"orthogonal", "scaled", "lengthened"},
}
BLIND_Y = BLIND | {"pwcca": EVERY | {"linear"}}


@pytest.fixture(scope="module")
def compare():
    """Function of layers (example, channel) by name to what `similarities` says of one batch."""
    names = ["x", *MAPS, *OTHERS]

    def features(rows):
        return dict(zip(names, tf.unstack(rows, axis=1), strict=True))

    statistic = analysis.similarities.statistic(features)
    spec = tf.TensorSpec((IMAGES, len(names), CHANNELS), tf.float32)
    step = tf.function(lambda rows: statistic.step(rows, features(rows)), input_signature=[spec])

    def run(layers):
        found = step(tf.stack([tf.cast(layers[name], tf.float32) for name in names], axis=1))
        totals = tf.nest.map_structure(np.asarray, found)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # a single batch has no standard error
            return statistic.finish(totals | {"remainder": 0})

    return run


def drawn(seed):
    """A representation, what has to do with it, and the representation under all `MAPS`."""
    rng = np.random.default_rng(seed)
    x = rng.normal(size=(IMAGES, CHANNELS)) * [2.0, 1.0, 0.8, 0.5, 0.3] + 0.3
    y = np.tanh(x @ rng.normal(size=(CHANNELS, CHANNELS))) + 0.3 * rng.normal(size=x.shape)
    z = x @ rng.normal(size=(CHANNELS, CHANNELS)) + 2 * rng.normal(size=x.shape)
    turn, other = (np.linalg.qr(rng.normal(size=(CHANNELS, CHANNELS)))[0] for _ in range(2))
    mapped = {
        "orthogonal": x @ turn,
        "scaled": x * 10 ** rng.uniform(-4, 4),
        "moved": x + 5 * rng.normal(size=CHANNELS),
        "linear": x @ turn @ np.diag([5.0, 1.0, 0.5, 0.1, 0.02]) @ other,
        "lengthened": x * rng.uniform(0.2, 5, (IMAGES, 1)),
    }
    return {"x": x, "y": y, "z": z} | mapped


@pytest.mark.slow
@settings(max_examples=15, deadline=None)
@given(seed=st.integers(0, 2**32 - 1))
def test_measures_are_blind_to_these_maps_and_to_no_others(compare, seed):
    values = compare(drawn(seed)).similarity
    for measure in MEASURES:
        of = values.sel(measure=measure)
        for blind, sides in ((BLIND, ("layer_x", "layer_y")), (BLIND_Y, ("layer_y", "layer_x"))):
            own = of.sel({sides[0]: "x", sides[1]: list(OTHERS)}).values
            for name in MAPS:
                mapped = of.sel({sides[0]: name, sides[1]: list(OTHERS)}).values
                apart = np.abs(mapped - own).max()
                told = f"{measure}, {name}, {sides[0]}: {apart}"
                if name in blind[measure]:
                    assert apart < 2e-4, told
                else:
                    assert apart > 5e-4, told


def test_words_of_invariances_are_there_for_every_measure():
    layers = {name: values for name, values in drawn(0).items() if name in ("x", "y")}
    with pytest.warns(UserWarning, match="two batches"):
        found = analysis.similarities(layers)
    words = dict(zip(found.measure.values, found.invariant.values, strict=True))
    assert all("translation" in words[name] for name in MEASURES if name != "mutual_knn")
    assert "invertible linear maps" in words["cca"] and "translation" not in words["mutual_knn"]


def test_single_tokens_are_told_apart_where_whole_layers_are_not():
    rng = np.random.default_rng(0)
    x = rng.normal(size=(64, 3, 4))
    turns = [np.linalg.qr(rng.normal(size=(4, 4)))[0] for _ in range(3)]
    turned = np.stack([x[:, t] @ turns[t] + t for t in range(3)], axis=1)
    layers = {"x": x, "permuted": x[:, [1, 2, 0]], "turned": turned}
    with pytest.warns(UserWarning, match="two batches"):
        found = analysis.similarities(layers, measures=["cka", "token_cka"])
    values = found.similarity.sel(layer_x="x")
    assert values.sel(measure="cka", layer_y="permuted") == pytest.approx(1, abs=1e-5)
    assert abs(values.sel(measure="token_cka", layer_y="permuted")) < 0.2
    assert values.sel(measure="token_cka", layer_y="turned") == pytest.approx(1, abs=1e-5)


def test_neighbours_and_ranks_follow_a_curve_that_distances_do_not():
    """Spearman's correlation is blind to an increasing function of the distances."""
    line = np.random.default_rng(0).uniform(size=(40, 1))
    curved = np.concatenate([np.sin(line * np.pi / 2), np.cos(line * np.pi / 2)], axis=1)
    with pytest.warns(UserWarning, match="two batches"):
        found = analysis.similarities(
            {"line": line, "arc": curved}, measures=["rsa_pearson", "rsa_spearman"]
        )
    values = found.similarity.sel(layer_x="line", layer_y="arc")
    assert values.sel(measure="rsa_spearman") > 0.9999 > values.sel(measure="rsa_pearson")
