"""Walmer et al. 2023, section 6 and table 6: neighbours, probes, retrieval, videos, keypoints."""

from collections.abc import Callable
from functools import partial
from typing import cast

import numpy as np
import xarray as xr

from ...objects.keypoints import keypoint_correspondence
from ...objects.propagation import label_propagation
from ...plots.probe_plots import (
    plot_best_layers,
    plot_keypoint_correspondence,
    plot_knn_accuracy,
    plot_label_propagation,
    plot_linear_probe,
    plot_retrieval,
)
from ...probes.knn import knn_accuracy
from ...probes.linear_probe import fit_linear_probe
from ...probes.retrieval import retrieval
from ..chapters import CLASSES, PROBES, TASKS
from ..vocabulary import (
    BASELINES,
    DATA,
    Claim,
    Data,
    Estimate,
    Figure,
    Measurement,
    MeasureModel,
    Pooled,
    SharedPass,
    StudyModel,
    accuracy_of,
    between,
    claim,
    descriptive,
    expect_array,
    expect_variable,
    layer_names,
    mean_over,
    minus,
    quantity,
    share_of,
    statistic,
    task,
    together,
    unpack_correct,
)
from . import WALMER
from .section5_clusters import (
    ALL,
    OF_SUMMARY,
    WITH_VARIANTS,
    blocks_of,
    pooled_of,
    summarised,
    summary,
)


def knn_accuracy_of(model: StudyModel) -> SharedPass:
    """Accuracy of k-NN classification."""
    pooled = pooled_of(model, summary(model))
    return statistic(
        "knn_accuracy",
        model,
        pooled.taps[0],
        lambda features, tested, data: knn_accuracy.statistic(features, tested, data.num_classes),
        reads="gallery",
        inputs=(pooled, DATA),
        view=pooled.view,
    )


def linear_probe_of(model: StudyModel) -> Measurement:
    """Accuracy of softmax classifiers trained by gradient descent on every layer."""
    words = ("cls", "spatial") if model.has_cls else ("all",)
    inputs = [pooled_of(model, tokens, reads) for reads in ("gallery", "test") for tokens in words]
    layers = summarised(model, words[0])

    def make(data: Data, *pooled: Pooled) -> xr.DataArray:
        fitted, tested = pooled[: len(words)], pooled[len(words) :]
        num_classes = cast(int, data.num_classes)  # as the data are labelled
        return fit_linear_probe(model, fitted, tested, num_classes, layers=layers)

    return task("linear_probe", model, make, reads="gallery", inputs=(DATA, *inputs))


def retrieval_of(model: StudyModel) -> Measurement:
    """Mean average precision of image retrieval."""
    tokens = summary(model)

    def make(data: Data) -> xr.Dataset:
        features = model.select(*summarised(model, tokens))
        return retrieval(features, *data.read("landmarks"), tokens=tokens)

    return task("retrieval", model, make, reads="landmarks", inputs=(DATA,))


@claim(
    "knn_accuracy.{vit}",
    "section 6.3, Figure 9 left",
    "difference in accuracy",
    effect="above",
    least=0.01,
)
def knn_last_best(neighbours: xr.DataArray) -> Estimate:
    """The last layer is the best for k-NN classification.

    Top-1 accuracy of the last layer minus top-1 accuracy of the best layer before it.

    To avoid selection bias, the best layer is chosen on one half of the images (every second image)
    and scored on the other half, and vice versa.
    """
    accuracy = top_one(neighbours)
    if len(accuracy) < 2:
        raise ValueError(f"Expected at least two layers. Received: {len(accuracy)}")
    if "correct" not in accuracy.coords:
        gap = accuracy.values[-1] - accuracy.values[:-1].max()
        return descriptive(gap, "An interval needs which images are classified correctly")
    *others, last = unpack_correct(accuracy["correct"], int(neighbours.attrs["examples"]))
    return minus(share_of(last), share_of(score_best_layer(np.array(others))))


@claim(
    "knn_accuracy.{larger} knn_accuracy.{vit}",
    "appendix E.2, Figure 28",
    "difference in accuracy",
    effect="above",
    least=0.01,
)
def larger_is_better(larger: xr.DataArray, vit: xr.DataArray) -> Estimate:
    """Larger architectures tend to give better features.

    Top-1 k-NN accuracy of the last layer: the value for the larger ViT minus the value for the
    smaller ViT.
    """
    return between(last_knn.estimator(larger), last_knn.estimator(vit))


