"""Davari et al. 2022: "Reliability of CKA as a Similarity Measure in Deep Learning"."""

from collections.abc import Iterable
from typing import cast

import numpy as np
import xarray as xr

from vit_tf.common.names import join_words

from ..plots.similarity_plots import plot_cka_sensitivity
from ..similarity.cka_sensitivity import COMPONENT, IMAGES, PIXELS, cka_sensitivity
from .chapters import STRUCTURE
from .vocabulary import (
    Figure,
    Paper,
    Results,
    SharedPass,
    StudyModel,
    each,
    expect_variable,
    statistic,
)

DAVARI = Paper("Davari et al. (2022)", "https://arxiv.org/abs/2210.16156", prefix="Dv.", rank=5)
LARGE_CHANGE = 0.1  # of CKA, in half of the pairs of layers: another reading of the map
PARTS = {
    IMAGES: "the 2 % most influential images",
    COMPONENT: "the first principal component",
    PIXELS: "what the pixels explain",
}


def sensitivity_of(model: StudyModel) -> SharedPass:
    """CKA of the representations of a model, and without parts of them."""
    taps = model.layers("representations")
    model.require(len(taps) >= 2, "pair of layers to compare")
    return statistic(cka_sensitivity, model, taps)


def changed_readings(result: xr.Dataset) -> str:
    """Sentences on the parts without which half of the pairs of layers have another CKA."""
    dims = ("layer_x", "layer_y")
    cka = expect_variable(result, "cka", dims).values
    pairs = np.triu_indices(len(cka), 1)
    changed, same = [], []
    for part, words in PARTS.items():
        without = expect_variable(result, "without", ("part", *dims)).sel(part=part).values
        change = np.median(np.abs(without - cka)[pairs])
        if change > LARGE_CHANGE:
            before, after = cka[pairs].mean(), without[pairs].mean()
            changed.append(f"{words} ({before:.2f} on average, {after:.2f} without)")
        elif np.isfinite(change):
            same.append(words)
    sentences = []
    if changed:
        sentences.append(f"Warning: CKA depends on {join_words(changed)}.")
    if same:
        sentences.append(f"It hardly changes without {join_words(same)}.")
    return " ".join(sentences)


def reading_of(models: list[StudyModel], results: Results) -> str:
    """The caption: how to read the panels, and what CKA depends on."""
    return " ".join(
        [
            "The first panel is the CKA of pairs of layers. Each of the other panels is the CKA "
            "without one part of the representations. Its title states the part's share of HSIC.",
            *map(changed_readings, cast(Iterable[xr.Dataset], results.values())),
        ]
    )


def unchanged_reading(results: dict[str, xr.Dataset]) -> str | None:
    """The sentence that replaces a picture with equal panels; None if panels differ."""
    readings = [changed_readings(result) for result in results.values()]
    if any(reading.startswith("Warning") for reading in readings):
        return None
    return " ".join(dict.fromkeys(readings)).replace("It hardly", "CKA hardly")


SENSITIVITY = Figure(
    paper=DAVARI,
    numbers="sensitivity",
    chapter=STRUCTURE,
    shows="what CKA depends on: a few images, one component, the pixels",
    models=each("vit", "gap", "resnet"),
    measure=sensitivity_of,
    results="cka_sensitivity",
    draw=plot_cka_sensitivity,
    name="cka-sensitivity-{model}",
    title="What CKA depends on",
    caption=reading_of,
    instead=unchanged_reading,
)
