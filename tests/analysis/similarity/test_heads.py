import warnings

import matplotlib.pyplot as plt
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from matplotlib.colors import to_hex

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis import plots
from vit_tf.analysis.similarity.heads import head_similarity, subset_members

BLOCK = "block00/attention"
GRID = TokenGrid(1, 2, 0, 10)
DISTANCES = (9.0, 2.0, 5.0)
RANKED = {"local": [1, 2, 0], "global": [0, 2, 1]}


@pytest.fixture(autouse=True)
def _strict_and_clean():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield
    plt.close("all")


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


def hsic_oracle(x, y):
    """Unbiased HSIC of Song et al. 2012, equation 5, in float64."""
    n, one = len(x), np.ones(len(x))
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    total = np.trace(k @ m) + k.sum() * m.sum() / ((n - 1) * (n - 2))
    return (total - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3))


def cka_oracle(x, y, batch):
    """Minibatch CKA, and its jackknife error over the batches."""
    x, y = (a.reshape(len(a), -1).astype(np.float64) for a in (x, y))
    terms = np.array(
        [
            [hsic_oracle(a, b), hsic_oracle(a, a), hsic_oracle(b, b)]
            for a, b in zip(*(np.split(v, len(v) // batch) for v in (x, y)), strict=True)
        ]
    )
    cka = lambda sums: sums[..., 0] / np.sqrt(sums[..., 1] * sums[..., 2])  # noqa: E731
    left_out = cka(terms.sum(0) - terms)
    error = np.sqrt((len(terms) - 1) * np.var(left_out))
    return cka(terms.sum(0)), error


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


def test_equals_cka_of_the_concatenated_heads(rng):
    images = rng.normal(size=(96, 2, 3, 5)).astype("float32")
    images[:, :, 2] += images[:, :, 1]
    mixing = rng.normal(size=(30, 7)).astype("float32")
    outputs = np.tanh(images.reshape(96, -1) @ mixing)
    data = tf.data.Dataset.from_tensor_slices(images).batch(24)

    def other(batch):
        return {"z": tf.tanh(tf.reshape(batch, (-1, 30)) @ mixing), "local": batch[:, :, 1]}

    result = head_similarity(lambda batch: heads(batch + 5.0), other, data, GRID)
    assert list(result.layer) == ["z", "local"]
    for order, ranked in RANKED.items():
        for size in (1, 2, 3):
            for layer, values in {"z": outputs, "local": images[:, :, 1]}.items():
                subset = images[:, :, ranked[:size]]
                cka, stderr = cka_oracle(subset, values, 24)
                actual = result.sel(order=order, subset=size, layer=layer)
                assert float(actual.cka) == pytest.approx(cka, abs=1e-5)
                assert float(actual.stderr) == pytest.approx(stderr, abs=1e-5)


def test_local_heads_are_like_the_model_that_they_copy(rng):
    images = rng.normal(size=(256, 2, 3, 5)).astype("float32")

    def other(batch):
        return {"local": batch[:, :, 1], "global": 3 * batch[:, :, 0]}

    result = head_similarity(heads, other, images, GRID)
    assert result.cka.dims == ("order", "subset", "layer")
    # Of k independent heads of one variance, one is the other model: CKA = 1 / sqrt(k).
    share = 1 / np.sqrt([1, 2, 3])
    absent = np.array([0, 0, share[2]])
    for order in ("local", "global"):
        for layer in ("local", "global"):
            actual = result.cka.sel(order=order, layer=layer)
            np.testing.assert_allclose(actual, share if order == layer else absent, atol=0.05)


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

    result = head_similarity(heads, other, images, GRID)
    for order, ranked in RANKED.items():
        for size in (1, 2, 3):
            chosen = ranked[:size]
            own = hsic[np.ix_(chosen, chosen)].sum()
            expected = hsic[chosen, 3].sum() / np.sqrt(own * hsic[3, 3])
            actual = result.cka.sel(order=order, subset=size, layer="other")
            assert float(actual) == pytest.approx(expected, abs=1e-5)


@pytest.mark.slow
def test_of_models_and_saved(rng, tmp_path):
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
    result.to_netcdf(tmp_path / "heads.nc")
    xr.testing.assert_identical(result, xr.load_dataset(tmp_path / "heads.nc"))


def test_errors(rng):
    images = rng.normal(size=(8, 2, 3, 5)).astype("float32")

    def other(batch):
        return {"constant": 0 * batch + 1.0}

    def two(batch):
        return heads(batch, (1.0, 2.0))

    def broken(batch):
        return heads(batch * [[1.0], [np.nan], [1.0]])

    for features, arguments, message in [
        (heads, {"block": "block05"}, "Expected a tap 'block05/attention/weights'. Received: bl"),
        (heads, {"grid": None}, "Expected a grid, or features with a token_grid"),
        (heads, {"grid": TokenGrid(1, 3, 0, 8)}, "over 3 tokens"),
        (two, {}, r"with 2 heads.*of shape \(8, 2, 3, 5\)"),
        (broken, {}, r"Expected finite activations.*at block00/attention/heads/head1$"),
        (heads, {}, r"Received a constant layer: constant$"),
    ]:
        with pytest.raises(ValueError, match=message):
            head_similarity(features, other, images, **({"grid": GRID} | arguments))


def made(layers=("stage1/unit01/sum", "stage1/unit02/sum", "stage2/unit01/sum")):
    dims = ("order", "subset", "layer")
    steps = np.arange(3.0)[:, None] * 0.1 + np.arange(len(layers)) * 0.05
    values = np.stack([0.7 - steps, 0.2 + steps])
    return xr.Dataset(
        {
            "cka": (dims, values),
            "stderr": (dims, np.full_like(values, 0.01)),
            "distance": (("order", "subset"), [[2.0, 3.5, 16 / 3], [9.0, 7.0, 16 / 3]]),
        },
        coords={"order": ["local", "global"], "subset": [1, 2, 3], "layer": list(layers)},
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
