import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from attention_heads import OBLONG, iou_by_loop, random_attention
from tables import features_of, numbers

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.heads.saliency import most_attended

pytestmark = pytest.mark.usefixtures("without_graphs")

SQUARE = TokenGrid(2, 2, 1, 4)


def saliency(weights, masks, grid=OBLONG, **options):
    data = tf.data.Dataset.zip(
        numbers(len(masks), batch=2), tf.data.Dataset.from_tensor_slices(masks).batch(2)
    )
    return analysis.attention_saliency(features_of(weights, grid), data, **options)


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.parametrize("mass", [0.6, 0.25])
@pytest.mark.parametrize("prefix", [0, 1, 3])
def test_iou_is_that_of_loops_over_images_heads_and_pixels(rng, prefix, mass):
    grid = TokenGrid(3, 4, prefix, 8)
    weights = random_attention(rng, grid)
    masks = rng.uniform(size=(5, 24, 32)) < np.array([0.1, 0.3, 0.5, 0.7, 0.9])[:, None, None]
    result = saliency(weights, masks, grid, mass=mass)
    assert result["query"].values.tolist() == ["cls", "spatial"][not prefix :]
    assert result.attrs["mass"] == mass and result.attrs["left_out"] == 0
    for query in result["query"].values:
        for layer, attention in enumerate(weights.values()):
            rows = attention[:, :, :1] if query == "cls" else attention[:, :, prefix:]
            maps = rows.mean(2)[..., prefix:]
            maps = maps / maps.sum(-1, keepdims=True)
            pairs = list(zip(maps, masks, strict=True))
            expected = [
                np.mean([iou_by_loop(m[h], mask, mass) for m, mask in pairs]) for h in range(3)
            ]
            here = result.sel(query=query).isel(layer=layer)
            np.testing.assert_allclose(here.iou, expected, rtol=1e-5)
            assert here.best_head.item() == np.argmax(expected)
            assert here.best_iou.item() == pytest.approx(max(expected), rel=1e-5)


def test_a_mask_of_pixels_is_its_share_of_each_patch():
    half = np.zeros((1, 8, 8), bool)
    half[:, :4, :2] = True  # half of the first patch
    soft = np.array([[[0.5, 0], [0, 0]]])
    weights = {"block00/attention/weights": np.full((1, 1, 5, 5), [0.1, 0.9, 0, 0, 0])}
    for masks in (half, half.astype("int64"), half.astype("float32"), soft):
        result = saliency(weights, masks, SQUARE)
        np.testing.assert_allclose(result.iou, 0.5, rtol=1e-6)


def test_most_attended_keeps_the_fewest_tokens_that_hold_the_mass():
    maps = tf.constant([[0.1, 0.2, 0.4, 0.3], [0.25, 0.25, 0.25, 0.25], [0.6, 0.2, 0.1, 0.1]])
    stored = most_attended(maps, 0.6).numpy()
    np.testing.assert_array_equal(stored, [[0, 0, 1, 1], [1, 1, 1, 0], [1, 0, 0, 0]])
    even = tf.fill((1, 24), np.float32(1 / 24))
    assert most_attended(even, 1 / 3).numpy().sum() == 8  # not 9, by rounding
    assert most_attended(even, 1.0).numpy().sum() == 24


def test_images_without_an_object_are_left_out(rng):
    weights = random_attention(rng, OBLONG, examples=3)
    masks = rng.uniform(size=(3, 3, 4)) < 0.5
    masks[1] = False
    result = saliency(weights, masks)
    others = {tap: values[[0, 2]] for tap, values in weights.items()}
    own = ["iou", "best_iou", "best_head", "left_out"]  # without those of batches, which differ
    xr.testing.assert_allclose(result[own], saliency(others, masks[[0, 2]])[own])
    assert (result.attrs["left_out"], result.attrs["examples"]) == (1, 3)


def test_batches_are_left_out_and_masks_of_other_images_are_chance(rng):
    """Without a batch the IoU is that of the other; other masks are those of the next image."""
    weights, masks = random_attention(rng, OBLONG, examples=4), rng.uniform(size=(4, 3, 4)) < 0.5
    whole = saliency(weights, masks)
    halves = [
        saliency({tap: x[part] for tap, x in weights.items()}, masks[part])
        for part in (slice(2), slice(2, None))
    ]
    for number, other in ((0, halves[1]), (1, halves[0])):
        np.testing.assert_allclose(whole["leave_one_out"][number], other["iou"], rtol=1e-5)
    swapped = saliency({tap: x[:2] for tap, x in weights.items()}, masks[[1, 0]])
    np.testing.assert_allclose(halves[0]["other_iou"], swapped["iou"], rtol=1e-5)


def test_a_vit_streams_as_it_computes(rng):
    vit = vit_tf.ViT((8, 12, 3), 4, 1, 2, 8, 16, 5)
    images = rng.normal(size=(3, 8, 12, 3)).astype("float32")
    masks = rng.uniform(size=(3, 8, 12)) < 0.5
    features = vit_tf.submodel(vit, "block*/attention/weights")
    result = analysis.attention_saliency(features, (images, masks))
    tap = "block00/attention/weights"
    reference = saliency({tap: vit.intermediates(images)[tap].numpy()}, masks, vit.token_grid)
    np.testing.assert_allclose(result.iou, reference.iou, rtol=1e-6)
    assert result.attrs["model"] == vit.name


def one_pixel(value):
    masks = np.zeros((2, 24, 32), "float32")
    masks[0, 0, 0] = value
    return masks


@pytest.mark.slow
@pytest.mark.parametrize(
    ("masks", "options", "word"),
    [
        (np.ones((2, 3, 4)), {"mass": 0}, "mass=0"),
        (np.ones((2, 4, 3)), {}, "3 x 4 tokens or 24 x 32 pixels"),
        (one_pixel(255), {}, r"\[0, 1\]"),
        (one_pixel(-1), {}, r"\[0, 1\]"),
        (one_pixel(np.nan), {}, r"\[0, 1\]"),
        (np.zeros((2, 3, 4)), {}, "masks are empty"),
    ],
)
def test_errors(rng, masks, options, word):
    with pytest.raises(ValueError, match=word):
        saliency(random_attention(rng, OBLONG, examples=2), masks, **options)


def test_masks_belong_to_images_that_the_model_would_crop(rng):
    vit = vit_tf.ViT((16, 16, 3), 4, 1, 2, 8, 8, 3)
    vit.preprocessing = vit_tf.Preprocessing((16, 16), crop=0.5)
    images = rng.integers(0, 256, (4, 16, 16, 3)).astype("uint8")
    masks = np.zeros((4, 16, 16), bool)
    masks[:, :8] = True
    expected = analysis.attention_saliency(vit, (images.astype("float32") / 127.5 - 1, masks))
    received = analysis.attention_saliency(vit, (images, masks))
    np.testing.assert_allclose(received.iou, expected.iou, atol=1e-5)


def test_attention_that_is_not_finite_is_named():
    weights = {"block01/attention/weights": np.full((2, 1, 13, 13), np.nan)}
    with pytest.raises(ValueError, match=r"finite.*block01"):
        saliency(weights, np.ones((2, 3, 4)))
