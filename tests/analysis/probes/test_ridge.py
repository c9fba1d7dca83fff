from dataclasses import replace
from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from probe_data import POOL, batches, clouds, counted, sequences
from sklearn.linear_model import Ridge

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.engine import one_pass
from vit_tf.analysis.engine.results import PROBED, unpack_correct
from vit_tf.analysis.probes import ridge
from vit_tf.features.conversion import as_features

pytestmark = pytest.mark.usefixtures("without_graphs")

L2 = (0.01, 1.0, 100.0)


def make(rng, count):
    return clouds(rng, count, classes=4, channels=12)


def expected_accuracy(train, test, l2, reduce):
    (x, y), (u, v) = train, test
    model = Ridge(alpha=l2).fit(reduce(x).astype(float), 2.0 * np.eye(4)[y] - 1)
    return (model.predict(reduce(u).astype(float)).argmax(1) == v).mean()


@pytest.mark.parametrize("count", [200, 9], ids=["primal", "dual"])
def test_weights_equal_scikit_learn(rng, count):
    x, y = make(rng, count)

    def shifted(images):
        return {"tokens": images[..., 0] + 1000.0}

    statistic = analysis.ridge_probe.statistic(shifted, (x, y), 4, L2)
    totals = one_pass({"probe": (statistic, shifted)}, (x, y))["probe"]
    assert ("rows" in totals) == (count < 12)
    weights, intercept = statistic.finish(totals).weights["tokens"]
    rows = (x[..., 0] + np.float32(1000)).mean(1).astype(float)
    for index, l2 in enumerate(L2):
        model = Ridge(alpha=l2).fit(x[..., 0].mean(1).astype(float), 2.0 * np.eye(4)[y] - 1)
        np.testing.assert_allclose(weights[0, index], model.coef_.T, atol=2e-3)
        np.testing.assert_allclose(
            rows @ weights[0, index] + intercept[0, index],
            model.predict(x[..., 0].mean(1).astype(float)),
            atol=2e-3,
        )


@pytest.mark.parametrize("count", [200, 9], ids=["primal", "dual"])
@pytest.mark.parametrize("tokens", POOL)
def test_accuracies_equal_scikit_learn(rng, count, tokens):
    train, test = make(rng, count), make(rng, 300)
    probe = analysis.ridge_probe(sequences, train, test, 4, l2=L2, tokens=tokens)
    assert probe.dims == ("layer", "l2")
    expected = [expected_accuracy(train, test, l2, POOL[tokens]) for l2 in L2]
    np.testing.assert_allclose(probe.sel(layer="tokens"), expected, atol=1 / 300 + 1e-9)
    correct = unpack_correct(probe["correct"], 300)
    np.testing.assert_allclose(correct.mean(axis=-1), probe)
    alone = analysis.ridge_probe(sequences, train, (test[0][77:78], test[1][77:78]), 4, L2, tokens)
    np.testing.assert_array_equal(correct[..., 77], alone)


@pytest.mark.usefixtures("in_graphs")
def test_each_token_by_itself_streamed_in_batches(rng):
    train, test = make(rng, 200), make(rng, 300)
    stream = [batches(part, 64) for part in (train, test)]
    probe = analysis.ridge_probe(lambda x: {"tokens": x[..., 0]}, *stream, 4, l2=L2, tokens="each")
    assert probe.dims == ("layer", "l2", "token") and probe.shape == (1, 3, 3)
    for token in range(3):
        expected = [
            expected_accuracy(train, test, l2, lambda x, t=token: x[:, t, :, 0]) for l2 in L2
        ]
        np.testing.assert_allclose(probe[0, :, token], expected, atol=1 / 300 + 1e-9)


def test_narrow_and_wide_layers_together(rng):
    train, test = make(rng, 9), make(rng, 50)
    both = analysis.ridge_probe(lambda x: {"tokens": x[..., 0], "map": x}, train, test, 4, l2=L2)
    assert list(both.layer) == ["tokens", "map"]
    alone = analysis.ridge_probe(lambda x: {"map": x}, train, test, 4, l2=L2)
    np.testing.assert_array_equal(both.sel(layer="map"), alone.sel(layer="map"))


def test_a_constant_feature_gives_chance(rng):
    labels = np.repeat(np.arange(4), 25)
    labels = np.append(labels, 2)
    images = rng.normal(size=(101, 2, 2, 1)).astype("float32")
    probe = analysis.ridge_probe(
        lambda x: {"constant": 0 * x[:, :, :, 0] + 3.0}, (images, labels), (images, labels), 4
    )
    np.testing.assert_allclose(probe, 26 / 101)


@pytest.mark.slow
@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("count", [200, 9], ids=["primal", "dual"])
def test_all_tokens_in_one_pass_equal_their_own(rng, count):
    train, test = make(rng, count), make(rng, 60)
    features = counted(calls := [])
    modes = {
        tokens: analysis.ridge_probe.statistic(features, train, 4, L2, tokens) for tokens in PROBED
    }
    totals = one_pass({mode: (item, features) for mode, item in modes.items()}, train)
    probes = {mode: item.finish(totals[mode]) for mode, item in modes.items()}
    assert len(calls) == 1
    scores = {mode: analysis.score_statistic(features, probe) for mode, probe in probes.items()}
    totals = one_pass({mode: (item, features) for mode, item in scores.items()}, test)
    assert len(calls) == 2
    for mode in ("spatial", "each"):
        alone = analysis.ridge_probe(features, train, test, 4, l2=L2, tokens=mode)
        xr.testing.assert_identical(scores[mode].finish(totals[mode]), alone)


