"""Interventions: ablation of heads, skips and tokens, and activation patching."""

from __future__ import annotations

import re
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import TokenGrid, edits
from vit_tf.common.names import format_list
from vit_tf.data.batches import split_batches
from vit_tf.data.labels import batch_labels, require_counted
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail, Shape
from vit_tf.features.structure import OF_SUBLAYERS
from vit_tf.features.tokens import as_grid

from ..engine.class_scores import (
    class_divergence,
    classification_loss,
    require_scores,
)
from ..engine.measurements import labels_after_images, measurement
from ..engine.pooling import PartialGrid, grid_of
from ..engine.preparation import (
    ImagesLike,
    prepare_images,
    prepare_scored,
    read_model,
    score_layer,
)
from ..engine.results import CLS, ResultDataset, facts_of, require_finite, require_word, variable
from ..engine.stream import Statistic, Totals, as_dataset, evaluate, mean_per_batch
from ..engine.traces import reusable
from ..statistics.intervals import mean_from_sums

TOGETHER = 256  # images, those of all runs of a batch, whose activations are in memory at once
REPLACEMENTS = ZERO, MEAN, RESAMPLE = "zero", "mean", "resample"
RANDOM, LARGEST, ATTENDED, UNATTENDED = "random", "largest", "attended", "unattended"
REGISTERS = "registers"
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)
CHANGES = {
    "accuracy_change": ("accuracy with the intervention minus without", "1"),
    "loss_change": ("cross-entropy with the intervention minus without", "nat"),
    "output_change": ("divergence of the predicted classes from those without", "nat"),
}

# Function of the taps, the images and the state of the statistic to the edits by tap of each run.
Interventions: TypeAlias = Callable[[Taps, tf.Tensor, Any], list[dict[str, edits.Edit]]]


