"""Measurements of classifiers that end in a softmax or a sigmoid are those of their scores."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine.class_scores import as_probabilities
from vit_tf.training.evaluation import top_k_accuracy

RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (12, 16, 16, 3)).astype("float32")
LABELS = RNG.integers(0, 5, 12)


def vit(activation, width=5):
    """A small ViT of Keras' layers, with large scores."""
    keras.utils.set_random_seed(0)
    images = keras.Input((16, 16, 3))
    x = layers.Reshape((4, 8))(layers.Conv2D(8, 8, 8, name="patch")(images))
    y = layers.LayerNormalization(name="norm0")(x)
    x = layers.Add(name="sum0")([x, layers.MultiHeadAttention(2, 4, name="attention0")(y, y)])
    x = layers.GlobalAveragePooling1D(name="gap")(x)
    kernel = keras.initializers.RandomNormal(stddev=4.0, seed=3)
    return keras.Model(images, layers.Dense(width, activation, True, kernel, name="head")(x))


@pytest.fixture(scope="module")
def twins():
    """Two models of equal weights: with a softmax at the end, and without."""
    pair = vit("softmax"), vit(None)
    pair[0].set_weights(pair[1].get_weights())
    return pair


@pytest.fixture(scope="module")
def binary():
    """A model of one sigmoid, and its log-odds as a function of images."""
    model, other = vit("sigmoid", 1), vit(None, 1)
    other.set_weights(model.get_weights())
    return model, other


@pytest.mark.slow
def test_effects_of_ablation(twins):
    ours, right = (analysis.head_ablation(model, (IMAGES, LABELS)) for model in twins)
    p = np.asarray(twins[0](IMAGES), np.float64)
    np.testing.assert_allclose(ours.loss, -np.log(p[np.arange(12), LABELS]).mean(), rtol=1e-4)
    for name in ("accuracy_change", "loss_change", "output_change"):
        np.testing.assert_allclose(ours[name], right[name], rtol=1e-4, atol=1e-6)


MEASURES = {
    "input_gradients": lambda m: analysis.input_gradients(m, IMAGES[:2], [0, 3], 1, 0.0),
    "grad_cam": lambda m: analysis.grad_cam(m, IMAGES[:2], [1], layers="patch"),
    "logit_lens": lambda m: analysis.logit_lens(m, IMAGES, layers="sum*"),
    "patching": lambda m: analysis.activation_patching(m, (IMAGES[:2], IMAGES[2:4])).transfer,
}


