"""Which figures show the measurements of a set of models: a table, in the paper's order.

Every row names the results that it draws; adding a figure is adding a row.
"""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import numpy as np

from . import plots
from .interactive import cka_heatmap, distance_lines
from .measurements import unlike
from .report import Figure
from .store import fingerprint, write_whole

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Row:
    """One figure of the report.

    Attributes:
        section: key of `SECTIONS`.
        name: short and unique, also of the file.
        title: what is shown.
        caption: one sentence on how to read it.
        paper: figures of Raghu et al. 2021 that it answers to.
        results: dict from a model's name to the name of the result drawn.
        draw: function of a dict from a model's name to its result; returns a Matplotlib figure.
        interactive: function of a result that returns what answers to the mouse, or None.
    """

    section: str
    name: str
    title: str
    caption: str
    paper: str
    results: dict[str, str]
    draw: Callable
    interactive: Callable | None = None


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
        "How much of the label can be read off each layer by a linear map?",
    ),
}


def figures(subjects):
    """The rows for these models, section by section."""
    return [
        *_structure(subjects),
        *_locality(subjects),
        *_skips(subjects),
        *_localization(subjects),
        *_probes(subjects),
    ]


def draw(subjects, results, folder):
    """Every figure of these models as a PNG in `folder / "figures"`; none is drawn twice.

    Args:
        subjects: list of `Subject`.
        results: dict from result name to result, as `measure` returns it.
        folder: path of the report's folder, which holds `results` too.

    Returns:
        List of (section, report `Figure`).
    """
    manifest = folder / "figures" / "keys.json"
    keys = json.loads(manifest.read_text()) if manifest.exists() else {}
    drawn = []
    for row in figures(subjects):
        chosen = {model: results[name] for model, name in row.results.items()}
        path = folder / "figures" / f"{row.name}.png"
        key = fingerprint([result.attrs["key"] for result in chosen.values()], row.caption)
        if keys.get(row.name) != key or not path.exists():
            log.info("drawing %s", row.name)
            _save(row.draw(chosen), path)
            keys[row.name] = key
            write_whole(manifest, lambda partial: partial.write_text(json.dumps(keys, indent=1)))
        drawn.append((row.section, _report_figure(row, chosen, path)))
    return drawn


def _save(figure, path):
    import matplotlib.pyplot as plt

    write_whole(path, partial(figure.savefig, dpi=150))
    plt.close(figure)


def _report_figure(row, chosen, path):
    live = [row.interactive(result) for result in chosen.values()] if row.interactive else []
    return Figure(
        name=row.name,
        title=row.title,
        caption=row.caption,
        paper=row.paper,
        alt=f"{row.title}. {row.caption}",
        png=path,
        results=[f"results/{name}.nc" for name in row.results.values()],
        interactive=live,
    )


def _structure(subjects):
    for subject in subjects:
        yield Row(
            "structure",
            f"cka-{subject.slug}",
            f"Similarity of the layers of {subject.name}",
            "Each cell compares two layers on the same images, from the input at the lower left to "
            "the output: bright blocks are layers that represent images alike, and a dark band "
            "between two blocks is a place where the representation changes.",
            "Figures 1, 8 and B.1",
            {subject.name: f"cka.{subject.slug}"},
            _draw_alone(plots.plot_cka),
            cka_heatmap,
        )
    for one, other in unlike(subjects):
        yield Row(
            "structure",
            f"cka-{one.slug}-{other.slug}",
            f"Similarity of {one.name} and {other.name}",
            "Each column is a layer of the first model and each row one of the second: the "
            "brightest cell of a column is where in its depth the second model comes closest.",
            "Figures 2 and B.1",
            {one.name: f"cka.{one.slug}.{other.slug}"},
            _draw_alone(plots.plot_cka),
            cka_heatmap,
        )


