"""COCO and PartImageNet: masks against pycocotools and drawn rectangles, and the odd files."""

import json
import sys

import numpy as np
import pytest
import tensorflow as tf
from coco_files import box, note, write
from PIL import Image
from pycocotools import mask as mask_tools
from pycocotools.coco import COCO

from vit_tf import Preprocessing, TokenGrid, analysis, data

NAMES = ("person", "cat", "dog")


def filled(shape, top, left, bottom, right):
    mask = np.zeros(shape, bool)
    mask[top:bottom, left:right] = True
    return mask


def runs(mask):
    """Uncompressed run lengths of a mask: column by column, zeros first."""
    flat = np.asarray(mask, int).ravel(order="F")
    changes = np.flatnonzero(np.diff(flat)) + 1
    counts = np.diff([0, *changes, flat.size]).tolist()
    return {"size": list(mask.shape), "counts": [0, *counts] if flat[0] else counts}


def compressed(mask):
    found = mask_tools.encode(np.asfortranarray(mask, np.uint8))
    return {"size": list(mask.shape), "counts": found["counts"].decode()}


def load(files, **settings):
    """All of `load_coco` in one batch, as arrays."""
    (batch,) = data.load_coco(*files, batch_size=1000, **settings).as_numpy_iterator()
    return batch


def black(*shape):
    return np.zeros((*shape, 3), np.uint8)


# Masks


def test_masks_of_every_form_are_those_of_pycocotools_and_of_numpy(tmp_path, rng):
    shape = (30, 41)
    holes = rng.random(shape) < 0.3
    inverse = ~holes
    blob = [3.2, 4.7, 33.9, 2.1, 28.4, 25.5, 8.8, 21.3]
    annotations = [
        note(1, [box(2, 5, 20, 9)]),
        note(1, [box(0, 0, 4, 4), box(10, 30, 30, 41)], 17),
        note(1, runs(holes), 18),
        note(1, runs(inverse), 18),
        note(1, compressed(holes), 17),
        note(1, [blob], 1),
        note(2, [box(29, 40, 30, 41)], 18),
    ]
    files = write(tmp_path, {"a.png": black(*shape), "b.png": black(*shape)}, annotations)
    assert data.coco_categories(files[0]) == NAMES
    images, masks, labels = load(files)
    assert masks.dtype == bool and labels.dtype == np.int32 and images.dtype == np.float32
    np.testing.assert_array_equal(labels, [[0, 1, 2, 2, 1, 0], [2, -1, -1, -1, -1, -1]])
    two = filled(shape, 0, 0, 4, 4) | filled(shape, 10, 30, 30, 41)
    drawn = [filled(shape, 2, 5, 20, 9), two, holes, inverse, holes]
    np.testing.assert_array_equal(masks[0, :5], drawn)
    np.testing.assert_array_equal(masks[1, 0], filled(shape, 29, 40, 30, 41))
    assert not masks[1, 1:].any()
    coco = COCO(files[0])
    theirs = [coco.annToMask(coco.anns[100 + i]) for i in range(7)]
    np.testing.assert_array_equal(np.concatenate([masks[0], masks[1, :1]]), theirs)
    ((_, union),) = data.union_masks(data.load_coco(*files)).as_numpy_iterator()
    np.testing.assert_array_equal(union[0], np.any(theirs[:6], axis=0))
    np.testing.assert_array_equal(union[1], theirs[6])


@pytest.mark.parametrize("size", [(32, 32), (24, 96), (130, 200), (60, 90)])
def test_image_and_mask_are_resized_equally(tmp_path, size):
    rectangles = [(7, 13, 41, 30), (0, 60, 60, 90), (20, 0, 33, 90)]
    drawn = [filled((60, 90), *rectangle)[..., None] for rectangle in rectangles]
    images = {f"{i}.png": np.repeat(255 * mask, 3, axis=-1) for i, mask in enumerate(drawn)}
    notes = [note(i, [box(*rectangle)]) for i, rectangle in enumerate(rectangles, 1)]
    images, masks, _ = load(write(tmp_path, images, notes), image_size=size)
    # A pixel is the object's if its centre is.
    rows, columns = ((np.arange(n) + 0.5) * m / n for n, m in zip(size, (60, 90), strict=True))
    for image, (mask,), (top, left, bottom, right) in zip(images, masks, rectangles, strict=True):
        within = (left <= columns) & (columns < right)
        np.testing.assert_array_equal(mask, ((top <= rows) & (rows < bottom))[:, None] & within)
        assert mask.any() and not mask.all()
        bright = image[..., 0] > 0
        border = grown(mask) & grown(~mask)
        np.testing.assert_array_equal(bright[~border], mask[~border])


