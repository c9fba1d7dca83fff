"""Plots of interventions show the numbers of their results."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr

from vit_tf.analysis import plots


@pytest.fixture(autouse=True)
def closed():
    yield
    plt.close("all")


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
    ax = plots.plot_skip_ablation(effects(("layer", "path"), values, coords))
    drawn = [bar.lines[0].get_ydata().tolist() for bar in ax.containers]
    assert drawn == [[-0.1, -0.3], [-0.2, -0.4]]
