"""Measurements of what a vision model has learned.

Every measurement takes a model and images, streams them through it once and returns a labelled
xarray result: `analysis.cka(model, images)`. Plots are in `analysis.plots`; what a measurement of
one's own is made of is in `analysis.engine`, and `analysis.cka.statistic` is what `cka` adds up.

Args that the measurements share, unless their docstrings say otherwise:
    features: the model, or anything that has an answer: any built Keras model of one input, a
        submodel, a SavedModel, the path or name of one of these, a function from images to
        `{layer: tensor}` or `{layer: array}`, and, where images are not needed, `{layer: array}`
        alone. Tensors are of shape (example, token, channel), (example, row, column, channel) or
        (example, channel). See `features_of`.
    layers: which layers are measured: a shell pattern, a name or a list of them. The default is the
        layers that the measurement is about: the representations of the model (the embedding, the
        output of each block or stage, the final norm), its attention weights, or its skips and
        branches.
    detail: a subset of these layers: `"blocks"`, without the final norm and what is pooled;
        `"grid"`, those blocks on the grid of the last; `"lower"`, the lower half;
        `"sums"`, the residual stream after each sublayer; `"sublayers"`, layers inside of blocks
        too, where these have known names; or how many of the layers, evenly spaced.
    images: array of shape (example, height, width, channel), or one image; PIL images, paths, a
        list of these, or a folder; or a `tf.data.Dataset`, batched or not, of images, of (images,
        labels) with or without weights, or of dicts. Files, PIL images and 8-bit values are
        resized and normalised as the model declares; floats are taken as they are, and compared
        with its range.
    train, test: the same with labels, which are integers from 0 to `num_classes - 1`: a
        `tf.data.Dataset` of (images, labels), a pair of arrays, or a folder of class folders.
    num_classes: number of classes; by default it is inferred from the labels, the data set or the
        model.
    grid: `TokenGrid` of the tokens, or a pair (rows, columns); by default the features' own.
    classes: names or positions of classes among the scores; by default the classes that are
        predicted for the images, 5 at most.
    tokens: summary of a layer: the `"cls"` token, or the mean of the `"spatial"` tokens or of
        `"all"` tokens. The `token_grid` of the features separates them. None means the CLS token if
        there is one, and the mean of the spatial tokens otherwise. A layer that is a vector is used
        as it is.

In the examples of the measurements, `vit` and `bit` are models, such as those of
`vit_tf.load("vit-cls-cifar10")` and `vit_tf.load("bit-cifar10")`, `images` is an array of shape
(24, height, width, channel) and `labels` an array of integers of shape (24,).
"""

import lazy_loader

from vit_tf.common.names import near_names

# What people of other libraries call, and what answers it here.
GUESSES = {
    **dict.fromkeys(("saliency", "saliency_map", "saliency_maps"), "input_gradients or grad_cam"),
    **dict.fromkeys(
        ("attribute", "attributions", "gradcam", "gradients"), "grad_cam or input_gradients"
    ),
    **dict.fromkeys(("integrated_gradients", "smoothgrad", "vanilla_gradient"), "input_gradients"),
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
    **dict.fromkeys(("summary", "layers", "list_layers"), "model.taps"),
    **dict.fromkeys(("measurements", "list_measurements"), "dir(vit_tf.analysis)"),
    **dict.fromkeys(("predict", "classify"), "mistakes or explore(model, image)"),
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
