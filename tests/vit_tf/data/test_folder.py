"""Folders of images, on a disk and at an address: their splits, classes and files."""

import logging
import os
from pathlib import Path

import numpy as np
import pytest
import tensorflow as tf
from image_folders import arrays, counts, flat_folder, labelled, write
from PIL import Image
from released_layouts import KIT, TINY, development_kit, imagenet_val, picture, tiny_imagenet

from vit_tf import Preprocessing, data
from vit_tf.data import source
from vit_tf.data.folder import decode_file, scan


@pytest.fixture(autouse=True)
def warn_again():
    """Each test logs the warnings that were logged before."""
    source.warn_once.cache_clear()


def colours(dataset):
    """The red and green of each image and the labels, sorted."""
    images, labels = arrays(dataset)
    red_green = np.round((images[:, 0, 0, :2] + 1) * 127.5).astype(int)
    return sorted(zip(*red_green.T.tolist(), labels.tolist(), strict=True))


def scanned(root, split=None):
    """The red and green of each image file and its label, sorted; by default of all splits."""
    splits = scan(root).splits
    parts = [splits[split]] if split else splits.values()
    found = [pair for paths, labels in parts for pair in zip(paths, labels.tolist(), strict=True)]
    return sorted((*Image.open(path).getpixel((0, 0))[:2], label) for path, label in found)


def label_counts(root, split):
    return np.bincount(scan(root).splits[split][1]).tolist()


def test_tiny_imagenet_as_released(tmp_path, caplog):
    root = tiny_imagenet(tmp_path)
    described = data.describe(root)
    assert described.class_names == TINY
    assert described.num_examples == {"train": 9, "validation": 6}
    assert "splits without known classes are left out: test" in caplog.text
    (validation,) = data.load(root, splits=("validation",))
    assert scanned(root, "train") == [(50 * k, 0, k) for k in range(3) for _ in range(3)]
    assert colours(validation) == [(50 * k, 100, k) for k in range(3) for _ in range(2)]


def test_the_splits_of_tiny_imagenet_on_their_own(tmp_path):
    root = tiny_imagenet(tmp_path)
    layout = scan(root / "val")
    assert layout.class_names == TINY and sum(len(x) for x, _ in layout.splits.values()) == 6
    assert scanned(root / "test") == [(250, 200, -1)] * 6
    assert data.describe(root / "train").class_names == TINY


NAMES = ("n01440764", "n02100735", "n02119789")  # sorted, as class folders are
LABELS = [2, 0, 1, 1]


@pytest.mark.parametrize("place", ["inside", "beside", "kit"])
@pytest.mark.parametrize("train", [False, True])
def test_the_validation_images_of_imagenet_with_the_development_kit(tmp_path, place, train):
    folder = imagenet_val(tmp_path / "ILSVRC2012_img_val", LABELS)
    number = {name: number for number, name in KIT.items()}
    places = {"inside": folder, "beside": tmp_path}
    kit = places.get(place, tmp_path / "ILSVRC2012_devkit_t12" / "data")
    development_kit(kit, [number[NAMES[label]] for label in LABELS])
    expected = sorted((50 * label, 0, label) for label in LABELS)
    if train:
        for label, name in enumerate(NAMES):
            picture(tmp_path / "ILSVRC2012_img_train" / name / f"{name}_1.JPEG", 50 * label)
        described = data.describe(tmp_path)
        assert described.num_examples == {"train": 3, "validation": 4}
        assert described.class_names == NAMES
        assert scanned(tmp_path, "validation") == expected
    assert scanned(folder, "validation") == expected
    assert data.describe(folder).class_names == NAMES


