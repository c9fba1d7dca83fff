"""The figures of Walmer et al. 2023 of a set of models, as functions that yield `Row`s."""

from functools import partial

from . import drawing, needs, plots
from . import walmer_measurements as measurements
from .figure_rows import Row, by_role
from .interactive import cka_heatmap

MODELS = ("vit", "gap", "resnet", "mixer", "model")
BASELINES = ("fresh", "noise")


def _attending(subjects):
    return [s for s in by_role(subjects, "vit", "gap", "model") if s.has_attention]


def offsets_of_attention(subjects):
    """Figures 3, 14 and 18: where heads look from their queries, and of which kind that makes them.

    All follow from the mean attention maps.
    """
    for subject in _attending(subjects):
        yield Row(
            f"aligned-attention-{subject.slug}",
            f"Where the heads of {subject.name} look from their queries",
            "Each panel is a head, and its centre the query's own place: what is bright to the "
            "left of it is attended to by tokens to its right. A bright point beside the centre "
            "is an offset head, a bright line an axial one.",
            {subject.name: measurements.aligned_attention(subject)},
            drawing.alone(plots.plot_aligned_attention),
        )
        yield Row(
            f"attention-offset-{subject.slug}",
            f"Mean offset of the heads of {subject.name}",
            "Each point is a head and shows how far, and in which direction, it looks from the "
            "query on average: heads at the centre look evenly around it.",
            {subject.name: measurements.attention_offset(subject)},
            drawing.alone(plots.plot_offsets),
        )
        yield Row(
            f"head-kinds-{subject.slug}",
            f"Kinds of attention heads of {subject.name}",
            "Each cell is a head, named by where it looks: at its own token (strict), around it "
            "(soft), along a row or column (axial), at a neighbour in one direction (offset) or "
            "everywhere (global).",
            {subject.name: measurements.head_classes(subject)},
            drawing.alone(plots.plot_head_classes),
            instead=drawing.one_kind,
        )


def repeated_patterns(subjects):
    """Figures 2, 11 to 13 and 17: whether heads and layers attend to the same few places."""
    for subject in _attending(subjects):
        yield Row(
            f"attention-patterns-{subject.slug}",
            f"Sparse patterns of attention that repeat in {subject.name}",
            "Each cell compares two layers' heads in the same image: high where both attend to "
            "the same few tokens, whatever the query, and low where attention is spread out or "
            "differs. A bright block is a pattern that goes through those layers; colours span "
            "the values.",
            {subject.name: measurements.attention_patterns(subject)},
            drawing.alone(plots.plot_attention_patterns),
        )
        if subject.grid.prefix:
            yield Row(
                f"cls-attention-{subject.slug}",
                f"What the CLS token of {subject.name} attends to",
                "Each panel is a head and shows its attention to each place, averaged over all "
                "images: a single bright spot is a place that it looks at whatever the image "
                "shows.",
                {subject.name: measurements.cls_attention(subject)},
                drawing.alone(plots.plot_attention_maps),
            )


def distances_by_depth(subjects):
    """Figures 4 and 15, and figure 7 right of Dosovitskiy et al.: reach of heads by depth."""
    attending = _attending(subjects)
    if attending:
        yield Row(
            "attention-distance-depth",
            "Attention distance through the depth",
            "Each point is a head, and each line the mean of a layer's heads, in sides of the "
            "token grid: points that spread from bottom to top are a layer of local and global "
            "heads.",
            {subject.name: measurements.unit_distance(subject) for subject in attending},
            lambda results: plots.plot_distance_by_depth(results).figure,
        )


def rollouts(subjects):
    """Attention rollout: what a token has gathered through the layers."""
    for subject in _attending(subjects):
        yield Row(
            f"rollout-{subject.slug}",
            f"Attention rollout of {subject.name}",
            "Each panel shows from which places of the image a token's content comes after that "
            "layer, if every head passes on what it attends to and every skip passes half.",
            {subject.name: measurements.rollout(subject)},
            drawing.alone(plots.plot_rollout),
        )