def grown(mask):
    """A mask and the pixels next to it."""
    around = np.pad(mask, 1)
    height, width = mask.shape
    shifts = [around[i : i + height, j : j + width] for i in range(3) for j in range(3)]
    return np.any(shifts, axis=0)


# Odd annotations


def test_crowds_and_objects_without_area_are_left_out(tmp_path):
    crowd = runs(filled((10, 12), 0, 0, 10, 12))
    annotations = [
        note(1, crowd, 1, iscrowd=1),
        note(1, [box(1, 2, 5, 6)], 18),
        note(1, [[2, 2, 9, 9]], 17),  # two points, which pycocotools takes for a box
        note(1, [[1, 1, 8, 8, 4, 4]], 17),  # on one line
        note(1, [[3.1, 3.1, 3.2, 3.1, 3.2, 3.2]], 17),  # less than a pixel
        note(1, [], 17),
        note(1, [[2, 2, 9, 9], box(6, 7, 9, 10)], 17),
        note(2, crowd, 1, iscrowd=1),
        note(3, [[0, 0]], 1),
    ]
    del annotations[1]["iscrowd"]
    images = {f"{i}.png": black(10, 12) for i in range(4)}
    images, masks, labels = load(write(tmp_path, images, annotations))
    np.testing.assert_array_equal(labels, [[2, 1]])
    drawn = [filled((10, 12), 1, 2, 5, 6), filled((10, 12), 6, 7, 9, 10)]
    np.testing.assert_array_equal(masks, [drawn])
    assert len(images) == 1


def test_categories_and_supercategories_select_objects(tmp_path):
    first, second = box(0, 0, 4, 4), box(4, 4, 8, 8)
    annotations = [note(1, [first], 1), note(1, [second], 18), note(2, [first], 17)]
    files = write(tmp_path, {"a.png": black(8, 8), "b.png": 255 - black(8, 8)}, annotations)
    images, masks, labels = load(files, categories=["dog"])
    np.testing.assert_array_equal(labels, [[2]])
    np.testing.assert_array_equal(masks[0, 0], filled((8, 8), 4, 4, 8, 8))
    images, _, labels = load(files, categories=("animal",))
    np.testing.assert_array_equal(labels, [[2], [1]])
    np.testing.assert_array_equal(images[:, 0, 0, 0], [-1, 1])  # in the order of the ids
    assert len(load(files, categories=["cat", "person"])[0]) == 2


# Odd images


