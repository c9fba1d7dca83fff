"""Measurements of what a vision model has learned.

A measurement takes a model and images, and returns a labelled xarray result, for example
`analysis.cka(model, images)`. `analysis.plots` contains the plots of all measurements, and
`analysis.engine` contains the functions for writing your own measurement. A measurement that needs
a single pass over the images has the attribute `statistic`, a function that returns its
`Statistic`: `analysis.cka.statistic`.

Args that the measurements share, unless their docstrings state otherwise:
    model: the model, in one of these forms (`features_of` describes them):

        * a built Keras model with one input, a submodel, a SavedModel or a PyTorch module
        * the path or the name of such a model
        * a function from images to `{layer: tensor}` or `{layer: array}`
        * `{layer: array}`, stored activations, for measurements that do not need images

        Tensors have the shape (example, token, channel), (example, row, column, channel) or
        (example, channel).

        A list of models, or a dict of them by name, gives a dict of results by name.
    layers: layers to measure, as a shell pattern, a name, or a list of these. By default, each
        measurement selects its layers: the representations (the embedding, the output of each block
        or stage, the final norm), the attention weights, or the skips and branches (the two terms
        of each residual sum). An integer is a position among these layers, -1 the last; the name of
        a block, such as `"block03"`, selects its layers.
    head: number of an attention head, or a list of numbers, for measurements by head.
    detail: a subset of the representations, for measurements that use them:

        * `"blocks"`: outputs of blocks, without the final norm and pooled vectors
        * `"grid"`: blocks whose tokens or positions lie on the grid of the last block
        * `"lower"`: lower half of the blocks
        * `"sums"`: sums of skip and branch at all residual connections
        * `"sublayers"`: layers inside the blocks too, if their names are known
        * an integer n: n evenly spaced layers; all measurements accept it
    images: images in one of these forms:

        * floats: an array of shape (example, height, width, channel) or one image; they are not
          converted, but compared with the range that the model declares
        * 8-bit arrays, PIL images, paths, a list of these, or a folder; they are resized and
          normalised as the model declares
        * a `tf.data.Dataset` of images, of (images, labels) with or without weights, or of dicts,
          batched or not
    train, test: images with labels, which are integers from 0 to `num_classes - 1`: a
        `tf.data.Dataset` of (images, labels), a pair of arrays, or a folder of class folders.
        Labels may also follow their images: `knn_accuracy(model, x_train, y_train, x, y)`. Without
        `test`, every fifth image of `train` is a test image, with a warning.
    num_classes: number of classes; by default, it is inferred from the labels, the data set or the
        model.
    grid: `TokenGrid` of the spatial tokens, which belong to patches of the image, or a pair (rows,
        columns); by default, the grid of the model. Other tokens, such as CLS, are prefix tokens.
    classes: names of classes, or positions of classes among the class scores. By default, the
        classes that are predicted for the images, at most 5.
    tokens: how the tokens of a layer are summarized: `"cls"` is the CLS token, `"spatial"` is the
        mean of the spatial tokens, and `"all"` is the mean of all tokens. None means the CLS token
        or, without one, the mean of the spatial tokens. A layer that is a vector is used unchanged.

In the examples of the measurements, `vit` and `bit` are models, such as those of
`vit_tf.load("vit-cls-cifar10")` and `vit_tf.load("bit-cifar10")`, `images` is an array of shape
(24, height, width, channel), and `labels` is an array of integers of shape (24,).
"""

from importlib import import_module
from typing import Any

from vit_tf.common.names import attach_public

# Names of these measurements in other libraries and in papers.
OTHER_NAMES = {
    "features": ("extract_features", {}),
    "knn": ("knn_accuracy", {}),
    "logistic_regression": ("linear_probe", {}),
    "nearest_neighbours": ("neighbours", {}),
    "nearest_neighbors": ("neighbours", {}),
    "neighbors": ("neighbours", {}),
    "occlusion": ("robustness", {}),
    "pca": ("projection", {"method": "pca"}),
    "position_embedding_similarity": ("position_similarity", {}),
    "saliency": ("input_gradients", {"samples": 1, "noise": 0.0}),
    "smooth_grad": ("input_gradients", {}),
    "rollout": ("attention_rollout", {}),
    "tsne": ("projection", {"method": "tsne"}),
    "umap": ("projection", {"method": "umap"}),
}

_import_name, __dir__, __all__ = attach_public(__name__, __file__, OTHER_NAMES)


def __getattr__(name: str) -> Any:
    """A public name, or a plot of `analysis.plots`."""
    if name.startswith("plot_"):
        return getattr(import_module(".plots", __name__), name)
    return _import_name(name)
