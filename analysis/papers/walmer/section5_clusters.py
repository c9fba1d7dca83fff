"""Walmer et al. 2023, section 5: do features of a class, an object or a part cluster?"""

from functools import partial

import numpy as np

from ...engine.estimates import accuracy_of, contrast_over_depth, lower, means_of, minus
from ...engine.noise import gaussian_like
from ...engine.pooling import grid_of, pooled_statistic
from ...engine.results import KEPT, POOLED, expect_variable, layer_names
from ...plots.probe_plots import plot_clustering
from ...probes.clustering import cluster_scores, object_clustering
from ...study.claims import claim
from ...study.figure import Figure, together
from ...study.measure import statistic, task
from ...study.models import BASELINES
from ...study.supervision import EXPLICIT
from ..chapters import CLASSES, OBJECTS
from . import WALMER


def summary(model):
    """The features of an image: the CLS token where there is one, else the mean of all tokens."""
    return "cls" if model.has_cls else "all"


def summarised(model, tokens):
    """Block outputs; of models with CLS without the embedding, which is equal for all images."""
    return model.layers("outputs", "grid" if tokens == "spatial" else "blocks")


def pooled_of(model, tokens, reads="test"):
    """Pooled features of the images of a data set, that others share.

    Those of noise are drawn as one vector for each image and layer, all that there is to pool.
    """
    taps, is_noise = summarised(model, tokens), model.role == "noise"

    def vectors(noise, features, data):
        return gaussian_like(noise.base.features(*taps), seed=POOLED.index(tokens), vectors=True)

    return statistic(
        f"pooled_{tokens}_{reads}",
        model,
        taps,
        lambda features: pooled_statistic("all" if is_noise else tokens, grid_of(features, None)),
        reads=reads,
        saved=False,
        labelled=True,
        view=vectors if is_noise else None,
    )


def clustering_of(model, tokens=None):
    """Agreement of clusters of images with their classes."""
    tokens = tokens or summary(model)
    return task(
        f"clustering_{KEPT[tokens]}",
        model,
        lambda pooled: cluster_scores(model, pooled),
        reads="test",
        inputs=(pooled_of(model, tokens),),
    )


def spatial_clustering_of(model):
    """The same of the mean spatial token, of a model with CLS."""
    return clustering_of(model, "spatial") if model.has_cls else None


def objects_of(model):
    """Agreement of clusters of objects with their classes."""
    return statistic(
        "objects",
        model,
        model.layers("tokens", "blocks"),
        object_clustering.statistic,
        reads="objects",
    )


def parts_of(model):
    """Agreement of clusters of parts of objects with their names."""
    taps = model.layers("tokens", "blocks")
    return statistic("parts", model, taps, object_clustering.statistic, reads="parts")


@claim("clustering_first.{vit}", "5.2", "7 left", "difference in purity", above=0, least=0.05)
def clusters_deepen(clusters):
    """Cluster purity of CLS features increases with depth.

    Cluster purity of the last block minus that of the first.

    Neighbouring layers are similar: the steps between them, not the layers, are the units.
    """
    purity = blocks_of(expect_variable(clusters, "purity", ("layer",))).values
    count = len(purity)
    return contrast_over_depth(purity, means_of(count, slice(-1, None), slice(0, 1)))


@claim(
    "clustering_rest.{vit} clustering_first.{vit}",
    "5.2",
    "7",
    "difference in purity",
    above=0,
    least=0.02,
    supervision=EXPLICIT,
)
def spatial_first(spatial, cls):
    """In early layers of supervised ViTs, spatial tokens carry more class information than CLS.

    Cluster purity of the mean spatial token minus that of CLS, lower half.

    The interval is over images, as if both were measured on different ones, which is conservative.
    """
    count = len(blocks_of(cls["layer"]))
    return minus(*(_purity(result, lower(np.arange(count))) for result in (spatial, cls)))


def _over_untrained(clusters, untrained):
    return minus(*(_purity(result) for result in (clusters, untrained)))


