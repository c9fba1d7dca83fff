import warnings

import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from hypothesis import given, settings, strategies as st

from vit_tf import TokenGrid, analysis
from vit_tf.analysis.similarity.cka import ratio_and_jackknife
from vit_tf.analysis.similarity.heads import head_similarity
from vit_tf.analysis.similarity.localization import localization
from vit_tf.distribute import strategy


def hsic_oracle(x, y):
    """Unbiased HSIC of Song et al. 2012, equation 5, in float64."""
    n = len(x)
    k, m = x @ x.T, y @ y.T
    np.fill_diagonal(k, 0)
    np.fill_diagonal(m, 0)
    one = np.ones(n)
    total = np.trace(k @ m) + (one @ k @ one) * (one @ m @ one) / ((n - 1) * (n - 2))
    return (total - 2 / (n - 2) * (one @ k @ m @ one)) / (n * (n - 3))


def cka_oracle(x, y, batch):
    """Minibatch CKA of Nguyen et al. 2020, equation 3, in float64."""
    x, y = (np.reshape(a, (len(a), -1)).astype(np.float64) for a in (x, y))
    x, y = x - x.mean(0), y - y.mean(0)
    sums = np.zeros(3)
    for i in range(0, len(x), batch):
        a, b = x[i : i + batch], y[i : i + batch]
        sums += hsic_oracle(a, b), hsic_oracle(a, a), hsic_oracle(b, b)
    return sums[0] / np.sqrt(sums[1] * sums[2])


def lookup(**tables):
    """Features that look their rows up by the index stored in the image."""
    tables = {tap: tf.constant(table) for tap, table in tables.items()}

    def features(images):
        index = tf.cast(images[:, 0, 0, 0], tf.int32)
        return {tap: tf.gather(table, index) for tap, table in tables.items()}

    return features


def indices(count, batch):
    images = np.arange(count, dtype="float32").reshape(-1, 1, 1, 1)
    return tf.data.Dataset.from_tensor_slices(images).batch(batch)


def correlated(rng, count=96):
    x = rng.normal(size=(count, 3, 5))
    y = np.tanh(x.reshape(count, -1) @ rng.normal(size=(15, 8))) + 0.5 * rng.normal(size=(count, 8))
    return x.astype("float32"), y.astype("float32")


@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_equals_the_float64_oracle(rng, offset):
    x, y = correlated(rng)
    x = (x + offset * x.std()).astype("float32")
    y = (y - offset * y.std()).astype("float32")
    result = analysis.cka(lookup(x=x, y=y), indices(96, 32))
    assert result.cka.sel(layer_x="x", layer_y="y") == pytest.approx(cka_oracle(x, y, 32), abs=1e-4)
    np.testing.assert_allclose(np.diag(result.cka), 1, atol=1e-5)
    np.testing.assert_allclose(result.cka, result.cka.T, atol=1e-6)


def test_two_models_equal_the_oracle_and_one_model_of_both(rng):
    x, y = correlated(rng)
    two = analysis.cka(lookup(a=x, b=y), indices(96, 24), lookup(c=y))
    assert two.cka.dims == ("layer_x", "layer_y")
    assert list(two.layer_x) == ["a", "b"] and list(two.layer_y) == ["c"]
    expected = [[cka_oracle(x, y, 24)], [1.0]]
    np.testing.assert_allclose(two.cka, expected, atol=1e-4)


@pytest.mark.slow
@settings(max_examples=8, deadline=None)
@given(seed=st.integers(0, 2**32 - 1), scale=st.floats(0.01, 100))
def test_invariant_to_orthogonal_maps_and_isotropic_scaling(seed, scale):
    rng = np.random.default_rng(seed)
    x, y = correlated(rng, 32)
    flat = x.reshape(32, -1)
    rotation = np.linalg.qr(rng.normal(size=(15, 15)))[0]
    moved = (scale * flat @ rotation).astype("float32")
    result = analysis.cka(lookup(x=x, moved=moved, y=y), indices(32, 16)).cka
    assert result.sel(layer_x="x", layer_y="moved") == pytest.approx(1, abs=1e-4)
    assert result.sel(layer_x="moved", layer_y="y") == pytest.approx(
        float(result.sel(layer_x="x", layer_y="y")), abs=1e-4
    )


