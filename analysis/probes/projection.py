"""Images of every class in two dimensions, layer by layer: PCA, t-SNE or UMAP of features."""

from __future__ import annotations

import numpy as np
import xarray as xr

from vit_tf.common.names import format_list, lookup
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.layers import Detail

from ..engine.measurements import labels_after_images, measurement
from ..engine.pooling import pooled_statistic_of
from ..engine.preparation import ImagesLike, prepare
from ..engine.results import DEFAULT, array_of, provenance
from ..engine.stream import evaluate

PCA, TSNE, UMAP = "pca", "tsne", "umap"
PERPLEXITY = 30  # of t-SNE, scikit-learn's default
# Features are constant if their range over images is at most this share of their largest magnitude:
# the rounding of float32 leaves less.
MIN_SPREAD = 1e-6


@measurement("outputs")
@labels_after_images
def projection(
    model: ModelLike,
    images: ImagesLike,
    method: str = PCA,
    tokens: str | None = None,
    seed: int = 0,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Two-dimensional projection of image features in every layer, for a scatter plot by class.

        p(x) = (f(x) - mean f) [v_1, v_2]

    Here, f are features that are pooled over tokens as `tokens` states, and v_1 and v_2 are the
    first two principal directions of f. The directions have unit length, and their sign makes the
    entry of largest magnitude positive. Alternatively, the projection is a t-SNE of f (van der
    Maaten and Hinton 2008) with the defaults of scikit-learn, or a UMAP of f (McInnes et al. 2018,
    https://arxiv.org/abs/1802.03426) with the defaults of umap-learn, which has to be installed
    separately. The perplexity of t-SNE is 30, or a third of the number of other images if this is
    smaller. Distances between groups in a t-SNE or a UMAP mean little. To measure how separable
    classes are, use a probe such as `knn_accuracy` or `ridge_probe`.

    Args:
        model, tokens: as in `vit_tf.analysis`.
        images: images with labels, in the same form as `train` in `vit_tf.analysis`.
        method: `"pca"` for principal components, `"tsne"` or `"umap"`.
        seed: seed of t-SNE and UMAP. PCA is deterministic.

    Returns:
        DataArray of shape (layer, example, component), with the coordinates below.

        * `label`, of shape (example,): the class of the image.
        * `class_name`, of shape (example,): the name of this class, if class names are known.
        * `explained_variance`, of shape (layer, component), for PCA only: the share of the variance
          along each component.

    Raises:
        ValueError: if `method` or `tokens` is unknown, if images have no labels, or if there are
            fewer than three images.
        ValueError: if `method` is `"umap"` and umap-learn is not installed, or if the features of a
            layer are the same for all images.

    Examples:
        >>> points = analysis.projection(vit, (images, labels))
        >>> points.dims
        ('layer', 'example', 'component')
        >>> ax = analysis.plot(points)

    See also:
        `plots.plot_projection`, `knn_accuracy`, `clustering`, `neighbours`; page
        measurements/probes/projection.md.
    """
    features, images = prepare(
        model, images, kind="outputs", layers=layers, detail=detail, keep_order=True, labelled=True
    )
    project = lookup("method", method, {PCA: _principal_components, TSNE: _tsne, UMAP: _umap})
    class_names = getattr(images, "class_names", None) or features.facts.class_names
    pooled = evaluate(
        pooled_statistic_of(features, tokens),
        images,
        features,
        description="projection",
    )
    num_images = len(pooled.labels)
    if num_images < 3:
        raise ValueError(f"Expected at least three images. Received: {num_images}")
    # A layer that is the same for all images has no projection.
    if constant := [
        layer
        for layer, x in pooled.layers.items()
        if np.ptp(x, axis=0).max() <= MIN_SPREAD * np.abs(x).max()
    ]:
        raise ValueError(
            f"Expected features that differ between images. Received: {format_list(constant)}"
        )
    points, shares = zip(
        *(project(x.astype(float), seed) for x in pooled.layers.values()), strict=True
    )
    # Points carry their labels and, where they are known, the names of these.
    coords = {"layer": list(pooled.layers), "label": ("example", pooled.labels)}
    if class_names:
        names = [str(class_names[label]) for label in pooled.labels]
        coords["class_name"] = ("example", np.array(names, str))
    if method == PCA:
        coords["explained_variance"] = (("layer", "component"), np.stack(shares))
    seeds = {} if method == PCA else {"seed": seed}
    facts = provenance(
        features,
        num_images,
        pooled.batches,
        estimator=method,
        tokens=pooled.tokens or DEFAULT,
        **seeds,
    )
    return array_of(
        "projection",
        np.stack(points),
        ("layer", "example", "component"),
        ("projection of the features", "1"),
        facts,
        **coords,
    )


def _principal_components(x: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """The first two principal components of rows (example, channel), and their variance shares."""
    centred = x - x.mean(axis=0)
    _, singular, directions = np.linalg.svd(centred, full_matrices=False)
    shares = singular**2 / (singular**2).sum()
    # Features with a single channel have one component only: the second one is filled with zeros.
    num_missing = max(0, 2 - len(shares))
    directions = np.pad(directions, [(0, num_missing), (0, 0)])[:2]
    shares = np.pad(shares, (0, num_missing))[:2]
    largest = np.abs(directions).argmax(axis=1)
    signs = np.where(directions[np.arange(2), largest] < 0, -1, 1)
    return centred @ (signs[:, None] * directions).T, shares


def _tsne(x: np.ndarray, seed: int) -> tuple[np.ndarray, None]:
    """t-SNE of rows (example, channel) in two dimensions."""
    from sklearn.manifold import TSNE as Embedding

    # It starts from two principal components, but a single channel has only one.
    start = "pca" if min(x.shape) > 1 else "random"
    perplexity = min(PERPLEXITY, (len(x) - 1) / 3)
    embedding = Embedding(2, perplexity=perplexity, init=start, random_state=seed)
    return embedding.fit_transform(x), None


def _umap(x: np.ndarray, seed: int) -> tuple[np.ndarray, None]:
    """UMAP of rows (example, channel) in two dimensions."""
    try:
        import umap  # pyright: ignore[reportMissingImports]
    except ImportError:
        raise ValueError(
            "UMAP needs the package umap-learn: pip install umap-learn. method='pca' needs none."
        ) from None
    return umap.UMAP(n_components=2, random_state=seed).fit_transform(x), None
