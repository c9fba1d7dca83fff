"""Operations counted in the graph, layer by layer, one by one, and as published."""

import keras
import numpy as np
import oracles
import pytest
import tensorflow as tf
from keras import layers

import vit_tf
from vit_tf.features.flops import count_flops, training_flops

TINY = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 20, "num_classes": 5}
MIXER = {"num_layers": 2, "hidden_dim": 8, "tokens_mlp_dim": 5, "channels_mlp_dim": 20}
MODELS = {
    "vit": lambda: vit_tf.ViT((8, 12, 3), 4, **TINY),
    "gap": lambda: vit_tf.ViT((8, 8, 1), 2, **TINY, pooling="gap", representation_dim=6),
    "hybrid": lambda: vit_tf.HybridViT((32, 64, 3), 1, **TINY, stem_units=(1, 2)),
    "hybrid without a skip": lambda: vit_tf.HybridViT(
        (32, 32, 3), 1, **TINY, stem_units=(1, 2), without_skips=("stage2/unit01", "block01")
    ),
    "root": lambda: vit_tf.HybridViT((32, 32, 3), 8, **TINY, stem_units=()),
    "bit": lambda: vit_tf.BiT((15, 18, 3), units=(1, 2), width_factor=0.5, num_classes=7),
    "bit without a skip": lambda: vit_tf.BiT(
        (16, 16, 3), units=(2, 1), width_factor=0.5, without_skips=("stage1",)
    ),
    "bit of photographs": lambda: vit_tf.BiT((97, 101, 3), units=(1, 1), width_factor=0.5),
    "mixer": lambda: vit_tf.Mixer((8, 12, 3), 4, **MIXER, num_classes=3),
    "clip": lambda: vit_tf.CLIPViT((8, 12, 3), 4, **TINY, projection_dim=6),
    "clip without a head": lambda: vit_tf.CLIPViT(
        (8, 8, 3), 4, **TINY | {"num_classes": None}, projection_dim=6
    ),
    "beit": lambda: vit_tf.BEiT((8, 12, 3), 4, **TINY),
    "siglip": lambda: vit_tf.SigLIPViT((9, 14, 3), 4, **TINY),
    "registers": lambda: vit_tf.ViT((8, 8, 3), 4, **TINY, registers=4, activation="swiglu"),
    "two heads": lambda: vit_tf.DistilledViT((8, 8, 3), 4, **TINY),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MODELS)
def test_graph_and_layers_agree(name):
    model = MODELS[name]()
    assert count_flops(model) == oracles.count_flops(model) > 0


def test_a_vision_transformer_by_hand():
    tokens, width, hidden = 7, 8, 20
    block = 4 * tokens * width * width + 2 * tokens * tokens * width + 2 * tokens * width * hidden
    multiply_adds = 6 * 4 * 4 * 3 * width + 2 * block + width * 5
    assert count_flops(MODELS["vit"]()) == 2 * multiply_adds


# Multiply-adds. ViT-B/16, ResNet-50: "GFLOPS" of torchvision's documentation of its models
# (vit_b_16 17.56, resnet50 4.09; R50x1 has the same convolutions). Mixer: the card of timm's
# mixer_b16_224 (12.6). CLIP: the image tower in open_clip's docs/model_profile.csv (4.41).
@pytest.mark.slow
@pytest.mark.parametrize(
    "family, variant, published, digits",
    [
        ("ViT", "B/16", 17.56, 2),
        ("BiT", "R50x1", 4.09, 2),
        ("Mixer", "B/16", 12.6, 1),
        ("CLIPViT", "B/32", 4.41, 2),
    ],
)
def test_published_counts(family, variant, published, digits):
    model = getattr(vit_tf, family).from_variant(variant)
    assert round(count_flops(model) / 2e9, digits) == published


@keras.saving.register_keras_serializable("test_flops")
class Product(layers.Layer):
    """A matrix product of maps (row, column, channel) with a kernel, `a` transposed or not."""

    def __init__(self, transposed):
        super().__init__()
        self.transposed = transposed

    def build(self, input_shape):
        _, rows, columns, channels = input_shape
        inner = columns if self.transposed else channels
        self.kernel = self.add_weight(shape=(rows, inner, 7), name="kernel")

    def call(self, x):
        return tf.linalg.matmul(x, self.kernel, transpose_a=self.transposed)


class Sum(layers.Layer):
    """An einsum of images with a kernel of a given shape."""

    def __init__(self, equation, shape):
        super().__init__()
        self.equation, self.shape = equation, shape

    def build(self, input_shape):
        self.kernel = self.add_weight(shape=self.shape, name="kernel")

    def call(self, x):
        return tf.einsum(self.equation, x, self.kernel)


