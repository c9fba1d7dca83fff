"""Raghu et al. 2021, section 4: how similar are the representations of layers?"""

from dataclasses import replace

import numpy as np

from ...engine.estimates import Sample, bootstrap, difference, lower, normal, upper
from ...engine.results import expect_variable
from ...plots.interactive import cka_heatmap
from ...plots.similarity import plot_cka, plot_matches
from ...similarity.cka import cka_statistic
from ...similarity.counterparts import own_matches
from ...study.figure import Figure, each, pairs
from ...study.judge import finding
from ...study.measurement import quantity, statistic
from ...study.models import representations
from ..chapters import STRUCTURE
from . import RAGHU


def cka_of(model):
    """Similarity of all representations of a model."""
    taps = representations(model.taps)
    if len(taps) < 2:
        model.lacks("two layers to compare")
    return statistic("cka", model, taps, cka_statistic)


def cka_of_two(one, other):
    """Similarity of all representations of two models."""
    taps = [representations(model.taps) for model in (one, other)]
    return statistic("cka", (one, other), taps, cka_statistic)


def cka_of_trainings(seed):
    """Similarity of the layers of two trainings of a model."""
    return cka_of_two(seed.of, seed)


@finding("cka.{vit} cka.{resnet}", section="4", figure="1", unit="difference in CKA", above=0)
def uniform_structure(vit, resnet):
    """Lower and upper layers are more alike in the ViT than in the ResNet.

    Mean CKA between lower and upper half, ViT minus ResNet.

    Against 0 (section 4, figure 1).

    Args:
        vit, resnet: Dataset cka(layer_x, layer_y) of each model's layers among themselves.
    """
    return difference(
        *(between_halves(*cka_values(result)) for result in (vit, resnet)), over="layers"
    )


@finding("cka.{vit}.{resnet}", section="4", figure="2", unit="share of depth", below=0.5)
def early_correspondence(cross):
    """The lower half of the ResNet maps to a smaller share of the ViT.

    Share of the ViT's depth in which the best match of each lower ResNet layer lies.

        share = 2 mean over the lower ResNet layers of (best ViT layer + 1/2) / ViT layers

    which is s for layers that map evenly to the first s of the ViT. Against 1/2, the ResNet's own
    share: models that represent alike at like depth (section 4, figure 2). The bootstrap leaves
    out the noise of CKA itself, which can move a best match between layers that are all but equal.

    Args:
        cross: Dataset cka(layer_x, layer_y), the ViT's layers along x, the ResNet's along y.
    """
    cka = expect_variable(cross, "cka", ("layer_x", "layer_y")).values
    depth = (cka.argmax(axis=0) + 0.5) / len(cka)
    return bootstrap(lambda x: 2 * x.mean(), lower(depth), over="ResNet layers")


@quantity("cka.{model}", unit="CKA")
def halves_alike(result):
    """Likeness of lower and upper layers.

    Mean CKA between the layers of the lower half of a model and those of its upper half: 1 where
    all represent images alike.
    """
    halves = between_halves(*cka_values(result))
    how = "at most the mean of the single values' own"
    if not halves.known:
        return bootstrap(np.mean, halves.values, over="layers")
    return normal(halves.values.mean(), halves.stderr.mean(), how)


@quantity("cka.{model}.{other}", unit="CKA")
def last_layers_alike(result):
    """Likeness of the last layers of two models.

    CKA between the last layer of one and the last of the other, their scores apart: 1 where both
    represent images alike up to a rotation and a scale.
    """
    cka, stderr = (values[-1, -1] for values in cka_values(result))
    return normal(cka, stderr, "jackknife over batches")


@quantity("cka.{model}.{other}", unit="CKA")
def best_matches(result):
    """Likeness of the layers of two models where they are most alike.

    Mean over the layers of the first model of the CKA with the layer of the second that is most
    like each.
    """
    cka = cka_values(result)[0]
    return bootstrap(np.mean, cka.max(axis=1), over="layers")


def cka_values(result):
    """CKA and its standard errors, NaN where unknown, of shape (layer_x, layer_y)."""
    dims = ("layer_x", "layer_y")
    cka = expect_variable(result, "cka", dims)
    return cka.values, result.get("stderr", cka * np.nan).transpose(*dims).values


def between_halves(cka, stderr):
    """Mean CKA of each layer of the lower half with those of the upper half but itself."""
    count = len(cka)
    if count < 2:
        raise ValueError(f"Expected at least two layers. Received: {count}")
    halves = lower(np.arange(count)), upper(np.arange(count))
    others = [[j for j in halves[1] if j != i] for i in halves[0]]
    means = [
        (cka[i, js].mean(), stderr[i, js].mean()) for i, js in zip(halves[0], others, strict=True)
    ]
    return Sample(*np.array(means).T)


def count_matches(models, results):
    """The caption of `plot_matches`, with how many layers find their counterpart."""
    (result,) = results.values()
    own, layers = own_matches(result)
    return (
        "Each mark is the layer of the second training that is most like the layer of its column: "
        f"{own} of {layers} layers find their own counterpart, on the diagonal. A measure of "
        "similarity that can be trusted finds most (Kornblith et al. 2019, section 6.1)."
    )


ONE_MODEL = (
    "Each cell compares two layers on the same images, from the input at the lower left to "
    "the output: bright blocks are layers that represent images alike, and a dark band "
    "between two blocks is a place where the representation changes."
)
TWO_MODELS = (
    "Each column is a layer of the first model and each row one of the second: the "
    "brightest cell of a column is where in its depth the second model comes closest."
)

FIGURE_1 = Figure(
    paper=RAGHU,
    numbers="1 B.1",
    chapter=STRUCTURE,
    shows="similarity of a model's layers",
    models=each("vit", "gap", "resnet"),
    measure=cka_of,
    draw=plot_cka,
    interactive=cka_heatmap,
    name="cka-{model}",
    title="Similarity of the layers of {model}",
    caption=ONE_MODEL,
    findings=[uniform_structure],
    quantities=[halves_alike],
)

FIGURE_2 = Figure(
    paper=RAGHU,
    numbers="2",
    chapter=STRUCTURE,
    shows="similarity of a ViT's and a ResNet's layers",
    models=pairs(("vit", "gap"), ("resnet",)),
    measure=cka_of_two,
    draw=plot_cka,
    interactive=cka_heatmap,
    name="cka-{model}-{other}",
    title="Similarity of {model} and {other}",
    caption=TWO_MODELS,
    findings=[early_correspondence],
    quantities=[last_layers_alike, best_matches],
)

FIGURE_H1 = replace(
    FIGURE_1,
    numbers="H.1",
    shows="similarity of an MLP-Mixer's layers",
    models=each("mixer", anyone="Figure 1 shows it for every model."),
    findings=(),
    quantities=(),
)

FIGURE_H2 = replace(
    FIGURE_2,
    numbers="H.2",
    shows="similarity of an MLP-Mixer's layers and those of others",
    models=pairs(("mixer",), ("vit", "resnet"), anyone="Figure 2 shows it for every model."),
    findings=(),
    quantities=(),
)

SANITY = Figure(
    paper=RAGHU,
    numbers="sanity",
    chapter=STRUCTURE,
    shows="layers of two trainings from different seeds",
    models=each("seed", anyone=False),
    measure=cka_of_trainings,
    draw=plot_matches,
    name="seeds-{model}",
    title="{of}, trained twice from different first weights",
    caption=count_matches,
)
