"""Reports from annotated images in their released layouts: one figure for each."""

import pickle

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from coco_files import box, note, write
from davis_files import write_list, write_video
from PIL import Image
from reports import analyzed
from spair_files import write_image, write_pairs

import vit_tf
from vit_tf.scripts import analyze, common, report_commands

pytest.importorskip("pycocotools", reason="pycocotools is not installed")

PARTS = [
    {"supercategory": "Bird", "id": 1, "name": "Bird Head"},
    {"supercategory": "Bird", "id": 2, "name": "Bird Wing"},
]


@pytest.fixture
def model(tmp_path):
    keras.utils.set_random_seed(0)
    vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 8, 10).save(tmp_path / "vit.keras")
    return tmp_path / "vit.keras"


def noise(rng, *shape):
    return rng.integers(0, 256, (*shape, 3)).astype(np.uint8)


def arrays_of(loaded):
    """All arrays, numbers and texts of images as they are loaded, batch by batch."""
    if isinstance(loaded, tf.data.Dataset):
        loaded = list(loaded.as_numpy_iterator())
    if not isinstance(loaded, (tuple, list)):
        return tf.nest.flatten(loaded)
    return [array for part in loaded for array in arrays_of(part)]


def require_printed_lines_to_load(images, *flags):
    """The lines that a report prints load what the report measures, for some flags."""
    options = analyze.parse(["model.keras", *map(str, flags)])
    description = common.describe_data(options)
    options.sizes = report_commands.measured_sizes(options, description, "test")
    data = report_commands.read_data(options, description, "test", preprocessing=images)
    lines = report_commands.example_setup(options, description, "test", images, True)
    fields = {"images": "test", "fitted": "train", "train": "gallery"}
    loaded = {}
    for names, line in lines.items():
        variables = {"data": vit_tf.data, "vit_tf": vit_tf}
        exec(line, variables)
        loaded |= {name: variables[name] for name in names}
    for name, printed in loaded.items():
        expected = arrays_of(data.read(fields.get(name, name)))
        for actual, measured in zip(arrays_of(printed), expected, strict=True):
            np.testing.assert_array_equal(actual, measured)
    return set(loaded)


def test_printed_lines_load_the_shapes_and_their_annotations(monkeypatch):
    monkeypatch.setattr(report_commands, "SHAPE_VIDEOS", 2)
    monkeypatch.setattr(report_commands, "SHAPE_PAIRS", 4)
    images = vit_tf.Preprocessing((16, 16), crop=0.875)
    flags = ("--data", "shapes", "--seed", 3, "--take-test", 24, "--shots", 2)
    names = require_printed_lines_to_load(images, *flags)
    assert names >= {"images", "fitted", "validation", "train"}
    assert names >= {"objects", "parts", "videos", "pairs"}


def test_printed_lines_load_coco_and_spair_with_the_seed(tmp_path, rng):
    images = {f"{number}.png": noise(rng, 20, 24) for number in range(6)}
    places = [box(place, 2, place + 8, 12) for place in range(6)]
    objects = [
        note(1 + number, [place], (1, 17)[number % 2]) for number, place in enumerate(places)
    ]
    coco = write(tmp_path, images, objects)
    for name in ("one", "two"):
        write_image(tmp_path / "spair", "cat", name, noise(rng, 16, 20))
    points = [[3, 4], [12, 9]]
    pairs = [("cat", *names, points, points) for names in (("one", "two"), ("two", "one"))]
    write_pairs(tmp_path / "spair", pairs * 20)
    flags = ("--objects", *coco, "--take-objects", 3, "--pairs", tmp_path / "spair", "--seed", 5)
    flags += ("--data", "digits", "--take-test", 16, "--shots", 2)
    assert {"objects", "pairs"} <= require_printed_lines_to_load(
        vit_tf.Preprocessing((16, 16)), *flags
    )


