"""Labels that are no classes are refused with one message, whatever is measured."""

import numpy as np
import pytest
import tensorflow as tf

from vit_tf import analysis
from vit_tf.analysis.probes.ridge import few_shot

RNG = np.random.default_rng(5)
LABELS = np.arange(24) % 3
IMAGES = (np.eye(3)[LABELS][:, None, :, None] + RNG.normal(size=(24, 2, 3, 1))).astype("float32")
SETTINGS = {"tokens": "all"}


def features(images):
    return {"x": images[..., 0]}


def shots(train, test):
    batched = [tf.data.Dataset.from_tensor_slices(data).batch(24) for data in (train, test)]
    return few_shot(features, [(batched[0], None)], batched[1], 3, (1,), (1.0,))["accuracy"]


MEASURES = {
    "k-NN": lambda train, test: analysis.knn_accuracy(features, train, test, 3, (1,), **SETTINGS),
    "ridge": lambda train, test: analysis.ridge_probe(features, train, test, 3, 1.0),
    "linear": lambda train, test: analysis.linear_probe(
        features, train, test, 3, epochs=1, **SETTINGS
    ),
    "few-shot": shots,
}
SHAPES = {
    "one-hot": (np.eye(3, dtype="float32")[LABELS], ", 3"),
    "integers, one-hot": (np.eye(3, dtype="int64")[LABELS], ", 3"),
    "column": (LABELS[:, None], ", 1"),
    "real": (LABELS.astype("float32"), "float32"),
}


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize(("labels", "word"), SHAPES.values(), ids=SHAPES)
def test_other_shapes_and_types_are_refused(measure, labels, word):
    good, bad = (IMAGES, LABELS), (IMAGES, labels)
    for pair in ((bad, good), (good, bad)):
        with pytest.raises(ValueError, match=f"integer labels.*{word}"):
            measure(*pair)


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize("change", [1, -1])
def test_too_many_classes_are_refused(measure, change):
    good, bad = (IMAGES, LABELS), (IMAGES, LABELS + change)
    for pair in ((bad, good), (good, bad)):
        with pytest.raises(ValueError, match=r"num_classes - 1 = 2\. Received: .* labels"):
            measure(*pair)


@pytest.mark.parametrize(("labels", "word"), SHAPES.values(), ids=SHAPES)
def test_so_they_are_for_clusters_and_queries(labels, word):
    with pytest.raises(ValueError, match=f"integer labels.*{word}"):
        analysis.clustering(features, (IMAGES, labels), 3, "all")
    truth = [{"easy": [0], "hard": [1], "junk": []}] * 24
    with pytest.raises(ValueError, match=f"integer labels.*{word}"):
        analysis.retrieval(features, (IMAGES, labels), IMAGES, truth, "all")


@pytest.mark.slow
@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
@pytest.mark.parametrize("kind", ["uint8", "int32"])
def test_integers_of_any_type_are_labels(measure, kind):
    train = IMAGES, LABELS.astype(kind)
    expected = measure((IMAGES, LABELS), (IMAGES, LABELS))
    np.testing.assert_allclose(measure(train, train), expected)
