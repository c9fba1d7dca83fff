"""Keypoint correspondence against features interpolated by loops, and shares counted by hand."""

import math

import numpy as np
import pytest
import tensorflow as tf

from vit_tf import TokenGrid, analysis, data
from vit_tf.analysis.objects.keypoints import match_points, square_image, square_points

pytestmark = pytest.mark.usefixtures("without_graphs")

PIXELS = TokenGrid(12, 12, 0, 1)


def enlarged_by_loops(tokens, size):
    """Each pixel from the four tokens whose centres surround its own; the border repeats."""
    rows, columns, channels = tokens.shape
    large = np.zeros((size, size, channels))
    for i, j in np.ndindex(size, size):
        r, c = (i + 0.5) * rows / size - 0.5, (j + 0.5) * columns / size - 0.5
        for r2, c2 in np.ndindex(rows, columns):
            # At the border the outermost token counts for what lies beyond it.
            near = [
                max(0, 1 - abs(min(max(place, 0), count - 1) - centre))
                for place, count, centre in ((r, rows, r2), (c, columns, c2))
            ]
            large[i, j] += near[0] * near[1] * tokens[r2, c2]
    return large


def matches_by_loops(source, target, points):
    """The pixel of the enlarged target whose inner product with that of each point is largest."""
    actual = []
    for a, b, of_pair in zip(source, target, points, strict=True):
        features = [a[min(int(row), 9), min(int(column), 9)] for row, column in of_pair]
        actual.append([np.unravel_index((b @ x).argmax(), b.shape[:2]) for x in features])
    return np.array(actual) + 0.5


def units(x):
    return x / np.linalg.norm(x, axis=-1, keepdims=True)


@pytest.mark.usefixtures("in_graphs")
def test_matches_are_those_of_loops_over_pixels(rng):
    """By cosines of enlarged tokens, or by products of tokens that were normalised before."""
    # Lengths between 0.1 and 10, so that the order of the two steps matters.
    source, target = rng.normal(size=(2, 3, 4, 4, 5)) * 10 ** rng.uniform(-1, 1, (2, 3, 4, 4, 1))
    points = rng.uniform(0, 10, (3, 6, 2))
    points[0, 0], points[0, 1] = (0, 0), (10, 10)  # the far corner is the last pixel's
    cosines = [[units(enlarged_by_loops(x, 10)) for x in maps] for maps in (source, target)]
    actual = match_points(source, target, points, 10).numpy()
    np.testing.assert_array_equal(actual, matches_by_loops(*cosines, points))
    products = [[enlarged_by_loops(units(x), 10) for x in maps] for maps in (source, target)]
    other = match_points(source, target, points, 10, "inner_product").numpy()
    np.testing.assert_array_equal(other, matches_by_loops(*products, points))
    assert (actual != other).any(axis=-1).mean() > 0.2


def test_squares_keep_the_shape_and_move_the_points_along():
    places = square_points([[0, 0], [5, 10], [2.5, 3]], 5, 10, 20)
    np.testing.assert_allclose(places, [[5, 0], [15, 20], [10, 6]])
    image = np.zeros((30, 20, 1), "float32")
    image[12:15, 4:8] = 1  # around (13.5, 6)
    square = square_image(image, 60)[..., 0]
    mass = np.array([(np.indices((60, 60))[axis] * square).sum() for axis in (0, 1)])
    centre = mass / square.sum() + 0.5
    np.testing.assert_allclose(centre, square_points([[13.5, 6]], 30, 20, 60)[0], atol=1e-4)
    np.testing.assert_allclose(square_points([[13.5, 6]], 30, 20, 60), [[27, 22]])
    assert (square_image(np.ones((30, 20, 1)), 60)[:, [9, 50]] == 0).all()
    assert (square_image(np.ones((30, 20, 1)), 60)[:, 10:50] > 0.999).all()


def test_shares_of_correct_keypoints_by_hand():
    nan = math.nan
    distances = [[1, 3, nan, nan], [1, 1, 1, 3], [2, nan, nan, nan], [9, 9, 9, 9]]
    shares = analysis.correct_keypoints(distances, ["cat", "cat", "cat", "ant"], 2)
    assert list(shares) == ["ant", "cat"] and shares["ant"] == (0, 0)
    assert shares["cat"] == pytest.approx((5 / 7, (1 / 2 + 3 / 4 + 1) / 3))


