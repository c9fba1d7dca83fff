"""Walmer et al. 2023, section 4.5 and appendix D: how similar are layers and models?"""

import numpy as np
import xarray as xr

from vit_tf.features.features import Features

from ...plots.interactive import cka_heatmap
from ...plots.similarity_plots import plot_cka, plot_last_layer_cka
from ...similarity.cka import last_layer_cka, residual_cka
from ..chapters import SKIPS, STRUCTURE
from ..raghu.section4_structure import cka_of, expect_cka
from ..vocabulary import (
    EXPLICIT,
    Estimate,
    Figure,
    Measurement,
    NotApplicable,
    SharedPass,
    Statistic,
    StudyModel,
    claim,
    each,
    estimate_from_cka,
    group,
    layer_names,
    lower,
    statistic,
    task,
    upper,
)
from . import WALMER
from .section5_clusters import ALL


def last_layers_of(models: list[StudyModel]) -> SharedPass:
    """Similarity of the last tokens of several models."""
    if len(models) < 2:
        raise NotApplicable("It compares two models, but only one was given: add a second one.")
    names = [model.name for model in models]
    taps = [(last_tokens(model),) for model in models]

    def make(*features: Features) -> Statistic[xr.Dataset]:
        return last_layer_cka.statistic(dict(zip(names, features, strict=True)))

    return statistic("last_layers", tuple(models), taps, make)


def last_tokens(model: StudyModel) -> str:
    """The last tap of tokens or positions."""
    model.require_grid()
    return model.layers("tokens")[-1]


def norm_cka_of(model: StudyModel) -> Measurement:
    """Similarity of the normalized inputs of all sublayers."""
    norms = model.layers("norms")

    def make(result: xr.Dataset) -> xr.Dataset:
        """The layers that vary and lie after a norm."""
        varying = [tap for tap in norms if tap in result["layer_x"].values]
        return result.sel(layer_x=varying, layer_y=varying)

    return task("norm_cka", model, make, inputs=(cka_of(model),))


def residual_cka_of(model: StudyModel) -> SharedPass:
    """Similarity of skips and branches of all attention sites."""
    taps = model.layers("skips")
    has_skips = any("attention/" in tap for tap in taps)
    model.require(has_skips, "known skip connections around attention")
    return statistic(residual_cka, model, taps)


@claim(
    "residual_cka.{vit}",
    "appendix D.4, Figure 23",
    "difference in CKA",
    effect="below",
    least=0.05,
    supervision=EXPLICIT,
)
def skips_diverge(similarity: xr.Dataset) -> Estimate:
    """In mid-to-late layers of supervised ViTs, attention adds information that its skip lacks.

    CKA between the attention branch and the attention skip of a layer: the mean over the upper half
    of the layers minus the mean over the lower half.
    """
    similarity = expect_cka(similarity)
    skips = {
        name.rpartition("/")[0]: i for i, name in enumerate(layer_names(similarity, "layer_y"))
    }
    branches = [name.rpartition("/")[0] for name in layer_names(similarity, "layer_x")]
    pairs = np.array([(i, skips[site]) for i, site in enumerate(branches) if site in skips])
    if len(pairs) < 2:
        raise ValueError(
            f"Expected at least two sublayers with a skip and a branch. Received: {len(pairs)}"
        )
    rows, columns = pairs.T
    return estimate_from_cka(
        lambda cka: upper(cka[rows, columns]).mean() - lower(cka[rows, columns]).mean(), similarity
    )


@claim(
    "norm_cka.{masked}",
    "appendix D.3, Figures 21 and 22",
    "difference in CKA",
    effect="above",
    least=0.05,
)
def masked_x_pattern(similarity: xr.Dataset) -> Estimate:
    """ViTs trained by reconstruction have an X pattern: their last layers resemble the first again.

    For each layer of the first third, its CKA with the mirror layer in the last third minus its CKA
    with the middle layer, averaged over these layers. The mirror layer of the first layer is the
    last layer, and the mirror layer of the second layer is the last but one.

    The pattern appears if the model contains both an encoder and a decoder. If layers only become
    less similar with distance in depth, the first layers are more similar to the middle layer than
    to the last layers.
    """
    similarity = expect_cka(similarity)
    count = similarity.sizes["layer_x"]
    if count < 6:
        raise ValueError(f"Expected at least 6 sublayers. Received: {count}")
    first = np.arange(count // 3)
    return estimate_from_cka(
        lambda cka: (cka[first, count - 1 - first] - cka[first, count // 2]).mean(), similarity
    )


FIGURE_6 = Figure(
    paper=WALMER,
    numbers="6 19",
    chapter=STRUCTURE,
    shows="CKA between the last layers of all models",
    models=group(*ALL, require_model=last_tokens),
    measure=last_layers_of,
    results="last_layers",
    draw=plot_last_layer_cka,
    name="last-layers",
    call="analysis.last_layer_cka({models}, images)",
    title="CKA between the last layers of the models",
    caption=(
        "Each cell is the CKA between the last layers of two models: of their CLS tokens, where "
        "they have one, and of all spatial tokens. Bright cells are models with similar final "
        "representations."
    ),
)

FIGURE_20 = Figure(
    paper=WALMER,
    numbers="20 21 22",
    chapter=STRUCTURE,
    shows="CKA between sublayer inputs of a model",
    models=each(*ALL, "masked"),
    measure=norm_cka_of,
    results="norm_cka",
    draw=plot_cka,
    interactive=cka_heatmap,
    name="norm-cka-{model}",
    call="analysis.depth_cka({model}, images)",
    title="CKA between sublayer inputs",
    caption=(
        "Each cell is the CKA between the normalized inputs of two sublayers. The first sublayer "
        "is at the lower left, so the diagonal that rises to the right is 1. A second bright "
        "diagonal, which falls to the right, means that the last layers resemble the first layers."
    ),
    claims=[masked_x_pattern],
)

FIGURE_23 = Figure(
    paper=WALMER,
    numbers="23",
    chapter=SKIPS,
    shows="CKA between skips and attention branches",
    models=each("vit", "gap"),
    measure=residual_cka_of,
    results="residual_cka",
    draw=plot_cka,
    interactive=cka_heatmap,
    name="residual-cka-{model}",
    show="analysis.plots.plot_residual_cka",
    title="CKA between skips and attention branches",
    caption=(
        "Each cell is the CKA between the branch of one attention sublayer and the skip of "
        "another. A dark cell on the diagonal is a sublayer that adds new information."
    ),
    claims=[skips_diverge],
)
