"""The figures of a set of models, one function for each figure of the paper.

Each takes the models under study and yields a `Row` for every picture it makes of them; `figures`
holds the table of these functions.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import xarray as xr

from . import measurements, plots
from .counterparts import own_matches
from .interactive import cka_heatmap, distance_lines


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
    """

    name: str
    title: str
    caption: str | Callable
    measurements: dict[str, Any]
    draw: Callable
    interactive: Callable | None = None


def by_role(subjects, *roles):
    """The subjects that play one of these parts."""
    return [subject for subject in subjects if subject.role in roles]


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
            _draw_alone(plots.plot_cka),
            cka_heatmap,
        )


def similarity_across(subjects, roles, others):
    """Figures 2, B.1 and H.2: all layers of a model with all of another."""
    for one in by_role(subjects, *roles):
        for other in by_role(subjects, *others):
            yield Row(
                f"cka-{one.slug}-{other.slug}",
                f"Similarity of {one.name} and {other.name}",
                "Each column is a layer of the first model and each row one of the second: the "
                "brightest cell of a column is where in its depth the second model comes closest.",
                {one.name: measurements.cka(one, other)},
                _draw_alone(plots.plot_cka),
                cka_heatmap,
            )


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
                    _draw_alone(plots.plot_matches),
                )


def _count_matches(results):
    (result,) = results.values()
    own, layers = own_matches(result)
    return (
        "Each mark is the layer of the second training that is most like the layer of its column: "
        f"{own} of {layers} layers find their own counterpart, on the diagonal. A measure of "
        "similarity that can be trusted finds most (Kornblith et al. 2019, section 6.1)."
    )


def head_distances(subjects):
    """Figures 3, 4, C.5 and C.6: how far the heads of every layer look."""
    attending = [s for s in by_role(subjects, "vit", "gap", "fraction") if s.has_attention]
    if attending:
        yield Row(
            "attention-distance",
            "Mean distance of attention heads",
            "Each line is a layer and each point a head, sorted by how far from the query it "
            "attends on average: a low left end is a local head, and a flat line is a layer whose "
            "heads all look equally far.",
            {subject.name: measurements.attention_distance(subject) for subject in attending},
            _draw_distances,
            distance_lines,
        )


def heads_and_convolutions(subjects):
    """Figure 5: growing sets of heads beside the lower layers of a ResNet."""
    for one in by_role(subjects, "vit", "gap"):
        for other in by_role(subjects, "resnet"):
            yield Row(
                f"head-similarity-{one.slug}-{other.slug}",
                f"Heads of {one.name} beside lower layers of {other.name}",
                "Each point is a subset of the heads of block 0, taken from the most local or from "
                "the most global one on: a line that falls to the right says that the more global "
                "heads find features which the convolutions do not have.",
                {one.name: measurements.head_similarity(one, other)},
                _draw_alone(plots.plot_head_similarity),
            )


def receptive_fields(subjects, path):
    """Figures 6 and C.1 to C.3 after the sums, and C.4 before them."""
    where = {"sum": "after the sums", "branch": "before the sums"}[path]
    how = {
        "sum": "after its skip and branch are summed: fields that fill the panel are global.",
        "branch": "before its branch is added to its skip: where the own patch is no longer the "
        "brightest, it was the skip that kept it so.",
    }[path]
    for subject in by_role(subjects, "vit", "gap", "resnet"):
        yield Row(
            f"receptive-field{'' if path == 'sum' else '-branch'}-{subject.slug}",
            f"Effective receptive fields of {subject.name} {where}",
            f"Bright pixels are those that move the centre of the layer most, {how}",
            {subject.name: measurements.receptive_field(subject, path)},
            _draw_alone(plots.plot_receptive_field),
        )


