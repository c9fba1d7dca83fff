"""What CKA depends on, next to closed forms and CKA in float64 of what is left."""

import numpy as np
import pytest
import tensorflow as tf

from vit_tf import analysis

pytestmark = pytest.mark.usefixtures("without_graphs")


def kernel(x, unbiased):
    """The centred kernel of rows in float64, U-centred if unbiased."""
    x = x - x.mean(axis=0)
    return centred(x @ x.T, unbiased)


def centred(k, unbiased):
    if not unbiased:
        return k - k.mean(axis=0) - k.mean(axis=1)[:, None] + k.mean()
    k, n = k * (1 - np.eye(len(k))), len(k)
    rows = k.sum(axis=1) / (n - 2)
    k = k - rows - rows[:, None] + rows.sum() / (n - 1)
    return k * (1 - np.eye(n))


def hsic(k, other, unbiased):
    n = len(k)
    return (k * other).sum() / (n * (n - 3) if unbiased else (n - 1) ** 2)


def cka_of(batches, unbiased):
    """CKA of pairs of kernels of batches."""
    terms = [[hsic(a, b, unbiased) for a, b in ((k, q), (k, k), (q, q))] for k, q in batches]
    both, own, other = np.sum(terms, axis=0)
    return both / np.sqrt(own * other)


def halves(x):
    """Pairs of the halves of rows, the half that is measured first."""
    first, second = x[::2], x[1::2]
    return (first, second), (second, first)


def first_component(x, other):
    """The kernel of rows along the first principal component of other rows."""
    _, _, directions = np.linalg.svd(other - other.mean(axis=0), full_matrices=False)
    scores = x @ directions[0]
    return np.outer(scores, scores)


def expected_values(batches, pixels, count, unbiased):
    """CKA of pairs of rows without each part, and the shares, in float64."""
    pairs = [[kernel(x, unbiased) for x in pair] for pair in batches]
    product = sum(hsic(k, q, unbiased) for k, q in pairs)
    without, shares = [], []

    kept = []
    for (x, y), (k, q) in zip(batches, pairs, strict=True):
        largest = [np.argsort(-(m**2).sum(axis=1))[:count] for m in (k, q)]
        influential = np.isin(np.arange(len(x)), np.concatenate(largest))
        kept.append([kernel(z[~influential], unbiased) for z in (x, y)])
        n = len(x)
        rows = (k * q).sum(axis=1) / (n * (n - 3) if unbiased else (n - 1) ** 2)
        shares.append(rows[influential].sum() / product)
    without.append(cka_of(kept, unbiased))
    shares = [sum(shares)]

    own, first = [], []
    for x, y in batches:
        for pair in zip(halves(x), halves(y), strict=True):
            own.append([kernel(z, unbiased) for z, _ in pair])
            first.append([centred(first_component(*each), unbiased) for each in pair])
    of_halves = sum(hsic(k, q, unbiased) for k, q in own)
    shares.append(sum(hsic(k, q, unbiased) for k, q in first) / of_halves)
    rest = [[k - f for k, f in zip(*both, strict=True)] for both in zip(own, first, strict=True)]
    without.append(cka_of(rest, unbiased))

    p = [kernel(x, unbiased) for x in pixels]
    of_pixels = sum(hsic(k, k, unbiased) for k in p)
    slopes = [
        sum(hsic(pair[side], k, unbiased) for pair, k in zip(pairs, p, strict=True)) / of_pixels
        for side in (0, 1)
    ]
    shares.append(slopes[0] * slopes[1] * of_pixels / product)
    residuals = [
        [k - slope * q for k, slope in zip(pair, slopes, strict=True)]
        for pair, q in zip(pairs, p, strict=True)
    ]
    without.append(cka_of(residuals, unbiased))
    return cka_of(pairs, unbiased), without, shares


def mixed(x):
    """Two layers of images that share a part."""
    flat = tf.reshape(x, (tf.shape(x)[0], -1))
    return {"a": tf.nn.relu(flat[:, 2:]), "b": tf.abs(flat[:, :9]) + 0.1 * flat[:, 3:12]}


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("unbiased", [True, False])
def test_equals_the_definitions_in_float64(rng, unbiased):
    images = rng.normal(size=(60, 2, 3, 3)).astype("float32")
    images[[3, 33]] *= 4
    data = tf.data.Dataset.from_tensor_slices(images).batch(20)
    result = analysis.cka_sensitivity(mixed, data, fraction=0.1, unbiased=unbiased)
    pair = result.sel(layer_x="a", layer_y="b")
    taps = [{k: np.asarray(v, "float64") for k, v in mixed(x).items()} for x in data]
    batches = [(x["a"], x["b"]) for x in taps]
    pixels = [np.asarray(x, "float64").reshape(20, -1) for x in data]
    cka, without, shares = expected_values(batches, pixels, 2, unbiased)
    np.testing.assert_allclose(pair.cka, cka, rtol=1e-5)
    np.testing.assert_allclose(pair.without, without, rtol=1e-5)
    np.testing.assert_allclose(pair.share, shares, rtol=1e-5)
    if unbiased:
        expected = analysis.cka(mixed, data)
        np.testing.assert_allclose(result.cka, expected.cka, rtol=1e-5)
        np.testing.assert_allclose(result.stderr, expected.stderr, rtol=1e-4, atol=1e-7)
    np.testing.assert_allclose(result.without, result.without.transpose("part", ..., "layer_x"))
    np.testing.assert_allclose(np.diagonal(result.without, axis1=1, axis2=2), 1, rtol=1e-5)
    other = analysis.cka_sensitivity(mixed, data, mixed, fraction=0.1, unbiased=unbiased)
    np.testing.assert_allclose(other.without, result.without, rtol=1e-5)
    np.testing.assert_allclose(other.change_stderr, result.change_stderr, rtol=1e-4, atol=1e-6)