def test_independent_features_have_no_similarity(rng):
    x, y = (rng.normal(size=(2048, 20)).astype("float32") for _ in range(2))
    assert abs(float(analysis.cka(lookup(x=x, y=y), indices(2048, 256)).cka[0, 1])) < 0.05


def test_standard_error_covers_the_truth_at_the_stated_rate(rng):
    mixing = rng.normal(size=(6, 6))
    dimensions, batch = 6, 32

    def sample(count):
        x = rng.normal(size=(count, dimensions))
        return x, x @ mixing + 2 * rng.normal(size=(count, dimensions))

    def hsic(count):
        rows = []
        for _ in range(count):
            x, y = sample(batch)
            xy, xx, yy = hsic_oracle(x, y), hsic_oracle(x, x), hsic_oracle(y, y)
            rows.append([[xx, xy], [xy, yy]])
        return np.array(rows)

    # For linear kernels HSIC is the squared norm of the cross-covariance.
    yy = np.linalg.norm(mixing.T @ mixing + 4 * np.eye(dimensions)) ** 2
    truth = np.linalg.norm(mixing) ** 2 / np.sqrt(dimensions * yy)
    covered = []
    for _ in range(200):
        value, stderr = ratio_and_jackknife(hsic(30))
        covered.append(abs(value[0, 1] - truth) < 1.96 * stderr[0, 1])
    assert 0.89 < np.mean(covered) < 0.99


def test_jackknife_is_the_leave_one_batch_out_formula(rng):
    x, y = correlated(rng)
    result = analysis.cka(lookup(x=x, y=y), indices(96, 24))
    left_out = []
    for batch in range(4):
        keep = np.delete(np.arange(96), slice(24 * batch, 24 * batch + 24))
        left_out.append(cka_oracle(x[keep], y[keep], 24))
    expected = np.sqrt(3 / 4 * np.sum((np.array(left_out) - np.mean(left_out)) ** 2))
    assert float(result.stderr[0, 1]) == pytest.approx(expected, rel=1e-2)
    np.testing.assert_allclose(result.leave_one_out[:, 0, 1], left_out, atol=1e-5)
    two = analysis.cka(lookup(x=x), indices(96, 24), lookup(y=y))
    np.testing.assert_allclose(two.leave_one_out[:, 0, 0], left_out, atol=1e-5)
    single = analysis.cka(lookup(x=x, y=y), indices(96, 96))
    assert np.isnan(single.stderr).all() and "leave_one_out" not in single


def test_of_many_batches_groups_are_left_out(rng):
    x, y = correlated(rng)
    x, y = np.concatenate([x, x[::-1]]), np.concatenate([y, y[::-1]])
    result = analysis.cka(lookup(x=x, y=y), indices(192, 4))  # 48 batches in 32 groups
    assert result.leave_one_out.shape == (32, 2, 2)
    first = cka_oracle(x[8:], y[8:], 4)  # the first 16 groups are of two batches each
    assert float(result.leave_one_out[0, 0, 1]) == pytest.approx(first, abs=1e-4)


def test_saves_as_netcdf_and_comes_back_equal(rng, tmp_path):
    x, y = correlated(rng, 32)
    result = analysis.cka(lookup(**{"block00/mlp/sum": x, "y": y}), indices(32, 16))
    result.to_netcdf(tmp_path / "cka.nc")
    again = xr.load_dataset(tmp_path / "cka.nc")
    xr.testing.assert_identical(result, again)
    assert result.attrs["examples"] == 32 and result.attrs["batch_size"] == 16


def test_errors_name_the_layer(rng):
    x, _ = correlated(rng, 32)
    with pytest.raises(ValueError, match=r"at least 4 examples, except for .*\. Received one of 3"):
        analysis.cka(lookup(x=x), indices(3, 16))
    with pytest.raises(ValueError, match=r"of each model\. Received constant layers: block00$"):
        flat = lookup(block00=np.full((32, 3), 0.1, "float32"))
        analysis.cka(lookup(x=x), indices(32, 16), flat)
    broken = x.copy()
    broken[5, 0, 0] = np.nan
    with pytest.raises(ValueError, match=r"Expected finite activations.*at broken"):
        analysis.cka(lookup(x=x, broken=broken), indices(32, 16))


