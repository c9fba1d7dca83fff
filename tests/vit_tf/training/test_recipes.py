"""Recipes against what the papers say, and small runs of what they ask for."""

import dataclasses
import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from training_runs import make_data, make_model, read_log

import vit_tf
from vit_tf import FineTuning, Recipe, data, train
from vit_tf.features.tokens import TokenGrid
from vit_tf.models.transformer import Block, sine_cosine_positions
from vit_tf.scripts import train as train_script
from vit_tf.training.optimizers import SGD, WarmupDecay
from vit_tf.training.recipes import RECIPES


def test_recipes_are_those_of_the_papers():
    plain = vit_tf.recipe("plain-vit-s16")
    assert (plain.recipe.epochs, plain.batch_size, plain.recipe.mixup) == (90, 1024, 0.2)
    assert plain.recipe.rand_augment["augmentations_per_image"] == 2
    assert plain.recipe.rand_augment["magnitude"] == 1.0  # 10 of 10
    assert plain.arguments["pooling"] == "gap" and plain.arguments["position_type"] == "sincos"
    # 99 % of ImageNet's 1,281,167 images: 1,238 steps in an epoch.
    rates = plain.recipe.learning_rates(1238)
    assert rates.total_steps == 111_420 and float(rates(10_000)) == pytest.approx(1e-3)
    assert float(rates(5000)) == pytest.approx(5e-4)

    vit = vit_tf.recipe("vit-b16")
    assert (vit.recipe.epochs, vit.batch_size, vit.recipe.weight_decay) == (300, 4096, 0.3)
    assert vit.recipe.learning_rate == 3e-3 and vit.arguments["dropout_rate"] == 0.1
    assert vit.recipe.clip_norm == 1.0 and vit.recipe.warmup_steps == 10_000

    augreg = vit_tf.recipe("augreg-b16")
    assert (augreg.recipe.mixup, augreg.recipe.learning_rate) == (0.5, 1e-3)
    assert vit_tf.recipe("augreg-ti16").recipe.mixup == 0.0

    bit = vit_tf.recipe("bit-r50x1")
    assert bit.recipe.learning_rate == pytest.approx(0.48) and bit.recipe.momentum == 0.9
    rates = bit.recipe.learning_rates(1000)
    for epoch, share in {29.9: 1, 30.1: 0.1, 59.9: 0.1, 60.1: 0.01, 79.9: 0.01, 80.1: 1e-3}.items():
        assert float(rates(1000 * epoch)) == pytest.approx(0.48 * share, rel=1e-5)
    assert float(rates(2500)) == pytest.approx(0.24)


def test_every_recipe_is_complete():
    for name, published in RECIPES.items():
        assert "arxiv.org" in published.source and published.recipe.flip, name
        assert Recipe(**published.recipe.to_config()) == published.recipe
        assert getattr(vit_tf, published.model)
        options = train_script.parse(["--recipe", name, "--out", "run"])
        assert options.validation == 0.01, name  # `train[:99%]` in big_vision's configurations
    with pytest.raises(ValueError, match=r"Unknown recipe: 'plain-vit-s32'.*plain-vit-s16"):
        vit_tf.recipe("plain-vit-s32")


def test_the_learning_rate_follows_the_batch():
    half = vit_tf.recipe("plain-vit-s16").with_batches_of(512)
    assert (half.batch_size, half.recipe.learning_rate) == (512, 5e-4)
    assert half.recipe.warmup_steps == 10_000


def test_a_model_is_that_of_the_paper():
    model = vit_tf.recipe("plain-vit-s16").make_model(num_classes=10, num_layers=1)
    assert model.token_grid == TokenGrid(14, 14, 0, 16)
    positions = model.embedding.positions
    assert not positions.trainable and positions.shape == (1, 196, 384)


