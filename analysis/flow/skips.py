"""Skip ratios: norms and cosines of skips and branches."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.common.names import format_list
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features, Taps
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement, statistic_of
from ..engine.pooling import (
    PartialGrid,
    as_tokens,
    complete_grid,
    raise_contradiction,
    require_grid,
)
from ..engine.preparation import ImagesLike, prepare
from ..engine.results import (
    EACH_IMAGE,
    dataset_of,
    facts_of,
    mean_of,
    mean_over_batches,
    provenance,
    require_finite,
    variable,
)
from ..engine.stream import Statistic, Totals, evaluate

PARTS = ("cls", "spatial", "all")  # tokens whose mean ratio is kept without each batch


@measurement("skips")
def skip_ratio(
    model: ModelLike,
    images: ImagesLike | None = None,
    grid: PartialGrid = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Norm ratio and cosine similarity of the skip and the branch of every residual sum, for each
    token.

        norm_ratio = mean over examples of |skip| / |branch|
        cosine     = mean over examples of <skip, branch> / (|skip| |branch|)

    Norms and inner products are over the channels of a token (Raghu et al. 2021, section 6, figures
    7 and E.2). If the skip or the branch of a token is exactly zero in an example, as after an
    inactive ReLU, the ratio and the cosine are undefined. The means of this token exclude such
    examples. The attribute `left_out` is the share of excluded (example, token) pairs.

    Args:
        model: a model, or a callable that maps images to a dict from layer name to tensor. The
            layers `"block00/mlp/skip"` and `"block00/mlp/branch"`, for example, are the terms of
            the residual sum `"block00/mlp"`. Layers with other endings are ignored. In a feature
            map, each position counts as a token. The positions are ordered row by row.
        images: as in `vit_tf.analysis`.
        grid: `TokenGrid`, or a pair (rows, columns); by default the grid of the model. The
            result stores the number of prefix tokens of the grid.

    Returns:
        Dataset with the following variables. Each layer is a residual sum, such as `"block00/mlp"`.

        * `norm_ratio` and `cosine`, of shape (layer, token): the means defined above. They are NaN
          for tokens that a layer does not have, and for tokens without any remaining example.
        * `negative_share`, of shape (layer,): the share of the values of the skip that are below 0.
          It is 0 if the skip is the output of a ReLU, for example in post-activation ResNets with
          identity skips.
        * `part_ratio`, of shape (layer, part): the mean ratio of the CLS token (`"cls"`), of the
          spatial tokens (`"spatial"`) and of all tokens (`"all"`).
        * `leave_one_out`, of shape (batch, layer, part): `part_ratio` without each batch in turn,
          if there are several batches.

    Raises:
        ValueError: if no residual sum has both a skip and a branch, or if activations are not
            finite.

    Examples:
        >>> ratio = analysis.skip_ratio(vit, images)
        >>> ratio.norm_ratio.dims
        ('layer', 'token')
        >>> ratio.layer.values.tolist()
        ['block00/attention', 'block00/mlp', 'block01/attention', 'block01/mlp']
        >>> ax = analysis.plot(ratio)

    See also:
        `plots.plot_skip_ratio`, `branch_norms`, `residual_cka`; page
        measurements/flow/skip-ratio.md.
    """
    features, batches = prepare(model, images, kind="skips", layers=layers, detail=detail)
    if grid is not None:
        grid = complete_grid(features, batches, grid, _num_tokens)
    return evaluate(
        skip_ratio_statistic(features, grid), batches, features, description="skip ratios"
    )


@statistic_of(skip_ratio)
def skip_ratio_statistic(features: Features, grid: PartialGrid = None) -> Statistic[xr.Dataset]:
    """The `Statistic` of `skip_ratio`."""
    model_grid = features.facts.grid
    token_grid = model_grid if grid is None else require_grid(features, grid)
    prefix = token_grid.prefix if token_grid else 0
    if model_grid and prefix != model_grid.prefix:
        raise_contradiction(model_grid, grid)

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        ratios = {site: _summed_ratios(site, *pair) for site, pair in _pairs(taps).items()}
        parts = [_summed_parts(x, prefix) for x in ratios.values()]
        return {
            "ratios": ratios,
            "rows": tf.stack(parts, axis=1)[None],
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals: Totals) -> xr.Dataset:
        sites, summed = list(totals["ratios"]), list(totals["ratios"].values())
        require_finite("skip ratios", summed, sites)
        # Sites with fewer tokens than others have NaN at the positions that they lack.
        padded = np.full((2, len(sites), max(site.shape[1] for site in summed)), np.nan)
        for index, (*ratios, count, _) in enumerate(summed):
            padded[:, index, : len(count)] = mean_of(np.array(ratios), count)
        # Tokens whose branch is zero have no ratio, and are counted as left out.
        counted = sum(count.sum() for _, _, count, _ in summed)
        possible = totals["examples"] * sum(len(count) for _, _, count, _ in summed)
        negative = [share.mean() / totals["examples"] for *_, share in summed]
        # The mean ratio of parts of the tokens is also kept without each batch.
        part_ratio, _, without_each = mean_over_batches(totals["rows"])
        dims, words = ("layer", "token"), "|skip| / |branch|, mean over tokens"
        variables = {
            "norm_ratio": variable(dims, padded[0], "|skip| / |branch|"),
            "cosine": variable(dims, padded[1], "cosine of skip and branch"),
            "negative_share": variable("layer", negative, "share of values below 0"),
            "part_ratio": variable(("layer", "part"), part_ratio, words),
        }
        if len(without_each) > 1:
            variables["leave_one_out"] = variable(
                ("batch", "layer", "part"), without_each, f"{words}, without each batch"
            )
        return dataset_of(
            variables,
            facts_of(
                features,
                totals,
                "mean over examples of the ratio at each token",
                left_out=float(1 - counted / possible),
                **({"prefix": prefix} if token_grid else {}),
            ),
            layer=sites,
            part=list(PARTS),
        )

    return Statistic(step, finish)


