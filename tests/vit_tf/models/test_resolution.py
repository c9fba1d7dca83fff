"""Resampled positions against SciPy, Pillow and timm, and models carried to another resolution."""

import sys
from importlib import import_module
from importlib.machinery import ModuleSpec
from importlib.util import find_spec, module_from_spec
from pathlib import Path

import numpy as np
import pytest
from oracles import randomize, weights_of
from PIL import Image
from scipy import ndimage
from scipy.interpolate import RectBivariateSpline

from vit_tf import BiT, Preprocessing, TokenGrid, ViT, at_resolution
from vit_tf.distribute.strategies import strategy
from vit_tf.models.beit import BEiT
from vit_tf.models.clip import CLIPViT
from vit_tf.models.mixer import Mixer
from vit_tf.models.resolution import resample_positions, resample_relative_positions

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


@pytest.mark.parametrize("shapes", [((4, 4), (7, 5)), ((6, 6), (3, 12)), ((1, 4), (3, 1))])
def test_dinos_bicubic_is_that_of_loops(rng, shapes):
    """Keys 1981 with a = -3/4 at the places that a scale of (new + 0.1) / old makes."""
    (rows, columns), new = shapes
    tokens = rng.normal(size=(1, 1 + rows * columns, 3))
    found = resample_positions(tokens, grid(rows, columns), grid(*new), "dino")
    maps, a = tokens[0, 1:].reshape(rows, columns, 3), -0.75

    def kernel(x):
        x = abs(x)
        if x < 1:
            return (a + 2) * x**3 - (a + 3) * x**2 + 1
        return a * x**3 - 5 * a * x**2 + 8 * a * x - 4 * a if x < 2 else 0

    expected = np.zeros((*new, 3))
    for i, j in np.ndindex(*new):
        y, x = (
            (i + 0.5) / ((new[0] + 0.1) / rows) - 0.5,
            (j + 0.5) / ((new[1] + 0.1) / columns) - 0.5,
        )
        for r in range(int(np.floor(y)) - 1, int(np.floor(y)) + 3):
            for c in range(int(np.floor(x)) - 1, int(np.floor(x)) + 3):
                value = maps[min(max(r, 0), rows - 1), min(max(c, 0), columns - 1)]
                expected[i, j] += kernel(y - r) * kernel(x - c) * value
    np.testing.assert_allclose(found[0, 1:], expected.reshape(-1, 3), atol=1e-12)
    np.testing.assert_array_equal(found[:, 0], tokens[:, 0])
    same = resample_positions(tokens, grid(rows, columns), grid(rows, columns), "dino")
    np.testing.assert_array_equal(same, tokens)


@pytest.mark.parametrize("antialias", [False, True])
@pytest.mark.parametrize("shapes", [((4, 4), (7, 5)), ((6, 6), (3, 12)), ((7, 5), (2, 3))])
def test_bicubic_forms_are_torchs(shapes, antialias, rng):
    """`interpolate`, as Hugging Face's models call it: antialiased for registers alone."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    old, new = shapes
    tokens = rng.normal(size=(1, 1 + old[0] * old[1], 3))
    method = "bicubic" if antialias else "torch"
    found = resample_positions(tokens, grid(*old), grid(*new), method)
    maps = torch.tensor(tokens[:, 1:].reshape(1, *old, 3)).permute(0, 3, 1, 2)
    options = {"mode": "bicubic", "align_corners": False, "antialias": antialias}
    expected = torch.nn.functional.interpolate(maps, size=new, **options)
    expected = expected.permute(0, 2, 3, 1).reshape(-1, 3)
    np.testing.assert_allclose(found[0, 1:], expected, atol=1e-12)


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


def relative_table(shape, values):
    """A table of (2 R - 1) x (2 C - 1) values and three entries of the class token, two heads."""
    sizes = [2 * n - 1 for n in shape]
    return np.concatenate([np.reshape(values, (sizes[0] * sizes[1], 2)), [[9, 8], [7, 6], [5, 4]]])


def geometric_offsets(old, new):
    """Where BEiT places the offsets of `old` tokens among those of `new`: a polynomial's root."""
    if old == new:
        return np.arange(1 - old, old)
    roots = np.roots([1.0] * (old - 2) + [1 - (new - 1)])
    ratio = roots[(abs(roots.imag) < 1e-9) & (roots.real > 0)].real.max()
    ratio = min(max(ratio, 1.01), 1.5)
    side = [(ratio**k - 1) / (ratio - 1) for k in range(1, old)]
    return np.array([-x for x in side[::-1]] + [0.0] + side)


