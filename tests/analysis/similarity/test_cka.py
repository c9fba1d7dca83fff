"""CKA, and what follows from it, beside NumPy in float64."""

import warnings

import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from measure_oracles import minibatch_cka, without_each_batch
from study_parts import cka_result
from tables import features_of, numbers

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis import plots
from vit_tf.analysis.engine.stream import eager_steps
from vit_tf.analysis.similarity.cka import best_matching_layer, layer_match_accuracy
from vit_tf.analysis.similarity.heads import head_similarity
from vit_tf.analysis.similarity.localization import localization
from vit_tf.data.batches import RANDOM
from vit_tf.distribute import strategy

pytestmark = pytest.mark.usefixtures("without_graphs")


def cka_of(size, other=None, **layers):
    """CKA of arrays (example, ...) in batches of a size, of one model or with another's."""
    count = len(next(iter(layers.values())))
    return analysis.cka(features_of(layers), numbers(count, size), other and features_of(other))


def correlated(rng, count=96):
    x = rng.normal(size=(count, 3, 5))
    y = np.tanh(x.reshape(count, -1) @ rng.normal(size=(15, 8))) + 0.5 * rng.normal(size=(count, 8))
    return x.astype("float32"), y.astype("float32")


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("offset", [0.0, 1000.0])
def test_equals_the_float64_oracle(rng, offset):
    x, y = correlated(rng)
    x = (x + offset * x.std()).astype("float32")
    y = (y - offset * y.std()).astype("float32")
    result = cka_of(32, x=x, y=y)
    assert result.cka.sel(layer_x="x", layer_y="y") == pytest.approx(
        minibatch_cka(x, y, 32), abs=1e-4
    )
    np.testing.assert_allclose(np.diag(result.cka), 1, atol=1e-5)
    np.testing.assert_allclose(result.cka, result.cka.T, atol=1e-6)


def test_two_models_equal_the_oracle_and_one_model_of_both(rng):
    x, y = correlated(rng)
    two = cka_of(24, {"c": y}, a=x, b=y)
    assert two.cka.dims == ("layer_x", "layer_y")
    assert list(two.layer_x) == ["a", "b"] and list(two.layer_y) == ["c"]
    expected = [[minibatch_cka(x, y, 24)], [1.0]]
    np.testing.assert_allclose(two.cka, expected, atol=1e-4)


def test_jackknife_is_the_leave_one_batch_out_formula(rng):
    x, y = correlated(rng)
    result = cka_of(24, x=x, y=y)
    left_out, expected = without_each_batch(x, y, 24)
    assert float(result.stderr[0, 1]) == pytest.approx(expected, rel=1e-2)
    np.testing.assert_allclose(result.leave_one_out[:, 0, 1], left_out, atol=1e-5)
    two = cka_of(24, {"y": y}, x=x)
    np.testing.assert_allclose(two.leave_one_out[:, 0, 0], left_out, atol=1e-5)
    single = cka_of(96, x=x, y=y)
    assert np.isnan(single.stderr).all() and "leave_one_out" not in single


def test_of_many_batches_groups_are_left_out(rng):
    x, y = correlated(rng)
    x, y = np.concatenate([x, x[::-1]]), np.concatenate([y, y[::-1]])
    result = cka_of(4, x=x, y=y)  # 48 batches in 32 groups
    assert result.leave_one_out.shape == (32, 2, 2)
    first = minibatch_cka(x[8:], y[8:], 4)  # the first 16 groups are of two batches each
    assert float(result.leave_one_out[0, 0, 1]) == pytest.approx(first, abs=1e-4)


def test_errors_name_the_layer(rng):
    x, _ = correlated(rng, 32)
    broken = np.where(np.arange(32)[:, None, None] == 5, np.nan, x)
    good, data = features_of({"x": x}), numbers(32, 16)
    small = numbers(16, 16).concatenate(numbers(3, 16)).concatenate(numbers(16, 16))
    flat = features_of({"block00": np.full((32, 3), 0.1)})
    for arguments, words in [
        ((good, numbers(3, 16)), "at least 4 images.*a batch of 3"),
        ((good, small), "at least 4 images.*a batch of 3"),
        ((good, data, flat), "constant layers: block00$"),
        ((features_of({"x": x, "broken": broken}), data), "finite.*broken"),
    ]:
        with pytest.raises(ValueError, match=words):
            analysis.cka(*arguments)


