"""The rule by which images become the batches of a measurement: random order, equal sizes."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from image_folders import write
from keras import layers

import vit_tf
from vit_tf import Preprocessing, ViT, analysis
from vit_tf.data.any_images import batch_images
from vit_tf.data.batches import IN_ORDER, RANDOM, BatchRule, batch_arrays, split_batches

RNG = np.random.default_rng(0)


def sizes_of(batches):
    return [len(tf.nest.flatten(batch)[0]) for batch in batches]


@pytest.mark.parametrize("count", [1, 2, 12, 127, 128, 129, 132, 133, 257, 384, 1000, 16513])
def test_sizes_differ_by_at_most_one(count):
    sizes = BatchRule().sizes(count)
    assert sum(sizes) == count and max(sizes) <= 128 and max(sizes) - min(sizes) <= 1
    assert len(sizes) == -(-count // 128) and sizes == sorted(sizes, reverse=True)


def test_133_images_are_67_and_66_in_a_seeded_order():
    rows, labels = RNG.normal(size=(133, 4)), np.arange(133)
    batches = batch_arrays((rows, labels))
    assert sizes_of(batches) == [67, 66] and batches.cardinality() == 2
    order = np.concatenate([part for _, part in batches])
    np.testing.assert_array_equal(np.concatenate([part for part, _ in batches]), rows[order])
    np.testing.assert_array_equal(np.sort(order), labels)
    again = np.concatenate([part for _, part in batch_arrays((rows, labels))])
    np.testing.assert_array_equal(again, order)
    other = np.concatenate([part for _, part in batch_arrays((rows, labels), BatchRule(seed=1))])
    assert (order != labels).mean() > 0.9 and (order != other).mean() > 0.9
    kept = np.concatenate([part for _, part in batch_arrays((rows, labels), IN_ORDER)])
    np.testing.assert_array_equal(kept, labels)


def test_sizes_of_batches_are_static_where_they_are_equal():
    for count, expected in ((256, 128), (133, None), (12, 12)):
        assert batch_arrays(np.zeros((count, 3))).element_spec.shape[0] == expected


def test_arrays_of_different_lengths_are_refused():
    with pytest.raises(ValueError, match="arrays of 5, 4 examples"):
        batch_arrays((np.zeros((5, 2)), np.zeros(4)))


@pytest.mark.parametrize(
    ("count", "size", "most", "least", "expected"),
    [
        (133, 128, 28, 1, [26, 26, 26, 25, 25, 5]),
        (67, 67, 28, 1, [23, 22, 22]),
        (5, 5, 2, 2, [3, 2]),
        (3, 3, 1, 2, [3]),
        (1, 1, 1, 2, [1]),
    ],
)
def test_batches_are_split_in_equal_parts(count, size, most, least, expected):
    batches = tf.data.Dataset.range(count).batch(size)
    parts = split_batches(batches, most, least)
    assert sizes_of(parts) == expected
    np.testing.assert_array_equal(np.concatenate(list(parts)), np.arange(count))


def test_a_folder_and_a_list_of_files_are_read_in_the_order_of_arrays(tmp_path):
    """Classes of a folder are mixed in each batch; those of a data set stay as they are batched."""
    levels = np.arange(150)
    for level in levels:
        write(tmp_path / "abc"[level // 50] / f"{level:03d}.png", np.full((4, 4, 3), level))
    plain = Preprocessing.from_range((4, 4), 0, 255)
    paths = sorted(tmp_path.glob("*/*.png"))
    folder = batch_images(tmp_path, plain)
    assert sizes_of(folder) == [75, 75] and folder.class_names == ("a", "b", "c")
    for images, labels in folder:
        np.testing.assert_array_equal(images[:, 0, 0, 0] // 50, labels)
        assert np.bincount(labels, minlength=3).min() > 10
    files = np.concatenate([images[:, 0, 0, 0] for images in batch_images(paths, plain)])
    arrays = np.concatenate(list(batch_arrays(levels)))
    np.testing.assert_array_equal(files, arrays)
    kept = np.concatenate([x[:, 0, 0, 0] for x in batch_images(paths, plain, IN_ORDER)])
    np.testing.assert_array_equal(kept, levels)
    batched = batch_images(tf.data.Dataset.from_tensor_slices(levels[:, None]).batch(128))
    assert sizes_of(batched) == [128, 22]


def test_a_split_is_shuffled_once_into_equal_batches(tmp_path):
    for level in range(60):
        write(tmp_path / "ab"[level // 30] / f"{level:03d}.png", np.full((4, 4, 3), level))
    settings = {"splits": ("all",), "preprocessing": Preprocessing.from_range((4, 4), 0, 255)}
    (data,) = vit_tf.data.load(tmp_path, batch_size=25, shuffle_once=True, **settings)
    assert sizes_of(data) == [20, 20, 20]
    levels, labels = (np.concatenate(x) for x in zip(*data.as_numpy_iterator(), strict=True))
    levels = levels[:, 0, 0, 0]
    np.testing.assert_array_equal(levels // 30, labels)
    np.testing.assert_array_equal(np.sort(levels), np.arange(60))
    assert all(0 < part.sum() < 20 for part in np.split(labels, 3))
    again = np.concatenate([images[:, 0, 0, 0] for images, _ in data])
    np.testing.assert_array_equal(again, levels)
    (test,) = vit_tf.data.load("digits", splits=("test",), batch_size=50, shuffle_once=True)
    (in_order,) = vit_tf.data.load("digits", splits=("test",))
    count = test.cardinality().numpy()
    rows = [np.concatenate([x.numpy() for x, _ in part]) for part in (test, in_order)]
    np.testing.assert_array_equal(rows[0], rows[1][RANDOM.order(len(rows[1]))])
    assert count == -(-len(rows[1]) // 50) and np.ptp(sizes_of(test)) <= 1


def unbiased_hsic(x, y):
    """HSIC_1 of two features in float64 (Song et al. 2012, equation 5)."""
    n = len(x)
    k, l_ = (features @ features.T for features in (x, y))
    np.fill_diagonal(k, 0), np.fill_diagonal(l_, 0)
    ones = np.ones(n)
    total = np.trace(k @ l_) + k.sum() * l_.sum() / ((n - 1) * (n - 2))
    return (total - 2 * (ones @ k @ l_ @ ones) / (n - 2)) / (n * (n - 3))


def minibatch_cka(x, y, batches):
    hsic = np.array(
        [[unbiased_hsic(a[rows], b[rows]) for a, b in ((x, y), (x, x), (y, y))] for rows in batches]
    ).sum(axis=0)
    return hsic[0] / np.sqrt(hsic[1] * hsic[2])


def sorted_classes(count=300):
    """Images of three classes, class by class: CKA within classes is not that of all images."""
    labels = np.repeat(np.arange(3), count // 3)
    means = np.eye(3)[labels][:, None, None] - 0.5
    images = means + RNG.normal(0, 0.1, (count, 4, 4, 3))
    return images.astype(np.float32), labels


def flat_model():
    images = keras.Input((4, 4, 3))
    first = layers.Dense(6, "tanh", name="first")(layers.Flatten()(images))
    return keras.Model(images, layers.Dense(3, name="second")(first))


def test_cka_of_sorted_images_is_that_of_shuffled_ones():
    keras.utils.set_random_seed(0)
    model, (images, _) = flat_model(), sorted_classes()
    taps = ["first", "second"]
    first, second = (
        np.asarray(keras.Model(model.input, model.get_layer(tap).output)(images), np.float64)
        for tap in taps
    )
    # The very batches of the rule, in float64 by NumPy.
    order = RANDOM.order(300)
    expected = minibatch_cka(first, second, np.split(order, 3))
    found = analysis.cka(model, images, layers=taps)
    np.testing.assert_allclose(found.cka[0, 1], expected, atol=1e-5)
    # All images in one batch, which the order of classes was up to .5 away from.
    together = minibatch_cka(first, second, [order])
    in_class_order = minibatch_cka(first, second, np.split(np.arange(300), 3))
    assert abs(found.cka[0, 1] - together) < 0.03 < abs(in_class_order - together)


@pytest.mark.usefixtures("without_graphs")
def test_resampled_values_come_from_all_classes():
    """The value of another image of the same class changes less than that of any image."""
    model = random_vit()
    images, labels = sorted_classes(240)
    changed = analysis.head_ablation(model, (images, labels), replacement="resample")
    in_order = tf.data.Dataset.from_tensor_slices((images, labels)).batch(80)
    within = analysis.head_ablation(model, in_order, replacement="resample")
    shuffled = RNG.permutation(240)
    expected = analysis.head_ablation(
        model,
        tf.data.Dataset.from_tensor_slices((images[shuffled], labels[shuffled])).batch(240),
        replacement="resample",
    )
    found, right, wrong = (abs(x.output_change).max() for x in (changed, expected, within))
    assert found > 2 * wrong and abs(found / right - 1) < 0.25


def random_vit():
    """An untrained ViT with weights of its class scores that are not zero."""
    keras.utils.set_random_seed(1)
    model = ViT((4, 4, 3), 2, 1, 2, 8, 8, 3)
    rng = np.random.default_rng(0)
    model.set_weights([rng.normal(0, 0.5, x.shape).astype(x.dtype) for x in model.get_weights()])
    return model


def grey_model(num_classes, class_names=None):
    """A classifier whose class k is the grey level 20 k."""
    images = keras.Input((4, 4, 3))
    grey = layers.GlobalAveragePooling2D()(layers.Rescaling(1 / 255)(images))
    model = keras.Model(images, layers.Dense(num_classes)(grey))
    k = np.arange(num_classes)
    kernel = np.repeat(2 * k[None] * 255 / 60, 3, axis=0)
    model.layers[-1].set_weights([kernel, -(k**2.0)])
    if class_names:
        model.class_names = tuple(class_names)
    return model


@pytest.mark.usefixtures("without_graphs")
@pytest.mark.parametrize(
    ("own", "names", "accuracy"),
    [
        (list("abcd"), {"a": 0, "b": 1, "c": 2, "d": 3}, 1),
        (None, {"a": 0, "b": 1, "c": 2, "d": 3}, 1),
        (None, {"a": 0, "b": 1, "c": 2}, None),
        (list("abcd"), {"b": 1, "c": 2}, None),
        (list("abcd"), {"a": 0, "b": 1, "e": 3}, None),
        (list("abcd"), {"w": 0, "x": 1, "y": 2, "z": 3}, None),
    ],
)
def test_classes_of_a_folder_are_those_of_the_model_or_refused(tmp_path, own, names, accuracy):
    for name, level in names.items():
        for number in range(3):
            write(tmp_path / name / f"{number}.png", np.full((4, 4, 3), 20 * level + number))
    model = grey_model(4, own)

    def measured():
        return analysis.robustness(model, tmp_path, patch_size=2, strengths=(0.5,))

    if accuracy is not None:
        assert measured().intact_accuracy == accuracy
        return
    for measure in (measured, lambda: analysis.mistakes(model, tmp_path)):
        with pytest.raises(ValueError, match=r"4 classes.*Received: data of"):
            measure()


def test_rows_of_results_are_in_the_order_of_the_caller():
    model, (images, labels) = flat_model(), sorted_classes()
    lens = np.asarray(model(images))
    wrong = analysis.mistakes(model, (images, labels), k=5)
    np.testing.assert_array_equal(
        wrong.predicted, lens.argmax(axis=1)[wrong.position.values.astype(int)]
    )
    np.testing.assert_array_equal(wrong.label, labels[wrong.position.values.astype(int)])
    points = analysis.projection(model, (images, labels), layers=["first"])
    np.testing.assert_array_equal(points.label, labels)