def _locality(subjects):
    attending = [subject for subject in subjects if subject.has_attention]
    if attending:
        yield Row(
            "locality",
            "attention-distance",
            "Mean distance of attention heads",
            "Each line is a layer and each point a head, sorted by how far from the query it "
            "attends on average: a low left end is a local head, and a flat line is a layer whose "
            "heads all look equally far.",
            "Figures 3, 4, C.5 and C.6",
            {subject.name: f"attention_distance.{subject.slug}" for subject in attending},
            _draw_distances,
            distance_lines,
        )
    for one, other in unlike(subjects):
        yield Row(
            "locality",
            f"head-similarity-{one.slug}-{other.slug}",
            f"Heads of {one.name} beside lower layers of {other.name}",
            "Each point is a subset of the heads of block 0, taken from the most local or from the "
            "most global one on: a line that falls to the right says that the more global heads "
            "find features which the convolutions do not have.",
            "Figure 5",
            {one.name: f"head_similarity.{one.slug}.{other.slug}"},
            _draw_alone(plots.plot_head_similarity),
        )
    for subject in subjects:
        yield Row(
            "locality",
            f"receptive-field-{subject.slug}",
            f"Effective receptive fields of {subject.name}",
            "Bright pixels are those that move the centre of the layer most, after its skip and "
            "branch are summed: fields that fill the panel are global.",
            "Figures 6, C.1, C.2 and C.3",
            {subject.name: f"receptive_field.{subject.slug}"},
            _draw_alone(plots.plot_receptive_field),
        )


def _skips(subjects):
    for subject in subjects:
        if subject.grid and subject.grid.prefix:
            yield Row(
                "skips",
                f"skip-ratio-{subject.slug}",
                f"Skip against branch in {subject.name}, token by token",
                "Each cell is one token at one sum: above 1 the skip is the longer vector and what "
                "came in goes on, below 1 the branch rewrites it.",
                "Figures 7 (left) and E.1",
                {subject.name: f"skip_ratio.{subject.slug}"},
                _draw_alone(plots.plot_skip_ratio),
            )
    results = {subject.name: f"skip_ratio.{subject.slug}" for subject in subjects}
    yield Row(
        "skips",
        "skip-ratio",
        "Skip against branch through the depth",
        "The higher a line, the more of that token's representation is handed on by the skip; the "
        "grey line is where skip and branch are equally long.",
        "Figure 7 (right)",
        results,
        lambda found: plots.plot_skip_ratio_lines(found).figure,
    )
    yield Row(
        "skips",
        "skip-cosine",
        "Direction of skip and branch through the depth",
        "At 1 the branch adds to what the skip carries, at 0 it writes something new beside it, "
        "and below 0 it takes something away.",
        "Figure E.2",
        results,
        lambda found: plots.plot_skip_ratio_lines(found, variable="cosine").figure,
    )


def _localization(subjects):
    for subject in subjects:
        yield Row(
            "localization",
            f"localization-{subject.slug}",
            f"Tokens of {subject.name} beside patches of the image",
            "Each panel is one token or place of the last block and shows which patches of the "
            "image it resembles; the frame marks its own. Grey patches are the same in all images.",
            "Figures 9, 10, D.1, D.2 and D.3",
            {subject.name: f"localization.{subject.slug}"},
            _draw_alone(plots.plot_localization),
        )


def _probes(subjects):
    yield Row(
        "probes",
        "ridge-probe",
        "Accuracy of linear probes through the depth",
        "Each point is a linear classifier on the mean over all tokens or places of one block's "
        "output; where a line rises, the block makes the classes easier to tell apart.",
        "Figure 13",
        {subject.name: f"ridge_probe.{subject.slug}" for subject in subjects},
        _draw_probes,
    )


def _draw_alone(plot):
    """A drawing of the only result; the function may return one axes or an array of them."""

    def draw(results):
        (result,) = results.values()
        return np.ravel(plot(result))[0].figure

    return draw


def _draw_distances(results):
    import matplotlib.pyplot as plt

    size = (3.8 * len(results) + 1.8, 4.2)
    figure, axes = plt.subplots(1, len(results), figsize=size, layout="constrained", squeeze=False)
    figure.suptitle("Mean attention distance")
    for ax, (name, result) in zip(axes[0], results.items(), strict=True):
        plots.plot_attention_distance(result, ax=ax).set_title(name, fontsize=10)
    top = max(ax.get_ylim()[1] for ax in axes[0])
    layers = [tuple(result.layer.values) for result in results.values()]
    for ax in axes[0]:
        ax.set_ylim(0, top)
        if len(set(layers)) == 1 and ax is not axes[0, -1] and ax.get_legend():
            ax.get_legend().remove()
    return figure


def _draw_probes(results):
    ax = None
    for name, result in results.items():
        ax = plots.plot_ridge_probe(result, ax=ax, label=name)
    return ax.figure
