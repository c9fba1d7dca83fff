"""Raghu et al. 2021, section 5 and appendix C: effective receptive fields."""

from dataclasses import replace

import numpy as np

from ...engine.estimates import lower, student, welch
from ...engine.results import expect_array, layer_names
from ...flow.receptive_field import receptive_field
from ...plots.flow_plots import plot_receptive_field
from ...study.figure import Figure, Overview, each
from ...study.judge import finding
from ...study.measurement import DATA, quantity, task
from ...study.models import MOST_PANELS, spread
from ..chapters import LOCALITY
from . import RAGHU

# Sampled for each receptive field: all of a wide layer's channels cost a gradient each.
CHANNELS = 16


def field_taps(model, path):
    """The taps with positions after each sum, or before it, of each `"branch"`.

    Of a model whose blocks are not known, some layers through its depth.
    """
    if path == "sum" and not model.has_sums:
        return spread(model.with_places(model.blocks), MOST_PANELS)
    return model.with_places([tap for tap in model.taps if tap.endswith(f"/{path}")])


def fields_of(model):
    """Effective receptive fields of all of these taps, which others are parts of."""
    taps = dict.fromkeys([*field_taps(model, "sum"), *field_taps(model, "branch")])

    def make(data):
        features = model.features(*taps)
        return receptive_field(features, data.few, channels=CHANNELS, grid=model.grid)

    return task("receptive_fields", model, make, reads="few", inputs=(DATA,), kept=False)


def receptive_field_of(model):
    """Effective receptive fields after each sum."""
    taps = field_taps(model, "sum") or model.lacks("maps, and no tokens on a known grid")
    return _part(model, "receptive_field", taps)


def branch_field_of(model):
    """Effective receptive fields before each sum."""
    taps = field_taps(model, "branch") or model.lacks("branches on the grid, separate from skips")
    return _part(model, "receptive_field_branch", taps)


def _part(model, analysis, taps):
    return task(
        analysis, model, lambda fields: fields.sel(layer=list(taps)), inputs=(fields_of(model),)
    )


@finding(
    "receptive_field.{vit} receptive_field.{resnet}",
    section="5",
    figure="6",
    unit="difference in receptive-field size",
    above=0.0,
)
def early_fields(vit, resnet):
    """Effective receptive fields of lower layers are larger in the ViT than in the ResNet.

    Mean receptive-field size in the lower half, relative to a uniform field, ViT minus ResNet.

    The size is the standard deviation of pixel position, weighted by the field and divided by that
    of a uniform field. Threshold 0 (section 5, figure 6).

    Args:
        vit, resnet: receptive fields after the sums, of dims (layer, row, column).
    """
    fields = [lower(extent(field)) for field in (vit, resnet)]
    return welch(*fields, "layers")


@finding(
    "receptive_field_branch.{vit} receptive_field.{vit} attention_distance.{vit}",
    section="5 and C",
    figure="C.4",
    unit="difference in share",
    below=0.0,
)
def branch_fields(branch, total, distance):
    """Before the residual connection, receptive fields depend less on their own patch than after.

    Share of the centre patch in its receptive field, attention branch minus sum with the skip.

    Threshold 0: the branch depends as much on its own patch as the sum (appendix C, C.4).

    Args:
        branch, total: receptive fields of dims (layer, row, column), of taps
            "site/attention/branch" and "site/attention/sum".
        distance: attention distance of the model, with the side of a patch in its attribute
            `stride`.
    """
    patch = int(distance.attrs["stride"])
    shares = [_centre_shares(field, patch) for field in (branch, total)]
    sites = [site for site in shares[0] if site in shares[1]]
    if not sites:
        raise ValueError(
            "Expected fields of attention branches and of their sums. "
            f"Received: {layer_names(branch)[:3]} and {layer_names(total)[:3]}"
        )
    gaps = np.array([shares[0][site] - shares[1][site] for site in sites])
    return student(gaps, "attention sublayers")


@quantity(
    "receptive_field.{model}",
    unit="relative to a uniform field",
    more="has larger receptive fields in its lower half",
)
def early_extent(field):
    """Receptive-field size in the lower half.

    Standard deviation of pixel position, weighted by the effective receptive field of the centre
    and divided by that of a uniform field; mean over the lower layers.
    """
    return student(lower(extent(field)), "layers")


def extent(field):
    """Standard deviation of position in each field, divided by that of a uniform field."""
    fields = expect_array(field, ("layer", "row", "column")).values
    weights = fields / fields.sum(axis=(1, 2), keepdims=True)
    variance, even = 0.0, 0.0
    for axis in (1, 2):
        place = np.arange(fields.shape[axis])
        margin = weights.sum(axis=3 - axis)
        offset = place - (margin @ place)[:, None]
        variance = variance + (margin * offset**2).sum(axis=1)
        even += place.var()
    return np.sqrt(variance / even)


def _centre_shares(field, patch):
    """Share of the centre patch in each field of an attention sublayer: dict from site to it."""
    fields = expect_array(field, ("layer", "row", "column"))
    row, column = (size // patch // 2 * patch for size in fields.shape[1:])
    centre = fields.values[:, row : row + patch, column : column + patch].sum(axis=(1, 2))
    shares = centre / fields.values.sum(axis=(1, 2))
    sites = [name.rpartition("/")[0] for name in layer_names(fields)]
    named = zip(sites, shares, strict=True)
    return {site: share for site, share in named if site.endswith("attention")}


def fields_caption(models, results):
    """The caption of `FIGURE_6`."""
    sums = all(layer.endswith("/sum") for r in results.values() for layer in layer_names(r))
    known = ", after the sum of skip and branch" if sums else ""
    return (
        f"Each panel is the gradient of the layer's centre position{known}, by pixel. Fields that "
        "fill the panel are global."
    )


FIGURE_6 = Figure(
    paper=RAGHU,
    numbers="6 C.1 C.2 C.3",
    chapter=LOCALITY,
    shows="effective receptive fields after the sums",
    models=each("vit", "gap", "resnet"),
    measure=receptive_field_of,
    draw=plot_receptive_field,
    name="receptive-field-{model}",
    call="analysis.receptive_field({model}, images, channels=16)",
    title="Effective receptive fields",
    caption=fields_caption,
    findings=[early_fields],
    quantities=[early_extent],
    overview=Overview("Receptive-field size", extent, "relative to uniform"),
)


FIGURE_C4 = replace(
    FIGURE_6,
    numbers="C.4",
    shows="effective receptive fields before the sums",
    measure=branch_field_of,
    name="receptive-field-branch-{model}",
    call='analysis.receptive_field(vit_tf.submodel({loaded}, "*/branch"), images, channels=16)',
    title="Effective receptive fields before the sums",
    caption="Each panel is the gradient of the layer's centre position, by pixel, before its "
    "branch is added to its skip. Where the centre patch is not the brightest, its dominance "
    "after the sum comes from the skip.",
    findings=[branch_fields],
    quantities=(),
    overview=None,
)
