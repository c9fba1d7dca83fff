"""The figures of Walmer et al. 2023, and attention rollout: a table, in the order of the paper."""

from . import needs
from . import walmer_rows as rows
from .figure_entries import Entry

ATTENDING = ("vit", "gap")
ALL = ("vit", "gap", "resnet", "mixer")

FIGURES = (
    Entry(
        ("W.3", "W.14", "W.18"),
        "locality",
        "attention by offset from the query, and kinds of heads",
        ATTENDING,
        rows.offsets_of_attention,
        needs.attention,
    ),
    Entry(
        ("W.2", "W.11", "W.12", "W.13", "W.17"),
        "locality",
        "sparse patterns of attention that repeat",
        ATTENDING,
        rows.repeated_patterns,
        needs.attention,
    ),
    Entry(
        ("W.4", "W.15", "V.7"),
        "locality",
        "distance of attention heads through the depth",
        ATTENDING,
        rows.distances_by_depth,
        needs.attention,
    ),
    Entry(
        ("rollout",),
        "locality",
        "attention followed through the layers",
        ATTENDING,
        rows.rollouts,
        needs.rollout,
    ),
    Entry(
        ("W.6", "W.19"),
        "structure",
        "similarity of the last layers of all models",
        ALL,
        rows.last_layers_compared,
        needs.last_tokens,
        needs.two_models,
    ),
    Entry(
        ("W.20", "W.21", "W.22"),
        "structure",
        "similarity of what the sites of a model read",
        ALL,
        rows.norms_compared,
        needs.norms,
    ),
    Entry(
        ("W.23",),
        "skips",
        "similarity of skips and attention branches",
        ATTENDING,
        rows.skips_and_branches,
        needs.attention_skips,
    ),
    Entry(
        ("W.7", "W.24", "W.25"),
        "classes",
        "clusters of images and their classes",
        ALL,
        rows.clusters,
    ),
    Entry(
        ("W.9", "W.28"),
        "classes",
        "votes of the nearest training images",
        ALL,
        rows.neighbours,
        reads="gallery",
    ),
    Entry(
        ("W.5", "W.16"),
        "objects",
        "attention on the object",
        ATTENDING,
        rows.salient_attention,
        needs.attention,
        reads="objects",
    ),
    Entry(
        ("W.8", "W.26", "W.27"),
        "objects",
        "clusters of objects and of parts",
        ALL,
        rows.object_clusters,
        needs.placed,
        reads="objects",
    ),
    Entry(
        ("W.10", "W.30"),
        "tasks",
        "objects followed through videos",
        ALL,
        rows.videos_followed,
        needs.square,
        reads="videos",
    ),
    Entry(
        ("W.31",),
        "tasks",
        "keypoints found in another image",
        ALL,
        rows.keypoints_found,
        needs.square,
        reads="pairs",
    ),
)
