"""Resampled positions against SciPy and Pillow, and models carried to another resolution."""

import numpy as np
import pytest
from oracles import randomize, weights_of
from PIL import Image
from scipy import ndimage

from vit_tf import BiT, Preprocessing, TokenGrid, ViT, at_resolution
from vit_tf.distribute.strategies import strategy
from vit_tf.models.beit import BEiT
from vit_tf.models.clip import CLIPViT
from vit_tf.models.mixer import Mixer
from vit_tf.models.resolution import resample_positions

ENCODER = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8, "num_classes": 3}
MODELS = {
    "vit": lambda shape=(16, 24, 3), **k: ViT(shape, 4, **ENCODER, **k),
    "gap": lambda shape=(16, 24, 3), **k: ViT(shape, 4, **ENCODER, pooling="gap", **k),
    "hybrid": lambda shape=(16, 24, 3), **k: ViT(shape, 1, **ENCODER, stem_units=(), **k),
    "clip": lambda shape=(16, 24, 3), **k: CLIPViT(shape, 4, **ENCODER, projection_dim=4, **k),
    "beit": lambda shape=(16, 24, 3), **k: BEiT(shape, 4, **ENCODER, **k),
    "bit": lambda shape=(16, 24, 3), **k: BiT(shape, (1, 1), 0.5, 3, **k),
    "mixer": lambda shape=(16, 24, 3), **k: Mixer(shape, 4, 2, 8, 8, 8, 3, **k),
}


def grid(rows, columns, prefix=1):
    return TokenGrid(rows, columns, prefix, 4)


def smooth(rows, columns):
    """A smooth embedding on a grid, with one prefix token: array of shape (1, token, 2)."""
    y, x = ((np.arange(n) + 0.5) / n for n in (rows, columns))
    maps = np.stack([np.sin(2 * y[:, None] + x), np.cos(y[:, None] - 2 * x)], axis=-1)
    return np.concatenate([[[7.0, -7.0]], maps.reshape(-1, 2)])[None]


@pytest.mark.parametrize("shapes", [((4, 6), (7, 5)), ((6, 6), (3, 12)), ((1, 4), (3, 1))])
def test_bilinear_is_scipys_zoom(rng, shapes):
    (old, new), prefix = shapes, 2
    tokens = rng.normal(size=(1, prefix + old[0] * old[1], 5))
    found = resample_positions(tokens, grid(*old, prefix), grid(*new, prefix))
    zoom = (new[0] / old[0], new[1] / old[1], 1)
    expected = ndimage.zoom(tokens[0, prefix:].reshape(*old, 5), zoom, order=1)
    np.testing.assert_array_equal(found[:, :prefix], tokens[:, :prefix])
    np.testing.assert_allclose(found[0, prefix:], expected.reshape(-1, 5), atol=1e-12)


@pytest.mark.parametrize("shapes", [((4, 6), (7, 5)), ((6, 9), (3, 12)), ((1, 4), (3, 1))])
def test_bicubic_is_pillows(rng, shapes):
    old, new = shapes
    tokens = rng.normal(size=(1, 1 + old[0] * old[1], 3))
    found = resample_positions(tokens, grid(*old), grid(*new), "bicubic")
    for channel in range(3):
        image = Image.fromarray(tokens[0, 1:, channel].reshape(old).astype("float32"))
        expected = np.asarray(image.resize(new[::-1], Image.Resampling.BICUBIC)).ravel()
        np.testing.assert_allclose(found[0, 1:, channel], expected, atol=2e-6)
    np.testing.assert_array_equal(found[:, :1], tokens[:, :1])


@pytest.mark.parametrize("method, tolerance", [("bilinear", 0.01), ("bicubic", 0.02)])
def test_up_and_down_again_is_where_it_was(method, tolerance):
    tokens = smooth(8, 10)
    up = resample_positions(tokens, grid(8, 10), grid(16, 15), method)
    np.testing.assert_allclose(up, smooth(16, 15), atol=0.13)
    down = resample_positions(up, grid(16, 15), grid(8, 10), method)
    np.testing.assert_allclose(down, tokens, atol=tolerance)
    assert (
        resample_positions(tokens, grid(8, 10), grid(8, 10), method).tobytes() == tokens.tobytes()
    )
    nested = resample_positions(tokens, grid(8, 10), grid(15, 19))
    back = resample_positions(nested, grid(15, 19), grid(8, 10))
    np.testing.assert_allclose(back, tokens, atol=1e-12)


def test_positions_that_do_not_fit_are_refused():
    tokens = smooth(4, 4)
    with pytest.raises(ValueError, match=r"\(\.\.\., 21, channel\).*Received: \(1, 17, 2\)"):
        resample_positions(tokens, grid(4, 5), grid(4, 4))
    with pytest.raises(ValueError, match="prefix"):
        resample_positions(tokens, grid(4, 4), grid(8, 8, 0))
    with pytest.raises(ValueError, match="bicubic"):
        resample_positions(tokens, grid(4, 4), grid(8, 8), "cubic")


