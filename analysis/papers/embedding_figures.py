"""The first layer of Vision Transformers, after Dosovitskiy et al. 2020: measured and drawn."""

import numpy as np

from .. import plots
from ..flow.embeddings import patch_filters, position_similarity
from ..plots import drawing
from ..study.measurement_kinds import Task, name_of
from .figure_entries import Entry
from .figure_rows import Row, by_role

FILTERS = 28  # in the paper's figure, at most


def filters(subject):
    """The principal components of the patch embedding's filters."""

    def compute(data, _):
        kernel = subject.patch_kernel()
        most = min(FILTERS, np.prod(kernel.shape[:-1]), kernel.shape[-1] - 1)
        return patch_filters(kernel, int(most))

    return Task(name_of("patch_filters", subject), (subject,), compute, "")


def positions(subject):
    """The similarity of every position embedding to every other."""

    def compute(data, _):
        return position_similarity(subject.position_embedding(), subject.grid)

    return Task(name_of("position_similarity", subject), (subject,), compute, "")


def _filters_drawn(subjects):
    for subject in by_role(subjects, "vit", "gap", "mixer", "model"):
        if subject.patch_kernel:
            yield Row(
                f"patch-filters-{subject.slug}",
                f"Filters that {subject.name} embeds patches with",
                "Each panel is a principal component of the filters, in the colours of the image, "
                "with the share of their variance that it explains: smooth waves are learned, "
                "noise is what training has left as it was.",
                {subject.name: filters(subject)},
                drawing.alone(plots.plot_patch_filters),
            )


def _positions_drawn(subjects):
    for subject in by_role(subjects, "vit", "gap", "model"):
        if subject.position_embedding:
            yield Row(
                f"position-similarity-{subject.slug}",
                f"Similarity of the position embeddings of {subject.name}",
                "Each panel is a place in the image and shows how similar the embeddings of all "
                "places are to its own: rows and columns that stand out are a grid that was "
                "learned.",
                {subject.name: positions(subject)},
                drawing.alone(plots.plot_position_similarity),
            )


def _no_kernel(subject):
    return "" if subject.patch_kernel else "has no embedding of patches that is known"


def _no_positions(subject):
    return "" if subject.position_embedding else "has no embedding of positions that is known"


FIGURES = (
    Entry(
        ("V.7",),
        "embeddings",
        "filters of the patch embedding",
        ("vit", "gap", "mixer"),
        _filters_drawn,
        _no_kernel,
    ),
    Entry(
        ("V.7",),
        "embeddings",
        "similarity of position embeddings",
        ("vit", "gap"),
        _positions_drawn,
        _no_positions,
    ),
)