def test_the_reach_is_a_share_of_the_longer_side_of_each_pairs_box():
    nan = math.nan
    distances = [[1.5, 2.5, nan], [1.5, 2.5, 4.1], [1.5, 0.5, nan]]
    boxes = [[3, 2, 23, 7], [1, 0, 4, 40], [5, 5, 9, 15]]  # sides of 20, 40 and 10
    names = ["cat", "cat", "ant"]
    for reach, cats, ants in (
        (0.1, (3 / 5, (1 / 2 + 2 / 3) / 2), (1 / 2, 1 / 2)),
        (0.05, (1 / 5, (0 + 1 / 3) / 2), (1 / 2, 1 / 2)),
        (0.2, (1, 1), (1, 1)),
    ):
        shares = analysis.correct_keypoints(distances, names, reach, "box", boxes)
        assert shares["cat"] == pytest.approx(cats) and shares["ant"] == pytest.approx(ants)
    for threshold, wrong, words in (
        ("object", boxes, "threshold='object'"),
        ("box", None, "boxes .*threshold='box'"),
        ("image", boxes, "boxes .*threshold='box'"),
        ("box", boxes[:2], "3 boxes"),
        ("box", [*boxes[:2], [5, 5, 9, 5]], "not empty"),
        ("box", [*boxes[:2], [5, 5, nan, 9]], "not empty"),
    ):
        with pytest.raises(ValueError, match=words):
            analysis.correct_keypoints(distances, names, 0.1, threshold, wrong)


def unit_colours(images):
    return {"colour": images}


def moved_pair(rng, step, category, points):
    """An image of pixels all different, and the same one rolled by `step`, but not its points."""
    source = rng.normal(size=(12, 12, 8)).astype("float32")
    return {
        "category": category,
        "source": source,
        "target": np.roll(source, step, axis=(0, 1)),
        "source_points": np.array(points),
        "target_points": np.array(points),
    }


@pytest.mark.usefixtures("in_graphs")
def test_each_threshold_counts_the_distances_that_it_covers(rng):
    """Points stay where they are while the image rolls by 0, 1 and 2 pixels of 12."""
    points = [[3.5, 3.5], [6.5, 7.5]]
    steps = {"a": (0, 0), "b": (1, 0), "c": (0, 2)}
    pairs = [moved_pair(rng, step, name, points) for name, step in steps.items()]
    pairs.append(moved_pair(rng, (0, 0), "c", points[:1]))
    result = analysis.keypoint_correspondence(unit_colours, pairs, PIXELS)
    expected = {
        "point": {"a": [1, 1, 1], "b": [1, 0, 0], "c": [1 / 3] * 3},
        "image": {"a": [1, 1, 1], "b": [1, 0, 0], "c": [1 / 2] * 3},
    }
    for average, categories in expected.items():
        for category, shares in categories.items():
            here = result["pck"].sel(average=average, layer="colour", category=category)
            np.testing.assert_allclose(here, shares, err_msg=f"{average} {category}")
        score = np.mean(list(categories.values()), axis=0)
        np.testing.assert_allclose(result["score"].sel(average=average)[0], score)
    assert result["threshold"].values.tolist() == [0.1, 0.05, 0.01]
    assert result.attrs["examples"] == 8 and result.attrs["size"] == 12


def test_a_box_reaches_as_far_as_its_longer_side_in_the_square(rng):
    """Points two pixels of 12 off; boxes of images twice and half as large scale along."""
    points, step = [[3.5, 3.5], [6.5, 7.5]], (0, 2)
    pair = moved_pair(rng, step, "a", points)
    half = {
        "category": "b",
        "source": pair["source"][:6, :6],
        "target": np.roll(pair["source"][:6, :6], (0, 1), axis=(0, 1)),
        "source_points": np.array([[2.75, 2.75]]),
        "target_points": np.array([[2.75, 2.75]]),
        "target_box": np.array([0.5, 1.0, 3.5, 6.0]),  # 10 pixels of the square wide
    }
    for box, share in (((1, 1, 12, 3), 1), ((1, 1, 10, 3), 0), ((2, 0.5, 4, 11.5), 1)):
        pairs = [pair | {"target_box": np.array(box)}, half]
        result = analysis.keypoint_correspondence(
            unit_colours, pairs, PIXELS, thresholds=(0.19, 0.21), threshold="box"
        )
        pck = result["pck"].sel(average="point", layer="colour")
        assert pck.sel(category="a").values.tolist() == [share, share]
        assert pck.sel(category="b").values.tolist() == [0, 1]
    assert result.attrs["threshold"] == "box" and result.attrs["similarity"] == "cosine"