def _last_quarter_over_last(clusters):
    """Purity of layers 9 to 11 of 12, the last quarter without the last, minus that of the last."""
    count = len(blocks_of(clusters["layer"]))
    first = -(-3 * count // 4) - 1
    if first >= count - 1:
        raise ValueError(f"Expected at least 4 layers. Received: {count}")
    return minus(*(_purity(clusters, part) for part in (slice(first, -1), slice(-1, None))))


def _cluster_claims(kind, plural, figure):
    """The claims of section 5.3 about objects or parts of them, which have a mask each.

    The error is binomial; it leaves out the variance of the k-means initialization. No layer is
    chosen by its purity.
    """
    of_kind = "object class" if kind == "object" else kind
    task_claim = partial(
        claim, section="5.3", figure=figure, unit="difference in purity", above=0, least=0.02
    )
    above_chance = task_claim(
        f"{plural}.{{vit}} {plural}.{{untrained}}",
        name=f"{plural}-above-chance",
        text=(
            f"Tokens within {'an' if kind == 'object' else 'a'} {kind} mask cluster by {of_kind}.",
            f"Cluster purity of {plural}, mean over layers, minus that of the untrained model, "
            "which clusters by colour as well.",
        ),
    )(_over_untrained)
    peak_early = task_claim(
        f"{plural}.{{vit}}",
        name=f"{plural}-peak-early",
        text=(
            f"{kind.capitalize()}-level cluster purity peaks around layers 9 to 11 of 12, before "
            "the last.",
            f"Cluster purity of {plural}, last quarter without the last layer, minus the last "
            "layer.",
        ),
    )(_last_quarter_over_last)
    return [above_chance, peak_early]


def blocks_of(result):
    """A result without the layers before the first block, "embedding"; all of a foreign model."""
    in_blocks = ["/" in name for name in layer_names(result)]
    return result.isel(layer=in_blocks) if any(in_blocks) else result


def _purity(clusters, part=slice(None)):
    """Mean purity of some blocks: errors of layers on the same objects do not average out."""
    purity = blocks_of(expect_variable(clusters, "purity", ("layer",))).values[part].mean()
    over = "objects" if "objects" in clusters.attrs else "images"
    count = clusters.attrs.get("objects", clusters.attrs.get("examples", np.nan))
    return accuracy_of(purity, count, over=over)


def read_of(models):
    """Words for the features of each layer: CLS, the mean over all tokens, or one of each."""
    has_cls = {model.has_cls for model in models}
    if has_cls == {True}:
        return "of the CLS token"
    mean = "of the mean over all tokens or positions"
    return f"of the CLS token or, where there is none, {mean}" if True in has_cls else mean


def caption_of_features(caption):
    """A caption with `read_of` the models in place of `{read}`."""
    return lambda models, results: caption.format(read=read_of(models))


ALL = ("vit", "gap", "resnet", "mixer")

FIGURE_7 = Figure(
    paper=WALMER,
    numbers="7 24 25",
    chapter=CLASSES,
    shows="cluster purity of images",
    models=together(*ALL, baselines=BASELINES),
    measure=clustering_of,
    draw=plot_clustering,
    name="clusters",
    call='analysis.clustering({model}, images, detail="blocks")',
    title="Cluster purity of images by layer",
    caption=caption_of_features(
        "Cluster purity: the share of images in the majority class of their cluster, for k-means "
        "with as many clusters as classes on features {read}."
    ),
    claims=[clusters_deepen],
)

FIGURE_7_SPATIAL = FIGURE_7.variant(
    measure=spatial_clustering_of,
    name="clusters-spatial",
    call='analysis.clustering({model}, images, tokens="spatial", detail="grid")',
    title="Cluster purity of the mean spatial token by layer",
    caption="As in the previous figure, for the mean spatial token of models with a CLS token. "
    "Where the purity is higher than for CLS, the spatial tokens carry more class information.",
    claims=[spatial_first],
)

FIGURE_8_OBJECTS = Figure(
    paper=WALMER,
    numbers="8 26",
    chapter=OBJECTS,
    shows="cluster purity of objects",
    models=together(*ALL, baselines=BASELINES),
    measure=objects_of,
    draw=plot_clustering,
    name="clusters-objects",
    call='analysis.object_clustering({model}, objects, detail="blocks")',
    title="Cluster purity of objects by layer",
    caption="Cluster purity: the share of objects in the majority class of their cluster, for "
    "k-means with as many clusters as classes on the mean of the tokens within each mask.",
    claims=_cluster_claims("object", "objects", "8 left"),
)

FIGURE_8_PARTS = FIGURE_8_OBJECTS.variant(
    numbers="8 27",
    shows="cluster purity of parts of objects",
    measure=parts_of,
    name="clusters-parts",
    call='analysis.object_clustering({model}, parts, detail="blocks")',
    title="Cluster purity of parts by layer",
    caption="Cluster purity: the share of parts in the majority class of their cluster, for "
    "k-means with as many clusters as classes on the mean of the tokens within each mask.",
    claims=_cluster_claims("part", "parts", "8 right"),
)