@pytest.mark.parametrize("kind", MODELS)
def test_same_size_is_the_same_model(kind, rng):
    model = MODELS[kind](preprocessing={"size": (16, 24), "std": (0.2, 0.3, 0.4)})
    randomize(model)
    same = at_resolution(model)
    assert same is not model and same.get_config() == model.get_config()
    for old, new in zip(model.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    images = rng.normal(size=(2, *model.image_shape)).astype("float32")
    np.testing.assert_array_equal(model(images), same(images))


@pytest.mark.parametrize("kind", ["vit", "gap", "hybrid", "clip", "beit", "bit"])
def test_another_size_changes_the_positions_only(kind):
    model = MODELS[kind](preprocessing={"size": (16, 24), "interpolation": "bicubic"})
    randomize(model)
    larger = at_resolution(model, (32, 28), num_classes=5)
    assert type(larger) is type(model) and larger.image_shape == (32, 28, 3)
    assert larger.preprocessing == Preprocessing((32, 28), interpolation="bicubic")
    expected = MODELS[kind]((32, 28, 3)).get_config()
    kept = {"num_classes": 5, "preprocessing": larger.preprocessing.to_config()}
    assert larger.get_config() == expected | kept | {"name": model.name}
    old, new = weights_of(model), weights_of(larger)
    assert old.keys() == new.keys()
    for path in old:
        if path.startswith("head/"):
            assert new[path].shape[-1] == 5 and not new[path].any()
        elif path == "embedding/positions":
            grids = model.token_grid, larger.token_grid
            moved = resample_positions(old[path], *grids)
            np.testing.assert_allclose(new[path], moved, atol=1e-6)
        elif not path.endswith("bias/table"):
            np.testing.assert_array_equal(new[path], old[path])
    again = at_resolution(larger, (16, 24))
    assert again.get_config() == model.get_config() | {"num_classes": 5}


@pytest.mark.parametrize("pixels", [(16, 24), (24, 16), (32, 28)])
def test_relative_positions_of_beit_are_resampled_as_maps(pixels):
    """A table that is linear in the distances stays so, in units of the image."""
    model = BEiT((16, 24, 3), 4, **ENCODER, shared_bias=True)
    down, right = np.meshgrid(np.arange(-3, 4) / 4, np.arange(-5, 6) / 6, indexing="ij")
    values = np.stack([down, right], axis=-1).reshape(-1, 2)
    model.biases[0].table.assign(np.concatenate([values, [[9, 8], [7, 6], [5, 4]]]))
    other = at_resolution(model, pixels, method="bicubic")
    rows, columns = other.token_grid.rows, other.token_grid.columns
    table = other.biases[0].table.numpy()
    np.testing.assert_array_equal(table[-3:], [[9, 8], [7, 6], [5, 4]])
    maps = table[:-3].reshape(2 * rows - 1, 2 * columns - 1, 2)
    step = [7 / 4 / (2 * rows - 1), 11 / 6 / (2 * columns - 1)]
    for axis, (count, place) in enumerate([(rows, maps[:, 0, 0]), (columns, maps[0, :, 1])]):
        middle = slice(count // 2, -(count // 2))
        expected = np.arange(1 - count, count) * step[axis]
        # Where a grid shrinks, the antialiased weights keep lines only nearly.
        np.testing.assert_allclose(place[middle], expected[middle], atol=5e-4)
    assert maps[:, :, 0].std(axis=1).max() < 1e-6 and maps[:, :, 1].std(axis=0).max() < 1e-6


def test_a_new_head_replaces_both_layers_of_the_old_one():
    model = MODELS["vit"](representation_dim=6)
    fresh = at_resolution(model, num_classes=4)
    assert fresh.pre_logits is None and tuple(fresh.head.kernel.shape) == (8, 4)
    assert at_resolution(model, (32, 24)).pre_logits.units == 6
    headless = CLIPViT((16, 16, 3), 4, **ENCODER | {"num_classes": None}, projection_dim=4)
    assert tuple(at_resolution(headless, num_classes=4).head.kernel.shape) == (4, 4)


def test_precision_is_kept(rng):
    model = MODELS["vit"](dtype="mixed_bfloat16")
    assert at_resolution(model, (32, 32)).dtype_policy.name == "mixed_bfloat16"


def test_models_that_cannot_be_resampled_say_so():
    mixer = MODELS["mixer"]()
    assert at_resolution(mixer, num_classes=2).num_classes == 2
    for shape in [(32, 32), (24, 16)]:
        with pytest.raises(ValueError, match=r"Mixer.*\(4, 6\).*Received: image_shape"):
            at_resolution(mixer, shape)
    with pytest.raises(ValueError, match="multiples of patch_size"):
        at_resolution(MODELS["vit"](), (17, 24))
    with pytest.raises(ValueError, match=r"image_shape.*\(16, 24, 1\)"):
        at_resolution(MODELS["vit"](), (16, 24, 1))
    with pytest.raises(ValueError, match=r"Expected model.*Received: str"):
        at_resolution("vit")


def test_it_works_under_a_strategy():
    model = MODELS["vit"]()
    randomize(model)
    with strategy("mirrored").scope():
        fresh = at_resolution(model, num_classes=2)
    assert fresh.distribute_strategy.num_replicas_in_sync == 2
    old, new = weights_of(model), weights_of(fresh)
    for path in old:
        if not path.startswith("head/"):
            np.testing.assert_array_equal(old[path], new[path])
