"""Callbacks of Keras that end a run or set its learning rate."""

import keras
import numpy as np
import pytest
from training_runs import assert_same_weights, make_data, make_model

from vit_tf.training.recipes import FineTuning, Recipe
from vit_tf.training.runs import train

pytestmark = pytest.mark.usefixtures("without_xla")

CONSTANT = Recipe(epochs=4, learning_rate=0.01, schedule="constant")


def run(directory, recipe, *callbacks):
    model = make_model()
    return model, train(model, recipe, *make_data(), directory, verbose=0, callbacks=callbacks)


class Epochs(keras.callbacks.Callback):
    """Counts the epochs that are trained."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def on_epoch_end(self, epoch, logs=None):
        self.count += 1


@pytest.mark.parametrize("ema, restore", [(None, False), (0.6, True)])
def test_a_run_that_a_callback_stopped_is_finished(tmp_path, ema, restore):
    def stopping():
        # No improvement is large enough: the first epoch stays the best one.
        return keras.callbacks.EarlyStopping(
            "val_loss", patience=1, min_delta=10.0, restore_best_weights=restore
        )

    recipe = Recipe(epochs=5, learning_rate=0.01, ema=ema)
    first, history = run(tmp_path, recipe, stopping())
    assert len(history["loss"]) == 2
    for _ in range(2):
        epochs = Epochs()
        again, same = run(tmp_path, recipe, stopping(), epochs)
        assert same == history and epochs.count == 0
        assert_same_weights(again, first)


def test_callbacks_set_a_constant_learning_rate(tmp_path):
    rates = {0: 0.02, 1: 0.01, 2: 0.005, 3: 0.0}
    _, history = run(
        tmp_path / "set",
        CONSTANT,
        keras.callbacks.LearningRateScheduler(lambda epoch: rates[epoch]),
    )
    np.testing.assert_allclose(history["learning_rate"], list(rates.values()))

    def reducing():
        return keras.callbacks.ReduceLROnPlateau("val_loss", 0.1, patience=1, min_delta=10.0)

    _, history = run(tmp_path / "reduced", CONSTANT, reducing())
    np.testing.assert_allclose(history["learning_rate"], [0.01, 0.01, 1e-3, 1e-4], rtol=1e-6)
    for recipe in (Recipe(epochs=4), FineTuning(steps=10, validations=2)):
        with pytest.raises(ValueError, match=r"ReduceLROnPlateau.*schedule='constant'"):
            run(tmp_path / "refused", recipe, reducing())
    assert not (tmp_path / "refused").exists()


def test_a_reduced_learning_rate_is_kept_by_a_run_that_resumes(tmp_path):
    def cut(epoch, logs):
        if epoch == 2:
            raise KeyboardInterrupt

    reducing = keras.callbacks.LearningRateScheduler(lambda epoch, rate: rate if epoch else 0.002)
    with pytest.raises(KeyboardInterrupt):
        cutting = keras.callbacks.LambdaCallback(on_epoch_begin=cut)
        run(tmp_path, CONSTANT, reducing, cutting)
    _, history = run(tmp_path, CONSTANT)
    np.testing.assert_allclose(history["learning_rate"], [0.002] * 4, rtol=1e-6)


def test_a_constant_rate_has_no_warm_up():
    assert float(CONSTANT.make_optimizer(5).learning_rate) == pytest.approx(0.01)
    assert float(CONSTANT.learning_rates(5)(0)) == pytest.approx(0.01)
    tuning = FineTuning(learning_rate=0.3, schedule="constant")
    assert float(tuning.make_optimizer().learning_rate) == pytest.approx(0.3)
    for warmup in ({"warmup_epochs": 1.0}, {"warmup_steps": 3}):
        with pytest.raises(ValueError, match="0 for schedule='constant'"):
            Recipe(schedule="constant", **warmup)