@pytest.mark.parametrize(
    ("name", "line", "class_names"),
    [
        ("val.txt", "{image}.JPEG {label}", ("0", "1", "2")),
        ("val.txt", "val/{image}.JPEG {name}", NAMES),
        ("LOC_val_solution.csv", "{image},{name} 85 1 499 272 {name} 1 2 3 4", NAMES),
        ("imagenet_2012_validation_synset_labels.txt", "{name}", NAMES),
        ("my_labels.tsv", "{image}.JPEG\t{name}", NAMES),
    ],
)
def test_files_of_labels_of_many_kinds(tmp_path, name, line, class_names):
    folder = imagenet_val(tmp_path / "images of ImageNet", LABELS)
    lines = [
        line.format(image=f"ILSVRC2012_val_{k:08}", label=label, name=NAMES[label])
        for k, label in enumerate(LABELS, 1)
    ]
    head = ["ImageId,PredictionString"] if name.endswith(".csv") else []
    # Named images may come in any order.
    lines = lines if "synset" in name else lines[::-1]
    (folder / name).write_text("\r\n".join(head + lines) + "\n")
    (folder / "readme.txt").write_text("These are some images.\nFrom somewhere.\n")
    assert data.describe(folder).class_names == class_names
    assert scanned(folder) == sorted((50 * label, 0, label) for label in LABELS)


@pytest.mark.slow
def test_load_returns_the_labels_of_files_and_none_where_there_are_none(tmp_path):
    """In the tests around this one they are those of the scan alone."""
    kit, text, bare = (tmp_path / name for name in ("kit", "text", "bare"))
    number = {name: number for number, name in KIT.items()}
    development_kit(imagenet_val(kit, LABELS), [number[NAMES[label]] for label in LABELS])
    lines = [f"ILSVRC2012_val_{k:08}.JPEG {label}" for k, label in enumerate(LABELS, 1)]
    (imagenet_val(text, LABELS) / "val.txt").write_text("\n".join(lines))
    for folder in (kit, text):
        (every,) = data.load(folder, splits=("all",))
        assert colours(every) == sorted((50 * label, 0, label) for label in LABELS)
    for split, red in (("train", 7), ("test", 9)):
        picture(bare / split / "1.png", red)
    (test,) = data.load(bare, splits=("test",))
    assert colours(test) == [(9, 0, -1)]


def test_label_files_next_to_a_folder_have_its_name(tmp_path):
    """Caffe's numbers are places among the sorted class folders."""
    imagenet_val(tmp_path / "val", LABELS)
    for name in NAMES:
        picture(tmp_path / "train" / name / "1.JPEG", 0)
    lines = [f"ILSVRC2012_val_{k:08}.JPEG {label}" for k, label in enumerate(LABELS, 1)]
    (tmp_path / "val.txt").write_text("\n".join(lines))
    described = data.describe(tmp_path)
    assert described.class_names == NAMES
    assert described.num_examples == {"train": 3, "validation": 4}
    assert scanned(tmp_path, "validation") == sorted((50 * label, 0, label) for label in LABELS)


@pytest.mark.parametrize(
    ("files", "message"),
    [
        (
            {"a.txt": "0.png x\n1.png y", "b.txt": "0.png x"},
            r"lists no class for 1 of 2 images: 1\.png",
        ),
        ({"a.txt": "0.png x\n1.png y", "b.csv": "0,x\n1,x"}, r"one text file.*'a.txt', 'b.csv'"),
        ({"a.txt": "0.png x\n1.png"}, r"a\.txt' lists no class for 1 of 2 images: 1\.png"),
        ({"a.txt": "1\n2\n"}, r"a\.txt' start at 1.*meta\.mat"),
    ],
)
def test_files_of_labels_that_cannot_be_used(tmp_path, files, message):
    for number in range(2):
        picture(tmp_path / f"{number}.png", 0)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=message) as error:
        data.describe(tmp_path)
    assert str(error.value).count(str(tmp_path)) == 1


