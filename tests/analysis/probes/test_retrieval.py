"""Retrieval against precision worked by hand and against loops over rankings."""

import numpy as np
import pytest
import xarray as xr
from probe_data import POOL, as_images, batches, sequences, vectors

from vit_tf import analysis
from vit_tf.analysis.engine.pooling import Pooled

pytestmark = pytest.mark.usefixtures("without_graphs")

SETS = {"easy": ["easy"], "medium": ["easy", "hard"], "hard": ["hard"]}


def test_average_precision_by_hand():
    ap = analysis.average_precision
    assert ap([0, 1, 2], 3) == 1
    # Positives at ranks 0 and 2, each worth half the recall:
    # (1 + 1) / 2 * 1/2 = 1/2, then precision rises from 1/2 to 2/3: (1/2 + 2/3) / 2 * 1/2 = 7/24.
    assert ap([0, 2], 2) == pytest.approx(1 / 2 + 7 / 24)
    # Alone at rank 1: precision rises from 0/1 to 1/2, a triangle of 1/4.
    assert ap([1], 1) == pytest.approx(1 / 4)
    # At ranks 1, 3, 4: ((0 + 1/2) + (1/3 + 2/4) + (2/4 + 3/5)) / 6 = 73/180.
    assert ap([1, 3, 4], 3) == pytest.approx(73 / 180)
    # Positives that are never found add recall that is not reached: (1 + 1) / 8.
    assert ap([0], 4) == pytest.approx(1 / 4)
    assert ap([], 2) == 0 and np.isnan(ap([], 0))


def scores_by_loops(similarity, of, difficulty, tops):
    """AP and precision of one query, image by image down a list from which junk was struck."""
    wanted = {int(place) for what in SETS[difficulty] for place in of[what]}
    struck = {int(place) for what in ("easy", "hard", "junk") for place in of[what]} - wanted
    if not wanted:
        return [np.nan] * (1 + len(tops))
    order = sorted(range(len(similarity)), key=lambda place: (-similarity[place], place))
    shown = [place in wanted for place in order if place not in struck]
    area, outputs, precisions = 0.0, 0, [1.0]
    for number, hit in enumerate(shown, 1):
        outputs += hit
        precisions.append(outputs / number)
        if hit:
            area += (precisions[-2] + precisions[-1]) / 2 / len(wanted)
    last = max(number for number, hit in enumerate(shown, 1) if hit)
    return [area, *(precisions[min(last, top)] for top in tops)]


def make(rng, images=40, queries=7):
    """Images, queries near some of them, and truth in which two queries lack positives."""
    database = rng.normal(size=(images, 3, 5, 1)).astype("float32")
    asked = database[:queries] + 0.7 * rng.normal(size=(queries, 3, 5, 1)).astype("float32")
    truth = []
    for _ in range(queries):
        others = rng.permutation(images)
        cuts = np.split(others, np.cumsum(rng.integers(1, 8, 3)))
        truth.append(dict(zip(("easy", "hard", "junk"), cuts, strict=False)))
    truth[1]["easy"] = np.array([], int)
    truth[4] |= {"easy": [], "hard": []}
    return asked, database, truth


def numbered(images, size):
    return batches((images, np.arange(len(images))), size)


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("tokens", POOL)
def test_scores_are_those_of_loops_over_rankings(rng, tokens):
    asked, database, truth = make(rng)
    result = analysis.retrieval(
        sequences, numbered(asked, 3), numbered(database, 16), truth, tokens, (1, 3, 10)
    )
    assert result["precision"].dims == ("layer", "difficulty", "k")
    for layer, of in (("tokens", lambda x: x), ("cubes", lambda x: x**3)):
        a, b = (POOL[tokens](of(x.astype(float))) for x in (asked, database))
        cosines = b @ a.T / np.linalg.norm(b, axis=1)[:, None] / np.linalg.norm(a, axis=1)
        for difficulty in SETS:
            expected = np.array(
                [
                    scores_by_loops(column, query, difficulty, (1, 3, 10))
                    for column, query in zip(cosines.T, truth, strict=True)
                ]
            )
            here = result.sel(layer=layer, difficulty=difficulty)
            np.testing.assert_allclose(here["average_precision"], expected[:, 0], atol=1e-12)
            np.testing.assert_allclose(here["score"], np.nanmean(expected[:, 0]), atol=1e-12)
            np.testing.assert_allclose(here["precision"], np.nanmean(expected[:, 1:], 0))
    assert result["asked"].values.tolist() == [5, 6, 6]
    assert result.attrs["examples"] == 40 and result.attrs["queries"] == 7
    assert result.attrs["batch_size"] == 14  # of three batches


