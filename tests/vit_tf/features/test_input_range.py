"""What models of other origin expect of their images, against what they were made to expect."""

import keras
import numpy as np
import pytest
from keras import layers

import vit_tf
from vit_tf import Preprocessing, data
from vit_tf.features.input_range import find_preprocessing

try:
    import keras_hub
except ImportError:
    keras_hub = None

IMAGENET = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


def a_model(*first, name=None):
    conv = layers.Conv2D(4, 3, name="conv")
    return keras.Sequential([keras.Input((8, 8, 3)), *first, conv], name=name)


def variances(std):
    return [value**2 for value in std]


@pytest.mark.parametrize(
    "first, expected",
    [
        ([layers.Rescaling(1 / 255)], (0, 255)),
        ([layers.Rescaling(1 / 127.5, offset=-1)], (0, 255)),
        ([layers.RandomContrast(0.9), layers.Rescaling(1 / 255)], (0, 255)),
        (
            [
                keras.Sequential([layers.RandomFlip(), layers.RandomRotation(0.4)]),
                layers.Rescaling(1 / 127.5, offset=-1),
            ],
            (0, 255),
        ),
        (
            [
                keras.Sequential([layers.Resizing(8, 8), layers.Rescaling(1 / 255)]),
                layers.Normalization(mean=IMAGENET[0], variance=variances(IMAGENET[1])),
            ],
            (0, 255),
        ),
        ([layers.Rescaling(2.0, offset=-1)], (0, 1)),
        ([layers.Rescaling(255.0)], (0, 1)),
        ([layers.Rescaling(0.5, offset=0.5)], (-1, 1)),
        ([layers.Rescaling(127.5, offset=127.5)], (-1, 1)),
        ([layers.Normalization(mean=IMAGENET[0], variance=variances(IMAGENET[1]))], (0, 1)),
        ([layers.Normalization(mean=-0.1, variance=0.25)], (-1, 1)),
        ([layers.Normalization(mean=[103.9, 116.8, 123.7], variance=[1.0] * 3)], (0, 255)),
        (
            [
                layers.Rescaling(1 / 255),
                layers.Normalization(mean=IMAGENET[0], variance=variances(IMAGENET[1])),
            ],
            (0, 255),
        ),
    ],
)
def test_the_range_follows_from_first_layers(first, expected):
    actual, why = find_preprocessing(a_model(*first))
    assert why == "found from its first layers"
    low, high = actual.value_range
    np.testing.assert_allclose(low, expected[0], atol=1e-9)
    np.testing.assert_allclose(high, expected[1])
    assert actual.size == (8, 8)


def test_models_without_such_layers_have_no_range():
    assert find_preprocessing(a_model()) == (None, "unknown")
    assert find_preprocessing(a_model(layers.Normalization(mean=0.0, variance=1.0)))[0] is None
    unusual = find_preprocessing(a_model(layers.Rescaling(1 / 16)))
    assert unusual == (None, "unknown; its first layers rescale in an unusual way")
    # After the first layer that learns, rescaling does not describe images.
    late = keras.Sequential(
        [keras.Input((8, 8, 3)), layers.Conv2D(3, 1), layers.Rescaling(1 / 255), layers.Flatten()]
    )
    assert find_preprocessing(late) == (None, "unknown")


class Subclassed(keras.Model):
    def __init__(self):
        super().__init__()
        self.conv, self.rescale = layers.Conv2D(4, 3), layers.Rescaling(1 / 255)
        self.build((None, 8, 8, 3))

    def call(self, images):
        return self.conv(self.rescale(images))


def test_subclassed_and_nested_models_and_plain_arithmetic():
    assert find_preprocessing(Subclassed())[0].value_range[1][0] == pytest.approx(255)
    images = keras.Input((8, 8, 3))
    nested = keras.Model(images, a_model(layers.Rescaling(1 / 255))(images))
    assert find_preprocessing(nested)[0].value_range[1][0] == pytest.approx(255)
    divided = keras.Model(images, layers.Conv2D(4, 3)(images / 127.5 - 1.0))
    assert find_preprocessing(divided)[0].value_range[1][0] == pytest.approx(255)
    bare = a_model(layers.Conv2D(3, 1, name="conv2_block1_1_conv"), name="resnet50")
    prepared = keras.applications.resnet.preprocess_input(images)
    prepared_model = keras.Model(images, bare(prepared))
    assert find_preprocessing(prepared_model)[0] == Preprocessing.from_range((8, 8), 0, 255)
    inside, why = find_preprocessing(keras.Model(images, bare(images)))
    assert inside.channel_order == "bgr" and why == "known of resnet50"