def test_images_of_every_kind_are_read_as_they_are_stored(tmp_path):
    levels = np.linspace(0, 240, 16 * 24).reshape(16, 24).astype(np.uint8)
    rgb = np.stack([levels, 255 - levels, levels // 2], axis=-1)
    turned = Image.fromarray(rgb)
    turned.getexif()[0x0112] = 6
    kinds = {
        "grey.jpg": Image.fromarray(levels),
        "cmyk.jpg": Image.fromarray(rgb).convert("CMYK"),
        "turned.png": turned,
        "palette.png": Image.fromarray(levels).convert("P"),
    }
    notes = [note(number, [box(0, 0, 16, 12)]) for number in range(1, 5)]
    files = write(tmp_path, kinds, notes)
    with Image.open(files[1] / "turned.png") as stored, Image.open(files[1] / "cmyk.jpg") as cmyk:
        assert stored.getexif()[0x0112] == 6 and cmyk.mode == "CMYK"
    images, masks, _ = load(files)
    grey = np.repeat(levels[..., None], 3, axis=-1)
    for image, expected, slack in zip(
        images, (grey, rgb, rgb, grey), (3, 6, 0.01, 0.01), strict=True
    ):
        np.testing.assert_allclose((image + 1) * 127.5, expected, atol=slack)
    np.testing.assert_array_equal(masks[:, 0], [filled((16, 24), 0, 0, 16, 12)] * 4)


def test_images_of_odd_sizes(tmp_path):
    annotations = [
        note(1, [box(0, 10, 1, 40)]),
        note(2, [box(3, 0, 5, 1)]),
        note(3, runs(np.ones((1, 1), bool))),
    ]
    images = {"flat.png": black(1, 80), "tall.png": black(8, 1), "dot.png": black(1, 1)}
    _, masks, _ = load(write(tmp_path, images, annotations), image_size=8)
    columns, rows = np.zeros((8, 8), bool), np.zeros((8, 8), bool)
    columns[:, 1:4] = True
    rows[3:5] = True
    np.testing.assert_array_equal(masks[:, 0], [columns, rows, np.ones((8, 8), bool)])


def test_a_model_s_preprocessing_normalises_and_sizes(tmp_path):
    files = write(tmp_path, {"a.png": black(12, 20) + 51}, [note(1, [box(0, 0, 12, 10)])])
    wanted = Preprocessing((6, 4), (0.1, 0.2, 0.3), (0.5, 0.4, 0.2), "bicubic")
    images, masks, _ = load(files, preprocessing=wanted)
    np.testing.assert_allclose(images, np.broadcast_to([0.2, 0, -0.5], (1, 6, 4, 3)), atol=1e-6)
    np.testing.assert_array_equal(masks[0, 0], filled((6, 4), 0, 0, 6, 2))


# PartImageNet


def parts(root, counts):
    """PartImageNet's layout: a folder per class, parts as categories of their object's class."""
    categories, images, annotations = [], {}, []
    for kind, (wordnet, count) in enumerate(counts.items()):
        for part in ("Head", "Body"):
            name = f"{wordnet} {part}"
            categories.append({"id": len(categories), "name": name, "supercategory": wordnet})
        for number in range(count):
            images[f"n{kind:08}/n{kind:08}_{number}.JPEG"] = black(10, 10)
            annotations.append(note(len(images), [box(0, 0, 3, 10)], 2 * kind))
            annotations.append(note(len(images), [box(3, 0, 10, 10)], 2 * kind + 1))
    return write(root, images, annotations, categories)


def test_parts_are_found_in_class_folders_and_taken_evenly(tmp_path):
    files = parts(tmp_path, {"Quadruped": 9, "Fish": 2, "Bottle": 9})
    _, masks, labels = load(files)
    np.testing.assert_array_equal(labels, [[0, 1]] * 9 + [[2, 3]] * 2 + [[4, 5]] * 9)
    np.testing.assert_array_equal(masks[:, 0], [filled((10, 10), 0, 0, 3, 10)] * 20)
    *_, labels = load(files, take=12)
    assert np.bincount(labels.ravel()).tolist() == [5, 5, 2, 2, 5, 5]
    first, same = (data.load_coco(*files, take=7, seed=1, batch_size=3) for _ in range(2))
    assert [len(batch[0]) for batch in first] == [3, 3, 1]
    labels = [np.concatenate([b[2] for b in x.as_numpy_iterator()]) for x in (first, same)]
    np.testing.assert_array_equal(*labels)


def test_the_largest_object_counts_for_the_balance(tmp_path):
    notes = [note(i + 1, [box(0, 0, 2, 2)], 1) for i in range(12)]
    notes += [note(i + 1, [box(0, 0, 8, 8)], 17 if i < 10 else 1) for i in range(12)]
    files = write(tmp_path, {f"{i:02}.png": black(8, 8) for i in range(12)}, notes)
    *_, labels = load(files, take=4)
    assert labels[:, 1].tolist() == [1, 1, 0, 0]


# Analyses


@pytest.mark.slow
def test_analyses_find_the_objects(tmp_path):
    """Patches of one colour per category cluster purely, and attention to them fits the union."""
    colours = {1: (255, 0, 0), 17: (0, 255, 0), 18: (0, 0, 255)}
    images, annotations = {}, []
    for number in range(1, 7):
        image = black(40, 60)
        for column, (category, colour) in enumerate(colours.items()):
            if column < 1 + number % 3:  # so that images differ in their number of objects
                image[10 * column : 10 * column + 10, 15 * column : 15 * column + 15] = colour
                place = box(10 * column, 15 * column, 10 * column + 10, 15 * column + 15)
                annotations.append(note(number, [place], category))
        images[f"{number}.png"] = image
    files = write(tmp_path, images, annotations)
    examples = data.load_coco(*files, image_size=32, batch_size=4)
    grid = TokenGrid(4, 4, 0, 8)

    def patches(batch):
        pooled = tf.nn.avg_pool2d(batch, 8, 8, "VALID")
        return tf.reshape(pooled, (-1, 16, 3))

    found = analysis.object_clustering(lambda x: {"mean": patches(x)}, examples, 3, grid)
    assert found.attrs["objects"] == len(annotations) and found.attrs["left_out"] == 0
    assert found["purity"].item() == 1 and found["ari"].item() == pytest.approx(1)

    def attend(batch):
        bright = tf.cast(tf.reduce_max(patches(batch), axis=-1) > 0, tf.float32)
        to = bright / tf.reduce_sum(bright, axis=-1, keepdims=True)
        return {"weights": tf.repeat(to[:, None, None], 16, axis=2)}

    whole = analysis.attention_saliency(attend, data.union_masks(examples), grid, mass=1)
    assert whole["best_iou"].item() == pytest.approx(1)


# Errors


def entry(**changes):
    def change(content):
        for part, value in changes.items():
            content[part] = value

    return change


def first(part, **changes):
    def change(content):
        content[part][0] |= changes

    return change


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (first("annotations", image_id=77), "1 values of image_id .*: 77"),
        (first("annotations", category_id=3), "1 values of category_id .*: 3"),
        (first("annotations", segmentation={"size": [9, 8], "counts": [72]}), r"annotation 100 .*"),
        (first("annotations", segmentation={"size": [8, 9], "counts": [7]}), "runs of 7 pixels"),
        (first("annotations", segmentation={"size": [8, 9], "counts": "34"}), "runs of 7 pixels"),
        (first("annotations", segmentation={"size": [8, 9], "counts": [80, -8]}), "run lengths"),
        (
            first("annotations", segmentation={"size": [8, 9], "counts": "zz!"}),
            "8 x 9 pixels.*100 .*runs",
        ),
        (first("annotations", segmentation=[0, 0, 8, 0, 8, 8]), "polygons or run lengths"),
        (first("images", height=9, width=8), r"size in the annotations, \(9, 8\)"),
        (entry(annotations=[]), "has no object"),
        (entry(categories="none"), "a list 'categories'"),
        (first("images", file_name=None), "file_name"),
    ],
)
def test_files_that_do_not_fit_are_refused(tmp_path, change, words):
    files = write(tmp_path, {"a.png": black(8, 9)}, [note(1, [box(0, 0, 5, 5)])])
    content = json.loads(files[0].read_text())
    change(content)
    if content["images"][0]["file_name"] is None:
        del content["images"][0]["file_name"]
    files[0].write_text(json.dumps(content))
    with pytest.raises((ValueError, tf.errors.InvalidArgumentError), match=words):
        load(files)


