"""The published recipes against the distributions and schedules of the code of their authors.

The references draw, in NumPy, from the distributions that this code has; none of it is repeated.
"""

import math

import keras
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats
from without_torchvision import import_or_skip

import vit_tf
from vit_tf.data import augmentation, imaging
from vit_tf.data.rand_augment import OPERATIONS, make_rand_augment
from vit_tf.training.objectives import SigmoidCrossEntropy

DRAWS, DISTANCE = 4000, 0.03  # of Kolmogorov's test, against a reference of many more draws
REFERENCE = 200_000


def distance(found, expected):
    """Kolmogorov's distance of two samples."""
    return stats.ks_2samp(np.ravel(found), np.ravel(expected)).statistic


def map_draws(function, draws, shape, dtype=tf.float32):
    """The results of a function for each of some draws, in a graph."""
    spec = tf.TensorSpec(shape, dtype)
    return tf.function(lambda: tf.map_fn(function, draws, fn_output_signature=spec))().numpy()


def crops(area, height, width):
    """Windows of crops of an image, (draw, 4)."""
    framing = imaging.Framing((8, 8), vit_tf.Preprocessing(None), imaging.CropArea(*area))
    drawn = framing.draw(DRAWS, tf.constant([3, 5]))
    window = framing.window

    def find(numbers):
        return window(numbers)(tf.constant(height), tf.constant(width))

    return map_draws(find, drawn, (4,), tf.int32)


def tensorflow_crops(rng, least, most, height, width):
    """Height, width and top of crops whose heights are uniform between the allowed ones."""
    aspect = rng.uniform(0.75, 1.33, REFERENCE)
    area = height * width
    lowest = np.rint(np.sqrt(least * area / aspect))
    highest = np.minimum(np.rint(np.sqrt(most * area / aspect)), np.floor((width + 0.5) / aspect))
    highest = np.minimum(highest, height)
    heights = rng.integers(np.minimum(lowest, highest), highest + 1)
    widths = np.rint(heights * aspect)
    kept = (widths <= width) & (heights * widths >= least * area)
    heights, widths = heights[kept], widths[kept]
    tops = np.floor(rng.random(len(heights)) * (height - heights))
    return heights, widths, tops


def torchvision_crops(rng, least, most, height, width):
    """The same of crops whose areas are uniform, and their logarithms of the aspect ratio."""
    area = rng.uniform(least, most, REFERENCE) * height * width
    aspect = np.exp(rng.uniform(math.log(3 / 4), math.log(4 / 3), REFERENCE))
    widths, heights = np.rint(np.sqrt(area * aspect)), np.rint(np.sqrt(area / aspect))
    kept = (widths <= width) & (heights <= height)
    heights, widths = heights[kept], widths[kept]
    tops = np.floor(rng.random(len(heights)) * (height - heights + 1))
    return heights, widths, tops


@pytest.mark.parametrize("size", [(500, 500), (375, 500)])
@pytest.mark.parametrize("name", ["plain-vit-s16", "augreg-s16", "bit-r50x1", "deit-s16"])
def test_crops_have_the_distribution_of_the_authors(rng, name, size):
    area = vit_tf.recipe(name).area
    reference = tensorflow_crops if area[2] == "tensorflow" else torchvision_crops
    found = crops(area, *size)
    expected = reference(rng, *area[:2], *size)
    for column, numbers in zip((2, 3, 0), expected, strict=True):
        assert distance(found[:, column], numbers) < DISTANCE
    shares = found[:, 2] * found[:, 3] / math.prod(size)
    assert distance(shares, expected[0] * expected[1] / math.prod(size)) < DISTANCE
    if area[2] == "tensorflow" and size[0] == size[1]:
        assert shares.mean() == pytest.approx(0.378, abs=0.01)


@pytest.mark.parametrize("size", [(500, 500), (375, 500)])
def test_crops_have_the_distribution_of_tensorflow(size):
    """Of TensorFlow's own function, with the arguments of the authors."""

    def draw(seed):
        start, extent, _ = tf.image.stateless_sample_distorted_bounding_box(
            (*size, 3),
            tf.zeros((1, 0, 4)),
            tf.stack([seed, 1]),
            min_object_covered=0.0,
            area_range=(0.05, 1.0),
            use_image_if_no_bounding_boxes=True,
        )
        return tf.concat([start[:2], extent[:2]], 0)

    expected = map_draws(draw, tf.range(DRAWS), (4,), tf.int32)
    found = crops((0.05, 1.0, "tensorflow"), *size)
    for column in range(4):
        # Both are samples: 1.36 sqrt(2 / 4000) is the 5 % threshold.
        assert distance(found[:, column], expected[:, column]) < 0.0304


