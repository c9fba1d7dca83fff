"""Dosovitskiy et al. 2020: "An Image is Worth 16x16 Words": amount of data, and first layer."""

from collections.abc import Sequence
from functools import partial
from typing import Any, cast

import numpy as np
import xarray as xr

from ..flow.embeddings import patch_filters, position_similarity
from ..plots.flow_plots import plot_patch_filters, plot_position_similarity
from ..plots.probe_plots import plot_accuracy_by_data
from ..plots.similarity_plots import plot_compute
from .chapters import EMBEDDINGS, SCALE
from .vocabulary import (
    Accuracy,
    Estimate,
    Figure,
    Measurement,
    Measurements,
    Paper,
    StudyModel,
    accuracy_gap,
    accuracy_of,
    between,
    claim,
    descriptive,
    each,
    estimate_over_batches,
    expect_array,
    group,
    lower,
    rank_correlation,
    task,
    transformed,
    upper,
    variants,
    with_roles,
)

DOSOVITSKIY = Paper(
    "Dosovitskiy et al. (2020)", "https://arxiv.org/abs/2010.11929", prefix="V.", rank=4
)


def filters_of(model: StudyModel) -> Measurement:
    """The principal components of the patch embedding's filters."""
    model.require("patch_kernel" in model.first_layer, "known patch embedding")

    def make() -> xr.DataArray:
        # Read from the model, whose key identifies the result.
        return patch_filters(cast(Any, model.keras_copy()).patch_kernel)

    return task("patch_filters", model, make, reads="")


def positions_of(model: StudyModel) -> Measurement:
    """The similarity of every position embedding to every other."""
    model.require("position_embedding" in model.first_layer, "known position embedding")

    def make() -> xr.DataArray:
        return position_similarity(cast(Any, model.keras_copy()).position_embedding, model.grid)

    return task("position_similarity", model, make, reads="")


def accuracy_by_data_of(models: list[StudyModel]) -> Measurements | None:
    """Test accuracy by share of the training data, of models with variants on fractions of them."""
    measurements = {}
    for model in with_roles(models, "vit", "resnet"):
        trained = [m for m in variants(models, model, "fraction") if m.accuracy]
        if trained and model.accuracy:
            trained = [*sorted(trained, key=lambda variant: cast(float, variant.detail)), model]
            make = partial(
                accuracy_table,
                fractions=[*(cast(float, variant.detail) for variant in trained[:-1]), 1.0],
                accuracies=[variant.accuracy for variant in trained if variant.accuracy],
            )
            measurements[model.name] = task("accuracy_by_data", tuple(trained), make, reads="")
    return measurements or None


def accuracy_table(
    fractions: Sequence[float], accuracies: Sequence[tuple[float, int]]
) -> xr.Dataset:
    """Accuracies, pairs with the number of test images, with Wilson's intervals, by fraction."""
    estimates = [accuracy_of(*accuracy) for accuracy in accuracies]
    rows = [(estimate.value, *(estimate.interval or (np.nan, np.nan))) for estimate in estimates]
    columns = dict(zip(("accuracy", "low", "high"), np.transpose(rows), strict=True))
    data = {name: ("fraction", values) for name, values in columns.items()}
    return xr.Dataset(data, {"fraction": fractions})


def accuracy_by_compute_of(models: list[StudyModel]) -> Measurement | None:
    """Test accuracy and training compute of models for which both are known."""
    known = [model for model in models if model.accuracy and model.training_flops]
    if len(known) < 2:
        return None

    def make() -> xr.Dataset:
        flops = [float(model.training_flops()) for model in known if model.training_flops]
        accuracies = [model.accuracy[0] for model in known if model.accuracy]
        families = [FAMILIES.get(model.role, "ViT") for model in known]
        return compute_table([model.name for model in known], flops, accuracies, families)

    return task("accuracy_by_compute", tuple(known), make, reads="")


