"""Label propagation against loops over tokens, and the scores of DAVIS worked by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf
from PIL import Image

from vit_tf import TokenGrid, analysis
from vit_tf.analysis.objects.propagation import outline, widen
from vit_tf.data.shapes import Scene, Shape

pytestmark = pytest.mark.usefixtures("without_graphs")

PIXELS = TokenGrid(8, 8, 0, 1)


def labels_by_loop(tokens, first, num_last, temperature, top, radius):
    """One token after another, with all candidates in a list."""
    frames, rows, columns, _ = tokens.shape
    labels = [first]
    for t in range(1, frames):
        actual = np.zeros(first.shape)
        for r in range(rows):
            for c in range(columns):
                candidates = []
                for s in range(t):
                    if s and s < t - num_last:
                        continue
                    for r2 in range(rows):
                        for c2 in range(columns):
                            if max(abs(r - r2), abs(c - c2)) > radius:
                                continue
                            a, b = tokens[t, r, c], tokens[s, r2, c2]
                            cosine = a @ b / math.sqrt(a @ a) / math.sqrt(b @ b)
                            candidates.append((math.exp(cosine / temperature), labels[s][r2, c2]))
                best = sorted(candidates, key=lambda pair: -pair[0])[:top]
                total = sum(weight for weight, _ in best)
                actual[r, c] = sum(weight * label for weight, label in best) / total
        labels.append(actual)
    return np.stack(labels)


@pytest.mark.parametrize(
    "options",
    [
        {"num_last": 2, "temperature": 0.1, "top": 5, "radius": 1},
        {"num_last": 7, "temperature": 0.7, "top": 3, "radius": 12},
        {"num_last": 0, "temperature": 0.1, "top": 4, "radius": 2},
        {"num_last": 1, "temperature": 0.3, "top": 50, "radius": 0},
    ],
)
def test_labels_are_those_of_loops_over_tokens(rng, options):
    tokens = rng.normal(size=(5, 4, 3, 6))
    first = rng.dirichlet(np.ones(3), size=(4, 3))
    actual = analysis.propagate(tokens, first, **options)
    np.testing.assert_allclose(actual, labels_by_loop(tokens, first, **options), atol=1e-5)
    np.testing.assert_allclose(actual.sum(-1), 1, atol=1e-5)


def test_the_defaults_are_those_of_the_paper(rng):
    tokens = rng.normal(size=(10, 2, 14, 4))
    first = rng.dirichlet(np.ones(2), size=(2, 14))
    expected = labels_by_loop(tokens, first, num_last=7, temperature=0.1, top=5, radius=12)
    np.testing.assert_allclose(analysis.propagate(tokens, first), expected, atol=1e-4)


def moving_squares(steps=5, size=8, step=(1, 1)):
    """Index masks of two objects that move across, the second one after an offset."""
    masks = np.zeros((steps, size, size), int)
    for t in range(steps):
        down, right = t * step[0], t * step[1]
        masks[t, down : down + 3, right : right + 2] = 1
        masks[t, 5 - down : 7 - down, right + 2 : right + 4] = 2
    return masks


def perfect_tokens(rng, masks):
    """A feature for each place on an object, that moves along with it, and one for the ground."""
    tokens = np.tile(rng.normal(size=32), (*masks.shape, 1))
    for number in np.unique(masks)[1:]:
        own = rng.normal(size=((masks[0] == number).sum(), 32))
        for frame, mask in zip(tokens, masks, strict=True):
            frame[mask == number] = own
    return tokens


def test_what_moves_further_than_the_neighbourhood_is_lost(rng):
    masks = moving_squares(2, 12, (0, 3))
    tokens = perfect_tokens(rng, masks)
    actual = [analysis.propagate_masks(tokens, masks[0], top=1, radius=r)[1] for r in (2, 3)]
    assert (actual[0] != masks[1]).any() and (actual[1] == masks[1]).all()
    assert actual[1].dtype == np.uint8


def test_masks_are_taken_at_token_centres_enlarged_and_stretched(rng):
    """Against the steps by hand: a mask of 12 x 12 pixels on 3 x 3 tokens of equal features."""
    mask = np.zeros((12, 12), int)
    mask[2, 2] = 1  # the centre of the first token is at pixel (2, 2)
    mask[5, 5:] = 1  # not at (6, 6)
    tokens = np.tile(np.eye(9).reshape(3, 3, 9), (2, 1, 1, 1))
    actual = analysis.propagate_masks(tokens, mask, top=1)
    np.testing.assert_array_equal(actual[0], mask)
    soft = np.zeros((3, 3, 1), "float32")
    soft[0, 0] = 1
    share = tf.image.resize(soft, (12, 12)).numpy()[..., 0]
    np.testing.assert_array_equal(actual[1], share > 1 - share)
    weak = np.tile([1.0, 0.0], (2, 1, 3, 1))
    weak[1, 0, 1] = [math.cos(1.5), math.sin(1.5)]
    weak[0, 0, 2] = [0.0, 1.0]
    # Token 1 gets label 1 with a weight, the others with none: stretched, it is all of it.
    labels = analysis.propagate(weak, np.eye(2)[[[0, 0, 1]]], temperature=2.0, top=3)
    assert 0.3 < labels[1, 0, 1, 1] < 0.5
    actual = analysis.propagate_masks(weak, np.array([[0, 0, 1]]), temperature=2.0, top=3)
    assert actual[1, 0, 1] == 1


def test_region_similarity_and_boundary_accuracy_by_hand():
    truth, actual = np.zeros((2, 1, 100, 100), int)
    truth[0, 10:30, 10:30] = 1
    actual[0, 10:30, 13:33] = 1
    assert outline(truth[0] == 1).sum() == 80
    np.testing.assert_allclose(analysis.region_similarity(actual, truth, [1]), [[17 / 23]])
    # The reach is ceil(0.008 * 141.4) = 2 pixels: of the 80 found, 40 on the rows and 4 beside.
    np.testing.assert_allclose(analysis.boundary_accuracy(actual, truth, [1]), [[0.55]])
    np.testing.assert_allclose(analysis.boundary_accuracy(actual, truth, [1], 0.021), [[1.0]])
    # The left half: 45 of its 60 pixels are near, and 45 of the 80 true ones are found.
    half = np.where(np.arange(100) < 20, truth, 0)
    expected = 2 * 0.75 * 0.5625 / (0.75 + 0.5625)
    np.testing.assert_allclose(analysis.boundary_accuracy(half, truth, [1]), [[expected]])
    np.testing.assert_allclose(analysis.region_similarity(half, truth, [1]), [[0.5]])


def test_boundary_accuracy_is_that_of_distances_between_all_pairs_of_pixels(rng):
    actual, truth = rng.integers(0, 3, (2, 2, 7, 9)).repeat(6, axis=2).repeat(5, axis=3)
    for tolerance, reach in ((0.008, 1), (0.04, 3)):  # of 61.55 pixels
        f = analysis.boundary_accuracy(actual, truth, [1, 2], tolerance)
        for frame, number in np.ndindex(2, 2):
            masks = actual[frame] == number + 1, truth[frame] == number + 1
            precision, recall = widened_shares(*masks, reach)
            expected = 2 * precision * recall / (precision + recall)
            assert f[frame, number] == pytest.approx(expected)


def widened_shares(actual, truth, reach):
    """Precision and recall of outlines by distances of all pairs of pixels."""
    a, b = (np.argwhere(outline(mask)) for mask in (actual, truth))
    near = np.linalg.norm(a[:, None] - b, axis=-1) <= reach
    return near.any(1).mean(), near.any(0).mean()


def test_scores_of_what_is_not_there():
    none, some = np.zeros((1, 20, 20), int), np.zeros((1, 20, 20), int)
    some[0, 5:9, 5:9] = 2
    for score in (analysis.region_similarity, analysis.boundary_accuracy):
        np.testing.assert_array_equal(score(none, some, [1, 2]), [[1, 0]])
        np.testing.assert_array_equal(score(some, none, [1, 2]), [[1, 0]])
        np.testing.assert_array_equal(score(some, some, [1, 2]), [[1, 1]])


def test_outlines_and_reach_are_those_of_loops_over_pixels(rng):
    mask = rng.uniform(size=(9, 11)) < 0.4
    expected = np.zeros(mask.shape, bool)
    for r in range(9):
        for c in range(11):
            others = {(min(r + i, 8), min(c + j, 10)) for i in (0, 1) for j in (0, 1)}
            expected[r, c] = any(mask[place] != mask[r, c] for place in others)
    np.testing.assert_array_equal(outline(mask), expected)
    point = np.zeros((15, 15), bool)
    point[3, 12] = True
    far = np.linalg.norm(np.indices((15, 15)).T - [3, 12], axis=-1).T
    np.testing.assert_array_equal(widen(point, 5), far <= 5)


def colours(images):
    return {"colour": images}


@pytest.mark.usefixtures("in_graphs")
def test_a_video_of_perfect_features_scores_one(rng):
    masks = moving_squares(5, step=(1, 1))[:4]
    frames = perfect_tokens(rng, masks).astype("float32")
    masks[:, 7, 7] = 255
    perfect = analysis.label_propagation(colours, [(frames, masks)] * 2, PIXELS, dense=False, top=1)
    assert perfect["region"].dims == ("layer", "object") and perfect["region"].shape == (1, 4)
    np.testing.assert_allclose(perfect["region"].values, 1)
    np.testing.assert_allclose(perfect["boundary"].values, 1)
    assert perfect["score"].item() == 1 and perfect["video"].values.tolist() == [0, 0, 1, 1]
    assert perfect.attrs["radius"] == 12 and perfect.attrs["top"] == 1
    assert perfect.attrs["examples"] == 8


def filled_frames():
    """Masks of objects 2 and 5 that fill the first frame and part: the ground appears behind."""
    masks = np.zeros((4, 8, 8), int)
    for t in range(4):
        masks[t, :, : 4 - t], masks[t, :, 4 + t :] = 2, 5
    return masks


def test_objects_that_fill_the_first_frame_are_all_scored(rng):
    masks = filled_frames()
    frames = rng.normal(size=(4, 8, 8, 3)).astype("float32")
    result = analysis.label_propagation(colours, [(frames, masks)], PIXELS, dense=False)
    actual = analysis.propagate_masks(frames, masks[0])
    assert set(np.unique(actual)) == {2, 5}
    scores = analysis.region_similarity(actual[1:3], masks[1:3], [2, 5]).mean(0)
    np.testing.assert_allclose(result["region"][0], scores)
    assert result["video"].values.tolist() == [0, 0]


@pytest.mark.parametrize("number", [1, 7])
def test_one_object_that_fills_the_first_frame_is_an_object(rng, number):
    """Its labels are 1 up to rounding in all frames, so that no ground is found."""
    masks = np.full((4, 8, 8), number)
    masks[1:, :, 6:] = 0
    frames = rng.normal(size=(4, 8, 8, 3)).astype("float32")
    result = analysis.label_propagation(colours, [(frames, masks)] * 2, PIXELS, dense=False)
    np.testing.assert_allclose(result["region"], [[0.75, 0.75]])
    assert (analysis.propagate_masks(frames, masks[0]) == number).all()


def test_void_is_ground_in_the_first_mask(rng):
    first = moving_squares(1)[0]
    tokens = rng.normal(size=(3, 8, 8, 4))
    expected = analysis.propagate_masks(tokens, first)
    first[7] = 255
    np.testing.assert_array_equal(analysis.propagate_masks(tokens, first), expected)


@pytest.mark.parametrize("dense", [True, False])
def test_the_masks_handed_out_are_those_that_are_scored(rng, dense):
    masks = moving_squares(4, 16, (2, 1)).repeat(2, axis=1).repeat(2, axis=2)
    frames = rng.normal(size=(4, 32, 32, 3)).astype("float32") + masks[..., None]
    grid = TokenGrid(8, 8, 0, 4)
    options = {"dense": dense, "top": 2}
    result = analysis.label_propagation(patch_features, [(frames, masks)], grid, **options)
    actual = analysis.follow_masks(patch_features, frames, masks[0], grid, **options)
    assert list(actual) == ["pixels", "noise"]
    for layer, masks_of_layer in actual.items():
        np.testing.assert_array_equal(masks_of_layer[0], masks[0])
        j, f = (
            score(masks_of_layer[1:3], masks[1:3], [1, 2]).mean(0)
            for score in (analysis.region_similarity, analysis.boundary_accuracy)
        )
        np.testing.assert_allclose(result["region"].sel(layer=layer), j)
        np.testing.assert_allclose(result["boundary"].sel(layer=layer), f)
        np.testing.assert_allclose(result["score"].sel(layer=layer), (j.mean() + f.mean()) / 2)
    with pytest.raises(ValueError, match="Expected grid= to be"):
        analysis.follow_masks(patch_features, frames, masks[0])


def patch_features(images):
    """The pixels of each patch of 4 x 4, and noise that is the same whatever is shown."""
    patches = tf.image.extract_patches(
        images, (1, 4, 4, 1), (1, 4, 4, 1), (1, 1, 1, 1), padding="VALID"
    )
    noise = tf.random.stateless_normal(tf.shape(patches), (1, 2))
    return {"pixels": patches, "noise": noise}


def coloured_video(rng):
    """A red disc and a blue square that drift on a grey ground, in one light."""
    frames = []
    for time in np.arange(6) / 5:
        shapes = (
            Shape("disc", (0.3 + 0.2 * time, 0.3), 0.2, 0.0, (220, 30, 30)),
            Shape("square", (0.7, 0.7 - 0.2 * time), 0.2, time, (30, 30, 220)),
        )
        frames.append(Scene(shapes, np.full(3, 128.0), [], [], int(rng.integers(1000))))
    images = np.stack([scene.draw((64, 64)) for scene in frames]) / 127.5 - 1
    return images.astype("float32"), np.stack([scene.index((64, 64)) for scene in frames])


def test_patches_follow_the_shapes_and_noise_does_not(rng):
    pairs = [coloured_video(rng) for _ in range(3)]
    grid = TokenGrid(8, 8, 0, 4)
    result = analysis.label_propagation(patch_features, pairs, grid)
    assert result["score"].sel(layer="pixels") > 0.6
    assert result["score"].sel(layer="noise") < 0.4
    np.testing.assert_array_equal(
        np.bincount(result["video"]), [len(np.unique(index[0])) - 1 for _, index in pairs]
    )


def test_masks_are_written_with_the_palette(rng, tmp_path):
    masks = rng.integers(0, 256, (3, 5, 7))
    analysis.write_masks(tmp_path / "deep" / "car", masks)
    files = sorted((tmp_path / "deep" / "car").iterdir())
    assert [file.name for file in files] == ["00000.png", "00001.png", "00002.png"]
    for file, mask in zip(files, masks, strict=True):
        image = Image.open(file)
        assert image.mode == "P"
        np.testing.assert_array_equal(np.asarray(image), mask)
        palette = np.reshape(image.getpalette(), (-1, 3))
        assert palette[:4].tolist() == [[0, 0, 0], [128, 0, 0], [0, 128, 0], [128, 128, 0]]
        assert palette[9].tolist() == [191, 0, 0] and palette[200].tolist() == [200] * 3


TOKENS, FIRST = np.ones((3, 4, 4, 2)), np.ones((4, 4, 2))
FRAMES, MASKS = np.zeros((3, 8, 8, 3), "float32"), np.ones((3, 8, 8), int)


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: analysis.propagate(TOKENS, FIRST[:, :3]), r"tokens of shape .*\(4, 3, 2\)"),
        (lambda: analysis.propagate(TOKENS, FIRST, top=0), "top=0"),
        (lambda: analysis.propagate_masks(TOKENS, np.ones((4, 4))), "integers .*float64"),
        (lambda: analysis.write_masks("masks", np.ones((1, 4, 4))), "0 to 255 .*float64"),
        (lambda: analysis.region_similarity(MASKS, MASKS[:, :2], [1]), "equal shapes"),
        (lambda: follow([]), "at least one video"),
        (lambda: follow([(FRAMES[:2], MASKS[:2])]), "three frames or more"),
        (lambda: follow([(FRAMES, 0 * MASKS)]), "an object in the first mask"),
        (lambda: follow([(FRAMES, MASKS)], lambda x: {"colour": x * np.nan}), "finite.*colour"),
        (lambda: follow([(FRAMES * np.nan, MASKS)]), "first in image 0"),
    ],
)
def test_errors(call, words):
    with pytest.raises(ValueError, match=words):
        call()


def follow(videos, features=colours):
    return analysis.label_propagation(features, videos, PIXELS)
