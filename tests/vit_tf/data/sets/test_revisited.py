"""Revisited Oxford and Paris in their released layout, and pickles that may do no harm."""

import datetime
import os
import pickle
import struct

import numpy as np
import pytest
import tensorflow as tf
from image_folders import turned
from PIL import Image

from vit_tf import Preprocessing, analysis
from vit_tf.data import load_revisited
from vit_tf.data.sets.revisited import load_plain_pickle

GLOBALS = {
    "reconstruct": b"cnumpy.core.multiarray\n_reconstruct\n",
    "ndarray": b"cnumpy\nndarray\n",
    "dtype": b"cnumpy\ndtype\n",
}


def python2(value):
    """The pickle of a value as Python 2 wrote it in protocol 2, without its first and last byte."""
    if isinstance(value, dict):
        items = b"".join(python2(key) + python2(item) for key, item in value.items())
        return b"}(" + items + b"u"
    if isinstance(value, (list, tuple)):
        items = b"(" + b"".join(map(python2, value))
        return b"]" + items + b"e" if isinstance(value, list) else items + b"t"
    if isinstance(value, (str, bytes)):  # both are text there: SHORT_BINSTRING or BINSTRING
        data = value.encode() if isinstance(value, str) else value
        return (
            b"T" + struct.pack("<i", len(data)) + data
            if len(data) > 255
            else (b"U" + bytes([len(data)]) + data)
        )
    if value is None or isinstance(value, bool):
        return {None: b"N", False: b"\x89", True: b"\x88"}[value]
    if isinstance(value, int):
        return b"J" + struct.pack("<i", value)
    if isinstance(value, float):
        return b"G" + struct.pack(">d", value)
    kind = python2((value.dtype.str[1:], 0, 1))
    state = python2((3, value.dtype.str[0], None, None, None, -1, -1, 0))
    dtype = GLOBALS["dtype"] + kind + b"R" + state + b"b"
    head = GLOBALS["reconstruct"] + b"(" + GLOBALS["ndarray"] + python2((0,)) + python2("b") + b"tR"
    data = python2(value.tobytes())
    return head + b"(" + python2(1) + python2(value.shape) + dtype + python2(False) + data + b"tb"


def save_python2(path, value):
    path.write_bytes(b"\x80\x02" + python2(value) + b".")


CONTENT = {
    "text": "all_souls_000013",
    "list": [1, -2, 3.5, True, None, (4, "b")],
    "empty": np.array([], "int64"),
    "large": np.arange(0, 60_000, 199),  # bytes above 127, and more than 255 of them
    "box": np.array([136.5, 34.1, 648.5, 955.7]),
    "bytes": np.arange(250, 256, dtype="uint8"),
    "swapped": np.array([[1, 2, 300], [4, 5, 6]], ">u2"),
}


def assert_same(found, expected):
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert list(found) == list(expected)
        for key, value in expected.items():
            assert_same(found[key], value)
    elif isinstance(expected, np.ndarray):
        assert found.dtype.newbyteorder("=") == expected.dtype.newbyteorder("=")
        np.testing.assert_array_equal(found, expected)
    else:
        assert found == expected


def test_pickles_of_python_2_are_read(tmp_path):
    save_python2(tmp_path / "a.pkl", CONTENT)
    # The bytes are those that Python 3 itself understands.
    assert_same(pickle.loads((tmp_path / "a.pkl").read_bytes(), encoding="latin1"), CONTENT)
    assert_same(load_plain_pickle(tmp_path / "a.pkl"), CONTENT)


@pytest.mark.parametrize("protocol", range(6))
def test_pickles_of_python_3_are_read(tmp_path, protocol):
    columns = np.asfortranarray(np.arange(6.0).reshape(2, 3))
    content = CONTENT | {"columns": columns, "flags": np.array([True, False])}
    (tmp_path / "a.pkl").write_bytes(pickle.dumps(content, protocol))
    assert_same(load_plain_pickle(tmp_path / "a.pkl"), content)
    numbers = [np.int64(-7), np.float32(0.5), np.uint8(200), np.bool_(True)]
    (tmp_path / "b.pkl").write_bytes(pickle.dumps(numbers, protocol))
    assert_same(load_plain_pickle(tmp_path / "b.pkl"), numbers)


