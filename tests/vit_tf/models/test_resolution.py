"""Resampled positions against SciPy and torch, and models carried to another resolution."""

import numpy as np
import pytest
from oracles import randomize, weights_of
from scipy import ndimage
from scipy.interpolate import RectBivariateSpline
from tiny_models import MODELS, tiny

from vit_tf import Preprocessing, TokenGrid, at_resolution
from vit_tf.distribute.strategies import strategy
from vit_tf.models.resolution import resample_positions, resample_relative_positions

SLOW = pytest.mark.slow
# One kind of each: learned positions, relative ones, tokens as many as weights, and none.
QUICK = ("vit", "beit", "mixer", "bit")
KINDS = [kind if kind in QUICK else pytest.param(kind, marks=SLOW) for kind in MODELS]
# Whose tokens are fixed, or whose head is not replaced by one of other units alone.
OTHER_HEADS = ("mixer", "google", "deit token", "clip embedding", "siglip embedding")


def grid(rows, columns, prefix=1):
    return TokenGrid(rows, columns, prefix, 4)


@pytest.mark.parametrize("shapes", [((4, 6), (7, 5)), ((6, 6), (3, 12)), ((1, 4), (3, 1))])
def test_bilinear_is_scipys_zoom(rng, shapes):
    (old, new), prefix = shapes, 2
    tokens = rng.normal(size=(1, prefix + old[0] * old[1], 5))
    actual = resample_positions(tokens, grid(*old, prefix), grid(*new, prefix))
    zoom = (new[0] / old[0], new[1] / old[1], 1)
    expected = ndimage.zoom(tokens[0, prefix:].reshape(*old, 5), zoom, order=1)
    np.testing.assert_array_equal(actual[:, :prefix], tokens[:, :prefix])
    np.testing.assert_allclose(actual[0, prefix:], expected.reshape(-1, 5), atol=1e-12)


@pytest.mark.parametrize("method", ["bicubic", "torch", "dino"])
@pytest.mark.parametrize("shapes", [((4, 4), (7, 5)), ((6, 6), (3, 12)), ((1, 4), (3, 1))])
def test_bicubic_forms_are_torchs(shapes, method, rng):
    """`interpolate` as timm, Hugging Face's models and DINO's code call it."""
    torch = pytest.importorskip("torch", reason="torch is not installed")
    old, new = shapes
    tokens = rng.normal(size=(1, 1 + old[0] * old[1], 3))
    actual = resample_positions(tokens, grid(*old), grid(*new), method)
    maps = torch.tensor(tokens[:, 1:].reshape(1, *old, 3)).permute(0, 3, 1, 2)
    scale = [(n + 0.1) / m for n, m in zip(new, old, strict=True)]
    options = {"scale_factor": scale} if method == "dino" else {"size": new}
    options |= {"mode": "bicubic", "align_corners": False, "antialias": method == "bicubic"}
    expected = torch.nn.functional.interpolate(maps, **options)
    expected = expected.permute(0, 2, 3, 1).reshape(-1, 3)
    np.testing.assert_allclose(actual[0, 1:], expected, atol=1e-12)
    np.testing.assert_array_equal(actual[:, :1], tokens[:, :1])
    same = resample_positions(tokens, grid(*old), grid(*old), method)
    np.testing.assert_array_equal(same, tokens)


def test_positions_that_do_not_fit_are_refused():
    tokens = np.zeros((1, 17, 2))
    with pytest.raises(ValueError, match=r"\(\.\.\., 21, channel\).*Received: \(1, 17, 2\)"):
        resample_positions(tokens, grid(4, 5), grid(4, 4))
    with pytest.raises(ValueError, match="prefix"):
        resample_positions(tokens, grid(4, 4), grid(8, 8, 0))
    with pytest.raises(ValueError, match="bicubic"):
        resample_positions(tokens, grid(4, 4), grid(8, 8), "cubic")


def small(kind, *shape, **options):
    """A tiny model of one block, which all blocks are like."""
    if not kind.startswith("bit"):
        options["num_layers"] = 1
    return tiny(kind, *shape, **options)


@pytest.mark.parametrize("kind", KINDS)
def test_same_size_is_the_same_model(kind, rng):
    model = small(kind, preprocessing={"size": (16, 24), "std": (0.2, 0.3, 0.4)})
    randomize(model)
    same = at_resolution(model)
    assert same is not model and same.get_config() == model.get_config()
    for old, new in zip(model.get_weights(), same.get_weights(), strict=True):
        np.testing.assert_array_equal(old, new)
    images = rng.normal(size=(2, *model.image_shape)).astype("float32")
    np.testing.assert_array_equal(model(images), same(images))


