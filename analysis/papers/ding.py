"""Ding et al. 2021: "Grounding Representation Similarity Through Statistical Testing"."""

from ..plots.similarity_plots import plot_similarities
from ..similarity.similarities import similarities
from .chapters import STRUCTURE
from .vocabulary import Figure, Paper, SharedPass, StudyModel, each, statistic

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
    model.require(len(taps) >= LEAST_LAYERS, f"set of {LEAST_LAYERS} or more blocks to compare")
    return statistic(
        similarities,
        model,
        taps,
        detail="blocks",
        options={"measures": MEASURES},
        needs_all=True,  # canonical correlations of fewer images are higher
    )


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
)
