"""DAVIS in its released layout: small files with the quirks of the real ones."""

import numpy as np
import pytest
import tensorflow as tf
from davis_files import write_list, write_mask, write_video
from PIL import Image

from vit_tf import Preprocessing, TokenGrid, analysis
from vit_tf.data import load_davis


def make_masks(rng, frames, height, width):
    """Masks of objects 1 and 3, and of void."""
    masks = rng.choice([0, 1, 3, 255], (frames, height, width))
    masks[:, :2, :2] = [[1, 3], [0, 255]]
    return masks


@pytest.fixture
def root(rng, tmp_path):
    """Two videos of different size and length, listed in another order than the alphabet's."""
    write_video(tmp_path, "breakdance", make_masks(rng, 3, 12, 20), rng)
    write_video(tmp_path, "soapbox", make_masks(rng, 4, 16, 16), rng)
    write_list(tmp_path, ["soapbox", "breakdance", ""])
    return tmp_path


def test_frames_and_indices_are_those_of_the_files(rng, tmp_path):
    masks = make_masks(rng, 12, 10, 14)  # more than ten, since names are sorted
    decoded = write_video(tmp_path, "goat", masks, rng)
    (tmp_path / "JPEGImages/480p/goat/._00000.jpg").write_bytes(b"left by another system")
    write_list(tmp_path, ["goat"])
    [(frames, found)] = load_davis(tmp_path)
    assert frames.dtype == np.float32 and found.dtype == np.uint8
    np.testing.assert_allclose(frames, decoded / 127.5 - 1, atol=1e-6)
    np.testing.assert_array_equal(found, masks)
    mean, std = np.array([0.5, 0.4, 0.3]), np.array([0.2, 0.3, 0.1])
    preprocessing = Preprocessing((224, 224), tuple(mean), tuple(std))
    [(frames, _)] = load_davis(tmp_path, preprocessing=preprocessing)
    np.testing.assert_allclose(frames, (decoded / 255 - mean) / std, atol=1e-5)


def test_videos_are_read_one_by_one_in_the_order_of_the_list(root):
    videos = load_davis(root)
    assert videos.names == ("soapbox", "breakdance") and len(videos) == 2
    assert [frames.shape for frames, _ in videos] == [(4, 16, 16, 3), (3, 12, 20, 3)]
    assert videos[-1][1].shape == (3, 12, 20)
    assert videos[1:].names == ("breakdance",) and videos[1:][0][1].shape == (3, 12, 20)
    (root / "JPEGImages/480p/breakdance/00001.jpg").write_bytes(b"no longer an image")
    assert videos[0][0].shape == (4, 16, 16, 3)
    with pytest.raises(ValueError, match=r"can be decoded.*breakdance/00001\.jpg"):
        videos[1]


def test_years_splits_and_resolutions_are_folders(rng, tmp_path):
    write_video(tmp_path, "bear", make_masks(rng, 3, 8, 8), rng, "Full-Resolution")
    write_list(tmp_path, ["bear"], "2016", "train")
    videos = load_davis(tmp_path, "train", year="2016", resolution="Full-Resolution")
    assert videos.names == ("bear",) and len(videos[0][0]) == 3


def patch_means(images):
    return {"colour": tf.nn.avg_pool2d(images, 2, 2, "VALID")}


def test_propagation_takes_the_videos_as_a_sequence_or_a_stream(rng, tmp_path):
    for name in ("a", "b"):
        write_video(tmp_path, name, make_masks(rng, 4, 16, 16), rng)
    write_list(tmp_path, "ab")
    videos = load_davis(tmp_path)
    grid = TokenGrid(8, 8, 0, 2)
    results = [
        analysis.label_propagation(patch_means, some, grid, dense=False)
        for some in (videos, iter(videos), list(videos))
    ]
    for result in results[1:]:
        assert result.identical(results[0])
    assert results[0]["video"].values.tolist() == [0, 0, 1, 1]  # void is no object
    assert results[0].attrs["examples"] == 8 and results[0].attrs["batch_size"] == 4


