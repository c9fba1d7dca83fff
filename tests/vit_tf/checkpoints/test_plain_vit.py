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
    whole = vit_tf.load_pretrained(tmp_path / "whole.npz", image_shape=SHAPE)
    images = np.random.default_rng(1).normal(size=(2, *SHAPE, 3)).astype("float32")
    expected, found = whole.intermediates(images), model.intermediates(images)
    assert list(found) == list(expected) and "pre_logits" in found
    for tap, x in expected.items():
        error = np.abs(np.asarray(found[tap]) - x).max() / np.abs(x).max()
        assert error < 1e-5, (tap, error)


def test_the_published_size():
    """S/16 with its layer of tanh, as `vit_s16_i1k.py` trains it: shapes of the released files."""
    from vit_tf.checkpoints import google
    from vit_tf.checkpoints.archives import TensorInfo
    from vit_tf.checkpoints.weight_maps import LoadOptions

    split, block = (6, 64), "Transformer/encoderblock_{}"
    shapes = {"embedding/kernel": (16, 16, 3, 384), "embedding/bias": (384,)}
    for i in range(12):
        name = block.format(i)
        for which in ("query", "key", "value"):
            shapes[f"{name}/MultiHeadDotProductAttention_0/{which}/kernel"] = (384, *split)
            shapes[f"{name}/MultiHeadDotProductAttention_0/{which}/bias"] = split
        shapes[f"{name}/MultiHeadDotProductAttention_0/out/kernel"] = (*split, 384)
        shapes[f"{name}/MultiHeadDotProductAttention_0/out/bias"] = (384,)
        for norm in (0, 1):
            shapes |= {f"{name}/LayerNorm_{norm}/{end}": (384,) for end in ("scale", "bias")}
        for dense, (inputs, outputs) in enumerate(((384, 1536), (1536, 384))):
            shapes[f"{name}/MlpBlock_0/Dense_{dense}/kernel"] = (inputs, outputs)
            shapes[f"{name}/MlpBlock_0/Dense_{dense}/bias"] = (outputs,)
    shapes |= {f"Transformer/encoder_norm/{end}": (384,) for end in ("scale", "bias")}
    shapes |= {"pre_logits/kernel": (384, 384), "pre_logits/bias": (384,)}
    shapes |= {"head/kernel": (384, 1000), "head/bias": (1000,)}
    tensors = {name: TensorInfo(shape, "float32") for name, shape in shapes.items()}
    mapping = google.convert_vit(tensors, LoadOptions(image_shape=(224, 224))).mapping
    used = {name: shape for s in mapping.weights.values() for name, shape in s.tensors.items()}
    assert used == shapes
    sizes = {"num_layers": 12, "num_heads": 6, "hidden_dim": 384, "mlp_dim": 1536, "patch_size": 16}
    sizes |= {"num_classes": 1000, "pooling": "gap", "representation_dim": 384}
    assert {name: mapping.arguments[name] for name in sizes} == sizes


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