@measurement("heads")
@labels_after_images
def head_ablation(
    model: ModelLike,
    images: ImagesLike,
    scores: str | None = None,
    replacement: str = ZERO,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Change of a model's predictions when the output of one attention head is removed.

    The output of the head is replaced at every token, before the output projection of the attention
    (Michel et al. 2019, https://arxiv.org/abs/1905.10650). A change of zero means that no later
    layer uses the output of the head, or that other heads and layers compensate for it.

    Args:
        model: a model, or a submodel that returns the outputs of heads, of shape (example,
            token, head, channel), and the class scores, as in `vit_tf.submodel(vit, "*/heads",
            "logits")`. For a model with attention layers of Keras, the submodel returns the values
            `"*/value"` instead of `"*/heads"`, since the output of a head is a weighted mean of the
            values of the head.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays.
        scores: name of the layer that returns the class scores before a softmax, of shape (example,
            class). By default, it is found in the model.
        replacement: the new output of a head. `"zero"` sets the output to zero, `"mean"` uses the
            mean of the output over the images, separately for each token, and `"resample"` uses the
            output of the same head for another image of the batch.

    Returns:
        Dataset with three changes, each of shape (layer, head). If layers differ in their number of
        heads, values are NaN for heads that a layer does not have.

        * `accuracy_change`: the accuracy with the replacement minus the accuracy without it.
        * `loss_change`: the cross-entropy with the replacement minus the cross-entropy without it,
          in nats.
        * `output_change`: the mean over examples of sum_c p(c) log(p(c) / p'(c)), in nats. This is
          the KL divergence between the class probabilities p without the replacement and the class
          probabilities p' with it.
        * `accuracy_change_stderr`, `loss_change_stderr` and `output_change_stderr`: the standard
          errors of the three changes above, paired over images.
        * `accuracy` and `loss`, scalars: the accuracy and the cross-entropy of the unmodified
          model.

    Raises:
        ValueError: if the submodel does not return outputs of heads and class scores, if several
            heads share values (grouped-query attention), if `replacement` is unknown, or if scores
            are not finite.

    Examples:
        >>> effect = analysis.head_ablation(vit, (images, labels))
        >>> effect.accuracy_change.dims
        ('layer', 'head')
        >>> ax = analysis.plot(effect)

    See also:
        `plots.plot_head_ablation`, `skip_ablation`, `token_ablation`; page
        measurements/flow/interventions.md.
    """
    features, images, scores = prepare_scored(
        model, images, scores, kind="heads", layers=layers, detail=detail, labelled=True
    )
    shapes = layers_to_edit(features, scores)
    if unlike := {layer: shape for layer, shape in shapes.items() if len(shape) != 3}:
        raise ValueError(
            "Expected outputs of heads of shape (token, head, channel) for each example. "
            f"Received: {unlike}"
        )
    if shared := [tap for tap in shapes if tap in features.facts.structure.shared_values]:
        raise ValueError(
            "Expected layers with separate values for each head. Received: "
            f"{format_list(shared)}, where several heads share values (grouped-query attention), "
            "so the heads cannot be removed one by one. Select other layers with layers="
        )
    # A first pass computes the means that replace the outputs of heads in the second one.
    means = means_to_insert(features, images, list(shapes), replacement, "means of heads")
    num_heads = {layer: cast(int, shape[1]) for layer, shape in shapes.items()}
    cells = [(layer, head) for layer, count in num_heads.items() for head in range(count)]
    result = measure_effects(
        features,
        replace(_head_statistic(features, scores, cells, replacement), state=means),
        cells,
        ("layer", "head"),
        images,
        scores=scores,
        description="head ablation",
        replacement=replacement,
    )
    return result.reindex(layer=list(shapes))


@reusable
def _head_statistic(
    features: Features, scores: str, cells: Sequence[tuple[str, int]], replacement: str
) -> Statistic[Totals]:
    """The `effects_statistic` of `head_ablation`; its state is the mean of each tap, if any."""

    def interventions(taps: Taps, images: tf.Tensor, means: Taps | None) -> list[dict[str, Any]]:
        return [
            {tap: edits.head(head, replacement_of(replacement, tap, means))} for tap, head in cells
        ]

    return effects_statistic(features, interventions, scores, len(cells), replacement)


@measurement("ablated_skips")
@labels_after_images
def skip_ablation(
    model: ModelLike,
    images: ImagesLike,
    scores: str | None = None,
    whole_blocks: bool = True,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Change of a model's predictions when the skips or the branches of one block are removed.

    The skips or the branches are set to zero in the trained model. Without its branches, a block is
    the identity (Bhojanapalli et al. 2021, https://arxiv.org/abs/2103.14586). Without its skips, a
    block consists of its branches only, as in the models that Raghu et al. 2021 trained without
    skips (figure 8).

    Args:
        model: a model, or a submodel that returns skips, branches and class scores, such as
            `vit_tf.submodel(vit, "*/skip", "*/branch", "logits")`, with layers named as in the
            models of this package.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays.
        scores: name of the layer that returns the class scores before a softmax, of shape (example,
            class). By default, it is found in the model.
        whole_blocks: if true, the skips (or branches) of a whole block are removed at once. If
            false, the skips (or branches) of the attention and of the MLP are removed separately. A
            unit of a ResNet has a single skip and a single branch.

    Returns:
        Dataset with three changes, each of shape (layer, path). Each layer is a block, or, if
        `whole_blocks` is false, the attention or MLP of a block, such as `"block00/mlp"`. The dim
        `path` states which part is removed, `"skip"` or `"branch"`. If a layer has no skip, its
        values for `"skip"` are NaN.

        * `accuracy_change`: the accuracy with the removal minus the accuracy without it.
        * `loss_change`: the cross-entropy with the removal minus the cross-entropy without it, in
          nats.
        * `output_change`: the mean over examples of sum_c p(c) log(p(c) / p'(c)), in nats. This is
          the KL divergence between the class probabilities p without the removal and the class
          probabilities p' with it.
        * `accuracy_change_stderr`, `loss_change_stderr` and `output_change_stderr`: the standard
          errors of the three changes above, paired over images.
        * `accuracy` and `loss`, scalars: the accuracy and the cross-entropy of the unmodified
          model.

    Raises:
        ValueError: if the submodel does not return class scores and skips or branches, or if scores
            are not finite.

    Examples:
        >>> effect = analysis.skip_ablation(vit, (images, labels))
        >>> effect.layer.values.tolist()
        ['block00', 'block01']
        >>> effect.path.values.tolist()
        ['skip', 'branch']

    See also:
        `plots.plot_skip_ablation`, `skip_ratio`, `head_ablation`; page
        measurements/flow/interventions.md.
    """
    features, images, scores = prepare_scored(
        model, images, scores, kind="ablated_skips", layers=layers, detail=detail, labelled=True
    )
    # The taps that are set to zero together, by layer and path.
    removed: dict[tuple[str, str], list[str]] = {}
    for tap in layers_to_edit(features, scores):
        site, _, path = tap.rpartition("/")
        if path in ("skip", "branch") and site:
            layer = re.sub(OF_SUBLAYERS, "", site) if whole_blocks else site
            removed.setdefault((layer, path), []).append(tap)
    if not removed:
        raise ValueError(
            "Expected layers 'NAME/skip' or 'NAME/branch' to remove. Received: "
            f"{format_list(features.facts.layers)}"
        )
    return measure_effects(
        features,
        _skip_statistic(features, scores, list(removed.values())),
        removed,
        ("layer", "path"),
        images,
        scores=scores,
        description="skip ablation",
    )


@reusable
def _skip_statistic(
    features: Features, scores: str, removed: Sequence[Sequence[str]]
) -> Statistic[Totals]:
    """The `effects_statistic` of `skip_ablation`, from the taps that each run sets to zero."""
    runs = [dict.fromkeys(taps, edits.zero) for taps in removed]
    return effects_statistic(features, lambda *_: runs, scores, len(runs))


@measurement("embedding")
@labels_after_images
def token_ablation(
    model: ModelLike,
    images: ImagesLike,
    scores: str | None = None,
    replacement: str = ZERO,
    shares: Sequence[float] = SHARES,
    grid: PartialGrid = None,
    seed: int = 0,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Change of a model's predictions when prefix tokens, or a share of the spatial tokens, are
    replaced.

    The tokens are replaced at one layer. Prefix tokens are CLS and the registers. Spatial tokens
    are replaced in one of the following orders.

    * `"random"`: in random order.
    * `"largest"`: tokens with the largest Euclidean norm first (see `outlier_tokens`).
    * `"attended"`: tokens that receive the most attention first.
    * `"unattended"`: tokens that receive the least attention first.

    The attention that a token receives is averaged over heads and over the prefix queries. If there
    are no prefix tokens, this attention is averaged over heads and over all queries. ViTs are more
    robust than ResNets to the removal of patches from the image (Naseer et al. 2021,
    https://arxiv.org/abs/2105.10497).

    Args:
        model: a model, or a submodel that returns the tokens to replace, of shape (example,
            token, channel), and the class scores. To order tokens by attention, the submodel also
            returns attention weights, as in `vit_tf.submodel(vit, "embedding",
            "block00/attention/weights", "logits")`.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays.
        scores: name of the layer that returns the class scores before a softmax, of shape (example,
            class). By default, it is found in the model.
        replacement: the new value of a token. `"zero"` sets the token to zero, `"mean"` uses the
            mean of the token over the images, and `"resample"` uses the token at the same position
            in another image of the batch.
        shares: shares of the spatial tokens to replace, in (0, 1].
        grid: `TokenGrid` of the tokens; by default the grid of the model.
        seed: seed of the random order. The order differs from batch to batch.

    Returns:
        Dataset with three changes, each of shape (tokens, share). The dim `tokens` lists `"cls"`,
        `"registers"` (all prefix tokens except CLS) and the orders of spatial tokens. `"cls"` and
        `"registers"` are included only if the model has such tokens. All registers are replaced at
        once, so `"cls"` and `"registers"` have values only at share 1, and NaN at other shares. If
        `shares` does not include 1, the orders of spatial tokens have NaN at share 1.

        * `accuracy_change`: the accuracy with the replacement minus the accuracy without it.
        * `loss_change`: the cross-entropy with the replacement minus the cross-entropy without it,
          in nats.
        * `output_change`: the mean over examples of sum_c p(c) log(p(c) / p'(c)), in nats. This is
          the KL divergence between the class probabilities p without the replacement and the class
          probabilities p' with it.
        * `accuracy_change_stderr`, `loss_change_stderr` and `output_change_stderr`: the standard
          errors of the three changes above, paired over images.
        * `accuracy` and `loss`, scalars: the accuracy and the cross-entropy of the unmodified
          model.

    Raises:
        ValueError: if the submodel does not return one layer of tokens and the class scores, if
            tokens do not fit the grid, if a share is out of range, or if scores are not finite.

    Examples:
        >>> effect = analysis.token_ablation(vit, (images, labels), shares=(0.25, 0.5))
        >>> effect.tokens.values.tolist()
        ['cls', 'random', 'largest', 'attended', 'unattended']

    See also:
        `plots.plot_token_ablation`, `head_ablation`; page measurements/flow/interventions.md.
    """
    features, images, scores = prepare_scored(
        model, images, scores, kind="embedding", layers=layers, detail=detail, labelled=True
    )
    shapes = layers_to_edit(features, scores)
    # The layer of tokens has two axes, and attention weights, by which tokens are ranked, three.
    weights = [layer for layer, shape in shapes.items() if len(shape) == 3]
    tokens = [layer for layer, shape in shapes.items() if len(shape) == 2]
    known_grid, token_grid, num_tokens = grid_of(features, grid), None, None
    if known_grid is not None and tokens:
        num_tokens = shapes[tokens[0]][0]
        token_grid = as_grid(known_grid, num_tokens)
    has_one_of_each = len(tokens) == 1 and len(weights) <= 1
    if token_grid is None or not has_one_of_each or num_tokens != token_grid.num_tokens:
        raise ValueError(
            "Expected a submodel with one layer of tokens (example, token, channel) on a "
            "known grid, at most one layer of attention weights, and the scores. Received: "
            f"{shapes}, grid={token_grid or known_grid}"
        )
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"Expected shares in (0, 1]. Received: {tuple(shares)}")
    # All CLS tokens or registers are one run, and each share of each order of the others.
    orders = (RANDOM, LARGEST, *((ATTENDED, UNATTENDED) if weights else ()))
    cells = [(name, 1.0) for name in (CLS, REGISTERS)[: token_grid.prefix]]
    cells += [(order, float(share)) for order in orders for share in shares]
    means = means_to_insert(features, images, tokens, replacement, "means of tokens")
    result = measure_effects(
        features,
        replace(
            _token_statistic(
                features,
                scores,
                [*tokens, *weights],
                cells=cells,
                replacement=replacement,
                grid=token_grid,
                seed=seed,
            ),
            state=means,
        ),
        cells,
        ("tokens", "share"),
        images,
        scores=scores,
        description="token ablation",
        layer=tokens[0],
        replacement=replacement,
        seed=seed,
    )
    return result.sortby("share")


@reusable
def _token_statistic(
    features: Features,
    scores: str,
    layers: Sequence[str],
    *,
    cells: Sequence[tuple[str, float]],
    replacement: str,
    grid: TokenGrid,
    seed: int,
) -> Statistic[Totals]:
    """The `effects_statistic` of `token_ablation`; its state is the mean of the tokens, if any.

    `layers` are the layer of tokens and, if there are any, attention weights.
    """
    layer = layers[0]

    def interventions(taps: Taps, images: tf.Tensor, means: Taps | None) -> list[dict[str, Any]]:
        ranks = _ranks(images, [taps[name] for name in layers], grid, seed)
        edit = replacement_of(replacement, layer, means)
        runs = []
        for name, share in cells:
            if name in ranks:
                is_replaced = ranks[name] < round(share * grid.num_spatial)
                mask = tf.pad(is_replaced, ((0, 0), (grid.prefix, 0)))  # False for the prefix
                runs.append({layer: edits.where(mask[..., None], edit)})
            else:
                runs.append({layer: edits.tokens(edits.token_set(grid, name), edit)})
        return runs

    return effects_statistic(features, interventions, scores, len(cells), replacement)


def _ranks(
    images: tf.Tensor, values: Sequence[tf.Tensor], grid: TokenGrid, seed: int
) -> dict[str, tf.Tensor]:
    """Rank of each spatial token in each order, of shape (example, token): dict from order.

    `values` are the tokens and, if there are any, attention weights.
    """
    tokens, *weights = (tf.cast(x, tf.float32) for x in values)
    # A number of the images, so that batches differ, a run can be repeated, and the same tokens of
    # the same images are removed from every model.
    of_batch = tf.bitcast(tf.reduce_sum(tf.cast(images, tf.float32)), tf.int32)
    shape = (tf.shape(tokens)[0], grid.num_spatial)
    keys = {RANDOM: tf.random.stateless_uniform(shape, tf.stack([seed, of_batch]))}
    keys[LARGEST] = -tf.norm(grid.spatial(tokens), axis=-1)
    if weights:
        queries = grid.prefix or grid.num_tokens
        received = tf.reduce_mean(weights[0][:, :, :queries, grid.prefix :], axis=[1, 2])
        keys |= {ATTENDED: -received, UNATTENDED: received}
    return {
        order: tf.argsort(tf.argsort(key, stable=True), stable=True) for order, key in keys.items()
    }


@measurement("patching", arguments="{model}, pairs")
def activation_patching(
    model: ModelLike,
    pairs: ImagesLike,
    scores: str | None = None,
    source: ModelLike | None = None,
    tokens: Sequence[int] | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Activation patching: effect on the scores when one token gets its value from another image.

        transfer = sum over pairs of <s_patched - s, d> / sum over pairs of |d|^2,  d = s_other - s

    Each pair consists of an image and another image. `s` are the class scores of the image, and
    `s_other` are the scores of the other image. `s_patched` are the scores of the image if one
    token at one layer gets the value that it has for the other image (Meng et al. 2022,
    https://arxiv.org/abs/2202.05262, for language models). The transfer is 0 if the token has no
    effect, and 1 if the token carries the whole difference between the scores of the two images. It
    may be below 0 or above 1.

    Args:
        model: a model, or a submodel that returns layers of tokens, of shape (example, token,
            channel), and the class scores, as in `vit_tf.submodel(vit, "block*/mlp/sum",
            "logits")`.
        pairs: batched `tf.data.Dataset` of (images, other images), or a pair of arrays.
        scores: name of the layer that returns the class scores, of shape (example, class). By
            default, it is found in the model.
        source: a submodel of another model of the same architecture, which computes the values for
            the other images. By default, `model` computes them. To compare two models on the same
            images, pass pairs of identical images.
        tokens: positions of the tokens to patch; all tokens by default.

    Returns:
        Dataset with two variables of shape (layer, token).

        * `transfer`: the transfer when this token is patched at this layer.
        * `stderr`: the standard error of the transfer over pairs, by linearization of the ratio.

    Raises:
        ValueError: if the submodel does not return class scores and layers of tokens, if layers
            differ in their number of tokens, or if `source` lacks one of the layers.
        ValueError: if the two images have equal scores in every pair, or if scores are not finite.

    Examples:
        >>> effect = analysis.activation_patching(vit, (images[:2], images[2:4]), tokens=[0, 1])
        >>> effect.transfer.dims
        ('layer', 'token')
        >>> ax = analysis.plot(effect)

    See also:
        `plots.plot_activation_patching`, `logit_lens`; page
        measurements/flow/activation-patching.md.
    """
    models = [
        read_model(each, "patching", layers, detail, images=pairs)
        for each in (model, source)
        if each is not None
    ]
    # Both images of a pair must keep their position, so pairs stay in their order.
    data = as_dataset(pairs)
    (features, *others), _ = prepare_images(models, {"pairs": data}, scores=[scores] * len(models))
    other_model = others[0] if others else features
    scores = score_layer(features, scores)
    shapes = layers_to_edit(features, scores)
    counts = [shape[0] for shape in shapes.values() if len(shape) == 2 and shape[0] is not None]
    if len(set(counts)) > 1 or len(counts) < len(shapes):
        raise ValueError(
            "Expected layers with the same number of tokens, of shape (example, token, "
            f"channel). Received: {shapes}"
        )
    if missing := [tap for tap in features.facts.layers if tap not in other_model.facts.layers]:
        raise ValueError(
            f"Expected the other model to have the same layers. Missing: {format_list(missing)}"
        )
    ranks = [spec.shape.rank for spec in tf.nest.flatten(data.element_spec)]
    if len(ranks) != 2 or set(ranks) - {4, None}:
        raise ValueError(
            "Expected pairs of images: (images, other images), without labels. "
            f"Received elements {data.element_spec}"
        )
    positions = range(counts[0]) if tokens is None else [int(t) for t in tokens]
    cells = [(tap, position) for tap in shapes for position in positions]
    size = batch_size_of(len(cells))
    totals = evaluate(
        _patching_statistic(features, other_model, scores, cells, TOGETHER // size),
        split_batches(data, size),
        description="activation patching",
        checked=(features, other_model),
    )
    products, squares, count = totals["products"], totals["squares"], totals["examples"]
    require_finite("activation patching", [products, squares], ["scores"] * 2)
    if not squares > 0:
        raise ValueError(
            "The scores of both images are equal in every pair, so there is no difference to patch."
        )
    # The transfer is a ratio of sums over pairs, whose error is linearized.
    ratio = products / squares
    residual = totals["products^2"] - 2 * ratio * totals["products*squares"]
    residual = np.maximum(residual + ratio**2 * totals["squares^2"], 0)
    correction = count / (count - 1) if count > 1 else np.nan
    error = np.sqrt(residual * correction) / squares
    variables = {
        "transfer": variable("intervention", ratio, "share of the way to the other run"),
        "stderr": variable("intervention", error, "standard error"),
    }
    facts = facts_of(
        features,
        totals,
        "ratio of sums over pairs, standard error by linearization",
        scores=scores,
    )
    return as_table(variables, facts, cells, ("layer", "token"))


@reusable
def _patching_statistic(
    features: Features,
    source: Features,
    scores: str,
    cells: Sequence[tuple[str, int]],
    max_runs: int,
) -> Statistic[Any]:
    """`Statistic` over pairs of images with what is summed, from which transfers follow."""

    def step(images: tf.Tensor, others: tf.Tensor) -> dict[str, tf.Tensor]:
        other = source(tf.cast(others, tf.float32))
        runs = [{t: edits.tokens(p, edits.constant(other[t]))} for t, p in cells]
        taps, patched = features.run_interventions(runs, scores, images, max_runs)
        require_scores(taps, scores, [0])
        # The inner product of the change by a patch with the difference between both runs, and the
        # square of this difference; their squares and products are for the standard error.
        plain = tf.cast(taps[scores], tf.float32)
        difference = tf.cast(other[scores], tf.float32) - plain
        change = tf.cast(patched, tf.float32) - plain
        products = tf.reduce_sum(change * difference, axis=-1)
        squares = tf.reduce_sum(tf.square(difference), axis=-1)
        return {
            "products": tf.reduce_sum(products, axis=1),
            "squares": tf.reduce_sum(squares),
            "products^2": tf.reduce_sum(products**2, axis=1),
            "products*squares": tf.reduce_sum(products * squares, axis=1),
            "squares^2": tf.reduce_sum(squares**2),
            "examples": tf.shape(images)[0],
            "batches": tf.constant(1),
        }

    return Statistic(step, lambda totals: totals, with_labels=True)


def effects_statistic(
    features: Features,
    interventions: Interventions,
    scores: str,
    count: int,
    replacement: str = ZERO,
) -> Statistic[Totals]:
    """`Statistic` over images and labels, whose totals `measure_effects` reads.

    `count` is the number of interventions.
    """
    min_batch = 2 if replacement == RESAMPLE else 1  # values come from another image
    max_runs = TOGETHER // batch_size_of(count, min_batch)

    def step(*batch: Any) -> dict[str, Any]:
        *states, images, labels = batch
        state = states[0] if states else None
        taps, edited_scores = features.run_interventions(
            lambda taps: interventions(taps, images, state), scores, images, max_runs
        )
        num_classes = require_scores(taps, scores, [0, 1])
        intact = tf.cast(taps[scores], tf.float32)
        edited = tf.cast(edited_scores, tf.float32)
        labels, label_counts = batch_labels(labels, num_classes)
        # Accuracy and loss of each example, of shape (example,) and (intervention, example).
        is_correct, edited_is_correct = (
            tf.cast(tf.argmax(x, axis=-1) == labels, tf.float32) for x in (intact, edited)
        )
        kind = features.facts.score_kind
        loss, edited_loss = (classification_loss(x, labels, kind) for x in (intact, edited))
        changes = {
            "accuracy_change": edited_is_correct - is_correct,
            "loss_change": edited_loss - loss,
            "output_change": class_divergence(intact, edited, kind),
        }
        # Paired differences of single images: their sums and sums of squares give standard errors.
        return {
            "changes": {
                name: tf.stack([tf.reduce_sum(x, axis=1), tf.reduce_sum(tf.square(x), axis=1)])
                for name, x in changes.items()
            },
            "intact": {"accuracy": tf.reduce_sum(is_correct), "loss": tf.reduce_sum(loss)},
            "label_counts": label_counts,
            "num_classes": num_classes,
            "examples": tf.shape(images)[0],
            "batches": tf.constant(1),
        }

    return Statistic(step, lambda totals: totals, min_batch=min_batch, with_labels=True)


def batch_size_of(count: int, least: int = 1) -> int:
    """Number of images in a batch that runs once for each of `count` interventions."""
    return max(TOGETHER // (count + 1), least)


def measure_effects(
    features: Features,
    statistic: Statistic[Totals],
    cells: Iterable[tuple],
    names: Sequence[str],
    images: ImagesLike,
    *,
    scores: str,
    description: str,
    **parameters: Any,
) -> xr.Dataset:
    """The mean effects of some interventions on the predictions for images with labels, as a table.

        accuracy_change = mean over examples of [argmax s' = y] - [argmax s = y]
        loss_change     = mean over examples of log p(y) - log p'(y)
        output_change   = mean over examples of sum_c p(c) log(p(c) / p'(c))

    of scores `s` and `s'` without and with an intervention and of `p = softmax(s)`, for a binary
    classifier of one output `p = sigmoid(s)` of the log-odds of its two classes. For a model of
    several sigmoids, the loss is the binary cross-entropy and the output change the divergence,
    both summed over the classes. Standard errors are those of the means of these paired
    differences. The Dataset has the coordinates `names`,
    whose values for each intervention are `cells`, in the order of the interventions of the
    `effects_statistic`, and `accuracy` and `loss` of the model as it is. The attribute `remainder`
    counts the images of a last batch that is too small, which are left out with a warning.
    """
    cells, least = list(cells), statistic.min_batch
    # Many runs of each example make batches larger.
    data = split_batches(as_dataset(images), batch_size_of(len(cells), least), least)
    totals = evaluate(statistic, data, description=description, checked=(features,))
    count, num_classes = totals["examples"], mean_per_batch(totals, "num_classes")
    require_counted(totals["label_counts"], count, num_classes)
    left_out = int(totals.get("remainder", 0))
    if left_out:
        warnings.warn(
            f"{left_out} of {int(count) + left_out} images are left out: the last "
            f"batch has fewer than {least} images. Use another number of images or batch size.",
            stacklevel=2,
        )
    require_finite("effects of interventions", totals["changes"].values(), totals["changes"])
    # The mean change of each intervention with its error, next to the model as it is.
    variables = {}
    for name, (total, squares) in totals["changes"].items():
        mean, error = mean_from_sums(total, squares, count)
        words, units = CHANGES[name]
        variables[name] = variable("intervention", mean, words, units)
        words = f"standard error of {name}"
        variables[f"{name}_stderr"] = variable("intervention", error, words, units)
    intact = totals["intact"]
    variables["accuracy"] = variable((), intact["accuracy"] / count, "accuracy")
    variables["loss"] = variable((), intact["loss"] / count, "cross-entropy", "nat")
    facts = facts_of(
        features,
        totals,
        "mean of paired differences between runs with and without an intervention",
        scores=scores,
        **parameters,
        num_classes=num_classes,
        remainder=left_out,
    )
    return as_table(variables, facts, cells, names)


def as_table(
    variables: dict[str, Any],
    facts: dict[str, Any],
    cells: Iterable[tuple],
    names: Sequence[str],
) -> xr.Dataset:
    """Variables along `intervention` as a table of these names; coordinates stand as they came."""
    columns = dict(zip(names, zip(*cells, strict=True), strict=True))
    coords = {name: ("intervention", list(column)) for name, column in columns.items()}
    table = ResultDataset(variables, coords, facts).set_index(intervention=list(names))
    order = {name: list(dict.fromkeys(column)) for name, column in columns.items()}
    return table.unstack("intervention").reindex(order).transpose(*names)


def means_to_insert(
    features: Features, images: ImagesLike, taps: Sequence[str], replacement: str, description: str
) -> dict[str, np.ndarray] | None:
    """The mean of each tap over the images, for `replacement="mean"`; None for others."""
    require_word(replacement, REPLACEMENTS, "replacement")
    if replacement != MEAN:
        return None
    return evaluate(_mean_statistic(features, taps), images, features, description=description)


@reusable
def _mean_statistic(features: Features, layers: Sequence[str]) -> Statistic[dict[str, np.ndarray]]:
    """`Statistic` with the mean of each layer over the images."""

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        sums = {layer: tf.reduce_sum(tf.cast(taps[layer], tf.float32), axis=0) for layer in layers}
        return {"sums": sums, "examples": tf.shape(images)[0]}

    def finish(totals: Totals) -> dict[str, np.ndarray]:
        count = totals["examples"]
        return {layer: (x / count).astype("float32") for layer, x in totals["sums"].items()}

    return Statistic(step, finish)


def replacement_of(replacement: str, tap: str, means: Mapping[str, tf.Tensor] | None) -> edits.Edit:
    """The edit of a tap that `"zero"`, `"mean"` over the images or `"resample"` stands for."""
    if means is not None and replacement == MEAN:
        return edits.constant(means[tap])
    return edits.zero if replacement == ZERO else edits.resampled()


def layers_to_edit(features: Features, scores: str) -> dict[str, Shape]:
    """The shapes, without the example axis, of all layers but the scores, of a model to edit."""
    features.require_editable()
    facts = features.facts
    if scores not in facts.layers or len(facts.layers) < 2:
        raise ValueError(
            f"Expected a submodel that returns the scores, {scores!r}, and at least one layer "
            f"to intervene at. Received: {format_list(facts.layers)}"
        )
    return {layer: facts.shapes[layer] for layer in facts.layers if layer != scores}