class Calls:
    """An object whose pickle calls a function."""

    def __init__(self, function, *arguments):
        self.reduced = function, arguments

    def __reduce__(self):
        return self.reduced


def refused(path, data, what):
    path.write_bytes(data)
    with pytest.raises(ValueError, match=f"(?s)Expected a pickle of dicts.*{path.name}.*{what}"):
        load_plain_pickle(path)


@pytest.mark.parametrize("protocol", range(6))
def test_nothing_that_a_pickle_names_is_run(tmp_path, protocol):
    marker = tmp_path / "was here"
    system = f"it refers to {os.system.__module__}.system"
    for evil, what in (
        (Calls(os.system, f"touch '{marker}'"), system),
        ({"gnd": [Calls(os.mkdir, str(marker))]}, f"it refers to {os.mkdir.__module__}.mkdir"),
        (Calls(eval, f"open({str(marker)!r}, 'w')"), r"it refers to (builtins|__builtin__)\.eval"),
        (Calls(np.memmap, str(marker), "u1", "w+", 0, 1), r"it refers to numpy\.memmap"),
        (Calls(np.fromfile, "/etc/hostname"), r"it refers to numpy\..*fromfile"),
        (datetime.date(2018, 6, 18), r"it refers to datetime\.date"),
    ):
        data = pickle.dumps(evil, protocol)
        refused(tmp_path / "gnd.pkl", data, what)
        assert not marker.exists()
    pickle.loads(pickle.dumps(Calls(os.mkdir, str(marker)), protocol))
    assert marker.exists()  # it would have run


def test_a_pickle_cannot_change_what_it_names(tmp_path):
    path = tmp_path / "gnd.pkl"
    refused(
        path, b"\x80\x02c_codecs\nencode\n}U\x08functionK\x01sb.", "sets attributes of functions"
    )
    refused(path, b"\x80\x02cnumpy\nndarray\n}U\x04sizeK\x01sb.", "UnpicklingError|Error")
    refused(path, GLOBALS["reconstruct"] + b"(tR.", "TypeError")
    refused(path, b"\x80\x02(K\x01K\x02Pname\n.", "UnpicklingError")
    refused(path, b"\x80\x04\x8c\x02os\x8c\x0bpath.exists\x93.", "it refers to os.path.exists")


def test_dtypes_that_a_pickle_forges_are_refused(tmp_path):
    """Objects whose addresses would be bytes of the file, also inside of a structure of numbers."""
    path, head = tmp_path / "gnd.pkl", GLOBALS["reconstruct"] + b"(" + GLOBALS["ndarray"]
    head += python2((0,)) + python2("b") + b"tR"

    def array(dtype, data):
        return head + b"(" + python2(1) + python2((1,)) + dtype + python2(False) + data + b"tb."

    objects = GLOBALS["dtype"] + python2(("O8", 0, 1)) + b"R"
    refused(path, array(objects, python2("A" * 8)), "an array of type 'O8'")
    refused(path, pickle.dumps(np.array([{"a": 1}], object)), "an array of type 'O8'")
    # A structure of 8 bytes, with a field of objects that its flags do not admit.
    state = b"(" + python2(3) + python2("|") + b"N(" + python2("a") + b"t"
    state += b"}(" + python2("a") + b"(" + objects + python2(0) + b"tu"
    state += python2(8) + python2(8) + python2(0) + b"t"
    structure = GLOBALS["dtype"] + python2(("V8", 0, 1)) + b"R" + state + b"b"
    refused(path, array(structure, python2("A" * 8)), "an array of type 'V8'")
    # The state of a dtype of numbers sets its order of bytes alone.
    fields = python2((3, ">", None, ("a",), {"a": 0}, 8, 8, 0))
    numbers = GLOBALS["dtype"] + python2(("i8", 0, 1)) + b"R" + fields + b"b"
    path.write_bytes(array(numbers, python2("\0" * 7 + "\1")))
    np.testing.assert_array_equal(load_plain_pickle(path), [1])


def test_corrupt_pickles_raise_one_error(tmp_path):
    data = b"\x80\x02" + python2(CONTENT) + b"."
    for end in range(0, len(data), 37):
        refused(tmp_path / "gnd.pkl", data[:end], "")
    refused(tmp_path / "gnd.pkl", b"<!DOCTYPE html>", "")
    with pytest.raises(ValueError, match=r"Received: '.*gone\.pkl' \(FileNotFoundError"):
        load_plain_pickle(tmp_path / "gone.pkl")


