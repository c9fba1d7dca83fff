import keras
import numpy as np
import pytest
import tensorflow as tf
from oracles import randomize
from tables import features_of, numbers

import vit_tf
from vit_tf import TokenGrid, analysis


def test_ratio_and_cosine_equal_the_definition(rng):
    vit = vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 5, without_skips=["block01/mlp"])
    images = rng.normal(size=(7, 16, 16, 3)).astype("float32")
    data = tf.data.Dataset.from_tensor_slices(images).batch(3)
    result = analysis.skip_ratio(vit_tf.submodel(vit, "*"), data)
    sites = ["block00/attention", "block00/mlp", "block01/attention"]
    assert list(result.layer) == sites and result.attrs["prefix"] == 1
    taps = vit.intermediates(images)
    for site in sites:
        skip, branch = (np.float64(taps[f"{site}/{end}"]) for end in ("skip", "branch"))
        norms = np.linalg.norm(skip, axis=-1), np.linalg.norm(branch, axis=-1)
        ratio = (norms[0] / norms[1]).mean(0)
        cosine = ((skip * branch).sum(-1) / (norms[0] * norms[1])).mean(0)
        np.testing.assert_allclose(result.norm_ratio.sel(layer=site), ratio, rtol=1e-4)
        np.testing.assert_allclose(result.cosine.sel(layer=site), cosine, atol=1e-5)


def test_known_vectors_and_maps_of_different_sizes():
    taps = {"a/skip": [[3.0, 0], [0, 4]], "a/branch": [[0.0, 1], [0, -2]]}
    taps |= {"b/skip": np.ones((2, 2, 3)), "b/branch": np.full((2, 2, 3), 0.5)}
    tables = {tap: np.stack([value] * 3) for tap, value in taps.items()}
    result = analysis.skip_ratio(features_of(tables, TokenGrid(1, 1, 1, 8)), numbers(3))
    np.testing.assert_allclose(result.norm_ratio, [[3, 2, np.nan, np.nan], [2, 2, 2, 2]])
    np.testing.assert_allclose(result.cosine[0, :2], [0, -1], atol=1e-6)
    np.testing.assert_allclose(result.cosine[1], 1, rtol=1e-6)
    np.testing.assert_allclose(result.negative_share, [0, 0])


def test_the_share_of_negative_values_counts_those_of_skips_alone():
    skip = np.array([[[1.0, -1], [0, -2]], [[1, 2], [-3, -4]], [[0, 0], [0, 1]]])
    features = features_of({"a/skip": skip, "a/branch": -np.ones((3, 2, 2))})
    result = analysis.skip_ratio(features, numbers(3))
    np.testing.assert_allclose(result.negative_share, [4 / 12], rtol=1e-6)


def test_examples_without_a_branch_are_left_out_and_counted():
    skip = np.array([2.0, 4.0, 8.0, 0.0])[:, None, None]
    branch = np.array([[1.0, 0], [-1.0, 0], [0.0, 0], [1.0, 0]])[:, :, None]
    features = features_of({"a/skip": np.tile(skip, (1, 2, 1)), "a/branch": branch})
    result = analysis.skip_ratio(features, numbers(4))
    np.testing.assert_allclose(result.norm_ratio, [[3.0, np.nan]])
    np.testing.assert_allclose(result.cosine, [[0.0, np.nan]])
    assert result.attrs["left_out"] == pytest.approx(6 / 8)


@pytest.mark.parametrize("measure", [analysis.skip_ratio, analysis.branch_norms])
def test_layers_without_skips(measure):
    with pytest.raises(ValueError, match="'NAME/skip'"):
        measure(lambda x: {"sum": x}, np.zeros((3, 2, 2, 1), "float32"))


def test_branches_that_are_not_finite_are_named():
    features = features_of({"a/skip": np.ones((3, 2)), "a/branch": np.full((3, 2), np.nan)})
    with pytest.raises(ValueError, match=r"finite.*a"):
        analysis.skip_ratio(features, numbers(3))


def test_norms_of_every_image_and_the_mean_of_their_ratio(rng):
    vit = vit_tf.ViT((8, 8, 3), 4, 2, 2, 8, 16, 5)
    randomize(vit)
    images = rng.uniform(-1, 1, size=(3, 8, 8, 3)).astype("float32")
    features = vit_tf.submodel(vit, "*/skip", "*/branch")
    result = analysis.branch_norms(features, images)
    taps = {tap: x.numpy().astype(float) for tap, x in features(images).items()}
    for what in ("skip", "branch"):
        expected = [np.sqrt((taps[f"{site}/{what}"] ** 2).sum(-1)) for site in result.layer.values]
        np.testing.assert_allclose(result[what], np.moveaxis(expected, 0, 1), rtol=1e-5)
    ratio = analysis.skip_ratio(features, images).norm_ratio
    np.testing.assert_allclose((result.skip / result.branch).mean("example"), ratio, rtol=1e-5)


