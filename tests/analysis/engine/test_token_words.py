"""One vocabulary for tokens: what the words mean on grids, and what was said before."""

import numpy as np
import pytest
import tensorflow as tf
import xarray as xr

from vit_tf import TokenGrid, analysis
from vit_tf.analysis import plots
from vit_tf.analysis.engine.pooling import pool
from vit_tf.analysis.engine.results import CURRENT, KEPT, POOLED, current_words

pytestmark = pytest.mark.usefixtures("without_graphs")

IMAGES = np.random.default_rng(2).normal(size=(24, 7, 5, 1)).astype("float32")
LABELS = np.arange(24) % 3
DATA = IMAGES, LABELS
TRUTH = [{"easy": [0], "hard": [1], "junk": []}] * 24


def sequences(grid):
    """Features that know their grid, of sequences of 7 tokens."""

    def features(images):
        return {"tokens": images[..., 0]}

    features.token_grid = grid
    return features


MEASURES = {
    "k-NN": lambda of, tokens: analysis.knn_accuracy(of, DATA, DATA, 3, (5,), tokens),
    "clustering": lambda of, tokens: analysis.clustering(of, DATA, 3, tokens, starts=1),
    "retrieval": lambda of, tokens: analysis.retrieval(of, DATA, IMAGES, TRUTH, tokens),
    "ridge probe": lambda of, tokens: analysis.ridge_probe(of, DATA, DATA, 3, 1.0, tokens),
    "linear probe": lambda of, tokens: analysis.linear_probe(
        of, DATA, DATA, 3, tokens=tokens, epochs=1
    ),
}


@pytest.mark.parametrize(
    ("grid", "places"),
    [
        (TokenGrid(2, 3, 1, 8), range(1, 7)),
        (TokenGrid(1, 2, 5, 8), range(5, 7)),  # CLS and 4 registers
        (TokenGrid(1, 7, 0, 8), range(7)),
        (None, None),
    ],
)
def test_words_are_taken_from_the_grid(grid, places):
    x = IMAGES[..., 0].astype(float)
    taps = sequences(grid)(tf.constant(IMAGES))
    expected = {"all": x.mean(1)}
    expected |= {"spatial": x[:, list(places)].mean(1)} if grid else {}
    expected |= {"cls": x[:, 0]} if grid and grid.prefix else {}
    for word, rows in expected.items():
        np.testing.assert_allclose(pool(taps, word, grid)["tokens"], rows, atol=1e-6)


@pytest.mark.parametrize("grid", [None, TokenGrid(2, 3, 1, 8)])
def test_of_a_map_all_places_are_spatial_and_none_is_cls(grid):
    maps, means = {"map": tf.constant(IMAGES)}, IMAGES.mean((1, 2))
    for word in ("spatial", "all"):
        np.testing.assert_allclose(pool(maps, word, grid)["map"], means, atol=1e-6)
    with pytest.raises(ValueError, match="tokens='cls' at 'map'"):
        pool(maps, "cls", grid)


@pytest.mark.parametrize(
    "measure",
    [
        pytest.param(measure, id=name, marks=pytest.mark.slow if name == "linear probe" else ())
        for name, measure in MEASURES.items()
    ],
)
def test_a_model_without_cls_has_no_cls_and_all_its_tokens_are_spatial(measure):
    gap = sequences(TokenGrid(1, 7, 0, 8))
    for spatial, every in zip(
        _values(measure(gap, "spatial")), _values(measure(gap, "all")), strict=True
    ):
        np.testing.assert_array_equal(spatial, every)
    with pytest.raises(
        ValueError, match=r"for a model without a CLS token. Received: tokens='cls'"
    ):
        measure(gap, "cls")


def _values(result):
    return [result[name].values for name in result] if isinstance(result, xr.Dataset) else [result]


@pytest.mark.parametrize("measure", MEASURES.values(), ids=MEASURES)
def test_other_words_are_refused(measure):
    features = sequences(TokenGrid(2, 3, 1, 8))
    for wrong in ("first", "rest", "mean", "last"):
        with pytest.raises(ValueError, match=rf"\('cls', 'spatial', .*'{wrong}'$"):
            measure(features, wrong)


