"""What Walmer et al. 2023 measure on a set of models, and attention rollout.

As in `measurements`, the functions say what to measure. Images with masks come as batches of
(images, masks, labels), as for `object_clustering`.
"""

from dataclasses import replace
from functools import partial

import tensorflow as tf

from .aligned_attention import aligned_attention as align
from .aligned_attention import attention_maps, mean_distance
from .aligned_attention import attention_offset as offset
from .attention_patterns import pattern_statistic
from .clustering import cluster_scores, object_statistic
from .head_classes import head_classes as classify
from .keypoints import keypoint_correspondence
from .knn import knn_statistic
from .last_layer import last_layer_statistic
from .linear_probe import linear_probe as train_probes
from .mean_attention import mean_attention_statistic
from .measurement_kinds import Derived, Forward, Task, name_of, of_one
from .measurements import cka
from .pooling import pooled_statistic
from .propagation import label_propagation
from .residual import residual_statistic
from .retrieval import retrieval as retrieve
from .rollout import rollout_statistic
from .saliency import saliency_statistic
from .stream import evaluate
from .subjects import MOST_PANELS, spread
from .token_words import ALL, CLS, KEPT, PARTS
from .tokens import grid_of


def mean_attention(subject):
    """Attention maps averaged over images, which others follow from."""
    return of_one("mean_attention", subject, subject.weights, mean_attention_statistic)


def aligned_attention(subject):
    """Attention of every head by the offset of key from query."""
    return _derived("aligned_attention", mean_attention(subject), align)


def attention_offset(subject):
    """Where every head looks from the query on average."""
    return _derived("attention_offset", aligned_attention(subject), offset)


def unit_distance(subject):
    """Reach of every attention head on a square of side 1, which compares grids."""
    compute = partial(mean_distance, units="unit")
    return _derived("unit_distance", mean_attention(subject), compute)


def cls_attention(subject):
    """What CLS attends to on average."""
    return _derived("cls_attention", mean_attention(subject), attention_maps)


def head_classes(subject):
    """The kind of every attention head."""
    return _derived("head_classes", mean_attention(subject), classify)


def attention_patterns(subject):
    """How far heads and layers attend to the same few tokens of an image."""
    return of_one("attention_patterns", subject, subject.weights, pattern_statistic)


def rollout(subject):
    """Attention followed through the layers down to the input."""
    return of_one("rollout", subject, rollout_taps(subject), rollout_statistic)


def rollout_taps(subject):
    """The taps that rollout reads: weights, skips and sums of all sites of the blocks."""
    blocks = tuple(tap.split("/")[0] + "/" for tap in subject.weights)
    ends = ("/weights", "/skip", "/branch", "/sum")
    return [tap for tap in subject.taps if tap.startswith(blocks) and tap.endswith(ends)]


def saliency(subject):
    """Whether what is attended to is the object in the image."""
    return of_one("saliency", subject, subject.weights, _of_union, reads="objects")


def _of_union(features):
    """The statistic of saliency, of the union of all masks of an image."""
    inner = saliency_statistic(features)

    def step(images, masks, labels, taps):
        return inner.step(images, tf.reduce_any(tf.cast(masks, tf.bool), axis=1), taps)

    return replace(inner, step=step)


def norm_cka(subject):
    """Similarity of what the sites read, the normalised tokens."""

    def choose(result):
        """Of the layers that vary, those after a norm."""
        chosen = [tap for tap in norm_taps(subject) if tap in result["layer_x"].values]
        return result.sel(layer_x=chosen, layer_y=chosen)

    return _derived("norm_cka", cka(subject), choose)


def norm_taps(subject):
    """The taps after a norm: what each site reads, and the last one."""
    return [tap for tap in subject.taps if f"/{tap}".endswith("/norm")]


def residual_cka(subject):
    """Similarity of skips and branches of all attention sites."""
    return of_one("residual_cka", subject, residual_taps(subject), residual_statistic)


def residual_taps(subject):
    """The skips and the branches of all attention sites."""
    return [t for t in subject.taps if t.endswith(("attention/skip", "attention/branch"))]


def last_layers(subjects):
    """Similarity of the last tokens of several models."""
    names = [subject.name for subject in subjects]
    taps = tuple((last_tokens(subject),) for subject in subjects)

    def statistic(*features):
        return last_layer_statistic(dict(zip(names, features, strict=True)))

    return Forward(name_of("last_layers", *subjects), tuple(subjects), taps, statistic)