def test_tokens_that_a_stage_does_not_have_are_not_known(rng):
    bit = vit_tf.BiT((16, 16, 3), units=(1, 1), num_classes=5, stem="small", width_factor=0.5)
    images = rng.uniform(-1, 1, size=(2, 16, 16, 3)).astype("float32")
    result = analysis.branch_norms(vit_tf.submodel(bit, "*/skip", "*/branch"), images)
    counts = result.skip.notnull().sum("token")[0].values
    assert counts[0] == 4 * counts[1] == result.sizes["token"]


def post_activation_resnet(adds_first):
    """A functional model like ResNet50 of keras.applications: activations after the sums."""
    x = images = keras.Input((8, 8, 3))
    x = keras.layers.Conv2D(4, 3, padding="same", activation="relu", name="stem")(x)
    for number, width in enumerate((4, 8, 8), 1):
        shortcut, stride = x, 1 + (width != x.shape[-1])
        if stride > 1:
            shortcut = keras.layers.Conv2D(width, 1, stride, name=f"block{number}_0_conv")(x)
        y = keras.layers.Conv2D(width, 3, stride, "same", name=f"block{number}_1_conv")(x)
        y = keras.layers.ReLU(name=f"block{number}_1_relu")(y)
        y = keras.layers.Conv2D(width, 3, padding="same", name=f"block{number}_2_conv")(y)
        add = keras.layers.Add(name=f"block{number}_add")
        x = add([shortcut, y]) if adds_first else y + shortcut
        x = keras.layers.ReLU(name=f"block{number}_out")(x)
    x = keras.layers.GlobalAveragePooling2D()(x)
    return keras.Model(images, keras.layers.Dense(5)(x))


@pytest.mark.parametrize(
    ("adds_first", "is_inside"),
    [
        (False, True),
        *(pytest.param(*case, marks=pytest.mark.slow) for case in ((True, False), (True, True))),
        pytest.param(False, False, marks=pytest.mark.slow),
    ],
)
def test_skips_of_a_post_activation_resnet_are_those_before_its_sums(adds_first, is_inside, rng):
    """The skip is the shorter path, whatever the order of the terms, also of a model in a model."""
    keras.utils.set_random_seed(1)
    inner = post_activation_resnet(adds_first)
    model = keras.Sequential([keras.Input((8, 8, 3)), inner]) if is_inside else inner
    images = rng.normal(size=(5, 8, 8, 3)).astype("float32")
    result = analysis.skip_ratio(model, images)
    assert result.sizes["layer"] == 3
    names = {
        "stem": "block1_2_conv",
        "block2_0_conv": "block2_2_conv",
        "block2_out": "block3_2_conv",
    }
    layers = [inner.get_layer(name).output for name in (*names, *names.values())]
    values = [np.float64(x) for x in keras.Model(inner.inputs, layers)(images)]
    for index in range(3):
        skip, branch = (x.reshape(5, -1, x.shape[-1]) for x in values[index::3])
        norms = np.linalg.norm(skip, axis=-1), np.linalg.norm(branch, axis=-1)
        defined = (norms[0] > 0) & (norms[1] > 0)
        ratio = np.divide(*norms, where=defined, out=np.zeros_like(norms[0]))
        counts = defined.sum(axis=0)
        expected = np.divide(
            ratio.sum(axis=0), counts, where=counts > 0, out=np.full(counts.shape, np.nan)
        )
        actual = result.norm_ratio[index, : len(counts)]
        np.testing.assert_allclose(actual, expected, rtol=1e-4)
    # An identity skip is what a ReLU returned; a projected shortcut has negative values.
    np.testing.assert_array_equal(result.negative_share > 0, [False, True, False])


def test_a_sum_of_equal_paths_and_one_with_a_table_are_no_residual_sums():
    x = images = keras.Input((8, 8, 3))
    towers = [keras.layers.Conv2D(4, 3, padding="same")(x) for _ in range(2)]
    x = keras.layers.Add()(towers) + np.ones((1, 8, 8, 4), "float32")
    model = keras.Model(images, keras.layers.Conv2D(4, 3)(x))
    with pytest.raises(ValueError, match="skips and branches"):
        analysis.skip_ratio(model, np.zeros((4, 8, 8, 3), "float32"))
