"""Dosovitskiy et al. 2020: "An Image is Worth 16x16 Words", the first layer of the ViT."""

from ..flow.embeddings import patch_filters, position_similarity
from ..plots.flow_plots import plot_patch_filters, plot_position_similarity
from ..study.figure import Figure, Paper, each
from ..study.measure import task
from .chapters import EMBEDDINGS

DOSOVITSKIY = Paper(
    "Dosovitskiy et al. (2020)", "https://arxiv.org/abs/2010.11929", prefix="V.", rank=4
)


def filters_of(model):
    """The principal components of the patch embedding's filters."""
    model.require(model.patch_kernel is not None, "known patch embedding")

    return task("patch_filters", model, lambda: patch_filters(model.patch_kernel()), reads="")


def positions_of(model):
    """The similarity of every position embedding to every other."""
    model.require(model.position_embedding is not None, "known position embedding")

    def make():
        return position_similarity(model.position_embedding(), model.grid)

    return task("position_similarity", model, make, reads="")


FIGURE_7_LEFT = Figure(
    paper=DOSOVITSKIY,
    numbers="7",
    chapter=EMBEDDINGS,
    shows="filters of the patch embedding",
    models=each("vit", "gap", "mixer"),
    measure=filters_of,
    draw=plot_patch_filters,
    name="patch-filters-{model}",
    call="analysis.patch_filters({model})",
    title="Patch-embedding filters",
    caption="Each panel is a principal component of the patch-embedding filters, in image colours, "
    "with the share of variance that it explains. Smooth patterns are learned; noise remains from "
    "the initialization.",
)

FIGURE_7_MIDDLE = FIGURE_7_LEFT.variant(
    shows="similarity of position embeddings",
    models=each("vit", "gap"),
    measure=positions_of,
    draw=plot_position_similarity,
    name="position-similarity-{model}",
    call="analysis.position_similarity({model})",
    title="Similarity of position embeddings",
    caption="Each panel is a position in the image and shows the cosine similarity of its position "
    "embedding to those of all positions. Visible rows and columns are a learned 2-D structure.",
)