@pytest.mark.parametrize(
    "name",
    [
        "logit_lens",
        *(pytest.param(n, marks=pytest.mark.slow) for n in MEASURES if n != "logit_lens"),
    ],
)
def test_scores_are_before_the_softmax(twins, name):
    ours, right = map(MEASURES[name], twins)
    np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_submodels_and_functions_of_probabilities(twins):
    right = MEASURES["input_gradients"](twins[1])
    for model in (
        vit_tf.submodel(twins[0], "gap", "head"),
        lambda images: {"logits": twins[0](images)},
    ):
        np.testing.assert_allclose(MEASURES["input_gradients"](model), right, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_the_activation_that_is_named(twins):
    ours, right = (
        analysis.input_gradients(model, IMAGES[:1], [2], 1, 0.0, scores="head") for model in twins
    )
    np.testing.assert_allclose(ours, right, rtol=1e-4, atol=1e-6)
    assert ours.attrs["scores"] == "head/logits"


@pytest.mark.slow
def test_a_function_that_hides_its_softmax_is_named(twins):
    hidden = tf.function(lambda images: twins[0](images))
    with pytest.warns(UserWarning, match="holds probabilities"):
        ours = MEASURES["input_gradients"](lambda images: {"logits": hidden(images)})
    images = tf.constant(IMAGES[:2])
    with tf.GradientTape() as tape:
        tape.watch(images)
        value = tf.reduce_sum(tf.math.log(twins[0](images))[:, 3])
    right = tape.gradient(value, images)
    np.testing.assert_allclose(ours[:, 1], right, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
def test_the_two_classes_of_one_sigmoid(binary):
    model, log_odds = binary
    images = tf.constant(IMAGES[:2])
    with tf.GradientTape() as tape:
        tape.watch(images)
        value = log_odds(images)
    right = tape.gradient(value, images)
    ours = analysis.input_gradients(model, IMAGES[:2], [0, 1], 1, 0.0)
    np.testing.assert_allclose(ours[:, 1], right, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(ours[:, 0], -right, rtol=1e-4, atol=1e-6)


@pytest.mark.slow
def test_losses_and_accuracies_of_one_sigmoid(binary):
    model, log_odds = binary
    z = np.asarray(log_odds(IMAGES), np.float64)[:, 0]
    p = 1 / (1 + np.exp(-z))
    labels = LABELS % 2
    accuracy = ((p > 0.5) == labels).mean()
    effect = analysis.head_ablation(model, (IMAGES, labels))
    np.testing.assert_allclose(effect.loss, -np.log(np.where(labels, p, 1 - p)).mean(), rtol=1e-4)
    np.testing.assert_allclose(effect.accuracy, accuracy)
    lens = analysis.logit_lens(model, IMAGES, layers="sum*")
    np.testing.assert_allclose(analysis.lens_accuracy(lens, labels).accuracy[-1], accuracy)
    assert top_k_accuracy(model, [(IMAGES, labels)]) == {1: accuracy}
    # Kullback-Leibler divergence of the two distributions of two classes, for the first head.
    edit = {"attention0/value": vit_tf.edits.head(0, vit_tf.edits.zero)}
    zeroed = vit_tf.intervene(log_odds, edit, "head")(IMAGES)["head"]
    q = 1 / (1 + np.exp(-np.asarray(zeroed, np.float64)[:, 0]))
    right = (p * np.log(p / q) + (1 - p) * np.log((1 - p) / (1 - q))).mean()
    np.testing.assert_allclose(effect.output_change[0, 0], right, rtol=1e-3, atol=1e-7)


def test_predicted_classes_of_one_sigmoid_are_explained(binary):
    p = np.asarray(binary[0](IMAGES[:1]))[0, 0]
    explained = analysis.input_gradients(binary[0], IMAGES[:1], samples=1, noise=0.0)
    assert explained["class"].values.tolist() == [int(p > 0.5)]


@pytest.mark.parametrize("measure", [analysis.predict, analysis.input_gradients])
def test_a_single_score_without_a_sigmoid_predicts_no_class(binary, measure):
    with pytest.raises(ValueError, match=r"two or more classes.*shape .example, 1"):
        measure(binary[1], IMAGES[:2])


@pytest.mark.slow
def test_one_score_without_a_sigmoid_is_no_classifier(binary):
    with pytest.raises(ValueError, match="two or more classes"):
        top_k_accuracy(binary[1], [(IMAGES, LABELS % 2)])
    with pytest.raises(ValueError, match="two or more classes"):
        analysis.head_ablation(binary[1], (IMAGES, LABELS % 2))
    lens = analysis.logit_lens(binary[1], IMAGES, layers="sum*")
    with pytest.raises(ValueError, match="two or more classes"):
        analysis.lens_accuracy(lens, LABELS % 2)


@pytest.mark.slow
def test_a_page_shows_the_probabilities_of_one_sigmoid(tmp_path):
    images = RNG.integers(0, 255, (2, 8, 8, 3)).astype("uint8")
    stack = [layers.Conv2D(4, 3, name="conv"), layers.GlobalAveragePooling2D()]
    model = keras.Sequential([keras.Input((8, 8, 3)), *stack, layers.Dense(1, "sigmoid")])
    page = analysis.explore(model, images, tmp_path / "page.html")
    second = np.asarray(model(images / 127.5 - 1), np.float64)
    shown = as_probabilities(page.results["scores"].values, has_sigmoids=True)
    np.testing.assert_allclose(shown, np.concatenate([1 - second, second], axis=1), atol=1e-5)


def averaging_vit():
    """A PyTorch module of two blocks that returns the mean of two softmaxes."""
    torch = pytest.importorskip("torch")
    nn = torch.nn

    class Attention(nn.Module):
        """Two heads; the module `heads` returns their outputs, on which hooks can act."""

        def __init__(self):
            super().__init__()
            self.query, self.key, self.value, self.out = (nn.Linear(8, 8) for _ in range(4))
            self.edit = None

        def forward(self, x):
            q, k, v = (
                f(x).unflatten(-1, (2, 4)).transpose(1, 2)
                for f in (self.query, self.key, self.value)
            )
            heads = (q @ k.mT / 2).softmax(-1) @ v
            return self.out((self.edit(heads) if self.edit else heads).transpose(1, 2).flatten(2))

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.has_skip = Attention(), True

        def forward(self, x):
            return x + self.attention(x) if self.has_skip else self.attention(x)

    class Averaging(nn.Module):
        def __init__(self):
            super().__init__()
            self.patches = nn.Conv2d(3, 8, 4, 4)
            self.blocks = nn.ModuleList([Block(), Block()])
            self.first, self.second = nn.Linear(8, 5), nn.Linear(8, 5)

        def forward(self, x):
            x = self.patches(x).flatten(2).mT
            for block in self.blocks:
                x = block(x)
            x = 20 * x.mean(1)
            return (self.first(x).softmax(-1) + self.second(x).softmax(-1)) / 2

    torch.manual_seed(0)
    module = Averaging().eval()

    def probabilities(images=IMAGES):
        with torch.no_grad():
            return module(torch.from_numpy(np.moveaxis(images, -1, 1).copy())).double().numpy()

    return module, probabilities


def effects_by_hand(p, q):
    """Changes of accuracy and loss, and the divergence, from probabilities before and after."""
    rows = np.arange(len(LABELS))
    accuracy = (q.argmax(1) == LABELS).mean() - (p.argmax(1) == LABELS).mean()
    loss = np.log(p[rows, LABELS] / q[rows, LABELS]).mean()
    return accuracy, loss, (p * np.log(p / q)).sum(1).mean()


CHANGES = ("accuracy_change", "loss_change", "output_change")


@pytest.mark.filterwarnings("ignore:'logits' of 'Averaging' holds probabilities")
@pytest.mark.parametrize("replacement", ["zero", "resample"])
def test_heads_of_a_module_of_probabilities_are_ablated(replacement):
    """In one batch, in which resampled values are those of the image before."""
    module, probabilities = averaging_vit()
    data = tf.data.Dataset.from_tensors((IMAGES, LABELS))
    found = analysis.head_ablation(module, data, scores="logits", replacement=replacement)
    before = probabilities()
    assert found.loss == pytest.approx(-np.log(before[np.arange(12), LABELS]).mean(), rel=1e-5)
    for block in range(2):
        for head in range(2):

            def edit(heads, head=head):
                heads = heads.clone()
                other = heads.roll(1, 0) if replacement == "resample" else 0 * heads
                heads[:, head] = other[:, head]
                return heads

            module.blocks[block].attention.edit = edit
            expected = effects_by_hand(before, probabilities())
            module.blocks[block].attention.edit = None
            actual = [float(found[name][block, head]) for name in CHANGES]
            np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-6)


@pytest.mark.filterwarnings("ignore:'logits' of 'Averaging' holds probabilities")
def test_skips_and_tokens_of_a_module_of_probabilities_are_edited():
    module, probabilities = averaging_vit()
    found = analysis.skip_ablation(module, (IMAGES, LABELS), scores="logits").sel(path="skip")
    before = probabilities()
    for number, block in enumerate(module.blocks):
        block.has_skip = False
        expected = effects_by_hand(before, probabilities())
        block.has_skip = True
        actual = [float(found[name][number]) for name in CHANGES]
        np.testing.assert_allclose(actual, expected, rtol=1e-3, atol=1e-6)
    # The first token behind the last block, patched with that of the other image.
    patched = analysis.activation_patching(
        module, (IMAGES[:2], IMAGES[2:4]), tokens=[0], layers="blocks.1", scores="logits"
    )
    kept = []
    hook = module.blocks[1].register_forward_hook(lambda *call: kept.append(call[-1][:, 0]))
    plain, other = (np.log(probabilities(x)) for x in (IMAGES[:2], IMAGES[2:4]))
    hook.remove()

    def patch(*call):
        values = call[-1].clone()
        values[:, 0] = kept[1]
        return values

    module.blocks[1].register_forward_hook(patch)
    change, difference = np.log(probabilities(IMAGES[:2])) - plain, other - plain
    transfer = (change * difference).sum() / (difference**2).sum()
    np.testing.assert_allclose(np.squeeze(patched.transfer), transfer, rtol=1e-4)