@pytest.mark.slow
@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("scale", [1e-15, 1e15])
def test_scale_of_a_layer_leaves_no_trace(rng, scale):
    x, y = correlated(rng)
    # Batches of different magnitude, so that those are weighted by their own.
    x *= np.repeat([1.0, 3.0, 0.2], 32)[:, None, None].astype("float32")
    one = cka_of(32, x=x, y=y)
    other = cka_of(32, x=x * np.float32(scale), y=y)
    np.testing.assert_allclose(other.cka, one.cka, rtol=0, atol=1e-5)
    np.testing.assert_allclose(other.stderr, one.stderr, rtol=0, atol=1e-5)
    assert float(one.cka[0, 1]) == pytest.approx(minibatch_cka(x, y, 32), abs=1e-5)
    np.testing.assert_allclose(np.diag(other.cka), 1, atol=1e-6)
    np.testing.assert_allclose(np.diag(other.stderr), 0, atol=1e-6)


@pytest.mark.slow
@pytest.mark.usefixtures("in_graphs")
def test_scale_leaves_no_trace_in_heads_and_positions(rng):
    images, outputs = (
        rng.normal(size=(32, 2, 4, 6)).astype("float32"),
        rng.normal(size=(32, 2, 3, 8)),
    )
    sizes, grid = np.array([[1e-3], [1.0], [1e3]]), TokenGrid(1, 2, 0, 2)
    other = features_of({"other": np.tanh(outputs[:, 0])})
    batches = tf.data.Dataset.from_tensor_slices(images).batch(8)

    def of_heads(scale):
        taps = {"weights": np.full((32, 3, 2, 2), 0.5), "heads": scale * sizes * outputs}
        heads = features_of({f"block00/attention/{name}": x for name, x in taps.items()})
        return head_similarity(heads, other, numbers(32, 8), grid).cka

    def of_positions(scale):
        def tokens(batch):
            return {"tokens": scale * tf.tanh(tf.reshape(batch, (-1, 2, 24)))}

        return localization(tokens, batches, grid)

    for measure in (of_heads, of_positions):
        expected = measure(1.0)
        for scale in (1e-12, 1e12):
            np.testing.assert_allclose(measure(scale), expected, atol=1e-5)


@pytest.mark.slow
@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("value", [0.0, 0.1, 1e-15, 1e15])
def test_constant_layers_of_any_size_are_left_out_and_named(rng, value):
    x, y = correlated(rng, 32)
    flat = np.full((32, 3), value, "float32")
    lonely = np.zeros((32, 3), "float32")
    lonely[[3, 20]] = 1.0  # one example of each batch
    with pytest.warns(UserWarning, match=r"are left out: flat, lonely$"):
        result = cka_of(16, flat=flat, x=x, lonely=lonely, y=y)
    assert result.layer_x.values.tolist() == result.layer_y.values.tolist() == ["x", "y"]
    xr.testing.assert_equal(result, cka_of(16, x=x, y=y))
    assert result.attrs["constant_layers"] == ["flat", "lonely"]
    with pytest.warns(UserWarning, match=r"are left out: flat$"):
        two = cka_of(16, {"flat": flat, "y": y}, x=x, y=y)
    assert two.cka.shape == (2, 1) and two.layer_y.item() == "y"
    np.testing.assert_allclose(two.cka[:, 0], result.cka[:, 1], atol=1e-6)
    assert np.isfinite(result.cka).all() and np.isfinite(result.stderr).all()


@pytest.mark.parametrize(
    ("remainder", "replicas"),
    [
        *((remainder, "none") for remainder in (1, 2, 3, 4)),
        (1, "mirrored"),
        *(pytest.param(n, "mirrored", marks=pytest.mark.slow) for n in (2, 3, 4)),
    ],
)
def test_a_remainder_too_small_is_left_out_and_counted(rng, remainder, replicas):
    x, y = correlated(rng, 48 + remainder)
    left_out = remainder if remainder < 4 else 0
    with strategy(replicas).scope():
        result = cka_of(16, x=x, y=y)
    count = 48 + remainder - left_out
    assert result.attrs["remainder"] == left_out and result.attrs["examples"] == count
    assert result.attrs["batch_size"] == (16 if left_out else 13)
    if left_out:
        whole = cka_of(16, x=x[:48], y=y[:48])
        np.testing.assert_allclose(result.cka, whole.cka, atol=1e-6)
        np.testing.assert_allclose(result.stderr, whole.stderr, atol=1e-6)
    else:
        assert result.cka[0, 1].item() == pytest.approx(minibatch_cka(x, y, 16), abs=1e-4)
    assert np.isfinite(result.cka).all()


