"""Walmer et al. 2023, sections 6.1 and 6.3 and table 6: neighbours, probes and retrieval."""

from dataclasses import replace

import numpy as np

from ...engine.estimates import accuracy_of, descriptive, minus, require_above_chance
from ...engine.results import expect_array, unpack_correct
from ...plots.probe_plots import plot_knn_accuracy, plot_linear_probe, plot_retrieval
from ...probes.knn import knn_statistic
from ...probes.linear_probe import fit_linear_probe
from ...probes.retrieval import retrieval
from ...study.figure import Figure, together
from ...study.judge import finding
from ...study.measurement import DATA, quantity, statistic, task
from ...study.models import BASELINES
from ..chapters import CLASSES, PROBES, TASKS
from . import WALMER
from .section5_clusters import ALL, blocks_of, pooled_of, read_of, summarised, summary


def knn_accuracy_of(model):
    """Accuracy of k-NN classification."""
    pooled = pooled_of(model, summary(model))
    return statistic(
        "knn_accuracy",
        model,
        pooled.taps[0],
        lambda features, tested, data: knn_statistic(features, tested, data.num_classes),
        reads="gallery",
        inputs=(pooled, DATA),
    )


def linear_probe_of(model):
    """Accuracy of softmax classifiers trained by gradient descent on every layer."""
    words = ("cls", "spatial") if model.has_cls else ("all",)
    inputs = [pooled_of(model, tokens, reads) for reads in ("gallery", "test") for tokens in words]
    layers = summarised(model, words[0])

    def make(data, *pooled):
        fitted, tested = pooled[: len(words)], pooled[len(words) :]
        return fit_linear_probe(model, fitted, tested, data.num_classes, layers=layers)

    return task("linear_probe", model, make, reads="gallery", inputs=(DATA, *inputs))


def retrieval_of(model):
    """Mean average precision of image retrieval."""
    tokens = summary(model)

    def make(data):
        features = model.features(*summarised(model, tokens))
        return retrieval(features, *data.read("landmarks"), tokens=tokens)

    return task("retrieval", model, make, reads="landmarks", inputs=(DATA,))


@finding(
    "knn_accuracy.{vit}", section="6.3", figure="9 left", unit="difference in accuracy", above=0.0
)
def knn_last_best(neighbours):
    """The last layer is the best for k-NN classification.

    Top-1 accuracy of the last layer minus that of the best other layer, chosen on other images.

    Threshold 0 (section 6.3, table 1). To avoid selection bias, the best layer is chosen on every
    other image and scored on the rest, and vice versa.

    Args:
        neighbours: accuracy of dims (layer, k, top), the number of `examples` in the attributes,
            and as the coordinate `correct` which images are classified correctly.
    """
    accuracy = top_one_above_chance(neighbours)
    if len(accuracy) < 2:
        raise ValueError(f"Expected at least two layers. Received: {len(accuracy)}")
    if "correct" not in accuracy.coords:
        gap = accuracy.values[-1] - accuracy.values[:-1].max()
        return descriptive(gap, "an older file, without what each image is classified as")
    *others, last = unpack_correct(accuracy["correct"], int(neighbours.attrs["examples"]))
    return minus(*(accuracy_of(0, 0, correct) for correct in (last, best_of_layers(others))))


def best_of_layers(correct):
    """Which images the best layer classifies correctly, each half by the best layer of the other.

    Args:
        correct: truth values of shape (layer, example).
    """
    correct = np.asarray(correct)
    found = np.empty(correct.shape[1], bool)
    for start in (0, 1):
        best = correct[:, start::2].mean(axis=1).argmax()
        found[1 - start :: 2] = correct[best, 1 - start :: 2]
    return found


def top_one_above_chance(neighbours):
    """`top_one`; a `ValueError` where no layer is above chance: none is then the best."""
    accuracy = top_one(neighbours)
    require_above_chance(accuracy.max(), neighbours.attrs, "the best layer")
    return accuracy


def top_one(neighbours):
    """Top-1 accuracy of each block, of the first number of neighbours."""
    accuracy = expect_array(neighbours, ("layer", "k", "top")).sel(top=1).isel(k=0)
    return blocks_of(accuracy)


@quantity(
    "knn_accuracy.{model}",
    unit="accuracy",
    more="has a last layer with a higher k-NN accuracy",
)
def last_knn(neighbours):
    """k-NN accuracy of the last layer.

    Top-1 test accuracy of k-NN classification on the features of the last layer.
    """
    accuracy, examples = top_one(neighbours), int(neighbours.attrs["examples"])
    correct = None
    if "correct" in accuracy.coords:
        correct = unpack_correct(accuracy["correct"][-1], examples)
    return accuracy_of(accuracy.values[-1], examples, correct)


def plot_knn_top_5(results, baselines=()):
    """`plot_knn_accuracy` of the top-5 accuracy."""
    return plot_knn_accuracy(results, top=5, baselines=baselines)


def knn_caption(models, results):
    """The caption of `FIGURE_9`."""
    return (
        "Each point is the test accuracy of k-NN classification with k = 20 and cosine similarity "
        f"on features {read_of(models)}."
    )


def probe_caption(models, results):
    """The caption of `TABLE_6`."""
    read = "the mean over all tokens or positions"
    if any(model.has_cls for model in models):
        read = "the CLS token or the mean over other tokens"
    return (
        "Each point is the test accuracy of a softmax classifier trained for 20 epochs on frozen "
        f"features: {read}, with or without batch normalization."
    )


def retrieval_caption(models, results):
    """The caption of `FIGURE_29`."""
    return (
        "Each point is the mean average precision of retrieval by the similarity of features "
        f"{read_of(models)}: 1 if all images of the queried instance rank first."
    )


FIGURE_9 = Figure(
    paper=WALMER,
    numbers="9 28",
    chapter=CLASSES,
    shows="k-NN classification",
    models=together(*ALL, baselines=BASELINES),
    measure=knn_accuracy_of,
    draw=plot_knn_accuracy,
    name="knn-top-1",
    call="analysis.knn_accuracy({model}, train, images)",
    title="Top-1 k-NN accuracy by layer",
    caption=knn_caption,
    findings=[knn_last_best],
    quantities=[last_knn],
)

FIGURE_28 = replace(
    FIGURE_9,
    draw=plot_knn_top_5,
    name="knn-top-5",
    call="analysis.knn_accuracy({model}, train, images)",
    show="analysis.plot_knn_accuracy",
    title="Top-5 k-NN accuracy by layer",
    findings=(),
    quantities=(),
)

TABLE_6 = Figure(
    paper=WALMER,
    numbers="T6",
    chapter=PROBES,
    shows="linear probes trained by gradient descent",
    models=together(*ALL),
    measure=linear_probe_of,
    draw=plot_linear_probe,
    name="linear-probe",
    call="analysis.linear_probe({model}, train, images)",
    title="Accuracy by layer of linear probes trained by gradient descent",
    caption=probe_caption,
)

FIGURE_29 = Figure(
    paper=WALMER,
    numbers="9 29",
    chapter=TASKS,
    shows="image retrieval",
    models=together(*ALL, baselines=BASELINES),
    measure=retrieval_of,
    draw=plot_retrieval,
    name="retrieval",
    call="analysis.retrieval({model}, queries, database, truth)",
    title="Image retrieval by layer",
    caption=retrieval_caption,
)
