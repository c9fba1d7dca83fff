"""Shapes against formulas of their area, and their annotations against each other."""

import dataclasses
import math

import numpy as np
import pytest

from vit_tf import data
from vit_tf.data import shapes, shapes as scenes
from vit_tf.data.shapes import (
    BACK_TONE,
    GRAIN,
    KINDS,
    NOTCH,
    Scene,
    Shape,
    half_masks,
    numbered_scene,
    pixel_centres,
    shape_masks,
)

FINE = (400, 400)
TENTH = math.asin(0.3)  # the angle at which a dome is cut
AREAS = {
    "disc": math.pi,
    "ring": math.pi * (1 - 0.55**2),
    "square": 1.4**2,
    "triangle": 3 * math.sqrt(3) / 4,
    "cross": 2 * 1.9 * 0.6 - 0.6**2,
    "star": 5 * NOTCH * math.sin(math.pi / 5),
    "dome": math.pi / 2 + TENTH + 0.3 * math.cos(TENTH),
    "arrow": 0.8 + 0.6 * 0.95,
}
# Shares of the area in front of the centre.
FRONTS = {
    **dict.fromkeys(("disc", "ring", "square", "cross"), 0.5),
    "triangle": 1 / math.sqrt(3) / AREAS["triangle"],
    "dome": math.pi / 2 / AREAS["dome"],
    "arrow": 0.8 / AREAS["arrow"],
}


def plain(*shapes):
    return Scene(shapes, np.zeros(3), [], [])


def shape(kind, angle=0.0, centre=(0.5, 0.5), radius=0.4):
    return Shape(kind, centre, radius, angle, (250.0, 100.0, 0.0))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("angle", [0.0, 0.7, 3.9])