@pytest.mark.usefixtures("in_graphs")
def test_129_images_in_batches_of_128_work_in_a_pass_with_others(rng):
    images = rng.normal(size=(129, 2, 2, 1)).astype("float32")

    def features(images):
        return {"tanh": tf.tanh(images), "square": images**2}

    batches = tf.data.Dataset.from_tensor_slices((images, np.arange(129))).batch(128)
    result = analysis.cka(features, batches)
    assert result.attrs["remainder"] == 1 and result.attrs["examples"] == 128
    of_array = analysis.cka(features, images)  # in batches of 65 and 64
    assert of_array.attrs["remainder"] == 0 and of_array.attrs["examples"] == 129
    requests = {
        "cka": (analysis.cka.statistic(features), features),
        "labels": (analysis.engine.pooled_statistic("all"), features),
    }
    totals = analysis.engine.one_pass(requests, batches)
    pooled = requests["labels"][0].finish(totals["labels"])
    np.testing.assert_array_equal(pooled.labels, np.arange(129))  # others have all images
    np.testing.assert_array_equal(requests["cka"][0].finish(totals["cka"]).cka, result.cka)


def test_a_single_batch_has_no_standard_error_and_says_so(rng):
    x, y = correlated(rng, 32)
    with pytest.warns(UserWarning, match="two batches"):
        result = cka_of(32, x=x, y=y)
    assert result.stderr.isnull().all() and result.cka.notnull().all()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        cka_of(16, x=x, y=y)


def test_taps_without_an_example_axis_are_left_out_and_named(rng):
    x, y = correlated(rng, 32)
    inner = features_of({"x": x, "y": y})

    def features(images):
        extra = {"position": tf.ones((1, 3, 5)), "table": tf.ones((7, 3)), "scale": tf.ones(())}
        return extra | inner(images)

    expected = analysis.cka(inner, numbers(32, 16))
    for data in (numbers(32, 16), numbers(32, 16).unbatch().batch(16, drop_remainder=True)):
        with pytest.warns(UserWarning, match=r"example axis are left out: position, table, scale$"):
            xr.testing.assert_allclose(analysis.cka(features, data), expected, atol=1e-6)
    with (
        pytest.raises(ValueError, match=r"one row per image\. Received: table"),
        pytest.warns(UserWarning, match="left out: table$"),
    ):
        analysis.cka(lambda images: {"table": tf.ones((7, 3))}, numbers(32, 16))
    noise = analysis.engine.gaussian_like(features)
    with pytest.warns(UserWarning, match=r"example axis are left out: position, table, scale$"):
        assert list(noise(tf.zeros((4, 1, 1, 1)))) == ["x", "y"]


def test_activations_at_hand_are_compared_as_features_are(rng):
    x, y = correlated(rng, 256)
    order = RANDOM.order(256)
    expected = minibatch_cka(x[order], y[order], 128)
    within = analysis.cka({"x": x, "y": y})
    between = analysis.cka({"x": x.astype("float64")}, features_y={"y": y, "x": x})
    np.testing.assert_allclose(within["cka"], [[1, expected], [expected, 1]], atol=1e-5)
    np.testing.assert_allclose(between["cka"], [[expected, 1]], atol=1e-5)
    assert between["layer_y"].values.tolist() == ["y", "x"] and within.attrs["examples"] == 256
    for arguments, message in [
        (({"x": x}, {"y": y}), r"measured without images.*features_y=.*images=dict"),
        (({"x": x}, None, {"y": y[:9]}), r"same images. Received: arrays of \[9, 256\]"),
        (({"x": x}, None, y), r"\{name: array of shape \(example, \.\.\.\)\}. Received: ndarray"),
        (({},), r"Expected activations to be"),
        (({"x": 3.0},), r"Received: a single number"),
    ]:
        with pytest.raises(ValueError, match=message):
            analysis.cka(*arguments)


def test_counterparts_are_paired_by_name_not_by_position():
    cka = np.array([[0.1, 0.2, 0.3], [0.4, 0.5, 0.6]])
    found = best_matching_layer(cka_result(cka, "ab", ["only", "b", "a"], stderr=cka / 100))
    assert list(found.layer.values) == ["a", "b"]
    np.testing.assert_array_equal(found.cka, [0.3, 0.5])
    np.testing.assert_allclose(found.stderr, [0.003, 0.005])