def test_missing_files_are_named(tmp_path):
    images = {f"{i:012}.png": black(4, 4) for i in range(8)}
    files = write(tmp_path, images, [note(i + 1, [box(0, 0, 2, 2)]) for i in range(8)])
    for number in range(1, 8):
        (files[1] / f"{number:012}.png").unlink()
    with pytest.raises(ValueError, match=r"7 of 8 .*: 000000000001.png, .*, 0+7.png$"):
        data.load_coco(*files)
    with pytest.raises(ValueError, match=r"8 of 8 annotated images are not in .*nowhere"):
        data.load_coco(files[0], tmp_path / "nowhere")
    with pytest.raises(ValueError, match=r"path of a COCO JSON file.*nowhere"):
        data.load_coco(tmp_path / "nowhere", files[1])
    (tmp_path / "bad.json").write_text('{"images": [')
    with pytest.raises(ValueError, match=r"path of a COCO JSON file.*bad\.json"):
        data.coco_categories(tmp_path / "bad.json")
    (files[1] / "000000000000.png").write_bytes(b"not an image")
    kept = json.loads(files[0].read_text())
    kept["annotations"] = kept["annotations"][:1]
    files[0].write_text(json.dumps(kept))
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"undecodable .*000000000000\.png"):
        load(files)


def test_arguments_out_of_range_are_refused(tmp_path):
    images = {"a.png": black(4, 4), "b.png": black(4, 5)}
    files = write(tmp_path, images, [note(1, [box(0, 0, 2, 2)]), note(2, [box(0, 0, 2, 2)])])
    for settings, words in (
        ({"image_size": 4, "take": 3}, "at most 2"),
        ({"image_size": 4, "take": 0}, "take"),
        ({"image_size": 4, "seed": -1}, "seed"),
        ({"image_size": 4, "batch_size": 0}, "batch_size"),
        ({"image_size": 4, "categories": ["dgo"]}, "Did you mean dog"),
        ({"image_size": 4, "categories": ["cat"]}, r"no object for categories=\['cat'\]"),
        ({}, r"image_size to be given.*\(4, 4\), \(4, 5\)"),
    ):
        with pytest.raises(ValueError, match=words):
            data.load_coco(*files, **settings)


def test_a_missing_pycocotools_is_named(tmp_path, monkeypatch):
    files = write(tmp_path, {"a.png": black(4, 4)}, [note(1, [box(0, 0, 2, 2)])])
    for name in ("pycocotools", "pycocotools.mask"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(ValueError, match=r"pip install vit_tf\[coco\]"):
        data.load_coco(*files)
    assert data.coco_categories(files[0]) == NAMES