def test_kernels_of_rank_one_have_the_squared_cosine_and_one_component(rng):
    u, v = rng.normal(size=(2, 50, 1)).astype("float32")
    result = analysis.cka_sensitivity({"u": u}, features_y={"v": v}, unbiased=False)
    cosine = np.corrcoef(u[:, 0].astype("float64"), v[:, 0].astype("float64"))[0, 1]
    np.testing.assert_allclose(result.cka.item(), cosine**2, rtol=1e-5)
    np.testing.assert_allclose(result.share.sel(part="component").item(), 1, rtol=1e-5)
    assert result.without.sel(part="component").item() == 0
    assert np.isnan(result.without.sel(part="pixels").item())


@pytest.mark.filterwarnings("ignore:The standard error needs")
def test_images_moved_far_decide_cka_which_is_the_same_without_them(rng):
    n, moved = 100, 2
    x = rng.normal(size=(n, 30)) * np.arange(1, 31) ** -0.5
    far, near = x.copy(), x.copy()
    far[:moved, 3] += 3000
    near[:moved, 3] += 50
    data = {"x": x.astype("float32"), "far": far.astype("float32"), "near": near.astype("float32")}
    result = analysis.cka_sensitivity(data, unbiased=False)
    assert result.share.sel(part="component", layer_x="far", layer_y="far") > 0.99
    result = result.sel(layer_x="x")
    share, k = moved / n, kernel(x, unbiased=False)
    gap = x[:moved].mean(axis=0) - x[moved:].mean(axis=0)
    limit = n * share * (1 - share) * (gap**2).sum() / np.linalg.norm(k)
    np.testing.assert_allclose(result.cka.sel(layer_y="far"), limit, rtol=5e-3)
    assert result.cka.sel(layer_y="near") < limit + 0.1 < 0.5
    assert result.without.sel(layer_y="near", part="images") > 0.999


def test_functions_of_the_pixels_have_nothing_in_common_without_them(rng):
    images = rng.normal(size=(400, 4, 6, 3)).astype("float32")
    rotation = np.linalg.qr(rng.normal(size=(72, 72)))[0].astype("float32")
    projections = rng.normal(size=(2, 72, 200)).astype("float32")

    def features(x):
        flat = tf.reshape(x, (-1, 72))
        one, other = (flat @ p for p in projections)
        return {"rotated": 3 * flat @ rotation + 1, "one": one, "other": other}

    data = tf.data.Dataset.from_tensor_slices(images).batch(100)
    result = analysis.cka_sensitivity(features, data)
    without = result.without.sel(part="pixels")
    np.testing.assert_array_equal(without.sel(layer_x="rotated"), 0)
    np.testing.assert_allclose(result.share.sel(part="pixels", layer_x="rotated"), 1, rtol=1e-4)
    pair = {"layer_x": "one", "layer_y": "other"}
    assert result.cka.sel(pair) > 0.6
    error = np.hypot(*(result[name].sel(pair).max() for name in ("stderr", "change_stderr")))
    assert abs(without.sel(pair)) < 3 * error + 0.02


@pytest.mark.parametrize("fraction", [0, 0.3])
def test_a_fraction_that_leaves_too_few_images_is_refused(rng, fraction):
    with pytest.raises(ValueError, match="fraction"):
        analysis.cka_sensitivity({"x": rng.normal(size=(20, 3))}, fraction=fraction)


def sensitivity_of(x, y, batch):
    """The sensitivity of a pair of layers that are read from images, in batches."""
    width = x.shape[1]
    images = np.concatenate([x, y], axis=1).astype("float32")[:, None, None]
    data = tf.data.Dataset.from_tensor_slices(images).batch(batch)
    layers = lambda images: {"x": images[:, 0, 0, :width], "y": images[:, 0, 0, width:]}  # noqa: E731
    return analysis.cka_sensitivity(layers, data).sel(layer_x="x", layer_y="y")


@pytest.mark.parametrize("batch", [pytest.param(32, marks=pytest.mark.slow), 64])
def test_isotropic_layers_have_no_first_component(rng, batch):
    """Without the largest of 200 equal directions, CKA is what it was, for batches of any size."""
    x = rng.normal(size=(1280, 200))
    result = sensitivity_of(x, x + rng.normal(size=x.shape), batch)
    change = result["without"].sel(part="component") - result["cka"]
    error = result["change_stderr"].sel(part="component")
    assert abs(change) < 3 * np.hypot(error, result["stderr"]) and abs(change) < 0.04
    assert abs(result["share"].sel(part="component")) < 0.05


@pytest.mark.parametrize("batch", [pytest.param(40, marks=pytest.mark.slow), 160])
def test_a_component_that_dominates_is_removed_for_batches_of_any_size(rng, batch):
    """Two layers that share one direction of large variance alone."""
    shared, own = rng.normal(size=(640, 1)), rng.normal(size=(2, 640, 60))
    directions = 20 * rng.normal(size=(2, 1, 60)) / np.sqrt(60)
    result = sensitivity_of(*(shared * directions + own), batch)
    assert result["cka"] > 0.9 and abs(result["without"].sel(part="component")) < 0.15
    assert result["share"].sel(part="component") == pytest.approx(1, abs=0.1)