def test_own_matches_of_permuted_layers():
    layers = ["a", "b", "c", "d"]
    assert layer_match_accuracy(cka_result(np.eye(4), layers, layers)) == (4, 4)
    moved = np.eye(4)[[1, 0, 2, 3]]
    assert layer_match_accuracy(cka_result(moved, layers, layers)) == (2, 4)
    assert layer_match_accuracy(cka_result(np.eye(4), layers, layers[::-1])) == (0, 4)
    assert layer_match_accuracy(cka_result(np.eye(4)[:, :3], layers, layers[:3])) == (3, 3)


def test_models_without_a_layer_in_common():
    strange = cka_result([[1.0]], "a", "b")
    for function in (best_matching_layer, layer_match_accuracy):
        with pytest.raises(ValueError, match=r"layers of the same names. Received: \['a'\]"):
            function(strange)


@pytest.fixture
def vit():
    return vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 5, without_skips=["block01/mlp"])


def taps_of(vit, **names):
    """Features that are some taps of a ViT, renamed."""

    def features(images):
        taps = vit.intermediates(images)
        return {name: taps[tap] for name, tap in names.items()}

    return features


def test_branches_meet_the_skips_of_all_blocks(rng, vit):
    images = rng.normal(size=(12, 16, 16, 3)).astype("float32")
    sites = ("block00/attention", "block01/attention")
    result = analysis.residual_cka(vit_tf.submodel(vit, "*"), images)
    assert list(result.layer_x.values) == [f"{site}/branch" for site in sites]
    assert list(result.layer_y.values) == [f"{site}/skip" for site in sites]
    named = {f"b{i}": f"{site}/branch" for i, site in enumerate(sites)}
    named |= {f"s{i}": f"{site}/skip" for i, site in enumerate(sites)}
    known = analysis.cka(taps_of(vit, **named), images).cka
    np.testing.assert_allclose(
        result.cka, known.sel(layer_x=["b0", "b1"], layer_y=["s0", "s1"]), atol=1e-5
    )
    mlp = analysis.residual_cka(vit_tf.submodel(vit, "*"), images, site="mlp")
    assert (list(mlp.layer_x.values), list(mlp.layer_y.values)) == (
        ["block00/mlp/branch", "block01/mlp/branch"],
        ["block00/mlp/skip"],
    )


@pytest.mark.usefixtures("in_graphs")
def test_a_branch_that_copies_its_skip_is_alike(rng):
    images = rng.normal(size=(12, 2, 2, 3)).astype("float32")

    def features(x):
        return {"a/attention/skip": x, "a/attention/branch": -3 * x, "b/mlp/skip": x**2}

    np.testing.assert_allclose(analysis.residual_cka(features, images).cka, [[1]], atol=1e-6)


@pytest.mark.usefixtures("in_graphs")
def test_depth_is_compared_at_the_norms(rng, vit):
    images = rng.normal(size=(12, 16, 16, 3)).astype("float32")
    result = analysis.depth_cka(vit_tf.submodel(vit, "*"), images)
    layers = [f"block0{i}/{site}/norm" for i in range(2) for site in ("attention", "mlp")]
    assert list(result.layer_x.values) == [*layers, "norm"]
    with eager_steps():
        known = analysis.cka(vit_tf.submodel(vit, "norm", "*/norm"), images)
    np.testing.assert_allclose(result.cka, known.cka, atol=1e-6)


def test_missing_taps_are_named():
    images = np.zeros((8, 2, 2, 1), "float32")
    with pytest.raises(ValueError, match=r"Expected taps named 'attention/branch'. Received: sum"):
        analysis.residual_cka(lambda x: {"sum": x}, images)
    with pytest.raises(ValueError, match=r"Expected taps named 'norm'. Received: pre_norm"):
        analysis.depth_cka(lambda x: {"pre_norm": x, "block/norm1": x}, images)


@pytest.fixture
def models(rng):
    """Two models with CLS on different grids, and one of maps, that have something in common."""
    common = rng.normal(size=(48, 1, 6))
    x, y = (common + rng.normal(size=(48, tokens, 6)) for tokens in (5, 7))
    z = common[:, :, None] + rng.normal(size=(48, 3, 2, 6))
    return {
        "one": ({"early": x**2, "last": x}, TokenGrid(2, 2, 1, 8)),
        "two": ({"last": y}, TokenGrid(2, 3, 1, 8)),
        "maps": ({"last": z}, TokenGrid(3, 2, 0, 8)),
    }


def last_layer_cka(models):
    features = {name: features_of(*tables) for name, tables in models.items()}
    return analysis.last_layer_cka(features, numbers(48, 16))