def test_sine_cosine_positions_are_the_formula():
    found = sine_cosine_positions(TokenGrid(3, 5, 1, 4), 16).astype(float)
    assert found.shape == (16, 16) and not found[0].any()
    for row in range(3):
        for column in range(5):
            token = found[1 + row * 5 + column]
            for k in range(4):
                wave = 10_000.0 ** (-k / 3)
                expected = [np.sin(column * wave), np.cos(column * wave)]
                expected += [np.sin(row * wave), np.cos(row * wave)]
                np.testing.assert_allclose(token[k::4], expected, atol=1e-6)
    with pytest.raises(ValueError, match=r"multiple of 4.*Received: hidden_dim=6"):
        sine_cosine_positions(TokenGrid(3, 3, 0, 4), 6)


def test_fixed_positions_stay_and_are_saved(tmp_path):
    sizes = {"patch_size": 4, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}
    model = vit_tf.ViT((8, 8, 3), num_classes=3, position_type="sincos", pooling="gap", **sizes)
    expected = sine_cosine_positions(TokenGrid(2, 2, 0, 4), 8)
    np.testing.assert_array_equal(model.position_embedding, expected)
    assert "embedding/positions" not in [v.path for v in model.trainable_variables]
    model.save(tmp_path / "model.keras")
    again = keras.saving.load_model(tmp_path / "model.keras")
    np.testing.assert_array_equal(again.position_embedding, expected)
    assert again.get_config()["position_type"] == "sincos"
    plain = vit_tf.ViT((8, 8, 3), num_classes=3, **sizes)
    assert plain.get_config()["position_type"] == "learned"
    wider = vit_tf.at_resolution(model, (16, 16))
    assert wider.position_embedding.shape == (16, 8) and not wider.embedding.positions.trainable
    with pytest.raises(ValueError, match=r"Unknown position_type: 'fixed'"):
        vit_tf.ViT((8, 8, 3), position_type="fixed", **sizes)


def test_warmup_in_steps():
    schedule = Recipe(epochs=10, learning_rate=0.5, warmup_steps=10).learning_rates(4)
    assert isinstance(schedule, WarmupDecay) and float(schedule(5)) == pytest.approx(0.25)
    with pytest.raises(ValueError, match=r"below the 40 steps of the run.*warmup_steps=40"):
        Recipe(epochs=10, warmup_steps=40).learning_rates(4)
    with pytest.raises(ValueError, match="None, since warmup_epochs is set"):
        Recipe(warmup_epochs=1, warmup_steps=3)


def test_options_override_a_recipe():
    line = ["--out", "x", "--recipe", "plain-vit-s16", "--mixup", "0.1"]
    options = train_script.parse([*line, "--batch-size", "256"])
    assert (options.model, options.variant, options.image_size) == ("vit", "S/16", 224)
    assert (options.pooling, options.position_type, options.batch_size) == ("gap", "sincos", 256)
    assert options.random_resized_crop == 0.05
    recipe = train_script.make_recipe(options)
    assert (recipe.learning_rate, recipe.epochs, recipe.mixup) == (2.5e-4, 90, 0.1)
    assert (recipe.warmup_steps, recipe.flip) == (10_000, True)
    more = ["--learning-rate", "0.5", "--warmup-epochs", "2", "--no-flip", "--rand-augment", "none"]
    recipe = train_script.make_recipe(train_script.parse([*line, *more]))
    assert (recipe.learning_rate, recipe.warmup_epochs, recipe.warmup_steps) == (0.5, 2, None)
    assert recipe.flip is False and recipe.rand_augment is False
    sgd = train_script.make_recipe(train_script.parse([*line, "--momentum", "0.9"]))
    assert (sgd.momentum, sgd.epsilon) == (0.9, None)
    bit = train_script.parse(["--out", "x", "--recipe", "bit-r50x1"])
    assert (bit.model, bit.variant) == ("bit", "R50x1")
    published = vit_tf.recipe("bit-r50x1").recipe
    assert train_script.make_recipe(bit) == published
    for name in ("muon", "adamw", "sgd"):
        line = ["--out", "x", "--recipe", "bit-r50x1", "--optimizer", name]
        recipe = train_script.make_recipe(train_script.parse(line))
        assert recipe == dataclasses.replace(published, optimizer=name, momentum=None)
    line = ["--out", "x", "--recipe", "plain-vit-s16", "--optimizer"]
    muon = train_script.make_recipe(train_script.parse([*line, "muon"]))
    assert (muon.optimizer, muon.epsilon) == ("muon", 1e-8)
    sgd = train_script.make_recipe(train_script.parse([*line, "sgd"]))
    assert (sgd.optimizer, sgd.epsilon) == ("sgd", None)
    plain = train_script.parse(["--out", "x"])
    assert (plain.batch_size, plain.image_size, plain.model) == (128, 32, "vit")
    assert train_script.make_recipe(plain) == Recipe()


