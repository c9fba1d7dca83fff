"""Calls that scripts of other libraries make: other forms of images, modules and token orders."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from vit_tf import analysis
from vit_tf.data.any_images import as_images

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn

IMAGES = np.random.default_rng(0).uniform(-1, 1, (12, 32, 32, 3)).astype("float32")
LABELS = np.arange(12) % 3
CHANNELS_FIRST = torch.tensor(IMAGES).permute(0, 3, 1, 2)


class Tokens(layers.Layer):
    """Appends a CLS token before or behind the tokens of patches, and adds positions."""

    def __init__(self, is_first):
        super().__init__()
        self.is_first = is_first

    def build(self, shape):
        self.cls = self.add_weight((1, 1, 8), "random_normal", name="cls")
        self.positions = self.add_weight((1, 5, 8), "random_normal", name="positions")

    def call(self, x):
        cls = ops.broadcast_to(self.cls, (ops.shape(x)[0], 1, 8))
        return ops.concatenate([cls, x] if self.is_first else [x, cls], axis=1) + self.positions


def keras_vit(is_first):
    images = keras.Input((32, 32, 3))
    x = layers.Reshape((4, 8))(layers.Conv2D(8, 16, 16)(images))
    x = Tokens(is_first)(x)
    y = layers.LayerNormalization()(x)
    x = x + layers.MultiHeadAttention(2, 4)(y, y)
    return keras.Model(images, layers.Dense(3, name="head")(x[:, 0 if is_first else -1]))


class TorchViT(nn.Module):
    def __init__(self, is_first):
        super().__init__()
        self.is_first = is_first
        self.patches = nn.Conv2d(3, 8, 16, 16)
        self.cls, self.positions = (
            nn.Parameter(torch.randn(1, 1, 8)),
            nn.Parameter(torch.randn(5, 8)),
        )
        self.blocks = nn.ModuleList(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(2)
        )
        self.head = nn.Linear(8, 3)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        cls = self.cls.expand(len(x), -1, -1)
        x = torch.cat([cls, x] if self.is_first else [x, cls], 1) + self.positions
        for block in self.blocks:
            x = block(x)
        return self.head(x[:, 0 if self.is_first else -1])


@pytest.mark.parametrize("make", [keras_vit, TorchViT])
def test_a_class_token_behind_the_patches_is_no_patch(make):
    assert analysis.features_of(make(True), "attention").token_grid.prefix == 1
    with pytest.warns(UserWarning, match="tokens 4 of 5"):
        features = analysis.features_of(make(False), "attention")
    assert features.token_grid is None
    with pytest.warns(UserWarning, match="tokens 4"), pytest.raises(ValueError, match="grid"):
        analysis.attention_distance(make(False), IMAGES)


def test_forms_of_pytorch_images_are_the_same_images():
    for images in (CHANNELS_FIRST.requires_grad_(), list(CHANNELS_FIRST)):
        np.testing.assert_array_equal(as_images(images), IMAGES)
    np.testing.assert_allclose(as_images(CHANNELS_FIRST.bfloat16()), IMAGES, atol=1e-2)


def test_masked_and_complex_images_are_refused():
    masked = np.ma.masked_array(IMAGES, np.zeros_like(IMAGES, bool))
    np.testing.assert_array_equal(as_images(masked), IMAGES)
    masked[0, 0, 0] = np.ma.masked
    for images, word in ((masked, "masked"), (IMAGES.astype(complex), "complex")):
        with pytest.raises(ValueError, match=word):
            as_images(images)


def test_weights_in_a_column_are_no_labels():
    weights = np.ones((12, 1), np.float32)
    batches = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS, weights)).batch(12)
    assert len(as_images(batches).element_spec) == 2


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode])
def test_gradients_within_a_mode_without_gradients(mode):
    torch.manual_seed(0)
    module = nn.Sequential(nn.Conv2d(3, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
    expected = CHANNELS_FIRST[:1].detach().requires_grad_()
    module(expected)[0, 1].backward()
    with mode():
        result = analysis.input_gradients(module, IMAGES[:1], classes=[1], samples=1, noise=0.0)
    gradient = expected.grad.permute(0, 2, 3, 1)
    np.testing.assert_allclose(result.values[:, 0], gradient, atol=1e-6)


def test_modules_without_values_of_their_own_are_refused():
    with torch.device("meta"):
        meta = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    lazy = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU())
    inside = nn.Sequential(nn.Conv2d(3, 4, 3), torch.compile(nn.Conv2d(4, 4, 3)))
    for module, word in ((meta, "meta"), (lazy, "lazy"), (inside, "compiled 1")):
        with pytest.raises(ValueError, match=word):
            analysis.cka(module, IMAGES)