def compute_table(
    names: Sequence[str],
    training_flops: Sequence[float],
    accuracies: Sequence[float],
    families: Sequence[str] | None = None,
) -> xr.Dataset:
    """The table that `plot_compute` draws, of models by name."""
    data = {"training_flops": ("run", training_flops), "test_accuracy": ("run", accuracies)}
    return xr.Dataset(data, {"run": names, "family": ("run", families or names)})


FAMILIES = {"resnet": "BiT", "mixer": "Mixer", "hybrid": "hybrid"}  # others are ViTs
FOUR = "accuracy.{vit} accuracy.{resnet} accuracy.{fraction} accuracy.{resnet_fraction}"


@claim(
    FOUR,
    "section 4.3, Figures 3 and 4",
    "difference in log odds",
    effect="above",
    least=0.1,
    beyond_untrained=False,
    least_images=1_000_000,
)
def vit_gains_more_from_data(
    vit: Accuracy, resnet: Accuracy, less_vit: Accuracy, less_resnet: Accuracy
) -> Estimate:
    """As data grow, the ViT catches up with the ResNet, whose inductive biases help on little data.

    The gap is the log odds of the test accuracy of the ViT minus those of the ResNet. The value is
    the gap after training on all data minus the gap after training on the smallest fraction of the
    data.

    Near 100 %, accuracies of any two models approach each other; their log odds do not. The claim
    is not tested at 0 or 100 %, where log odds are infinite.
    """
    models = (vit, resnet, less_vit, less_resnet)
    if not all(0 < model.value < 1 for model in models):
        raise ValueError(
            "Expected accuracies between 0 and 100 %, whose log odds are finite. "
            f"Received: {', '.join(f'{100 * model.value:.3g} %' for model in models)}"
        )
    odds = [transformed(x.estimate, lambda share: np.log(share / (1 - share))) for x in models]
    return between(between(odds[0], odds[1]), between(odds[2], odds[3]))


@claim(
    FOUR,
    "section 4.3, Figures 3 and 4",
    "difference in accuracy",
    effect="above",
    least=0.01,
    beyond_untrained=False,
)
def resnet_better_on_little_data(
    vit: Accuracy, resnet: Accuracy, less_vit: Accuracy, less_resnet: Accuracy
) -> Estimate:
    """With little data, the ResNet is more accurate than the ViT.

    Test accuracy of the ResNet minus test accuracy of the ViT, both trained on the smallest
    fraction of the data for which there are models of both.
    """
    return accuracy_gap(less_resnet, less_vit)


@claim(
    FOUR,
    "section 4.3, Figures 3 and 4",
    "difference in accuracy",
    effect="above",
    least=0.01,
    beyond_untrained=False,
    least_images=10_000_000,
)
def vit_better_on_all_data(
    vit: Accuracy, resnet: Accuracy, less_vit: Accuracy, less_resnet: Accuracy
) -> Estimate:
    """With enough data, the ViT is more accurate than the ResNet.

    Test accuracy of the ViT minus test accuracy of the ResNet, both trained on all data.

    In the paper, "enough data" means up to 300 million images.
    """
    return accuracy_gap(vit, resnet)


@claim(
    "accuracy.{hybrid} accuracy.{vit}",
    "section 4.4, Figure 5",
    "difference in accuracy",
    effect="above",
    least=0.01,
    beyond_untrained=False,
)
def hybrid_better_at_small_compute(hybrid: Accuracy, vit: Accuracy) -> Estimate:
    """At small computational budgets, hybrids are slightly more accurate than pure ViTs.

    Test accuracy of the hybrid minus test accuracy of the ViT, both trained with the same recipe.

    In `vit-tf study`, the hybrid needs about an eighth more operations per image than the ViT.
    """
    return accuracy_gap(hybrid, vit)