BUILDERS = {
    "resnet": ["ResNet50", "ResNet101", "ResNet152"],
    "vgg16": ["VGG16", "VGG19"],
    "densenet": ["DenseNet121", "DenseNet169", "DenseNet201"],
    "resnet_v2": ["ResNet50V2", "ResNet101V2", "ResNet152V2"],
    "mobilenet": ["MobileNet"],
    "mobilenet_v2": ["MobileNetV2"],
    "inception_v3": ["InceptionV3"],
    "inception_resnet_v2": ["InceptionResNetV2"],
    "xception": ["Xception"],
    "nasnet": ["NASNetMobile", "NASNetLarge"],
}
QUICK = ("VGG16", "VGG19", "MobileNet", "Xception")


@pytest.mark.parametrize(
    "module, builder",
    [
        pytest.param(module, name, marks=() if name in QUICK else pytest.mark.slow)
        for module, names in BUILDERS.items()
        for name in names
    ],
)
def test_families_of_keras_applications_get_what_their_preprocessors_make(module, builder, rng):
    images = rng.integers(0, 256, (2, 96, 96, 3))
    prepare = getattr(keras.applications, module).preprocess_input
    size = (None, None, 3)  # NASNet takes none but its own size, or any
    model = getattr(keras.applications, builder)(weights=None, include_top=False, input_shape=size)
    actual, why = find_preprocessing(model)
    assert why == f"known of {model.name}"
    np.testing.assert_allclose(actual(images), prepare(images.astype("float32")), atol=1e-5)


@pytest.mark.parametrize("name", ["resnet50", "vgg16", "densenet121", "inception_v3", "xception"])
def test_other_models_of_such_a_name_are_not_taken_for_them(name):
    preprocessing, why = find_preprocessing(a_model(layers.BatchNormalization(), name=name))
    assert preprocessing is None
    assert why == f"unknown; {name!r} has other layers than that of keras.applications"


@pytest.mark.slow
def test_real_applications_are_found_by_name_and_by_their_first_layers(rng):
    arguments = {"weights": None, "include_top": False, "input_shape": (32, 32, 3)}
    model = keras.applications.MobileNetV2(**arguments)
    images = rng.integers(0, 256, (2, 32, 32, 3))
    prepare = keras.applications.mobilenet_v2.preprocess_input
    actual, _ = find_preprocessing(model)
    np.testing.assert_allclose(actual(images), prepare(images.astype("float32")), atol=1e-6)
    model = keras.applications.MobileNetV3Small(**arguments)
    assert find_preprocessing(model)[0] == Preprocessing.from_range((32, 32), 0, 255)
    assert vit_tf.submodel(model, "conv").preprocessing.value_range[1][0] == pytest.approx(255)


@pytest.mark.skipif(keras_hub is None, reason="keras_hub is not installed")
def test_keras_hub_is_read_by_its_converter_or_by_its_family(rng):
    backbone = keras_hub.models.ViTBackbone(
        image_shape=(16, 16, 3),
        patch_size=8,
        num_layers=1,
        num_heads=1,
        hidden_dim=8,
        mlp_dim=8,
    )
    images = rng.integers(0, 256, (2, 16, 16, 3))
    actual, why = find_preprocessing(backbone)
    np.testing.assert_allclose(actual(images), images / 127.5 - 1, atol=1e-6)
    assert why == f"known of {backbone.name}"
    converter = keras_hub.layers.ViTImageConverter(
        image_size=(16, 16), scale=[0.01, 0.02, 0.03], offset=[-1.0, -2.0, 0.5]
    )
    preprocessor = keras_hub.models.ViTImageClassifierPreprocessor(converter)
    task = keras_hub.models.ViTImageClassifier(backbone, 3, preprocessor=preprocessor)
    actual, why = find_preprocessing(task)
    assert why == "set by its image converter"
    np.testing.assert_allclose(actual(images), np.asarray(converter(images)), atol=1e-5)


def with_converter(model, converter):
    model.preprocessor = keras_hub.models.ImageClassifierPreprocessor(converter)
    return model


