"""The training of docs/natural/train.py, in JAX, next to `vit_tf`'s own and to NumPy."""

import sys
from pathlib import Path

import numpy as np
import pytest

import vit_tf
from vit_tf.training.optimizers import Muon

jax = pytest.importorskip("jax")
pytestmark = pytest.mark.slow
FOLDER = Path(__file__).resolve().parents[2] / "docs" / "natural"


@pytest.fixture(scope="module")
def train():
    sys.path.insert(0, str(FOLDER))
    try:
        import train

        yield train
    finally:
        sys.path.remove(str(FOLDER))
        sys.modules.pop("train", None)


def test_an_update_is_that_of_the_recipes_muon(train, rng):
    model = vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 16, 3)
    variables = model.trainable_variables
    optimizer = Muon(learning_rate=1e-2, weight_decay=0.05)
    optimizer.build(variables)
    ours = train.Muon(tuple(variable.path for variable in variables), 0.05)
    weights = [jax.numpy.asarray(variable.numpy()) for variable in variables]
    state = tuple([jax.numpy.zeros_like(weight) for weight in weights] for _ in range(2))
    for step in (1.0, 2.0):
        gradients = [rng.normal(size=weight.shape).astype("float32") for weight in weights]
        optimizer.apply(gradients, variables)
        weights, state = ours.update(weights, state, gradients, 1e-2, step)
    for variable, weight in zip(variables, weights, strict=True):
        np.testing.assert_allclose(weight, variable.numpy(), atol=2e-6, err_msg=variable.path)


def test_an_image_is_shifted_and_mirrored_within_a_black_border(train, rng):
    images = rng.integers(0, 256, (6, 5, 4, 3)).astype("uint8")
    labels = np.arange(6)
    alone = np.array([0, 1, 0.5, 0.5], "float32")  # blended with nothing of the others
    actual, targets = train.augment(images, labels, jax.random.key(3), alone, 2)
    np.testing.assert_array_equal(targets, np.eye(10)[:6])
    padded = np.pad(images / 127.5 - 1, ((0, 0), (2, 2), (2, 2), (0, 0)), constant_values=-1)
    for image, wide in zip(np.asarray(actual), padded, strict=True):
        windows = [wide[y : y + 5, x : x + 4] for y in range(5) for x in range(5)]
        windows += [window[:, ::-1] for window in windows]
        assert min(np.abs(image - window).max() for window in windows) < 1e-5


@pytest.mark.parametrize("is_cut", [0, 1])
def test_labels_are_mixed_as_the_pixels_are(train, is_cut):
    images = np.stack([np.zeros((8, 8, 3)), np.full((8, 8, 3), 255)]).astype("uint8")
    mixing = np.array([is_cut, 0.75, 0.5, 0.5], "float32")
    actual, targets = train.augment(images, np.array([0, 1]), jax.random.key(0), mixing, 0)
    white = (np.asarray(actual).mean((1, 2, 3)) + 1) / 2
    np.testing.assert_allclose(white, [0.25, 0.75], atol=1e-6)
    np.testing.assert_allclose(targets[:, 1], white, atol=1e-6)
    assert len(np.unique(np.asarray(actual[0]))) == 1 + is_cut


def test_a_run_passes_over_its_fraction_of_the_data(train):
    arm = train.Arm(vit_tf.ViT, {}, fraction=0.25)
    run = train.Run("vit-25-0", arm, 7, None)
    recipe = train.Recipe(epochs=3, batch_size=8)
    order, mixing = run.random_numbers(recipe, 64)
    assert order.shape == (3, 8, 8) and mixing.shape == (3, 8, 4)
    passes = order.reshape(-1, 16)
    assert all(set(one) == set(passes[0]) for one in passes) and len(set(passes[0])) == 16
    assert (passes[0] != passes[1]).any()