CLASSES = ["great white shark", "cat", "dog"]
LINES = {
    "class in the last column": ("a.csv", "filename,width,height,class", "{n}.png,8,8,{c}"),
    "one column of any name": ("a.csv", "file,what", "{n}.png,{c}"),
    "words after a blank": ("a.txt", "", "{n}.png {c}"),
    "commas in a text file": ("a.txt", "", "{n}.png,{c}"),
    "tabs with boxes": ("a.txt", "", "{n}.png\t{c}\t{k}\t0\t62\t62"),
    "an image listed twice": ("a.csv", "name,class", "{n}.png,{c}\n{n}.png,{c}"),
    "quoted": ("a.csv", "name,class,note", '{n}.png,"{c}","a, b"'),
}


@pytest.mark.parametrize(("name", "head", "line"), LINES.values(), ids=LINES)
def test_classes_are_those_of_the_column_that_a_file_states(tmp_path, name, head, line):
    expected, lines = [], []
    for number in range(12):
        picture(tmp_path / f"{number}.png", 20 * number)
        label = CLASSES[number * 5 % 3]
        lines.append(line.format(n=number, k=number, c=label))
        expected.append((20 * number, 0, sorted(CLASSES).index(label)))
    lines = [head] * bool(head) + lines[::-1]
    (tmp_path / name).write_text("\n".join(lines))
    assert data.describe(tmp_path).class_names == tuple(sorted(CLASSES))
    assert scanned(tmp_path) == sorted(expected)


@pytest.mark.parametrize(
    ("name", "head", "line", "message"),
    [
        ("a.txt", "", "{c}", "10 comes before 2.*image and its class on each line"),
        ("a.csv", "filename,width,height,kind", "{n}.png,{n},8,{c}", "columns filename, width"),
        ("a.csv", "", "{n}.png,{n},8,{c}", r"lines as \['0.png', '0', '8', 'x'\]"),
        ("a.txt", "", "{n}.png {n} 8 {c}", "image and its class on each line"),
        ("a.csv", "image,class", "{n},{c}\n{n},z", r"0.png with two classes: x, z"),
        ("a.csv", "image,label,category", "{n},{c},{c}", "columns image, label, category"),
    ],
)
def test_files_whose_classes_are_not_clear_are_refused(tmp_path, name, head, line, message):
    for number in range(12):
        picture(tmp_path / f"{number}.png", 0)
    lines = [head] * bool(head) + [line.format(n=k, c="xy"[k % 2]) for k in range(12)]
    (tmp_path / name).write_text("\n".join(lines))
    with pytest.raises(ValueError, match=message):
        data.describe(tmp_path)


def test_class_folders_that_are_numbers_are_sorted_by_value_in_words(tmp_path, caplog):
    for number in range(12):
        picture(tmp_path / str(number) / "a.png", 20 * number)
    assert data.describe(tmp_path).class_names == tuple(map(str, range(12)))
    assert "sort them as text: 0, 1, 10, 11, 2" in caplog.text
    assert scanned(tmp_path) == [(20 * number, 0, number) for number in range(12)]


def test_classes_that_the_train_split_lacks_are_named_with_their_file(tmp_path):
    picture(tmp_path / "train" / "ape" / "1.png", 0)
    for line, unknown in (("dog", "dog"), ("1", "1")):
        picture(tmp_path / "val" / "1.png", 0)
        (tmp_path / "val.txt").write_text(f"1.png {line}\n")
        message = rf"val\.txt' lists classes .*: {unknown}\. It has: ape"
        with pytest.raises(ValueError, match=message):
            data.describe(tmp_path)


def test_images_without_class_folders_have_no_labels(tmp_path):
    for number in range(10):
        picture(tmp_path / f"{number}.png", number)
    (tmp_path / "empty").mkdir()
    (tmp_path / "notes.txt").write_text("On holiday\nin June")
    described = data.describe(tmp_path)
    assert described.class_names == () and described.num_classes == 0
    assert described.num_examples == {"train": 8, "test": 2}
    (every,) = data.load(tmp_path, splits=("all",))
    assert colours(every) == [(number, 0, -1) for number in range(10)]
    with pytest.raises(ValueError, match=r"Expected images with labels: a folder.*without labels"):
        data.few_shot(tmp_path, 1)