def last_tokens(subject):
    """The last tap that holds tokens or places, or None."""
    norm = [tap for tap in subject.taps if tap == "norm"]
    found = subject.on_grid(norm or subject.blocks)
    return found[-1] if found else None


def knn_accuracy(subject):
    """Accuracy of a vote among the nearest training images."""
    (pooled,) = inputs = (_pooled(subject, _summary(subject)),)

    def compute(data, results):
        features = subject.features(*pooled.taps[0])
        statistic = knn_statistic(features, results[0], data.num_classes)
        return evaluate(statistic, data.gallery, features, description="k-NN: training images")

    return Task(name_of("knn_accuracy", subject), (subject,), compute, "gallery", inputs)


def retrieval(subject):
    """How early images of the same thing come among those most similar to one."""
    tokens = _summary(subject)

    def compute(data, _):
        features = subject.features(*_summarised(subject, tokens))
        return retrieve(features, *data.landmarks, tokens=tokens)

    return Task(name_of("retrieval", subject), (subject,), compute, "landmarks")


def linear_probe(subject):
    """Accuracy of softmax classifiers trained by gradient descent on every layer."""
    tokens = PARTS if subject.has_cls else (ALL,)

    def compute(data, _):
        features = subject.features(*_summarised(subject, tokens[0]))
        return train_probes(features, data.gallery, data.test, data.num_classes, tokens=tokens)

    return Task(name_of("linear_probe", subject), (subject,), compute, "gallery")


def clustering(subject, tokens=None):
    """Agreement of clusters of images with their classes; `tokens` as for `pooling.pool`."""
    tokens = tokens or _summary(subject)
    name = name_of(f"clustering_{KEPT[tokens]}", subject)
    return Task(
        name,
        (subject,),
        lambda data, results: cluster_scores(subject, results[0]),
        "test",
        (_pooled(subject, tokens),),
    )


def _summary(subject):
    """What stands for an image: the CLS token where there is one, else the mean of all."""
    return CLS if subject.has_cls else ALL


def _pooled(subject, tokens):
    """Pooled features of the test images, that others share."""
    name = name_of(f"pooled_{KEPT[tokens]}", subject)
    taps = (tuple(_summarised(subject, tokens)),)

    def statistic(features):
        return pooled_statistic(tokens, grid_of(features, None))

    return Forward(name, (subject,), taps, statistic, kept=False)


def _summarised(subject, tokens):
    """The block outputs, without the embedding for CLS, which is there the same for all images."""
    taps = subject.blocks if tokens == ALL else subject.on_grid(subject.blocks)
    taps = taps if subject.has_sums else spread(taps, MOST_PANELS)
    return [tap for tap in taps if "/" in tap] if tokens == CLS else taps


def objects(subject):
    """Agreement of clusters of objects with their classes."""
    return of_one("objects", subject, placed(subject), object_statistic, reads="objects")


def parts(subject):
    """Agreement of clusters of parts of objects with their names."""
    return of_one("parts", subject, placed(subject), object_statistic, reads="parts")


def propagation(subject):
    """How well objects of videos are followed from their masks in the first frame."""

    def compute(data, _):
        features = subject.features(*placed(subject))
        return label_propagation(features, data.videos, subject.grid)

    return Task(name_of("propagation", subject), (subject,), compute, "videos")


def keypoints(subject):
    """How often a keypoint is found in another image of its kind."""

    def compute(data, _):
        features = subject.features(*placed(subject))
        return keypoint_correspondence(features, data.pairs, subject.grid)

    return Task(name_of("keypoints", subject), (subject,), compute, "pairs")


def placed(subject):
    """Block outputs whose tokens lie on the model's grid; of a ResNet those of the last stage."""
    if subject.stages:
        return [tap for tap in subject.blocks if tap.startswith(f"{subject.stages[-1]}/")]
    found = subject.on_grid(subject.blocks)
    return found if subject.has_sums else spread(found, MOST_PANELS)


def _derived(analysis, one, compute):
    """What is computed from one other result."""
    name = name_of(analysis, *one.subjects)
    return Derived(name, (one,), lambda results: compute(results[0]))
