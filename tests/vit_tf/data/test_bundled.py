"""The photographs of the package: their files, their credits, and their name in calls."""

import re

import numpy as np
import pytest
from PIL import Image

import vit_tf
from vit_tf.data.any_images import as_images, is_raw
from vit_tf.data.names import PHOTOGRAPHS_FOLDER

MOST_BYTES = 3_000_000
LICENSES = r"public domain|\[CC0 1\.0\]\(https\S+\)|\[CC BY [1-4]\.0\]\(https\S+\)"


def test_every_photograph_is_credited_with_a_license_to_pass_it_on():
    paths = vit_tf.data.photographs()
    assert len(paths) == len(set(paths)) == 200
    assert sum(path.stat().st_size for path in PHOTOGRAPHS_FOLDER.iterdir()) < MOST_BYTES
    text = (PHOTOGRAPHS_FOLDER / "CREDITS.md").read_text("utf-8")
    rows = [line.strip("| ").split(" | ") for line in text.splitlines() if ".jpg |" in line]
    assert all(len(row) == 6 and row[2] and row[4] for row in rows)
    assert all(re.fullmatch(LICENSES, row[3]) for row in rows)
    names = [re.split(r"[\\/]", path)[-1] for path in paths]
    assert sorted(names[: len(rows)]) == sorted(row[0] for row in rows)
    assert all(re.sub(r"-crop\d+", "", name) in names[: len(rows)] for name in names)


def test_photographs_are_in_colour_and_of_enough_pixels():
    for path in vit_tf.data.photographs():
        with Image.open(path) as image:
            assert image.mode == "RGB" and min(image.size) >= 96, path


def test_crops_are_parts_of_their_photographs():
    """The best match of a crop, at any position and of any size, is close to it."""
    for name in ("tiger", "moose", "temple"):
        whole = Image.open(vit_tf.data.photographs(name)[0]).convert("L")
        crop = Image.open(vit_tf.data.photographs(f"{name}-crop1")[0]).convert("L")
        best = 0.0
        for side in range(24, 64, 2):
            scale = 64 / min(whole.size)
            small = np.asarray(whole.resize([round(scale * x) for x in whole.size]), np.float64)
            part = np.asarray(crop.resize((side, side)), np.float64)
            windows = np.lib.stride_tricks.sliding_window_view(small, part.shape)
            centred = windows - windows.mean((-2, -1), keepdims=True)
            norms = np.sqrt((centred**2).sum((-2, -1))) * np.sqrt(((part - part.mean()) ** 2).sum())
            products = np.einsum("rcij,ij->rc", centred, part - part.mean())
            best = max(best, (products / norms).max())
        assert best > 0.9, name


def test_their_name_stands_for_images_and_for_a_data_set():
    preprocessing = vit_tf.Preprocessing.from_range((32, 32), -1, 1)
    assert is_raw("photographs")
    batches = as_images("photographs", preprocessing)
    assert sum(len(batch) for batch in batches) == 200
    (images,) = vit_tf.data.load("photographs", splits=("all",), image_size=32)
    labels = np.concatenate([labels for _, labels in images])
    assert labels.shape == (200,) and (labels == -1).all()
    assert vit_tf.data.describe("photographs").num_classes == 0


def test_a_misspelt_name_raises_with_near_matches():
    assert [path[-7:] for path in vit_tf.data.photographs("cat")] == ["cat.jpg"]
    with pytest.raises(ValueError, match=r"Unknown photograph: 'tigre'.*tiger"):
        vit_tf.data.photographs("cat", "tigre")
