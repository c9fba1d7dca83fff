"""What the code behind Walmer et al. 2023 and DINO does, against the same steps in torch."""

import numpy as np
import pytest
import tensorflow as tf

from vit_tf import TokenGrid, analysis
from vit_tf.models.resolution import resample_positions

# Of two pixels a token no two pixels have the same features, as they would beyond outer centres.
GRID = TokenGrid(8, 8, 1, 2)
SIZE = 16


@pytest.fixture
def torch():
    return pytest.importorskip("torch", reason="torch is not installed")


def tokens_of(images):
    """Tokens of lengths that differ, of which those of similar patches are similar."""
    patches = tf.reshape(images, (-1, 8, 2, 8, 2, 3))
    patches = tf.reshape(tf.transpose(patches, (0, 1, 3, 2, 4, 5)), (-1, 64, 12))
    scale = tf.exp(3 * tf.reduce_mean(patches, axis=-1, keepdims=True))
    return {"tokens": tf.pad(patches * scale, [[0, 0], [1, 0], [0, 0]], constant_values=1.0)}


def pairs_of_squares(rng, count):
    """An image of smooth colours and a noisy copy that is rolled, with boxes of all sizes."""
    pairs = []
    for number in range(count):
        coarse = rng.normal(size=(4, 4, 3)).repeat(4, 0).repeat(4, 1)
        source = coarse + 0.6 * rng.normal(size=(SIZE, SIZE, 3))
        step = rng.integers(-4, 5, 2)
        target = np.roll(source, step, axis=(0, 1)) + 0.6 * rng.normal(size=source.shape)
        points = rng.integers(4, 12, (3 + number % 3, 2)) + 0.5
        corner, sides = rng.uniform(0, 8, 2), rng.uniform(1, 8, 2)
        pairs.append(
            {
                "category": f"kind {number % 3}",
                "source": source.astype("float32"),
                "target": target.astype("float32"),
                "source_points": points,
                "target_points": points + step,
                "target_box": np.concatenate([corner, corner + sides]),
            }
        )
    return pairs


def reference_pck(torch, pairs, shares, side):
    """The mean over kinds of the share of all their points: an array (threshold,)."""
    normalize, interpolate = torch.nn.functional.normalize, torch.nn.functional.interpolate
    correct = {}
    for pair in pairs:
        maps = []
        for name in ("source", "target"):
            tokens = torch.from_numpy(tokens_of(pair[name][None])["tokens"].numpy())[:, 1:]
            values = normalize(tokens.double().permute(0, 2, 1).reshape(1, -1, 8, 8), dim=1)
            large = interpolate(values, scale_factor=2.0, mode="bilinear")
            maps.append(large[0].permute(1, 2, 0).reshape(SIZE * SIZE, -1))
        rows, columns = torch.from_numpy(pair["source_points"]).long().T
        best = torch.argmax(maps[0][SIZE * rows + columns] @ maps[1].T, dim=-1)
        outputs = torch.stack([best // SIZE, best % SIZE], dim=-1) + 0.5
        error = (outputs - torch.from_numpy(pair["target_points"])).norm(dim=-1)
        within = error[:, None] <= torch.tensor(shares, dtype=torch.float64) * side(pair)
        correct.setdefault(pair["category"], []).append(within.double())
    return torch.stack([torch.cat(outputs).mean(0) for outputs in correct.values()]).mean(0).numpy()


def longer_side(pair):
    top, left, bottom, right = pair["target_box"]
    return max(bottom - top, right - left)


@pytest.mark.slow
@pytest.mark.parametrize("threshold, side", [("box", longer_side), ("image", lambda pair: SIZE)])
def test_keypoints_are_found_as_by_the_code_behind_the_published_numbers(
    rng, torch, threshold, side
):
    pairs, shares = pairs_of_squares(rng, 40), (0.4, 0.2, 0.1)
    expected = reference_pck(torch, pairs, shares, side)
    assert (expected > 0.02).all() and (expected < 0.98).all()
    options = {"thresholds": shares, "threshold": threshold}
    ours, other = (
        analysis.keypoint_correspondence(tokens_of, pairs, GRID, similarity=similarity, **options)[
            "score"
        ].sel(average="point", layer="tokens")
        for similarity in ("inner_product", "cosine")
    )
    np.testing.assert_allclose(ours, expected, atol=1e-12)
    assert (np.abs(other - expected) > 0.01).any()


def test_dinos_positions_are_those_of_torch(rng, torch):
    for old, new in ((14, (30, 28)), (7, (3, 12)), (14, (13, 15))):
        positions = rng.normal(size=(1, 1 + old * old, 6)).astype("float32")
        maps = torch.from_numpy(positions[:, 1:]).permute(0, 2, 1).reshape(1, 6, old, old)
        scale = tuple((count + 0.1) / old for count in new)
        large = torch.nn.functional.interpolate(maps, scale_factor=scale, mode="bicubic")
        assert tuple(large.shape[2:]) == new
        expected = large.permute(0, 2, 3, 1).reshape(1, -1, 6)
        outputs = resample_positions(
            positions, TokenGrid(old, old, 1, 16), TokenGrid(*new, 1, 16), "dino"
        )
        np.testing.assert_array_equal(outputs[:, :1], positions[:, :1])
        np.testing.assert_allclose(outputs[:, 1:], expected, atol=5e-6)


def test_votes_are_ranked_as_by_torch(rng, torch):
    """All classes in one stable order of their votes, of which the first min(5, k) count."""
    x, y = (rng.normal(size=(count, 1, 8, 1)).astype("float32") for count in (200, 80))
    train_labels, test_labels = rng.integers(0, 12, 200), rng.integers(0, 12, 80)
    normalize = torch.nn.functional.normalize
    y_units, x_units = (normalize(torch.from_numpy(z[:, 0, :, 0]).double()) for z in (y, x))
    near = y_units @ x_units.T
    ks, expected = (1, 3, 5, 20), []
    for k in ks:
        similarity, places = near.topk(k)
        votes = torch.zeros(80, 12, dtype=torch.float64).scatter_add_(
            1, torch.from_numpy(train_labels)[places], (similarity / 0.07).exp()
        )
        order = votes.sort(dim=1, descending=True, stable=True).indices
        right = order == torch.from_numpy(test_labels)[:, None]
        expected.append([right[:, : min(top, k)].double().sum(1).mean().item() for top in (1, 5)])
    outputs = analysis.knn_accuracy(
        lambda images: {"x": images[:, 0, :, 0]},
        (x, train_labels),
        (y, test_labels),
        12,
        ks,
        "all",
        without_votes=True,
    )
    np.testing.assert_allclose(outputs.sel(layer="x"), expected, atol=1e-12)