@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_scale_of_a_layer_leaves_no_trace(rng, scale):
    x, y = correlated(rng)
    # Batches of different magnitude, so that those are weighted by their own.
    x *= np.repeat([1.0, 3.0, 0.2], 32)[:, None, None].astype("float32")
    one = analysis.cka(lookup(x=x, y=y), indices(96, 32))
    other = analysis.cka(lookup(x=x * np.float32(scale), y=y), indices(96, 32))
    np.testing.assert_allclose(other.cka, one.cka, rtol=0, atol=1e-5)
    np.testing.assert_allclose(other.stderr, one.stderr, rtol=0, atol=1e-5)
    assert float(one.cka[0, 1]) == pytest.approx(cka_oracle(x, y, 32), abs=1e-5)
    np.testing.assert_allclose(np.diag(other.cka), 1, atol=1e-6)
    np.testing.assert_allclose(np.diag(other.stderr), 0, atol=1e-6)


@pytest.mark.slow
def test_scale_leaves_no_trace_in_heads_and_places(rng):
    images = rng.normal(size=(32, 2, 4, 6)).astype("float32")
    grid = TokenGrid(1, 2, 0, 2)

    def heads(batch):
        weights = tf.fill([tf.shape(batch)[0], 3, 2, 2], 0.5)
        values = tf.reshape(batch, (-1, 2, 3, 8)) * [[1e-3], [1.0], [1e3]]
        return {"block00/attention/weights": weights, "block00/attention/heads": values}

    def other(batch):
        return {"other": tf.tanh(batch[:, :, :, :3])}

    def scaled(features, scale):
        return lambda batch: {
            tap: value if tap.endswith("weights") else scale * value
            for tap, value in features(batch).items()
        }

    def tokens(batch):
        return {"tokens": tf.tanh(tf.reshape(batch, (-1, 2, 24)))}

    data = tf.data.Dataset.from_tensor_slices(images).batch(8)
    of_heads = head_similarity(heads, other, data, grid).cka
    of_places = localization(tokens, data, grid)
    for scale in (1e-12, 1e12):
        np.testing.assert_allclose(
            head_similarity(scaled(heads, scale), other, data, grid).cka, of_heads, atol=1e-5
        )
        np.testing.assert_allclose(
            localization(scaled(tokens, scale), data, grid), of_places, atol=1e-5
        )


@pytest.mark.parametrize("value", [0.0, 0.1, 1e-15, 1e15])
def test_constant_layers_of_any_size_are_left_out_and_named(rng, value):
    x, y = correlated(rng, 32)
    flat = np.full((32, 3), value, "float32")
    lonely = np.zeros((32, 3), "float32")
    lonely[[3, 20]] = 1.0  # one example of each batch
    with pytest.warns(UserWarning, match=r"are left out: flat, lonely$"):
        result = analysis.cka(lookup(flat=flat, x=x, lonely=lonely, y=y), indices(32, 16))
    assert result.layer_x.values.tolist() == result.layer_y.values.tolist() == ["x", "y"]
    xr.testing.assert_equal(result, analysis.cka(lookup(x=x, y=y), indices(32, 16)))
    assert result.attrs["constant_layers"] == ["flat", "lonely"]
    with pytest.warns(UserWarning, match=r"are left out: flat$"):
        two = analysis.cka(lookup(x=x, y=y), indices(32, 16), lookup(flat=flat, y=y))
    assert two.cka.shape == (2, 1) and two.layer_y.item() == "y"
    np.testing.assert_allclose(two.cka[:, 0], result.cka[:, 1], atol=1e-6)
    assert np.isfinite(result.cka).all() and np.isfinite(result.stderr).all()


@pytest.mark.parametrize("replicas", ["none", "mirrored"])
@pytest.mark.parametrize("remainder", [1, 2, 3, 4])
def test_a_remainder_too_small_is_left_out_and_counted(rng, remainder, replicas):
    x, y = correlated(rng, 48 + remainder)
    left_out = remainder if remainder < 4 else 0
    with strategy(replicas).scope():
        result = analysis.cka(lookup(x=x, y=y), indices(48 + remainder, 16))
    count = 48 + remainder - left_out
    assert result.attrs["remainder"] == left_out and result.attrs["examples"] == count
    assert result.attrs["batch_size"] == (16 if left_out else 13)
    if left_out:
        whole = analysis.cka(lookup(x=x[:48], y=y[:48]), indices(48, 16))
        np.testing.assert_allclose(result.cka, whole.cka, atol=1e-6)
        np.testing.assert_allclose(result.stderr, whole.stderr, atol=1e-6)
    else:
        assert result.cka[0, 1].item() == pytest.approx(cka_oracle(x, y, 16), abs=1e-4)
    assert np.isfinite(result.cka).all()


