"""Two replicas train as one device does."""

import keras
import numpy as np
import pytest
import tensorflow as tf

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


def test_every_analysis_gives_on_two_replicas_what_it_gives_on_one_device(rng):
    images = rng.normal(size=(40, 16, 16, 3)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices((images, rng.integers(3, size=40))).batch(8)

    def results(name):
        keras.utils.set_random_seed(0)
        with strategy(name).scope():
            vit = vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 16, 3)
            sums = vit_tf.submodel(vit, "*/sum")
            return [
                analysis.cka(sums, data).cka,
                analysis.attention_distance(
                    vit_tf.submodel(vit, "*/weights"), data, vit.token_grid
                ),
                analysis.receptive_field(sums, data),
                analysis.receptive_field(sums, data, channels=2),
                analysis.skip_ratio(vit_tf.submodel(vit, "*/skip", "*/branch"), data).norm_ratio,
                analysis.ridge_probe(sums, data, data, 3),
            ]

    for alone, together in zip(results("none"), results("mirrored"), strict=True):
        np.testing.assert_allclose(together, alone, atol=1e-6)


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
