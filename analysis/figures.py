"""Which figures there are: a table, in the order of the paper. Adding one is adding a row."""

import json
import logging
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from . import figure_rows as rows
from .report import Figure
from .store import fingerprint, write_whole

log = logging.getLogger(__name__)

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
        numbers: the figures of Raghu et al. 2021 it answers to; each chooses it.
        section: key of `SECTIONS`.
        title: what it shows.
        roles: the parts of the models it needs; `measurements.Subject` tells them.
        rows: function of the models under study to its `Row`s.
    """

    numbers: tuple[str, ...]
    section: str
    title: str
    roles: tuple[str, ...]
    rows: Callable

    @property
    def paper(self):
        """The figures of the paper, in words; empty for what is not in it."""
        if self.numbers == ("sanity",):
            return ""
        numbers = " and ".join([", ".join(self.numbers[:-1]), self.numbers[-1]]).removeprefix(
            " and "
        )
        return f"Figure{'s' if len(self.numbers) > 1 else ''} {numbers}"


FIGURES = (
    Entry(
        ("1", "B.1"),
        "structure",
        "similarity of a model's layers",
        ("vit", "gap", "resnet"),
        lambda subjects: rows.similarity_within(subjects, "vit", "gap", "resnet"),
    ),
    Entry(
        ("2",),
        "structure",
        "similarity of a ViT's and a ResNet's layers",
        ("vit", "gap", "resnet"),
        lambda subjects: rows.similarity_across(subjects, ("vit", "gap"), ("resnet",)),
    ),
    Entry(
        ("H.1",),
        "structure",
        "similarity of an MLP-Mixer's layers",
        ("mixer",),
        lambda subjects: rows.similarity_within(subjects, "mixer"),
    ),
    Entry(
        ("H.2",),
        "structure",
        "similarity of an MLP-Mixer's layers and those of others",
        ("mixer", "vit", "resnet"),
        lambda subjects: rows.similarity_across(subjects, ("mixer",), ("vit", "resnet")),
    ),
    Entry(
        ("sanity",),
        "structure",
        "layers of two trainings from different seeds",
        ("vit", "resnet", "seed"),
        rows.seeds_compared,
    ),
    Entry(
        ("3", "4", "C.5", "C.6"),
        "locality",
        "mean distance of attention heads",
        ("vit", "gap", "fraction"),
        rows.head_distances,
    ),
    Entry(
        ("5",),
        "locality",
        "similarity of growing sets of heads and a ResNet's lower layers",
        ("vit", "gap", "resnet"),
        rows.heads_and_convolutions,
    ),
    Entry(
        ("6", "C.1", "C.2", "C.3"),
        "locality",
        "effective receptive fields after the sums",
        ("vit", "gap", "resnet"),
        partial(rows.receptive_fields, path="sum"),
    ),
    Entry(
        ("C.4",),
        "locality",
        "effective receptive fields before the sums",
        ("vit", "gap", "resnet"),
        partial(rows.receptive_fields, path="branch"),
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
    ),
    Entry(
        ("E.2",),
        "skips",
        "cosine of skip and branch",
        ("vit", "gap", "resnet", "mixer"),
        partial(rows.skips_by_depth, variable="cosine"),
    ),
    Entry(
        ("8",),
        "skips",
        "similarity of layers without the skips of a block",
        ("vit", "without"),
        rows.skips_removed,
    ),
    Entry(
        ("9", "10", "D.1", "D.2", "D.3"),
        "localization",
        "similarity of single tokens and patches of the image",
        ("vit", "gap", "resnet"),
        rows.tokens_and_patches,
    ),
    Entry(
        ("11", "D.4", "F.3"),
        "probes",
        "linear probes on single tokens and on their summaries",
        ("vit", "gap", "resnet"),
        lambda subjects: [*rows.probes_by_token(subjects), *rows.probes_by_aggregation(subjects)],
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
        rows.fractions_compared,
    ),
    Entry(
        ("G.1", "G.2"),
        "scale",
        "blocks before and after fine-tuning",
        ("before", "after"),
        rows.fine_tuning_compared,
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
    return [(entry, row) for entry in entries for row in entry.rows(subjects)]


def draw(planned, results, folder):
    """Every picture as a PNG in `folder / "figures"`; none is drawn twice.

    Args:
        planned: list of (entry, `Row`) from `plan_rows`.
        results: dict from result name to result, as `measure` returns it.
        folder: path of the report's folder, which holds `results` too.

    Returns:
        List of (section, report `Figure`).
    """
    manifest = folder / "figures" / "keys.json"
    keys = json.loads(manifest.read_text()) if manifest.exists() else {}
    drawn = []
    for entry, row in planned:
        chosen = {label: results[one.name] for label, one in row.measurements.items()}
        caption = row.caption(chosen) if callable(row.caption) else row.caption
        path = folder / "figures" / f"{row.name}.png"
        made_of = {label: result.attrs["key"] for label, result in chosen.items()}
        key = fingerprint(made_of, row.title, caption)
        if keys.get(row.name) != key or not path.exists():
            log.info("drawing %s", row.name)
            _save(row.draw(chosen), path)
            keys[row.name] = key
            write_whole(manifest, lambda partial: partial.write_text(json.dumps(keys, indent=1)))
        drawn.append((entry.section, _report_figure(entry, row, caption, chosen, path)))
    return drawn


def _save(figure, path):
    import matplotlib.pyplot as plt

    write_whole(path, partial(figure.savefig, dpi=150))
    plt.close(figure)


def _report_figure(entry, row, caption, chosen, path):
    live = [row.interactive(result) for result in chosen.values()] if row.interactive else []
    return Figure(
        name=row.name,
        title=row.title,
        caption=caption,
        paper=entry.paper,
        alt=f"{row.title}. {caption}",
        png=path,
        results=[f"results/{one.name}.nc" for one in row.measurements.values()],
        interactive=live,
    )
