import numpy as np
import pytest
from attention_heads import OBLONG, random_attention
from tables import features_of, numbers

import vit_tf
from vit_tf import analysis

pytestmark = pytest.mark.usefixtures("without_graphs")

PATTERNS = ("block*/attention/weights", "block*/*/skip", "block*/*/sum")


def with_skips(weights, rng):
    """The taps of attention, and skips and sums of a pre-norm model around them."""
    examples, _, tokens, _ = next(iter(weights.values())).shape
    taps, x = {}, rng.normal(size=(examples, tokens, 2))
    for tap, values in weights.items():
        block = tap.split("/")[0]
        taps[tap] = values
        for site in ("attention", "mlp"):
            taps[f"{block}/{site}/skip"] = x
            taps[f"{block}/{site}/sum"] = x = x + rng.normal(size=x.shape)
    return taps


def rollout_by_loop(weights):
    """Rollout of one image after each layer, from a list of (head, query, key)."""
    tokens = weights[0].shape[-1]
    share, after = np.eye(tokens), []
    for attention in weights:
        mixed = 0.5 * attention.mean(0) + 0.5 * np.eye(tokens)
        mixed /= mixed.sum(axis=-1, keepdims=True)
        share = np.array([[mixed[q] @ share[:, k] for k in range(tokens)] for q in range(tokens)])
        after.append(share)
    return np.array(after)


def small_vit(**options):
    return vit_tf.ViT((8, 12, 3), 4, 2, 2, 8, 16, 5, **options)


@pytest.fixture
def images(rng):
    return rng.normal(size=(5, 8, 12, 3)).astype("float32")


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("row_sum", [1, 0.3])
def test_rollout_is_the_product_of_each_image_averaged(row_sum, rng):
    weights = random_attention(rng, OBLONG, layers=3)
    weights = {layer: row_sum * values for layer, values in weights.items()}
    features = features_of(with_skips(weights, rng), OBLONG)
    data = numbers(5, batch=2)
    expected = np.array([rollout_by_loop(item) for item in zip(*weights.values(), strict=True)])
    result = analysis.attention_rollout(features, data)
    np.testing.assert_allclose(result, expected.mean(0), rtol=1e-5)
    assert result.layer.values.tolist() == list(weights)
    assert (result.attrs["examples"], result.attrs["prefix"]) == (5, 1)
    single = analysis.rollout_of_images(features, data)
    np.testing.assert_allclose(single, expected[:, -1], rtol=1e-5)
    np.testing.assert_allclose(result.sum("key"), 1, rtol=1e-6)


def test_later_layers_read_what_earlier_ones_made(rng):
    to_two, to_seven = (np.tile(np.eye(13)[key], (1, 1, 13, 1)) for key in (2, 7))
    weights = {"block00/attention/weights": to_two, "block01/attention/weights": to_seven}
    result = analysis.attention_rollout(features_of(with_skips(weights, rng), OBLONG), numbers(1))
    # Token 4 after layer 2: half of token 7 after layer 1, itself half of 2, and half of its own.
    np.testing.assert_array_equal(result[1, 4, [2, 4, 7]], [0.5, 0.25, 0.25])


def test_attentions_in_parallel_are_one_with_the_heads_of_both(rng):
    weights = random_attention(rng, OBLONG, layers=2)
    first, second = weights
    taps = with_skips(weights, rng)
    more = random_attention(rng, OBLONG, layers=2)
    # The second attention of the same block, of one head less, comes before the sum of both.
    taps = {first: taps[first], f"{first}@2": more[first][:, 1:], **taps}
    both = [np.concatenate([weights[first], more[first][:, 1:]], axis=1), weights[second]]
    expected = np.array([rollout_by_loop(item) for item in zip(*both, strict=True)]).mean(0)
    result = analysis.attention_rollout(features_of(taps, OBLONG), numbers(5))
    np.testing.assert_allclose(result, expected, rtol=1e-5)
    assert result.layer.values.tolist() == [first, second]


@pytest.mark.parametrize("pooling", ["cls", "gap"])
def test_a_vit_is_followed(images, pooling):
    vit = small_vit(pooling=pooling)
    result = analysis.attention_rollout(vit_tf.submodel(vit, *PATTERNS), images)
    taps = vit.intermediates(images)
    weights = [taps[f"block{n:02}/attention/weights"].numpy().astype(float) for n in range(2)]
    expected = np.mean([rollout_by_loop(item) for item in zip(*weights, strict=True)], axis=0)
    np.testing.assert_allclose(result, expected, rtol=1e-5)


@pytest.mark.parametrize(
    ("removed", "patterns", "words"),
    [
        ("block01", PATTERNS, "Missing: block01/attention/skip"),
        ("block01/mlp", PATTERNS, "Missing: block01/mlp/skip"),
        ("block00/attention", PATTERNS, "Missing: block00/attention/skip"),
        (None, PATTERNS[:1], "Missing: block00/attention/skip, block00/attention/sum"),
        (None, ["block*/attention/*"], "between block00/attention/sum and block01/attention/sk"),
    ],
)
def test_a_model_without_skips_or_taps_that_do_not_show_them_are_refused(
    images, removed, patterns, words
):
    vit = small_vit(without_skips=(removed,) if removed else ())
    with pytest.raises(ValueError, match=words):
        analysis.attention_rollout(vit_tf.submodel(vit, *patterns), images)


def test_post_norm_and_foreign_models_and_attention_that_is_not_finite_are_refused(rng):
    taps = with_skips(random_attention(rng, OBLONG), rng)
    total = taps["block00/mlp/sum"]
    normalised = (total - total.mean(-1, keepdims=True)) / total.std(-1, keepdims=True)
    post_norm = taps | {"block01/attention/skip": normalised}
    nan = taps["block01/attention/weights"].copy()
    nan[2] = np.nan
    not_finite = taps | {"block01/attention/weights": nan}
    foreign = {"softmax": np.full((5, 1, 13, 13), 1 / 13)}
    mean, single = analysis.attention_rollout, analysis.rollout_of_images
    for function, tables, words in (
        (mean, post_norm, "post-norm.*block00/mlp/sum and block01/attention/skip"),
        (single, post_norm, "post-norm"),
        (mean, not_finite, "finite.*block01/attention/weights"),
        (single, not_finite, "finite.*example 2"),
        (mean, foreign, r"Missing: block\*/attention/weights"),
    ):
        with pytest.raises(ValueError, match=words):
            function(features_of(tables, OBLONG), numbers(5))
