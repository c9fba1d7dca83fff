"""The figures of Raghu et al. 2021: a table, in the order of the paper."""

from functools import partial

from . import figure_rows as rows
from . import needs, trained_rows
from .figure_entries import Entry

FIGURES = (
    Entry(
        ("1", "B.1"),
        "structure",
        "similarity of a model's layers",
        ("vit", "gap", "resnet"),
        lambda subjects: rows.similarity_within(subjects, "vit", "gap", "resnet", "model"),
        needs.layers,
    ),
    Entry(
        ("2",),
        "structure",
        "similarity of a ViT's and a ResNet's layers",
        ("vit", "gap", "resnet"),
        lambda subjects: rows.similarity_across(
            rows.pairs(subjects, ("vit", "gap"), ("resnet",), models=True)
        ),
        together=needs.two_models,
    ),
    Entry(
        ("H.1",),
        "structure",
        "similarity of an MLP-Mixer's layers",
        ("mixer",),
        lambda subjects: rows.similarity_within(subjects, "mixer"),
        together=needs.shown_by("1"),
    ),
    Entry(
        ("H.2",),
        "structure",
        "similarity of an MLP-Mixer's layers and those of others",
        ("mixer", "vit", "resnet"),
        lambda subjects: rows.similarity_across(
            rows.pairs(subjects, ("mixer",), ("vit", "resnet"))
        ),
        together=needs.shown_by("2"),
    ),
    Entry(
        ("sanity",),
        "structure",
        "layers of two trainings from different seeds",
        ("vit", "resnet", "seed"),
        trained_rows.seeds_compared,
        together=needs.trained("a second training from other first weights"),
    ),
    Entry(
        ("3", "4", "C.5", "C.6"),
        "locality",
        "mean distance of attention heads",
        ("vit", "gap", "fraction"),
        rows.head_distances,
        needs.attention,
    ),
    Entry(
        ("5",),
        "locality",
        "similarity of growing sets of heads and a ResNet's lower layers",
        ("vit", "gap", "resnet"),
        rows.heads_and_convolutions,
        together=needs.heads_beside_maps,
    ),
    Entry(
        ("6", "C.1", "C.2", "C.3"),
        "locality",
        "effective receptive fields after the sums",
        ("vit", "gap", "resnet"),
        partial(rows.receptive_fields, path="sum"),
        needs.fields,
    ),
    Entry(
        ("C.4",),
        "locality",
        "effective receptive fields before the sums",
        ("vit", "gap", "resnet"),
        partial(rows.receptive_fields, path="branch"),
        needs.branches,
    ),
    Entry(
        ("7", "E.1"),
        "skips",
        "norm of skip against branch, token by token and through the depth",
        ("vit", "gap", "resnet", "mixer"),
        lambda subjects: [
            *rows.skips_by_token(subjects),
            *rows.skips_by_depth(subjects, "norm_ratio"),
        ],
        needs.skips,
    ),
    Entry(
        ("E.2",),
        "skips",
        "cosine of skip and branch",
        ("vit", "gap", "resnet", "mixer"),
        partial(rows.skips_by_depth, variable="cosine"),
        needs.skips,
    ),
    Entry(
        ("8",),
        "skips",
        "similarity of layers without the skips of a block",
        ("vit", "without"),
        trained_rows.skips_removed,
        together=needs.trained("models without the skips of a block"),
    ),
    Entry(
        ("9", "10", "D.1", "D.2", "D.3"),
        "localization",
        "similarity of single tokens and patches of the image",
        ("vit", "gap", "resnet"),
        rows.tokens_and_patches,
        needs.places,
    ),
    Entry(
        ("11", "D.4", "F.3"),
        "probes",
        "linear probes on single tokens and on their summaries",
        ("vit", "gap", "resnet"),
        lambda subjects: [*rows.probes_by_token(subjects), *rows.probes_by_aggregation(subjects)],
        needs.places,
    ),
    Entry(
        ("13", "F.1", "F.2"),
        "probes",
        "linear probes through the depth, over seeds",
        ("vit", "gap", "resnet", "mixer", "seed"),
        rows.probes_by_depth,
    ),
    Entry(
        ("12",),
        "scale",
        "blocks when trained on fractions of the data",
        ("vit", "fraction", "seed"),
        trained_rows.fractions_compared,
        together=needs.trained("models of fractions of the data"),
    ),
    Entry(
        ("G.1", "G.2"),
        "scale",
        "blocks before and after fine-tuning",
        ("before", "after"),
        lambda subjects: [
            *trained_rows.fine_tuning_compared(subjects),
            *rows.counterparts_compared(subjects),
        ],
        together=needs.same_blocks,
    ),
)