@claim(
    "linear_probe.{masked}",
    "appendix E.4, Table 6 (MAE)",
    "difference in accuracy",
    effect=0.0249,
    least=0.01,
)
def masked_spatial_better_than_cls(probes: xr.DataArray) -> Estimate:
    """In ViTs trained by reconstruction, spatial features are better for probes than CLS.

    Test accuracy of linear probes on the last layer, without batch normalization: the value for the
    mean of the spatial tokens minus the value for the CLS token.

    The interval is binomial and treats the two accuracies as independent.
    """
    last = expect_array(probes, ("layer", "tokens", "batch_norm")).isel(layer=-1)
    last = last.sel(batch_norm=False)
    values = [last.sel(tokens=tokens).item() for tokens in ("spatial", "cls")]
    return minus(*(accuracy_of(value, probes.attrs["examples"]) for value in values))


def score_best_layer(scores: np.ndarray) -> np.ndarray:
    """Scores (unit,) of the best layer of (layer, unit), which is chosen on every other unit."""
    held_out = np.empty_like(scores[0])
    for start in (0, 1):
        best = scores[:, start::2].mean(axis=1).argmax()
        held_out[1 - start :: 2] = scores[best, 1 - start :: 2]
    return held_out


def top_one(neighbours: xr.DataArray) -> xr.DataArray:
    """Top-1 accuracy of each block, of the first number of neighbours."""
    accuracy = expect_array(neighbours, ("layer", "k", "top")).sel(top=1).isel(k=0)
    return blocks_of(accuracy)


@quantity(
    "knn_accuracy.{model}", unit="accuracy", more="has a higher k-NN accuracy in its last layer"
)
def last_knn(neighbours: xr.DataArray) -> Estimate:
    """k-NN accuracy of the last layer.

    Top-1 test accuracy of k-NN classification on the features of the last layer.
    """
    accuracy, examples = top_one(neighbours), int(neighbours.attrs["examples"])
    correct = None
    if "correct" in accuracy.coords:
        correct = unpack_correct(accuracy["correct"][-1], examples)
    return accuracy_of(accuracy.values[-1], examples, correct)


FIGURE_9 = Figure(
    paper=WALMER,
    numbers="9 28",
    chapter=CLASSES,
    shows="k-NN classification",
    models=together(*WITH_VARIANTS, baselines=BASELINES),
    measure=knn_accuracy_of,
    results="knn_accuracy",
    draw=plot_knn_accuracy,
    name="knn-top-1",
    call='analysis.knn_accuracy({model}, train, images, detail="blocks")',
    title="Top-1 k-NN accuracy by layer",
    caption=(
        "Each point is the test accuracy of k-NN classification with k = 20 and cosine similarity "
        f"on features {OF_SUMMARY}."
    ),
    claims=[knn_last_best, larger_is_better],
    quantities=[last_knn],
)

FIGURE_28 = FIGURE_9.variant(
    draw=partial(plot_knn_accuracy, top=5),
    name="knn-top-5",
    show="analysis.plots.plot_knn_accuracy(results, top=5)",
    title="Top-5 k-NN accuracy by layer",
)

TABLE_6 = Figure(
    paper=WALMER,
    numbers="T6",
    chapter=PROBES,
    shows="linear probes trained by gradient descent",
    models=together(*ALL, "masked"),
    measure=linear_probe_of,
    results="linear_probe",
    draw=plot_linear_probe,
    name="linear-probe",
    call='analysis.linear_probe({model}, train, images, detail="blocks")',
    title="Accuracy by layer of linear probes trained by gradient descent",
    caption=(
        "Each point is the test accuracy of a softmax classifier trained for 20 epochs on frozen "
        "features, with or without batch normalization: the CLS token or the mean over the other "
        "tokens; without CLS, the mean over all tokens or positions."
    ),
    claims=[masked_spatial_better_than_cls],
)

FIGURE_29 = Figure(
    paper=WALMER,
    numbers="9 29",
    chapter=TASKS,
    shows="image retrieval",
    models=together(*ALL, baselines=BASELINES),
    measure=retrieval_of,
    results="retrieval",
    draw=plot_retrieval,
    name="retrieval",
    call='analysis.retrieval({model}, queries, database, truth, detail="blocks")',
    title="Image retrieval by layer",
    caption=(
        "Each point is the mean average precision of retrieval by the similarity of features "
        f"{OF_SUMMARY}: 1 if all images of the queried instance rank first."
    ),
)


