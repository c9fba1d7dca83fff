"""Lines through the depth draw the numbers they are given, and baselines in grey."""

import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgb

from vit_tf import analysis

LAYERS = ["embedding", "block00/mlp/sum", "block01/mlp/sum"]


def followed(*scores):
    return xr.Dataset({"score": ("layer", list(scores))}, {"layer": LAYERS[: len(scores)]})


def found(*scores):
    values = np.stack([np.outer(scores, (1.0, 0.5)), np.outer(scores, (0.9, 0.4))])
    dims = ("average", "layer", "threshold")
    coords = {"average": ["point", "image"], "layer": LAYERS, "threshold": [0.1, 0.05]}
    return xr.Dataset({"score": (dims, values)}, coords)


def heights(ax):
    return {line.get_label(): line.get_ydata().tolist() for line in ax.get_lines()}


def is_grey(line):
    return len(set(to_rgb(line.get_color()))) == 1


def test_propagation_has_a_line_for_each_model_and_grey_ones_for_baselines():
    results = {"A": followed(0.1, 0.5, 0.3), "B": followed(0.2, 0.3, 0.4)}
    results |= {"A, untrained": followed(0.1, 0.1, 0.2), "A, noise": followed(0.0, 0.0, 0.1)}
    ax = analysis.plot_label_propagation(results, baselines=["A, untrained", "A, noise"])
    assert heights(ax) == {name: one.score.values.tolist() for name, one in results.items()}
    greys = {line.get_label(): is_grey(line) for line in ax.get_lines()}
    assert greys == {"A": False, "B": False, "A, untrained": True, "A, noise": True}
    colours = {to_rgb(line.get_color()) for line in ax.get_lines()}
    assert len(colours) == 4
    assert ax.get_title() == "Propagation of masks through videos"
    labels = [text.get_text() for text in ax.get_xticklabels()]
    assert labels == LAYERS


def test_depth_is_relative_where_layers_differ():
    ax = analysis.plot_label_propagation({"A": followed(0.1, 0.2, 0.3), "B": followed(0.2, 0.3)})
    places = {line.get_label(): line.get_xdata().tolist() for line in ax.get_lines()}
    assert places == {"A": [0, 0.5, 1], "B": [0, 1]}


def test_keypoints_are_of_the_threshold_and_the_average_asked_for():
    result = found(0.2, 0.6, 0.4)
    (line,) = analysis.plot_keypoint_correspondence({"A": result}).get_lines()
    np.testing.assert_allclose(line.get_ydata(), [0.18, 0.54, 0.36])
    ax = analysis.plot_keypoint_correspondence({"A": result}, threshold=0.05, average="point")
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), [0.1, 0.3, 0.2])
    assert ax.get_ylabel() == "PCK@0.05 (%)"
    assert ax.yaxis.get_major_formatter()(0.25, 0) == "25"
    with pytest.raises(ValueError, match=r"threshold among \[0.1, 0.05\]. Received: threshold=0.2"):
        analysis.plot_keypoint_correspondence(result, threshold=0.2)
    with pytest.raises(ValueError, match="average among"):
        analysis.plot_keypoint_correspondence(result, average="category")
    boxed = result.assign_attrs(threshold="box")
    ax = analysis.plot_keypoint_correspondence({"A": boxed, "B": boxed})
    assert ax.get_ylabel() == "PCK@0.1 of the object's box (%)"
    with pytest.raises(ValueError, match="thresholds of the box and of the image"):
        analysis.plot_keypoint_correspondence({"A": result, "B": boxed})


def distances(values, units="sides of the grid", model="ViT"):
    values = np.array(values)
    dims, attrs = ("layer", "head"), {"units": units, "model": model}
    return xr.DataArray(values, dims=dims, coords={"layer": LAYERS[: len(values)]}, attrs=attrs)


def test_distances_are_points_of_heads_and_a_line_of_means():
    result = distances([[0.1, 0.3], [0.2, 0.6], [0.5, 0.7]])
    ax = analysis.plot_mean_distance(result)
    (points,) = ax.collections
    expected = [[0, 0.1], [0, 0.3], [1, 0.2], [1, 0.6], [2, 0.5], [2, 0.7]]
    np.testing.assert_allclose(points.get_offsets(), expected)
    np.testing.assert_allclose(ax.get_lines()[0].get_ydata(), [0.2, 0.4, 0.6])
    assert ax.get_ylabel() == "attention distance (sides of the grid)"
    assert ax.get_ylim()[0] == 0 and ax.get_ylim()[1] > 0.7
    assert ax.get_title().endswith(": ViT")
    with pytest.raises(ValueError, match=r"one unit. Received: \['pixels', 'sides of the grid'\]"):
        analysis.plot_mean_distance({"A": result, "B": distances([[3.0]], "pixels")})


def test_attention_maps_are_scaled_to_their_own_maximum():
    values = np.arange(1.0, 25).reshape(2, 2, 2, 3)
    dims = ("layer", "head", "row", "column")
    coords = {"layer": LAYERS[:2], "head": [0, 1]}
    attrs = {"query": "cls", "model": "ViT"}
    result = xr.DataArray(values, dims=dims, coords=coords, attrs=attrs)
    axes = analysis.plot_attention_maps(result).panels
    assert axes.shape == (2, 2)
    for ax, panel in zip(axes.ravel(), values.reshape(4, 2, 3), strict=True):
        np.testing.assert_allclose(ax.images[0].get_array(), panel / panel.max())
        assert ax.images[0].get_clim() == (0, 1)
    assert axes[0, 1].get_title() == "head 1"
    assert axes[0, 0].figure.axes[0].get_title().startswith("Mean attention of CLS: ViT")
    chosen = analysis.plot_attention_maps(result, layers=LAYERS[1:2]).panels
    np.testing.assert_allclose(chosen[0, 0].images[0].get_array(), values[1, 0] / 18)
