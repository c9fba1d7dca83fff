"""Which figures there are: a table, in the order of the paper. Adding one is adding a row."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

from . import figure_rows as rows
from . import needs, trained_rows, walmer_rows
from .report import RAGHU, WALMER

SECTIONS = {
    "structure": (
        "Representation structure",
        "How similar are the representations of a model's layers, and those of two models? Section "
        "4 of the paper finds ViTs uniform through their depth and ResNets divided into stages.",
    ),
    "locality": (
        "Local and global information",
        "How far does a layer look? Section 5 of the paper finds heads of every reach in the "
        "lowest ViT layers, where ResNets are local by construction.",
    ),
    "skips": (
        "Skip connections",
        "What passes through the skips, and what through the branches? Section 6 of the paper "
        "finds the skips of ViTs more influential than those of ResNets.",
    ),
    "localization": (
        "Spatial information",
        "Does a token still know its place in the image after the last block? Section 7 of the "
        "paper finds that those of ViTs do, those trained with a CLS token most of all.",
    ),
    "probes": (
        "Linear probes",
        "How much of the label can be read off each layer by a linear map that is fitted on a few "
        "images of each class?",
    ),
    "scale": (
        "Data and transfer",
        "What does a model need more data for, and what does fine-tuning change? Section 8 and "
        "appendix G of the paper find that lower layers are learned from little data and keep "
        "what they have learned.",
    ),
}


@dataclass(frozen=True)
class Entry:
    """One figure of the paper, as a row of the table.

    Attributes:
        numbers: the figures of Raghu et al. 2021 it answers to, or of Walmer et al. 2023, such as
            `"W.3"`; each chooses it.
        section: key of `SECTIONS`.
        title: what it shows.
        roles: the parts of the models it needs; `subjects.Subject` tells them.
        rows: function of the models under study to its `Row`s.
        lacks: function of a model without a part to the words for what it lacks; from `needs`.
        together: the same of all of those that lack nothing.
    """

    numbers: tuple[str, ...]
    section: str
    title: str
    roles: tuple[str, ...]
    rows: Callable
    lacks: Callable = needs.nothing
    together: Callable = needs.nothing

    @property
    def source(self):
        """Name and address of the paper."""
        return WALMER if self.numbers[0].startswith("W.") else RAGHU

    @property
    def paper(self):
        """The figures of the paper, in words; empty for what is not in it."""
        if self.numbers == ("sanity",):
            return ""
        *first, last = [number.removeprefix("W.") for number in self.numbers]
        plural = "s" if first else ""
        return f"Figure{plural} {' and '.join(filter(None, [', '.join(first), last]))}"


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
        ("W.3", "W.14", "W.18"),
        "locality",
        "attention by offset from the query, and kinds of heads",
        ("vit", "gap"),
        walmer_rows.offsets_of_attention,
        needs.attention,
    ),
    Entry(
        ("W.2", "W.11", "W.12", "W.13", "W.17"),
        "locality",
        "sparse patterns of attention that repeat",
        ("vit", "gap"),
        walmer_rows.repeated_patterns,
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


def choose_figures(numbers=()):
    """The entries of the table with these numbers, in its order; all for none.

    Args:
        numbers: figures of the paper, such as `"1"` or `"C.4"`, or `"sanity"`.

    Raises:
        ValueError: for a number that no entry has.
    """
    known = [number for entry in FIGURES for number in entry.numbers]
    unknown = [number for number in numbers if number not in known]
    if unknown:
        raise ValueError(
            f"Expected figures among {', '.join(known)}. Received: {', '.join(unknown)}"
        )
    return [entry for entry in FIGURES if not numbers or set(numbers) & set(entry.numbers)]


def plan_rows(entries, subjects):
    """The pictures of these models: list of (entry, `Row`)."""
    return [(entry, row) for entry in entries for row in entry.rows(_fitting(entry, subjects))]


def _fitting(entry, subjects):
    """The models that have a part in the study, and the others that lack nothing."""
    return [s for s in subjects if s.role != "model" or not entry.lacks(s)]


def left_out(entries, subjects):
    """Which figures are not drawn of which models without a part in the study, and why.

    Returns:
        List of (what the figure is, list of sentences).
    """
    found = []
    for entry in entries:
        models = [subject for subject in subjects if subject.role == "model"]
        lacking = {subject.name: entry.lacks(subject) for subject in models}
        why = [f"{name} {words}." for name, words in lacking.items() if words]
        fitting = [subject for subject in models if not lacking[subject.name]]
        why += [sentence for sentence in [fitting and entry.together(fitting)] if sentence]
        if why:
            of = "" if entry.source is RAGHU else f" of {entry.source[0]}"
            found.append((": ".join(filter(None, [entry.paper + of, entry.title])), why))
    return found


def without_failures(planned, results, problems):
    """The pictures of what could be measured, and those that lack a model or all of them.

    Args:
        planned: list of (entry, `Row`) from `plan_rows`.
        results, problems: what `measure.attempt` returned.

    Returns:
        Pair of a list as `planned`, and a list of (title of a picture, list of sentences).
    """
    drawable, failed = [], []
    for entry, row in planned:
        made = {k: one for k, one in row.measurements.items() if results[one.name] is not None}
        if made:
            drawable.append((entry, replace(row, measurements=made)))
        why = {k: problems[one.name] for k, one in row.measurements.items() if k not in made}
        if why:
            failed.append((row.title, [f"{label}: {reason}" for label, reason in why.items()]))
    return drawable, failed
