"""Head ablation of models of which it is known what their heads do."""

import warnings

import numpy as np
import pytest

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.flow.ablation import TOGETHER

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


@pytest.mark.parametrize(("layer", "head"), [(0, 1), (1, 0)])
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


def test_a_last_lone_image_without_another_to_resample_from_is_reported():
    features = vit_tf.submodel(one_head_tells(0, 1), "*/heads", "logits")
    images = bright_and_dark(TOGETHER // (LAYERS * HEADS + 1) + 1)
    count = len(images[0])
    with pytest.warns(UserWarning, match=f"1 of {count} images are left out"):
        result = analysis.head_ablation(features, images, replacement="resample")
    assert (result.attrs["examples"], result.attrs["remainder"]) == (count - 1, 1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        zero = analysis.head_ablation(features, images)
    assert (zero.attrs["examples"], zero.attrs["remainder"]) == (count, 0)
    assert zero.attrs["num_classes"] == 2
