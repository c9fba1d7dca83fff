"""Every call of a model is inference: layers that augment by default do not."""

import keras
import numpy as np
import pytest
from keras import layers, ops

import vit_tf
from vit_tf import analysis
from vit_tf.features.recorder import infer
from vit_tf.training.evaluation import top_k_accuracy

IMAGES = np.random.default_rng(0).uniform(0, 1, (8, 8, 8, 3)).astype("float32")
LABELS = np.arange(8) % 3


@keras.saving.register_keras_serializable("tests")
class Flipped(layers.Layer):
    """A layer that turns its input upside down unless it is told not to."""

    def call(self, x, training=True):
        return ops.flip(x, 1) if training else x


@keras.saving.register_keras_serializable("tests")
class Block(layers.Layer):
    """A layer that does not take `training`, but holds one that does."""

    def __init__(self, augments, **kwargs):
        super().__init__(**kwargs)
        self.augments = augments
        self.inner = Flipped() if augments else layers.Identity()
        self.conv = layers.Conv2D(4, 3, padding="same", name="conv")

    def build(self, shape):
        self.conv.build(shape)

    def call(self, x):
        return self.conv(self.inner(x))

    def get_config(self):
        return super().get_config() | {"augments": self.augments}


class Subclassed(keras.Model):
    """A model whose `call` does not take `training`."""

    def __init__(self, augments):
        super().__init__(name="subclassed")
        self.flip = Flipped() if augments else layers.Identity()
        self.block = Block(augments, name="block")
        self.gap, self.head = layers.GlobalAveragePooling2D(), layers.Dense(3, name="head")

    def build(self, shape):
        self.block.build(shape)
        self.head.build((None, 4))

    def call(self, x):
        x = self.block(self.flip(x))
        return self.head(self.gap(x * ops.reshape(ops.arange(8, dtype=x.dtype), (1, 8, 1, 1))))


def functional(augments):
    """A functional model around a functional model and a dropout."""
    images = keras.Input((8, 8, 3))
    x = images
    if augments:
        inside = keras.Input((8, 8, 3))
        x = keras.Model(inside, layers.RandomTranslation(0.5, 0.5)(inside), name="augment")(x)
        x = layers.Dropout(0.5)(x, training=True)  # which predict() switches off
    x = Block(augments, name="block")(x)
    x = layers.Dense(4, activation="relu", name="mixed")(layers.Flatten()(x))
    return keras.Model(images, layers.Dense(3, name="head")(x), name="functional")


def sequential(augments):
    flip = [layers.RandomFlip(), Flipped()] if augments else []
    block = Block(augments, name="block")
    stack = [*flip, block, layers.Flatten(), layers.Dense(3, name="head")]
    return keras.Sequential([keras.Input((8, 8, 3)), *stack])


@pytest.fixture(
    scope="module",
    params=[
        functional,
        *(pytest.param(make, marks=pytest.mark.slow) for make in (sequential, Subclassed)),
    ],
)
def twins(request):
    """A model that augments, and one of the same weights without augmentation."""
    pair = [request.param(augments) for augments in (True, False)]
    for model in pair:
        model(IMAGES[:1])
    for mine, other in zip(*(model.trainable_weights for model in pair), strict=True):
        mine.assign(other)
    return pair


def test_submodel_is_inference(twins):
    ours, right = (vit_tf.submodel(model, "block", "head")(IMAGES) for model in twins)
    for tap in right:
        np.testing.assert_allclose(ours[tap], right[tap], atol=1e-6)


def test_submodel_augments_when_it_is_trained():
    model = vit_tf.submodel(sequential(True), "block")
    plain, training = model(IMAGES)["block"], model(IMAGES, training=True)["block"]
    assert np.abs(plain - training).max() > 1e-2


def test_evaluation_is_inference(twins):
    scores = np.asarray(twins[1](IMAGES), np.float64)
    right = float((scores.argmax(1) == LABELS).mean())
    assert top_k_accuracy(twins[0], [(IMAGES, LABELS)])[1] == right
    assert top_k_accuracy(lambda x: twins[0](x), [(IMAGES, LABELS)])[1] == right


def test_gradients_are_those_of_inference(twins):
    ours, right = (
        analysis.input_gradients(model, IMAGES, classes=[0, 2], samples=1, noise=0.0)
        for model in twins
    )
    np.testing.assert_allclose(ours, right, atol=1e-6)


def test_interventions_are_inference(twins):
    edit = {"block": vit_tf.edits.scaled(0.5)}
    ours, right = (vit_tf.intervene(model, edit, "head")(IMAGES) for model in twins)
    np.testing.assert_allclose(ours["head"], right["head"], atol=1e-6)


@pytest.mark.slow
def test_functions_around_a_model_are_inference(twins):
    def of(model):
        return lambda images: {"scores": model(images), "more": model(images) ** 2}

    ours, right = (analysis.cka(of(model), IMAGES).cka for model in twins)
    np.testing.assert_allclose(ours, right, atol=1e-5)


def test_export_is_inference(twins, tmp_path):
    if twins[0].name == "subclassed":
        pytest.skip("a subclassed model without a configuration")
    vit_tf.submodel(twins[0], "head").export(tmp_path / "saved", verbose=False)
    saved = vit_tf.load_features(tmp_path / "saved")
    right = vit_tf.submodel(twins[1], "head")(IMAGES)["head"]
    np.testing.assert_allclose(saved(IMAGES)["head"], right, atol=1e-6)


def test_errors_of_a_function_are_its_own():
    def broken(images):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        infer(broken, IMAGES)
