"""The figure's caption warns of the part that CKA depends on, and of no other."""

import numpy as np
import xarray as xr

from vit_tf.analysis.papers.davari import changed_readings, unchanged_reading


def test_the_caption_warns_of_the_part_without_which_cka_changes():
    layers = ["a", "b", "c", "d"]
    cka = np.full((4, 4), 0.8)
    changes = {"images": 0.02, "component": -0.4, "pixels": np.nan}
    variables = {
        "cka": (("layer_x", "layer_y"), cka),
        "without": (("part", "layer_x", "layer_y"), [cka + c for c in changes.values()]),
    }
    result = xr.Dataset(variables, {"part": list(changes), "layer_x": layers, "layer_y": layers})
    warning, rest = changed_readings(result).split(". It")
    assert warning.startswith("Warning") and "component (0.80 on average, 0.40" in warning
    assert "images" in rest and "pixels" not in warning + rest
    assert unchanged_reading({"BiT": result}) is None
    result["without"] = result["without"].copy(data=[cka + 0.01] * 3)
    assert "Warning" not in changed_readings(result)
    # Then the report shows the sentence in place of the picture.
    assert unchanged_reading({"BiT": result}).startswith("CKA hardly changes without the 2 %")