@pytest.mark.slow
def test_objects_and_parts_of_coco_files(model, tmp_path, rng):
    images = {f"{number}.png": noise(rng, 20, 24) for number in range(6)}
    places = [(number % 3) * 4 for number in range(6)]
    objects = [
        note(1 + number, [box(place, 2, place + 8, 12)], (1, 17)[number % 2])
        for number, place in enumerate(places)
    ]
    parts = [
        note(1 + number, [box(place, left, place + 8, left + 8)], category)
        for number, place in enumerate(places)
        for category, left in ((1, 0), (2, 12))
    ]
    (tmp_path / "objects").mkdir()
    coco_objects = write(tmp_path / "objects", images, objects)
    (tmp_path / "parts").mkdir()
    halves = write(tmp_path / "parts", images, parts, PARTS)
    flags = ("--objects", *coco_objects, "--parts", *halves, "--figures", "W.5,W.8")
    values, _ = analyzed(tmp_path / "out", model, *flags)
    assert values == ["saliency", "clusters-objects", "clusters-parts"]
    result = xr.open_dataset(tmp_path / "out" / "results" / "parts.vit.nc")
    assert result.attrs["objects"] == 12 and result.attrs["classes"] == 2
    untrained = xr.open_dataset(tmp_path / "out" / "results" / "saliency.vit-untrained.nc")
    assert untrained.attrs["examples"] == 6


@pytest.mark.slow
def test_videos_of_davis_and_pairs_of_spair(model, tmp_path, rng):
    masks = np.zeros((3, 24, 24), np.uint8)
    for number, mask in enumerate(masks):
        mask[4:14, 4 + 2 * number : 14 + 2 * number] = 1
    write_video(tmp_path / "davis", "drift", masks, rng)
    write_list(tmp_path / "davis", ["drift"])
    for name in ("one", "two"):
        write_image(tmp_path / "spair", "cat", name, noise(rng, 16, 20))
    points = [[3, 4], [12, 9]]
    pairs = [("cat", *names, points, points) for names in (("one", "two"), ("two", "one"))]
    write_pairs(tmp_path / "spair", pairs * 10)
    flags = ("--videos", tmp_path / "davis", "--pairs", tmp_path / "spair", "--figures", "W.10")
    values, _ = analyzed(tmp_path / "out", model, *flags)
    assert values == ["propagation", "keypoints"]
    result = xr.open_dataset(tmp_path / "out" / "results" / "keypoints.vit.nc")
    assert result.attrs["examples"] == 40


@pytest.mark.slow
def test_landmarks_of_revisited_oxford(model, tmp_path, rng):
    folder = tmp_path / "roxford5k" / "jpg"
    folder.mkdir(parents=True)
    names = ["query", "same", "other", "junk"]
    for name in names:
        Image.fromarray(noise(rng, 12, 18)).save(folder / f"{name}.jpg")
    truth = [{"bbx": [0.0, 0.0, 17.0, 11.0], "easy": [0], "hard": [1], "junk": [2]}]
    gnd = {"imlist": names[1:], "qimlist": names[:1], "gnd": truth}
    with open(folder.parent / "gnd_roxford5k.pkl", "wb") as file:
        pickle.dump(gnd, file, protocol=2)
    values, page = analyzed(
        tmp_path / "out", model, "--landmarks", tmp_path, "roxford5k", "--figures", "W.29,W.30"
    )
    assert values == ["retrieval"]
    assert "It needs videos with masks of objects." in page


@pytest.mark.slow
def test_shapes_bring_their_annotations(model, tmp_path, monkeypatch):
    monkeypatch.setattr(report_commands, "SHAPE_PAIRS", 16)
    values, _ = analyzed(tmp_path / "out", model, "--data", "shapes", "--figures", "W.5,W.27,W.31")
    assert values == ["saliency", "clusters-parts", "keypoints"]
    for name in ("saliency.vit", "parts.vit-noise", "keypoints.vit-untrained"):
        assert (tmp_path / "out" / "results" / f"{name}.nc").exists()


@pytest.mark.slow
def test_classes_of_a_list_are_those_that_are_read(model, tmp_path, rng):
    for split in ("train", "test"):
        for name in ("n01", "n02", "n03"):
            (tmp_path / "photos" / split / name).mkdir(parents=True)
            for number in range(12):
                Image.fromarray(noise(rng, 16, 16)).save(
                    tmp_path / "photos" / split / name / f"{number}.png"
                )
    (tmp_path / "two.txt").write_text("n03 crane\nn01 finch\n")
    out = tmp_path / "out"
    flags = ["--data", tmp_path / "photos", "--classes", tmp_path / "two.txt", "--figures", "W.7"]
    analyzed(out, model, *flags, "--take-test", 20)
    result = xr.open_dataset(out / "results" / "clustering_first.vit.nc")
    assert result.attrs["classes"] == 2 and result.attrs["examples"] == 20
