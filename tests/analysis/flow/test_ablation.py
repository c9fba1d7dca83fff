"""Ablation and patching beside runs one by one in NumPy, and where the answer is known."""

import warnings

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import analysis, edits, intervene
from vit_tf.analysis.flow.ablation import TOGETHER

pytestmark = pytest.mark.usefixtures("without_graphs")

LAYERS, HEADS, WIDTH, SIDE = 2, 2, 8, 16


def one_head_tells(layer, head):
    """A ViT whose CLS token learns the class, the brightness of the image, through one head only.

    All heads look everywhere alike. What they read there is the brightness of a patch, which only
    the value and the output of the one head hand on, to a channel that the end of the model reads.
    """
    vit = vit_tf.ViT((SIDE, SIDE, 1), 8, LAYERS, HEADS, WIDTH, 8, num_classes=2)
    rng = np.random.default_rng(0)
    for weight in vit.weights:
        if not weight.path.endswith("gamma"):
            weight.assign(0 * weight)
    kernel = np.zeros(vit.embedding.patches.kernel.shape)
    kernel[..., 0], kernel[..., 1] = 1 / kernel[..., 0].size, -1 / kernel[..., 0].size
    vit.embedding.patches.kernel.assign(kernel)
    for number, block in enumerate(vit.blocks):
        noise = rng.normal(0, 0.1, (WIDTH, WIDTH))
        noise[:, :4] = 0  # only the one head writes where classes are read, none the brightness
        value = rng.normal(0, 1, (WIDTH, WIDTH))
        if number == layer:
            first = head * WIDTH // HEADS
            value[:, first], noise[first] = 0, 0
            value[0, first], noise[first, 2], noise[first, 3] = 1, 1, -1
        block.value.kernel.assign(value)
        block.out.kernel.assign(noise)
    read = np.zeros((WIDTH, 2))
    # Their difference, which normalisation keeps at zero; powers of two are exact.
    read[2], read[3] = (-4, 4), (4, -4)
    vit.head.kernel.assign(read)
    return vit


def bright_and_dark(count=40):
    rng = np.random.default_rng(1)
    labels = np.arange(count) % 2
    images = rng.uniform(0.2, 1, (count, SIDE, SIDE, 1)) * (2 * labels - 1)[:, None, None, None]
    return images.astype("float32"), labels


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize(("layer", "head"), [(0, 1), pytest.param(1, 0, marks=pytest.mark.slow)])
def test_the_one_head_that_carries_the_class_is_found(layer, head):
    vit = one_head_tells(layer, head)
    features = vit_tf.submodel(vit, "*/heads", "logits")
    result = analysis.head_ablation(features, bright_and_dark())
    assert float(result.accuracy) == 1
    expected = np.zeros((LAYERS, HEADS))
    expected[layer, head] = -0.5  # all images look alike without it
    np.testing.assert_allclose(result.accuracy_change, expected)
    for name in ("loss_change", "output_change"):
        others = np.delete(result[name].values.ravel(), HEADS * layer + head)
        assert result[name].values[layer, head] > 0.1 and np.abs(others).max() < 1e-6


@pytest.mark.slow
@pytest.mark.usefixtures("in_graphs")  # with batches of any size, as without them 1 is static
def test_a_last_lone_image_without_another_to_resample_from_is_reported():
    features = vit_tf.submodel(one_head_tells(0, 1), "*/heads", "logits")
    size = TOGETHER // (LAYERS * HEADS + 1)
    count = size + 1
    images = tf.data.Dataset.from_tensor_slices(bright_and_dark(count)).batch(size)
    with pytest.warns(UserWarning, match=f"1 of {count} images are left out"):
        result = analysis.head_ablation(features, images, replacement="resample")
    assert (result.attrs["examples"], result.attrs["remainder"]) == (count - 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zero = analysis.head_ablation(features, images)
    assert (zero.attrs["examples"], zero.attrs["remainder"]) == (count, 0)
    assert zero.attrs["num_classes"] == 2


SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8, "num_classes": 3}


@pytest.fixture(scope="module")
def vit():
    model = vit_tf.ViT((16, 16, 3), 8, registers=1, **SIZES)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        weight.assign(np.asarray(weight) + rng.normal(0, 0.3, weight.shape))
    return model


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    return rng.uniform(-1, 1, (7, 16, 16, 3)).astype("float32"), rng.integers(0, 3, 7)


