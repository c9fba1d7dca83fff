"""Two replicas train as one device does."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr

import vit_tf
from vit_tf import analysis
from vit_tf.distribute import strategy
from vit_tf.training import Recipe


def test_names():
    assert strategy("none").num_replicas_in_sync == 1
    gpus = len(tf.config.list_logical_devices("GPU"))
    assert strategy("auto").num_replicas_in_sync == max(gpus, 1)
    assert strategy("mirrored").num_replicas_in_sync == (gpus or 2)
    with pytest.raises(ValueError, match="auto, none, mirrored"):
        strategy("tpu9000")


def test_two_replicas_follow_the_loss_curve_of_one_device(rng):
    images = rng.normal(size=(64, 4, 4, 1)).astype("float32")
    labels = rng.integers(3, size=64)
    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(16)
    # Gradients are longer than the limit, so that where they are clipped shows.
    recipe = Recipe(epochs=6, learning_rate=0.02, clip_norm=0.05)

    def losses(name):
        keras.utils.set_random_seed(1)
        with strategy(name).scope():
            layers = [keras.layers.Flatten(), keras.layers.Dense(8, "gelu"), keras.layers.Dense(3)]
            model = keras.Sequential([keras.Input((4, 4, 1)), *layers])
            recipe.compile(model, steps_per_epoch=4)
        assert model.distribute_strategy.num_replicas_in_sync == (2 if name == "mirrored" else 1)
        return model.fit(data, epochs=recipe.epochs, shuffle=False, verbose=0).history["loss"]

    alone, together = losses("none"), losses("mirrored")
    assert alone[-1] < alone[0] - 0.1
    np.testing.assert_allclose(together, alone, atol=1e-5)


def statistics(vit, bit, data):
    """Every statistic of a ViT and a BiT, as requests of one pass."""
    every = vit_tf.submodel(vit, "*")
    sums = analysis.choose(every, [tap for tap in vit.taps if tap.endswith("/sum")])
    other = vit_tf.submodel(bit, "stage*/sum")
    probe = analysis.probe_statistic
    return {
        "cka": (analysis.cka_statistic(sums), sums),
        "cross": (analysis.cka_statistic(sums, other), sums, other),
        "distance": (analysis.attention_statistic(every), every),
        "skips": (analysis.skip_statistic(every), every),
        "localization": (analysis.localization_statistic(sums), sums),
        "heads": (analysis.head_statistic(every, other), every, other),
        "probe": (probe(sums, data, 3, tokens="each"), sums),
        "wide": (probe(other, data, 3, tokens="first"), other),
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
        totals = analysis.one_pass(requests, data)
    return vit, bit, data, {key: requests[key][0].finish(totals[key]) for key in requests}


def values(result):
    """The arrays of a result."""
    if hasattr(result, "weights"):
        return list(result.weights.values())
    return list(result.data_vars.values()) if hasattr(result, "data_vars") else [result]


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
    for name, features, tokens in [("probe", sums, "each"), ("wide", other, "first")]:
        score = analysis.fit_ridge_probe(features, data, 3, tokens=tokens)(data)
        statistic = analysis.score_statistic(features, results[name])
        totals = analysis.one_pass({"": (statistic, features)}, data)[""]
        xr.testing.assert_identical(statistic.finish(totals), score)


def test_gradients_are_clipped_after_their_sum_over_replicas():
    with strategy("mirrored").scope():
        variable = keras.Variable(np.zeros(2, "float32"), name="kernel")
        optimizer = Recipe(clip_norm=1.0, warmup_epochs=0).optimizer(1)
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