@pytest.mark.skipif(keras_hub is None, reason="keras_hub is not installed")
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"crop_to_aspect_ratio": False},
        {"crop_to_aspect_ratio": False, "antialias": True},
        {"crop_to_aspect_ratio": False, "pad_to_aspect_ratio": True, "antialias": True},
        {"interpolation": "nearest"},
        {"interpolation": "bicubic", "crop_to_aspect_ratio": False, "pad_to_aspect_ratio": True},
        {"interpolation": "lanczos5", "antialias": True},
    ],
)
def test_photographs_become_those_of_the_image_converter(rng, options):
    """Also where the model takes images of any size, and the converter makes them of one."""
    converter = keras_hub.layers.ImageConverter(
        (12, 20), scale=[0.01, 0.02, 0.03], offset=[-1.0, -2.0, 0.5], **options
    )
    model = keras.Sequential([keras.Input((None, None, 3)), layers.Conv2D(2, 3)])
    actual, why = find_preprocessing(with_converter(model, converter))
    assert why == "set by its image converter" and actual.size == (12, 20)
    for shape in ((50, 31), (31, 70)):
        photo = rng.uniform(100, 150, (*shape, 3)).astype("float32")
        # KerasHub keeps what overshoots black next to the padding.
        expected = np.clip(np.asarray(converter(photo)), *actual.value_range)
        np.testing.assert_allclose(actual(photo), expected, atol=1e-3)


@pytest.mark.skipif(keras_hub is None, reason="keras_hub is not installed")
def test_a_converter_with_arithmetic_of_its_own_is_not_taken_for_another(rng):
    class Inverted(keras_hub.layers.ImageConverter):
        def call(self, inputs):
            return 1 - super().call(inputs)

    model = with_converter(a_model(), Inverted((8, 8), scale=1 / 255))
    actual, why = find_preprocessing(model)
    assert actual is None and why.startswith("unknown; its image converter")
    dark = with_converter(a_model(), keras_hub.layers.ImageConverter((8, 8), scale=-1 / 255))
    assert find_preprocessing(dark)[0] is None
    # Without a size it leaves images as they are, and those of the model have one.
    plain = with_converter(a_model(), keras_hub.layers.ImageConverter(scale=1 / 255))
    assert find_preprocessing(plain)[0] == Preprocessing.from_range((8, 8), 0, 1, antialias=False)


def test_preprocessing_can_be_called_on_an_image_and_on_a_batch(rng):
    bgr = Preprocessing((8, 6), *IMAGENET, "bicubic", "bgr")
    images = rng.integers(0, 256, (3, 5, 9, 3)).astype("uint8")
    batch = bgr(images)
    for image, row in zip(images, batch, strict=True):
        np.testing.assert_array_equal(bgr(image), row)
    own = Preprocessing(None, *IMAGENET, channel_order="bgr")(images)
    expected = (images[..., ::-1] / 255 - IMAGENET[0]) / IMAGENET[1]
    np.testing.assert_allclose(own, expected, atol=1e-5)
    grey = Preprocessing.from_range(None, 0, 1)(images[..., :1])
    np.testing.assert_allclose(grey, np.repeat(images[..., :1] / 255, 3, -1), atol=1e-6)
    for wrong, words in [
        (images[0, 0], "shape"),
        (images[..., :2], "shape"),
        (images / 255 - 1, r"values in \[0, 255\]"),
    ]:
        with pytest.raises(ValueError, match=words):
            bgr(wrong)
    with pytest.raises(ValueError, match="low to a high"):
        Preprocessing.from_range(None, 1, 0)


@pytest.mark.slow
def test_images_are_loaded_at_their_own_size_and_blue_first():
    bgr = Preprocessing(None, (0.1, 0.2, 0.3), (0.5, 0.6, 0.7), channel_order="bgr")
    (loaded,) = data.load("shapes", splits=("test",), take=4, preprocessing=bgr, image_size=16)
    (plain,) = data.load("shapes", splits=("test",), take=4, image_size=16)
    (images, _), (own, _) = (next(x.as_numpy_iterator()) for x in (loaded, plain))
    expected = ((own[..., ::-1] + 1) / 2 - bgr.mean) / bgr.std
    np.testing.assert_allclose(images, expected, atol=1e-5)
    config = bgr.to_config()
    assert config["channel_order"] == "bgr" and Preprocessing.from_config(config) == bgr
    assert "channel_order" not in Preprocessing(None).to_config()
    model = vit_tf.ViT((16, 16, 3), 8, 1, 1, 8, 8, 2, preprocessing=bgr)
    assert model.preprocessing.size == (16, 16)
