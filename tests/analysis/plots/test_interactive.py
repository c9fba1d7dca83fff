"""What the page shows under the cursor is what the result holds."""

import json

import numpy as np
import pytest
import xarray as xr
from matplotlib import colormaps
from matplotlib.colors import to_hex

from vit_tf.analysis.plots import interactive


def test_heatmap_holds_every_value_with_its_layers(rng):
    dims = ("layer_x", "layer_y")
    values = rng.uniform(-0.1, 1.1, (3, 2))
    values[1, 0] = np.nan
    result = xr.Dataset(
        {"cka": (dims, values), "stderr": (dims, values / 10)},
        coords={"layer_x": ["a/x", "a/y", "b"], "layer_y": ["c", "d"]},
        attrs={"model_x": "ViT", "model_y": "BiT"},
    )
    payload = interactive.cka_heatmap(result)
    assert json.loads(json.dumps(payload, allow_nan=False)) == payload
    assert (payload["x"], payload["y"]) == (["a/x", "a/y", "b"], ["c", "d"])
    assert (payload["x_label"], payload["y_label"]) == ("layer of ViT", "layer of BiT")
    assert payload["values"][0][1] is None
    shown = np.array(payload["values"], float)
    np.testing.assert_allclose(shown, values.T, rtol=6e-4)
    np.testing.assert_allclose(np.array(payload["errors"], float), values.T / 10, rtol=6e-4)
    assert (payload["low"], payload["high"]) == (0, 1)
    assert payload["colours"] == [to_hex(colormaps["magma"](index)) for index in range(256)]
    assert interactive.cka_heatmap(result.drop_vars("stderr"))["errors"] is None


def test_lines_are_sorted_with_the_head_of_each_point():
    result = xr.DataArray(
        [[3.0, 1.0, 2.0], [5.0, 5.0, np.nan]],
        dims=("layer", "head"),
        coords={"layer": [f"block{index:02}/attention/weights" for index in range(2)]},
        attrs={"model": "ViT"},
    )
    payload = interactive.distance_lines(result)
    assert json.loads(json.dumps(payload, allow_nan=False)) == payload
    first, second = payload["series"]
    assert (first["name"], first["short"]) == ("block00/attention/weights", "block00")
    assert first["values"] == [1, 2, 3]
    assert first["labels"] == ["head 1", "head 2", "head 0"]
    assert second["values"] == [5, 5, None]
    assert payload["title"] == "ViT"


def test_other_results_are_errors():
    with pytest.raises(ValueError, match="Expected a Dataset with the variable cka"):
        interactive.cka_heatmap(xr.Dataset())
    with pytest.raises(ValueError, match="Expected a DataArray of dims"):
        interactive.distance_lines(xr.DataArray([1.0], dims="layer"))
