import numpy as np
import pytest
import tensorflow as tf

from vit_tf import TokenGrid
from vit_tf.analysis.engine import Statistic, accumulate, choose, collect, match_maps, one_pass
from vit_tf.analysis.engine.stream import Copy, eager_steps, evaluate, pass_of_copies
from vit_tf.distribute.strategies import strategy


@pytest.fixture
def images(rng):
    return rng.normal(size=(37, 2, 2, 1)).astype("float32")


def batched(images, size=8):
    return tf.data.Dataset.from_tensor_slices(images).batch(size)


def power(batch):
    squares = tf.reduce_sum(batch**2, axis=0)
    return {"square": squares, "examples": tf.shape(batch)[0], "batches": 1}


def test_sums_are_those_of_the_whole_in_float64(images):
    sums = accumulate(power, batched(images))
    np.testing.assert_allclose(sums["square"], (images.astype(float) ** 2).sum(0), rtol=1e-6)
    assert sums["square"].dtype == np.float64 and sums["examples"] == 37


def test_small_terms_are_not_lost_beside_a_large_sum():
    images = np.ones((1001, 1, 1, 1), "float32")
    images[0] = 2.0**24
    total = accumulate(lambda batch: tf.reduce_sum(batch), batched(images, 1))
    assert total == 2.0**24 + 1000


def test_eager_steps_give_what_a_graph_does(images):
    eagerly = []

    def step(batch):
        eagerly.append(tf.executing_eagerly())
        return power(batch)

    expected = accumulate(step, batched(images))
    assert not any(eagerly)
    del eagerly[:]
    with eager_steps():
        sums = accumulate(step, batched(images))
    assert eagerly == [True] * 5
    tf.nest.map_structure(lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-6), sums, expected)
    accumulate(step, batched(images))
    assert not eagerly[-1]


def test_arrays_datasets_and_pairs_are_the_same_data(images):
    labels = np.arange(37)
    pairs = tf.data.Dataset.from_tensor_slices((images, labels)).batch(8)
    expected = accumulate(power, images)["square"]
    for data in (batched(images), pairs, (images, labels)):
        np.testing.assert_allclose(accumulate(power, data)["square"], expected, rtol=1e-6)
    moment = accumulate(
        lambda x, y: tf.reduce_sum(x[:, 0, 0, 0] * tf.cast(y, tf.float32)), pairs, with_labels=True
    )
    assert moment == pytest.approx(images[:, 0, 0, 0].astype(float) @ labels, rel=1e-5)


def test_the_step_is_traced_once_though_the_last_batch_is_smaller(images):
    traces = []
    accumulate(lambda batch: traces.append(batch.shape) or tf.reduce_sum(batch), batched(images))
    assert len(traces) == 1


def test_two_replicas_give_the_sum_and_the_order_of_one(images):
    sums = accumulate(power, batched(images))
    rows = collect(lambda batch: {"rows": batch}, batched(images))["rows"]
    np.testing.assert_array_equal(rows, images)
    with strategy("mirrored").scope():
        weight = tf.Variable(1.0)
        distributed = accumulate(lambda b: power(weight * b), batched(images))
        np.testing.assert_array_equal(collect(tf.identity, batched(images)), rows)
    np.testing.assert_array_equal(distributed["square"], sums["square"])
    assert distributed["examples"] == 37 and distributed["batches"] == 5


def test_errors(images):
    singles = tf.data.Dataset.from_tensor_slices(images)
    for data, options, words in (
        (singles, {}, "batches of images"),
        (batched(images), {"with_labels": True}, r"\(images, labels\)"),
        (batched(images).take(0), {}, "at least one batch"),
        ("images", {}, "an array"),
    ):
        with pytest.raises(ValueError, match=words):
            accumulate(power, data, **options)


def total(images, *models):
    """The sum of all taps, and their first rows."""
    taps = {f"{number}/{tap}": x for number, of in enumerate(models) for tap, x in of.items()}
    return {
        "sum": {tap: tf.reduce_sum(x, axis=0) for tap, x in taps.items()},
        "rows": {tap: x[:, 0] for tap, x in taps.items()},
        "examples": tf.shape(images)[0],
    }


TOTAL = Statistic(total, lambda totals: totals["sum"])


class Counted:
    """Features that count their calls."""

    name = "model_taps"
    token_grid = TokenGrid(2, 2, 0, 1)

    def __init__(self, scale=1.0):
        self.scale = scale
        self.calls = 0

    def __call__(self, images):
        self.calls += 1
        return {"map": self.scale * images, "a": images[:, 0] ** 2, "b": images[:, 1, :, 0]}