def _task_on_square_grid(
    model: StudyModel, analysis: str, measure: Callable[..., xr.Dataset], reads: str
) -> Measurement:
    """A measurement of tokens that correspond, for models with a square grid."""
    taps = model.layers("tokens", "blocks")
    grid = model.require_grid()
    model.require(grid.rows == grid.columns, "square grid")

    def make(data: Data) -> xr.Dataset:
        return measure(model.select(*taps), data.read(reads), model.grid)

    return task(analysis, model, make, reads=reads, inputs=(DATA,))


propagation_of = partial(
    _task_on_square_grid, analysis="propagation", measure=label_propagation, reads="videos"
)
keypoints_of = partial(
    _task_on_square_grid, analysis="keypoints", measure=keypoint_correspondence, reads="pairs"
)


def _above_chance(task: xr.Dataset, untrained: xr.Dataset) -> Estimate:
    """Score minus the higher of that of the untrained model and of positions alone, by unit."""
    (scores, over), (fresh, _) = task_scores(task), task_scores(untrained)
    if scores.shape != fresh.shape:
        raise ValueError(
            "Expected scores of the same layers and data. "
            f"Received: shapes {scores.shape} and {fresh.shape}"
        )
    chances = [fresh.mean("layer").values]
    # Those of the keypoint's own position, or of the first mask.
    if "pck_in_place" in task:
        place = task["pck_in_place"].sel(average="point").sel(threshold=0.1, method="nearest")
        chances.append(place.values)
    elif "region_in_place" in task:
        score = (task["region_in_place"] + task["boundary_in_place"]) / 2
        chances.append(score.groupby("video").mean().values)
    return mean_over(scores.mean("layer").values - max(chances, key=np.mean), over)


def _before_last(task: xr.Dataset) -> Estimate:
    scores, over = task_scores(task)
    places = np.arange(scores.sizes["layer"])
    return _better_group(scores.values, places[:-1], places[-1:], over)


