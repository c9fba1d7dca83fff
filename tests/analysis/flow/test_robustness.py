"""Robustness of classifiers whose answers to perturbed images are known."""

import numpy as np
import pytest
import tensorflow as tf

from vit_tf import analysis
from vit_tf.analysis.flow import robustness as module
from vit_tf.analysis.flow.robustness import PERTURBATIONS, perturbed, shuffled

SIZE, STRENGTHS = 4, (0.25, 0.5, 1.0)


@pytest.fixture
def images(rng):
    return rng.uniform(-1, 1, (30, 8, 12, 3)).astype("float32")


@pytest.fixture
def every(images):
    """Perturbed images as an array, by name."""
    arrays = np.asarray(perturbed(tf.constant(images), SIZE, STRENGTHS, seed=3))
    return dict(zip(PERTURBATIONS, np.split(arrays, len(PERTURBATIONS)), strict=True))


def patches_of(images):
    return images.reshape(-1, 2, 4, 3, 4, 3).transpose(0, 1, 3, 2, 4, 5).reshape(-1, 6, 48)


def test_patches_are_dropped_and_occluded(images, every):
    patches = patches_of(images)
    contrast = patches.reshape(-1, 6, 16, 3).var(axis=2).mean(axis=-1)
    for at, number in enumerate((2, 3, 6)):
        for name in ("patch drop", "occlusion of salient patches", "occlusion of other patches"):
            now = patches_of(every[name][at])
            is_gone = (now == 0).all(axis=-1)
            np.testing.assert_array_equal(is_gone.sum(axis=1), number)
            np.testing.assert_array_equal(now[~is_gone], patches[~is_gone])
            if name != "patch drop" and number < 6:
                gone = np.where(is_gone, contrast, np.nan)
                kept = np.where(is_gone, np.nan, contrast)
                sign = 1 if "salient" in name else -1
                least = np.nanmin(sign * gone, axis=1)
                assert (least >= np.nanmax(sign * kept, axis=1)).all()


