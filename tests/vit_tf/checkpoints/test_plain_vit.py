"""big_vision's plain ViT (Beyer et al. 2022): positions of sines and cosines, not stored."""

import checkpoint_layouts as layouts
import numpy as np
import pytest
from archive_files import refuses

import vit_tf

SHAPE = (24, 40)


def sincos(rows, columns, width):
    """`posemb_sincos_2d` of big_vision's `models/vit.py`, in float64."""
    row, column = np.mgrid[:rows, :columns]
    omega = 1 / 10_000 ** (np.arange(width // 4) / (width // 4 - 1))
    y, x = (axis.reshape(-1, 1) * omega for axis in (row, column))
    return np.concatenate([np.sin(x), np.cos(x), np.sin(y), np.cos(y)], axis=1)[None]


@pytest.fixture
def plain(tmp_path):
    """Function of tensors to the path of a file of them without positions."""

    def plain(tensors, **more):
        path = tmp_path / "plain.npz"
        np.savez(path, **{n: x for n, x in tensors.items() if n != "pos_embedding"} | more)
        return path

    return plain


@pytest.mark.parametrize("names", ["big_vision", "stacked"])
def test_a_file_without_positions_is_that_with_them(names, plain, tmp_path):
    tensors = layouts.google_vit(names, cls=False, pre_logits=7)
    model = vit_tf.load_pretrained(plain(tensors), image_shape=SHAPE)
    assert model.get_config()["position_type"] == "sincos"
    tensors["pos_embedding"] = sincos(3, 5, layouts.WIDTH).astype("float32")
    np.savez(tmp_path / "whole.npz", **tensors)
    reference = vit_tf.load_pretrained(tmp_path / "whole.npz", image_shape=SHAPE)
    images = np.random.default_rng(1).normal(size=(2, *SHAPE, 3)).astype("float32")
    expected, actual = reference.intermediates(images), model.intermediates(images)
    assert list(actual) == list(expected) and "pre_logits" in actual
    for tap, x in expected.items():
        error = np.abs(np.asarray(actual[tap]) - x).max() / np.abs(x).max()
        assert error < 1e-5, (tap, error)


def test_what_a_file_without_positions_needs(plain):
    tensors = layouts.google_vit("big_vision", cls=False)
    path = plain(tensors)
    with refuses("image_shape.*sine-cosine.*None"):
        vit_tf.load_pretrained(path)
    with refuses("pooling='cls'"):
        vit_tf.load_pretrained(path, image_shape=SHAPE, pooling="cls")
    with refuses("patch_size|multiple"):
        vit_tf.load_pretrained(path, image_shape=(20, 24))
    path = plain(tensors, cls=np.ones((1, 1, layouts.WIDTH), "float32"))
    with refuses("no class token.*cls"):
        vit_tf.load_pretrained(path, image_shape=SHAPE)