@claim(
    "accuracy.{tuned} accuracy.{vit}",
    "section 4.6",
    "difference in accuracy",
    effect=0.02,
    least=0.01,
    beyond_untrained=False,
)
def masked_pretraining_helps(tuned: Accuracy, vit: Accuracy) -> Estimate:
    """Pre-training by masked patch prediction gives higher accuracy than training from scratch.

    Test accuracy of the model that is pre-trained and then fine-tuned minus test accuracy of the
    model trained from scratch. In `vit-tf study`, the pre-trained model is trained for twice as
    many epochs as the other model. In half of these epochs, it predicts masked patches.

    In the paper, the difference is 2 percentage points, for ViT-B/16 on ImageNet.
    """
    return accuracy_gap(tuned, vit)


@claim(
    "unit_distance.{vit}",
    "section 4.5, Figure 7 right",
    "difference in distance",
    effect="above",
    least=0.02,
)
def distance_grows_with_depth(distance: xr.DataArray) -> Estimate:
    """Attention distance increases with depth.

    Attention distance, with the image scaled to a unit square: the mean over the upper half of the
    layers minus the mean over the lower half.
    """
    return estimate_over_batches(
        lambda heads: upper(heads).mean() - lower(heads).mean(),
        expect_array(distance, ("layer", "head")),
    )


@claim(
    "unit_distance.{vit}",
    "section 4.5, Figure 7 right",
    "difference in distance",
    effect="above",
    least=0.02,
)
def first_heads_global(distance: xr.DataArray) -> Estimate:
    """Some heads attend to most of the image already in the lowest layers.

    Attention distance of the most global head of the first layer, with the image scaled to a unit
    square.

    Heads of untrained models already attend to the whole image, so that trained minus untrained
    cannot be large.
    """
    return estimate_over_batches(
        lambda heads: heads[0].max(), expect_array(distance, ("layer", "head"))
    )


@claim(
    "accuracy.{positions} accuracy.{vit}",
    "section 3.1 and appendix D.4",
    "difference in accuracy",
    effect=0,
    least=0.01,
    beyond_untrained=False,
)
def kinds_of_positions_are_equal(positions: Accuracy, vit: Accuracy) -> Estimate:
    """Other kinds of position embeddings, such as 2-D or relative ones, gain no accuracy.

    Test accuracy of the ViT with another kind of position embeddings minus test accuracy of the ViT
    with 1-D position embeddings, both trained with the same recipe.

    The margin of one percentage point is a choice of this package.
    """
    return accuracy_gap(positions, vit)


@claim(
    "position_similarity.{vit}",
    "section 4.5, Figure 7 centre",
    "rank correlation",
    effect="below",
    least=0.2,
)
def near_positions_are_similar(similarity: xr.DataArray) -> Estimate:
    """Closer patches have more similar position embeddings.

    Rank correlation, over pairs of patches, between the distance of the two patches and the cosine
    similarity of their position embeddings.
    """
    distance, cosine, _ = _pairs_of_positions(similarity)
    return descriptive(rank_correlation(np.stack([distance, cosine], axis=1)), ALL_POSITIONS)


@claim(
    "position_similarity.{vit}",
    "section 4.5, Figure 7 centre",
    "difference in cosine",
    effect="above",
    least=0.02,
)
def positions_have_rows_and_columns(similarity: xr.DataArray) -> Estimate:
    """Patches in the same row or column have similar position embeddings.

    Cosine similarity of two position embeddings in the same row or column minus the cosine
    similarity of two other position embeddings at the same distance, averaged over distances.

    The second similarity is subtracted because positions in a row are also near each other. If no
    two other positions have exactly the same distance, the second similarity is interpolated
    between the distances that occur.
    """
    distance, cosine, is_aligned = _pairs_of_positions(similarity)
    means = []
    for of in (is_aligned, ~is_aligned):
        lengths, index = np.unique(distance[of], return_inverse=True)
        means.append((lengths, np.bincount(index, cosine[of]) / np.bincount(index)))
    (lengths, aligned), (others, off_axis) = means
    if len(others) < 2 or not (shared := lengths >= others[0]).any():
        raise ValueError("Expected a grid of at least three rows and columns. Received: fewer")
    gaps = aligned[shared] - np.interp(lengths[shared], others, off_axis)
    return descriptive(gaps.mean(), ALL_POSITIONS)


