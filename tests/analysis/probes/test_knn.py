import warnings

import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from probe_data import POOL, as_images, batches, clouds, counted, sequences, vectors

from vit_tf import analysis
from vit_tf.analysis.engine import one_pass, pooled_statistic
from vit_tf.analysis.engine.pooling import Pooled
from vit_tf.analysis.engine.results import unpack_correct
from vit_tf.analysis.engine.stream import evaluate
from vit_tf.analysis.probes import knn
from vit_tf.analysis.probes.knn import log_votes
from vit_tf.distribute.strategies import strategy

pytestmark = pytest.mark.usefixtures("without_graphs")


def accuracy_by_loops(train, test, k, top, temperature, others=()):
    """Share of the test rows whose class is among the `top` with most votes, or then of others."""
    hits = []
    for x, label in zip(*test, strict=True):
        cosines = [
            float(x @ other / np.sqrt((x @ x) * (other @ other)))
            for other in train[0].astype(float)
        ]
        near = sorted(range(len(cosines)), key=lambda j: -cosines[j])[:k]
        votes = {}
        for j in near:
            votes[train[1][j]] = votes.get(train[1][j], 0) + np.exp(cosines[j] / temperature)
        ranked = sorted(votes, key=lambda c: (-votes[c], c))
        ranked += [c for c in others if c not in votes]
        hits.append(label in ranked[: min(top, k)])
    return np.mean(hits)


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("tokens", POOL)
def test_accuracies_equal_loops_over_all_images(rng, tokens):
    train, test = clouds(rng, 90), clouds(rng, 50)
    result = analysis.knn_accuracy(
        sequences, batches(train, 16), batches(test, 32), 7, (1, 5, 20), tokens, 0.2
    )
    assert result.dims == ("layer", "k", "top") and result.shape == (2, 3, 2)
    assert result.attrs["train_examples"] == 90 and result.attrs["examples"] == 50
    for layer, of in (("tokens", lambda x: x), ("cubes", lambda x: x**3)):
        rows = [(POOL[tokens](of(x)).astype(float), y) for x, y in (train, test)]
        for k in (1, 5, 20):
            for top in (1, 5):
                expected = accuracy_by_loops(*rows, k, top, 0.2)
                assert result.sel(layer=layer, k=k, top=top).item() == expected
    assert not result.tied.any()
    correct = unpack_correct(result["correct"], 50)
    np.testing.assert_allclose(correct.mean(axis=-1), result)
    first = tuple(part[:10] for part in test)
    few = analysis.knn_accuracy(sequences, train, first, 7, (1, 5, 20), tokens, 0.2)
    np.testing.assert_array_equal(correct[..., :10], unpack_correct(few["correct"], 10))


@pytest.mark.slow
def test_neither_batches_nor_replicas_leave_a_trace(rng):
    train, test = clouds(rng, 100), clouds(rng, 40)
    full_result = analysis.knn_accuracy(sequences, train, test, 7, (3, 20), "all")
    for size in (7, 64):
        some = analysis.knn_accuracy(sequences, batches(train, size), test, 7, (3, 20), "all")
        xr.testing.assert_identical(some, full_result)
    with strategy("mirrored").scope():
        spread = analysis.knn_accuracy(sequences, batches(train, 8), test, 7, (3, 20), "all")
    xr.testing.assert_identical(spread, full_result)


def search(train, test, size, k, features=vectors):
    """The merged neighbours of each layer; the label of a training image is its number."""
    labels = [np.arange(len(rows)) for rows in (train, test)]
    tested = evaluate(pooled_statistic("all"), (as_images(test), labels[1]), features)
    statistic = knn.knn_statistic(features, tested, len(train), (k,))
    data = batches((as_images(train), labels[0]), size)
    return one_pass({"": (statistic, features)}, data)[""]["merged"]


