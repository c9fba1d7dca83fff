"""Labels that are no classes are refused with one message, whatever is measured."""

from functools import partial

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from PIL import Image

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.probes.ridge import few_shot
from vit_tf.training.evaluation import top_k_accuracy

pytestmark = pytest.mark.usefixtures("without_graphs")

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
    "masks": (np.zeros((len(LABELS), 4, 4), "int64"), "one label for each image"),
    "real": (LABELS.astype("float32"), "float32"),
    "bool": (LABELS > 0, "bool"),
    "text": (np.array(["a", "b", "c"])[LABELS], "text"),
    "objects": (np.array(["a", "b", "c"], object)[LABELS], "text"),
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


@pytest.fixture(scope="module")
def classifier():
    """A ViT of three classes, images for it, and its logit lens."""
    vit = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 8, num_classes=3)
    images = RNG.uniform(-1, 1, (24, 8, 8, 3)).astype("float32")
    return vit, images, analysis.logit_lens(vit, images)


def of_scores(classifier):
    """What compares scores with labels: functions of these to the accuracy."""
    vit, images, lens = classifier

    def evaluate(labels):
        data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(24)
        return top_k_accuracy(vit, data)[1]

    return {
        "lens": lambda labels: float(analysis.lens_accuracy(lens, labels).accuracy[-1]),
        "ablation": lambda labels: float(analysis.skip_ablation(vit, (images, labels)).accuracy),
        "evaluation": evaluate,
    }


@pytest.mark.parametrize("name", ["k-NN", "ridge", "linear"])
def test_a_column_of_labels_is_labels(name, classifier):
    """`keras.datasets` has labels of shape (example, 1)."""
    measure, column = MEASURES[name], (IMAGES, LABELS[:, None])
    expected = measure((IMAGES, LABELS), (IMAGES, LABELS))
    np.testing.assert_array_equal(measure(column, column), expected)
    ablation = of_scores(classifier)["ablation"]
    assert ablation(LABELS[:, None]) == ablation(LABELS)


OUTSIDE = {
    "from 1": (LABELS + 1, "numbered from 1, use labels - 1"),
    "unknown": (np.full(24, -1), "without class folders"),
    "beyond": (LABELS + 7, "Received: "),
    "of 33 bits": (LABELS + 2**32, "Received: "),
}


@pytest.mark.parametrize(("labels", "word"), (SHAPES | OUTSIDE).values(), ids=SHAPES | OUTSIDE)
def test_so_they_are_where_scores_are_compared_with_them(classifier, labels, word):
    for measure in of_scores(classifier).values():
        with pytest.raises(ValueError, match=f"integer labels.*{word}"):
            measure(labels)


@pytest.mark.slow
def test_every_integer_type_gives_the_same_accuracy(classifier):
    vit, images, _ = classifier
    expected = float(np.mean(np.argmax(vit(images), axis=1) == LABELS))
    for measure in of_scores(classifier).values():
        for kind in ("uint64", "int8"):
            np.testing.assert_allclose(measure(LABELS.astype(kind)), expected, atol=1e-6)


@pytest.mark.parametrize("as_batches", [False, True])
def test_what_labels_alone_determine_is_refused_where_they_are_none(as_batches):
    def data(labels):
        pair = (IMAGES, labels)
        return tf.data.Dataset.from_tensor_slices(pair).batch(12) if as_batches else pair

    def measure(labels):
        return analysis.ridge_probe(features, data(labels), data(labels), l2=1.0)

    assert measure(LABELS).attrs["num_classes"] == 3
    for labels, word in (
        (LABELS + 1, "numbered from 1"),
        (LABELS - 1, "below 0"),
        (np.zeros(24, int), "two classes"),
        (LABELS + 2**32, "no numbers of classes"),
    ):
        with pytest.raises(ValueError, match=word):
            measure(labels)
    with pytest.raises(ValueError, match="train needs labels"):
        analysis.ridge_probe(features, IMAGES, (IMAGES, LABELS))
    with pytest.raises(ValueError, match="as many labels"):
        analysis.clustering(features, (IMAGES, LABELS[:20]), 3, "all")


def test_clusters_are_compared_with_labels_of_two_classes_or_more():
    for labels, word in ((np.full(24, -1), "below 0"), (np.zeros(24, int), "two classes")):
        with pytest.raises(ValueError, match=word):
            analysis.clustering(features, (IMAGES, labels), 3, "all")
    from_one = analysis.clustering(features, (IMAGES, LABELS + 1), tokens="all")
    xr.testing.assert_equal(from_one, analysis.clustering(features, (IMAGES, LABELS), tokens="all"))


def test_pairs_of_images_are_no_images_with_labels(classifier):
    vit, images, _ = classifier
    with pytest.raises(ValueError, match="pairs of images"):
        analysis.activation_patching(vit, (images, LABELS))


@pytest.mark.parametrize("form", [np.asarray, tf.constant, list, lambda y: np.asarray(y)[:, None]])
def test_labels_after_the_images_are_their_labels(form):
    """`f(model, x, y)`, as Keras takes images and labels, is `f(model, (x, y))`."""
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (24, 8, 8, 3)).astype("float32")
    labels = np.arange(24) % 3
    model = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 8, num_classes=3)
    given = form(labels)
    ours = analysis.head_ablation(model, images, given)
    assert ours.identical(analysis.head_ablation(model, (images, labels)))
    sets = images[:12], form(labels[:12]), images[12:], form(labels[12:])
    pairs = (images[:12], labels[:12]), (images[12:], labels[12:])
    options = {"k": 3, "layers": "norm"}
    ours = analysis.knn_accuracy(model, *sets, **options)
    assert ours.identical(analysis.knn_accuracy(model, *pairs, **options))
    with pytest.raises(ValueError, match="Expected features to be a callable"):
        analysis.cka(model, images, given, given)


def test_classes_of_two_folders_are_matched_by_name(tmp_path, rng):
    # The colour of an image is its class, so that every probe that knows the classes is right.
    images = keras.Input((8, 8, 3))
    x = keras.layers.DepthwiseConv2D(1, depthwise_initializer="ones")(images)
    x = keras.layers.GlobalAveragePooling2D(name="colour")(x)
    model = keras.Model(images, keras.layers.Dense(3)(x))
    model.preprocessing = vit_tf.Preprocessing.from_range((8, 8), 0, 1)
    names = ("ant", "bee", "cat")
    for split, classes in (("train", names), ("test", ("ant", "cat"))):
        for name in classes:
            folder = tmp_path / split / name
            folder.mkdir(parents=True)
            for k in range(6):
                pixels = rng.integers(0, 20, (8, 8, 3)).astype(np.uint8)
                pixels[..., names.index(name)] += 200
                Image.fromarray(pixels).save(folder / f"{k}.png")
    train, test = tmp_path / "train", tmp_path / "test"
    for probe in (
        analysis.ridge_probe,
        analysis.linear_probe,
        partial(analysis.knn_accuracy, k=3),
    ):
        np.testing.assert_array_equal(probe(model, train, test, layers="colour"), 1)
    (test / "cat").rename(test / "bat")
    with pytest.raises(ValueError, match=r"training images.*Received: bat, which"):
        analysis.ridge_probe(model, train, test, layers="colour")
