"""One figure of a paper as a row of a table, and the sections of a report."""

from collections.abc import Callable
from dataclasses import dataclass

from . import needs
from .papers import ABNAR, DOSOVITSKIY, RAGHU, WALMER

SECTIONS = {
    "structure": (
        "Representation structure",
        "How similar are the representations of a model's layers, and those of two models? Section "
        "4 of Raghu et al. finds ViTs uniform through their depth and ResNets divided into stages.",
    ),
    "locality": (
        "Local and global information",
        "How far does a layer look? Section 5 of Raghu et al. finds heads of every reach in the "
        "lowest ViT layers, where ResNets are local by construction.",
    ),
    "embeddings": (
        "Patches and positions",
        "What does the first layer see of a patch, and how does it know where the patch lies? "
        "Section 4.5 of Dosovitskiy et al. finds filters like the waves of a picture's fine "
        "structure, and positions that have learned the rows and columns of the image.",
    ),
    "skips": (
        "Skip connections",
        "What passes through the skips, and what through the branches? Section 6 of Raghu et "
        "al. finds the skips of ViTs more influential than those of ResNets.",
    ),
    "localization": (
        "Spatial information",
        "Does a token still know its place in the image after the last block? Section 7 of Raghu "
        "et al. finds that those of ViTs do, those trained with a CLS token most of all.",
    ),
    "probes": (
        "Linear probes",
        "How much of the label can be read off each layer by a linear map that is fitted on a few "
        "images of each class?",
    ),
    "classes": (
        "Neighbours and clusters",
        "Do images of a class lie close together in the features as they are, with nothing fitted? "
        "Sections 5.2 and 6.1 of Walmer et al. find this to come late in supervised ViTs. Grey "
        "lines are baselines: the same model before any training, and noise in its place.",
    ),
    "objects": (
        "Objects and parts",
        "Does attention find the object in an image, and do the tokens under a mask tell what it "
        "is? Sections 4.4 and 5.3 of Walmer et al. find objects early in every ViT. Grey lines are "
        "baselines: the same model before any training, and noise in its place.",
    ),
    "tasks": (
        "Videos, keypoints and retrieval",
        "Do features find the same thing again, in the next frame or in another image? Section 6 "
        "of Walmer et al. finds layers before the last to be best where places count. Grey lines "
        "are baselines: the same model before any training, and noise in its place.",
    ),
    "scale": (
        "Data and transfer",
        "What does a model need more data for, and what does fine-tuning change? Section 8 and "
        "appendix G of Raghu et al. find that lower layers are learned from little data and keep "
        "what they have learned.",
    ),
}


# What a figure may need besides labelled test images: fields of `measure.Data`, and words for them.
READS = {
    "gallery": "training images to look for neighbours among",
    "objects": "images with masks of objects",
    "parts": "images with masks of parts of objects",
    "videos": "videos with masks of objects",
    "pairs": "pairs of images with keypoints",
    "landmarks": "queries and images to retrieve from",
}
# How the numbers of the figures of other papers than the first begin.
PAPERS = {"W.": WALMER, "V.": DOSOVITSKIY, "rollout": ABNAR}


@dataclass(frozen=True)
class Entry:
    """One figure of a paper, as a row of the table.

    Attributes:
        numbers: the figures it answers to; each chooses it. Those of Raghu et al. 2021 as they are;
            of Walmer et al. 2023 as `"W.3"`, a table as `"W.T6"`; of Dosovitskiy et al. 2020 as
            `"V.7"`.
        section: key of `SECTIONS`.
        title: what it shows.
        roles: the parts of the models it needs; `subjects.Subject` tells them.
        rows: function of the models under study to its `Row`s.
        lacks: function of a model without a part to the words for what it lacks; from `needs`.
        together: the same of all of those that lack nothing.
        reads: key of `READS` for what it needs besides test images; empty for nothing.
    """

    numbers: tuple[str, ...]
    section: str
    title: str
    roles: tuple[str, ...]
    rows: Callable
    lacks: Callable = needs.nothing
    together: Callable = needs.nothing
    reads: str = ""

    @property
    def source(self):
        """Name and address of the paper."""
        return _paper(self.numbers[0])

    @property
    def paper(self):
        """The figures and tables of the paper, in words; empty for what is not in it."""
        own = [number for number in self.numbers if _paper(number) == self.source]
        own = [number.removeprefix("W.").removeprefix("V.") for number in own]
        tables = [number[1:] for number in own if number.startswith("T")]
        figures = [number for number in own if number[-1].isdigit() and number[0] != "T"]
        both = _listed("Figure", figures), _listed("Table", tables)
        return " and ".join(filter(None, both))


def _paper(number):
    found = (paper for start, paper in PAPERS.items() if number.startswith(start))
    return next(found, RAGHU)


def _listed(word, numbers):
    if not numbers:
        return ""
    *first, last = numbers
    plural = "s" if first else ""
    return f"{word}{plural} {' and '.join(filter(None, [', '.join(first), last]))}"