@pytest.mark.slow
def test_a_recipe_scaled_down_trains(tmp_path, capsys):
    line = "--recipe plain-vit-s16 --image-size 16 --patch-size 8 --num-layers 1 --num-heads 2"
    line += " --hidden-dim 16 --mlp-dim 16 --take 48 --batch-size 16 --epochs 2 --warmup-steps 2"
    line += " --learning-rate 0.001 --rand-augment none --strategy none"
    assert train_script.main([*line.split(), "--out", str(tmp_path)]) == 0
    assert "test accuracy" in capsys.readouterr().out
    model = vit_tf.load_model(tmp_path / "model.keras")
    assert (
        model.get_config()["position_type"] == "sincos" and not model.embedding.positions.trainable
    )


def test_deit_has_its_augmentations_and_stochastic_depth():
    """Table 9 of the paper and the defaults of main.py of its code."""
    deit = vit_tf.recipe("deit-s16")
    assert (deit.batch_size, deit.repeats, deit.crop) == (1024, 3, 0.875)
    assert deit.area == (0.08, 1.0, "torchvision")
    made = deit.recipe
    assert (made.epochs, made.warmup_epochs, made.weight_decay) == (300, 5, 0.05)
    assert (made.mixup, made.cutmix, made.erase, made.label_smoothing) == (0.8, 1.0, 0.25, 0.1)
    model = deit.make_model(10, image_shape=(32, 32, 3), num_layers=3)
    rates = [block.get_config()["stochastic_depth"] for block in model.blocks]
    assert rates == [0, 0.05, 0.1]
    assert model.get_config()["stochastic_depth"] == 0.1


def test_augreg_has_pre_logits_of_its_width():
    for name, width in [("augreg-ti16", 192), ("augreg-s16", 384), ("augreg-l16", 1024)]:
        assert vit_tf.recipe(name).arguments["representation_dim"] == width