def test_splits_without_class_folders_have_no_labels(tmp_path):
    for split in ("train", "test"):
        for number in range(2):
            picture(tmp_path / split / f"{number}.png", number)
    assert data.describe(tmp_path).num_examples == {"train": 2, "test": 2}
    assert scanned(tmp_path, "test") == [(0, 0, -1), (1, 0, -1)]


@pytest.mark.slow
def test_every_image_of_every_split(tmp_path, rng, monkeypatch):
    for number, name in enumerate(("val", "train", "test"), 1):
        flat_folder(tmp_path / name, rng, (number, 2))
    every, test = data.load(tmp_path, splits=("all", "test"))
    whole, _ = arrays(every)
    parts = [arrays(one)[0] for one in data.load(tmp_path, splits=("validation", "train", "test"))]
    expected = {image.tobytes() for part in parts for image in part}
    assert {image.tobytes() for image in whole} == expected and len(whole) == len(expected) == 12
    assert counts(every) == [6, 6] and counts(test) == [3, 2]
    (few,) = data.load(tmp_path, splits=("all",), take=6)
    assert counts(few) == [3, 3]
    (few,) = data.load(tmp_path, splits=("all",), classes=["bee"])
    assert counts(few) == [6]


@pytest.mark.slow
def test_every_image_of_data_sets_without_files():
    images, labels = arrays(data.load("digits", splits=("all",))[0])
    assert len({image.tobytes() for image in images}) > 1790 and len(labels) == 1797
    parts = [arrays(one)[1] for one in data.load("digits")]
    np.testing.assert_array_equal(np.bincount(labels), sum(map(np.bincount, parts)))


def test_sizes_that_differ_between_splits(tmp_path, rng):
    flat_folder(tmp_path / "train", rng, (2, 1))
    flat_folder(tmp_path / "test", rng, (2, 1), (3, 3, 3))
    with pytest.raises(ValueError, match=r"image_size to be given.*\(6, 5\).*\(3, 3\)"):
        data.load(tmp_path, splits=("all",))


@pytest.mark.slow
def test_only_the_requested_split_is_read(tmp_path, rng):
    flat_folder(tmp_path / "train", rng, (2, 1))
    flat_folder(tmp_path / "test", rng, (2, 1))
    (tmp_path / "train" / "ape" / "00.png").write_text("no image")
    (tmp_path / "train" / "cow").mkdir()
    (test,) = data.load(tmp_path, splits=("test",))
    assert counts(test) == [2, 1]
    with pytest.raises(ValueError, match=r"No images in .*cow'"):
        data.load(tmp_path, splits=("train",))


def test_the_fifth_that_becomes_the_test_split_is_logged_once(tmp_path, rng, caplog):
    flat_folder(tmp_path, rng, (20, 10))
    with caplog.at_level(logging.WARNING):
        data.load(tmp_path)
        data.load(tmp_path, splits=("test",))
    (record,) = caplog.records
    assert "6 of its 30 images, a fixed fifth of each class" in record.getMessage()
    assert "The split 'all' contains every image." in record.getMessage()