LINEAR = {
    "dense": lambda: layers.Dense(5),
    "product": lambda: Product(False),
    "transposed product": lambda: Product(True),
    "einsum": lambda: Sum("brci,rio->bco", (6, 3, 4)),
    "convolution": lambda: layers.Conv2D(4, (3, 2), strides=(1, 2)),
    "depthwise": lambda: layers.DepthwiseConv2D((3, 2), depth_multiplier=2),
    "upwards": lambda: layers.Conv2DTranspose(4, (3, 2), strides=2),
}


@pytest.mark.parametrize("kind", LINEAR)
def test_multiply_adds_are_what_links_inputs_and_outputs(kind):
    """A linear map multiplies once for each number of its Jacobian that is not zero."""
    model = keras.Sequential([keras.Input((6, 5, 3)), LINEAR[kind]()])
    for weight in model.weights:
        weight.assign(np.ones(weight.shape))
    basis = np.eye(90).reshape(90, 6, 5, 3)
    at_zero = model.predict(np.zeros((1, 6, 5, 3)), verbose=0)
    products = np.count_nonzero(model.predict(basis, verbose=0) - at_zero)
    assert count_flops(model) == 2 * products


def test_padding_counts_and_elementwise_work_does_not():
    maps = [layers.Conv2D(4, 3, padding="same"), layers.BatchNormalization(), layers.ReLU()]
    ends = [layers.MaxPooling2D(), layers.GlobalAveragePooling2D(), layers.Softmax()]
    model = keras.Sequential([keras.Input((6, 4, 3)), *maps, *ends])
    assert count_flops(model) == 2 * 6 * 4 * 9 * 3 * 4
    products = keras.Sequential([keras.Input((6, 4, 3)), Sum("brci,i->brci", (3,))])
    assert count_flops(products) == 0


@pytest.mark.slow
def test_only_what_the_outputs_need_counts():
    model = MODELS["gap"]()
    taps = vit_tf.submodel(model, "block00/attention/weights")
    tokens, width = 16, 8
    multiply_adds = tokens * 2 * 2 * width + 2 * tokens * width**2 + tokens**2 * width
    assert count_flops(taps) == 2 * multiply_adds
    assert count_flops(vit_tf.submodel(model, "*")) == count_flops(model)


@pytest.mark.parametrize("shape", [(16, 16, 8), (15, 13, 8)])
@pytest.mark.parametrize("padding", ["same", "valid"])
def test_dilated_and_grouped_convolutions(shape, padding):
    """On CPUs, they are other operations: of rearranged and padded maps, and a function's own."""
    for layer, channels, filters in (
        (layers.Conv2D(6, 3, padding=padding, dilation_rate=2), 8, 6),
        (layers.Conv2D(6, 3, padding=padding, dilation_rate=(3, 2)), 8, 6),
        (layers.Conv2D(12, 3, padding=padding, groups=4), 2, 12),
        (layers.Conv2D(12, 3, 2, padding=padding, groups=2), 4, 12),
        (layers.DepthwiseConv2D(3, padding=padding, dilation_rate=2, depth_multiplier=2), 1, 16),
    ):
        model = keras.Sequential([keras.Input(shape), layer, layers.Conv2D(5, 1)])
        rows, columns = layer.output.shape[1:3]
        expected = 9 * channels * filters + layer.output.shape[-1] * 5
        assert count_flops(model) == 2 * rows * columns * expected


def test_size_of_images():
    model = keras.Sequential([keras.Input((None, None, 3)), layers.Conv2D(4, 1)])
    assert count_flops(model, (6, 4, 3)) == 2 * 6 * 4 * 3 * 4
    with pytest.raises(ValueError, match=r"image_shape for a model that takes images of any size"):
        count_flops(model)


def test_unknown_operations_are_named():
    class Inverse(layers.Layer):
        def call(self, x):
            return tf.linalg.inv(x)

    model = keras.Sequential([keras.Input((3, 4, 4)), Inverse()])
    with pytest.raises(ValueError, match="Received: MatrixInverse at "):
        count_flops(model)
    with pytest.raises(ValueError, match=r"a label for each axis.*'\.\.\.i,io->\.\.\.o'"):
        count_flops(keras.Sequential([keras.Input((2, 2, 3)), Sum("...i,io->...o", (3, 4))]))


def test_training_takes_three_forward_passes_of_each_image():
    assert training_flops(10, 7) == 210