@pytest.mark.parametrize(
    "name, rate, deviation", [("plain-vit-s16", 1.0, 0.0), ("deit-s16", 0.5, 0.05)]
)
def test_operations_have_the_distribution_of_the_authors(rng, name, rate, deviation):
    rand_augment = make_rand_augment(vit_tf.recipe(name).recipe.rand_augment)
    steps = len(OPERATIONS[rand_augment.operations])
    assert steps == {"plain-vit-s16": 16, "deit-s16": 15}[name]
    numbers, magnitudes, signs, _ = (
        x.numpy() for x in rand_augment.draw(DRAWS, tf.constant([1, 2]))
    )
    expected = np.where(rng.random(REFERENCE) < rate, rng.integers(0, steps, REFERENCE), -1)
    assert distance(numbers[:, 0], expected) < DISTANCE
    assert distance(numbers[:, 1], expected) < DISTANCE
    level = 10 * np.clip(rand_augment.magnitude + deviation * rng.normal(size=REFERENCE), 0, 1)
    assert distance(10 * magnitudes[:, 0].astype("float64").round(6), level.round(6)) < DISTANCE
    assert abs(signs.mean()) < DISTANCE


@pytest.mark.parametrize("name", ["plain-vit-s16", "augreg-s16", "deit-s16"])
def test_weights_of_mixup_have_the_distribution_of_the_authors(rng, name):
    recipe = vit_tf.recipe(name).recipe
    assert recipe.mix_per_batch
    images = tf.constant([0.0, 1.0])[:, None, None, None] * tf.ones((1, 2, 2, 3))
    labels = tf.eye(2)

    def draw(seed):
        mixed, shares = augmentation.mixup_batch(images, labels, seed, recipe.mixup, per_batch=True)
        return tf.concat([mixed[:, 0, 0, 0], shares[:, 0]], 0)

    seeds = tf.stack([tf.range(DRAWS), tf.ones(DRAWS, tf.int32)], axis=1)
    first, second, label, other = map_draws(draw, seeds, (4,)).T
    np.testing.assert_allclose([1 - first, second], [label, 1 - other], atol=1e-6)
    np.testing.assert_allclose(label, 1 - other, atol=1e-6)  # one weight for both images
    assert distance(label, rng.beta(recipe.mixup, recipe.mixup, REFERENCE)) < DISTANCE


def test_one_rectangle_of_cutmix_serves_a_batch(rng):
    images = tf.constant(rng.normal(size=(6, 32, 32, 3)), tf.float32)
    mixed, labels = augmentation.cutmix_batch(
        images, tf.eye(6), tf.constant([4, 2]), 1.0, per_batch=True
    )
    changed = np.any(mixed.numpy() != images.numpy(), axis=3)
    assert 0 < changed[0].mean() < 1 and (changed == changed[0]).all()
    np.testing.assert_array_equal(mixed[0][changed[0]], images[5][changed[0]])
    share = changed[0].mean()
    np.testing.assert_allclose(labels, (1 - share) * np.eye(6) + share * np.eye(6)[::-1], atol=1e-6)


def rates_of_big_vision(recipe, steps_per_epoch, step):
    """Linear from 0 to the peak, then a half cosine or a line to 0 at the last step."""
    total = recipe.epochs * steps_per_epoch
    warmup = recipe.warmup_steps
    progress = (step - warmup) / (total - warmup)
    fall = {"cosine": (1 + math.cos(math.pi * progress)) / 2, "linear": 1 - progress}
    fall = fall.get(recipe.schedule, 1.0)
    return recipe.learning_rate * (step / warmup if step < warmup else fall)


@pytest.mark.parametrize("name", ["vit-b16", "augreg-s16", "plain-vit-s16"])
def test_learning_rates_are_those_of_the_authors(name):
    published = vit_tf.recipe(name)
    steps_per_epoch = 1_281_167 // published.batch_size
    rates = published.recipe.learning_rates(steps_per_epoch)
    total, warmup = published.recipe.epochs * steps_per_epoch, published.recipe.warmup_steps
    for step in (0, 1, warmup, (warmup + total) // 2, total):
        expected = rates_of_big_vision(published.recipe, steps_per_epoch, step)
        assert float(rates(step)) == pytest.approx(expected, rel=1e-5, abs=1e-9)


@pytest.mark.parametrize("epoch", [0, 1, 2, 5, 6, 150, 299])
def test_the_learning_rates_of_deit_change_between_epochs(epoch):
    scheduler = import_or_skip("timm.scheduler")
    torch = pytest.importorskip("torch")
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1e-3)
    reference = scheduler.CosineLRScheduler(
        optimizer, t_initial=300, lr_min=1e-5, warmup_t=5, warmup_lr_init=1e-6
    )
    if epoch:  # after each epoch, DeiT's code passes the number of that epoch
        reference.step(epoch - 1)
    expected = optimizer.param_groups[0]["lr"]
    rates = vit_tf.recipe("deit-s16").recipe.learning_rates(1251)
    for step in (0, 1250):
        assert float(rates(1251 * epoch + step)) == pytest.approx(expected, rel=1e-4)