SHAPES = {"a_1": (9, 12), "a_2": (7, 5), "b_1": (20, 8), "b_2": (6, 6), "c_1": (11, 13)}


@pytest.fixture
def oxford(rng, tmp_path):
    """Two queries, of which `q_2` is grey, and five images of other sizes; NumPy arrays."""
    folder = tmp_path / "roxford5k" / "jpg"
    folder.mkdir(parents=True)
    for name, shape in (SHAPES | {"q_1": (10, 14)}).items():
        pixels = rng.integers(0, 256, (*shape, 3)).astype(np.uint8)
        # Boxes are of images as they are stored, whatever their orientation says.
        Image.fromarray(pixels).save(folder / f"{name}.jpg", quality=95, exif=turned())
    Image.fromarray(rng.integers(0, 256, (8, 8)).astype(np.uint8)).save(folder / "q_2.jpg")
    gnd = {
        "imlist": list(SHAPES),
        "qimlist": ["q_1", "q_2"],
        "gnd": [
            {"bbx": [1.6, 2.5, 7.6, 8.5], "easy": np.array([1]), "hard": np.array([0]), "junk": []},
            {"bbx": np.array([-0.9, 2, 6, 99]), "easy": [], "hard": np.array([2, 3]), "junk": [4]},
        ],
    }
    save_python2(tmp_path / "roxford5k" / "gnd_roxford5k.pkl", gnd)
    return tmp_path, gnd


def decoded(root, name):
    return Image.open(root / "roxford5k" / "jpg" / f"{name}.jpg").convert("RGB")


def test_queries_are_cropped_as_pillow_does_and_come_in_order(oxford):
    root, _ = oxford
    queries, _, truth = load_revisited(root, "roxford5k", image_size=6, batch_size=1)
    batches = list(queries.as_numpy_iterator())
    assert [numbers.tolist() for _, numbers in batches] == [[0], [1]]
    # 2.5 rounds to 2 and 8.5 to 8: six pixels a side, which are left as they are.
    first = np.asarray(decoded(root, "q_1").crop((1.6, 2.5, 7.6, 8.5)))
    assert first.shape == (6, 6, 3)
    np.testing.assert_allclose(batches[0][0][0], first / 127.5 - 1, atol=1e-6)
    # What lies beyond the image is left out.
    second = np.asarray(decoded(root, "q_2"))[2:, :6]
    np.testing.assert_allclose(batches[1][0][0], second / 127.5 - 1, atol=1e-6)
    assert [query["name"] for query in truth] == ["q_1", "q_2"]
    found = [[query[what].tolist() for what in ("easy", "hard", "junk")] for query in truth]
    assert found == [[[1], [0], []], [[], [2, 3], [4]]]


@pytest.mark.slow
def test_queries_are_uncropped_on_demand(oxford):
    root, _ = oxford
    options = {"image_size": 10, "batch_size": 1}
    whole, database, truth = load_revisited(root, "roxford5k", crop_queries=False, **options)
    images = np.concatenate([images for images, _ in whole.as_numpy_iterator()])
    for image, name in zip(images, ("q_1", "q_2"), strict=True):
        pixels = np.asarray(decoded(root, name), np.float32)
        expected = tf.image.resize(pixels, (10, 10), antialias=True) / 127.5 - 1
        np.testing.assert_allclose(image, expected, atol=1e-4)
    cropped, same, again = load_revisited(root, "roxford5k", **options)
    assert np.abs(next(cropped.as_numpy_iterator())[0] - images[0]).max() > 0.1
    np.testing.assert_array_equal(*(next(x.as_numpy_iterator())[0] for x in (database, same)))
    assert [list(query) for query in truth] == [list(query) for query in again]


def test_the_database_is_uncropped_images_at_the_size_of_the_model(oxford):
    root, _ = oxford
    mean, std = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.1])
    preprocessing = Preprocessing((8, 4), tuple(mean), tuple(std), "bicubic")
    _, database, _ = load_revisited(root, "roxford5k", batch_size=2, preprocessing=preprocessing)
    images, numbers = map(np.concatenate, zip(*database.as_numpy_iterator(), strict=True))
    assert numbers.tolist() == [0, 1, 2, 3, 4] and images.shape == (5, 8, 4, 3)
    assert database.element_spec[0].shape.as_list() == [None, 8, 4, 3]
    for image, name in zip(images, SHAPES, strict=True):
        pixels = np.asarray(decoded(root, name), np.float32)
        resized = tf.image.resize(pixels, (8, 4), "bicubic", antialias=True)
        expected = (np.clip(resized, 0, 255) / 255 - mean) / std
        np.testing.assert_allclose(image, expected, atol=1e-4)