@pytest.mark.parametrize("grid", [2, 4])
def test_all_cells_of_a_grid_are_permuted(images, grid):
    """Each cell is as often in each place, which may be its own."""

    def cells_of(images):
        cells = images.reshape(-1, grid, 8 // grid, grid, 12 // grid, 3)
        return cells.transpose(0, 1, 3, 2, 4, 5).reshape(len(images), grid**2, -1)

    cells, now = cells_of(images), cells_of(np.asarray(shuffled(tf.constant(images), grid, 3)))
    source = (now[:, :, None] == cells[:, None]).all(axis=-1).argmax(axis=2)
    np.testing.assert_array_equal(np.sort(source, axis=1), [np.arange(grid**2)] * len(images))
    np.testing.assert_array_equal(now, np.take_along_axis(cells, source[:, :, None], axis=1))
    stays = (source == np.arange(grid**2)).mean()
    assert abs(stays - 1 / grid**2) < 4 * np.sqrt(1 / grid**2 / source.size)
    other = np.asarray(shuffled(tf.constant(images), grid, 4))
    part = np.asarray(shuffled(tf.constant(images[5:8]), grid, 3))
    assert (cells_of(other) != now).any()
    np.testing.assert_array_equal(cells_of(part), now[5:8])


def test_noise_has_its_size_and_frequencies(images, every):
    deviations = images.std(axis=(1, 2, 3))
    is_low = np.maximum.outer(*(abs(np.fft.fftfreq(n)) for n in (8, 12))) <= 0.25
    for name, is_in in (("low-frequency noise", is_low), ("high-frequency noise", ~is_low)):
        for noisy, strength in zip(every[name], STRENGTHS, strict=True):
            noise = noisy - images
            np.testing.assert_allclose(noise.std(axis=(1, 2, 3)), strength * deviations, rtol=1e-4)
            power = (np.abs(np.fft.fft2(noise, axes=(1, 2))) ** 2).mean(axis=(0, 3))
            assert power[~is_in].sum() < 1e-9 * power.sum()


def test_random_numbers_are_those_of_the_image_and_the_seed(images, every):
    part = np.asarray(perturbed(tf.constant(images[5:8]), SIZE, STRENGTHS, seed=3))
    for name, one in zip(PERTURBATIONS, np.split(part, len(PERTURBATIONS)), strict=True):
        np.testing.assert_allclose(one, every[name][:, 5:8], atol=1e-6)
    other = np.asarray(perturbed(tf.constant(images), SIZE, STRENGTHS, seed=4))
    assert (other[0] != every["patch drop"]).any()


@pytest.mark.slow
def test_a_bag_of_patches_does_not_notice_shuffling_and_a_constant_nothing(images):
    labels = np.arange(30) % 2

    def bag(x):
        patches = tf.reshape(module.as_patches(x, (2, 3)), (-1, 16, 18))
        own = tf.reduce_mean(tf.nn.relu(patches @ tf.ones((18, 1))), axis=1)
        return {"logits": tf.concat([own, 1.0 + 0 * own], axis=1)}

    def constant(x):
        return {"logits": tf.tile([[2.0, 1.0]], (tf.shape(x)[0], 1))}

    data = tf.data.Dataset.from_tensor_slices((images, labels)).batch(12)
    how = {"patch_size": SIZE, "strengths": STRENGTHS}
    result = analysis.robustness(bag, data, **how)
    assert result.grid.values.tolist() == [2, 4]
    np.testing.assert_array_equal(result.shuffled_change, 0)
    np.testing.assert_allclose(result.shuffled_accuracy, result.intact_accuracy)
    assert abs(result.accuracy_change.sel(perturbation="patch drop")).max() > 0
    still = analysis.robustness(constant, data, **how)
    np.testing.assert_array_equal(still.accuracy, 0.5)
    np.testing.assert_array_equal(still.accuracy_change_stderr, 0)


def test_values_follow_from_the_answers_to_perturbed_images(images, every):
    weights = np.random.default_rng(1).normal(size=(8 * 12 * 3, 3)).astype("float32")
    labels = np.arange(30) % 3

    def model(x):
        return {"logits": tf.reshape(x, (-1, 288)) @ weights}

    result = analysis.robustness(
        model, (images, labels), patch_size=SIZE, strengths=STRENGTHS, seed=3
    )

    def is_correct(x):
        return (x.reshape(30, -1) @ weights).argmax(axis=1) == labels

    intact = is_correct(images)
    assert result.intact_accuracy == pytest.approx(intact.mean())
    for cells in (2, 4):
        correct = is_correct(np.asarray(shuffled(tf.constant(images), cells, 3)))
        one, change = result.sel(grid=cells), correct.astype(float) - intact
        assert one.shuffled_accuracy == pytest.approx(correct.mean())
        assert one.shuffled_change == pytest.approx(change.mean())
        error = change.std(ddof=1) / np.sqrt(30)
        np.testing.assert_allclose(one.shuffled_change_stderr, error, rtol=1e-6)
    for name in PERTURBATIONS:
        correct = np.array([is_correct(x) for x in every[name]])
        one = result.sel(perturbation=name)
        np.testing.assert_allclose(one.accuracy, correct.mean(axis=1))
        change = correct.astype(float) - intact
        expected = change.std(axis=1, ddof=1) / np.sqrt(30)
        np.testing.assert_allclose(one.accuracy_change_stderr, expected, rtol=1e-6)
        curve = np.array([intact.mean(), *correct.mean(axis=1)])
        area = ((curve[1:] + curve[:-1]) / 2 * np.diff([0, *STRENGTHS])).sum()
        np.testing.assert_allclose(one.area, area)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"patch_size": 5}, "tile"),
        ({}, "patch_size"),
        ({"patch_size": 4, "strengths": (0.5, 0.25)}, "ascending"),
        ({"patch_size": 4, "strengths": (0.5, 1.5)}, "ascending"),
    ],
)
def test_what_cannot_be_perturbed_is_refused(images, options, words):
    def model(x):
        return {"logits": tf.reduce_mean(x, axis=(1, 2))}

    with pytest.raises(ValueError, match=words):
        analysis.robustness(model, (images, np.arange(30) % 3), **options)
