"""Walmer et al. 2023, section 5: do features of a class, an object or a part cluster?"""

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from typing import TypeVar

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.features.features import Features
from vit_tf.features.noise import gaussian_like
from vit_tf.features.tokens import TokenGrid

from ...plots.probe_plots import plot_clustering
from ...probes.clustering import cluster_scores, object_clustering
from ...similarity.localization import input_patches
from ..chapters import CLASSES, OBJECTS
from ..vocabulary import (
    BASELINES,
    EXPLICIT,
    KEPT,
    POOLED,
    Claim,
    Data,
    Estimate,
    Figure,
    Measurement,
    Method,
    Pooled,
    SharedPass,
    Statistic,
    StudyModel,
    accuracy_of,
    between,
    claim,
    descriptive,
    expect_variable,
    layer_names,
    lower,
    minus,
    pooled_statistic,
    statistic,
    task,
    together,
    upper,
    with_limits,
)
from . import WALMER

ResultT = TypeVar("ResultT", xr.DataArray, xr.Dataset)


def summary(model: StudyModel) -> str:
    """The features of an image: the CLS token where there is one, else the mean of all tokens."""
    return "cls" if model.has_cls else "all"


def summarised(model: StudyModel, tokens: str) -> list[str]:
    """Block outputs; of models with CLS without the embedding, which is equal for all images."""
    return model.layers("outputs", "grid" if tokens == "spatial" else "blocks")


def pooled_of(model: StudyModel, tokens: str, reads: str = "test") -> SharedPass:
    """Pooled features of the images of a data set, that others share.

    Those of noise are drawn as one vector for each image and layer, all that there is to pool.
    """
    taps, is_noise = summarised(model, tokens), model.role == "noise"

    def vectors(noise: StudyModel, features: Features, data: Data) -> Features:
        original = noise.original.select(*taps)
        return gaussian_like(original, seed=POOLED.index(tokens), vectors=True)

    return statistic(
        f"pooled_{tokens}_{reads}",
        model,
        taps,
        lambda features: pooled_statistic("all" if is_noise else tokens, features.facts.grid),
        reads=reads,
        saved=False,
        labelled=True,
        view=vectors if is_noise else None,
        needs_all=True,
    )


def clustering_of(model: StudyModel, tokens: str | None = None) -> Measurement:
    """Agreement of clusters of images with their classes."""
    tokens = tokens or summary(model)
    pixels = pixels_of(model, tokens, "test", lambda features: pooled_statistic("all"))

    def make(pooled: Pooled, of_pixels: Pooled | None = None) -> xr.Dataset:
        scores = cluster_scores(model, pooled)
        if of_pixels is None:
            return scores
        # Some images, such as permutations of one, differ in pixels but not in mean colour.
        layers = {
            layer: x
            for layer, x in of_pixels.layers.items()
            if len(np.unique(x, axis=0)) >= scores.attrs["clusters"]
        }
        chance = cluster_scores(model, replace(of_pixels, layers=layers)) if layers else None
        return with_chance(scores, chance)

    inputs = (pooled_of(model, tokens), *pixels)
    return task(f"clustering_{KEPT[tokens]}", model, make, reads="test", inputs=inputs)


def spatial_clustering_of(model: StudyModel) -> Measurement | None:
    """Clusters of the mean spatial token, for a model with CLS."""
    return clustering_of(model, "spatial") if model.has_cls else None


def masked_clusters_of(model: StudyModel, reads: str) -> Measurement:
    """Agreement with the labels of clusters of objects or parts, by features and by pixels."""
    taps = model.layers("tokens", "blocks")
    pixels = pixels_of(model, "spatial", reads, object_clustering.statistic)
    of_tokens = statistic(
        f"{reads}_tokens", model, taps, object_clustering.statistic, reads=reads, saved=False
    )
    return task(reads, model, with_chance, inputs=(of_tokens, *pixels))


PIXELS = ("raw pixels", "mean colour")  # of patches, or of an image
CHANCE = {name: f"purity_{name.replace(' ', '_')}" for name in PIXELS}  # names of attributes
FINEST = 4  # side of a patch of raw pixels, to which the image is averaged
COARSE = 8  # side of an image of raw pixels