def test_images_of_any_size_are_measured_in_their_squares(rng):
    """A wide image found in itself turned on its side: both fill the square, along other axes."""
    image = rng.normal(size=(6, 12, 8)).astype("float32")
    points = np.array([[1.5, 2.5], [4.5, 10.5]])
    pair = {
        "category": "wide",
        "source": image,
        "target": image.transpose(1, 0, 2),
        "source_points": points,
        "target_points": points[:, ::-1],
    }
    result = analysis.keypoint_correspondence(unit_colours, [pair], PIXELS, thresholds=(0.001,))
    assert result["score"].values.ravel().tolist() == [1, 1]


def patch_features(images):
    """The mean colours of patches with those around them, and noise that sees nothing."""
    small = tf.nn.avg_pool2d(images, 4, 4, "VALID")
    around = tf.image.extract_patches(
        small, (1, 3, 3, 1), (1, 1, 1, 1), (1, 1, 1, 1), padding="SAME"
    )
    return {
        "patches": tf.concat([small * 3, around], axis=-1),
        "noise": tf.random.stateless_normal(tf.shape(around), (1, 2)),
    }


@pytest.mark.slow
def test_shapes_are_found_by_their_colours_in_themselves_and_not_by_noise():
    pairs = data.load_shape_pairs(8, image_size=32)
    same = [p | {"target": p["source"], "target_points": p["source_points"]} for p in pairs]
    moved = [shifted(pair, (4, 8)) for pair in pairs]
    grid = TokenGrid(8, 8, 0, 4)
    actual, again = (
        analysis.keypoint_correspondence(patch_features, some, grid)["score"].sel(average="point")
        for some in (same, moved)
    )
    # The centre of a pixel can lie further from the point in it than 0.01 * 32 pixels.
    assert (actual.sel(layer="patches", threshold=[0.1, 0.05]) == 1).all()
    assert (again.sel(layer="patches", threshold=[0.1, 0.05]) == 1).all()
    assert again.sel(layer="noise", threshold=0.1) < 0.3


def shifted(pair, step):
    """A pair of an image and the same image moved by whole patches.

    Of its points those that are a patch or more from the edges, where features are enlarged alike.
    """
    points = pair["source_points"] + step
    saved = ((pair["source_points"] >= 4) & (points <= 28)).all(axis=1)
    return pair | {
        "target": np.roll(pair["source"], step, axis=(0, 1)),
        "source_points": pair["source_points"][saved],
        "target_points": points[saved],
    }


def points(*places):
    return {"target_points": np.reshape(places, (-1, 2))}


NONE = {"source_points": np.zeros((0, 2)), "target_points": np.zeros((0, 2))}
BOX = {"target_box": [0, 0, 12, 12]}


@pytest.mark.parametrize(
    ("changes", "options", "words"),
    [
        ([], {}, "at least one pair"),
        ([{}], {"grid": TokenGrid(12, 6, 0, 1)}, "as many rows as columns"),
        ([{}, points(3.5, 12.5)], {}, "within their image.*pair 1 with target"),
        ([{}, points(1, 1, 2, 2)], {}, "within their image.*pair 1 with target"),
        ([{}, points(-1, 3)], {}, "within their image.*pair 1 with target"),
        ([{}, points(math.nan, 1)], {}, "within their image.*pair 1 with target"),
        ([NONE], {}, "at least one point"),
        ([BOX, {"target_box": [0, 12, 12, 12]}], {"threshold": "box"}, "not empty"),
        ([BOX, {}], {"threshold": "box"}, "target_box .*Pair 1 has none"),
        ([BOX, {"target_box": [0, 0, 12]}], {"threshold": "box"}, "target_box .*Pair 1"),
        ([{}], {"threshold": "boxes"}, "threshold='boxes'"),
        ([{}], {"similarity": "product"}, "similarity='product'"),
        (
            [{"target": np.full((12, 12, 8), math.nan)}],
            {},
            "NaN in 1 of 1 images, first in image 0",
        ),
        ([{}], {"model": lambda images: {"colour": images * math.nan}}, "finite.*colour"),
    ],
)
def test_errors(rng, changes, options, words):
    good = moved_pair(rng, (0, 0), "a", [[3.5, 3.5]])
    settings = {"model": unit_colours, "grid": PIXELS} | options
    with pytest.raises(ValueError, match=words):
        analysis.keypoint_correspondence(pairs=[good | change for change in changes], **settings)