def norms_compared(subjects):
    """Figures 20 to 22: similarity of what the sites of a model read."""
    for subject in by_role(subjects, "vit", "gap", "resnet", "mixer", "model"):
        if not needs.norms(subject):
            yield Row(
                f"norm-cka-{subject.slug}",
                f"Similarity of what the sites of {subject.name} read",
                "Each cell compares the normalised tokens that two sites read: a bright diagonal "
                "from the upper left to the lower right, across the other, is a model whose last "
                "layers return to what the first ones saw.",
                {subject.name: measurements.norm_cka(subject)},
                drawing.alone(plots.plot_cka),
                cka_heatmap,
            )


def last_layers_compared(subjects):
    """Figures 6 and 19: similarity of the last layers of all models."""
    chosen, _ = _compared(subjects, needs.last_tokens)
    models = [subject for subject in chosen if subject.role not in BASELINES]
    if len(models) > 1:
        yield Row(
            "last-layers",
            "Similarity of the models' last layers",
            "Each cell compares the last layers of two models, "
            + ("of their CLS tokens and " if any(m.has_cls for m in models) else "")
            + "of all tokens with a place: bright cells are models that end at a like "
            "representation.",
            {"all": measurements.last_layers(models)},
            drawing.alone(plots.plot_last_layer_cka),
        )


def skips_and_branches(subjects):
    """Figure 23: similarity of what passes beside attention and what passes through it."""
    for subject in _attending(subjects):
        yield Row(
            f"residual-cka-{subject.slug}",
            f"Similarity of skips and attention branches of {subject.name}",
            "Each cell compares what one attention site adds with what passes beside one: dark "
            "cells on the diagonal are sites that add something new.",
            {subject.name: measurements.residual_cka(subject)},
            drawing.alone(plots.plot_cka),
            cka_heatmap,
        )


def neighbours(subjects):
    """Figures 9 and 28: accuracy of a vote among the nearest training images."""
    compared = _compared(subjects, needs.nothing)
    for top in (1, 5):
        yield from _by_depth(
            f"knn-top-{top}",
            f"k-NN classification through the depth, top {top}",
            "Each point is the accuracy of a vote among the 20 training images whose features "
            f"point in the most similar direction, {_read_of(compared[0])}: where a line "
            "rises, images of a class come to lie together.",
            measurements.knn_accuracy,
            partial(plots.plot_knn, top=top),
            compared,
        )


def clusters(subjects):
    """Figures 7, 24 and 25: agreement of clusters of images with their classes."""
    chosen, baselines = _compared(subjects, needs.nothing)
    yield from _by_depth(
        "clusters",
        "Clusters of images and their classes, through the depth",
        "Each point is the share of images that are of the largest class of their cluster, of as "
        f"many clusters (k-means) as classes; {_read_of(chosen)}.",
        measurements.clustering,
        plots.plot_clustering,
        (chosen, baselines),
    )
    yield from _by_depth(
        "clusters-spatial",
        "Clusters of the mean spatial token and the classes, through the depth",
        "As the figure before, of models with a CLS token, of the mean over all others: a line "
        "above that of CLS is a layer whose tokens say more of the class than CLS does.",
        partial(measurements.clustering, tokens="spatial"),
        plots.plot_clustering,
        ([subject for subject in chosen if subject.has_cls], baselines),
    )


def salient_attention(subjects):
    """Figures 5 and 16: overlap of attention with the objects."""
    chosen, baselines = _compared(subjects, needs.attention, ("fresh",))
    queries = "for the mean over all queries"
    if any(subject.grid and subject.grid.prefix for subject in chosen):
        queries = "for the attention of CLS and for the mean over the other queries"
    return _by_depth(
        "saliency",
        "Attention on the object, through the depth",
        "Each point is a head and shows how the tokens that hold 60 % of its attention overlap "
        f"with the object; lines follow the best head of each layer, {queries}.",
        measurements.saliency,
        plots.plot_saliency_iou,
        (chosen, baselines),
    )


