"""Masked patch prediction: draws, colours and logits against NumPy, and what it learns."""

import itertools
import warnings

import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf
from scipy.special import logsumexp

import vit_tf
from vit_tf import HybridViT, MaskedPatchPrediction, Pretraining, ViT, data
from vit_tf.data.augmentation import colours, draw_corruption
from vit_tf.distribute.strategies import strategy

TINY = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 16, "num_classes": 5}
OBLONG = {"image_shape": (8, 12, 3), "patch_size": 4, **TINY}
SPECIAL = vit_tf.Preprocessing((8, 12), (0.4, 0.5, 0.6), (0.3, 0.2, 0.1))


def make_model(**changes):
    """A model whose every weight is random."""
    model = MaskedPatchPrediction(ViT(**OBLONG | changes))
    oracles.randomize(model)
    return model


def make_inputs(rng, count=3, num_patches=6):
    """Images of shape (count, 8, 12, 3) and a corruption of each."""
    images = rng.uniform(-1, 1, (count, 8, 12, 3)).astype("float32")
    return images, *draw_corruption(count, num_patches, tf.constant([3, 4], tf.int64))


def expected_colours(images, rows, columns):
    """3-bit mean colours of images in [0, 1], patch by patch in float64."""
    parts = [np.split(half, columns, axis=2) for half in np.split(images, rows, axis=1)]
    means = [part.astype(float).mean(axis=(1, 2)) for part in itertools.chain(*parts)]
    red, green, blue = np.minimum(np.floor(8 * np.stack(means, axis=1)), 7).T
    return (64 * red + 8 * green + blue).T


@pytest.mark.parametrize("preprocessing", [vit_tf.Preprocessing.of((8, 12, 3)), SPECIAL])
def test_colours_are_mean_colours_in_three_bits(rng, preprocessing):
    images = rng.uniform(size=(500, 1, 1, 3)) * rng.uniform(0.5, 1, size=(500, 8, 12, 3))
    normalised = (images - preprocessing.mean) / preprocessing.std
    found = colours(tf.constant(normalised, tf.float32), 2, 3, preprocessing)
    expected = expected_colours(images, 2, 3)
    np.testing.assert_array_equal(found, expected)
    assert len(np.unique(expected)) > 200
    for value, colour in ((0, 0), (1, 511)):
        plain = (np.full((1, 8, 12, 3), value) - preprocessing.mean) / preprocessing.std
        assert np.unique(colours(tf.constant(plain, tf.float32), 2, 3, preprocessing)) == colour


