"""Calls that scripts of other libraries make: other forms of images, modules and token orders."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers, ops

from vit_tf import analysis
from vit_tf.analysis.figures.models import LoadedModel, study_model
from vit_tf.data.any_images import as_images
from vit_tf.features.conversion import facts_of

torch = pytest.importorskip("torch", reason="torch is not installed")
nn = torch.nn

pytestmark = pytest.mark.usefixtures("without_graphs")

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


def keras_vit(is_first, prepare=None):
    images = keras.Input((32, 32, 3))
    x = prepare(images) if prepare else images
    x = layers.Reshape((4, 8))(layers.Conv2D(8, 16, 16)(x))
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
    assert analysis.features_of(make(True), "attention").facts.grid.prefix == 1
    with pytest.warns(UserWarning, match="tokens 4 of 5"):
        features = analysis.features_of(make(False), "attention")
    assert features.facts.grid is None
    with pytest.warns(UserWarning, match="tokens 4"), pytest.raises(ValueError, match="grid"):
        analysis.attention_distance(make(False), IMAGES)


def chosen_grid(model):
    return analysis.features_of(model, layers="*/weights").facts.grid


def grid_of_report(model):
    return study_model(LoadedModel("ViT", model, facts_of(model).expected_images), IMAGES)[0].grid


@pytest.mark.slow
@pytest.mark.parametrize("find_grid", [chosen_grid, grid_of_report])
def test_chosen_layers_and_reports_check_the_class_token(find_grid):
    assert find_grid(keras_vit(True)).prefix == 1
    with pytest.warns(UserWarning, match="tokens 4 of 5"):
        assert find_grid(keras_vit(False)) is None


@pytest.mark.slow
def test_patches_that_do_not_depend_on_the_images_of_the_check_have_a_grid():
    """The images of the check exceed the range that the model clips to."""
    model = keras_vit(True, lambda x: ops.clip(x, -1e-3, 0))
    grid = analysis.features_of(model, "attention").facts.grid
    assert (grid.rows, grid.columns, grid.prefix) == (2, 2, 1)


def test_layers_that_are_called_as_parts_of_others_lie_on_the_grid():
    images = keras.Input((32, 32, 3))
    x = layers.Reshape((16, 8))(layers.Conv2D(8, 8, 8)(images))
    x = layers.Dense(8, name="weights")(x)
    model = keras.Model(images, layers.Dense(3)(ops.mean(x, axis=1)))
    assert analysis.features_of(model, layers="weights").facts.grid.num_tokens == 16


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
    body = [nn.Conv2d(3, 4, 3), nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
    module = nn.Sequential(*body, nn.Linear(4, 3))
    expected = CHANNELS_FIRST[:1].detach().requires_grad_()
    module(expected)[0, 1].backward()
    with mode():
        result = analysis.input_gradients(module, IMAGES[:1], classes=[1], samples=1, noise=0.0)
    gradient = expected.grad.permute(0, 2, 3, 1)
    np.testing.assert_allclose(result.values[:, 0], gradient, atol=1e-6)


@pytest.mark.slow
def test_modules_without_values_of_their_own_are_refused():
    with torch.device("meta"):
        meta = nn.Sequential(nn.Conv2d(3, 4, 3), nn.ReLU())
    lazy = nn.Sequential(nn.LazyConv2d(4, 3), nn.ReLU())
    inside = nn.Sequential(nn.Conv2d(3, 4, 3), torch.compile(nn.Conv2d(4, 4, 3)))
    for module, word in ((meta, "meta"), (lazy, "lazy"), (inside, "compiled submodules, 1")):
        with pytest.raises(ValueError, match=word):
            analysis.cka(module, IMAGES)


@pytest.mark.parametrize("dtype", ["int64", "bool", "float32"])
def test_weights_after_labels_are_left_out_whatever_their_type(dtype):
    weights = np.ones(12, dtype)
    for shaped in (weights, weights[:, None]):
        assert len(as_images((IMAGES, LABELS, shaped))) == 2
    masks = np.zeros((12, 32, 32), bool)
    assert len(as_images((IMAGES, masks, LABELS))) == 3  # labels after masks are no weights


def test_other_third_parts_are_refused_in_words():
    model = keras.Sequential([keras.Input((32, 32, 3)), layers.Flatten(), layers.Dense(3)])
    parts = IMAGES, LABELS, np.zeros((12, 4), np.int64)
    for given in (parts, tf.data.Dataset.from_tensor_slices(parts).batch(12)):
        with pytest.raises(ValueError, match=r"weight for each image.*3 parts.*int64.*4"):
            analysis.mistakes(model, given)


def test_labels_in_another_order_than_the_class_names_are_refused():
    model = keras.Sequential([keras.Input((32, 32, 3)), layers.Flatten(), layers.Dense(3)])
    model.class_names = ["bright", "dark", "grey"]
    batches = tf.data.Dataset.from_tensor_slices((IMAGES, LABELS)).batch(12)
    batches.class_names = ["dark", "bright", "grey"]
    with pytest.raises(ValueError, match=r"bright, dark, grey.*dark, bright, grey"):
        analysis.mistakes(model, batches)
    batches.class_names = ["bright", "dark", "grey"]
    analysis.mistakes(model, batches)


class Checkpointed(nn.Module):
    """A module that computes its convolution again in the backward pass."""

    def __init__(self, is_reentrant):
        super().__init__()
        self.conv, self.head = nn.Conv2d(3, 4, 3), nn.Linear(4, 3)
        self.is_reentrant = is_reentrant

    def forward(self, images):
        checkpoint = torch.utils.checkpoint.checkpoint
        x = checkpoint(self.conv, images, use_reentrant=self.is_reentrant)
        return self.head(torch.tanh(x).mean((2, 3)))


@pytest.mark.parametrize("is_reentrant", [False, True])
def test_gradients_through_checkpoints_are_right_or_one_error(is_reentrant):
    torch.manual_seed(0)
    module = Checkpointed(is_reentrant)
    try:
        result = analysis.grad_cam(module, IMAGES[:2], classes=[1], layers="conv")
    except ValueError as error:
        assert "checkpointing" in str(error)
    else:
        module.forward = lambda x: module.head(torch.tanh(module.conv(x)).mean((2, 3)))
        plain = nn.Sequential(module.conv, nn.Tanh(), nn.AdaptiveAvgPool2d(1), nn.Flatten())
        plain.append(module.head)
        expected = analysis.grad_cam(plain, IMAGES[:2], classes=[1], layers="0")
        np.testing.assert_allclose(result, expected, atol=1e-5)


def test_gradients_of_integer_images_are_refused_in_words():
    images = keras.Input((32, 32, 3), dtype="uint8")
    x = layers.GlobalAveragePooling2D()(layers.Conv2D(4, 3)(layers.Rescaling(1 / 255)(images)))
    model = keras.Model(images, layers.Dense(3)(x))
    levels = np.uint8(128 + 127 * IMAGES[:4])
    for measure in (analysis.input_gradients, analysis.receptive_field):
        with pytest.raises(ValueError, match=r"need floating-point images.*uint8") as raised:
            measure(model, levels)
        assert "SavedModel" not in str(raised.value)


@pytest.mark.slow
def test_batches_of_unknown_rank_are_measured():
    model = keras.Sequential([keras.Input((32, 32, 3)), layers.Conv2D(4, 3), layers.Flatten()])
    model.add(layers.Dense(3))
    single, pairs = (
        tf.data.Dataset.from_generator(lambda e=examples: iter(e), output_types=types)
        for examples, types in (
            (IMAGES, tf.float32),
            (list(zip(IMAGES, LABELS, strict=True)), (tf.float32, tf.int64)),
        )
    )
    assert single.batch(12).element_spec.shape.rank is None
    np.testing.assert_allclose(
        analysis.cka(model, single.batch(12)).cka, analysis.cka(model, IMAGES).cka, atol=1e-5
    )
    right = analysis.mistakes(model, (IMAGES, LABELS))
    found = analysis.mistakes(model, pairs.batch(12))
    np.testing.assert_array_equal(found.predicted, right.predicted)
    with pytest.raises(
        (ValueError, tf.errors.InvalidArgumentError), match=r"Shape of tensor.*\[32,32,3\]"
    ):
        analysis.cka(model, single)