def test_images_of_the_same_colour_are_retrieved(tmp_path):
    folder = tmp_path / "rparis6k" / "jpg"
    folder.mkdir(parents=True)
    hues = {"green": (20, 200, 20), "blue": (20, 20, 200), "red": (200, 20, 20)}
    names = [f"paris_{hue}_{number}" for number in range(3) for hue in hues]
    for name in names:
        hue, number = name.split("_")[1:]
        Image.new("RGB", (9 + int(number), 7), hues[hue]).save(folder / f"{name}.jpg")
    gnd = [
        {"bbx": [0, 0, 5, 5], "easy": [3 + place], "hard": [6 + place], "junk": [place]}
        for place in (0, 1)
    ]
    content = {"imlist": names, "qimlist": names[:2], "gnd": gnd}
    (tmp_path / "rparis6k/gnd_rparis6k.pkl").write_bytes(pickle.dumps(content))
    data = load_revisited(tmp_path, "rparis6k", image_size=4, batch_size=3)
    result = analysis.retrieval(lambda x: {"pixels": x}, *data, "all")
    np.testing.assert_allclose(result["score"], 1)
    np.testing.assert_allclose(result["precision"], 1)
    assert result.attrs["examples"] == 9 and result.attrs["queries"] == 2


def test_errors(oxford):
    root, gnd = oxford
    path = root / "roxford5k" / "gnd_roxford5k.pkl"

    def expect(match, **changes):
        save_python2(path, gnd | changes)
        with pytest.raises(ValueError, match=match):
            load_revisited(root, "roxford5k", image_size=6)

    with pytest.raises(ValueError, match=r"Unknown name: 'oxford5k'.*roxford5k"):
        load_revisited(root, "oxford5k", image_size=6)
    with pytest.raises(ValueError, match=r"Expected image_size or preprocessing"):
        load_revisited(root, "roxford5k")
    with pytest.raises(ValueError, match=r"Expected a pickle.*gnd_rparis6k\.pkl.*FileNotFound"):
        load_revisited(root, "rparis6k", image_size=6)
    first, second = gnd["gnd"]
    expect(r"images are missing, such as .*a_9\.jpg, .*a_8\.jpg", imlist=[*SHAPES, "a_9", "a_8"])
    expect(r"easy of q_1 has indices outside the 5 images", gnd=[first | {"easy": [5]}, second])
    expect(r"junk of q_2 has indices outside the 5 images", gnd=[first, second | {"junk": [-1]}])
    expect(r"hard of q_1 has indices outside the 5 images", gnd=[first | {"hard": [0.5]}, second])
    expect(r"bbx of q_1 is \[1, 2, 3\]", gnd=[first | {"bbx": [1, 2, 3]}, second])
    expect(r"gnd_roxford5k\.pkl' \(ValueError", gnd=[first])
    expect(r"KeyError: 'junk'", gnd=[first, {"bbx": [0, 0, 1, 1], "easy": [], "hard": []}])
    path.write_bytes(pickle.dumps(Calls(os.system, "true")))
    with pytest.raises(ValueError, match=rf"it refers to {os.system.__module__}\.system"):
        load_revisited(root, "roxford5k", image_size=6)


def test_images_that_cannot_be_used_stop_the_iteration_by_name(oxford):
    root, gnd = oxford
    far = gnd["gnd"][0] | {"bbx": [20, 0, 30, 5]}
    save_python2(root / "roxford5k/gnd_roxford5k.pkl", gnd | {"gnd": [far, gnd["gnd"][1]]})
    queries, database, _ = load_revisited(root, "roxford5k", image_size=6)
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"overlaps the image, 14 wide.*q_1"):
        list(queries)
    (root / "roxford5k/jpg/b_1.jpg").write_bytes(b"cut off")
    with pytest.raises(tf.errors.InvalidArgumentError, match=r"can be decoded.*b_1\.jpg"):
        list(database)