def test_the_operations_of_timm(rng):
    """On images and magnitudes for which interpolation plays no part."""
    auto_augment = import_or_skip("timm.data.auto_augment")
    from PIL import Image

    pixels = rng.integers(0, 256, (20, 24, 3)).astype("uint8")
    names = {
        "autocontrast": "AutoContrast",
        "equalize": "Equalize",
        "invert": "Invert",
        "posterize": "PosterizeIncreasing",
        "solarize": "SolarizeIncreasing",
        "solarize_add": "SolarizeAdd",
        "color": "ColorIncreasing",
        "contrast": "ContrastIncreasing",
        "brightness": "BrightnessIncreasing",
        "sharpness": "SharpnessIncreasing",
    }
    for name, reference in names.items():
        for level in (3.0, 9.0):
            step = auto_augment.AugmentOp(reference, prob=1.0, magnitude=level)
            expected = {step(Image.fromarray(pixels)).tobytes() for _ in range(40)}
            expected = [np.frombuffer(x, "uint8").reshape(pixels.shape) for x in expected]
            operation = OPERATIONS["timm"][name]
            for sign in (-1.0, 1.0):
                found = operation(tf.constant(pixels, tf.float32), tf.constant(level / 10), sign)
                differences = [np.abs(found - image).max() for image in expected]
                # Pillow cuts off fractions of mixtures, and rounds the grey that it mixes with.
                assert min(differences) <= 1.5, (name, level, sign, differences)


@pytest.mark.parametrize("name", ["translate_x", "translate_y", "shear_x", "shear_y", "rotate"])
def test_the_mean_colour_moves_in(name):
    image = tf.fill((40, 40, 3), 200.0)
    found = OPERATIONS["timm"][name](image, tf.constant(1.0), tf.constant(1.0)).numpy()
    colours = {tuple(pixel) for pixel in found.reshape(-1, 3)}
    assert {(200.0,) * 3, (124.0, 116.0, 104.0)} <= colours
    if name.startswith("translate"):
        assert (found[..., 0] == 124).mean() == pytest.approx(0.45, abs=0.026)


def test_erased_pixels_are_noise_of_imagenet(rng):
    images = tf.fill((64, 64, 64, 3), 5.0)
    erased = augmentation.random_erasing(images, 1.0, tf.constant([1, 2]), noise=True).numpy()
    noise = erased[erased[..., 0] != 5]
    std, mean = np.array([0.229, 0.224, 0.225]), np.array([0.485, 0.456, 0.406])
    whitened = ((noise + 1) / 2 - mean) / std
    for channel in range(3):
        assert stats.kstest(whitened[:4000, channel], "norm").statistic < DISTANCE
    shares = (erased[..., 0] != 5).mean(axis=(1, 2))
    assert shares.min() > 0.02 and shares.max() < 0.34


def test_the_sigmoid_loss_is_the_sum_of_binary_cross_entropies(rng):
    logits = rng.normal(size=(5, 7)) * 4
    labels = rng.dirichlet(np.ones(7), size=5)
    probability = 1 / (1 + np.exp(-logits))
    terms = labels * np.log(probability) + (1 - labels) * np.log1p(-probability)
    found = SigmoidCrossEntropy()(labels.astype("float32"), logits.astype("float32"))
    assert float(found) == pytest.approx(-terms.sum(axis=1).mean(), rel=1e-5)
    numbers = rng.integers(0, 7, 5)
    loss = SigmoidCrossEntropy()
    one_hot = loss(np.eye(7, dtype="float32")[numbers], logits.astype("float32"))
    assert float(loss(numbers, logits.astype("float32"))) == pytest.approx(float(one_hot))
    assert keras.saving.deserialize_keras_object(keras.saving.serialize_keras_object(loss))


def test_the_head_of_augreg_starts_below_all_classes():
    published = vit_tf.recipe("augreg-s32")
    assert published.recipe.rand_augment["magnitude"] == 1.5 and published.recipe.mixup == 0.2
    model = published.make_model(10, image_shape=(32, 32, 3), num_layers=1)
    np.testing.assert_allclose(model.head.bias, -6.9)
    assert model.get_config()["activation"] == "gelu_tanh"
    other = vit_tf.recipe("plain-vit-s16").make_model(10, image_shape=(32, 32, 3), num_layers=1)
    assert not np.any(other.head.bias)
