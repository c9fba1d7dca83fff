"""The figures of Walmer et al. 2023 of a set of models, as functions that yield `Row`s."""

from . import drawing, measurements, plots
from .figure_rows import Row, by_role


def _attending(subjects):
    return [s for s in by_role(subjects, "vit", "gap", "model") if s.has_attention]


def offsets_of_attention(subjects):
    """Figures 3, 14 and 18: where heads look from their queries, and of which kind that makes them.

    All follow from the mean attention maps.
    """
    for subject in _attending(subjects):
        yield Row(
            f"aligned-attention-{subject.slug}",
            f"Where the heads of {subject.name} look from their queries",
            "Each panel is a head, and its centre the query's own place: what is bright to the "
            "left of it is attended to by tokens to its right. A bright point beside the centre "
            "is an offset head, a bright line an axial one.",
            {subject.name: measurements.aligned_attention(subject)},
            drawing.alone(plots.plot_aligned_attention),
        )
        yield Row(
            f"head-kinds-{subject.slug}",
            f"Kinds of attention heads of {subject.name}",
            "Each cell is a head, named by where it looks: at its own token (strict), around it "
            "(soft), along a row or column (axial), at a neighbour in one direction (offset) or "
            "everywhere (global).",
            {subject.name: measurements.head_classes(subject)},
            drawing.alone(plots.plot_head_classes),
        )


def repeated_patterns(subjects):
    """Figures 2, 11 to 13 and 17: whether heads and layers attend to the same few places."""
    for subject in _attending(subjects):
        yield Row(
            f"attention-patterns-{subject.slug}",
            f"Sparse patterns of attention that repeat in {subject.name}",
            "Each cell compares two layers' heads in the same image: high where both attend to "
            "the same few tokens, whatever the query, and low where attention is spread out or "
            "differs. A bright block is a pattern that goes through those layers.",
            {subject.name: measurements.attention_patterns(subject)},
            drawing.alone(plots.plot_attention_patterns),
        )
