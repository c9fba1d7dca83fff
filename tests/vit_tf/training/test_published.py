"""Recipes by name against what the papers say, and small runs of what they ask for."""

import dataclasses

import keras
import numpy as np
import pytest

import vit_tf
from vit_tf.models.transformer import Block, sine_cosine_positions
from vit_tf.scripts import train as train_script
from vit_tf.tokens import TokenGrid
from vit_tf.training.optimizers import SGD, WarmupDecay
from vit_tf.training.recipes import RECIPES, Recipe


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


def test_every_recipe_is_whole():
    for name, published in RECIPES.items():
        assert "arxiv.org" in published.source and published.recipe.flip, name
        assert Recipe(**published.recipe.to_config()) == published.recipe
        assert getattr(vit_tf, published.model)
        options = train_script.parse(["--recipe", name, "--out", "run"])
        assert options.validation == 0.01, name  # `train[:99%]` in big_vision's configurations
    with pytest.raises(ValueError, match=r"recipe.*plain-vit-s16.*Received: 'plain-vit-s32'"):
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
    assert "position_type" not in vit_tf.ViT((8, 8, 3), num_classes=3, **sizes).get_config()
    wider = vit_tf.at_resolution(model, (16, 16))
    assert wider.position_embedding.shape == (16, 8) and not wider.embedding.positions.trainable
    with pytest.raises(ValueError, match=r"position_type.*Received: 'fixed'"):
        vit_tf.ViT((8, 8, 3), position_type="fixed", **sizes)


def test_momentum_is_sgd_that_decays_kernels_only():
    recipe = Recipe(epochs=2, learning_rate=0.1, warmup_steps=0, momentum=0.9, weight_decay=0.5)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
    model.layers[0].bias.assign([1.0, 2.0])
    recipe.compile(model, 4)
    assert isinstance(model.optimizer, SGD) and model.optimizer.momentum == 0.9
    model.optimizer.build(model.trainable_variables)
    kernel = model.layers[0].kernel.numpy()
    zeros = [np.zeros(v.shape, "float32") for v in model.trainable_variables]
    model.optimizer.apply(zeros, model.trainable_variables)
    np.testing.assert_allclose(model.layers[0].kernel, kernel * (1 - 0.1 * 0.5), rtol=1e-6)
    np.testing.assert_array_equal(model.layers[0].bias, [1.0, 2.0])


def test_warmup_in_steps():
    schedule = Recipe(epochs=10, learning_rate=0.5, warmup_steps=10).learning_rates(4)
    assert isinstance(schedule, WarmupDecay) and float(schedule(5)) == pytest.approx(0.25)
    with pytest.raises(ValueError, match=r"below the 40 steps of the run.*warmup_steps=40"):
        Recipe(epochs=10, warmup_steps=40).learning_rates(4)
    with pytest.raises(ValueError, match="without warmup_epochs"):
        Recipe(warmup_epochs=1, warmup_steps=3)
    later = {"warmup_steps", "momentum", "erase", "epsilon", "layer_decay"}
    later |= {"gradient_accumulation_steps", "optimizer"}
    assert dataclasses.asdict(Recipe()).keys() - Recipe().to_config().keys() == later


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
    assert (deit.batch_size, deit.repeats, deit.area, deit.crop) == (1024, 3, (0.08, 1.0), 0.875)
    made = deit.recipe
    assert (made.epochs, made.warmup_epochs, made.weight_decay) == (300, 5, 0.05)
    assert (made.mixup, made.cutmix, made.erase, made.label_smoothing) == (0.8, 1.0, 0.25, 0.1)
    model = deit.make_model(10, image_shape=(32, 32, 3), num_layers=3)
    assert [block.stochastic_depth for block in model.blocks] == [0, 0.05, 0.1]
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