def log_softmax(scores):
    scores = np.asarray(scores, np.float64)
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


@pytest.fixture(scope="module")
def expected_effects(vit, data):
    """Function of an intervention to mean and standard error of each change, by the formulas."""
    before = log_softmax(vit(data[0]))
    return lambda edited: effects(before, vit, edited, data)


def effects(before, model, edited, data):
    images, labels = data
    after = log_softmax(intervene(model, edited)(images)["logits"])
    rows = np.arange(len(labels))
    changes = {
        "accuracy_change": 1.0 * (after.argmax(1) == labels) - (before.argmax(1) == labels),
        "loss_change": before[rows, labels] - after[rows, labels],
        "output_change": (np.exp(before) * (before - after)).sum(1),
    }
    return {n: (x.mean(), x.std(ddof=1) / np.sqrt(len(x))) for n, x in changes.items()}


def assert_effects(cell, expected):
    for name, (mean, error) in expected.items():
        np.testing.assert_allclose(cell[name], mean, atol=1e-5, err_msg=name)
        np.testing.assert_allclose(cell[f"{name}_stderr"], error, atol=1e-5, err_msg=name)


def test_skips_and_branches_are_those_removed_one_by_one(vit, data, expected_effects):
    features = vit_tf.submodel(vit, "*/skip", "*/branch", "logits")
    result = analysis.skip_ablation(features, data)
    assert result.layer.values.tolist() == ["block00", "block01"]
    for block in result.layer.values:
        for path in ("skip", "branch"):
            edited = {f"{block}/*/{path}": edits.zero}
            cell = result.sel(layer=block, path=path)
            assert_effects(cell, expected_effects(edited))


def test_removal_of_skips_is_the_model_built_without_them(vit, data):
    without = vit_tf.ViT((16, 16, 3), 8, registers=1, without_skips=["block01"], **SIZES)
    without.set_weights(vit.get_weights())
    found = intervene(vit, {"block01/*/skip": edits.zero})(data[0])["logits"]
    np.testing.assert_allclose(found, without(data[0]), rtol=1e-6, atol=1e-6)


def test_tokens_go_by_their_rank_of_attention(vit, data, expected_effects):
    weights = "block00/attention/weights"
    features = vit_tf.submodel(vit, "embedding", weights, "logits")
    result = analysis.token_ablation(features, data, shares=(0.5, 1.0), replacement="mean")
    orders = ("random", "largest", "attended", "unattended")
    assert set(result.tokens.values) == {"cls", "registers", *orders}
    taps = features(data[0])
    mean = edits.constant(taps["embedding"].numpy().mean(axis=0))
    received = taps[weights].numpy()[:, :, :2, 2:].mean(axis=(1, 2))
    order = np.argsort(-received, axis=1, kind="stable")
    norms = np.linalg.norm(taps["embedding"].numpy()[:, 2:], axis=2)
    largest = np.argsort(-norms, axis=1, kind="stable")[:, :2]
    halves = {"attended": order[:, :2], "unattended": order[:, 2:], "largest": largest}
    for name, chosen in halves.items():
        mask = np.zeros((7, 6, 1), bool)
        np.put_along_axis(mask[:, :, 0], chosen + 2, True, axis=1)
        expected = expected_effects({"embedding": edits.where(mask, mean)})
        assert_effects(result.sel(tokens=name, share=0.5), expected)
    everything = [result.sel(tokens=n, share=1.0) for n in orders]
    expected = expected_effects({"embedding": edits.tokens([2, 3, 4, 5], mean)})
    for cell in everything:
        assert_effects(cell, expected)
    register = expected_effects({"embedding": edits.tokens([1], mean)})
    assert_effects(result.sel(tokens="registers", share=1.0), register)
    assert np.isnan(result.output_change.sel(tokens="cls", share=0.5))