def test_words_that_need_a_grid_say_so():
    tokens = sequences(None)(tf.constant(IMAGES))
    vectors = {"vector": tf.constant(IMAGES[:, :, 0, 0])}
    for taps, word, grid, message in (
        (tokens, "cls", None, "token_grid.*'tokens'"),
        (tokens, "spatial", None, "token_grid.*'tokens'"),
        (tokens, "spatial", TokenGrid(3, 3, 1, 8), "10 tokens.*'tokens'"),
        (vectors, "cls", TokenGrid(2, 3, 1, 8), "tokens='all'.*'vector'"),
    ):
        with pytest.raises(ValueError, match=message):
            pool(taps, word, grid)


def test_queries_have_the_same_words():
    grid = TokenGrid(1, 2, 1, 8)
    weights = tf.fill((4, 2, 3, 3), 1 / 3)
    mean = analysis.mean_attention(lambda x: {"a/weights": weights}, IMAGES[:4], grid)
    for former in ("first", "rest", "all"):
        with pytest.raises(ValueError, match=r"Received: query='.*'. Or by name: cls"):
            analysis.attention_maps(mean, query=former)
    rollout = xr.DataArray(
        np.random.default_rng(0).uniform(size=(1, 3, 3)),
        dims=("layer", "query", "key"),
        coords={"layer": ["a"]},
        attrs={"rows": 1, "columns": 2, "prefix": 1},
    )
    for query, row in (("cls", rollout[0, 0, 1:]), ("spatial", rollout[0, 1:, 1:].mean("query"))):
        (ax,) = plots.plot_attention_rollout(rollout, query=query).panels
        np.testing.assert_allclose(ax.images[0].get_array()[0], row / row.max())
    with pytest.raises(ValueError, match=r"query to be one of \('cls', 'spatial'\)"):
        plots.plot_attention_rollout(rollout, query="first")


def test_results_kept_with_former_words_are_read_as_those_of_today():
    assert CURRENT == {"first": "cls", "rest": "spatial", "mean": "all"} and set(KEPT) == set(
        POOLED
    )
    words = ["cls", "spatial", "all"]
    today = xr.DataArray(
        np.random.default_rng(0).uniform(size=(2, 3, 2)),
        dims=("layer", "tokens", "batch_norm"),
        coords={"layer": ["a", "b"], "tokens": words, "batch_norm": [False, True]},
        attrs={"tokens": "cls"},
    )
    kept = today.assign_coords(tokens=[KEPT[word] for word in words]).assign_attrs(tokens="first")
    xr.testing.assert_identical(current_words(kept), today)
    xr.testing.assert_identical(current_words(today), today)
    drawn = []
    for result in (kept, today):
        ax = plots.plot_linear_probe(result)
        drawn.append([(line.get_label(), line.get_ydata().tolist()) for line in ax.lines])
    assert drawn[0] == drawn[1] and len(drawn[0]) == 6


@pytest.mark.parametrize(
    ("call", "arguments", "options"),
    [
        (analysis.knn_accuracy, (DATA, DATA, 3), {"k": (5,)}),
        pytest.param(analysis.clustering, (DATA, 3), {"starts": 1}, marks=pytest.mark.slow),
        pytest.param(analysis.retrieval, (DATA, IMAGES, TRUTH), {}, marks=pytest.mark.slow),
    ],
)
def test_by_default_every_kind_of_layer_is_measured(call, arguments, options):
    """Each layer as if it alone were measured with the word that suits it."""
    kinds = {
        "sequence": (lambda images: images[..., 0], "cls", "spatial"),
        "map": (lambda images: tf.concat([images, images**2], -1), "spatial", "spatial"),
        "vector": (lambda images: images[:, 0, :, 0], "all", "all"),
    }

    def features_of(names, grid):
        def features(images):
            return {name: kinds[name][0](images) for name in names}

        features.token_grid = grid
        return features

    for number, grid in ((1, TokenGrid(2, 3, 1, 8)), (2, TokenGrid(1, 7, 0, 8))):
        every = call(features_of(kinds, grid), *arguments, **options)
        for name, row in kinds.items():
            alone = call(features_of([name], grid), *arguments, tokens=row[number], **options)
            here = every.sel(layer=[name])
            for found, expected in zip(_values(here), _values(alone), strict=True):
                np.testing.assert_array_equal(found, expected)
        assert every.attrs["tokens"] == "default"