@pytest.mark.parametrize(
    "kind", [kind for kind, key in zip(KINDS, MODELS, strict=True) if key not in OTHER_HEADS]
)
def test_another_size_changes_the_positions_only(kind):
    model = small(kind, preprocessing={"size": (16, 24), "interpolation": "bicubic"})
    randomize(model)
    larger = at_resolution(model, (32, 40), num_classes=4)
    assert type(larger) is type(model) and larger.image_shape == (32, 40, 3)
    assert larger.preprocessing == Preprocessing((32, 40), interpolation="bicubic")
    expected = small(kind, (32, 40, 3)).get_config()
    changes = {"num_classes": 4, "preprocessing": larger.preprocessing.to_config()}
    assert larger.get_config() == expected | changes | {"name": model.name}
    old, new = weights_of(model), weights_of(larger)
    assert old.keys() == new.keys()
    for path in old:
        if "head/" in path:
            assert new[path].shape[-1] == 4 and not new[path].any()
        elif path == "embedding/positions":
            grids = model.embedding.position_grid, larger.embedding.position_grid
            moved = resample_positions(old[path], *grids)
            np.testing.assert_allclose(new[path], moved, atol=1e-6)
        elif not path.endswith("bias/table"):
            np.testing.assert_array_equal(new[path], old[path])
    again = at_resolution(larger, (16, 24))
    assert again.get_config() == model.get_config() | {"num_classes": 4}


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
        actual = resample_relative_positions(table, *grids, method)
        np.testing.assert_array_equal(actual[-3:], table[-3:])
        for head in range(2):
            if method == "bicubic":
                spline = RectBivariateSpline(down, right, maps[..., head])
                expected = spline(rows, columns)
            else:
                across = [np.interp(columns, right, row) for row in maps[..., head]]
                expected = np.stack([np.interp(rows, down, c) for c in np.transpose(across)], 1)
            np.testing.assert_allclose(actual[:-3, head], expected.ravel(), atol=1e-8)


def test_tables_that_do_not_fit_are_refused():
    table = np.zeros((7 * 7 + 3, 2))
    with pytest.raises(ValueError, match=r"\(66, head\).*Received: \(52, 2\)"):
        resample_relative_positions(table, grid(4, 5), grid(4, 4))
    with pytest.raises(ValueError, match="bicubic"):
        resample_relative_positions(table, grid(4, 4), grid(8, 8), "cubic")
    single = resample_relative_positions(np.arange(8.0).reshape(4, 2), grid(1, 1), grid(2, 3))
    np.testing.assert_array_equal(single[:-3], np.tile([[0.0, 1.0]], (15, 1)))


def test_a_new_head_replaces_both_layers_of_the_old_one():
    model = tiny("vit", representation_dim=6)
    classifier = at_resolution(model, num_classes=4)
    assert classifier.pre_logits is None and tuple(classifier.head.kernel.shape) == (8, 4)
    assert at_resolution(model, (32, 24)).pre_logits.units == 6
    headless = at_resolution(tiny("clip embedding"), num_classes=4)
    assert tuple(headless.head.kernel.shape) == (6, 4)


def test_precision_is_kept(rng):
    model = tiny("vit", dtype="mixed_bfloat16")
    assert at_resolution(model, (32, 32)).dtype_policy.name == "mixed_bfloat16"


def test_models_that_cannot_be_resampled_say_so():
    mixer = tiny("mixer")
    assert at_resolution(mixer, num_classes=2).num_classes == 2
    for shape in [(32, 32), (24, 16)]:
        with pytest.raises(ValueError, match=r"Mixer.*\(2, 3\).*Received: image_shape"):
            at_resolution(mixer, shape)
    with pytest.raises(ValueError, match="multiples of patch_size"):
        at_resolution(tiny("vit"), (17, 24))
    with pytest.raises(ValueError, match=r"image_shape.*\(16, 24, 1\)"):
        at_resolution(tiny("vit"), (16, 24, 1))
    with pytest.raises(ValueError, match=r"Expected model.*Received: str"):
        at_resolution("vit")


def test_it_works_under_a_strategy():
    model = tiny("vit")
    randomize(model)
    with strategy("mirrored").scope():
        target = at_resolution(model, num_classes=2)
    assert target.distribute_strategy.num_replicas_in_sync == 2
    old, new = weights_of(model), weights_of(target)
    for path in old:
        if not path.startswith("head/"):
            np.testing.assert_array_equal(old[path], new[path])
