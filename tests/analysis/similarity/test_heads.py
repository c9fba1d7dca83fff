import itertools

import matplotlib.pyplot as plt
import numpy as np
import pytest
import tensorflow as tf
from matplotlib.colors import to_hex
from measure_oracles import minibatch_cka, without_each_batch
from plot_results import results

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis import plots
from vit_tf.analysis.similarity.heads import head_similarity, subset_members

pytestmark = [
    pytest.mark.usefixtures("without_graphs"),
    pytest.mark.filterwarnings("error::RuntimeWarning"),
]
BLOCK = "block00/attention"
GRID = TokenGrid(1, 2, 0, 10)
DISTANCES = (9.0, 2.0, 5.0)
RANKED = {"local": [1, 2, 0], "global": [0, 2, 1]}


def heads(images, distances=DISTANCES):
    """Three heads at two tokens, 10 pixels apart: the columns of an image of shape (2, 3, channel).

    What a head gives to the other token is the tenth of its distance.
    """
    away = np.array(distances, "float32")[:, None, None] / 10
    weights = np.where(np.eye(2), 1 - away, away)
    return {
        f"{BLOCK}/weights": tf.repeat(weights[None], tf.shape(images)[0], axis=0),
        f"{BLOCK}/heads": images,
    }


def test_subsets_grow_by_distance_in_both_orders():
    expected = [[0, 1, 0], [0, 1, 1], [1, 1, 1], [1, 0, 0], [1, 0, 1], [1, 1, 1]]
    np.testing.assert_array_equal(subset_members(np.array(DISTANCES)), expected)
    ties = subset_members(np.ones(2))
    np.testing.assert_array_equal(ties, [[1, 0], [1, 1], [0, 1], [1, 1]])


def test_distances_of_subsets_are_means_of_their_heads(rng):
    images = rng.normal(size=(8, 2, 3, 5)).astype("float32")
    result = head_similarity(heads, lambda batch: {"x": batch}, images, GRID).distance
    assert result.dims == ("order", "subset") and result.attrs["units"] == "pixels"
    # The distance is a mean over queries: each looks this far on average.
    np.testing.assert_allclose(result.sel(order="local"), [2, 3.5, 16 / 3], rtol=1e-6)
    np.testing.assert_allclose(result.sel(order="global"), [9, 7, 16 / 3], rtol=1e-6)
    assert list(result.subset) == [1, 2, 3]


@pytest.mark.usefixtures("in_graphs")
def test_equals_cka_of_the_concatenated_heads(rng):
    images = rng.normal(size=(96, 2, 3, 5)).astype("float32")
    images[:, :, 2] += images[:, :, 1]
    mixing = rng.normal(size=(30, 7)).astype("float32")
    outputs = np.tanh(images.reshape(96, -1) @ mixing)
    data = tf.data.Dataset.from_tensor_slices(images).batch(24)

    def other(batch):
        return {"z": tf.tanh(tf.reshape(batch, (-1, 30)) @ mixing), "local": batch[:, :, 1]}

    result = head_similarity(lambda batch: heads(batch + 5.0), other, data, GRID)
    assert result.cka.dims == ("order", "subset", "layer") and list(result.layer) == ["z", "local"]
    for (order, ranked), size in itertools.product(RANKED.items(), (1, 2, 3)):
        for layer, values in {"z": outputs, "local": images[:, :, 1]}.items():
            pair = images[:, :, ranked[:size]], values
            actual = result.sel(order=order, subset=size, layer=layer)
            assert float(actual.cka) == pytest.approx(minibatch_cka(*pair, 24), abs=1e-5)
            _, stderr = without_each_batch(*pair, 24)
            assert float(actual.stderr) == pytest.approx(stderr, abs=1e-5)


@pytest.mark.slow
def test_heads_of_a_vit_against_the_stages_of_a_resnet(rng):
    vit = vit_tf.ViT((16, 24, 3), 8, 2, 4, 8, 16, 5)
    bit = vit_tf.BiT((16, 24, 3), units=(1, 1), width_factor=0.5, num_classes=3)
    images = rng.normal(size=(32, 16, 24, 3)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(images).batch(8)
    ours = vit_tf.submodel(vit, "*/weights", "*/heads")
    other = vit_tf.submodel(bit, "stage*/sum")
    result = head_similarity(ours, other, data, block="block01")
    distance = analysis.attention_distance(ours, data, vit.token_grid)[1]
    np.testing.assert_allclose(result.distance[0], np.sort(distance).cumsum() / [1, 2, 3, 4])
    assert result.cka.shape == (2, 4, 2) and np.isfinite(result.stderr).all()
    assert result.attrs["model_x"] == vit.name and result.attrs["model_y"] == bit.name
    np.testing.assert_allclose(result.cka[0, -1], result.cka[1, -1], atol=1e-5)
    assert list(result.layer) == list(other.taps) and result.attrs["block"] == "block01"


@pytest.mark.parametrize(
    ("features", "arguments", "words"),
    [
        (heads, {"block": "block05"}, "block05"),
        (heads, {"grid": None}, "grid"),
        (heads, {"grid": TokenGrid(1, 3, 0, 8)}, "over 3 tokens"),
        (lambda batch: heads(batch, (1.0, 2.0)), {}, "with 2 heads"),
        (lambda batch: heads(batch * [[1.0], [np.nan], [1.0]]), {}, "finite.*heads/head1$"),
        (heads, {}, "constant layer: constant$"),
    ],
)
def test_errors(rng, features, arguments, words):
    images = rng.normal(size=(8, 2, 3, 5)).astype("float32")

    def constant(batch):
        return {"constant": 0 * batch + 1.0}

    with pytest.raises(ValueError, match=words):
        head_similarity(features, constant, images, **{"grid": GRID} | arguments)


def test_plot_draws_distance_against_similarity():
    result = results()["head_similarity"].assign_attrs(model_x="ViT", model_y="ResNet")
    ax = plots.plot_head_similarity(result)
    lines = [line for line in ax.get_lines() if len(line.get_xdata())]
    assert len(lines) == 4 and len(ax.collections) == 4
    for index, line in enumerate(lines):
        order, layer = ("local", "global")[index % 2], index // 2
        np.testing.assert_array_equal(line.get_xdata(), result.distance.sel(order=order))
        np.testing.assert_array_equal(line.get_ydata(), result.cka.sel(order=order)[:, layer])
        assert line.get_linestyle() == ("-" if order == "local" else "--")
    colours = [to_hex(line.get_color()) for line in lines]
    assert colours[::2] == colours[1::2] and len(set(colours)) == 2
    assert "pixels" in ax.get_xlabel() and "ViT" in ax.get_title() and "ResNet" in ax.get_title()
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[0] == "root"
    assert texts[-2:] == ["most local heads first", "most global heads first"]


def test_plot_selects_layers_and_needs_no_error():
    result = results()["head_similarity"].drop_vars("stderr")
    ax = plots.plot_head_similarity(result, plt.subplots()[1], layers=["stage1/unit01/sum"])
    lines = [line for line in ax.get_lines() if len(line.get_xdata())]
    assert len(lines) == 2 and not ax.collections
    np.testing.assert_array_equal(lines[0].get_ydata(), result.cka[0, :, 1])
    with pytest.raises(ValueError, match="Expected layers among"):
        plots.plot_head_similarity(result, layers=["norm"])
