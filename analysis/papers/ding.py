"""Ding et al. 2021: "Grounding Representation Similarity Through Statistical Testing"."""

import numpy as np
import xarray as xr

from ..engine.estimates import Estimate, jackknifed, ranks, transformed
from ..engine.results import expect_variable
from ..plots.similarity_plots import plot_similarities
from ..similarity.similarities import similarities
from ..study.claims import claim
from ..study.figure import Figure, Paper, each
from ..study.measure import SharedPass, statistic
from ..study.models import StudyModel
from .chapters import STRUCTURE

DING = Paper("Ding et al. (2021)", "https://arxiv.org/abs/2108.01661", prefix="S.", rank=5)
# Those that have a value for all activations of a layer, of fewer images than channels.
MEASURES = (
    "cka",
    "rbf_cka",
    "procrustes",
    "rsa_pearson",
    "rsa_spearman",
    "mutual_knn",
    "linear_predictivity",
)
LEAST_LAYERS = 3  # of which two pairs can be ordered


def measures_of(model: StudyModel) -> SharedPass | None:
    """Similarity measures between block outputs, of any model or one trained twice."""
    if model.role == "seed":
        if model.detail != 1:  # one picture of each model, for any number of seeds
            return None
        model = model.original
    taps = model.layers("representations", "blocks")
    model.require(len(taps) >= LEAST_LAYERS, f"{LEAST_LAYERS} blocks to compare")
    return statistic(similarities, model, taps, detail="blocks", options={"measures": MEASURES})


@claim("similarities.{vit}", "1", "1", "rank correlation", below=0.5, least=0.1)
def measures_disagree(result: xr.Dataset) -> Estimate:
    """Similarity measures often disagree about which layers are similar.

    Rank correlation between two measures over all pairs of layers, averaged over pairs of measures.
    The value is 1 if all measures rank the pairs of layers in the same order.

    The threshold of 1/2 is a convention: it lies midway between equal and unrelated orders. A
    measure is left out if the similarity of a layer to itself is not 1, because noise alone would
    make such a measure disagree with others. An example is `linear_predictivity` on few images.
    Pairs that share a layer are not independent. Therefore, the interval is a jackknife of Fisher's
    z that leaves out one layer at a time.
    """
    values = expect_variable(result, "similarity", ("measure", "layer_x", "layer_y")).values
    of_itself = np.diagonal(values, axis1=1, axis2=2)
    values = values[(of_itself > 1 - SELF_ERROR).all(axis=1)]
    if len(values) < 2:
        raise ValueError(
            "Expected two measures that give 1 for a layer with itself. "
            f"Received: {len(values)} of {len(of_itself)}"
        )
    both = (values + values.swapaxes(1, 2)) / 2

    def agreement(layers: np.ndarray) -> float:
        first, second = (layers[at] for at in np.triu_indices(len(layers), 1))
        return mean_rank_correlation(both[:, first, second])

    layers = np.arange(both.shape[1])
    overall = agreement(layers)
    rest = np.array([agreement(np.delete(layers, at)) for at in layers])
    if np.abs([overall, *rest]).max() > 1 - 1e-12:  # perfect agreement, of which there is no z
        return jackknifed(overall, rest, "layers")
    return transformed(jackknifed(np.arctanh(overall), np.arctanh(rest), "layers"), np.tanh)


SELF_ERROR = 0.01  # of the similarity of a layer with itself, which is 1


def mean_rank_correlation(values: np.ndarray) -> float:
    """Mean of Spearman's rank correlation of all pairs of rows (measure, pair); NaN if constant."""
    ranked = np.array([ranks(row) for row in values])
    deviations = ranked - ranked.mean(axis=1, keepdims=True)
    lengths = np.linalg.norm(deviations, axis=1)
    if not values.shape[1] or not lengths.all():
        return np.nan
    units = deviations / lengths[:, None]
    return (units @ units.T)[np.triu_indices(len(units), 1)].mean()


AGREEMENT = Figure(
    paper=DING,
    numbers="agreement",
    chapter=STRUCTURE,
    shows="agreement of similarity measures",
    models=each("seed", panel="{base}"),
    measure=measures_of,
    results="similarities",
    draw=plot_similarities,
    name="measures-{base}",
    title="Similarity of layers by several measures",
    caption=(
        "Each panel shows the similarity of all pairs of blocks by one measure, on a common scale. "
        "The last panel shows the disagreement between measures. There, a bright pair of blocks is "
        "among the most similar pairs by one measure and among the least similar pairs by another "
        "measure."
    ),
    claims=[measures_disagree],
)
