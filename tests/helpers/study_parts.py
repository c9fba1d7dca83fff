"""Stand-ins for what a study measures: results of CKA, claims, models by their roles, data."""

from types import SimpleNamespace

import numpy as np
import xarray as xr

from vit_tf.analysis.figures.data import OPTIONAL, Data
from vit_tf.analysis.statistics.claims import Claim, PaperEffect, Tested
from vit_tf.analysis.statistics.estimates import Estimate, Method, Units, descriptive

# What there may be to read; nothing of it can be read.
EVERYTHING = Data(*["there"] * 4, 10, optional=dict.fromkeys(OPTIONAL, lambda: "there"))


def cka_result(values, x, y=None, stderr=None, seed=0, **attrs):
    """A result of `cka` over ten batches, with such standard errors where they are given."""
    dims = ("layer_x", "layer_y")
    data = {"cka": (dims, np.array(values, float))}
    if stderr is not None:
        data["stderr"] = (dims, np.broadcast_to(stderr, np.shape(values)).copy())
        # The jackknife's standard error is 2.85 times the deviation without each of ten batches.
        noise = np.random.default_rng(seed).normal(size=(10, *np.shape(values)))
        data["leave_one_out"] = (("batch", *dims), np.array(values, float) + stderr / 2.85 * noise)
    attrs = {"examples": 1000, "batch_size": 100} | attrs
    return xr.Dataset(data, {"layer_x": list(x), "layer_y": list(x if y is None else y)}, attrs)


def field_result(values, layers=None, patch=4, deviation=0.0, seed=0):
    """A result of `receptive_field` of ten batches, of fields (layer, row, column)."""
    values = np.asarray(values, float)
    weights = values / values.sum(axis=(1, 2), keepdims=True)
    places = np.indices(values.shape[1:], float)
    centre = np.einsum("lrc,arc->la", weights, places)
    squares = ((places - centre[:, :, None, None]) ** 2).sum(axis=1)
    uniform = sum(
        (np.arange(length) ** 2).mean() - (length - 1) ** 2 / 4 for length in places[0].shape
    )
    size = np.sqrt((weights * squares).sum(axis=(1, 2)) / uniform)
    row, column = (length // patch // 2 * patch for length in values.shape[1:])
    share = weights[:, row : row + patch, column : column + patch].sum(axis=(1, 2))
    rest = np.stack([size, share]) + deviation * np.random.default_rng(seed).normal(
        size=(10, 2, len(values))
    )
    return xr.DataArray(
        values,
        {
            "layer": [f"layer{index}/sum" for index in range(len(values))]
            if layers is None
            else layers,
            "size": ("layer", size),
            "centre_share": ("layer", share),
        },
        ("layer", "row", "column"),
        attrs={"examples": 60, "leave_one_out": rest.ravel()},
    )


def model_like(name, role="model", slug=None, base=None, accuracy=None):
    """What reports and scorecards ask of a model."""
    slug = slug or name.lower()
    roles = {"role": role, "scorecard_role": role}
    facts = {"accuracy": accuracy, "correct": None, "supervision": "labels", "detail": ""}
    facts["training_images"] = None
    return SimpleNamespace(name=name, slug=slug, base=base, **facts, **roles)


FIGURE_1 = PaperEffect(1, None, "section 4, Figure 1")


def estimated(value, low=None, high=None, method=Method.IMAGES):
    """An estimate over eight batches, with this interval or without any."""
    if low is None:
        return descriptive(value, "A maximum")
    return Estimate(value, (low, high), Units("batches", 8, 200), method)


def tested_claim(
    value=0.2,
    low=0.1,
    high=0.25,
    *,
    name="uniform",
    statement="Lower and upper layers are alike.",
    paper=FIGURE_1,
    least=0.05,
    source=("Raghu et al. (2021)", "https://arxiv.org/abs/2108.08810"),
    **fields,
):
    """A tested claim of Raghu et al., as in the paper."""
    explanation = "Mean CKA of both halves."
    claim = Claim(name, statement, explanation, lambda: None, (), "difference in CKA", paper, least)
    defaults = {"trained": value + 0.1, "untrained": (0.1,), "results": ("cka.vit", "cka.b t")}
    return Tested(claim, estimated(value, low, high), source=source, **defaults | fields)