def test_objects_that_fill_a_frame_keep_their_numbers_and_void_is_none(rng, tmp_path):
    masks = np.full((4, 16, 16), 1)
    masks[:, 8:] = 3
    masks[:, 15, 15] = 255
    write_video(tmp_path, "full", masks, rng)
    write_list(tmp_path, ["full"])
    videos = load_davis(tmp_path)
    frames, read = videos[0]
    np.testing.assert_array_equal(read, masks)
    grid = TokenGrid(8, 8, 0, 2)
    result = analysis.label_propagation(patch_means, videos, grid, dense=False)
    assert result.sizes["object"] == 2
    found = analysis.follow_masks(patch_means, frames, read[0], grid, dense=False)["colour"]
    analysis.write_masks(tmp_path / "found" / "full", found)
    again = [np.asarray(Image.open(path)) for path in sorted((tmp_path / "found/full").iterdir())]
    np.testing.assert_array_equal(again, found)
    assert set(np.unique(again[1:])) <= {0, 1, 3} and again[0][15, 15] == 0


def test_masks_are_written_back_with_the_palette_of_the_source(root):
    videos = load_davis(root)
    _, masks = videos[0]
    analysis.write_masks(root / "found", masks)
    for source, written in zip(videos.masks[0], sorted((root / "found").iterdir()), strict=True):
        images = Image.open(source), Image.open(written)
        assert source.name == written.name
        assert images[1].mode == "P" and images[0].getpalette() == images[1].getpalette()
        np.testing.assert_array_equal(*map(np.asarray, images))


def test_masks_without_a_palette_are_refused(root):
    path = root / "Annotations/480p/soapbox/00002.png"
    indices = np.asarray(Image.open(path))
    for mode in ("L", "RGB", "1"):
        Image.fromarray(indices).convert(mode).save(path)
        with pytest.raises(ValueError, match=rf"palette \(mode P\).*00002\.png of mode {mode}$"):
            load_davis(root)[0]
    path.write_bytes(path.read_bytes()[:40])
    with pytest.raises(ValueError, match=r"Expected a mask that can be decoded.*00002\.png"):
        load_davis(root)[0]


def test_sizes_that_differ_are_refused(root):
    path = root / "Annotations/480p/soapbox/00003.png"
    write_mask(path, np.ones((16, 15)))
    with pytest.raises(ValueError, match=r"\(16, 16\) as of .*00000.png.*00003.png of \(16, 15\)"):
        load_davis(root)[0]
    write_mask(path, np.ones((16, 16)))
    Image.new("RGB", (17, 16)).save(root / "JPEGImages/480p/soapbox/00001.jpg")
    with pytest.raises(ValueError, match=r"00001.jpg of \(16, 17\)"):
        load_davis(root)[0]


def test_what_is_missing_is_named_ahead(root):
    last = root / "JPEGImages/480p/soapbox/00003.jpg"
    kept = last.read_bytes()
    last.unlink()
    with pytest.raises(ValueError, match=r"JPEGImages/480p/soapbox': 00003\.jpg$"):
        load_davis(root)
    last.write_bytes(kept)
    (root / "JPEGImages/480p/soapbox/00001.jpg").unlink()
    with pytest.raises(ValueError, match=r"JPEGImages/480p/soapbox': 00001\.jpg$"):
        load_davis(root)
    (root / "Annotations/480p/soapbox/00001.png").unlink()
    with pytest.raises(ValueError, match=r": 00001\.jpg$"):  # a gap in both
        load_davis(root)
    (root / "JPEGImages/480p/soapbox/00001.jpg").write_bytes(kept)
    for number in (2, 3):  # as in test-dev, whose masks are but the first ones
        (root / f"Annotations/480p/soapbox/{number:05}.png").unlink()
    with pytest.raises(ValueError, match=r"Annotations.*: 00001.png, 00002.png, 00003.png$"):
        load_davis(root)
    write_list(root, ["breakdance", "camel"])
    with pytest.raises(ValueError, match=r"No files 00000\.jpg.*480p/camel'"):
        load_davis(root)
    with pytest.raises(ValueError, match=r"train\.txt'. There are: val"):
        load_davis(root, "train")
    with pytest.raises(ValueError, match=r"Preprocessing of 3 channels"):
        load_davis(root, preprocessing=224)
