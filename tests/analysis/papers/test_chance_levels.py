"""Chance levels of clusters: raw pixels and mean colours, against scikit-learn on NumPy arrays."""

import numpy as np
import pytest
import tensorflow as tf
from sklearn.cluster import KMeans

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.figures.data import make_data
from vit_tf.analysis.figures.measure import measure_all
from vit_tf.analysis.figures.models import LoadedModel, baselines_of, prepare_models
from vit_tf.analysis.papers.walmer.section5_clusters import (
    _over_untrained,
    clustering_of,
    masked_clusters_of,
)
from vit_tf.analysis.similarity.localization import input_patches
from vit_tf.features.conversion import facts_of

COUNT, CLASSES, SIDE = 48, 3, 16


@pytest.fixture(scope="module")
def measured(tmp_path_factory):
    """Clusters of images and objects whose class is their colour, by an untrained ViT."""
    rng = np.random.default_rng(0)
    labels = np.arange(COUNT) % CLASSES
    images = rng.uniform(-1, 1, (COUNT, SIDE, SIDE, 3)).astype("float32")
    images[np.arange(COUNT), :, :, labels] = 0.4 * images[np.arange(COUNT), :, :, labels] + 0.6
    masks = np.zeros((COUNT, 1, SIDE, SIDE), bool)
    masks[:, :, 4:12, 8:] = True
    objects = tf.data.Dataset.from_tensor_slices((images, masks, labels[:, None])).batch(16)
    folder = tmp_path_factory.mktemp("chance")
    data = make_data((images, labels), None, None, {"objects": objects})
    vit = vit_tf.ViT((SIDE, SIDE, 3), 4, 2, 2, 8, 8, CLASSES)
    loaded = LoadedModel("ViT", vit, facts_of(vit).expected_images)
    (model, *_), _, _ = prepare_models([loaded], data, folder, copies=1)
    wanted = [clustering_of(model), masked_clusters_of(model, "objects")]
    results, problems = measure_all(wanted, data, folder / "results")
    assert not problems
    return images, labels, results, model


def purity_of(x, labels):
    clusters = KMeans(CLASSES, n_init=10, random_state=0).fit_predict(x)
    return sum(np.bincount(labels[clusters == one]).max() for one in range(CLASSES)) / len(labels)


def test_clusters_of_images_state_the_purity_of_their_pixels(measured):
    images, labels, results, _ = measured
    small = images.reshape(COUNT, 8, 2, 8, 2, 3).mean(axis=(2, 4)).reshape(COUNT, -1)
    attrs = results["clustering_first.vit"].attrs
    assert attrs["purity_raw_pixels"] == pytest.approx(purity_of(small, labels))
    assert attrs["purity_mean_colour"] == pytest.approx(1.0)
    assert purity_of(images.mean(axis=(1, 2)), labels) == 1


def test_clusters_of_objects_state_the_purity_of_patches_under_the_mask(measured):
    images, labels, results, _ = measured
    patches = images.reshape(COUNT, 4, 4, 4, 4, 3).transpose(0, 1, 3, 2, 4, 5)
    patches = patches.reshape(COUNT, 4, 4, -1)[:, 1:3, 2:].mean(axis=(1, 2))
    attrs = results["objects.vit"].attrs
    assert attrs["purity_raw_pixels"] == pytest.approx(purity_of(patches, labels))
    assert attrs["purity_mean_colour"] == pytest.approx(1.0)
    # Where colour is the class, features that cluster by class show nothing.
    claim = _over_untrained(results["objects.vit"], results["objects.vit"])
    assert claim.value <= 0 and "mean colour 1" in claim.note


def test_baselines_have_no_pixels_of_their_own(measured):
    noise = next(each for each in baselines_of(measured[-1]) if each.role == "noise")
    assert [each.name for each in clustering_of(noise).inputs] == ["pooled_cls_test.vit-noise"]


@pytest.mark.slow
def test_permuted_images_give_the_level_of_chance(rng):
    """Patches localize themselves; matched with other images, one in 16 does, and CKA is 0."""
    images = rng.uniform(-1, 1, (512, SIDE, SIDE, 3)).astype("float32")
    grid = vit_tf.TokenGrid(4, 4, 0, 4)

    def patches(batch):
        return {"patches": input_patches(batch, grid)}

    def of_other_images(batch):
        return {"patches": tf.roll(input_patches(batch, grid), 1, axis=0)}

    batches = tf.data.Dataset.from_tensor_slices(images).batch(64)
    own, other = (
        analysis.localization(features, batches, grid=grid).attrs["own_contrast"]
        for features in (patches, of_other_images)
    )
    assert own > 0.95 and abs(other) < 0.02
    similarity = analysis.cka(patches, batches, of_other_images)
    assert abs(similarity["cka"].item()) < 0.02
    assert analysis.cka(patches, batches, patches)["cka"].item() == pytest.approx(1)


def test_cka_of_two_models_has_that_of_permuted_images(rng):
    """Equal to CKA with a model that is shown images half a batch away; layers that vary only."""
    images = rng.uniform(-1, 1, (36, 4, 4, 3)).astype("float32") ** 3
    batches = tf.data.Dataset.from_tensor_slices(images).batch(12)

    def first(batch):
        return {"constant": 0 * batch, "pixels": batch, "large": 1e6 * batch[:, :2]}

    def second(batch):
        return {"rows": 1e-3 * batch[:, 1:3], "squares": batch**2}

    def shifted(batch):
        return second(tf.roll(batch, 6, axis=0))

    with pytest.warns(UserWarning, match="constant"):
        actual = analysis.cka(first, batches, second)
        expected = analysis.cka(first, batches, shifted)
    assert actual["permuted"].dims == ("layer_x", "layer_y")
    np.testing.assert_allclose(actual["permuted"], expected["cka"], atol=1e-5)
    assert (actual["cka"].sel(layer_y="rows") > 0.2).all()
    assert (abs(actual["permuted"]) < 0.15).all()
    assert "permuted" not in analysis.cka(second, batches)
