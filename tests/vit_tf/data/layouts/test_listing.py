"""Folders of images at an address, on TensorFlow's file system in memory, beside those on disk."""

import os

import numpy as np
import pytest
import tensorflow as tf
from image_folders import arrays, flat_folder, write
from released_layouts import tiny_imagenet

from vit_tf import data


@pytest.fixture
def copied(request):
    """Function that copies a folder to an address, which it returns."""

    def copy(folder):
        address = f"ram://{request.node.name}"
        for place, _, names in os.walk(folder):
            inner = os.path.relpath(place, folder)
            there = address if inner == "." else f"{address}/{inner}"
            tf.io.gfile.makedirs(there)
            for name in names:
                with open(os.path.join(place, name), "rb") as file:
                    content = file.read()
                with tf.io.gfile.GFile(f"{there}/{name}", "wb") as file:
                    file.write(content)
        return address

    return copy


def test_a_folder_at_an_address_is_that_on_disk(tmp_path, rng, copied):
    flat_folder(tmp_path, rng, (12, 8))
    (tmp_path / "ape" / ".hidden.png").write_bytes(b"")
    (tmp_path / "list.txt").write_text("bee\nape\n")
    address = copied(tmp_path)
    assert data.describe(address).num_examples == {"train": 16, "test": 4}
    classes = data.read_class_list(f"{address}/list.txt")
    there, here = (
        [arrays(one) for one in data.load(root, classes=list(classes))]
        for root in (address + "/", tmp_path)
    )
    for (images, labels), (expected, expected_labels) in zip(there, here, strict=True):
        np.testing.assert_array_equal(images, expected)
        np.testing.assert_array_equal(labels, expected_labels)
    assert data.check_images(address) == 20


def test_released_layouts_at_an_address(tmp_path, copied):
    address = copied(tiny_imagenet(tmp_path))
    there, here = (
        [arrays(one) for one in data.load(root, splits=("validation",), image_size=8)]
        for root in (address, tmp_path)
    )
    np.testing.assert_array_equal(there[0][0], here[0][0])
    np.testing.assert_array_equal(there[0][1], here[0][1])


def test_what_is_not_at_an_address_is_told():
    for name in ("ram://nowhere", "ram://nowhere/photos/"):
        with pytest.raises(ValueError, match=r"a folder that exists\. Received: 'ram://now"):
            data.load(name)
    with pytest.raises(ValueError, match=r"lists classes\. Received: 'ram://nowhere/list\.txt'"):
        data.read_class_list("ram://nowhere/list.txt")


def test_a_damaged_image_at_an_address_is_named(copied, tmp_path, rng):
    flat_folder(tmp_path, rng, (3, 3))
    (tmp_path / "ape" / "00.png").write_text("hello")
    with pytest.raises(ValueError, match=r"undecodable ram://.*/ape/00\.png \("):
        data.check_images(copied(tmp_path))


def test_tiff_files_are_read_with_the_others(tmp_path, rng):
    pixels = rng.integers(0, 256, (2, 4, 6, 5, 3)).astype(np.uint8)
    for label, name in enumerate(("ape", "bee")):
        for number, suffix in enumerate((".png", ".tiff", ".TIF", ".bmp")):
            write(tmp_path / name / f"{number}{suffix}", pixels[label, number])
    (everything,) = data.load(tmp_path, splits=("all",))
    images, labels = arrays(everything)
    order = np.lexsort(images.reshape(8, -1).T)
    expected = pixels.reshape(8, 6, 5, 3) / 127.5 - 1
    np.testing.assert_allclose(
        images[order], expected[np.lexsort(expected.reshape(8, -1).T)], atol=1e-6
    )
    assert np.bincount(labels).tolist() == [4, 4] and data.check_images(tmp_path) == 8


@pytest.mark.parametrize("classes", [("ape", "bee"), ("",)])
def test_images_of_formats_that_are_not_read_are_counted_and_named(tmp_path, rng, caplog, classes):
    for name in classes:
        write(tmp_path / name / "a.png", rng.integers(0, 256, (6, 5, 3)))
        write(tmp_path / name / "b.png", rng.integers(0, 256, (6, 5, 3)))
        (tmp_path / name / "c.svg").write_bytes(b"")
        (tmp_path / name / "notes.txt").write_text("where these were taken")
    arrays(data.load(tmp_path, splits=("all",))[0])
    (line,) = [record.getMessage() for record in caplog.records if "c.svg" in record.getMessage()]
    assert f"{len(classes)} images are left out" in line and str(tmp_path) in line
    assert "notes.txt" not in line


@pytest.mark.parametrize("link, target", [("ape/again", ".."), ("ape/self", "self"), ("top", ".")])
def test_a_loop_of_symbolic_links_is_named(tmp_path, rng, link, target):
    flat_folder(tmp_path, rng, (3, 3))
    (tmp_path / link).symlink_to(target)
    with pytest.raises(ValueError, match=rf"symbolic link.*{link}"):
        data.load(tmp_path)


def test_loops_over_two_folders_end(tmp_path, rng):
    flat_folder(tmp_path, rng, (3, 3))
    (tmp_path / "ape" / "x").symlink_to("../bee")
    (tmp_path / "bee" / "y").symlink_to("../ape")
    with pytest.raises(ValueError, match=r"symbolic link.*'.*/ape/x/y', which leads to"):
        data.load(tmp_path)


def test_a_folder_may_be_a_link_to_another(tmp_path, rng):
    flat_folder(tmp_path / "train", rng, (3, 3))
    (tmp_path / "test").symlink_to("train")
    assert data.describe(tmp_path).num_examples == {"train": 6, "test": 6}