def test_areas_are_those_of_the_formulas_at_every_turn(kind, angle):
    turned = plain(shape(kind, angle))
    area = (turned.index(FINE) == 1).mean() / 0.4**2
    assert area == pytest.approx(AREAS[kind], rel=0.01)
    if kind in FRONTS:
        front = (turned.index(FINE, of_parts=True) == 1).mean() / 0.4**2
        assert front == pytest.approx(FRONTS[kind] * AREAS[kind], rel=0.015)
    np.testing.assert_array_equal(turned.index(FINE, of_parts=True) > 0, turned.index(FINE) > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_a_quarter_turn_clockwise_turns_mask_parts_and_keypoints(kind):
    upright, turned = (plain(shape(kind, angle)) for angle in (0.1, 0.1 + math.pi / 2))
    np.testing.assert_array_equal(
        turned.index(FINE, of_parts=True), np.rot90(upright.index(FINE, of_parts=True), -1)
    )
    row, column = upright.shapes[0].keypoints().T
    expected = np.stack([column, 1 - row], axis=-1)
    np.testing.assert_allclose(turned.shapes[0].keypoints(), expected, atol=1e-12)


def test_a_triangle_points_up_and_an_arrow_to_the_right_after_a_quarter_turn():
    rows, columns = np.nonzero(plain(shape("triangle")).index(FINE))
    top = columns[rows == rows.min()].mean() / 400
    assert rows.min() / 400 == pytest.approx(0.1, abs=0.01) and top == pytest.approx(0.5, abs=0.01)
    front = shape("arrow", math.pi / 2).keypoints()[0]
    np.testing.assert_allclose(front, [0.5, 0.5 + 0.8 * 0.4], atol=1e-12)


def test_keypoints_lie_well_within_their_shape_and_on_their_part():
    for kind in KINDS:
        turned = shape(kind, 2.2, (0.4, 0.6), 0.25)
        points = turned.keypoints()
        around = 0.012 * np.array([(0, 0), (1, 0), (-1, 0), (0, 1), (0, -1)])
        assert turned.covers(points[:, None] + around).all(), kind
        assert turned.part(points[:2]).tolist() == [1, 2]
        left, right = (np.subtract(points[i], turned.centre) for i in (2, 3))
        axis = [math.sin(2.2), math.cos(2.2)]
        assert left @ axis < -0.05 and right @ axis > 0.05


def test_pictures_show_the_colours_of_the_parts_where_the_parts_are():
    for kind in KINDS:
        scene = plain(shape(kind, 0.4))
        picture, parts = scene.draw((64, 64)).astype(float), scene.index((64, 64), of_parts=True)
        for part, tone in ((0, 0.0), (1, 1.0), (2, BACK_TONE)):
            inner = np.median(picture[parts == part], axis=0)
            np.testing.assert_allclose(inner, np.array([250, 100, 0]) * tone, atol=8)


def test_light_scales_the_colours_but_not_the_noise():
    scene = Scene((shape("disc", radius=0.7),), np.full(3, 90.0), [], [])
    dim = dataclasses.replace(scene, light=0.6).draw((64, 64)).astype(float)
    front, back = (dim[scene.index((64, 64), of_parts=True) == part] for part in (1, 2))
    expected = 0.6 * np.array([250, 100, 0])
    np.testing.assert_allclose(np.median(front, axis=0), expected, atol=2)
    np.testing.assert_allclose(np.median(back, axis=0), expected * BACK_TONE, atol=2)
    np.testing.assert_allclose(front[:, :2].std(axis=0), GRAIN, rtol=0.08)


def test_later_shapes_cover_earlier_ones():
    below, above = shape("disc"), shape("square", radius=0.2)
    index = plain(below, above).index(FINE)
    square = above.covers(pixel_centres(FINE))
    assert (index[square] == 2).all() and (index[~square] < 2).all() and (index == 1).any()


@pytest.mark.slow
def test_load_gives_eight_balanced_classes_of_images():
    train, test = data.load("shapes", image_size=32, take={"train": 64, "test": 24})
    images, labels = next(iter(test))
    assert images.shape == (24, 32, 32, 3) and np.bincount(labels).tolist() == [3] * 8
    assert -1 <= images.numpy().min() < -0.5 and 0.5 < images.numpy().max() <= 1
    assert np.bincount(np.concatenate([y for _, y in train])).tolist() == [8] * 8
    found = data.describe("shapes")
    assert found.class_names == tuple(KINDS) and found.num_classes == 8
    assert found.num_examples == {"train": 20_000, "test": 1000}


def test_annotations_are_of_the_images_that_load_returns():
    known = data.load_shapes(image_size=32, take=24)
    (test,) = data.load("shapes", image_size=32, splits=("test",), take=24)
    images, labels = next(iter(test))
    np.testing.assert_array_equal(known["image"], images)
    np.testing.assert_array_equal(known["label"], labels)
    for image, parts in zip(known["image"], known["parts"], strict=True):
        front, back = (image[parts == part].max(-1).mean() for part in (1, 2))
        assert front > back + 0.3  # as the colours are
    np.testing.assert_array_equal(known["mask"], known["parts"] > 0)


@pytest.mark.slow
def test_keypoints_are_pixels_on_the_mask_where_visible():
    known = data.load_shapes(take=80)
    inside = ((known["keypoints"] >= 0) & (known["keypoints"] < 64)).all(-1)
    np.testing.assert_array_equal(inside, known["visible"])
    assert 0 < (~inside).sum() < inside.sum()
    example, keypoint = np.nonzero(inside)
    rows, columns = np.floor(known["keypoints"][example, keypoint]).astype(int).T
    assert known["mask"][example, rows, columns].all()
    small = data.load_shapes(take=80, image_size=(32, 16))
    np.testing.assert_allclose(small["keypoints"] * [2, 4], known["keypoints"])


def test_scenes_depend_on_their_number_alone():
    first, again, other = (numbered_scene(number).draw((64, 64)) for number in (5, 5, 13))
    np.testing.assert_array_equal(first, again)
    assert numbered_scene(5).shapes[0].kind == numbered_scene(13).shapes[0].kind == "star"
    assert np.abs(first.astype(int) - other).mean() > 10
    few, more = (data.load_shapes("train", take=None if n is None else n) for n in (8, 16))
    chosen = {image.tobytes() for image in more["image"]}
    assert {image.tobytes() for image in few["image"]} <= chosen


def test_each_scene_has_a_light_of_its_own():
    light = [numbered_scene(number).light for number in range(80)]
    assert scenes.DIMMEST <= min(light) < scenes.DIMMEST + 0.02 and 0.98 < max(light) <= 1
    assert abs(np.mean(light) - (scenes.DIMMEST + 1) / 2) < 0.03


@pytest.mark.slow
def test_colour_and_brightness_do_not_predict_the_kind():
    """Nearest class means of colour and brightness do no better than chance allows."""
    known = data.load_shapes("train", take=240)
    mean = known["image"].mean((1, 2))
    fit, rest = slice(0, None, 2), slice(1, None, 2)
    centres = [mean[fit][known["label"][fit] == kind].mean(0) for kind in range(8)]
    guess = np.linalg.norm(mean[rest][:, None] - centres, axis=-1).argmin(-1)
    assert (guess == known["label"][rest]).mean() < 0.3


def test_videos_move_apart_from_the_ground_and_its_light(monkeypatch):
    monkeypatch.setattr(scenes, "GRAIN", 0.0)
    videos = data.load_shape_videos(3, num_frames=6, image_size=(40, 48))
    assert videos["image"].shape == (3, 6, 40, 48, 3) and videos["index"].shape == (3, 6, 40, 48)
    for colours, index, ground in zip(*ground_of(videos, 6), strict=True):
        assert np.unique(index[0]).tolist() in ([0, 1, 2], [0, 1, 2, 3])
        assert 0.1 < ground.mean() < 0.9
        seen = colours[:, ground]
        light = seen.sum(axis=(1, 2), keepdims=True) / seen[:1].sum()
        # Half a level of rounding on each side.
        np.testing.assert_allclose(seen, light * seen[0], atol=0.51 * (1 + light.max()))
        assert np.ptp(light) > 0.05
        assert light.min() > scenes.DIMMEST - 0.01 and light.max() < 1 / scenes.DIMMEST + 0.01
        centres = [np.argwhere(index[t] == 1).mean(0) for t in (0, 2)]
        assert np.linalg.norm(centres[1] - centres[0]) > 0.3


def test_noise_is_another_in_each_frame(monkeypatch):
    monkeypatch.setattr(scenes, "DIMMEST", 1.0)
    videos = data.load_shape_videos(3, num_frames=3, image_size=(40, 48))
    for colours, _, ground in zip(*ground_of(videos, 3), strict=True):
        for one, other in ((0, 1), (1, 2), (0, 2)):
            noise = (colours[one] - colours[other])[ground & (colours.min(axis=(0, 3)) > 0)]
            assert noise.mean() == pytest.approx(0, abs=1)
            assert noise.std() == pytest.approx(math.sqrt(2) * GRAIN, rel=0.08)


def ground_of(videos, num_frames):
    """Colours in [0, 255], indices, and the pixels that are all ground in all frames.

    Args:
        videos: those of `load_shape_videos(3, num_frames=num_frames, image_size=(40, 48))`.
    """
    finer = data.load_shape_videos(3, num_frames=num_frames, image_size=(80, 96))["index"]
    subpixels = finer.reshape(3, num_frames, 40, 2, 48, 2)
    ground = (subpixels == 0).all(axis=(1, 3, 5))
    return np.round((videos["image"].astype(float) + 1) * 127.5), videos["index"], ground


@pytest.mark.slow
def test_shapes_of_a_video_differ_in_form_and_not_in_colour():
    seen = []
    for number in range(10):
        first = scenes.random_motion(2, np.random.default_rng(number))[0]
        image, parts, index = first.draw(FINE), first.index(FINE, of_parts=True), first.index(FINE)
        count = len(first.shapes)
        fronts = [image[(parts == 1) & (index == i + 1)] for i in range(count)]
        seen.append(np.mean([np.median(front, axis=0) for front in fronts], axis=0))
        for front in fronts:
            np.testing.assert_allclose(np.median(front, axis=0), seen[-1], atol=1)
        assert len({shape.kind for shape in first.shapes}) == count
    assert np.ptp(seen, axis=0).min() > 50


def test_videos_depend_on_their_number_and_seed_alone():
    one, two, other = (
        data.load_shape_videos(count, num_frames=2, image_size=(40, 48), seed=seed)
        for count, seed in ((1, 0), (2, 0), (1, 1))
    )
    for what in ("image", "index"):
        np.testing.assert_array_equal(one[what][0], two[what][0])
        assert (other[what][0] != one[what][0]).any()


@pytest.mark.slow
def test_pairs_are_of_one_kind_and_of_keypoints_seen_in_both(monkeypatch):
    monkeypatch.setitem(shapes.NUM_EXAMPLES, "test", 160)
    pairs = data.load_shape_pairs(40, image_size=(32, 16))
    assert [pair["category"] for pair in pairs] == 5 * list(KINDS)
    known = data.load_shapes(image_size=(32, 16))
    where = {image.tobytes(): number for number, image in enumerate(known["image"])}
    masks = data.load_shapes(image_size=64)["mask"]
    hidden = 0
    for pair in pairs:
        source, target = (where[pair[name].tobytes()] for name in ("source", "target"))
        assert source != target and list(KINDS)[known["label"][target]] == pair["category"]
        both = known["visible"][source] & known["visible"][target]
        assert both.sum() >= 2
        hidden += (~both).sum()
        np.testing.assert_array_equal(pair["source_points"], known["keypoints"][source][both])
        np.testing.assert_array_equal(pair["target_points"], known["keypoints"][target][both])
        for name, number in (("source", source), ("target", target)):
            rows, columns = np.nonzero(masks[number])
            box = [rows.min(), columns.min(), rows.max() + 1, columns.max() + 1]
            np.testing.assert_allclose(pair[f"{name}_box"], np.divide(box, [2, 4, 2, 4]))
            (top, left, bottom, right), points = pair[f"{name}_box"], pair[f"{name}_points"]
            assert ((points >= (top, left)) & (points <= (bottom, right))).all()
    assert hidden
    again, other = (data.load_shape_pairs(3, image_size=(32, 16), seed=seed) for seed in (0, 1))
    np.testing.assert_array_equal(again[2]["target"], pairs[2]["target"])
    assert not np.array_equal(other[2]["target"], pairs[2]["target"])


def test_errors():
    with pytest.raises(ValueError, match=r"take to be an integer >= 1. Received: take=0"):
        data.load_shapes(take=0)
    with pytest.raises(ValueError, match="take to be at most 1000"):
        data.load_shapes(take=1001)
    with pytest.raises(ValueError, match="has the splits train, test"):
        data.load_shapes("dev")
    with pytest.raises(ValueError, match="num_frames to be an integer >= 1"):
        data.load_shape_videos(num_frames=0)


def test_masks_of_shapes_and_of_their_halves_are_annotations():
    found = data.load_shapes("test", image_size=16, take=5)
    whole, halves = list(shape_masks(found, 3)), list(half_masks(found, 3))
    assert [len(batch[0]) for batch in whole] == [len(batch[0]) for batch in halves] == [3, 2]
    _, masks, labels = (np.concatenate(parts) for parts in zip(*whole, strict=True))
    assert np.array_equal(masks, found["mask"][:, None])
    assert np.array_equal(labels[:, 0], found["label"])
    images, masks, labels = (np.concatenate(parts) for parts in zip(*halves, strict=True))
    assert np.array_equal(images, found["image"])
    assert np.array_equal(masks.any(axis=1), found["parts"] > 0) and not masks.all(axis=1).any()
    assert np.array_equal(masks[:, 1], found["parts"] == 2)
    assert np.array_equal(labels // 2, found["label"][:, None] + [0, 0])
    assert (labels % 2 == [0, 1]).all()


def test_textured_shapes_have_the_silhouettes_of_the_shapes():
    scene = shapes.numbered_scene(11)
    textured = shapes.numbered_scene(11, shapes.own_kind)
    np.testing.assert_array_equal(scene.index((64, 64)), textured.index((64, 64)))
    # The ground is grey, but for the noise.
    ground = textured.draw((64, 64))[scene.index((64, 64)) == 0].astype(float)
    spread = np.ptp(ground, axis=-1)
    assert np.median(spread) < 4 * shapes.GRAIN < 2 * np.ptp(textured.shapes[0].colour)


def test_conflicting_cues_are_of_two_classes_in_all_pairs():
    images, labels = data.load_cue_conflict(56, image_size=32)
    assert images.shape == (56, 32, 32, 3) and labels.dtype == np.int32
    pairs = set(map(tuple, labels.tolist()))
    assert len(pairs) == 56 and all(shape != texture for shape, texture in pairs)
    # The shapes are those of the test images: their colours lie on a grey ground.
    first = shapes.FIRST["test"]
    for image, label, number in zip(images, labels[:, 0], range(first, first + 56), strict=True):
        scene = numbered_scene(number)
        assert list(KINDS)[label] == scene.shapes[0].kind
        spread, inside = np.ptp(image, axis=-1), scene.index((32, 32)) > 0
        assert np.median(spread[inside]) > 4 * np.median(spread[~inside]), number
    with pytest.raises(ValueError, match="count"):
        data.load_cue_conflict(1001)
