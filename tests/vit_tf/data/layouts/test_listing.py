"""Folders of images at an address, on TensorFlow's file system in memory, beside those on disk."""

import os

import numpy as np
import pytest
import tensorflow as tf
from image_folders import arrays, flat_folder
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
