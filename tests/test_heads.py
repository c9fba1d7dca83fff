import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from matplotlib.colors import to_hex

import vit_tf
from vit_tf import analysis
from vit_tf.analysis import plots
from vit_tf.analysis.heads import head_similarity, head_subsets, subset_distances

TAP = "block00/attention/heads"
DISTANCES = (9.0, 2.0, 5.0)


@pytest.fixture(autouse=True)
def _strict_and_clean():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield
    plt.close("all")


def distances(values=DISTANCES, block="block00"):
    layers = ["block07/attention/weights", f"{block}/attention/weights"]
    table = [[0.0] * len(values), list(values)]
    return xr.DataArray(table, dims=("layer", "head"), coords={"layer": layers})


def heads(images):
    """Three heads at two tokens: the three columns of an image of shape (2, 3, channel)."""
    return {TAP: images}


def test_subsets_grow_by_distance_in_both_orders(rng):
    images = rng.normal(size=(4, 2, 3, 5)).astype("float32")
    subsets = head_subsets(heads, distances())(images)
    expected = {
        "local1": [1],
        "local2": [1, 2],
        "local3": [1, 2, 0],
        "global1": [0],
        "global2": [0, 2],
        "global3": [0, 2, 1],
    }
    assert list(subsets) == [f"{TAP}/{name}" for name in expected]
    for name, chosen in expected.items():
        np.testing.assert_array_equal(subsets[f"{TAP}/{name}"], images[:, :, chosen])


def test_distances_of_subsets_are_means_of_their_heads():
    result = subset_distances(distances())
    assert result.dims == ("order", "subset") and result.attrs["units"] == "pixels"
    np.testing.assert_allclose(result.sel(order="local"), [2, 3.5, 16 / 3])
    np.testing.assert_allclose(result.sel(order="global"), [9, 7, 16 / 3])
    assert list(result.subset) == [1, 2, 3]


def test_local_heads_are_like_the_model_that_they_copy(rng):
    images = rng.normal(size=(256, 2, 3, 5)).astype("float32")

    def other(batch):
        return {"local": batch[:, :, 1], "global": 3 * batch[:, :, 0]}

    result = head_similarity(heads, other, images, distances())
    assert result.cka.dims == ("order", "subset", "layer")
    # Of k independent heads of one variance, one is the other model: CKA = 1 / sqrt(k).
    share = 1 / np.sqrt([1, 2, 3])
    absent = np.array([0, 0, share[2]])
    for order in ("local", "global"):
        for layer in ("local", "global"):
            actual = result.cka.sel(order=order, layer=layer)
            np.testing.assert_allclose(actual, share if order == layer else absent, atol=0.05)
    xr.testing.assert_equal(result.distance, subset_distances(distances()))


def test_kernels_of_heads_add_up(rng):
    """HSIC is bilinear, so the HSIC of heads one by one give that of every subset."""
    images = rng.normal(size=(64, 2, 3, 5)).astype("float32")
    images[:, :, 2] += images[:, :, 1]
    pixels = images.astype(np.float64)
    parts = [pixels[:, :, head].reshape(64, -1) for head in range(3)]
    parts.append(np.tanh(pixels).reshape(64, -1)[:, :7])
    centring = np.eye(64) - 1 / 64
    unbiased = []
    for part in parts:
        kernel = centring @ part @ part.T @ centring
        np.fill_diagonal(kernel, 0)
        rows = kernel.sum(1) / 62
        kernel = kernel - rows[:, None] - rows + rows.sum() / 63
        np.fill_diagonal(kernel, 0)
        unbiased.append(kernel)
    hsic = np.einsum("aij,bij->ab", unbiased, unbiased)

    def other(batch):
        return {"other": tf.reshape(tf.tanh(batch), (-1, 30))[:, :7]}

    result = head_similarity(heads, other, images, distances())
    for order, ranked in {"local": [1, 2, 0], "global": [0, 2, 1]}.items():
        for size in (1, 2, 3):
            chosen = ranked[:size]
            own = hsic[np.ix_(chosen, chosen)].sum()
            expected = hsic[chosen, 3].sum() / np.sqrt(own * hsic[3, 3])
            actual = result.cka.sel(order=order, subset=size, layer="other")
            assert float(actual) == pytest.approx(expected, abs=1e-5)