def pixels_of(
    model: StudyModel, tokens: str, reads: str, make: Callable[[Features], Statistic]
) -> list[SharedPass]:
    """The measurement on pixels instead of features, as a list that is empty for baselines.

    It uses the pixels of each patch for "spatial" tokens, and of the whole image otherwise.
    """
    # Untrained copies are selected in the role of a trained model too.
    if model.role == "noise" or model.original_key:
        return []
    of_patches = reads != "test"
    taps = model.layers("tokens", "blocks") if of_patches else summarised(model, tokens)

    def pixels(model: StudyModel, features: Features, data: Data) -> _Pixels:
        return _Pixels(taps[: len(PIXELS)], model.grid if of_patches else None)

    return [
        statistic(
            f"pixels_{reads}" if of_patches else f"pixels_{tokens}",
            model,
            taps[: len(PIXELS)],
            make,
            reads=reads,
            saved=False,
            labelled=not of_patches,
            view=pixels,
        )
    ]


class _Pixels:
    """Pixels and mean colours as features, in place of those of the first two taps of a model."""

    name = "pixels"

    def __init__(self, taps: list[str], grid: TokenGrid | None) -> None:
        self.taps = taps
        self.token_grid = None if grid is None else replace(grid, prefix=0)

    def __call__(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        grid = self.token_grid
        rows, columns = (COARSE, COARSE) if grid is None else (grid.rows, grid.columns)
        side = 1 if grid is None else FINEST
        fine = tf.image.resize(images, (rows * side, columns * side), "area")
        if grid is None:
            values = [tf.reshape(fine, (tf.shape(images)[0], rows * columns * images.shape[-1]))]
            values.append(tf.reduce_mean(images, axis=(1, 2)))
        else:
            values = [input_patches(fine, replace(grid, prefix=0, stride=side))]
            colours = tf.reshape(values[0], (-1, rows * columns, side * side, images.shape[-1]))
            values.append(tf.reduce_mean(colours, axis=2))
        return dict(zip(self.taps, values, strict=False))


def with_chance(scores: xr.Dataset, of_pixels: xr.Dataset | None = None) -> xr.Dataset:
    """A result of clusters with the purity of clusters of pixels as attributes."""
    if of_pixels is None:
        return scores
    purities = zip(PIXELS, of_pixels["purity"].values, strict=False)
    return scores.assign_attrs({CHANCE[name]: float(purity) for name, purity in purities})


@claim(
    "clustering_first.{vit}",
    "section 5.2, Figure 7 left",
    "difference in purity",
    effect="above",
    least=0.05,
)
def clusters_deepen(clusters: xr.Dataset) -> Estimate:
    """Cluster purity of CLS features increases with depth.

    Cluster purity of the last block minus cluster purity of the first block.

    The interval treats the two purities as independent, which makes it conservative.
    """
    return minus(*(_purity(clusters, part) for part in (slice(-1, None), slice(0, 1))))


@claim(
    "clustering_rest.{vit} clustering_first.{vit}",
    "section 5.2, Figure 7",
    "difference in purity",
    effect="above",
    least=0.02,
    supervision=EXPLICIT,
)
def spatial_first(spatial: xr.Dataset, cls: xr.Dataset) -> Estimate:
    """In early layers of supervised ViTs, spatial tokens carry more class information than CLS.

    Cluster purity of the mean spatial token minus cluster purity of the CLS token, averaged over
    the lower half of the layers.

    The interval treats the two purities as independent, which makes it conservative.
    """
    count = len(blocks_of(cls["layer"]))
    return minus(*(_purity(result, lower(np.arange(count))) for result in (spatial, cls)))


@claim(
    "clustering_first.{masked} clustering_first.{untrained}",
    "section 5.2, Figure 7 left",
    "difference in purity",
    effect="above",
    least=0.02,
    beyond_untrained=False,
)
def masked_cls_is_semantic(clusters: xr.Dataset, untrained: xr.Dataset) -> Estimate:
    """ViTs trained by reconstruction learn semantic CLS features, though no loss depends on CLS.

    Cluster purity of CLS in the ViT trained on masked patches, averaged over layers, minus a chance
    level. The chance level is the highest purity of three baselines: the untrained model, the raw
    pixels and mean colours.
    """
    return _over_untrained(clusters, untrained)


@claim(
    "clustering_first.{vit} clustering_first.{masked}",
    "section 5.2, Figure 7 left",
    "difference in purity",
    effect="above",
    least=0.02,
    beyond_untrained=False,
    supervision=EXPLICIT,
)
def supervised_most_semantic(labels: xr.Dataset, masked: xr.Dataset) -> Estimate:
    """Features of supervised ViTs are the most semantically rich.

    Cluster purity of CLS, averaged over the upper half of the layers: the value for the supervised
    ViT minus the value for the ViT trained on masked patches.

    In the paper, contrastive ViTs reach purities similar to those of supervised ViTs. To test this,
    use released weights of contrastive ViTs.
    """
    halves = (upper(np.arange(len(blocks_of(x["layer"])))) for x in (labels, masked))
    return between(*(_purity(x, half) for x, half in zip((labels, masked), halves, strict=True)))


def _over_untrained(clusters: xr.Dataset, untrained: xr.Dataset) -> Estimate:
    """Purity minus the highest of that of the untrained model, of raw pixels and of mean colour.

    The interval holds those of the differences to each chance level, since the highest of several
    estimates is too high: the claim replicates where purity is above all, and does not where it is
    below all.
    """
    count = clusters.attrs.get("objects", clusters.attrs.get("examples", np.nan))
    over = "objects" if "objects" in clusters.attrs else "images"
    levels = {"untrained": _purity(untrained)}
    levels |= {
        name: accuracy_of(clusters.attrs[at], count, name=over)
        for name, at in CHANCE.items()
        if at in clusters.attrs
    }
    purity = _purity(clusters)
    gaps = [minus(purity, level) for level in levels.values()]
    value = min(gap.value for gap in gaps)
    without = [gap.note for gap in gaps if gap.limits is None]
    if without or purity.units is None:
        return descriptive(value, without[0])

    def limits(alpha: float) -> tuple[float, float]:
        lows, highs = zip(*(gap.limits(alpha) for gap in gaps if gap.limits), strict=True)
        return min(lows), max(highs)

    estimate = with_limits(value, limits, purity.units, Method.BINOMIAL)
    words = ", ".join(f"{name} {level.value:.2g}" for name, level in levels.items())
    return replace(estimate, note=f"Chance levels: {words}")


def _last_quarter_over_last(clusters: xr.Dataset) -> Estimate:
    """Purity of layers 9 to 11 of 12, the last quarter without the last, minus that of the last."""
    count = len(blocks_of(clusters["layer"]))
    first = -(-3 * count // 4) - 1
    if first >= count - 1:
        raise ValueError(f"Expected at least 4 layers. Received: {count}")
    return minus(*(_purity(clusters, part) for part in (slice(first, -1), slice(-1, None))))


def _cluster_claims(kind: str, plural: str, figure: str) -> list[Claim]:
    """The claims of section 5.3 about objects or parts of them, which have a mask each.

    The error is binomial; it leaves out the variance of the k-means initialization. No layer is
    chosen by its purity.
    """
    of_kind = "object class" if kind == "object" else kind
    task_claim = partial(
        claim,
        place=f"section 5.3, Figure {figure}",
        unit="difference in purity",
        effect="above",
        least=0.02,
    )
    above_chance = task_claim(
        f"{plural}.{{vit}} {plural}.{{untrained}}",
        beyond_untrained=False,
        name=f"{plural}-above-chance",
        text=(
            f"Tokens within {'an' if kind == 'object' else 'a'} {kind} mask cluster by {of_kind}.",
            f"Cluster purity of {plural}, averaged over layers, minus the highest purity of three "
            "baselines: the untrained model, raw pixels and mean colour.",
        ),
    )(_over_untrained)
    peak_early = task_claim(
        f"{plural}.{{vit}}",
        name=f"{plural}-peak-early",
        text=(
            f"{kind.capitalize()}-level cluster purity peaks around layers 9 to 11 of 12, before "
            "the last.",
            f"Cluster purity of {plural}, averaged over the last quarter of the layers without the "
            "last layer, minus cluster purity of the last layer.",
        ),
    )(_last_quarter_over_last)
    return [above_chance, peak_early]


def blocks_of(result: ResultT) -> ResultT:
    """A result without the layers before the first block, "embedding"; all of a foreign model."""
    in_blocks = ["/" in name for name in layer_names(result)]
    return result.isel(layer=in_blocks) if any(in_blocks) else result


def _purity(clusters: xr.Dataset, part: slice | np.ndarray = slice(None)) -> Estimate:
    """Mean purity of some blocks: errors of layers on the same objects do not average out."""
    purity = blocks_of(expect_variable(clusters, "purity", ("layer",))).values[part].mean()
    over = "objects" if "objects" in clusters.attrs else "images"
    count = clusters.attrs.get("objects", clusters.attrs.get("examples", np.nan))
    return accuracy_of(purity, count, name=over)


ALL = ("vit", "gap", "resnet", "mixer")
WITH_VARIANTS = (*ALL, "larger", "masked")
# The features that `summary` selects, in captions.
OF_SUMMARY = "of the CLS token or, where there is none, of the mean over all tokens or positions"

FIGURE_7 = Figure(
    paper=WALMER,
    numbers="7 24 25",
    chapter=CLASSES,
    shows="cluster purity of images",
    models=together(*WITH_VARIANTS, baselines=BASELINES),
    measure=clustering_of,
    results="clustering_first clustering_mean",
    draw=plot_clustering,
    name="clusters",
    call='analysis.clustering({model}, images, detail="blocks")',
    title="Cluster purity of images by layer",
    caption=(
        "Cluster purity: the share of images in the majority class of their cluster, for k-means "
        f"with as many clusters as classes on features {OF_SUMMARY}."
    ),
    claims=[clusters_deepen, masked_cls_is_semantic, supervised_most_semantic],
)

FIGURE_7_SPATIAL = FIGURE_7.variant(
    measure=spatial_clustering_of,
    results="clustering_rest",
    name="clusters-spatial",
    call='analysis.clustering({model}, images, tokens="spatial", detail="grid")',
    title="Cluster purity of the mean spatial token by layer",
    caption=(
        "Each point is the cluster purity of the mean spatial token in a layer, for models with a "
        "CLS token. In layers where this purity is higher than the purity of the CLS token "
        "(previous figure), the spatial tokens carry more class information than the CLS token."
    ),
    claims=[spatial_first],
)

FIGURE_8_OBJECTS = Figure(
    paper=WALMER,
    numbers="8 26",
    chapter=OBJECTS,
    shows="cluster purity of objects",
    models=together(*ALL, baselines=BASELINES),
    measure=partial(masked_clusters_of, reads="objects"),
    results="objects",
    draw=plot_clustering,
    name="clusters-objects",
    call='analysis.object_clustering({model}, objects, detail="blocks")',
    title="Cluster purity of objects by layer",
    caption=(
        "Cluster purity is the share of objects that belong to the majority class of their "
        "cluster. An object's feature is the mean of the tokens within its mask. k-means makes "
        "as many clusters as there are classes."
    ),
    claims=_cluster_claims("object", "objects", "8 left"),
)

FIGURE_8_PARTS = FIGURE_8_OBJECTS.variant(
    numbers="8 27",
    shows="cluster purity of parts of objects",
    measure=partial(masked_clusters_of, reads="parts"),
    results="parts",
    name="clusters-parts",
    call='analysis.object_clustering({model}, parts, detail="blocks")',
    title="Cluster purity of parts by layer",
    caption=(
        "Cluster purity is the share of parts that belong to the majority class of their "
        "cluster. A part's feature is the mean of the tokens within its mask. k-means makes as "
        "many clusters as there are classes."
    ),
    claims=_cluster_claims("part", "parts", "8 right"),
)