def similar_rows(rng, case, count, channels=24):
    """Rows that float32 products can rank wrongly, or whose similarities are equal."""
    rows = rng.normal(size=(count, channels))
    if case == "nearly parallel":  # cosines differ by less than the rounding of float32
        rows = 1 + 1e-4 * rows
    elif case == "duplicates":
        rows = rows[rng.integers(0, count // 8, count)]
    elif case == "constant features":
        rows = np.concatenate([np.ones((count, channels - 2)), rng.integers(0, 2, (count, 2))], 1)
    elif case == "large and small norms":
        rows *= 10.0 ** rng.uniform(-15, 15, (count, 1))
    return rows.astype("float32")


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize(
    "case",
    ["random", "nearly parallel", "duplicates", "constant features", "large and small norms"],
)
@pytest.mark.parametrize("order", ["random", "nearer and nearer"])
def test_neighbours_are_those_of_an_oracle_in_float64(rng, monkeypatch, case, order):
    monkeypatch.setattr(knn, "ROWS", 16)  # 40 test images are searched in three blocks
    train, test, k = similar_rows(rng, case, 160), similar_rows(rng, case, 40), 5
    if order == "nearer and nearer":
        train = train[np.argsort(train @ test[0])]
    merged = search(train, test, 13, k)["x"]
    x, y = (
        rows / np.linalg.norm(rows, axis=1, keepdims=True)
        for rows in map(np.float64, (test, train))
    )
    cosines = x @ y.T
    ranking = np.argsort(-cosines, axis=1, kind="stable")[:, : k + 1]
    np.testing.assert_array_equal(merged["image"], np.arange(40))
    expected = np.take_along_axis(cosines, ranking, axis=1)
    np.testing.assert_allclose(merged["similarity"], expected, rtol=0, atol=knn.ROUNDING)
    # Each neighbour is another image, with the similarity that is listed for it.
    listed = np.take_along_axis(cosines, merged["labels"], axis=1)
    np.testing.assert_allclose(listed, expected, rtol=0, atol=knn.ROUNDING)
    assert all(len(set(row)) == k + 1 for row in merged["labels"].tolist())
    clear = np.diff(-np.sort(-cosines, axis=1)[:, : k + 2], axis=1) < -knn.ROUNDING
    alone = clear & np.concatenate([np.ones((40, 1), bool), clear[:, :-1]], axis=1)
    np.testing.assert_array_equal(merged["labels"][alone], ranking[alone])
    assert alone.any() == (case not in ("duplicates", "constant features"))


@pytest.mark.usefixtures("in_graphs")
def test_later_batches_compare_few_test_images_in_float64(rng, monkeypatch):
    """Limits grow with the neighbours found so far; without them every batch costs as the first."""
    counts, merge = [], knn._merge
    monkeypatch.setattr(
        knn, "_merge", lambda a, b: counts.append(len(b["x"]["image"])) or merge(a, b)
    )
    train, test = (similar_rows(rng, "random", count) for count in (2000, 50))
    search(train, test, 20, 2)
    assert counts[0] > 25 and sum(counts[-20:]) < 20 * 50 / 5


@pytest.mark.parametrize("bits", ["float32", "bfloat16"])
def test_the_error_of_float32_products_is_within_its_bound(bits, rng, monkeypatch):
    """Also on a device that rounds the factors of a product to bfloat16."""
    matmul = tf.matmul

    def rounding(x, y, **kwargs):
        return matmul(*(tf.cast(tf.cast(a, bits), tf.float32) for a in (x, y)), **kwargs)

    monkeypatch.setattr(tf, "matmul", rounding)
    knn._factors_are_rounded.cache_clear()
    for channels in (3, 384, 4096):
        x = rng.normal(size=(200, channels)) + 1
        x /= np.linalg.norm(x, axis=1, keepdims=True)
        rounded = tf.constant(x, tf.float32)
        error = np.abs(tf.matmul(rounded, rounded, transpose_b=True).numpy() - x @ x.T).max()
        bound = knn.product_error(channels)
        assert 2.0**-26 < error < bound < 2e-3 if bits == "float32" else 1e-4 < error < bound < 0.02
    knn._factors_are_rounded.cache_clear()


def test_the_temperature_weighs_near_against_many():
    angle = np.deg2rad([5, 30, 31, 170])
    train = as_images(np.stack([np.cos(angle), np.sin(angle)], axis=1)), np.array([0, 1, 1, 2])
    test = as_images([[2.0, 0.0]]), np.array([0])
    # Two votes of cos(30) against one of cos(5): even where exp(difference / t) is 2, at t = 0.19.
    for temperature, right in ((0.17, 1), (0.21, 0)):
        result = analysis.knn_accuracy(vectors, train, test, 3, (1, 3), "all", temperature)
        np.testing.assert_array_equal(result.sel(k=3, layer="x"), [right, 1])
        np.testing.assert_array_equal(result.sel(k=1, layer="x"), [1, 1])


def test_votes_of_a_small_temperature_do_not_vanish():
    angle = np.deg2rad([0, 120, 90])
    train = as_images(np.stack([np.cos(angle), np.sin(angle)], axis=1)), np.array([0, 1, 2])
    test = as_images([[2.0, 0.0]] * 3), np.array([0, 1, 2])
    # exp(-1 / 0.001) is 0 in float64, yet class 2 comes before class 1, which is further away.
    accuracy = analysis.knn_accuracy(vectors, train, test, 3, (2, 3), "all", 0.001)
    np.testing.assert_allclose(accuracy.sel(layer="x", k=3), [1 / 3, 1])
    np.testing.assert_allclose(accuracy.sel(layer="x", k=2), [1 / 3, 2 / 3])
    votes = log_votes(np.array([[1.0, 0.0, -0.5]]), np.array([[0, 2, 1]]), 4, 0.001)
    np.testing.assert_allclose(votes, [[0, -1500, -1000, -np.inf]])
    two = log_votes(np.full((1, 3), 0.9), np.array([[0, 1, 1]]), 2, 1e-18)
    np.testing.assert_allclose(two, [[0, np.log(2)]])


def test_classes_without_votes_fill_the_top_on_demand(rng):
    train, test = clouds(rng, 90), clouds(rng, 50)
    rows = [(POOL["all"](x).astype(float), y) for x, y in (train, test)]
    ks = (1, 3, 5, 20)
    values, strict = (
        analysis.knn_accuracy(sequences, train, test, 7, ks, "all", without_votes=flag)
        for flag in (True, False)
    )
    for k in ks:
        for top in (1, 5):
            expected = accuracy_by_loops(*rows, k, top, 0.07, others=range(7))
            assert values.sel(layer="tokens", k=k, top=top).item() == expected
    here = {"layer": "tokens", "top": 5}
    assert (values - strict).sel(**here, k=5).item() > 0.02
    # The first place is always one of votes, so that at k = 1 there is nothing to fill.
    xr.testing.assert_equal(values.sel(k=1), strict.sel(k=1))
    xr.testing.assert_equal(values.sel(top=1), strict.sel(top=1))
    assert values.attrs["without_votes"] == "True"


@pytest.mark.parametrize("size", [1, 4])
def test_ties_go_to_the_earlier_image_and_the_lower_class_and_are_counted(size):
    east, north = [1.0, 0.0], [0.0, 2.0]
    train = as_images([east, east, north, [1.0, 5.0]]), np.array([2, 1, 0, 0])
    test = as_images([[3.0, 0.0], [0.0, 1.0]]), np.array([2, 0])
    result = analysis.knn_accuracy(vectors, batches(train, size), test, 3, (1, 2), "all")
    np.testing.assert_array_equal(result[0, 0], [1, 1])
    np.testing.assert_array_equal(result[0, 1], [0.5, 1])  # class 1 before 2, of equal votes
    np.testing.assert_array_equal(result.tied, [[1, 0]])


@pytest.mark.usefixtures("in_graphs")
def test_it_shares_a_pass_with_ridge_probes(rng):
    train, test = clouds(rng, 60), clouds(rng, 30)
    features = counted(calls := [])
    tested = one_pass({"": (pooled_statistic("all"), features)}, test)[""]
    tested = pooled_statistic("all").finish(tested)
    requests = {
        "knn": (analysis.knn_accuracy.statistic(features, tested, 7, (9,)), features),
        "ridge": (analysis.ridge_probe.statistic(features, train, 7, (1.0,)), features),
    }
    totals = one_pass(requests, batches(train, 16))
    assert len(calls) == 2
    alone = analysis.knn_accuracy(features, train, test, 7, (9,), "all")
    xr.testing.assert_identical(requests["knn"][0].finish(totals["knn"]), alone)
    assert requests["ridge"][0].finish(totals["ridge"]).examples == 60


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"k": (3, 21)}, r"at most 20 training images.*\(3, 21\)"),
        ({"k": (0,)}, "every k"),
        ({"k": ()}, "every k"),
        ({"temperature": 0.0}, "temperature above 0"),
        ({"tokens": "each"}, "tokens to be one of"),
        ({"features": lambda x: {"zero": 0 * x[..., 0]}}, "not zero.*zero"),
        ({"features": lambda x: {"bad": x[..., 0] * np.nan}}, "finite.*bad"),
        ({"features": lambda x: {"flat": 0 * x[..., 0] + 1.5}}, "ties at its k-th .*flat"),
    ],
)
def test_errors(rng, options, words):
    """Of the measurement; its statistic, which other passes use, checks the votes as well."""
    settings = {"features": sequences, "k": (3,), "tokens": "all"} | options
    with pytest.raises(ValueError, match=words):
        analysis.knn_accuracy(
            settings.pop("features"), clouds(rng, 20), clouds(rng, 10), 7, **settings
        )
    if options in ({"k": (0,)}, {"k": ()}, {"temperature": 0.0}):
        tested = Pooled({"x": np.eye(2, dtype=np.float32)}, np.arange(2), None, 1)
        with pytest.raises(ValueError, match=words):
            analysis.knn_accuracy.statistic(sequences, tested, 7, **options)


def test_one_image_of_zeros_is_refused_and_all_images_may_be_neighbours(rng):
    (images, labels), test = clouds(rng, 20), clouds(rng, 10)
    assert analysis.knn_accuracy(sequences, (images, labels), test, 7, (20,)).sizes["k"] == 1
    images[3] = 0
    with pytest.raises(ValueError, match=r"not zero.*tokens, cubes"):
        analysis.knn_accuracy(sequences, (images, labels), test, 7, (3,))


def test_test_images_among_the_training_images_are_counted_in_a_warning():
    """Each of them is its own nearest neighbour, so that an accuracy of 1 says nothing."""
    rng = np.random.default_rng(0)
    images, labels = as_images(rng.normal(size=(30, 6))), rng.integers(0, 3, 30)
    first, rest = (images[:12], labels[:12]), (images[12:], labels[12:])
    for train, count in (((images, labels), 12), ((images[8:], labels[8:]), 4)):
        with pytest.warns(UserWarning, match=f"{count} of 12 test images"):
            accuracy = analysis.knn_accuracy(vectors, train, first, 3, k=(1,))
        if count == 12:
            assert (accuracy.sel(k=1, top=1) == 1).all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        analysis.knn_accuracy(vectors, rest, first, 3, k=(1,))
