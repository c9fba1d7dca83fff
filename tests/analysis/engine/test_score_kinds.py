"""What class scores are: a softmax, several sigmoids, one sigmoid, or none."""

import keras
import numpy as np
import pytest
from keras import layers
from scipy.special import expit, log_softmax

import vit_tf
from vit_tf import analysis
from vit_tf.features.conversion import as_features

pytestmark = pytest.mark.usefixtures("without_graphs")

NUM_CLASSES = 5
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (24, 16, 16, 3)).astype("float32")
LABELS = RNG.integers(0, NUM_CLASSES, 24)


def tokens(images):
    """A convolution into patches and a layer of attention: tokens (example, 16, 8)."""
    x = layers.Reshape((16, 8))(layers.Conv2D(8, 4, 4, name="patches")(images))
    attended = layers.MultiHeadAttention(2, 4, name="attention")(x, x)
    return layers.Add(name="sum")([x, attended])


def model_of(head):
    """A small model whose head is a function of the mean token."""
    keras.utils.set_random_seed(1)
    images = keras.Input((16, 16, 3))
    return keras.Model(images, head(layers.GlobalAveragePooling1D(name="pool")(tokens(images))))


def classifier(activation, units=NUM_CLASSES):
    return model_of(
        layers.Dense(units, activation=activation, name="head", bias_initializer="random_normal")
    )


def scores_of(model):
    """The values before the activation of the head, float64."""
    head = model.get_layer("head")
    pooled = vit_tf.submodel(model, "pool")(IMAGES)["pool"]
    return np.asarray(pooled, np.float64) @ np.asarray(head.kernel) + np.asarray(head.bias)


@pytest.mark.parametrize("activation", [None, "softmax", "sigmoid"])
def test_loss_and_probabilities_follow_from_what_makes_probabilities(activation):
    model = classifier(activation)
    scores = scores_of(model)
    right = np.eye(NUM_CLASSES)[LABELS]
    if activation == "sigmoid":
        probabilities = expit(scores)
        losses = -right * np.log(probabilities) - (1 - right) * np.log1p(-probabilities)
        loss = losses.sum(axis=1).mean()
    else:
        probabilities = np.exp(log_softmax(scores, axis=1))
        loss = -log_softmax(scores, axis=1)[range(24), LABELS].mean()
    effect = analysis.head_ablation(model, (IMAGES, LABELS))
    assert effect.loss == pytest.approx(loss, rel=1e-5)

    wrong = analysis.mistakes(model, (IMAGES, LABELS), k=24)
    position = wrong.position.values
    np.testing.assert_allclose(wrong.probability, probabilities[position].max(axis=1), rtol=1e-5)
    expected = probabilities[position, LABELS[position]]
    np.testing.assert_allclose(wrong.label_probability, expected, rtol=1e-5)


def test_a_single_sigmoid_is_the_probability_of_the_second_class():
    model = classifier("sigmoid", units=1)
    second = expit(scores_of(model))[:, 0]
    labels = 1 - (second > 0.5).astype(int)  # all of them wrong
    wrong = analysis.mistakes(model, (IMAGES, labels), k=24)
    position = wrong.position.values
    both = np.stack([1 - second, second], axis=1)
    np.testing.assert_allclose(wrong.probability, both[position].max(axis=1), rtol=1e-5)
    effect = analysis.head_ablation(model, (IMAGES, labels))
    assert effect.loss == pytest.approx(-np.log(both[range(24), labels]).mean(), rel=1e-5)


HEADLESS = {
    "pooling": lambda x: x,
    "norm": layers.LayerNormalization(),
    "batch norm": layers.BatchNormalization(),
    "dropout": layers.Dropout(0.5),
    "features of a layer": layers.Dense(NUM_CLASSES, activation="relu"),
}


@pytest.mark.parametrize("head", HEADLESS)
def test_channels_are_no_classes(head):
    model = model_of(HEADLESS[head])
    assert as_features(model).facts.scores is None
    for measure in (analysis.mistakes, analysis.head_ablation, analysis.robustness):
        with pytest.raises(ValueError, match="has no class scores"):
            measure(model, (IMAGES, LABELS % 3))
    with pytest.raises(ValueError, match="has no class scores"):
        analysis.input_gradients(model, IMAGES[:1])


HEADS = {
    "dense": layers.Dense(NUM_CLASSES),
    "without bias": layers.Dense(NUM_CLASSES, use_bias=False),
    "dropout": lambda x: layers.Dropout(0.5)(layers.Dense(NUM_CLASSES)(x)),
    "convolution": lambda x: layers.Flatten()(
        layers.Conv2D(NUM_CLASSES, 1)(layers.Reshape((1, 1, 8))(x))
    ),
    "scaled": lambda x: layers.Rescaling(10.0)(layers.Dense(NUM_CLASSES, use_bias=False)(x)),
}


@pytest.mark.parametrize("head", HEADS)
def test_heads_of_any_form_are_class_scores(head):
    model = model_of(HEADS[head])
    features = as_features(model).read_scores(None)
    scores = features(IMAGES)[features.facts.scores.layer]
    np.testing.assert_allclose(scores, model.predict(IMAGES, verbose=0), atol=1e-5)