@measurement("skips")
def branch_norms(
    model: ModelLike,
    images: ImagesLike | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.Dataset:
    """Norms of the skip and the branch of every residual sum, for each token of each image.

    `skip_ratio` averages the ratio of these norms over images. Use this function only for a few
    images.

    Args:
        model, images: as for `skip_ratio`.

    Returns:
        Dataset with two variables of shape (example, layer, token). Each layer is a residual sum,
        such as `"block00/mlp"`. Values are NaN for tokens that a layer does not have.

        * `skip`: the Euclidean norm of the skip over the channels.
        * `branch`: the Euclidean norm of the branch over the channels.

    Raises:
        ValueError: for the same reasons as `skip_ratio`.

    Examples:
        >>> norms = analysis.branch_norms(vit, images[:2])
        >>> norms.skip.dims
        ('example', 'layer', 'token')

    See also:
        `plots.plot_branch_norms`, `skip_ratio`; page guides/one-image.md.
    """
    features, batches = prepare(
        model, images, kind="skips", layers=layers, detail=detail, keep_order=True
    )
    return evaluate(branch_norms_statistic(features), batches, features, description="norms")


@statistic_of(branch_norms)
def branch_norms_statistic(features: Features) -> Statistic[xr.Dataset]:
    """The `Statistic` of `branch_norms`."""

    def step(images: tf.Tensor, taps: Taps) -> dict[str, Any]:
        return {
            "rows": {
                site: tf.stack([tf.norm(as_tokens(site, x), axis=-1) for x in pair], axis=1)
                for site, pair in _pairs(taps).items()
            }
        }

    def finish(totals: Totals) -> xr.Dataset:
        sites, norms = list(totals["rows"]), list(totals["rows"].values())
        require_finite("norms of skips and branches", norms, sites)
        examples, tokens = len(norms[0]), max(norm.shape[-1] for norm in norms)
        both = np.full((2, examples, len(sites), tokens), np.nan)
        for index, norm in enumerate(norms):
            both[:, :, index, : norm.shape[-1]] = np.moveaxis(norm, 1, 0)
        dims, names = ("example", "layer", "token"), ("skip", "branch")
        variables = {
            name: variable(dims, values, f"|{name}|", "activation")
            for name, values in zip(names, both, strict=True)
        }
        return dataset_of(
            variables, provenance(features, examples, 1, estimator=EACH_IMAGE), layer=sites
        )

    return Statistic(step, finish)


def _num_tokens(taps: Taps) -> int:
    """The number of tokens of the first skip."""
    site, (skip, _) = next(iter(_pairs(taps).items()))
    return as_tokens(f"{site}/skip", skip).shape[1]


def _summed_parts(ratios: tf.Tensor, prefix: int) -> tf.Tensor:
    """Summed ratio of `PARTS` of the tokens, and the number that have one: (2, part)."""
    sums = tf.stack([ratios[0], ratios[2]])
    parts = sums[:, : min(prefix, 1)], sums[:, prefix:], sums
    return tf.stack([tf.reduce_sum(part, axis=1) for part in parts], axis=1)


def _pairs(taps: Taps) -> dict[str, tuple[tf.Tensor, tf.Tensor]]:
    """The skips and branches that belong together: dict from site to (skip, branch)."""
    sites = [tap.removesuffix("/skip") for tap in taps if tap.endswith("/skip")]
    pairs = {
        site: (taps[f"{site}/skip"], taps[f"{site}/branch"])
        for site in sites
        if f"{site}/branch" in taps
    }
    if not pairs:
        raise ValueError(
            "Expected layers 'NAME/skip' together with 'NAME/branch'. Received: "
            f"{format_list(taps)}"
        )
    return pairs


def _summed_ratios(site: str, skip: tf.Tensor, branch: tf.Tensor) -> tf.Tensor:
    """Ratio, cosine, number of examples that have them and negative share, summed: (4, token)."""
    skip, branch = as_tokens(f"{site}/skip", skip), as_tokens(f"{site}/branch", branch)
    skip_norm, branch_norm = tf.norm(skip, axis=-1), tf.norm(branch, axis=-1)
    # NaN differs from 0: it counts, and raises an error.
    defined = tf.logical_and(skip_norm != 0.0, branch_norm != 0.0)
    product = tf.where(defined, skip_norm * branch_norm, 1.0)
    cosine = tf.reduce_sum(skip * branch, axis=-1) / product
    ratio = tf.where(defined, skip_norm / tf.where(defined, branch_norm, 1.0), 0.0)
    negative = tf.reduce_mean(tf.cast(skip < 0.0, tf.float32), axis=-1)
    sums = tf.stack([ratio, cosine, tf.cast(defined, tf.float32), negative])
    return tf.reduce_sum(sums, axis=1)
