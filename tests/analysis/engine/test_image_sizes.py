"""PyTorch modules of images of any size are measured at the size of the images at hand."""

import numpy as np
import pytest
import tensorflow as tf

from vit_tf import TokenGrid, analysis
from vit_tf.analysis.engine import match_maps

torch = pytest.importorskip("torch")
nn = torch.nn
# Sides of images that differ from those on which a module without a declared size is tried.
SIDE, PATCH, WIDTH = 48, 8, 6
GRID = TokenGrid(SIDE // PATCH, SIDE // PATCH, 0, PATCH)


class Residual(nn.Module):
    def __init__(self, kernel):
        super().__init__()
        self.kernel, self.norm = kernel, nn.Identity()

    def forward(self, x):
        return x + torch.tanh(self.kernel(self.norm(x)))


class Maps(nn.Module):
    """Maps of a stage of 4 pixels a position, and of one of 8."""

    def __init__(self):
        super().__init__()
        self.stem, self.down = nn.Conv2d(3, WIDTH, 4, 4), nn.Conv2d(WIDTH, WIDTH, 2, 2)
        self.first = Residual(nn.Conv2d(WIDTH, WIDTH, 1))
        self.second = Residual(nn.Conv2d(WIDTH, WIDTH, 1))
        self.third = Residual(nn.Conv2d(WIDTH, WIDTH, 1))
        self.head = nn.Linear(WIDTH, 5)

    def forward(self, x):
        x = self.third(self.second(self.down(self.first(self.stem(x)))))
        return self.head(x.mean((2, 3)))


class Tokens(nn.Module):
    """Tokens that do not interact, and the mean of their scores."""

    def __init__(self):
        super().__init__()
        self.patches, self.head = nn.Conv2d(3, WIDTH, PATCH, PATCH), nn.Linear(WIDTH, 5)
        self.blocks = nn.Sequential(*(Residual(nn.Linear(WIDTH, WIDTH)) for _ in range(2)))

    def forward(self, x):
        x = self.blocks(self.patches(x).flatten(2).transpose(1, 2))
        return self.head(x.mean(1))


def made(kind):
    torch.manual_seed(0)
    return kind().eval()


def by_hand(module, path, images):
    """What a submodule returns, with the channels last."""
    kept = []
    hook = module.get_submodule(path).register_forward_hook(lambda _, x, y: kept.append(y))
    with torch.no_grad():
        module(torch.from_numpy(np.moveaxis(images, -1, 1).copy()))
    hook.remove()
    return kept[0].numpy() if kept[0].dim() == 3 else np.moveaxis(kept[0].numpy(), 1, -1)


def function_of(module):
    """The module's last map, as a function that is known by its grid alone."""
    return lambda images: {"map": by_hand(module, "third", np.asarray(images, np.float32))}


@pytest.fixture(scope="module")
def images():
    return np.random.default_rng(0).uniform(-1, 1, (4, SIDE, SIDE, 3)).astype(np.float32)


def test_patched_tokens_are_those_of_the_images(images):
    """Of a mean over tokens, each carries its own part of the difference."""
    model = made(Tokens)
    result = analysis.activation_patching(model, (images[:2], images[2:]))
    tokens = by_hand(model, "blocks", images).astype(float)
    kernel = model.head.weight.detach().numpy().astype(float)
    scores = tokens @ kernel.T / GRID.num_tokens
    parts, whole = scores[2:] - scores[:2], (scores[2:] - scores[:2]).sum(1)
    expected = np.einsum("etc,ec->t", parts, whole) / (whole**2).sum()
    assert result.transfer.shape == (3, GRID.num_tokens)
    np.testing.assert_allclose(result.transfer, np.tile(expected, (3, 1)), atol=1e-5)


def test_keypoints_are_matched_in_the_images_as_they_are(images):
    points = np.random.default_rng(1).uniform(0, SIDE, (2, 7, 2))
    pairs = [
        {"source": images[i], "target": images[i + 2], "category": "a"}
        | {"source_points": points[0], "target_points": points[1]}
        for i in range(2)
    ]
    model, thresholds = made(Maps), (0.1, 0.3, 0.5)
    result = analysis.keypoint_correspondence(model, pairs, thresholds=thresholds, layers="third")
    other = analysis.keypoint_correspondence(function_of(model), pairs, GRID, thresholds)
    assert result.attrs["size"] == SIDE
    np.testing.assert_array_equal(result.pck, other.pck)


def test_masks_are_propagated_by_tokens_of_the_frames(images):
    masks = np.zeros((4, SIDE, SIDE), np.uint8)
    masks[:, 9:30, 9:30] = 1
    model, how = made(Maps), {"dense": False}
    result = analysis.label_propagation(model, [(images, masks)], layers="third", **how)
    other = analysis.label_propagation(function_of(model), [(images, masks)], GRID, **how)
    np.testing.assert_array_equal(result.score, other.score)
    followed = analysis.follow_masks(model, images, masks[0], layers="third", **how)
    expected = analysis.follow_masks(function_of(model), images, masks[0], GRID, **how)
    np.testing.assert_array_equal(followed["third"], expected["map"])


def test_dense_tokens_are_those_of_windows_of_the_models_own_size(images):
    """A model that takes any size is run at its own, on windows of an image twice as large."""
    module = made(Maps)
    module.img_size = 24
    dense = analysis.dense_features(module, images, layers="third")["third"]
    grid = TokenGrid(3, 3, 0, PATCH)
    expected = analysis.dense_features(function_of(module), images, grid)["map"]
    np.testing.assert_allclose(dense, expected, atol=1e-5)


def test_maps_are_matched_to_the_last_one_of_the_images(images):
    model = made(Maps)
    maps = match_maps(model, WIDTH * 4, images=images)(tf.constant(images))
    first, last = (by_hand(model, path, images) for path in ("first", "third"))
    patches = first.reshape(4, 6, 2, 6, 2, WIDTH).transpose(0, 1, 3, 2, 4, 5).reshape(4, 6, 6, -1)
    np.testing.assert_allclose(maps["first"], patches, atol=1e-6)
    np.testing.assert_allclose(maps["third"], last, atol=1e-6)