def test_one_pass_gives_sums_and_rows_of_every_request(images):
    one, other = Counted(), Counted(2.0)
    labelled = Statistic(
        lambda images, labels, taps: {"sum": tf.reduce_sum(labels)}, dict, with_labels=True
    )
    requests = {"both": (TOTAL, one, other), "one": (TOTAL, one), "labels": (labelled, one)}
    data = tf.data.Dataset.from_tensor_slices((images, np.arange(37))).batch(8)
    totals = one_pass(requests, data)
    assert list(totals) == ["both", "one", "labels"]
    assert list(totals["both"]["sum"]) == ["0/map", "0/a", "0/b", "1/map", "1/a", "1/b"]
    np.testing.assert_allclose(totals["both"]["sum"]["1/map"], 2 * images.sum(0), atol=1e-4)
    np.testing.assert_array_equal(totals["both"]["rows"]["1/map"], 2 * images[:, 0])
    np.testing.assert_array_equal(totals["one"]["rows"]["0/b"], images[:, 1, 0, 0])
    assert totals["one"]["sum"]["0/a"].dtype == np.float64 and totals["one"]["examples"] == 37
    assert totals["labels"]["sum"] == 37 * 36 / 2
    np.testing.assert_array_equal(evaluate(TOTAL, images, one)["0/map"].shape, (2, 2, 1))


def test_features_are_called_once_for_all_that_is_chosen_and_derived(images):
    features = Counted()
    some = choose(features, ["b", "a"])
    one, maps = choose(some, ["a"]), match_maps(choose(features, ["map"]), 1, TokenGrid(1, 1, 0, 2))
    requests = {
        str(number): (TOTAL, *given)
        for number, given in enumerate([(features,), (some, one), (maps, features), (one,)])
    }
    totals = one_pass(requests, images)
    assert features.calls == 1
    assert list(totals["1"]["sum"]) == ["0/b", "0/a", "1/a"]
    np.testing.assert_array_equal(totals["3"]["sum"]["0/a"], totals["0"]["sum"]["0/a"])
    np.testing.assert_allclose(
        totals["2"]["sum"]["0/map"], images.mean((1, 2)).sum(0)[None, None], atol=1e-4
    )


def test_a_choice_stands_for_its_features(images):
    chosen = choose(Counted(), ["b", "a"])
    assert list(chosen(images)) == ["b", "a"]
    assert chosen.name == "model" and chosen.facts.grid == Counted.token_grid
    assert choose(lambda images: {"a": images}, ["a"]).facts.grid is None
    with pytest.raises(ValueError, match=r"Expected a layer 'c'\. Received: map, a, b$"):
        choose(Counted(), ["a", "c"])(images)


def test_one_pass_asks_for_the_largest_batch_and_for_labels(images):
    large = Statistic(total, dict, min_batch=6)
    # The remainder of 5 is in the totals of those alone that can take it.
    totals = one_pass({"any": (TOTAL, Counted()), "large": (large, Counted())}, batched(images))
    assert totals["large"]["remainder"] == 5 and "remainder" not in totals["any"]
    for name, count in (("any", 37), ("large", 32)):
        assert totals[name]["examples"] == count
        np.testing.assert_allclose(totals[name]["sum"]["0/map"], images[:count].sum(0), atol=1e-4)
        np.testing.assert_array_equal(totals[name]["rows"]["0/map"], images[:count, 0])
    with pytest.raises(ValueError, match=r"at least 6 images .*Received: a batch of 5"):
        one_pass({"large": (large, Counted())}, batched(images, 5))
    labels = Statistic(lambda x, y: {"sum": tf.reduce_sum(y)}, dict, with_labels=True)
    with pytest.raises(ValueError, match=r"Expected batches of \(images, labels\)"):
        one_pass({"any": (TOTAL, Counted()), "labels": (labels,)}, batched(images))


def test_one_pass_on_two_replicas_keeps_every_sum_order_and_name(images):
    requests = {"z": (TOTAL, Counted()), "a": (TOTAL, Counted(3.0))}
    alone = one_pass(requests, batched(images))
    with strategy("mirrored").scope():
        together = one_pass(requests, batched(images))
    tf.nest.map_structure(np.testing.assert_array_equal, together, alone)
    assert list(together) == ["z", "a"]
    assert [list(part["sum"]) for part in together.values()] == [["0/map", "0/a", "0/b"]] * 2


def test_a_copy_may_be_shown_the_first_batches_only():
    images = np.arange(24, dtype=np.float32).reshape(6, 4)
    data = tf.data.Dataset.from_tensor_slices(images).batch(2)
    statistic = Statistic(
        lambda images: {"rows": {"x": images}, "sum": tf.reduce_sum(images)}, lambda totals: totals
    )
    copies = [Copy(), Copy(num_batches=2), Copy(num_batches=9)]
    totals = [each["a"] for each in pass_of_copies({"a": (statistic,)}, data, copies)]
    for total, shown in zip(totals, (images, images[:4], images), strict=True):
        np.testing.assert_array_equal(total["rows"]["x"], shown)
        assert total["sum"] == shown.sum()