def test_129_images_in_batches_of_128_work_in_a_pass_with_others(rng):
    images = rng.normal(size=(129, 2, 2, 1)).astype("float32")

    def features(images):
        return {"tanh": tf.tanh(images), "square": images**2}

    result = analysis.cka(features, images)
    assert result.attrs["remainder"] == 1 and result.attrs["examples"] == 128
    requests = {
        "cka": (analysis.cka_statistic(features), features),
        "labels": (analysis.pooled_statistic("all"), features),
    }
    totals = analysis.one_pass(requests, (images, np.arange(129)))
    pooled = requests["labels"][0].finish(totals["labels"])
    np.testing.assert_array_equal(pooled.labels, np.arange(129))  # others have all images
    np.testing.assert_array_equal(requests["cka"][0].finish(totals["cka"]).cka, result.cka)


def test_a_small_batch_before_another_is_an_error(rng):
    x, _ = correlated(rng, 32)
    data = indices(16, 16).concatenate(indices(3, 16)).concatenate(indices(16, 16))
    with pytest.raises(ValueError, match=r"at least 4 examples, except for .* Received one of 3"):
        analysis.cka(lookup(x=x), data)


def test_a_single_batch_has_no_standard_error_and_says_so(rng):
    x, y = correlated(rng, 32)
    with pytest.warns(
        UserWarning, match=r"standard error needs at least two batches.*smaller batch size"
    ):
        result = analysis.cka(lookup(x=x, y=y), indices(32, 32))
    assert result.stderr.isnull().all() and result.cka.notnull().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        analysis.cka(lookup(x=x, y=y), indices(32, 16))


def test_taps_without_an_example_axis_are_left_out_and_named(rng):
    x, y = correlated(rng, 32)
    inner = lookup(x=x, y=y)

    def features(images):
        extra = {"position": tf.ones((1, 3, 5)), "table": tf.ones((7, 3)), "scale": tf.ones(())}
        return extra | inner(images)

    expected = analysis.cka(inner, indices(32, 16))
    for data in (indices(32, 16), indices(32, 16).unbatch().batch(16, drop_remainder=True)):
        with pytest.warns(UserWarning, match=r"example axis are left out: position, table, scale$"):
            xr.testing.assert_allclose(analysis.cka(features, data), expected, atol=1e-6)
    with (
        pytest.raises(ValueError, match=r"taps with an example axis\. Received: table$"),
        pytest.warns(UserWarning, match="left out: table$"),
    ):
        analysis.cka(lambda images: {"table": tf.ones((7, 3))}, indices(32, 16))
    noise = analysis.gaussian_like(features)
    with pytest.warns(UserWarning, match=r"example axis are left out: position, table, scale$"):
        assert list(noise(tf.zeros((4, 1, 1, 1)))) == ["x", "y"]


def test_activations_at_hand_are_compared_as_features_are(rng):
    x, y = correlated(rng, 256)
    expected = cka_oracle(x, y, 128)
    within = analysis.cka({"x": x, "y": y})
    between = analysis.cka({"x": x.astype("float64")}, features_y={"y": y, "x": x})
    np.testing.assert_allclose(within["cka"], [[1, expected], [expected, 1]], atol=1e-5)
    np.testing.assert_allclose(between["cka"], [[expected, 1]], atol=1e-5)
    assert between["layer_y"].values.tolist() == ["y", "x"] and within.attrs["examples"] == 256
    for arguments, message in [
        (({"x": x}, {"y": y}), r"Expected no images with activations.*features_y=.*images=dict"),
        (({"x": x}, None, {"y": y[:9]}), r"same examples. Received: arrays of \[9, 256\]"),
        (({"x": x}, None, y), r"\{name: array of shape \(example, \.\.\.\)\}. Received: ndarray"),
        (({},), r"Expected activations to be"),
        (({"x": 3.0},), r"Received: a single number"),
    ]:
        with pytest.raises(ValueError, match=message):
            analysis.cka(*arguments)
