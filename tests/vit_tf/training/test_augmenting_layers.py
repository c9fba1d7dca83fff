"""Layers of Keras and KerasCV that augment images and labels in a recipe, and KerasCV's models."""

import json

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import vit_tf
from vit_tf import analysis, data

CLASSES = 3


@pytest.fixture(scope="module")
def examples():
    """12 images in [-1, 1], bright in their left half, and their labels."""
    images = np.random.default_rng(0).uniform(-1, -0.5, (12, 8, 8, 3)).astype("float32")
    images[:, :, :4] += 1.5
    return images, np.arange(12) % CLASSES


def augmented(examples, *augment, **recipe):
    """(images, labels) of one epoch of a recipe with these layers."""
    batches = tf.data.Dataset.from_tensor_slices(examples).batch(4)
    recipe = vit_tf.Recipe(epochs=1, augment=augment, **recipe)
    epoch = list(recipe.augment_batches(batches, CLASSES).as_numpy_iterator())
    return tuple(np.concatenate(parts) for parts in zip(*epoch, strict=True))


class Darkened(layers.Layer):
    """Of images alone, and only in training."""

    def call(self, images, training=False):
        return images * 0.5 if training else images


class Summed(layers.Layer):
    """Without an argument `training`."""

    def call(self, images):
        return images + 10.0


def test_layers_get_images_in_levels_of_255_as_in_training_and_in_turn(examples):
    images, labels = augmented(examples, Darkened(), Summed())
    expected = ((examples[0] + 1) * 127.5 * 0.5 + 10) / 127.5 - 1
    np.testing.assert_allclose(images, expected, atol=1e-5)
    np.testing.assert_array_equal(labels, np.eye(CLASSES)[examples[1]])


def test_a_flip_of_keras_is_that_of_every_second_image_or_so(examples):
    images, _ = augmented(examples, layers.RandomFlip("horizontal"))
    flipped = [
        np.allclose(image, original[:, ::-1], atol=1e-5)
        for image, original in zip(images, examples[0], strict=True)
    ]
    same = [np.allclose(*pair, atol=1e-5) for pair in zip(images, examples[0], strict=True)]
    assert all(f != s for f, s in zip(flipped, same, strict=True)) and 0 < sum(flipped) < 12


def check_mixed(examples, mixer):
    """The labels of mixed images are the shares of the images that they are mixed of."""
    # Every image has the grey level of its class, so that its mean reveals the shares.
    levels = np.float32([-1.0, 0.0, 1.0])
    plain = np.broadcast_to(levels[examples[1]][:, None, None, None], examples[0].shape)
    images, labels = augmented((plain, examples[1]), mixer)
    assert ((labels > 0).sum(axis=1) > 1).any()
    np.testing.assert_allclose(labels.sum(axis=1), 1, atol=1e-6)
    np.testing.assert_allclose(images.mean(axis=(1, 2, 3)), labels @ levels, atol=1e-4)


def test_keras_mixes_labels_with_images(examples):
    check_mixed(examples, layers.MixUp(alpha=1.0))


def test_layers_that_crop_change_the_size(examples):
    images, _ = augmented(examples, layers.RandomCrop(6, 4))
    assert images.shape == (12, 6, 4, 3)


def test_layers_stand_next_to_augmentations_of_this_package(examples):
    images, labels = augmented(examples, Darkened(), flip=True, mixup=0.5)
    assert images.max() < examples[0].max() and ((labels > 0).sum(axis=1) > 1).any()


def test_a_recipe_describes_its_layers():
    recipe = vit_tf.Recipe(augment=layers.RandomFlip("horizontal"))
    config = json.loads(json.dumps(recipe.to_config()))
    assert config["augment"][0]["class_name"] == "RandomFlip"
    assert config["augment"][0]["config"]["mode"] == "horizontal"