SHAPES = [((14, 14), (24, 24)), ((14, 14), (9, 9)), ((4, 6), (9, 7)), ((4, 5), (12, 5))]


@pytest.mark.parametrize("old, new", SHAPES)
def test_relative_positions_lie_where_beit_has_them(old, new, rng):
    """SciPy's interpolation between the geometrically spaced offsets, values beyond held."""
    maps = rng.normal(size=(2 * old[0] - 1, 2 * old[1] - 1, 2))
    grids, table = (grid(*old), grid(*new)), relative_table(old, maps)
    down, right = (geometric_offsets(*sizes) for sizes in zip(old, new, strict=True))
    rows, columns = (np.arange(1 - n, n) for n in new)
    for method in ("bilinear", "bicubic"):
        found = resample_relative_positions(table, *grids, method)
        np.testing.assert_array_equal(found[-3:], table[-3:])
        for head in range(2):
            if method == "bicubic":
                spline = RectBivariateSpline(down, right, maps[..., head])
                expected = spline(rows, columns)
            else:
                across = [np.interp(columns, right, row) for row in maps[..., head]]
                expected = np.stack([np.interp(rows, down, c) for c in np.transpose(across)], 1)
            np.testing.assert_allclose(found[:-3, head], expected.ravel(), atol=1e-8)


@pytest.mark.parametrize("method", ["bilinear", "bicubic"])
def test_neighbours_keep_their_relative_positions(method):
    """exp(-d / 2) is 0.607 next to a token, at 24 x 24 tokens as at 14 x 14."""
    beit = BEiT((28, 28, 3), 2, **ENCODER | {"num_layers": 1})
    columns = np.broadcast_to(np.arange(-13, 14), (27, 27))
    maps = np.stack([np.exp(-np.abs(columns) / 2), np.exp(-np.abs(columns.T) / 2)], axis=-1)
    beit.biases[0].table.assign(relative_table((14, 14), maps))
    larger = at_resolution(beit, (48, 48), method=method)
    found = larger.biases[0].table.numpy()[:-3].reshape(47, 47, 2)
    middle = found[23, 22:26, 0]
    np.testing.assert_allclose(middle[:3], np.exp([-0.5, 0, -0.5]), atol=1e-6)
    assert np.exp(-1.0) < middle[3] < 0.4
    np.testing.assert_allclose(found[..., 1], found[..., 0].T, atol=1e-6)
    # Seen by the model: the bias of a token to its right neighbour.
    bias = larger.biases[0](np.zeros((1, 577, 8)))
    assert float(bias[0, 1 + 24 * 5 + 6, 1 + 24 * 5 + 5]) == pytest.approx(0.6065, abs=1e-4)


def timm_resize():
    """timm's `resize_rel_pos_bias_table`, without the rest of timm, which needs torchvision."""
    pytest.importorskip("torch", reason="torch is not installed")
    spec = find_spec("timm")
    if spec is None:
        pytest.skip("timm is not installed: pip install --no-deps timm==1.0.20")
    layers = Path(spec.origin).parent / "layers"
    package = ModuleSpec("timm_layers", None, is_package=True)
    package.submodule_search_locations = [str(layers)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "timm_layers", module_from_spec(package))
        return import_module("timm_layers.pos_embed_rel").resize_rel_pos_bias_table


@pytest.mark.parametrize("old, new", [(14, 24), (14, 16), (24, 14), (4, 8)])
def test_relative_positions_are_timms(old, new, rng):
    resize = timm_resize()
    import torch

    table = relative_table((old, old), rng.normal(size=(2 * old - 1, 2 * old - 1, 2)))
    entries = (2 * new - 1) ** 2 + 3
    expected = resize(torch.from_numpy(table).float(), (new, new), (entries, 2)).numpy()
    found = resample_relative_positions(table, grid(old, old), grid(new, new))
    # timm finds the ratio to 1e-6 only.
    np.testing.assert_allclose(found, expected, atol=5e-4)


def test_tables_that_do_not_fit_are_refused():
    table = np.zeros((7 * 7 + 3, 2))
    with pytest.raises(ValueError, match=r"\(66, head\).*Received: \(52, 2\)"):
        resample_relative_positions(table, grid(4, 5), grid(4, 4))
    with pytest.raises(ValueError, match="bicubic"):
        resample_relative_positions(table, grid(4, 4), grid(8, 8), "cubic")
    one = resample_relative_positions(np.arange(8.0).reshape(4, 2), grid(1, 1), grid(2, 3))
    np.testing.assert_array_equal(one[:-3], np.tile([[0.0, 1.0]], (15, 1)))


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
