"""SPair-71k in its released layout: small files with the quirks of the real ones."""

import numpy as np
import pytest
from image_folders import turned
from PIL import Image
from spair_files import write_image, write_pairs

from vit_tf import Preprocessing, TokenGrid, analysis
from vit_tf.analysis.objects.keypoints import square_image, square_layout
from vit_tf.data import load_spair


@pytest.fixture
def mirrored(rng, tmp_path):
    """A pair of an image of noise, 16 wide and 10 high, and its mirror image."""
    pixels = rng.integers(0, 256, (10, 16, 3))
    write_image(tmp_path, "cat", "left", pixels)
    write_image(tmp_path, "cat", "right", pixels[:, ::-1])
    points = [[0, 0], [15, 9], [3, 8], [12, 1]]
    write_pairs(tmp_path, [("cat", "left", "right", points, [[15 - x, y] for x, y in points])])
    return tmp_path, pixels


def colours(images):
    return {"colour": images}


def test_points_are_the_centres_of_the_pixels_that_the_files_number(mirrored):
    root, pixels = mirrored
    [pair] = load_spair(root, pairs_per_category=None)
    assert pair["category"] == "cat" and pair["name"] == "000001-left-right:cat"
    assert pair["source_points"].tolist() == [[0.5, 0.5], [9.5, 15.5], [8.5, 3.5], [1.5, 12.5]]
    assert pair["target_points"].tolist() == [[0.5, 15.5], [9.5, 0.5], [8.5, 12.5], [1.5, 3.5]]
    assert pair["left_out"] == 0
    np.testing.assert_allclose(pair["source"], pixels / 127.5 - 1, atol=1e-6)
    np.testing.assert_allclose(pair["target"], pixels[:, ::-1] / 127.5 - 1, atol=1e-6)


@pytest.mark.parametrize(
    "options",
    [{}, {"image_size": 8}, {"image_size": 40}, {"preprocessing": Preprocessing((24, 24))}],
)
def test_boxes_are_kept_and_scale_with_the_image(mirrored, options):
    """In the file (left, top, right, bottom) number pixels, here they are centres like points."""
    root, _ = mirrored
    points = [[4, 3], [13, 8]]
    boxes = {"src_bndbox": [4, 3, 13, 8], "trg_bndbox": [2, 1, 5, 9]}
    write_pairs(root, [("cat", "left", "right", points, points)], **boxes)
    [pair] = load_spair(root, pairs_per_category=1, **options)
    height, width = pair["source"].shape[:2]
    scale = np.array([height / 10, width / 16] * 2)
    np.testing.assert_allclose(pair["source_box"], np.array([3.5, 4.5, 8.5, 13.5]) * scale)
    np.testing.assert_allclose(pair["target_box"], np.array([1.5, 2.5, 9.5, 5.5]) * scale)
    np.testing.assert_allclose(pair["source_box"], pair["source_points"].ravel())


def test_thresholds_of_boxes_are_those_of_the_files(mirrored):
    """Noise is found one pixel of 16 beside its keypoint, with boxes 9 and 11 pixels high."""
    root, pixels = mirrored
    write_image(root, "cat", "right", np.roll(pixels, 1, axis=1))
    points = [[5, 4], [9, 6]]
    grid = TokenGrid(16, 16, 0, 1)
    for bottom, share in ((9, 0), (11, 1)):
        box = [3, 0, 7, bottom]
        cat = ("cat", "left", "right", points, points)
        write_pairs(root, [cat], trg_bndbox=box, src_bndbox=[0, 0, 15, 9])
        pairs = load_spair(root, pairs_per_category=1)
        found = analysis.keypoint_correspondence(
            colours, pairs, grid, thresholds=(0.1,), threshold="box"
        )
        assert found["score"].values.ravel().tolist() == [share, share]


def test_colours_find_each_keypoint_in_the_mirror_image_exactly(mirrored):
    pairs = load_spair(mirrored[0], pairs_per_category=1)
    found = analysis.keypoint_correspondence(
        colours, pairs, TokenGrid(16, 16, 0, 1), thresholds=(1e-4,)
    )
    assert found["score"].values.ravel().tolist() == [1, 1]