def test_of_models_and_saved(rng, tmp_path):
    vit = vit_tf.ViT((16, 24, 3), 8, 2, 4, 8, 16, 5)
    bit = vit_tf.BiT((16, 24, 3), units=(1, 1), width_factor=0.5, num_classes=3)
    images = rng.normal(size=(32, 16, 24, 3)).astype("float32")
    weights = vit_tf.submodel(vit, "*/weights")
    distance = analysis.attention_distance(weights, images, vit.token_grid)
    data = tf.data.Dataset.from_tensor_slices(images).batch(8)
    ours, other = vit_tf.submodel(vit, "*/heads"), vit_tf.submodel(bit, "stage*/sum")
    result = head_similarity(ours, other, data, distance, block="block01")
    assert result.cka.shape == (2, 4, 2) and np.isfinite(result.stderr).all()
    assert result.attrs["model_x"] == vit.name and result.attrs["model_y"] == bit.name
    np.testing.assert_allclose(result.cka[0, -1], result.cka[1, -1], atol=1e-5)
    assert list(result.layer) == list(other.taps)
    result.to_netcdf(tmp_path / "heads.nc")
    xr.testing.assert_identical(result, xr.load_dataset(tmp_path / "heads.nc"))


def test_errors(rng):
    images = rng.normal(size=(4, 2, 3, 5)).astype("float32")
    with pytest.raises(ValueError, match="Expected distances of a layer 'block05/attention/weig"):
        head_subsets(heads, distances(), "block05")
    with pytest.raises(ValueError, match=r"Expected a tap 'block00/attention/heads'\. Received: x"):
        head_subsets(lambda batch: {"x": batch}, distances())(images)
    with pytest.raises(ValueError, match=r"with 2 heads.*of shape \(4, 2, 3, 5\)"):
        head_subsets(lambda batch: {TAP: tf.constant(batch)}, distances((1.0, 2.0)))(images)


def made(layers=("stage1/unit01/sum", "stage1/unit02/sum", "stage2/unit01/sum")):
    dims = ("order", "subset", "layer")
    steps = np.arange(3.0)[:, None] * 0.1 + np.arange(len(layers)) * 0.05
    values = np.stack([0.7 - steps, 0.2 + steps])
    return xr.Dataset(
        {
            "cka": (dims, values),
            "stderr": (dims, np.full_like(values, 0.01)),
            "distance": subset_distances(distances()),
        },
        coords={"layer": list(layers)},
        attrs={"model_x": "ViT", "model_y": "ResNet"},
    )


def test_plot_draws_distance_against_similarity():
    result = made()
    ax = plots.plot_head_similarity(result)
    lines = [line for line in ax.get_lines() if len(line.get_xdata())]
    assert len(lines) == 6 and len(ax.collections) == 6
    for index, line in enumerate(lines):
        order, layer = ("local", "global")[index % 2], index // 2
        np.testing.assert_array_equal(line.get_xdata(), result.distance.sel(order=order))
        np.testing.assert_array_equal(line.get_ydata(), result.cka.sel(order=order)[:, layer])
        assert line.get_linestyle() == ("-" if order == "local" else "--")
    colours = [to_hex(line.get_color()) for line in lines]
    assert colours[::2] == colours[1::2] and len(set(colours)) == 3
    assert "pixels" in ax.get_xlabel() and "ViT" in ax.get_title() and "ResNet" in ax.get_title()
    texts = [text.get_text() for text in ax.get_legend().get_texts()]
    assert texts[0] == "stage1/unit01" and texts[-2:] == [
        "most local heads first",
        "most global heads first",
    ]


def test_plot_selects_layers_and_needs_no_error():
    result = made().drop_vars("stderr")
    ax = plots.plot_head_similarity(result, plt.subplots()[1], layers=["stage2/unit01/sum"])
    lines = [line for line in ax.get_lines() if len(line.get_xdata())]
    assert len(lines) == 2 and not ax.collections
    np.testing.assert_array_equal(lines[0].get_ydata(), result.cka[0, :, 2])
    with pytest.raises(ValueError, match="Expected layers among"):
        plots.plot_head_similarity(result, layers=["norm"])
    with pytest.raises(ValueError, match="Expected a Dataset with distance"):
        plots.plot_head_similarity(result.drop_vars("distance"))
