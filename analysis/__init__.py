"""Measurements of what a vision model has learned.

A measurement takes a model and images, and returns a labelled xarray result, for example
`analysis.cka(model, images)`. `analysis.plots` contains the plots of all measurements, and
`analysis.engine` contains the functions for writing your own measurement. For a measurement of one
pass over the images, the attribute `statistic` returns its `Statistic`: `analysis.cka.statistic`.

Args that the measurements share, unless their docstrings state otherwise:
    features: the model, in one of these forms (`features_of` describes them):

        * a built Keras model with one input, a submodel, a SavedModel or a PyTorch module
        * the path or the name of such a model
        * a function from images to `{layer: tensor}` or `{layer: array}`
        * `{layer: array}`, stored activations, for measurements that do not need images

        Tensors have the shape (example, token, channel), (example, row, column, channel) or
        (example, channel).
    layers: layers to measure, as a shell pattern, a name, or a list of these. By default, each
        measurement selects its layers: the representations (the embedding, the output of each block
        or stage, the final norm), the attention weights, or the skips and branches.
    detail: a subset of these layers, for measurements of representations:

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
    num_classes: number of classes; by default, it is inferred from the labels, the data set or the
        model.
    grid: `TokenGrid` of the tokens, or a pair (rows, columns); by default, the grid of the
        features.
    classes: names of classes, or positions of classes among the scores. By default, these are the
        classes that are predicted for the images, at most 5.
    tokens: how the tokens of a layer are summarized: `"cls"` is the CLS token, `"spatial"` is the
        mean of the spatial tokens, and `"all"` is the mean of all tokens. The `token_grid` of the
        features determines which tokens are spatial. None means the CLS token or, without one, the
        mean of the spatial tokens. A layer that is a vector is used unchanged.

In the examples of the measurements, `vit` and `bit` are models, such as those of
`vit_tf.load("vit-cls-cifar10")` and `vit_tf.load("bit-cifar10")`, `images` is an array of shape
(24, height, width, channel), and `labels` is an array of integers of shape (24,).
"""

import lazy_loader

from vit_tf.common.names import near_names

# What people of other libraries call, and what answers it here.
GUESSES = {
    **dict.fromkeys(("saliency", "saliency_map", "saliency_maps"), "input_gradients or grad_cam"),
    **dict.fromkeys(
        ("attribute", "attributions", "gradcam", "gradients"), "grad_cam or input_gradients"
    ),
    **dict.fromkeys(("smoothgrad", "vanilla_gradient"), "input_gradients"),
    **dict.fromkeys(("occlusion", "perturbation"), "robustness or token_ablation"),
    **dict.fromkeys(("attention_map", "attention_weights", "get_attention"), "attention"),
    **dict.fromkeys(("rollout", "chefer"), "attention_rollout or gradient_attention"),
    **dict.fromkeys(("nearest_neighbors", "nearest_neighbours", "neighbors"), "neighbours"),
    **dict.fromkeys(("nearest_images", "similar_images", "search", "kneighbors"), "neighbours"),
    **dict.fromkeys(("knn", "knn_probe", "k_nn"), "knn_accuracy or neighbours"),
    **dict.fromkeys(("pca", "umap", "tsne", "scatter", "embed", "embeddings"), "projection"),
    **dict.fromkeys(("errors", "misclassified", "top_losses", "wrong_predictions"), "mistakes"),
    **dict.fromkeys(("confusion", "confusion_matrix", "worst"), "mistakes"),
    **dict.fromkeys(
        ("probe", "linear_probing", "linear_evaluation"), "linear_probe or ridge_probe"
    ),
    **dict.fromkeys(("lens", "logits_lens"), "logit_lens"),
    **dict.fromkeys(("features", "activations", "extract_features"), "vit_tf.submodel(model)"),
    **dict.fromkeys(("get_activations", "hidden_states"), "vit_tf.submodel(model)"),
    **dict.fromkeys(("load", "load_model", "create_model"), "vit_tf.load(name)"),
    **dict.fromkeys(
        ("compare", "compare_models"), "cka(a, images, b) or make_report([a, b], images)"
    ),
    **dict.fromkeys(
        ("save", "to_csv", "export"),
        "result.to_netcdf(path), result.to_dataframe() or plot(result).figure.savefig(path)",
    ),
    **dict.fromkeys(
        ("show", "visualize", "visualise", "draw"), "plot(result) or explore(model, image)"
    ),
    **dict.fromkeys(("analyze", "analyse", "run", "html"), "make_report(models, images)"),
    **dict.fromkeys(("similarity_matrix", "linear_cka", "kernel_cka"), "cka or similarities"),
    **dict.fromkeys(("head_importance", "prune_heads", "head_pruning"), "head_ablation"),
    **dict.fromkeys(("dashboard", "app", "gui", "serve"), "explore(model, image)"),
    **dict.fromkeys(("explain", "shap", "lime", "captum"), "grad_cam or input_gradients"),
    **dict.fromkeys(("kmeans", "cluster", "silhouette"), "clustering"),
    **dict.fromkeys(("summary", "list_layers"), "layers(model)"),
    **dict.fromkeys(("measurements", "list_measurements"), "dir(vit_tf.analysis)"),
    **dict.fromkeys(("classify", "top_k"), "predict(model, images)"),
    "evaluate": "mistakes, or the command vit-tf evaluate",
}
_public, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)


def __getattr__(name: str) -> object:
    """A public name, imported when first used; an `AttributeError` lists near matches."""
    try:
        return _public(name)
    except AttributeError:
        if name.startswith("_"):
            raise
        from vit_tf.analysis import engine, plots

        places = {other: f"engine.{other}" for other in vars(engine)["__all__"]}
        places |= {other: f"plots.{other}" for other in vars(plots)["__all__"]}
        places |= {other: other for other in __all__}
        near = [name] if name in places else near_names(name, places)
        hint = GUESSES.get(name) or " or ".join(places[other] for other in near[:3])
        if not hint:
            raise
        raise AttributeError(
            f"module 'vit_tf.analysis' has no attribute {name!r}. Did you mean {hint}?"
        ) from None