@pytest.mark.parametrize("side", [8, 9, 16, 40])
def test_images_are_resized_as_correspondence_does(mirrored, side):
    root, _ = mirrored
    [full], [pair] = (
        load_spair(root, pairs_per_category=None, image_size=size) for size in (None, side)
    )
    (height, width), (top, left) = square_layout(10, 16, side)
    expected = square_image(full["source"], side)[top : top + height, left : left + width]
    np.testing.assert_allclose(pair["source"], expected, atol=1e-5)
    scale = np.array([height / 10, width / 16])
    np.testing.assert_allclose(pair["source_points"], full["source_points"] * scale)
    assert square_layout(height, width, side) == ((height, width), (top, left))


def test_preprocessing_names_size_and_values(mirrored):
    root, pixels = mirrored
    mean, std = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.1])
    preprocessing = Preprocessing((16, 16), tuple(mean), tuple(std))
    [pair] = load_spair(root, pairs_per_category=1, preprocessing=preprocessing)
    np.testing.assert_allclose(pair["source"], (pixels / 255 - mean) / std, atol=1e-5)
    halves = [
        load_spair(
            root, pairs_per_category=1, preprocessing=Preprocessing((8, 8), interpolation=method)
        )[0]["source"]
        for method in ("bilinear", "bicubic")
    ]
    assert halves[0].shape == (5, 8, 3) and np.abs(halves[0] - halves[1]).max() > 0.05


def test_images_of_every_mode_become_colours_as_they_are_stored(tmp_path, rng):
    folder = tmp_path / "JPEGImages" / "bus"
    folder.mkdir(parents=True)
    grey = rng.integers(0, 256, (8, 12)).astype(np.uint8)
    Image.fromarray(grey).save(folder / "grey.jpg", quality=100)
    red = Image.new("RGB", (12, 8), (200, 30, 40))
    red.convert("CMYK").save(folder / "cmyk.jpg", quality=100)
    # A quarter turn, which the keypoints ignore.
    Image.new("RGB", (20, 8), (9, 9, 9)).save(folder / "turned.jpg", exif=turned())
    pairs = [
        ("bus", "grey", "cmyk", [[11, 7]], [[1, 2]]),
        ("bus", "turned", "grey", [[19, 7]], [[3, 4]]),
    ]
    write_pairs(tmp_path, pairs)
    first, second = load_spair(tmp_path, pairs_per_category=None)
    stored = np.asarray(Image.open(folder / "grey.jpg"))
    np.testing.assert_allclose(
        first["source"], stored[..., None].repeat(3, -1) / 127.5 - 1, atol=1e-6
    )
    np.testing.assert_allclose(
        first["target"][4, 4], np.divide([200, 30, 40], 127.5) - 1, atol=0.05
    )
    assert second["source"].shape == (8, 20, 3)
    assert second["target"] is first["source"]  # read once


def test_keypoints_beyond_an_image_are_left_out_of_both(tmp_path):
    for name in ("a", "b"):
        write_image(tmp_path, "dog", name, np.zeros((6, 9, 3)))
    source = [[8, 5], [9, 5], [4, 3], [0, 0], [2, 2]]
    target = [[0, 0], [1, 1], [4, 6], [-1, 0], [3, 1]]
    write_pairs(tmp_path, [("dog", "a", "b", source, target)])
    [pair] = load_spair(tmp_path, pairs_per_category=1)
    assert pair["source_points"].tolist() == [[5.5, 8.5], [2.5, 2.5]]
    assert pair["target_points"].tolist() == [[0.5, 0.5], [1.5, 3.5]]
    assert pair["left_out"] == 3
    write_pairs(tmp_path, [("dog", "a", "b", [[9, 0]], [[0, 0]])])
    with pytest.raises(ValueError, match=r"within both images. Received: pair 000001-a-b:dog"):
        load_spair(tmp_path, pairs_per_category=1)
    write_pairs(tmp_path, [("dog", "a", "b", [], [])])
    with pytest.raises(ValueError, match=r"at least one keypoint"):
        load_spair(tmp_path, pairs_per_category=1)


def names_of(root, **options):
    return [pair["name"] for pair in load_spair(root, **options)]