@pytest.mark.usefixtures("in_graphs")
def test_each_cell_is_the_cka_of_the_parts(models):
    result = last_layer_cka(models)
    parts = {name: tables["last"] for name, (tables, _) in models.items()}
    cls = {name: parts[name][:, 0] for name in ("one", "two")}
    spatial = {"one": parts["one"][:, 1:], "two": parts["two"][:, 1:], "maps": parts["maps"]}
    for part, values in (("cls", cls), ("spatial", spatial)):
        with eager_steps():
            known = analysis.cka(features_of(values), numbers(48, 16))
        names = list(values)
        here = result.sel(part=part, model_x=names, model_y=names)
        np.testing.assert_allclose(here.cka, known.cka, atol=1e-5)
        np.testing.assert_allclose(here.stderr, known.stderr, atol=1e-5)
        np.testing.assert_allclose(np.diag(here.cka), 1, atol=1e-6)
        assert 0.05 < here.cka.sel(model_x="one", model_y="two").item() < 0.95
    for dim in ("model_x", "model_y"):
        assert np.isnan(result.cka.sel(part="cls", **{dim: "maps"})).all()
    assert result.attrs["layers"] == ["last"] * 3 and result.attrs["examples"] == 48


def test_models_of_this_package(rng):
    images = rng.normal(size=(8, 16, 16, 3)).astype("float32")
    vits = {
        pooling: vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 16, 5, pooling=pooling)
        for pooling in ("cls", "gap")
    }
    models = {name: vit_tf.submodel(vit, "norm") for name, vit in vits.items()}
    result = analysis.last_layer_cka(models, images)
    assert np.isfinite(result.cka.sel(part="spatial")).all()
    assert np.isfinite(result.cka.sel(part="cls")).sum() == 1
    with pytest.raises(ValueError, match=r"Expected the last tap to have the 5 tokens.*'pooled'"):
        analysis.last_layer_cka({"pooled": vit_tf.submodel(vits["cls"], "pooled")}, images)


def test_errors_of_last_layers(models):
    constant = models | {"two": ({"last": np.ones((48, 7, 6))}, models["two"][1])}
    for wrong, words in (
        ({}, "at least one model"),
        ({"one": (models["one"][0], None)}, "Expected grid= to be a vit_tf"),
        (constant, "constant layer: cls of two, spatial of two"),
    ):
        with pytest.raises(ValueError, match=words):
            last_layer_cka(wrong)


def test_the_plot_writes_the_numbers(models):
    result = last_layer_cka(models)
    axes = plots.plot_last_layer_cka(result).panels
    assert [ax.get_title() for ax in axes] == ["CLS token", "spatial tokens"]
    for ax, part in zip(axes, ("cls", "spatial"), strict=True):
        drawn = np.ma.filled(ax.images[0].get_array(), np.nan)
        np.testing.assert_array_equal(drawn, result.cka.sel(part=part).values.T)
        assert ax.images[0].get_clim() == (0, 1)
    assert [sum(text.get_text() != "" for text in ax.texts) for ax in axes] == [4, 9]
    assert (
        len(plots.plot_last_layer_cka(result.sel(model_x=["maps"], model_y=["maps"])).panels) == 1
    )
    one_cls = result.sel(model_x=["one", "maps"], model_y=["one", "maps"])
    assert [ax.get_title() for ax in plots.plot_last_layer_cka(one_cls).panels] == [
        "spatial tokens"
    ]


@pytest.mark.slow
@pytest.mark.usefixtures("in_graphs")
def test_cka_of_tiny_and_huge_activations_is_that_of_ordinary_ones():
    rng = np.random.default_rng(0)
    x, y = (rng.normal(size=(24, 10)).astype("float32") for _ in range(2))
    layers = {"x": x, "y": x + y}

    def measured(layers):
        return analysis.cka(layers), analysis.similarities(layers)

    with eager_steps():
        expected, all_expected = measured(layers)
    numeric = [name for name, values in all_expected.items() if values.dtype.kind in "fi"]
    for power in (-20, -30, 15, 20):
        scaled = {name: np.float32(10.0**power) * values for name, values in layers.items()}
        cka, received = measured(scaled)
        np.testing.assert_allclose(cka.cka, expected.cka, rtol=1e-5)
        for name in numeric:
            np.testing.assert_allclose(
                received[name], all_expected[name], rtol=1e-4, err_msg=f"{name}, 1e{power}"
            )