def object_clusters(subjects):
    """Figures 8 left and 26: agreement of clusters of objects with their classes."""
    return _clusters_under_masks(subjects, "objects", measurements.objects)


def part_clusters(subjects):
    """Figures 8 right and 27: agreement of clusters of parts of objects with their names."""
    return _clusters_under_masks(subjects, "parts", measurements.parts)


def _clusters_under_masks(subjects, name, of):
    return _by_depth(
        f"clusters-{name}",
        f"Clusters of {name} and their classes, through the depth",
        f"Each point is the share of {name} that are of the largest class of their cluster, "
        "of as many clusters (k-means) as classes, when the tokens under each mask are averaged.",
        of,
        plots.plot_clustering,
        _compared(subjects, needs.placed),
    )


def videos_followed(subjects):
    """Figures 10 and 30: propagation of masks through videos."""
    return _by_depth(
        "propagation",
        "Objects followed through videos, layer by layer",
        "Each point is how well objects are found in all frames from their masks in the first, "
        "by tokens alone: the mean of the overlap J and of the accuracy of the outline F.",
        measurements.propagation,
        plots.plot_propagation,
        _compared(subjects, needs.square),
    )


def keypoints_found(subjects):
    """Figures 10 and 31: correspondence of keypoints."""
    return _by_depth(
        "keypoints",
        "Keypoints found in another image of their kind, layer by layer",
        "Each point is the share of keypoints whose most similar place in another image lies "
        "within a tenth of its side from the same keypoint there.",
        measurements.keypoints,
        plots.plot_keypoints,
        _compared(subjects, needs.square),
    )


def landmarks_retrieved(subjects):
    """Figures 9 and 29: retrieval of images of the same thing."""
    compared = _compared(subjects, needs.nothing)
    return _by_depth(
        "retrieval",
        "Images of the same thing retrieved, layer by layer",
        "Each point is the mean average precision of a ranking of all images by the similarity of "
        f"their features to those of a query, {_read_of(compared[0])}: 1 if every image of the "
        "same thing comes first.",
        measurements.retrieval,
        plots.plot_retrieval,
        compared,
    )


def probes_by_descent(subjects):
    """Table 6: linear probes trained by gradient descent, with and without batch normalization."""
    compared = _compared(subjects, needs.nothing, ())
    read = "of the mean over all tokens or places"
    if any(subject.has_cls for subject in compared[0]):
        read = "of the CLS token or of the mean over others"
    return _by_depth(
        "linear-probe",
        "Linear probes trained by gradient descent, through the depth",
        "Each point is a softmax classifier trained for 20 epochs on features that stay as they "
        f"are, {read}, as they are or after batch normalization.",
        measurements.linear_probe,
        plots.plot_linear_probe,
        compared,
    )


def _read_of(subjects):
    """Words for what is read of each layer: CLS, the mean over all, or one of each."""
    has_cls = {subject.has_cls for subject in subjects}
    if has_cls == {True}:
        return "of the CLS token"
    mean = "of the mean over all tokens or places"
    return f"of the CLS token or, where there is none, {mean}" if True in has_cls else mean


def _compared(subjects, lacks, baselines=BASELINES):
    """The models that lack nothing and their baselines, and the names of the baselines."""
    chosen = [subject for subject in by_role(subjects, *MODELS) if not lacks(subject)]
    names = {subject.name for subject in chosen}
    others = [s for s in by_role(subjects, *baselines) if s.of in names and not lacks(s)]
    return [*chosen, *others], tuple(subject.name for subject in others)


def _by_depth(name, title, caption, measured, plot, compared):
    """A `Row` of lines through the depth; `compared` is what `_compared` returns."""
    chosen, baselines = compared
    if chosen:
        yield Row(
            name,
            title,
            caption,
            {subject.name: measured(subject) for subject in chosen},
            drawing.lines(plot, baselines),
            baselines=baselines,
        )
