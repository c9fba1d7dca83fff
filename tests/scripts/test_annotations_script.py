"""Reports from annotated images in their released layouts: one figure for each."""

import pickle

import keras
import numpy as np
import pytest
import xarray as xr
from coco_files import box, note, write
from davis_files import write_list, write_video
from PIL import Image
from reports import analyzed
from spair_files import write_image, write_pairs

import vit_tf
from vit_tf.scripts import report_commands

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
