"""Stand-ins for what a study measures: results of CKA, claims, models by their roles, data."""

from types import SimpleNamespace

import numpy as np
import xarray as xr

from vit_tf.analysis.study.claims import Result
from vit_tf.analysis.study.data import OPTIONAL, Data

# What there may be to read; nothing of it can be read.
EVERYTHING = Data(*["there"] * 4, 10, optional=dict.fromkeys(OPTIONAL, lambda: "there"))


def cka_result(values, x, y=None, stderr=None, **attrs):
    """A result of `cka` over ten batches, with standard errors where they are given."""
    dims = ("layer_x", "layer_y")
    data = {"cka": (dims, np.array(values, float))}
    if stderr is not None:
        data["stderr"] = (dims, np.broadcast_to(stderr, np.shape(values)).copy())
    attrs = {"examples": 1000, "batch_size": 100} | attrs
    return xr.Dataset(data, {"layer_x": list(x), "layer_y": list(x if y is None else y)}, attrs)


def model_like(name, role="model", slug=None, base=None, accuracy=None):
    """What reports and scorecards ask of a model."""
    slug = slug or name.lower()
    roles = {"role": role, "scorecard_role": role}
    facts = {"accuracy": accuracy, "correct": None, "supervision": "labels", "detail": ""}
    return SimpleNamespace(name=name, slug=slug, base=base, **facts, **roles)


def claim_result(**changes):
    """A claim of Raghu et al. that replicates."""
    fields = {
        "name": "uniform",
        "statement": "Lower and upper layers are alike.",
        **{"section": "4", "figure": "1", "quantity": "difference in CKA"},
        **{"value": 0.2, "low": 0.1, "high": 0.25, "threshold": 0.0, "direction": "above"},
        "outcome": "replicates",
        "explanation": "Mean CKA. Interval: bootstrap over layers.",
        "results": ("cka.vit", "cka.b t"),
        "source": ("Raghu et al. (2021)", "https://arxiv.org/abs/2108.08810"),
    }
    return Result(**fields | changes)