@pytest.mark.slow
def test_a_missing_size_raises_before_any_image_is_decoded(tmp_path, rng):
    for path, side in (
        ("train/ape/0", 6),
        ("train/bee/1", 6),
        ("test/ape/0", 6),
        ("test/ape/1", 9),
    ):
        write(tmp_path / f"{path}.jpg", rng.integers(0, 256, (side, side, 3)))
    cut = tmp_path / "train" / "ape" / "0.jpg"
    cut.write_bytes(cut.read_bytes()[:-20])
    with pytest.raises(ValueError, match="image_size to be given"):
        data.load(tmp_path)
    with pytest.raises(tf.errors.InvalidArgumentError, match="undecodable"):
        list(data.load(tmp_path, image_size=4)[0])


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
    for system in ("@eaDir", "__MACOSX", "ape/@eaDir"):
        (tmp_path / system).mkdir()
        (tmp_path / system / "0.png").write_bytes(b"")
    (tmp_path / "list.txt").write_text("bee\nape\n")
    address = copied(tmp_path)
    assert data.describe(address).num_examples == {"train": 16, "test": 4}
    classes = data.read_class_list(f"{address}/list.txt")
    (test,) = data.load(f"{address}/", splits=("test",), classes=list(classes))
    of_class = {"bee": 0, "ape": 1}
    expected = {
        Preprocessing((6, 5))(decode_file(path)).tobytes(): of_class[Path(path).parent.name]
        for path in scan(tmp_path).splits["test"][0]
    }
    assert labelled(test) == expected and len(expected) == 4
    assert data.check_images(address) == 20


@pytest.mark.slow
def test_released_layouts_at_an_address(tmp_path, copied):
    address = copied(tiny_imagenet(tmp_path))
    there, here = (
        [arrays(one) for one in data.load(root, splits=("validation",), image_size=8)]
        for root in (address, tmp_path)
    )
    np.testing.assert_array_equal(there[0][0], here[0][0])
    np.testing.assert_array_equal(there[0][1], here[0][1])


def test_a_missing_address_raises():
    for name in ("ram://nowhere", "ram://nowhere/photos/"):
        with pytest.raises(ValueError, match=r"Folder not found: 'ram://now"):
            data.load(name)
    with pytest.raises(ValueError, match=r"list of classes 'ram://nowhere/list\.txt'"):
        data.read_class_list("ram://nowhere/list.txt")


def test_a_corrupt_image_at_an_address_is_named(copied, tmp_path, rng):
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
    data.load(tmp_path, splits=("all",))
    (line,) = [record.getMessage() for record in caplog.records if "c.svg" in record.getMessage()]
    assert f"{len(classes)} images are left out" in line and str(tmp_path) in line
    assert "notes.txt" not in line


@pytest.mark.parametrize("link, target", [("ape/again", ".."), ("ape/self", "self"), ("top", ".")])
def test_a_loop_of_symbolic_links_is_named(tmp_path, rng, link, target):
    flat_folder(tmp_path, rng, (3, 3))
    (tmp_path / link).symlink_to(target)
    with pytest.raises((ValueError, OSError), match=rf"symbolic link.*{link}"):
        data.load(tmp_path)


def test_loops_over_two_folders_end(tmp_path, rng):
    flat_folder(tmp_path, rng, (3, 3))
    (tmp_path / "ape" / "x").symlink_to("../bee")
    (tmp_path / "bee" / "y").symlink_to("../ape")
    with pytest.raises(ValueError, match=r"symbolic link '.*/ape/x/y' leads to"):
        data.load(tmp_path)


def test_a_folder_may_be_a_link_to_another(tmp_path, rng):
    flat_folder(tmp_path / "train", rng, (3, 3))
    (tmp_path / "test").symlink_to("train")
    assert data.describe(tmp_path).num_examples == {"train": 6, "test": 6}


@pytest.mark.parametrize("name", ["val", "Valid", "VALIDATION", "test", "Testing"])
def test_a_split_on_its_own_is_a_split_and_not_a_class(tmp_path, rng, name):
    flat_folder(tmp_path / name, rng, (3, 2))
    split = "test" if name.lower().startswith("test") else "validation"
    described = data.describe(tmp_path)
    assert described.class_names == ("ape", "bee")
    assert described.num_examples == {split: 5}
    assert label_counts(tmp_path, split) == [3, 2]
    assert data.check_images(tmp_path) == 5
    with pytest.raises(ValueError, match=rf"has the splits {split}\. Received: .*'train'"):
        data.load(tmp_path)


