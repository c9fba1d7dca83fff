"""Every model refuses images of another size than its own, wherever they come in."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import tiny_models
import xarray as xr
from tiny_models import tiny

import vit_tf
from vit_tf.training.evaluation import top_k_accuracy

MODELS = ("vit", "rotary", "hybrid", "beit", "clip", "siglip", "mixer")
SLOW = pytest.mark.slow
# Of all these the product of the sides makes whole numbers of images of 32 x 32, or parts of one.
WRONG = [(64, 64), (16, 16), (16, 64)]
MESSAGE = r"Expected images of shape \(None, 32, 32, 3\)\. Received: shape .*image_shape="


def images_of(height, width, count=8):
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (count, height, width, 3)).astype("float32")


def of_unknown_size(images, labels=None):
    """Batches whose height and width TensorFlow learns when it reads them."""
    arrays = (images,) if labels is None else (images, labels)
    data = tf.data.Dataset.from_tensor_slices(arrays if labels is not None else images).batch(4)

    def forget(images, *labels):
        images = tf.ensure_shape(tf.py_function(lambda x: x, [images], tf.float32), (None,) * 4)
        images.set_shape((None, None, None, 3))
        return (images, *labels) if labels else images

    return data.map(forget)


def small(name):
    """A model of three classes for images of 32 pixels.

    XLA compiles none of its graphs unless `compile`, as a recipe calls it, sets that anew.
    """
    model = tiny(name, (32, 32, 3), num_classes=3, num_layers=1)
    model.jit_compile = False
    return model


@pytest.fixture(scope="module")
def models():
    keras.utils.set_random_seed(0)
    models = {name: small(name) for name in MODELS}
    models["vit"].jit_compile = True  # the check of images in a graph is the same in all of them
    return models


def test_every_model_is_in_the_table_of_tiny_ones():
    classes = {name for name in dir(vit_tf) if hasattr(getattr(vit_tf, name), "from_variant")}
    assert classes == {model for model, _ in tiny_models.MODELS.values()}


@pytest.mark.parametrize("name", MODELS)
def test_images_of_another_size_are_refused(models, name):
    model = models[name]
    taps = vit_tf.submodel(model, model.taps[-1])
    for size in WRONG:
        images = images_of(*size)
        for call in (model, model.intermediates, model.predict, taps):
            with pytest.raises(ValueError, match=MESSAGE) as caught:
                call(images)
            assert f"image_shape=({size[0]}, {size[1]}, 3)" in str(caught.value)


@SLOW
@pytest.mark.parametrize("name", ["vit", "siglip", "mixer"])
def test_fit_and_evaluate_refuse_them_too(name):
    model, (images, labels) = small(name), (images_of(16, 64), np.arange(8) % 3)
    vit_tf.Recipe(epochs=1).compile(model, 2)
    model.jit_compile = False
    wrong = tf.data.Dataset.from_tensor_slices((images, labels)).batch(4)
    before = model.get_weights()
    for call in (model.fit, model.evaluate):
        with pytest.raises(ValueError, match=MESSAGE):
            call(wrong, verbose=0)
    for old, new in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    # Compiled anew, as after any error while Keras traces, they take others of unknown size.
    vit_tf.Recipe(epochs=1).compile(model, 2)
    model.jit_compile = False
    model.fit(of_unknown_size(images_of(32, 32), labels), verbose=0)
    for call in (model.fit, model.evaluate):
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected shape \[\?,32,32,3\]"):
            call(of_unknown_size(images, labels), verbose=0)


@pytest.mark.parametrize(
    "name",
    [
        "mixer",
        *(pytest.param(n, marks=SLOW) for n in ("vit", "hybrid")),
        *(pytest.param(n, marks=pytest.mark.long) for n in ("rotary", "beit", "clip", "siglip")),
    ],
)
def test_data_of_unknown_static_size_give_what_arrays_give(models, name):
    model, images = models[name], images_of(32, 32)
    data = of_unknown_size(images)
    assert data.element_spec.shape.as_list() == [None, None, None, 3]
    expected = np.asarray(model(images))
    np.testing.assert_allclose(model.predict(data, verbose=0), expected, atol=1e-6)
    for wrong in WRONG:
        with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected shape \[\?,32,32,3\]"):
            model.predict(of_unknown_size(images_of(*wrong)), verbose=0)


@SLOW
def test_submodels_of_data_of_unknown_static_size_give_what_arrays_give(models):
    model, images = models["mixer"], images_of(32, 32)
    data, last = of_unknown_size(images), model.taps[-1]
    taps = vit_tf.submodel(model, last)
    taps.jit_compile = False
    expected = np.asarray(model(images))
    actual = np.concatenate([taps.predict(batch, verbose=0)[last] for batch in data])
    np.testing.assert_allclose(actual, expected, atol=1e-6)
    np.testing.assert_allclose(taps.predict(data, verbose=0)[last], expected, atol=1e-6)


@SLOW
def test_evaluation_and_measurements_refuse_them_in_one_line(models):
    data = of_unknown_size(images_of(64, 64), np.arange(8) % 3)
    mixed = of_unknown_size(images_of(32, 32), np.arange(8) % 3).concatenate(data)
    for call in (top_k_accuracy, vit_tf.analysis.cka, vit_tf.analysis.receptive_field):
        for wrong in (data, mixed):
            with pytest.raises(ValueError, match=f"^{MESSAGE}"):
                call(models["vit"], wrong)


@SLOW
@pytest.mark.parametrize("name", ["vit", "mixer"])
def test_measurements_of_data_of_unknown_static_size_are_those_of_arrays(models, name):
    images = images_of(32, 32)
    sized = tf.data.Dataset.from_tensor_slices(images).batch(4)
    for call in (vit_tf.analysis.cka, vit_tf.analysis.receptive_field, vit_tf.analysis.skip_ratio):
        expected = call(models[name], sized)
        xr.testing.assert_allclose(call(models[name], of_unknown_size(images)), expected)


@pytest.fixture
def eager_steps():
    """Steps of training as Python runs them, of which few are faster than their graphs are made."""
    tf.config.run_functions_eagerly(True)
    yield
    tf.config.run_functions_eagerly(False)


def test_train_refuses_them_before_it_writes(tmp_path):
    labels = np.arange(8) % 3
    right = tf.data.Dataset.from_tensor_slices((images_of(32, 32), labels)).batch(4)
    wrong = tf.data.Dataset.from_tensor_slices((images_of(64, 64), labels)).batch(4)
    recipe = vit_tf.Recipe(epochs=1)
    for data in ((wrong, right), (right, wrong)):
        with pytest.raises(ValueError, match=MESSAGE):
            vit_tf.train(small("vit"), recipe, *data, tmp_path / "run")
        assert not (tmp_path / "run").exists()


@SLOW
def test_train_takes_data_of_unknown_static_size_and_refuses_other_images(tmp_path):
    labels, recipe = np.arange(8) % 3, vit_tf.Recipe(epochs=1)
    right = tf.data.Dataset.from_tensor_slices((images_of(32, 32), labels)).batch(4)
    unknown = of_unknown_size(images_of(64, 64), labels)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"expected shape \[\?,32,32,3\]"):
        vit_tf.train(small("vit"), recipe, unknown, right, tmp_path / "a", verbose=0)
    unknown = of_unknown_size(images_of(32, 32), labels)
    history = vit_tf.train(small("vit"), recipe, unknown, unknown, tmp_path / "b", verbose=0)
    assert np.isfinite(history["loss"]).all()


@SLOW
def test_a_crop_of_the_recipe_counts(tmp_path, eager_steps):
    labels = np.arange(8) % 3
    wide = tf.data.Dataset.from_tensor_slices((images_of(40, 40), labels)).batch(4)
    right = tf.data.Dataset.from_tensor_slices((images_of(32, 32), labels)).batch(4)
    recipe = vit_tf.FineTuning(steps=2, validations=1, resize=(40, 40), crop=(32, 32))
    vit_tf.train(small("vit"), recipe, wide, right, tmp_path, verbose=0)


def test_a_bit_takes_images_of_any_size_and_only_its_channels():
    model = tiny("bit", (32, 32, 3), num_classes=2)
    assert model.predict(images_of(48, 40), verbose=0).shape == (8, 2)
    with pytest.raises(ValueError, match=r"numpy\.repeat"):
        model(images_of(32, 32)[..., :1])


def test_without_skips_cannot_be_assigned():
    model = tiny("vit", without_skips=("block00/mlp",))
    assert model.without_skips == ("block00/mlp",)
    with pytest.raises(AttributeError, match="without_skips"):
        model.without_skips = ()
    assert "block00/mlp/skip" not in model.taps


@pytest.mark.parametrize("name", MODELS)
def test_a_model_of_no_classes_names_what_puts_out_features(models, name):
    config = models[name].get_config()
    with pytest.raises(ValueError, match=r"num_classes to be at least 1.*submodel.*num_classes=0"):
        type(models[name]).from_config(config | {"num_classes": 0})
