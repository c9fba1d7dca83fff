"""The fine-tuning recipes against the papers' tables and formulas; resumed runs against whole."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_runs import kill_at, make_data, make_model, read_log

from vit_tf import FineTuning, Recipe, data, train
from vit_tf.training.optimizers import SGD, WarmupDecay

RECIPE = FineTuning(
    steps=24,
    learning_rate=0.05,
    warmup_steps=6,
    ema=0.5,
    flip=True,
    resize=(4, 4),
    crop=(4, 4),
    validations=4,
)


def test_staircase_is_divided_by_ten_at_30_60_and_90_percent():
    schedule = WarmupDecay(0.3, 100, 1000, "staircase")
    found = {step: float(schedule(step)) for step in (0, 50, 99, 100, 299, 300, 600, 899, 900, 999)}
    expected = [0, 0.15, 0.297, 0.3, 0.3, 0.03, 0.003, 0.003, 0.0003, 0.0003]
    np.testing.assert_allclose(list(found.values()), expected, rtol=1e-5)
    assert Recipe(epochs=10, schedule="staircase").learning_rates(7).decay == "staircase"


def test_sgd_is_the_formula(rng):
    """Momentum 0.9 of gradients clipped by their global norm, and no decay of weights."""
    values = [rng.normal(size=(3, 2)), rng.normal(size=(4,))]
    variables = [keras.Variable(value, name="kernel") for value in values]
    recipe = FineTuning(steps=10, learning_rate=0.2, warmup_steps=2, clip_norm=1.5, validations=1)
    optimizer = recipe.make_optimizer()
    optimizer.build(variables)
    velocity = [np.zeros_like(value) for value in values]
    for step in range(6):
        gradients = [rng.normal(size=value.shape) * 3.0 ** (step - 3) for value in values]
        optimizer.apply([tf.constant(g, tf.float32) for g in gradients], variables)
        norm = np.sqrt(sum((g**2).sum() for g in gradients))
        rate = 0.2 * (step / 2 if step < 2 else (1 + np.cos(np.pi * (step - 2) / 8)) / 2)
        for i, gradient in enumerate(gradients):
            velocity[i] = 0.9 * velocity[i] - rate * gradient * min(1, 1.5 / norm)
            values[i] = values[i] + velocity[i]
            np.testing.assert_allclose(variables[i], values[i], atol=2e-6)
    assert isinstance(optimizer, SGD) and not optimizer.use_ema
    assert FineTuning(ema=0.99).make_optimizer().ema_momentum == 0.99


@pytest.mark.parametrize(
    "examples, steps, warmup, mixup",
    [(19_999, 500, 100, 0), (20_000, 10_000, 500, 0.1), (500_000, 20_000, 500, 0.1)],
)
def test_hyperrule_is_the_papers(examples, steps, warmup, mixup):
    for size, resize, crop in [((95, 96), 160, 128), ((96, 96), 448, 384), ((375, 500), 448, 384)]:
        rule = FineTuning.hyperrule(examples, size)
        assert (rule.resize, rule.crop) == ((resize, resize), (crop, crop))
        assert (rule.steps, rule.mixup, rule.flip) == (steps, mixup, True)
        assert rule.clip_norm is None and rule.momentum == 0.9
        schedule = rule.make_optimizer()._learning_rate
        assert schedule.warmup_steps == warmup
        # The steps of `get_schedule` in BiT's bit_hyperrule.py, after each of which it divides.
        tenths = {500: (200, 300, 400), 10_000: (3000, 6000, 9000), 20_000: (6000, 12000, 18000)}
        for number, step in enumerate(tenths[steps]):
            rates = [float(schedule(at)) for at in (step - 1, step)]
            np.testing.assert_allclose(rates, [0.003 / 10**number, 0.0003 / 10**number], rtol=1e-5)
        assert schedule.peak == 0.003
    assert FineTuning.hyperrule(9, (8, 8), batch_size=128, flip=False).learning_rate == 0.003 / 4
    vit = FineTuning.vit(examples, learning_rate=0.03)
    assert vit == FineTuning(steps=steps, learning_rate=0.03)
    assert (vit.schedule, vit.clip_norm, vit.mixup, vit.crop) == ("cosine", 1.0, 0.0, None)


def test_recipe_is_a_dict_and_back():
    assert FineTuning(**json.loads(json.dumps(dataclasses.asdict(RECIPE)))) == RECIPE


@pytest.mark.parametrize(
    "field, value",
    [
        ("steps", 0),
        ("steps", 33),
        ("learning_rate", 0.0),
        ("momentum", 1.0),
        ("warmup_steps", 500),
        ("schedule", "stairs"),
        ("clip_norm", 0.0),
        ("ema", 1.0),
        ("mixup", -0.1),
        ("resize", (8, 8)),
        ("validations", 0),
    ],
)
def test_recipe_refuses(field, value):
    with pytest.raises(ValueError, match=rf"{field}.*Received: .*{str(value)[:3].strip('(')}"):
        FineTuning(**{field: value})


def test_crops_are_cut_at_every_place_and_nothing_else():
    rows, columns = np.indices((5, 7))
    image = np.stack([rows, columns, 0 * rows], axis=-1).astype("float32")
    batches = tf.data.Dataset.from_tensors((np.stack([image] * 400), np.zeros(400, "int32")))
    recipe = FineTuning(resize=(5, 7), crop=(3, 4))
    (cut,) = (images for images, _ in recipe.augment(batches, 2).as_numpy_iterator())
    assert cut.shape == (400, 3, 4, 3)
    corners = cut[:, 0, 0, :2]
    np.testing.assert_array_equal(cut[..., :2] - corners[:, None, None], [image[:3, :4, :2]] * 400)
    places, counts = np.unique(corners, axis=0, return_counts=True)
    assert len(places) == 3 * 4 and counts.min() > 15
    assert abs(np.corrcoef(corners.T)[0, 1]) < 0.15
    both = data.augment(batches, 2, crop=(3, 4), flip=True)
    (flipped,) = (images for images, _ in both.as_numpy_iterator())
    mirrored = flipped[:, 0, 0, 1] > flipped[:, 0, 1, 1]
    left = flipped[:, 0].min(axis=1)[:, 1]
    assert 140 < mirrored.sum() < 260 and abs(np.corrcoef(mirrored, left)[0, 1]) < 0.15
    assert FineTuning().augment(batches, 2) is batches
    for crop in [(6, 7), (0, 3), (3,)]:
        with pytest.raises(ValueError, match=r"crop.*at most \(5, 7\)"):
            data.augment(batches, 2, crop=crop)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    """Model and history of a run whose rounds of 6 steps are not passes over the 5 batches."""
    model = make_model()
    directory = tmp_path_factory.mktemp("whole")
    history = train(model, RECIPE, *make_data(), directory, verbose=0)
    assert [row["epoch"] for row in read_log(directory)] == ["1", "2", "3", "4"]
    return model, history


@pytest.mark.slow
def test_fine_tuning_learns(undisturbed):
    _, history = undisturbed
    assert len(history["loss"]) == 4 and history["val_accuracy"][-1] > 0.6
    peaks = [float(WarmupDecay(0.05, 6, 24)(step)) for step in (6, 12, 18, 24)]
    np.testing.assert_allclose(history["learning_rate"], peaks, atol=1e-7)


@pytest.mark.slow
@pytest.mark.parametrize("method, call", [("on_train_batch_end", 15), ("save_state", 4)])
def test_resumed_run_is_the_undisturbed_one(undisturbed, tmp_path, monkeypatch, method, call):
    model, history = undisturbed
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        kill_at(context, method, call)
        train(make_model(), RECIPE, *make_data(), tmp_path, verbose=0)
    resumed = make_model()
    again = train(resumed, RECIPE, *make_data(), tmp_path, verbose=0)
    assert {k: pytest.approx(v, abs=1e-6) for k, v in history.items()} == again
    for w, v in zip(resumed.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(w, v, atol=1e-6)
    other = dataclasses.replace(RECIPE, momentum=0.5)
    with pytest.raises(ValueError, match=r"recipe.momentum: 0.9 there, 0.5 now"):
        train(make_model(), other, *make_data(), tmp_path, verbose=0)