def test_stochastic_depth_drops_whole_branches_and_keeps_their_mean():
    keras.utils.set_random_seed(0)
    block = Block(2, 8, 16, stochastic_depth=0.5)
    tokens = np.random.default_rng(0).normal(size=(400, 3, 8)).astype("float32")
    kept, plain = block(tokens, training=True), block(tokens)
    branch = np.asarray(kept["attention/branch"])
    full = np.asarray(plain["attention/branch"])
    dropped = (branch == 0).all(axis=(1, 2))
    assert 0.4 < dropped.mean() < 0.6
    np.testing.assert_allclose(branch[~dropped], 2 * full[~dropped], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_an_image_is_repeated_with_another_crop():
    (train,) = vit_tf.data.load(
        *("digits",),
        **{"image_size": 8, "splits": ("train",), "take": 20, "batch_size": 6, "repeats": 3},
    )
    labels = np.concatenate([labels for _, labels in train.as_numpy_iterator()])
    assert len(labels) == 20 and int(train.cardinality()) == 4
    images = np.concatenate([images for images, _ in train.as_numpy_iterator()])
    for start in range(0, 18, 3):
        np.testing.assert_array_equal(images[start], images[start + 2])
    (cropped,) = vit_tf.data.load(
        "digits",
        **{"image_size": 8, "splits": ("train",), "take": 20, "batch_size": 6, "repeats": 3},
        random_resized_crop=(0.1, 0.5),
    )
    images = next(iter(cropped))[0].numpy()
    assert not np.array_equal(images[0], images[1])


FINE_TUNING = FineTuning(
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


def test_crops_are_cut_at_every_place_and_nothing_else():
    rows, columns = np.indices((5, 7))
    image = np.stack([rows, columns, 0 * rows], axis=-1).astype("float32")
    batches = tf.data.Dataset.from_tensors((np.stack([image] * 400), np.zeros(400, "int32")))
    recipe = FineTuning(resize=(5, 7), crop=(3, 4))
    (cut,) = (images for images, _ in recipe.augment_batches(batches, 2).as_numpy_iterator())
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
    assert FineTuning().augment_batches(batches, 2) is batches
    for crop in [(6, 7), (0, 3), (3,)]:
        with pytest.raises(ValueError, match=r"crop.*at most \(5, 7\)"):
            data.augment(batches, 2, crop=crop)


@pytest.mark.slow
def test_fine_tuning_learns(tmp_path):
    """Rounds of 6 steps are not passes over the 5 batches."""
    history = train(make_model(), FINE_TUNING, *make_data(), tmp_path, verbose=0)
    assert [row["epoch"] for row in read_log(tmp_path)] == ["1", "2", "3", "4"]
    assert len(history["loss"]) == 4 and history["val_accuracy"][-1] > 0.6
    peaks = [float(WarmupDecay(0.05, 6, 24)(step)) for step in (6, 12, 18, 24)]
    np.testing.assert_allclose(history["learning_rate"], peaks, atol=1e-7)


def test_recipe_sets_the_schedule_in_epochs():
    schedule = Recipe(epochs=10, learning_rate=0.5, warmup_epochs=2.5).learning_rates(4)
    assert float(schedule(5)) == pytest.approx(0.25) and float(schedule(10)) == 0.5
    assert float(schedule(39)) > 0 and float(schedule(40)) == pytest.approx(0, abs=1e-8)
    assert Recipe(epochs=10).learning_rates(4).warmup_steps == 4


def test_the_optimizer_of_fine_tuning():
    """SGD without decay of weights, whose updates `test_optimizers` compares with the formula."""
    recipe = FineTuning(steps=10, learning_rate=0.2, warmup_steps=2, clip_norm=1.5, validations=1)
    optimizer = recipe.make_optimizer()
    assert isinstance(optimizer, SGD) and optimizer.momentum == 0.9
    assert optimizer.global_clipnorm == 1.5
    assert not optimizer.weight_decay and not optimizer.use_ema
    rates = [float(optimizer._learning_rate(step)) for step in (1, 2, 6)]
    np.testing.assert_allclose(rates, [0.1, 0.2, 0.1], rtol=1e-6)
    assert FineTuning(ema=0.99).make_optimizer().ema_momentum == 0.99


@pytest.mark.parametrize(
    "recipe", [FINE_TUNING, Recipe(epochs=7, ema=0.9, rand_augment={"magnitude": 0.2})]
)
def test_a_recipe_is_a_dict_and_back(recipe):
    assert type(recipe)(**json.loads(json.dumps(dataclasses.asdict(recipe)))) == recipe


@pytest.mark.parametrize(
    "make, field, value",
    [
        *((Recipe, "epochs", value) for value in (0, 2.5)),
        (Recipe, "warmup_epochs", 100),
        (Recipe, "weight_decay", -1.0),
        (Recipe, "label_smoothing", 1.0),
        (Recipe, "erase", 1.5),
        (Recipe, "layer_decay", 0.0),
        (Recipe, "epsilon", 0.0),
        (Recipe, "gradient_accumulation_steps", 0),
        *((FineTuning, "steps", value) for value in (0, 33)),
        (FineTuning, "warmup_steps", 500),
        (FineTuning, "resize", (8, 8)),
        (FineTuning, "validations", 0),
        *((make, "learning_rate", 0.0) for make in (Recipe, FineTuning)),
        *((make, "momentum", 1.0) for make in (Recipe, FineTuning)),
        *((make, "schedule", "cosin") for make in (Recipe, FineTuning)),
        *((make, "clip_norm", 0.0) for make in (Recipe, FineTuning)),
        *((make, "ema", 1.0) for make in (Recipe, FineTuning)),
        *((make, "mixup", -0.1) for make in (Recipe, FineTuning)),
    ],
)
def test_a_field_out_of_its_range(make, field, value):
    with pytest.raises(ValueError, match=rf"{field}.*{str(value)[:3].strip('(')}"):
        make(**{field: value})