ALL_POSITIONS = "No images are needed for it: it covers all positions of the model"


def _pairs_of_positions(similarity: xr.DataArray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Distance, similarity, and whether row or column are equal, of all pairs of positions."""
    dims = ("row", "column", "other_row", "other_column")
    values = expect_array(similarity, dims).values
    row, column, other_row, other_column = np.indices(values.shape).reshape(4, -1)
    distance = np.hypot(row - other_row, column - other_column)
    is_aligned = (row == other_row) | (column == other_column)
    is_other = distance > 0
    return distance[is_other], values.ravel()[is_other], is_aligned[is_other]


FIGURE_3 = Figure(
    paper=DOSOVITSKIY,
    numbers="3 4",
    chapter=SCALE,
    shows="test accuracy by amount of training data",
    models=group("vit", "resnet", "fraction", user_models=False),
    measure=accuracy_by_data_of,
    results="accuracy_by_data",
    draw=plot_accuracy_by_data,
    name="accuracy-by-data",
    imports="from vit_tf.analysis.papers.dosovitskiy import accuracy_table",
    call="accuracy_table([0.03, 0.1, 0.3, 1.0], [(model.evaluate(images)[1], len(labels)) "
    "for model in {models}.values()])",
    title="Test accuracy by amount of training data",
    caption=(
        "Each point is the test accuracy of a model trained on a fraction of the images, with its "
        "95 % CI. In `vit-tf study`, all these models are trained for the same number of updates. "
        "Where the lines cross, the ViT overtakes the ResNet."
    ),
    claims=[vit_gains_more_from_data, resnet_better_on_little_data, vit_better_on_all_data],
)

FIGURE_5 = FIGURE_3.variant(
    numbers="5",
    shows="test accuracy by training compute",
    models=group(
        *("vit", "gap", "resnet", "mixer", "larger", "hybrid", "tuned"), user_models=False
    ),
    measure=accuracy_by_compute_of,
    results="accuracy_by_compute",
    draw=plot_compute,
    name="accuracy-by-compute",
    imports="import vit_tf\nfrom vit_tf.analysis.papers.dosovitskiy import compute_table",
    call="compute_table(list({models}), [3 * vit_tf.count_flops(model) * num_images_seen "
    "for model in {models}.values()], [model.evaluate(images)[1] for model in {models}.values()])",
    title="Test accuracy by training compute",
    caption=(
        "Each point is a model. One axis is the number of operations for its training, and the "
        "other axis is its test accuracy. Models at the upper left are the most efficient."
    ),
    claims=[
        hybrid_better_at_small_compute,
        masked_pretraining_helps,
        kinds_of_positions_are_equal,
    ],
)

FIGURE_7_LEFT = Figure(
    paper=DOSOVITSKIY,
    numbers="7",
    chapter=EMBEDDINGS,
    shows="filters of the patch embedding",
    models=each("vit", "gap", "mixer", "masked"),
    measure=filters_of,
    results="patch_filters",
    draw=plot_patch_filters,
    name="patch-filters-{model}",
    call="analysis.patch_filters({model})",
    title="Patch-embedding filters",
    caption=(
        "Each panel is a principal component of the patch-embedding filters, in image colours. The "
        "number above a panel is the share of variance that the component explains. Smooth "
        "patterns are learned. Noise remains from the initialization."
    ),
)

FIGURE_7_MIDDLE = FIGURE_7_LEFT.variant(
    shows="similarity of position embeddings",
    models=each("vit", "gap"),
    measure=positions_of,
    results="position_similarity",
    draw=plot_position_similarity,
    name="position-similarity-{model}",
    call="analysis.position_similarity({model})",
    title="Similarity of position embeddings",
    caption=(
        "Each panel belongs to one position in the image. It shows the cosine similarity between "
        "the embedding of this position and the embeddings of all positions. Visible rows and "
        "columns are a learned 2-D structure."
    ),
    claims=[
        near_positions_are_similar,
        positions_have_rows_and_columns,
        distance_grows_with_depth,
        first_heads_global,
    ],
)