@pytest.mark.parametrize("num_patches", [9, 16])
def test_half_of_each_image_is_corrupted_in_the_fractions_of_the_paper(num_patches):
    drawn = draw_corruption(4000, num_patches, tf.constant([1, 2], tf.int64))
    sources, places = (part.numpy() for part in drawn)
    assert places.shape == (4000, num_patches // 2)
    assert all(len(set(row)) == num_patches // 2 for row in places)
    often = np.bincount(places.ravel()) / 4000
    np.testing.assert_allclose(often, (num_patches // 2) / num_patches, atol=0.03)

    own = np.arange(num_patches)
    free = np.ones_like(sources, bool)
    np.put_along_axis(free, places, False, axis=1)
    np.testing.assert_array_equal(sources[free], np.broadcast_to(own, sources.shape)[free])
    chosen = np.take_along_axis(sources, places, axis=1)
    masked, kept = chosen == num_patches, chosen == places
    shares = masked.mean(), kept.mean(), (~masked & ~kept).mean()
    np.testing.assert_allclose(shares, (0.8, 0.1, 0.1), atol=0.01)
    steps = ((chosen - places) % num_patches)[~masked & ~kept]
    assert chosen.min() == 0 and chosen.max() == num_patches
    np.testing.assert_allclose(
        np.bincount(steps, minlength=num_patches)[1:] / len(steps), 1 / (num_patches - 1), atol=0.02
    )


def test_embeddings_are_kept_replaced_or_masked_before_positions(rng):
    model = make_model()
    embedding = model.vit.embedding
    images, *_ = make_inputs(rng, 1)
    sources = np.array([[0, 6, 5, 3, 6, 5]], "int32")
    plain = embedding(images).numpy() - embedding.positions.numpy()
    found = embedding(images, corrupt=lambda patches: model.corrupt(patches, sources)).numpy()
    kept = [0, 1, 4, 6]  # the class token and patches 0, 3 and 5
    np.testing.assert_array_equal(found[:, kept], embedding(images).numpy()[:, kept])
    positions = embedding.positions.numpy()[0]
    for token in (2, 5):
        np.testing.assert_array_equal(found[0, token], model.mask.numpy()[0, 0] + positions[token])
    np.testing.assert_allclose(found[0, 3], plain[0, 6] + positions[3], atol=1e-6)


@pytest.mark.parametrize("pooling", ["cls", pytest.param("gap", marks=pytest.mark.slow)])
def test_logits_and_loss_are_those_of_numpy(rng, pooling):
    model = make_model(pooling=pooling)
    images, sources, places = make_inputs(rng)
    targets = rng.integers(512, size=places.shape)
    inner, mask = oracles.weights_of(model.vit), model.mask.numpy()[0].astype(float)
    prefix = model.vit.token_grid.prefix
    x = oracles.patches(images, inner, 4)
    table = np.concatenate([x[:, prefix:], np.tile(mask, (3, 1, 1))], axis=1)
    patches = np.stack([rows[which] for rows, which in zip(table, sources.numpy(), strict=True)])
    x = np.concatenate([x[:, :prefix], patches], axis=1) + inner["embedding/positions"]
    _, x = oracles.blocks(x, inner, 2, 2, "gelu", 1e-6)
    x = oracles.norm(x, inner, "norm", 1e-6)[:, prefix:]
    kernel, bias = (np.asarray(weight, float) for weight in model.head.weights)
    every = x @ kernel + bias
    expected = np.stack([rows[which] for rows, which in zip(every, places.numpy(), strict=True)])
    found = model((images, sources, places))
    np.testing.assert_allclose(found, expected, atol=1e-4)

    Pretraining().compile(model, 1)
    batch = tf.data.Dataset.from_tensors(((images, sources, places), targets))
    scores = model.evaluate(batch, return_dict=True, verbose=0)
    right = np.take_along_axis(expected, targets[..., None], axis=-1)[..., 0]
    assert scores["loss"] == pytest.approx((logsumexp(expected, axis=-1) - right).mean(), rel=1e-5)
    targets = expected.argmax(axis=-1)
    targets[0] = (targets[0] + 1) % 512
    batch = tf.data.Dataset.from_tensors(((images, sources, places), targets))
    accuracy = model.evaluate(batch, return_dict=True, verbose=0)["accuracy"]
    assert accuracy == pytest.approx(2 / 3)


KINDS = {
    "cls": {},
    "gap without skips": {"pooling": "gap", "without_skips": ("block01/mlp",)},
    "stem": {"image_shape": (32, 64, 3), "patch_size": 1, "stem_units": (1,)},
    "pre-logits": {"representation_dim": 4},
    "bfloat16": {"dtype": "mixed_bfloat16"},
}


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, id=name, marks=[pytest.mark.slow] if name == "stem" else [])
        for name, kind in KINDS.items()
    ],
)
def test_nothing_corrupted_is_the_plain_model(rng, kind):
    vit = (HybridViT if "stem_units" in kind else ViT)(**OBLONG | kind)
    model = MaskedPatchPrediction(vit)
    images = rng.uniform(-1, 1, (2, *vit.image_shape)).astype("float32")
    num = vit.token_grid.num_spatial
    own = np.tile(np.arange(num, dtype="int32"), (2, 1))
    tokens = vit.token_grid.spatial(vit.intermediates(images)["norm"])
    found = model((images, own, own[:, ::-1]))
    np.testing.assert_array_equal(found, model.head(tokens[:, ::-1]))
    assert found.dtype == tf.float32


@pytest.mark.slow
def test_head_of_the_classifier_is_left_alone(rng):
    model = make_model(representation_dim=4)
    before = oracles.weights_of(model)
    inputs = make_inputs(rng)
    Pretraining(epochs=1, warmup_epochs=0).compile(model, 1)
    batch = tf.data.Dataset.from_tensors((inputs, np.zeros((3, 3), "int32")))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(batch, verbose=0, shuffle=False)
    same = {
        path for path, value in oracles.weights_of(model).items() if (value == before[path]).all()
    }
    unread = [*model.vit.head.weights, *model.vit.pre_logits.weights]
    assert same == {weight.path.split("/", 1)[1] for weight in unread}


@pytest.mark.slow
def test_it_compiles_to_the_same_gradients(rng):
    model = make_model()
    inputs = make_inputs(rng)

    def gradients():
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(model(inputs) ** 2)
        return tape.gradient(loss, [weight.value for weight in model.trainable_weights])

    plain, compiled = gradients(), tf.function(gradients, jit_compile=True)()
    for one, other in zip(plain, compiled, strict=True):
        np.testing.assert_allclose(tf.convert_to_tensor(one), other, rtol=1e-3, atol=1e-5)


def halves(count=512):
    """Images of which either half has one of three colours, as a data set, and its grid."""
    rng = np.random.default_rng(0)
    palette = np.array([[-0.9, 0.1, 0.9], [0.9, -0.9, 0.1], [0.1, 0.9, -0.9]])
    images = palette[rng.integers(3, size=(count, 2, 1))].repeat(4, axis=1).repeat(8, axis=2)
    images = tf.data.Dataset.from_tensor_slices((images.astype("float32"), np.zeros(count, int)))
    return images.batch(64), ViT((8, 8, 3), 2, **TINY).token_grid


def masks(dataset):
    """The sources of all images."""
    return np.concatenate([inputs[1] for inputs, _ in dataset.as_numpy_iterator()])


@pytest.mark.slow
def test_draws_follow_the_seed_and_the_epoch():
    images, grid = halves()
    keras.utils.set_random_seed(1)
    fresh, fixed = (data.mask_patches(images, grid, seed=5, fixed=fixed) for fixed in (False, True))
    first, second, once, again = masks(fresh), masks(fresh), masks(fixed), masks(fixed)
    assert (first != second).mean() > 0.3 and (once == again).all()
    keras.utils.set_random_seed(1)
    same, other = (data.mask_patches(images, grid, seed=seed) for seed in (5, 6))
    np.testing.assert_array_equal(masks(same), first)
    np.testing.assert_array_equal(masks(same), second)
    assert (masks(other) != first).mean() > 0.3
    assert (first[:64] != first[64:128]).mean() > 0.3  # other draws in the next batch
    assert len(np.unique(first, axis=0)) > 0.9 * len(first)  # and in the next image


@pytest.mark.slow
def test_it_learns_to_predict_colours_from_neighbours():
    """Of three colours, chance gets a third; the other patches of the half tell which."""
    images, grid = halves()
    keras.utils.set_random_seed(1)
    size = {"num_layers": 2, "num_heads": 2, "hidden_dim": 16, "mlp_dim": 32, "num_classes": 5}
    model = MaskedPatchPrediction(ViT((8, 8, 3), 2, **size))
    Pretraining(epochs=25, learning_rate=0.01).compile(model, 8)
    train = data.mask_patches(images, grid, seed=1)
    model.fit(train.repeat(25), verbose=0, shuffle=False)
    held_out = data.mask_patches(images, grid, seed=2, fixed=True)
    assert model.evaluate(held_out, return_dict=True, verbose=0)["accuracy"] > 0.9


def test_saved_model_is_the_same(rng, tmp_path):
    model = make_model(preprocessing=SPECIAL, dtype="mixed_bfloat16")
    inputs = make_inputs(rng)
    model.save(tmp_path / "masked.keras")
    loaded = vit_tf.load_model(tmp_path / "masked.keras")
    np.testing.assert_array_equal(loaded(inputs), model(inputs))
    assert loaded.vit.preprocessing == SPECIAL and loaded.vit.compute_dtype == "bfloat16"
    model.vit.save(tmp_path / "vit.keras")
    vit = vit_tf.load_model(tmp_path / "vit.keras")
    np.testing.assert_array_equal(vit(inputs[0]), model.vit(inputs[0]))
    assert len(vit.trainable_weights) == len(vit.weights)


@pytest.mark.slow
def test_two_replicas_train_as_one_device(tmp_path):
    images, grid = halves(69)  # the last batch has 21
    trained = {}
    for name in ("none", "mirrored"):
        with strategy(name).scope():
            keras.utils.set_random_seed(1)
            model = MaskedPatchPrediction(ViT((8, 8, 3), 2, **TINY))
            fixed = data.mask_patches(images.unbatch().batch(24), grid, fixed=True)
            fixed = fixed.apply(tf.data.experimental.assert_cardinality(3))
            recipe = Pretraining(epochs=1, learning_rate=0.01)
            vit_tf.train(model, recipe, fixed, fixed, tmp_path / name, verbose=0)
        trained[name] = model.get_weights()
    for one, other in zip(*trained.values(), strict=True):
        np.testing.assert_allclose(one, other, atol=1e-5)


def test_mistakes_are_refused():
    images, _ = halves(8)
    with pytest.raises(ValueError, match="Expected images of"):
        data.mask_patches(images, vit_tf.TokenGrid(3, 4, 0, 2))
    with pytest.raises(ValueError, match="at least two patches"):
        data.mask_patches(images, vit_tf.TokenGrid(1, 1, 0, 8))
    with pytest.raises(ValueError, match="vit to be a ViT"):
        MaskedPatchPrediction(keras.Sequential())
    for field, value in {"mixup": 0.1, "label_smoothing": 0.1, "rand_augment": {}}.items():
        with pytest.raises(ValueError, match=f"Expected {field} to be"):
            Pretraining(**{field: value})