def test_scores_do_not_depend_on_order_batches_or_junk(rng):
    asked, database, truth = make(rng)
    result = analysis.retrieval(sequences, numbered(asked, 7), database, truth)
    order = rng.permutation(len(database))
    place = np.argsort(order)
    moved = [{what: place[np.asarray(q[what], int)] for what in q} for q in truth]
    again = analysis.retrieval(sequences, numbered(asked, 2), numbered(database[order], 9), moved)
    xr.testing.assert_allclose(result, again, rtol=1e-12)
    # Copies of the queries, which come first of all, are junk and change nothing.
    copies = np.concatenate([database, asked])
    new = list(range(len(database), len(copies)))
    more = [q | {"junk": [*q["junk"], *new]} for q in truth]
    xr.testing.assert_allclose(
        result, analysis.retrieval(sequences, numbered(asked, 7), copies, more), rtol=1e-12
    )
    worse = analysis.retrieval(sequences, numbered(asked, 7), copies, truth)
    assert (worse["score"] < result["score"]).all()


def test_each_difficulty_has_its_junk():
    """Images in the order of their similarity: junk, hard, easy, wrong, hard, easy."""
    angles = np.arange(1, 7) / 10
    database = as_images(np.stack([np.cos(angles), np.sin(angles)], axis=1))
    truth = [{"easy": [2, 5], "hard": [1, 4], "junk": [0]}]
    queries = as_images([[2, 0]]), np.array([0])
    result = analysis.retrieval(vectors, queries, database, truth, "all").isel(layer=0)
    # easy: + - +; medium: + + - + +; hard: + - +.
    short = (1 + 1 + 1 / 2 + 2 / 3) / 4
    long = (1 + 1 + 1 + 1 + 2 / 3 + 3 / 4 + 3 / 4 + 4 / 5) / 8
    np.testing.assert_allclose(result["score"], [short, long, short])
    expected = [[1, 2 / 3, 2 / 3], [1, 4 / 5, 4 / 5], [1, 2 / 3, 2 / 3]]
    np.testing.assert_allclose(result["precision"], expected)
    # Of images as similar the earlier one comes first.
    twins = as_images([[1, 1]] * 50 + [[0, 1]])
    for positive, score in ((0, 1), (1, 1 / 4), (49, 1 / 100)):
        truth = [{"easy": [positive], "hard": [], "junk": []}]
        result = analysis.retrieval(vectors, queries, twins, truth, "all")
        np.testing.assert_allclose(result["score"], [[score, score, np.nan]])
        assert result["asked"].values.tolist() == [1, 1, 0]


def last(truth, **change):
    return [*truth[:-1], truth[-1] | change]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda a, d, t: {"k": (0, 5)}, r"every k.*\(0, 5\)"),
        (lambda a, d, t: {"tokens": "last"}, "tokens to be one of.*'last'"),
        (lambda a, d, t: {"truth": t[1:]}, "each of 7 queries.*6"),
        (lambda a, d, t: {"truth": last(t, hard=[40])}, "from 0 to 39.*query 6 with hard="),
        (lambda a, d, t: {"truth": last(t, hard=[-1])}, "from 0 to 39.*query 6 with hard="),
        (lambda a, d, t: {"truth": [{"easy": [], "hard": []}] * 7}, "query 0 with junk"),
        (lambda a, d, t: {"database": d * (np.arange(40) < 39)[:, None, None, None]}, "not zero"),
        (lambda a, d, t: {"queries": (0 * a, np.arange(7))}, "finite and not zero.*tokens"),
        (lambda a, d, t: {"database": np.ones_like(d)}, "to every query at tokens, cubes"),
    ],
)
def test_errors(rng, change, words):
    asked, database, truth = make(rng)
    arguments = {"queries": numbered(asked, 4), "database": database, "truth": truth}
    with pytest.raises(ValueError, match=words):
        analysis.retrieval(sequences, **arguments | change(asked, database, truth))


def test_k_is_checked_before_anything_is_read():
    with pytest.raises(ValueError, match="every k"):
        analysis.retrieval(None, None, None, [], k=())
    asked = Pooled({"x": np.eye(2, dtype=np.float32)}, np.arange(2), None, 1)
    with pytest.raises(ValueError, match=r"every k.*\(5, 0\)"):
        analysis.retrieval.statistic(sequences, asked, [{}] * 2, (5, 0))