@pytest.mark.parametrize(
    "names", [("Train", "Val", "Test"), ("training", "valid", "testing"), ("TRAIN", "validation")]
)
def test_splits_have_many_names(tmp_path, rng, names):
    for number, name in enumerate(names, 1):
        flat_folder(tmp_path / name, rng, (number, 1))
    found = data.describe(tmp_path).num_examples
    assert found == {
        s: n + 1
        for n, s in zip((1, 2, 3), ("train", "validation", "test"), strict=True)
        if n <= len(names)
    }


def test_classes_are_those_of_all_splits_where_there_is_no_train_split(tmp_path, rng):
    flat_folder(tmp_path / "val", rng, (1, 2))
    write(tmp_path / "test" / "cat" / "0.png", rng.integers(0, 256, (6, 5, 3)))
    flat_folder(tmp_path / "test", rng, (2,))
    assert data.describe(tmp_path).class_names == ("ape", "bee", "cat")
    assert label_counts(tmp_path, "validation") == [1, 2]
    assert label_counts(tmp_path, "test") == [2, 0, 1]


@pytest.mark.slow
def test_validation_images_are_tested_on_where_there_are_no_test_images(tmp_path, rng, caplog):
    """As of ImageNet, whose test images have no labels; what is validated on is then cut off."""
    flat_folder(tmp_path / "train", rng, (20, 20))
    flat_folder(tmp_path / "val", rng, (3, 4))
    released = arrays(data.load(tmp_path, splits=("validation",))[0])[0]
    assert not caplog.records
    (alone,) = data.load(tmp_path, splits=("test",))
    assert "the validation split is used as one" in caplog.text
    train, validation, test = data.load(tmp_path, splits=("train", "validation", "test"))
    for one in (alone, test):
        np.testing.assert_array_equal(arrays(one)[0], released)
    assert counts(train) == [18, 18] and counts(validation) == [2, 2]
    images = np.concatenate([arrays(one)[0] for one in (train, validation, test)])
    assert len({image.tobytes() for image in images}) == 47
    every = counts(data.load(tmp_path, splits=("all",))[0])
    assert every == [23, 24] and data.describe(tmp_path).num_examples["validation"] == 7


def test_two_folders_of_one_split_are_refused(tmp_path, rng):
    for name in ("train", "val", "Validation"):
        flat_folder(tmp_path / name, rng, (2, 1))
    message = r"be the validation split: 'Validation', 'val' in '.*'"
    with pytest.raises(ValueError, match=message):
        data.load(tmp_path)


def test_classes_may_bear_the_names_of_splits(tmp_path, rng):
    """As the means of transport does, beside which other kinds of them stand."""
    for name in ("train", "bus", "Test"):
        for number in range(2):
            write(tmp_path / name / f"{number}.png", rng.integers(0, 256, (6, 5, 3)))
    assert data.describe(tmp_path).class_names == ("Test", "bus", "train")


def test_other_folders_may_be_next_to_splits_but_classes_may_not(tmp_path, rng):
    flat_folder(tmp_path / "train", rng, (2, 1))
    flat_folder(tmp_path / "labels", rng, (1, 1))
    assert data.describe(tmp_path).num_examples == {"train": 3}
    (tmp_path / "train").rename(tmp_path / "test")
    message = r"folders of splits or of classes, not both. Received: 'test' next to 'labels' in"
    with pytest.raises(ValueError, match=message):
        data.describe(tmp_path)


def test_ten_classes_of_the_train_split_are_named(tmp_path, rng):
    for number in range(13):
        write(tmp_path / "train" / f"c{number:02}" / "0.png", rng.integers(0, 256, (6, 5, 3)))
    write(tmp_path / "test" / "dog" / "0.png", rng.integers(0, 256, (6, 5, 3)))
    with pytest.raises(ValueError, match=r"/test/dog' is a class folder .* c08, c09 and 3 more$"):
        data.describe(tmp_path)