def test_pairs_are_drawn_by_category_and_seed(tmp_path):
    for category in ("ant", "bee"):
        for name in "abcdef":
            write_image(tmp_path, category, name, np.zeros((4, 4, 3)))
    points = [[1, 1]]
    every = [
        (category, x, y, points, points)
        for x in "abcdef"
        for y in "abcdef"
        for category in ("bee", "ant")
    ]
    lines = write_pairs(tmp_path, every)
    write_pairs(tmp_path, every[:3], "small")
    assert names_of(tmp_path, pairs_per_category=None) == lines
    assert names_of(tmp_path, pairs_per_category=None, size="small") == lines[:3]
    small, again, large, other = (
        names_of(tmp_path, pairs_per_category=count, seed=seed)
        for count, seed in ((5, 0), (5, 0), (9, 0), (5, 1))
    )
    assert small == again and small != other and set(small) < set(large)
    assert small == sorted(small)  # as in the list
    for category in ("ant", "bee"):
        assert [sum(name.endswith(category) for name in some) for some in (small, large)] == [5, 9]
    default = names_of(tmp_path)
    assert len(default) == 40


def test_a_category_of_few_pairs_gives_all_of_them_and_is_named(tmp_path, recwarn):
    for category in ("ant", "bee", "cat"):
        for name in "abcdef":
            write_image(tmp_path, category, name, np.zeros((4, 4, 3)))
    points = [[1, 1]]
    few = [("ant", "a", y, points, points) for y in "bcd"]
    few += [("cat", x, "f", points, points) for x in "ab"]
    many = [("bee", x, y, points, points) for x in "abcde" for y in "abcde"]
    lines = write_pairs(tmp_path, [*few, *many])
    with pytest.warns(UserWarning, match=r"20 pairs of each category.*: ant \(3\), cat \(2\)$"):
        found = names_of(tmp_path)
    assert found[:5] == lines[:5]
    assert len(found) == 25 and set(found) <= set(lines)
    # The pairs of the other categories are those of a list in which these have enough.
    everything = [("ant", x, y, points, points) for x in "abcde" for y in "abcde"]
    everything += [("cat", x, y, points, points) for x in "abcde" for y in "abcde"]
    write_pairs(tmp_path, [*many, *everything])
    bees = [name.split("-", 1)[1] for name in names_of(tmp_path) if name.endswith("bee")]
    assert bees == [name.split("-", 1)[1] for name in found if name.endswith("bee")]
    with pytest.warns(UserWarning, match=r": ant \(25\), bee \(25\), cat \(25\)$"):
        assert len(names_of(tmp_path, pairs_per_category=26)) == 75
    assert not recwarn.list


def test_errors(mirrored):
    root, _ = mirrored

    def expect(match, **options):
        with pytest.raises(ValueError, match=match):
            load_spair(root, **{"pairs_per_category": 1} | options)

    expect(r"Unknown split.*'train'", split="train")
    expect(r"Unknown size.*'huge'", size="huge")
    expect(r"List of image pairs not found: .*Layout/small/test\.txt'", size="small")
    expect(r"pairs_per_category to be an integer >= 1", pairs_per_category=0)
    expect(r"seed to be an integer >= 0", seed=-1)
    expect(r"a square image_size.*\(8, 16\)", image_size=(8, 16))
    points = [[1, 1]]
    cat = ("cat", "left", "right", points, points)
    write_pairs(root, [cat], src_imsize=[10, 16, 3])
    expect(r"annotated size, \(16, 10\). Received: .*left\.jpg' of \(10, 16\)")
    write_pairs(root, [cat], trg_kps=[[1, 1], [2, 2]])
    expect(r"JSON file of a pair.*another number of source than of target")
    write_pairs(root, [cat], trg_kps=[[1, 1], [2]])
    expect(r"JSON file of a pair")
    for wrong in ([1, 2, 3], [1, 2, 3, None], [5, 5, 5, 9], [2, 9, 8, 3]):
        write_pairs(root, [cat], trg_bndbox=wrong)
        expect(r"JSON file of a pair.*left-right:cat\.json' \(.*trg_bndbox")
    write_pairs(root, [cat], trg_imname="gone.jpg")
    expect(r"File not found: .*JPEGImages/cat/gone\.jpg")
    [line] = write_pairs(root, [cat])
    path = root / "PairAnnotation/test" / f"{line}.json"
    path.write_text('{"category": "cat", "src_kps": []}')
    expect(r"left-right:cat\.json' \(without src_imname, trg_imname, trg_kps\)")
    path.write_text('{"category": "cat", "src')
    expect(r"Expected the JSON file of a pair.*left-right:cat\.json'")
    path.unlink()
    expect(r"Expected the JSON file of a pair.*No such file")
    (root / "Layout/large/test.txt").write_text("000001-left-right\n")
    expect(r"Expected a list of pairs such as.*'000001-left-right'")
