"""Plots of single images show the numbers of the results, where they lie in the image."""

import numpy as np
import pytest
import xarray as xr

from vit_tf import analysis
from vit_tf.analysis import plots

IMAGE = np.random.default_rng(0).integers(0, 256, (16, 24, 3)).astype("uint8")
GRID = {"rows": 2, "columns": 3, "prefix": 1, "stride": 8}


def array(rng, name=None, attrs=GRID, **sizes):
    coords = {dim: np.arange(size) for dim, size in sizes.items()}
    if "layer" in coords:
        coords["layer"] = [f"block{i:02}/mlp/sum" for i in range(sizes["layer"])]
    values = rng.uniform(0.1, 1, size=tuple(sizes.values()))
    return xr.DataArray(values, coords, tuple(sizes), name=name, attrs=attrs | {"model": "ViT"})


def shown(ax):
    """What lies over the image: its values and where it ends."""
    return np.asarray(ax.images[-1].get_array()), ax.images[-1].get_extent()


def test_overlay_lies_over_all_of_the_image():
    values = np.array([[0.0, 1.0, 2.0], [3.0, np.nan, 5.0]])
    ax = analysis.plot_overlay(IMAGE, values, label="gradient")
    under, over = ax.images
    assert under.get_extent() == over.get_extent() == [-0.5, 23.5, 15.5, -0.5]
    np.testing.assert_array_equal(under.get_array(), IMAGE / 255)
    np.testing.assert_array_equal(over.get_array().filled(np.nan), values)
    assert (over.norm.vmin, over.norm.vmax, over.get_alpha()) == (0, 5, 0.7)
    own = analysis.plot_overlay(2 * (IMAGE / 255) - 1, values, low=-1, high=10)
    np.testing.assert_allclose(own.images[0].get_array(), IMAGE / 255, atol=1e-12)
    assert (own.images[1].norm.vmin, own.images[1].norm.vmax) == (-1, 10)


@pytest.mark.parametrize(
    ("image", "values"),
    [(IMAGE[..., 0], np.ones((2, 2))), (IMAGE * 2.0, np.ones((2, 2))), (IMAGE, np.ones(4))],
)
def test_what_is_no_image_or_no_map(image, values):
    with pytest.raises(ValueError, match=r"Expected an? (image|map)"):
        analysis.plot_overlay(image, values)


def test_attention_of_a_query_in_every_head(rng):
    attention = array(rng, example=2, layer=2, head=3, query=7, key=7)
    result = xr.Dataset({"attention": attention}, attrs=attention.attrs)
    layer = "block00/mlp/sum"
    axes = plots.plot_attention_rows(result, 5, image=IMAGE, layer=layer, example=1).panels
    assert [ax.get_title() for ax in axes] == ["head 0", "head 1", "head 2"]
    for ax, row in zip(axes, attention.values[1, 0, :, 5, 1:], strict=True):
        np.testing.assert_allclose(shown(ax)[0], (row / row.max()).reshape(2, 3))
        (frame,) = ax.patches  # token 5 lies in row 1, column 1
        assert (frame.get_x(), frame.get_y()) == (7.5, 7.5)
    (last, *_) = plots.plot_attention_rows(result).panels  # of CLS, in the last layer
    row = attention.values[0, 1, 0, 0, 1:]
    np.testing.assert_allclose(shown(last)[0], (row / row.max()).reshape(2, 3))
    assert not last.patches and last.figure.axes[0].get_title().startswith(
        "Attention of CLS in block01"
    )
    with pytest.raises(ValueError, match="Expected query among"):
        plots.plot_attention_rows(result, 7)


def test_a_register_is_named(rng):
    attention = array(rng, example=1, layer=1, head=2, query=8, key=8)
    result = xr.Dataset({"attention": attention}, attrs=attention.attrs | {"prefix": 2})
    (panel, *_) = plots.plot_attention_rows(result, 1).panels
    assert panel.figure.axes[0].get_title().startswith("Attention of register 1 in")
    assert not panel.patches
    (panel, *_) = plots.plot_attention_rows(result, 2).panels
    assert panel.figure.axes[0].get_title().startswith("Attention of token 2 in") and panel.patches


@pytest.mark.slow
def test_relevance_is_that_of_what_the_head_reads(rng):
    result = array(rng, example=1, **{"class": 2}, query=7, key=7)
    for prefix in (1, 0):
        if not prefix:
            result = result[:, :, 1:, 1:].assign_attrs(prefix=0)
        axes = plots.plot_gradient_attention(result, image=IMAGE).panels
        values = result.values[0]
        read = values[:, 0, 1:] if prefix else values.mean(axis=1)
        for ax, row in zip(axes, read, strict=True):
            np.testing.assert_allclose(shown(ax)[0], (row / row.max()).reshape(2, 3))


def test_what_corresponds_is_framed(rng):
    sizes = {"layer": 2, "example": 2, "token": 6, "other_example": 2, "other_token": 6}
    result = array(rng, **sizes)
    axes = plots.plot_token_similarity(result, 4, images=[IMAGE, IMAGE], example=0).panels
    of = result.values[1, 0, 4]
    for ax, values, cell in zip(axes, of, (4, int(of[1].argmax())), strict=True):
        np.testing.assert_allclose(shown(ax)[0], values.reshape(2, 3))
        assert ax.images[-1].get_clim() == (of.min(), 1)
        corner = ax.patches[0].get_x() + 0.5, ax.patches[0].get_y() + 0.5
        assert corner == (8 * (cell % 3), 8 * (cell // 3))


def test_evidence_of_each_class_layer_and_place(rng):
    gradients = array(rng, example=1, **{"class": 2}, row=16, column=24, channel=3) - 0.5
    axes = plots.plot_input_gradients(gradients, image=IMAGE).panels
    for ax, one in zip(axes, np.abs(gradients.values[0]).sum(-1), strict=True):
        np.testing.assert_allclose(shown(ax)[0], one / one.max())
    cam = array(rng, example=1, **{"class": 2}, layer=3, row=16, column=24)
    for ax, one in zip(plots.plot_grad_cam(cam, of=1).panels, cam.values[0, 1], strict=True):
        np.testing.assert_allclose(shown(ax)[0], one / one.max())
    fields = array(rng, example=1, layer=2, place=6, row=16, column=24)
    for ax, one in zip(
        plots.plot_position_attribution(fields, 3).panels, fields.values[0, :, 3], strict=True
    ):
        np.testing.assert_allclose(shown(ax)[0], np.sqrt(one / one.max()))
    for plot, result in ((plots.plot_grad_cam, fields), (plots.plot_input_gradients, cam)):
        with pytest.raises(ValueError, match="Expected a DataArray of dims"):
            plot(result)


def test_lines_through_the_depth(rng):
    lens = array(rng, example=2, layer=4, **{"class": 8})
    ax = plots.plot_logit_lens(lens, example=1)
    best = np.argsort(-lens.values[1, -1])[:5]
    assert [line.get_label() for line in ax.lines] == [f"class {position}" for position in best]
    for line, position in zip(ax.lines, best, strict=True):
        np.testing.assert_array_equal(line.get_ydata(), lens.values[1, :, position])
    both = {name: array(rng, example=1, layer=4, token=7) for name in ("skip", "branch")}
    ax = plots.plot_branch_norms(xr.Dataset(both))
    for line, norm in zip(ax.lines, both.values(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), norm.values[0].mean(axis=-1))
