"""Two replicas train as one device does."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf import analysis
from vit_tf.distribute import strategies as distribute
from vit_tf.distribute.strategies import strategy
from vit_tf.training.recipes import Recipe


def test_names():
    assert strategy("none").num_replicas_in_sync == 1
    current = tf.distribute.OneDeviceStrategy("CPU:0")
    with current.scope():
        assert strategy("none") is current
    gpus = len(tf.config.list_logical_devices("GPU"))
    assert strategy("auto").num_replicas_in_sync == max(gpus, 1)
    assert strategy("mirrored").num_replicas_in_sync == (gpus or 2)
    with pytest.raises(ValueError, match="Did you mean tpu"):
        strategy("tpu9")


def test_a_tpu_needs_jax():
    with pytest.raises(ValueError, match=r"needs KERAS_BACKEND=jax.*=tensorflow"):
        strategy("tpu")


def test_steps_in_one_call_divide_those_of_a_round():
    count = distribute.steps_per_execution
    assert [count(steps) for steps in (1, 60)] == [1, 1]
    assert [count(60, asked) for asked in (7, 60, 99)] == [6, 60, 60]


@pytest.mark.slow
def test_more_steps_in_one_call_train_equally(rng, tmp_path):
    images, labels = rng.normal(size=(48, 4, 4, 1)).astype("float32"), rng.integers(3, size=48)

    def trained(steps):
        keras.utils.set_random_seed(1)
        data = tf.data.Dataset.from_tensor_slices((images, labels)).shuffle(48, seed=1).batch(8)
        layers = [keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)]
        model, recipe = keras.Sequential(layers), Recipe(epochs=3, learning_rate=0.02)
        folder = tmp_path / str(steps)
        vit_tf.train(model, recipe, data, data, folder, verbose=0, steps_per_execution=steps)
        return model

    one, four = trained(1), trained(4)
    assert (one.steps_per_execution, four.steps_per_execution) == (1, 3)
    assert int(four.optimizer.iterations) == 18
    for few, many in zip(one.get_weights(), four.get_weights(), strict=True):
        np.testing.assert_allclose(many, few, atol=1e-6)


def statistics(vit, bit, data):
    """Every statistic of a ViT and a BiT, as requests of one pass."""
    every = vit_tf.submodel(vit, "*")
    sums = analysis.engine.choose(every, [tap for tap in vit.taps if tap.endswith("/sum")])
    other = vit_tf.submodel(bit, "stage*/sum")
    probe = analysis.ridge_probe.statistic
    return {
        "cka": (analysis.cka.statistic(sums), sums),
        "cross": (analysis.cka.statistic(sums, other), sums, other),
        "distance": (analysis.attention_distance.statistic(every), every),
        "skips": (analysis.skip_ratio.statistic(every), every),
        "localization": (analysis.localization.statistic(sums), sums),
        "heads": (analysis.head_similarity.statistic(every, other), every, other),
        "probe": (probe(sums, data, 3, tokens="each"), sums),
        "wide": (probe(other, data, 3, tokens="all"), other),
    }


def measured(name, rng):
    """Models, data, and the results of one pass of every statistic, under a strategy."""
    images = rng.normal(size=(40, 16, 16, 3)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((images, rng.integers(3, size=40))).batch(8)
    keras.utils.set_random_seed(0)
    with strategy(name).scope():
        vit = vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 16, 3)
        bit = vit_tf.BiT((16, 16, 3), (1, 1), 0.5, 3)
        requests = statistics(vit, bit, data)
        totals = analysis.engine.one_pass(requests, data)
    return vit, bit, data, {key: requests[key][0].finish(totals[key]) for key in requests}


def values(result):
    """The arrays of a result."""
    if hasattr(result, "weights"):
        return list(result.weights.values())
    return list(result.data_vars.values()) if hasattr(result, "data_vars") else [result]


@pytest.mark.slow
def test_every_analysis_gives_on_two_replicas_what_it_gives_on_one_device():
    def results(name):
        vit, _, data, results = measured(name, np.random.default_rng(0))
        sums = vit_tf.submodel(vit, "*/sum")
        with strategy(name).scope():
            results["fields"] = analysis.receptive_field(sums, data)
            results["sampled fields"] = analysis.receptive_field(sums, data, channels=2)
            results["score"] = analysis.ridge_probe(sums, data, data, 3)
        return results

    together = results("mirrored")
    for name, alone in results("none").items():
        for one, other in zip(values(alone), values(together[name]), strict=True):
            tf.nest.map_structure(partial(np.testing.assert_allclose, atol=1e-5), other, one)


@pytest.mark.slow
def test_one_pass_over_two_models_gives_what_each_analysis_gives_by_itself(rng):
    vit, bit, data, results = measured("none", rng)
    every, sums = vit_tf.submodel(vit, "*"), vit_tf.submodel(vit, "*/sum")
    other = vit_tf.submodel(bit, "stage*/sum")
    for name, result in {
        "cka": analysis.cka(sums, data),
        "cross": analysis.cka(sums, data, other),
        "distance": analysis.attention_distance(every, data, vit.token_grid),
        "skips": analysis.skip_ratio(every, data),
        "localization": analysis.localization(sums, data),
        "heads": analysis.head_similarity(every, other, data),
    }.items():
        xr.testing.assert_allclose(results[name], result, rtol=1e-5, atol=1e-6)
        assert results[name].attrs.keys() == result.attrs.keys()
    for name, features, tokens in [("probe", sums, "each"), ("wide", other, "all")]:
        score = analysis.fit_ridge_probe(features, data, 3, tokens=tokens)(data)
        statistic = analysis.score_statistic(features, results[name])
        totals = analysis.engine.one_pass({"": (statistic, features)}, data)[""]
        xr.testing.assert_identical(statistic.finish(totals), score)


def test_gradients_are_clipped_after_their_sum_over_replicas():
    with strategy("mirrored").scope():
        variable = keras.Variable(np.zeros(2, "float32"), name="kernel")
        optimizer = Recipe(clip_norm=1.0, warmup_epochs=0).make_optimizer(1)
        optimizer.build([variable])

    def step():
        number = tf.distribute.get_replica_context().replica_id_in_sync_group
        gradient = tf.where(tf.equal(number, 0), [3.0, 0.0], [0.0, 4.0])
        optimizer.apply([gradient])

    variable_strategy = optimizer._distribution_strategy
    variable_strategy.run(tf.function(step))
    momentum = next(v for v in optimizer.variables if v.name.endswith("momentum"))
    # The sum (3, 4) has norm 5; Adam's first moment is a tenth of the clipped gradient.
    np.testing.assert_allclose(momentum.numpy(), [0.06, 0.08], rtol=1e-5)