@pytest.mark.parametrize("count", [40, 6], ids=["primal", "dual"])
def test_probes_of_each_token_are_fitted_in_passes_of_bounded_sums(rng, count, monkeypatch):
    train, test = make(rng, count), make(rng, 20)

    def powers(images):
        return {f"layer {power}": images[..., 0] ** power for power in (1, 2, 3, 4)}

    shapes = {layer: x.shape[1:] for layer, x in powers(train[0]).items()}
    features = as_features(powers).with_facts(layers=tuple(shapes), shapes=shapes)
    at_once = analysis.ridge_probe(features, train, test, 4, l2=L2, tokens="each")
    sums, evaluate = [], ridge.evaluate

    def counted(statistic, images, *args, **options):
        totals = []

        def finish(sums_of_pass):
            totals.append(sums_of_pass)
            return statistic.finish(sums_of_pass)

        result = evaluate(replace(statistic, finish=finish), images, *args, **options)
        large = [totals[0].get(key, ()) for key in ("products", "rows")]
        sums.append(sum(np.asarray(array).nbytes for array in tf.nest.flatten(large)))
        return result

    of_layer = 8 * 3 * 12 * min(12, count)
    monkeypatch.setattr(ridge, "MAX_SUM_BYTES", 2.5 * of_layer)
    monkeypatch.setattr(ridge, "evaluate", counted)
    in_passes = analysis.ridge_probe(features, train, test, 4, l2=L2, tokens="each")
    xr.testing.assert_identical(in_passes, at_once)
    # Two layers in each of two passes, then the scores, which sum nothing of this size.
    assert len(sums) == 3 and max(sums) <= 2.5 * of_layer


def test_probes_of_each_token_of_a_model_of_any_image_size(rng):
    images = keras.Input((None, None, 3))
    model = keras.Model(images, keras.layers.Conv2D(4, 2, strides=2)(images))
    features = vit_tf.submodel(model, "conv2d*")
    train = rng.normal(size=(12, 4, 4, 3)).astype("float32"), np.arange(12) % 2
    accuracy = analysis.ridge_probe(features, train, train, tokens="each")
    assert np.isfinite(accuracy).all()


def test_the_places_of_tokens_are_noted(rng):
    data = make(rng, 20)

    def places(features, grid):
        features = partial(features)
        features.token_grid = grid
        attributes = analysis.ridge_probe(features, data, data, 4, 1.0, "each").attrs
        return [attributes.get(name) for name in ("prefix", "rows", "columns")]

    def sequence(images):
        return {"tokens": images[..., 0]}

    def both(images):
        return {"tokens": images[..., 0], "pooled": images[:, 0, :, 0]}

    assert places(sequence, TokenGrid(1, 2, 1, 8)) == [1, 1, 2]
    assert places(both, TokenGrid(1, 2, 1, 8)) == [1, None, None]
    assert places(sequence, TokenGrid(1, 3, 2, 8)) == [0, 1, 3]
    assert places(sequence, TokenGrid(5, 5, 1, 8)) == [0, None, None]
    assert places(sequence, None) == [0, None, None]
    assert "prefix" not in analysis.ridge_probe(sequence, data, data, 4, 1.0).attrs


def test_select_l2_for_each_token_of_layers_with_different_numbers():
    def accuracy(values):
        return xr.DataArray(
            values,
            dims=("layer", "l2", "token"),
            coords={"layer": ["a", "b"], "l2": [0.1, 1.0, 10.0], "token": [0, 1]},
            attrs={"model": "ViT"},
        )

    nan = np.nan
    validation = accuracy(
        [[[0.5, 0.9], [0.7, 0.9], [0.7, 0.2]], [[0.3, nan], [0.2, nan], [0.1, nan]]]
    )
    test = accuracy([[[0.0, 0.1], [0.2, 0.3], [0.4, 0.5]], [[0.6, nan], [0.7, nan], [0.8, nan]]])
    selection = analysis.select_l2(validation, test)
    np.testing.assert_array_equal(selection["validation_accuracy"], [[0.7, 0.9], [0.3, nan]])
    assert selection.dims == ("layer", "token") and selection.attrs["model"] == "ViT"
    np.testing.assert_array_equal(selection, [[0.4, 0.3], [0.6, nan]])
    np.testing.assert_array_equal(selection.l2, [[10.0, 1.0], [0.1, nan]])
    first = analysis.select_l2(validation.isel(token=0, drop=True), test.isel(token=0, drop=True))
    np.testing.assert_array_equal(first, [0.4, 0.6])
    np.testing.assert_array_equal(first.l2, [10.0, 0.1])


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"tokens": "first"}, "tokens to be one of"),
        ({"l2": (0.0, 1.0)}, "l2"),
        ({"model": lambda x: {"x": x[..., 0] * np.nan}}, "finite.*x"),
    ],
)
def test_errors(rng, options, words):
    data = make(rng, 20)
    with pytest.raises(ValueError, match=words):
        analysis.ridge_probe(
            **{"model": sequences, "train": data, "test": data, "num_classes": 4} | options
        )
