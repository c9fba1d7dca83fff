"""Plots of interventions show the numbers of their results."""

import numpy as np
import pytest
import xarray as xr

from vit_tf.analysis import plots
from vit_tf.analysis.plots.flow_plots import plot_head_effects, plot_token_ablation


def effects(dims, values, coords):
    data = {"accuracy_change": (dims, values), "accuracy_change_stderr": (dims, 0 * values + 0.1)}
    return xr.Dataset(data, coords=coords, attrs={"model": "tiny"})


def test_cells_are_the_heads_in_colours_around_zero():
    values = np.array([[0.1, -0.4], [0.2, np.nan], [0.3, 0.0]])
    coords = {"layer": [f"block0{i}/attention/heads" for i in range(3)], "head": [0, 1]}
    result = effects(("layer", "head"), values, coords)
    ax = plots.plot_head_ablation(result, change="accuracy_change")
    (image,) = ax.images
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), values.T)
    assert image.get_clim() == (-0.4, 0.4) and "tiny" in ax.get_title()
    with pytest.raises(ValueError, match="Expected change in"):
        plots.plot_head_ablation(result, change="loss")


def test_lines_are_the_orders_and_leave_out_what_is_not_there():
    values = np.array([[np.nan, -0.5], [-0.1, -0.2]])
    coords = {"tokens": ["cls", "random"], "share": [0.5, 1.0]}
    ax = plots.plot_token_ablation(effects(("tokens", "share"), values, coords))
    drawn = [bar.lines[0].get_xydata().tolist() for bar in ax.containers]
    assert drawn == [[[1.0, -0.5]], [[0.5, -0.1], [1.0, -0.2]]]


def test_a_line_for_each_path_of_a_block():
    values = np.array([[-0.1, -0.2], [-0.3, -0.4]])
    coords = {"layer": ["block00", "block01"], "path": ["skip", "branch"]}
    result = effects(("layer", "path"), values, coords)
    ax = plots.plot_skip_ablation(result)
    lines = {line.get_label(): list(line.get_ydata()) for line in ax.lines}
    assert lines["without skip"] == [-0.1, -0.3] and lines["without branch"] == [-0.2, -0.4]
    reach = 1.96 * result["accuracy_change_stderr"].values
    assert len(ax.collections) == 2 and reach.min() > 0
    for band, middle, half in zip(ax.collections, values.T, reach.T, strict=True):
        ends = band.get_paths()[0].vertices[:, 1]
        assert ends.min() == (middle - half).min() and ends.max() == (middle + half).max()


def test_cells_are_the_tokens_that_are_patched():
    values = np.array([[0.1, 0.9, -0.2], [0.3, 1.2, 0.0]])
    coords = {"layer": ["block00/mlp/sum", "block01/mlp/sum"], "token": [0, 3, 4]}
    result = xr.Dataset({"transfer": (("layer", "token"), values)}, coords=coords)
    ax = plots.plot_activation_patching(result)
    (image,) = ax.images
    np.testing.assert_array_equal(image.get_array(), values.T)
    assert image.get_clim() == (-1.2, 1.2)
    assert [label.get_text() for label in ax.get_yticklabels()] == ["0", "3", "4"]


def test_heads_are_points_of_their_distance_and_effect():
    effect, far = np.array([[0.1, 0.4], [0.2, 0.3]]), np.array([[5.0, 6.0], [7.0, 8.0]])
    coords = {"layer": ["block00/attention", "block01/attention"], "head": [0, 1]}
    result = effects(("layer", "head"), effect, coords)
    distance = xr.DataArray(far, coords, ("layer", "head"), attrs={"units": "pixel"})
    # Which head is which follows from the coordinates, not from their order.
    result = result.assign(distance=distance.sel(layer=coords["layer"][::-1]))
    ax = plot_head_effects({"tiny": result, "other": result}, change="accuracy_change")
    for points in ax.collections:
        np.testing.assert_array_equal(
            points.get_offsets(), np.stack([far, effect], -1).reshape(4, 2)
        )
    assert ax.get_xlabel() == "mean attention distance (pixel)"


def test_lines_of_the_lens_lie_in_bands_of_their_errors():
    numbers = {"accuracy": [0.2, 0.7], "agreement": [0.4, 1.0]}
    numbers |= {"accuracy_stderr": [0.05, 0.1], "agreement_stderr": [0.02, 0.0]}
    layers = {"layer": ["block00/mlp/sum", "block01/mlp/sum"]}
    lens = xr.Dataset({k: ("layer", v) for k, v in numbers.items()}, coords=layers)
    ax = plots.plot_lens_accuracy({"tiny": lens})
    for line, band, kind in zip(ax.lines, ax.collections, ("accuracy", "agreement"), strict=True):
        np.testing.assert_array_equal(line.get_ydata(), numbers[kind])
        reach = 1.96 * np.array(numbers[f"{kind}_stderr"])
        edges = {depth: [] for depth in line.get_xdata()}
        for x, y in band.get_paths()[0].vertices:
            edges[x].append(y)
        low, high = zip(*((min(ys), max(ys)) for ys in edges.values()), strict=True)
        np.testing.assert_allclose(low, np.array(numbers[kind]) - reach, atol=1e-12)
        np.testing.assert_allclose(high, np.array(numbers[kind]) + reach, atol=1e-12)


def test_panels_of_orders_share_a_scale_and_colours():
    coords = {"tokens": ["cls", "random"], "share": [0.5, 1.0]}
    values = np.array([[np.nan, -0.1], [-0.1, -0.2]])
    plain = effects(("tokens", "share"), values, coords)
    more = effects(("tokens", "share"), 4 * values[:, ::-1], coords | {"tokens": ["new", "random"]})
    host = plot_token_ablation({"tiny": plain, "other": more})
    axes = host.panels
    assert axes[0].get_ylim() == axes[1].get_ylim() and axes[1].get_ylim()[0] < -0.8
    random = [ax.containers[1].lines[0] for ax in axes]
    assert random[0].get_color() == random[1].get_color() != axes[0].containers[0][0].get_color()
    np.testing.assert_array_equal(random[1].get_ydata(), [-0.8, -0.4])
    assert [text.get_text() for text in host.get_legend().get_texts()] == ["cls", "random", "new"]