def test_what_is_no_layer_or_mixes_weights_is_refused(examples):
    with pytest.raises(ValueError, match=r"layers of Keras or KerasCV.*Received: augment='flip'"):
        vit_tf.Recipe(augment="flip")
    with pytest.raises(ValueError, match="augment to be off"):
        vit_tf.Pretraining(augment=layers.RandomFlip())
    weighted = tf.data.Dataset.from_tensor_slices((*examples, np.ones(12))).batch(4)
    with pytest.raises(ValueError, match=r"mix images .*mix_up"):
        data.augment(weighted, CLASSES, layers=[layers.MixUp(name="mix_up")])


def test_a_model_trains_with_layers(examples, tmp_path):
    batches = tf.data.Dataset.from_tensor_slices(examples).batch(4)
    model = keras.Sequential([keras.Input((8, 8, 3)), layers.Flatten(), layers.Dense(CLASSES)])
    recipe = vit_tf.Recipe(epochs=2, augment=[layers.RandomFlip(), layers.MixUp()])
    history = vit_tf.train(model, recipe, batches, None, tmp_path)
    assert len(history["loss"]) == 2 and np.isfinite(history["loss"]).all()


def keras_cv():
    return pytest.importorskip("keras_cv", reason="keras_cv is not installed")


@pytest.mark.parametrize("name", ["MixUp", "RandAugment", "RandomCutout"])
def test_layers_of_keras_cv(examples, name):
    kinds = keras_cv().layers
    if name == "MixUp":
        return check_mixed(examples, kinds.MixUp(alpha=1.0))
    if name == "RandAugment":
        images, labels = augmented(examples, kinds.RandAugment(value_range=(0, 255)))
    else:
        images, labels = augmented(examples, kinds.RandomCutout(0.5, 0.5))
        black = np.isclose(images, -1, atol=1e-5).all(axis=-1)
        assert black.any() and np.allclose(images[~black], examples[0][~black], atol=1e-5)
    assert images.min() >= -1 and images.max() <= 1 and not np.allclose(images, examples[0])
    np.testing.assert_array_equal(labels, np.eye(CLASSES)[examples[1]])


def test_backbones_of_keras_cv_are_measured_as_any_keras_model():
    sizes = {"patch_size": 8, "embed_dim": 16, "depth": 2, "mlp_dim": 32, "num_heads": 2}
    backbone = keras_cv().models.ViTDetBackbone(
        input_shape=(32, 32, 3),
        include_rescaling=True,
        global_attention_layer_indices=[1],
        window_size=2,
        **sizes,
    )
    images = np.random.default_rng(0).integers(0, 256, (12, 32, 32, 3), np.uint8)
    similarity = analysis.cka(backbone, images)
    blocks = [str(layer) for layer in similarity.layer_x.values]
    assert sum("windowed_transformer_encoder" in layer for layer in blocks) == 2
    features = vit_tf.submodel(backbone, *blocks)
    own = np.asarray(backbone(images.astype("float32"), training=False))
    np.testing.assert_allclose(
        np.asarray(features(images.astype("float32"))[blocks[-1]]), own, atol=1e-5
    )


@pytest.mark.parametrize(
    "options", [{"rand_augment": True, "shift": 1}, {"layers": [layers.Identity()]}]
)
def test_ranges_that_are_not_that_of_levels_are_refused(options):
    """Levels of 8 bits in usual ranges, also where no image of the batch is dark."""
    levels = np.random.default_rng(0).integers(0, 256, (8, 16, 16, 3))
    bright = np.maximum(levels, 128)
    levels[3, 5, 5] = 0

    def augment(images):
        pairs = tf.data.Dataset.from_tensors((images.astype("float32"), np.arange(8) % 2))
        return next(iter(data.augment(pairs, 2, **options)))

    for images in (levels / 127.5 - 1, bright / 127.5 - 1, 0 * levels):
        assert np.isfinite(augment(images)[0]).all()
    for images in (levels / 255, levels.astype(float), (levels / 255 - 0.485) / 0.229):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"Expected images in \[-1, 1\]"):
            augment(images)