def skips_by_token(subjects):
    """Figures 7 left and E.1: skip against branch, token by token."""
    for subject in by_role(subjects, "vit", "gap"):
        if subject.grid.prefix:
            yield Row(
                f"skip-ratio-{subject.slug}",
                f"Skip against branch in {subject.name}, token by token",
                "Each cell is one token at one sum: above 1 the skip is the longer vector and what "
                "came in goes on, below 1 the branch rewrites it.",
                {subject.name: measurements.skip_ratio(subject)},
                _draw_alone(plots.plot_skip_ratio),
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
    chosen = by_role(subjects, "vit", "gap", "resnet", "mixer")
    if chosen:
        yield Row(
            {"norm_ratio": "skip-ratio", "cosine": "skip-cosine"}[variable],
            title,
            caption,
            {subject.name: measurements.skip_ratio(subject) for subject in chosen},
            lambda found: plots.plot_skip_ratio_lines(found, variable=variable).figure,
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
                _draw_alone(plots.plot_cka_beside, several=True),
            )


def _with_accuracy(subject):
    what = f"without skips in {subject.detail}" if subject.detail else f"{subject.name}, intact"
    return f"{what}\n{100 * subject.accuracy[0]:.1f} % right" if subject.accuracy else what


def tokens_and_patches(subjects):
    """Figures 9, 10 and D.1 to D.3: which patches of the image a token resembles."""
    caption = (
        "Each panel is one token or place and shows which patches of the image it resembles; the "
        "frame marks its own. Grey patches are the same in all images."
    )
    for subject in by_role(subjects, "vit", "gap", "resnet"):
        last = measurements.localization(subject)
        yield Row(
            f"localization-{subject.slug}",
            f"Last tokens of {subject.name} beside patches of the image",
            caption,
            {subject.name: last},
            _draw_alone(plots.plot_localization),
        )
        if not subject.stages:
            yield Row(
                f"localization-depth-{subject.slug}",
                f"Tokens of {subject.name} beside patches, layer by layer",
                caption,
                {subject.name: last},
                _draw_alone(_localization_by_layer),
            )
        for stage in subject.stages[:-1]:
            yield Row(
                f"localization-{stage}-{subject.slug}",
                f"Places of {stage} of {subject.name} beside patches of the image",
                caption,
                {subject.name: measurements.localization(subject, stage)},
                _draw_alone(plots.plot_localization),
            )


def probes_by_token(subjects):
    """Figures 11 left and D.4: what each token alone says of the class."""
    chosen = by_role(subjects, "vit", "gap", "resnet")
    if chosen:
        yield Row(
            "ridge-probe-tokens",
            "Accuracy of linear probes on single tokens",
            "Each point is the mean accuracy of as many linear classifiers as the layer has "
            "places, each of them shown one token, without CLS; the band is their range.",
            {subject.name: measurements.ridge_probe(subject, "each") for subject in chosen},
            _draw_token_probes,
        )
    for subject in chosen:
        yield Row(
            f"ridge-probe-map-{subject.slug}",
            f"Accuracy of linear probes on single tokens of {subject.name}, place by place",
            "Each cell is a linear classifier that is shown the token at that place alone: even "
            "panels are layers that have spread what they know over all tokens.",
            {subject.name: measurements.ridge_probe(subject, "each")},
            _draw_alone(plots.plot_probe_map),
        )


VARIANTS = {"first": "first token", "mean": "mean of all", "rest": "mean without the first"}


def probes_by_aggregation(subjects):
    """Figures 11 right and F.3: the first token, the mean of all and that of the others."""
    chosen = by_role(subjects, "vit", "gap")
    if chosen:
        yield Row(
            "ridge-probe-variants",
            "Accuracy of linear probes on different summaries of the tokens",
            "Colours are models and line styles what the linear classifier is shown: where the "
            "first token of the CLS model rises above the mean, the class token has gathered what "
            "the others hold.",
            {
                f"{subject.name}: {words}": measurements.ridge_probe(subject, tokens)
                for subject in chosen
                for tokens, words in VARIANTS.items()
            },
            _draw_alone(plots.plot_probe_variants, several=True),
        )


def probes_by_depth(subjects):
    """Figures 13, F.1 and F.2: accuracy through the depth of several models, over seeds."""
    chosen = by_role(subjects, "vit", "gap", "resnet", "mixer", "seed")
    models = {subject.name: subject.of or subject.name for subject in chosen}
    if chosen:
        yield Row(
            "ridge-probe",
            "Accuracy of linear probes through the depth",
            "Each point is a linear classifier on the mean over all tokens or places of one "
            "block's output; where a line rises, the block makes the classes easier to tell apart. "
            "Bars are standard deviations over trainings from different first weights.",
            {subject.name: measurements.ridge_probe(subject) for subject in chosen},
            lambda results: _draw_probes(results, models),
        )


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
                _draw_fractions,
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


def _draw_alone(plot, several=False):
    """A drawing of the only result, or of `several`; the plot may return one axes or an array."""

    def draw(results):
        axes = plot(results if several else next(iter(results.values())))
        return np.ravel(axes)[0].figure

    return draw


def _localization_by_layer(result):
    return plots.plot_localization(result, layer=list(result.layer.values))


def _draw_distances(results):
    """A panel for each model, at most three a row, on one scale."""
    import matplotlib.pyplot as plt

    columns = min(3, len(results))
    rows = -(-len(results) // columns)
    size = (3.8 * columns + 1.8, 3.6 * rows + 0.6)
    figure, axes = plt.subplots(rows, columns, figsize=size, layout="constrained", squeeze=False)
    figure.suptitle("Mean attention distance")
    drawn = axes.ravel()[: len(results)]
    for ax in axes.ravel()[len(results) :]:
        ax.remove()
    for ax, (name, result) in zip(drawn, results.items(), strict=True):
        plots.plot_attention_distance(result, ax=ax).set_title(name, fontsize=10)
    top = max(ax.get_ylim()[1] for ax in drawn)
    layers = {tuple(result.layer.values) for result in results.values()}
    for ax in drawn:
        ax.set_ylim(0, top)
        if len(layers) == 1 and ax is not axes[0, -1] and ax.get_legend():
            ax.get_legend().remove()
    return figure


def _draw_token_probes(results):
    ax = None
    for name, result in results.items():
        spatial = result.isel(token=slice(int(result.attrs["prefix"]), None))
        ax = plots.plot_ridge_probe(spatial, ax=ax, label=name)
    return ax.figure


def _draw_probes(results, models):
    """One line for each model, with bars where there are several trainings of it."""
    trainings, ax = {}, None
    for name, result in results.items():
        trainings.setdefault(models[name], []).append(result)
    for model, seeds in trainings.items():
        result = xr.concat(seeds, dim="seed", combine_attrs="drop_conflicts")
        ax = plots.plot_ridge_probe(result, ax=ax, label=model)
    return ax.figure


def _draw_fractions(results):
    (result,) = results.values()
    lines = {
        f"{100 * share:g} % of the data": result.sel(fraction=share)
        for share in result.fraction.values
    }
    return plots.plot_counterparts(lines).figure
