"""Shape bias of classifiers whose cue is known, and counts by hand."""

import numpy as np
import pytest
import tensorflow as tf

from vit_tf import analysis, data
from vit_tf.analysis.statistics.intervals import wilson
from vit_tf.data.shapes import KINDS

NAMES = list(KINDS)


def hue_classes(images):
    """The texture of each image: the class of the median hue of its coloured pixels."""
    hsv = tf.image.rgb_to_hsv((images + 1) / 2).numpy()
    # Hues of the first class lie around 0, as angles on both sides.
    angles = [np.exp(2j * np.pi * x[..., 0][x[..., 1] > 0.5]).sum() for x in hsv]
    return np.rint(np.angle(angles) / (2 * np.pi) * len(KINDS)).astype(int) % len(KINDS)


def silhouettes(images):
    """Hu's moments and the mean colourfulness of the coloured region: (example, feature)."""
    rows = []
    for image in np.asarray(tf.image.rgb_to_hsv((images + 1) / 2)):
        y, x = np.nonzero(image[..., 1] > 0.5)
        z = (x - x.mean()) + 1j * (y - y.mean())
        z /= np.sqrt(len(z))
        radius = np.abs(z)
        distances = np.sort(radius)[np.linspace(0, len(z) - 1, 12).astype(int)]
        turns = [np.abs(np.mean(z**n)) for n in (2, 3, 4, 5)]
        rows.append([*distances, *(10 * t for t in turns), radius.mean(), (radius**2).mean()])
    return np.array(rows)


def decided(images):
    """Scores of a classifier whose input is its answer, (example, 1)."""
    return {"logits": tf.one_hot(tf.cast(images[:, 0], tf.int32), len(KINDS))}


def answers(predicted, labels):
    """Batches of these answers with the classes of shape and texture."""
    pair = np.asarray(predicted, "float32")[:, None], np.asarray(labels)
    return tf.data.Dataset.from_tensor_slices(pair).batch(len(labels))


@pytest.mark.slow
def test_a_classifier_of_colours_has_bias_0():
    """It sees a histogram of hues, and is right on every textured shape."""
    conflicts = data.load_cue_conflict(56)
    (shapes,) = data.load("textured-shapes", splits=("test",), take=40, batch_size=40)
    images, labels = next(iter(shapes))
    np.testing.assert_array_equal(hue_classes(images), labels)
    predicted = hue_classes(conflicts[0])
    np.testing.assert_array_equal(predicted, conflicts[1][:, 1])

    def by_colour(batch):
        classes = tf.numpy_function(hue_classes_of_array, [batch], tf.int64)
        return {"logits": tf.one_hot(tf.ensure_shape(classes, [None]), len(KINDS))}

    result = analysis.shape_bias(by_colour, conflicts)
    assert result.shape_bias == 0 and result.low == 0
    np.testing.assert_allclose(result.high, wilson(0, 56)[1])
    np.testing.assert_allclose(result.decisions, [0, 1, 0])
    assert (result.class_shape_bias == 0).all()


def hue_classes_of_array(images):
    return hue_classes(tf.constant(images)).astype("int64")


@pytest.mark.slow
def test_a_classifier_of_silhouettes_has_bias_near_1():
    """Nearest neighbours among silhouettes of textured shapes, which err, but not by texture."""
    conflicts = data.load_cue_conflict(280)
    (shapes,) = data.load("textured-shapes", splits=("train",), take=800, batch_size=800)
    images, labels = next(iter(shapes))
    known, unknown = silhouettes(images), silhouettes(conflicts[0])
    mean, scale = known.mean(axis=0), known.std(axis=0)
    distance = np.linalg.norm(((unknown - mean) / scale)[:, None] - (known - mean) / scale, axis=-1)
    predicted = labels.numpy()[distance.argmin(axis=1)]
    result = analysis.shape_bias(decided, answers(predicted, conflicts[1]))
    wrong = 1 - (predicted == conflicts[1][:, 0]).mean()
    assert wrong < 0.35
    # Of seven wrong classes one is that of the texture.
    expected = (1 - wrong) / (1 - wrong + wrong / 7)
    assert result.low <= expected <= result.high and result.shape_bias > 0.9


def test_counts_and_intervals(rng):
    labels = np.stack([rng.integers(8, size=90), np.zeros(90, int)], axis=1)
    labels[:, 1] = (labels[:, 0] + rng.integers(1, 8, size=90)) % 8
    predicted = np.where(np.arange(90) < 40, labels[:, 0], labels[:, 1])
    predicted[70:] = [next(c for c in range(8) if c not in pair) for pair in labels[70:]]
    result = analysis.shape_bias(decided, answers(predicted, labels))
    np.testing.assert_allclose(result.shape_bias, 40 / 70)
    np.testing.assert_allclose([result.low, result.high], wilson(40, 70))
    np.testing.assert_allclose(result.decisions, np.array([40, 30, 20]) / 90)
    own = labels[:, 0] == 3
    shape, texture = (predicted == labels[:, 0])[own], (predicted == labels[:, 1])[own]
    np.testing.assert_allclose(
        result.class_shape_bias.sel({"class": "3"}), shape.sum() / (shape | texture).sum()
    )
    # A model whose classes are in another order.
    order = rng.permutation(8)

    class Permuted:
        class_names = tuple(NAMES[k] for k in order)

        def __call__(self, images):
            return {"logits": tf.gather(decided(images)["logits"], order, axis=1)}

    permuted = analysis.shape_bias(Permuted(), answers(predicted, labels))
    np.testing.assert_allclose(permuted.shape_bias, result.shape_bias)
    np.testing.assert_allclose(permuted.decisions, result.decisions)
    assert permuted["class"].values.tolist() == [*Permuted.class_names]


@pytest.mark.parametrize(
    ("labels", "message"),
    [
        ([0, 1], r"shape \(example, 2\)"),
        ([[0, 1], [2, 2]], "different classes"),
        ([[0, 1], [2, 9]], "from 0 to 7"),
        ([[0.5, 1], [2, 3]], "integer"),
    ],
)
def test_refuses_other_labels(labels, message):
    with pytest.raises(ValueError, match=message):
        analysis.shape_bias(decided, answers([0, 1], labels))


def test_without_decisions_for_either_there_is_no_bias():
    result = analysis.shape_bias(decided, answers([5, 6], [[0, 1], [2, 3]]))
    assert np.isnan(result.shape_bias) and result.decisions[2] == 1
    assert analysis.plot(result) is not None