def test_patching_the_token_that_is_read_makes_the_other_run(vit, data):
    images, others = data[0], data[0][::-1].copy()
    images, others = images[:3], others[:3]
    features = vit_tf.submodel(vit, "block*/mlp/sum", "logits")
    result = analysis.activation_patching(features, (images, others))
    assert result.transfer.dims == ("layer", "token") and result.transfer.shape == (2, 6)
    last = result.transfer.sel(layer="block01/mlp/sum").values
    np.testing.assert_allclose(last, [1, 0, 0, 0, 0, 0], atol=1e-5)  # the head reads CLS
    plain, whole = (np.asarray(vit(x), np.float64) for x in (images, others))
    values = features(others)
    tap = "block00/mlp/sum"
    for token in range(6):
        edited = {tap: edits.tokens(token, edits.constant(values[tap]))}
        found = np.asarray(intervene(vit, edited)(images)["logits"], np.float64)
        gone, way = ((found - plain) * (whole - plain)).sum(1), ((whole - plain) ** 2).sum(1)
        ratio = gone.sum() / way.sum()
        cell = result.sel(layer=tap, token=token)
        np.testing.assert_allclose(cell.transfer, ratio, atol=1e-5)
        error = np.sqrt(((gone - ratio * way) ** 2).sum() * 3 / 2) / way.sum()
        np.testing.assert_allclose(cell.stderr, error, atol=1e-4)
    with pytest.raises(ValueError, match="scores of both images are equal"):
        analysis.activation_patching(features, (images, images))


@pytest.mark.slow
def test_patching_between_two_models_ends_at_the_other_model(vit, data):
    other = vit_tf.ViT((16, 16, 3), 8, registers=1, **SIZES)
    other.set_weights([1.5 * w for w in vit.get_weights()])
    other.norm.set_weights(vit.norm.get_weights())
    other.head.set_weights(vit.head.get_weights())
    patterns = ("block01/mlp/sum", "logits")
    features, source = (vit_tf.submodel(model, *patterns) for model in (vit, other))
    same = (data[0][:2], data[0][:2])
    result = analysis.activation_patching(features, same, source=source, tokens=[0, 3])
    np.testing.assert_allclose(result.transfer, [[1, 0]], atol=1e-5)


@pytest.mark.parametrize(
    ("measure", "taps", "options", "words"),
    [
        (analysis.token_ablation, ("embedding",), {"shares": (0,)}, r"shares in .*\(0,\)"),
        (analysis.token_ablation, ("*/sum",), {}, "one layer of tokens"),
        (analysis.skip_ablation, ("embedding",), {}, "'NAME/skip' or 'NAME/branch'"),
        (analysis.head_ablation, ("embedding",), {}, "outputs of heads"),
        (analysis.head_ablation, ("*/heads",), {"replacement": "noise"}, "replacement"),
    ],
)
def test_mistakes_are_told(vit, data, measure, taps, options, words):
    with pytest.raises(ValueError, match=words):
        measure(vit_tf.submodel(vit, *taps, "logits"), data, **options)


def test_features_that_are_no_submodel_and_labels_of_other_classes_are_refused(vit, data):
    with pytest.raises(ValueError, match="which can be run with interventions"):
        analysis.head_ablation(lambda images: {"logits": images}, data)
    heads = vit_tf.submodel(vit, "block00/*/heads", "logits")
    with pytest.raises(ValueError, match="integer labels"):
        analysis.head_ablation(heads, (data[0], data[1] + 2))


@pytest.mark.usefixtures("in_graphs")
def test_heads_that_share_values_are_refused():
    """Of a model of grouped queries: 4 heads share 2 values; and of one with as many of both."""

    def model_with(attention):
        keras.utils.set_random_seed(0)
        images = keras.Input((SIDE, SIDE, 1))
        x = keras.layers.Reshape((4, 16))(keras.layers.Conv2D(16, 8, 8)(images))
        x = keras.layers.Add()([x, attention(x, x)])
        x = keras.layers.GlobalAveragePooling1D()(x)
        return keras.Model(images, keras.layers.Dense(2, name="scores")(x))

    data = bright_and_dark(8)
    grouped = model_with(keras.layers.GroupQueryAttention(4, 4, 2, name="attention"))
    with pytest.raises(ValueError, match="Outputs of attention heads not found"):
        analysis.head_ablation(grouped, data)
    submodel = vit_tf.submodel(grouped, "attention/value", "scores")
    for model, layers in ((grouped, "*/value"), (submodel, None)):
        with pytest.raises(ValueError, match="attention/value, grouped-query attention"):
            analysis.head_ablation(model, data, "scores", layers=layers)
    single = model_with(keras.layers.GroupQueryAttention(4, 4, 4, name="attention"))
    assert analysis.head_ablation(single, data).sizes["head"] == 4
