"""The figures that compare a model with others trained for it: seeds, fractions, without skips.

As in `figure_rows`, each function takes the models under study and yields a `Row` for every
picture.
"""

from .. import plots
from ..plots import drawing
from ..similarity.counterparts import own_matches
from . import measurements
from .figure_rows import Row, by_role


def seeds_compared(subjects):
    """The sanity check of Kornblith et al. 2019: two trainings from different first weights."""
    for seed in by_role(subjects, "seed"):
        for subject in subjects:
            if subject.name == seed.of:
                yield Row(
                    f"seeds-{seed.slug}",
                    f"{subject.name}, trained twice from different first weights",
                    _count_matches,
                    {seed.name: measurements.cka(subject, seed)},
                    drawing.alone(plots.plot_matches),
                )


def _count_matches(results):
    (result,) = results.values()
    own, layers = own_matches(result)
    return (
        "Each mark is the layer of the second training that is most like the layer of its column: "
        f"{own} of {layers} layers find their own counterpart, on the diagonal. A measure of "
        "similarity that can be trusted finds most (Kornblith et al. 2019, section 6.1)."
    )


def skips_removed(subjects):
    """Figure 8: the layers of models trained without the skips of a block."""
    for intact in by_role(subjects, "vit"):
        without = [s for s in by_role(subjects, "without") if s.of == intact.name]
        if without:
            yield Row(
                f"without-skips-{intact.slug}",
                f"Similarity of the layers of {intact.name} without the skips of a block",
                "Each panel is a model trained without the skips of one block, beside the intact "
                "one: where they matter, the layers before the block and those after it fall "
                "apart into two bright squares.",
                {
                    _with_accuracy(subject): measurements.cka(subject)
                    for subject in (intact, *without)
                },
                drawing.alone(plots.plot_cka_beside, several=True),
            )


def _with_accuracy(subject):
    what = f"without skips in {subject.detail}" if subject.detail else f"{subject.name}, intact"
    return f"{what}\n{100 * subject.accuracy[0]:.1f} % right" if subject.accuracy else what


def fractions_compared(subjects):
    """Figure 12: models trained on fractions of the data beside one trained on all of it."""
    for subject in by_role(subjects, "vit"):
        shares = {s.detail: s for s in by_role(subjects, "fraction") if s.of == subject.name}
        again = [s for s in by_role(subjects, "seed") if s.of == subject.name]
        if shares:
            shares |= {1.0: again[0]} if again else {}
            yield Row(
                f"data-scale-{subject.slug}",
                f"Blocks of {subject.name} when trained on less data",
                "Each line compares every block of a model trained on a fraction of the images "
                "with the same block of the one trained on all: a line that falls says that "
                "higher blocks need more data. A line of 100 % is a second training on all of "
                "them, from other first weights, to compare with.",
                {subject.name: measurements.data_scale(subject, shares)},
                drawing.fractions,
            )


def fine_tuning_compared(subjects):
    """Figures G.1 and G.2: each block before and after fine-tuning."""
    before = {subject.name: subject for subject in by_role(subjects, "before")}
    tuned = [subject for subject in by_role(subjects, "after") if subject.of in before]
    if tuned:
        yield Row(
            "fine-tuning",
            "Blocks before and after fine-tuning",
            "Each point compares a block before fine-tuning on the other half of the classes with "
            "the same block after it: high values are blocks that the new task left as they were.",
            {s.name: measurements.fine_tuning(before[s.of], s) for s in tuned},
            lambda results: plots.plot_counterparts(results).figure,
        )
