"""The figures of a set of models, one function for each figure of the paper.

Each takes the models under study and yields a `Row` for every picture it makes of them; `figures`
holds the table of these functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from itertools import combinations, product
from typing import Any

from . import drawing, measurements, needs, plots
from .interactive import cka_heatmap, distance_lines
from .token_words import ALL, CLS, EACH, SPATIAL


@dataclass(frozen=True)
class Row:
    """One picture of the report.

    Attributes:
        name: short and unique, also of the file.
        title: what is shown.
        caption: one sentence on how to read it, or a function of the results that says it.
        measurements: dict from a label to the measurement drawn under it.
        draw: function of a dict from label to result; returns a Matplotlib figure.
        interactive: function of a result that returns what answers to the mouse, or None.
        baselines: those of the labels that are only there to compare the others with.
        instead: function of the results to the sentence that takes the picture's place, or to None
            where there is something to see.
    """

    name: str
    title: str
    caption: str | Callable
    measurements: dict[str, Any]
    draw: Callable
    interactive: Callable | None = None
    baselines: tuple[str, ...] = ()
    instead: Callable | None = None


def by_role(subjects, *roles):
    """The subjects that play one of these parts."""
    return [subject for subject in subjects if subject.role in roles]


def pairs(subjects, roles, others, models=False):
    """Each model of one of the `roles` with each of the `others`; and all pairs of `models`."""
    found = list(product(by_role(subjects, *roles), by_role(subjects, *others)))
    return found + (list(combinations(by_role(subjects, "model"), 2)) if models else [])


def similarity_within(subjects, *roles):
    """Figures 1 and B.1, and H.1 for a Mixer: all layers of a model with one another."""
    for subject in by_role(subjects, *roles):
        yield Row(
            f"cka-{subject.slug}",
            f"Similarity of the layers of {subject.name}",
            "Each cell compares two layers on the same images, from the input at the lower left to "
            "the output: bright blocks are layers that represent images alike, and a dark band "
            "between two blocks is a place where the representation changes.",
            {subject.name: measurements.cka(subject)},
            drawing.alone(plots.plot_cka),
            cka_heatmap,
        )


def similarity_across(compared):
    """Figures 2, B.1 and H.2: all layers of a model with all of another, of pairs of them."""
    for one, other in compared:
        yield Row(
            f"cka-{one.slug}-{other.slug}",
            f"Similarity of {one.name} and {other.name}",
            "Each column is a layer of the first model and each row one of the second: the "
            "brightest cell of a column is where in its depth the second model comes closest.",
            {one.name: measurements.cka(one, other)},
            drawing.alone(plots.plot_cka),
            cka_heatmap,
        )


ATTENDING = ("vit", "gap", "fraction", "model")


def head_distances(subjects):
    """Figures 3, 4, C.5 and C.6: how far the heads of every layer look."""
    attending = [s for s in by_role(subjects, *ATTENDING) if s.has_attention]
    if attending:
        yield Row(
            "attention-distance",
            "Mean distance of attention heads",
            "Each line is a layer and each point a head, sorted by how far from the query it "
            "attends on average: a low left end is a local head, and a flat line is a layer whose "
            "heads all look equally far.",
            {subject.name: measurements.attention_distance(subject) for subject in attending},
            drawing.distances,
            distance_lines,
        )


def heads_and_convolutions(subjects):
    """Figure 5: growing sets of heads beside the lower layers of a ResNet."""
    models = by_role(subjects, "model")
    attending = [model for model in models if not needs.heads(model)]
    convolving = [model for model in models if not needs.maps(model)]
    others = [(one, other) for one, other in product(attending, convolving) if one is not other]
    for one, other in [*pairs(subjects, ("vit", "gap"), ("resnet",)), *others]:
        yield Row(
            f"head-similarity-{one.slug}-{other.slug}",
            f"Heads of {one.name} beside lower layers of {other.name}",
            "Each point is a subset of the heads of block 0, taken from the most local or from "
            "the most global one on: a line that falls to the right says that the more global "
            "heads find features which the convolutions do not have.",
            {one.name: measurements.head_similarity(one, other)},
            drawing.alone(plots.plot_head_similarity),
        )


def receptive_fields(subjects, path):
    """Figures 6 and C.1 to C.3 after the sums, and C.4 before them; or of any layers."""
    where = {"sum": " after the sums", "branch": " before the sums"}[path]
    how = {
        "sum": ", after its skip and branch are summed: fields that fill the panel are global.",
        "branch": ", before its branch is added to its skip: where the own patch is no longer the "
        "brightest, it was the skip that kept it so.",
    }[path]
    for subject in by_role(subjects, "vit", "gap", "resnet", "model"):
        known = subject.has_sums or path == "branch"
        yield Row(
            f"receptive-field{'' if path == 'sum' else '-branch'}-{subject.slug}",
            f"Effective receptive fields of {subject.name}{where if known else ''}",
            "Bright pixels are those that move the centre of the layer most"
            + (how if known else ": fields that fill the panel are global."),
            {subject.name: measurements.receptive_field(subject, path)},
            drawing.alone(plots.plot_receptive_field),
        )


def skips_by_token(subjects):
    """Figures 7 left and E.1: skip against branch, token by token."""
    for subject in by_role(subjects, "vit", "gap", "model"):
        if subject.grid.prefix:
            yield Row(
                f"skip-ratio-{subject.slug}",
                f"Skip against branch in {subject.name}, token by token",
                "Each cell is one token at one sum: above 1 the skip is the longer vector and what "
                "came in goes on, below 1 the branch rewrites it.",
                {subject.name: measurements.skip_ratio(subject)},
                drawing.alone(plots.plot_skip_ratio),
            )


def skips_by_depth(subjects, variable):
    """Figures 7 right and E.2: skip against branch through the depth of several models."""
    title, caption = {
        "norm_ratio": (
            "Skip against branch through the depth",
            "The higher a line, the more of that token's representation is handed on by the skip; "
            "the grey line is where skip and branch are equally long.",
        ),
        "cosine": (
            "Direction of skip and branch through the depth",
            "At 1 the branch adds to what the skip carries, at 0 it writes something new beside "
            "it, and below 0 it takes something away.",
        ),
    }[variable]
    chosen = by_role(subjects, "vit", "gap", "resnet", "mixer", "model")
    if chosen:
        yield Row(
            {"norm_ratio": "skip-ratio", "cosine": "skip-cosine"}[variable],
            title,
            caption,
            {subject.name: measurements.skip_ratio(subject) for subject in chosen},
            lambda found: plots.plot_skip_ratio_lines(found, variable=variable).figure,
        )


def tokens_and_patches(subjects):
    """Figures 9, 10 and D.1 to D.3: which patches of the image a token resembles."""

    def caption(results):
        (result,) = results.values()
        gaps = " Grey patches are the same in all images." if result.isnull().any() else ""
        return (
            "Each panel is one token or place and shows which patches of the image it resembles; "
            f"the frame marks its own. Colours span the values of all panels.{gaps}"
        )

    for subject in by_role(subjects, "vit", "gap", "resnet", "model"):
        last = measurements.localization(subject)
        yield Row(
            f"localization-{subject.slug}",
            f"Last tokens of {subject.name} beside patches of the image",
            caption,
            {subject.name: last},
            drawing.alone(plots.plot_localization),
        )
        if len(last.taps[0]) > 1:
            yield Row(
                f"localization-depth-{subject.slug}",
                f"Tokens of {subject.name} beside patches, layer by layer",
                caption,
                {subject.name: last},
                drawing.alone(drawing.localization_by_layer),
            )
        for stage in subject.stages[:-1]:
            yield Row(
                f"localization-{stage}-{subject.slug}",
                f"Places of {stage} of {subject.name} beside patches of the image",
                caption,
                {subject.name: measurements.localization(subject, stage)},
                drawing.alone(plots.plot_localization),
            )


def probes_by_token(subjects):
    """Figures 11 left and D.4: what each token alone says of the class."""
    chosen = by_role(subjects, "vit", "gap", "resnet", "model")
    if chosen:
        yield Row(
            "ridge-probe-tokens",
            "Accuracy of linear probes on single tokens",
            "Each point is the mean accuracy of as many linear classifiers as the layer has "
            f"places, each of them shown one token{_without_prefix(chosen)}; the band is their "
            "range.",
            {subject.name: measurements.ridge_probe(subject, EACH) for subject in chosen},
            drawing.token_probes,
        )
    for subject in chosen:
        yield Row(
            f"ridge-probe-map-{subject.slug}",
            f"Accuracy of linear probes on single tokens of {subject.name}, place by place",
            "Each cell is a linear classifier that is shown the token at that place alone: even "
            "panels are layers that have spread what they know over all tokens.",
            {subject.name: measurements.ridge_probe(subject, EACH)},
            drawing.alone(plots.plot_probe_map),
        )


def _without_prefix(subjects):
    return ", without CLS" if any(s.grid and s.grid.prefix for s in subjects) else ""


VARIANTS = {CLS: "first token", ALL: "mean of all", SPATIAL: "mean without the first"}


def probes_by_aggregation(subjects):
    """Figures 11 right and F.3: the first token, the mean of all and that of the others."""
    chosen = by_role(subjects, "vit", "gap")
    chosen += [model for model in by_role(subjects, "model") if model.has_tokens]
    if chosen:
        yield Row(
            "ridge-probe-variants",
            "Accuracy of linear probes on different summaries of the tokens",
            "Colours are models and line styles what the linear classifier is shown"
            + _where_cls_is_ahead(chosen),
            {
                f"{subject.name}: {words}": probe
                for subject in chosen
                for words, probe in _aggregations(subject).items()
            },
            drawing.probe_variants,
        )


def _where_cls_is_ahead(subjects):
    if not any(subject.grid and subject.grid.prefix for subject in subjects):
        return "."
    return (
        ": where the first token of a model with CLS rises above the mean, the class token has "
        "gathered what the others hold."
    )


def _aggregations(subject):
    """Probes by what they are shown, in words; a model without CLS has a place for first token."""
    if subject.grid.prefix:
        return {words: measurements.ridge_probe(subject, of) for of, words in VARIANTS.items()}
    probes = measurements.first_place_probe(subject), measurements.ridge_probe(subject, ALL)
    return dict(zip((VARIANTS[CLS], VARIANTS[ALL]), probes, strict=True))


def probes_by_depth(subjects):
    """Figures 13, F.1 and F.2: accuracy through the depth of several models, over seeds."""
    chosen = by_role(subjects, "vit", "gap", "resnet", "mixer", "seed", "model")
    models = {subject.name: subject.of or subject.name for subject in chosen}
    where = "block's" if all(subject.has_sums for subject in chosen) else "layer's"
    bars = (
        " Bars are standard deviations over trainings from different first weights."
        if any(subject.role != "model" for subject in chosen)
        else ""
    )
    if chosen:
        yield Row(
            "ridge-probe",
            "Accuracy of linear probes through the depth",
            "Each point is a linear classifier on the mean over all tokens or places of one "
            f"{where} output; where a line rises, the {where[:-2]} makes the classes easier to "
            f"tell apart.{bars}",
            {subject.name: measurements.ridge_probe(subject) for subject in chosen},
            lambda results: drawing.probes_by_model(results, models),
        )


def counterparts_compared(subjects):
    """As figures G.1 and G.2, of any models whose blocks have the same names."""
    alike = [
        (one, other)
        for one, other in combinations(by_role(subjects, "model"), 2)
        if one.blocks == other.blocks
    ]
    if alike:
        yield Row(
            "counterparts",
            "Blocks beside their counterparts in another model",
            "Each point compares a block with the one of the same name in the other model: high "
            "values are blocks that represent the images alike.",
            {
                f"{one.name} and {other.name}": measurements.counterpart_blocks(one, other)
                for one, other in alike
            },
            lambda results: plots.plot_counterparts(results).figure,
        )