def _mid_to_late(task: xr.Dataset) -> Estimate:
    scores, over = task_scores(task)
    count = scores.sizes["layer"]
    places = np.arange(count)
    return _better_group(scores.values, places[(count + 1) // 2 :], places[: count // 2], over)


def _smaller_patches(finer: xr.Dataset, vit: xr.Dataset) -> Estimate:
    (scores, over), (others, _) = task_scores(finer), task_scores(vit)
    if scores.sizes["unit"] != others.sizes["unit"]:
        raise ValueError(
            f"Expected scores of the same {over}. "
            f"Received: {scores.sizes['unit']} and {others.sizes['unit']}"
        )
    both = np.concatenate([scores.values, others.values], axis=1)
    places, count = np.arange(both.shape[1]), scores.sizes["layer"]
    return _better_group(both, places[:count], places[count:], over)


def _task_claims(
    result: str,
    *,
    figure: str,
    appendix_figure: str,
    score: str,
    task: str,
    units: str,
    measure: str,
    positions: str,
) -> list[Claim]:
    """The claims of section 6.2 about a task, with the words for its score and what it is over.

    To avoid selection bias, a best layer is chosen on every second unit and scored on the others,
    and vice versa. The middle of an odd number of layers is in neither half.
    """
    task_claim = partial(
        claim,
        place=f"section 6.2, Figure {figure}",
        unit=f"difference in {score}",
        effect="above",
        least=0.02,
    )
    name, inputs = {"propagation": "videos"}.get(result, result), f"{result}.{{vit}}"
    above_chance = task_claim(
        f"{inputs} {result}.{{untrained}}",
        beyond_untrained=False,
        name=f"{name}-above-chance",
        text=(
            f"Spatial tokens score above chance in {task}.",
            f"{measure}, averaged over layers, minus the higher value of two baselines: the "
            f"untrained model and {positions}.",
        ),
    )(_above_chance)
    before_last = task_claim(
        inputs,
        name=f"{name}-before-last",
        text=(
            f"A layer before the last is best for {task}.",
            f"{measure} of the best layer before the last, which is chosen on other {units}, minus "
            f"{measure} of the last layer.",
        ),
    )(_before_last)
    mid_to_late = task_claim(
        inputs,
        name=f"{name}-mid-to-late",
        text=(
            f"A mid-to-late layer is best for {task}.",
            f"{measure} of the best layer of the upper half minus {measure} of the best layer of "
            f"the lower half. Both layers are chosen on other {units}.",
        ),
    )(_mid_to_late)
    smaller_patches = claim(
        f"{result}.{{finer}} {inputs}",
        place=f"appendix E.2, Figure {appendix_figure}",
        unit=f"difference in {score}",
        effect="above",
        least=0.02,
        name=f"{name}-smaller-patches",
        text=(
            f"ViTs with smaller patches are better at {task}.",
            f"{measure} of the best layer of the ViT with smaller patches minus {measure} of the "
            f"best layer of the ViT with larger patches. Both layers are chosen on other {units}.",
        ),
    )(_smaller_patches)
    return [above_chance, before_last, mid_to_late, smaller_patches]


@claim(
    "keypoints.{vit} knn_accuracy.{vit}",
    "section 6.3, Figure 10 right",
    "difference in PCK",
    effect="above",
    least=0.02,
)
def no_single_layer(task: xr.Dataset, neighbours: xr.DataArray) -> Estimate:
    """No single layer is best for all tasks: the best layers for k-NN and keypoints differ.

    PCK at 0.1 of a competing layer minus PCK at 0.1 of the layer with the highest k-NN accuracy.
    The competing layer is the one with the highest PCK among all layers except the k-NN layer.

    The competing layer is chosen on one half of the categories and scored on the other half. The
    interval does not include the uncertainty about which layer is best for k-NN.
    """
    accuracy = top_one(neighbours)
    best = str(accuracy["layer"].values[accuracy.values.argmax()])
    scores, over = task_scores(task)
    names = layer_names(scores)
    if best not in names:
        raise ValueError(f"Expected a score of layer {best}. Received: {', '.join(names)}")
    places, at = np.arange(len(names)), names.index(best)
    return _better_group(scores.values, np.delete(places, at), places[[at]], over)


def task_scores(task: xr.Dataset) -> tuple[xr.DataArray, str]:
    """Scores of dims (unit, layer), and what the units are: videos, or categories of keypoints."""
    if "pck" in task:
        scores = task["pck"].sel(average="point").sel(threshold=0.1, method="nearest")
        return blocks_of(scores.rename(category="unit").transpose("unit", "layer")), "categories"
    score = (expect_variable(task, "region", ("object", "layer")) + task["boundary"]) / 2
    scores = score.groupby("video").mean().rename(video="unit")
    return blocks_of(scores.transpose("unit", "layer")), "videos"


def _better_group(
    scores: np.ndarray, first_layers: np.ndarray, other_layers: np.ndarray, over: str
) -> Estimate:
    """Score (unit, layer) of the best of some layers minus of others, chosen on other units."""
    if len(scores) < 2 or not len(first_layers) or not len(other_layers):
        raise ValueError(f"Expected two {over} and two layers. Received: shape {scores.shape}")
    first, other = (score_best_layer(scores.T[layers]) for layers in (first_layers, other_layers))
    return mean_over(first - other, over)


FIGURE_10_VIDEOS = Figure(
    paper=WALMER,
    numbers="10 30",
    chapter=TASKS,
    shows="video object segmentation by mask propagation",
    models=together(*ALL, "finer", baselines=BASELINES),
    measure=propagation_of,
    results="propagation",
    draw=plot_label_propagation,
    name="propagation",
    call='analysis.label_propagation({model}, videos, detail="blocks")',
    title="Video object segmentation by layer",
    caption=(
        "Each point is the J&F score, the mean of region similarity J and boundary accuracy F. The "
        "scored masks are propagated from the first frame to all other frames by token similarity "
        "alone."
    ),
    claims=_task_claims(
        "propagation",
        figure="10 left",
        appendix_figure="30",
        score="J&F",
        task="video object segmentation",
        units="videos",
        measure="J&F score",
        positions="a copy of the first mask",
    ),
)

FIGURE_10_KEYPOINTS = FIGURE_10_VIDEOS.variant(
    numbers="10 31",
    shows="keypoint correspondence",
    measure=keypoints_of,
    results="keypoints",
    draw=plot_keypoint_correspondence,
    name="keypoints",
    call='analysis.keypoint_correspondence({model}, pairs, detail="blocks")',
    title="Keypoint correspondence by layer",
    caption=(
        "Each point is PCK at 0.1, the share of correct keypoints. A keypoint is correct if its "
        "most similar position in the other image lies near the same keypoint: at a distance of at "
        "most a tenth of the side of the other image."
    ),
    claims=[
        *_task_claims(
            "keypoints",
            figure="10 right",
            appendix_figure="31",
            score="PCK",
            task="keypoint correspondence",
            units="categories",
            measure="PCK at 0.1",
            positions="the same position in the other image",
        ),
        no_single_layer,
    ],
)


def best_layer(result: xr.DataArray | xr.Dataset) -> xr.Dataset:
    """Best layer for a task and its score, of the task's result, as a row of tables 1 and 5."""
    if "average_precision" in result:
        # As in table 1, queries of medium difficulty, where there are some.
        words = [str(word) for word in result["difficulty"].values]
        asked = dict(zip(words, result["asked"].values, strict=True))
        word = "medium" if asked.get("medium") else next(word for word in words if asked[word])
        scores = expect_variable(result, "average_precision", ("layer", "difficulty", "query"))
        scores = blocks_of(scores.sel(difficulty=word, drop=True).rename(query="unit"))
        return best_of_scores(scores.dropna("unit"), "queries")
    if isinstance(result, xr.Dataset):
        return best_of_scores(*task_scores(result))
    accuracy = top_one(result)
    correct = unpack_correct(accuracy["correct"], int(result.attrs["examples"]))
    coords = {"layer": layer_names(accuracy)}
    return best_of_scores(xr.DataArray(correct, coords, ("layer", "unit")), "images")


def best_of_scores(scores: xr.DataArray, over: str) -> xr.Dataset:
    """The same from scores, or truth values, of dims (unit, layer) over units such as "videos".

    The layer is chosen by the mean over all units; its score and interval are those of layers that
    are chosen on every other unit and scored on the rest, and vice versa.
    """
    values = scores.transpose("layer", "unit").values
    if min(values.shape) < 2:
        raise ValueError(f"Expected two {over} and two layers. Received: shape {values.shape}")
    held_out = score_best_layer(values)
    measured = share_of(held_out) if values.dtype == bool else mean_over(held_out, over)
    number = int(values.mean(axis=1).argmax())
    low, high = measured.interval or (np.nan, np.nan)
    data = {"best_score": measured.value, "low": low, "high": high}
    coords = {"best_layer": layer_names(scores)[number], "number": number + 1}
    facts = {"layers": len(values), "units": values.shape[1], "over": over}
    return xr.Dataset(data, coords, facts)


def best_layer_of(model: StudyModel, measure: MeasureModel) -> Measurement:
    """The best layer of a model for a task, of its measurement."""
    measurement = measure(model)
    name = f"best_{measurement.name.partition('.')[0]}"
    return task(name, model, best_layer, inputs=(measurement,))


TABLE_1 = Figure(
    paper=WALMER,
    numbers="T1 T5",
    chapter=CLASSES,
    shows="best layer and best score for k-NN classification",
    models=together(*WITH_VARIANTS, baselines=("untrained",)),
    measure=partial(best_layer_of, measure=knn_accuracy_of),
    results="best_knn_accuracy",
    draw=plot_best_layers,
    name="best-layer-knn",
    imports="from vit_tf.analysis.papers.walmer.section6_tasks import best_layer",
    call='best_layer(analysis.knn_accuracy({model}, train, images, detail="blocks"))',
    title="Best layer for k-NN classification",
    caption=(
        "Each point is the top-1 accuracy of a model's best layer, with its 95 % CI. The number "
        "is the index of this layer, which is chosen on one half of the images and scored on the "
        "other half."
    ),
)

TABLE_1_RETRIEVAL = TABLE_1.variant(
    chapter=TASKS,
    shows="best layer and best score for retrieval, videos and keypoints",
    measure=partial(best_layer_of, measure=retrieval_of),
    results="best_retrieval",
    name="best-layer-retrieval",
    call='best_layer(analysis.retrieval({model}, queries, database, truth, detail="blocks"))',
    title="Best layer for image retrieval",
    caption=(
        "Each point is the mean average precision of a model's best layer, with its 95 % CI. The "
        "layer is chosen on one half of the queries and scored on the other half."
    ),
)

TABLE_1_VIDEOS = TABLE_1_RETRIEVAL.variant(
    measure=partial(best_layer_of, measure=propagation_of),
    results="best_propagation",
    name="best-layer-videos",
    call='best_layer(analysis.label_propagation({model}, videos, detail="blocks"))',
    title="Best layer for video object segmentation",
    caption=(
        "Each point is the J&F score of a model's best layer, with its 95 % CI. The layer is "
        "chosen on one half of the videos and scored on the other half."
    ),
)

TABLE_1_KEYPOINTS = TABLE_1_RETRIEVAL.variant(
    measure=partial(best_layer_of, measure=keypoints_of),
    results="best_keypoints",
    name="best-layer-keypoints",
    call='best_layer(analysis.keypoint_correspondence({model}, pairs, detail="blocks"))',
    title="Best layer for keypoint correspondence",
    caption=(
        "Each point is PCK at 0.1 of a model's best layer, with its 95 % CI. The layer is chosen "
        "on one half of the categories and scored on the other half."
    ),
)
