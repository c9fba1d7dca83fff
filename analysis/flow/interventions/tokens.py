"""Token ablation: how many tokens can a model do without, and which?"""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf
import xarray as xr

from vit_tf import edits
from vit_tf.tokens import as_grid

from ...engine.front import measurement
from ...engine.results import CLS
from ...engine.tokens import grid_of
from ...engine.types import Grid, LabelledImages, Model
from .effects import ZERO, effects_of_cells, least_batch, replacing, require_submodel

RANDOM, LARGEST, ATTENDED, UNATTENDED = "random", "largest", "attended", "unattended"
REGISTERS = "registers"
SHARES = (0.1, 0.25, 0.5, 0.75, 0.9)


@measurement("embedding")
def token_ablation(
    features: Model,
    images: LabelledImages,
    scores: str = "logits",
    replacement: str = ZERO,
    shares: Sequence[float] = SHARES,
    grid: Grid | None = None,
    seed: int = 0,
) -> xr.Dataset:
    """Change of a model's predictions when the prefix, or a share of the other tokens, is removed.

    The tokens of a layer are replaced there. Spatial tokens go at random, in the order of their
    Euclidean norms, the `"largest"` first (Darcet et al. 2023, https://arxiv.org/abs/2309.16588,
    find artefacts among these), or in that of the attention that they receive, the most
    (`"attended"`) or the least (`"unattended"`) first: the mean over heads, and over the queries of
    the prefix, or over all where there is none. ViTs were
    found to bear the loss of more patches than ResNets, where these were hidden in the image
    (Naseer et al. 2021, https://arxiv.org/abs/2105.10497). See `effects` for the
    formulas of the changes.

    Args:
        features: a model, or a submodel of the tokens to replace, of shape (example, token,
            channel), of the scores, and of attention weights, which may be left out, to choose by:
            such as `vit_tf.submodel(vit, "embedding", "block00/attention/weights", "logits")`.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays.
        scores: the tap that holds the scores before a softmax, of shape (example, class).
        replacement: what stands in the place of a token: `"zero"`; `"mean"`, its mean over the
            images; or `"resample"`, the same token of another image of the batch.
        shares: shares of the spatial tokens to replace, in (0, 1].
        grid: `TokenGrid` of the tokens; by default the features' own.
        seed: of the random order, which differs from batch to batch.

    Returns:
        Dataset of `accuracy_change`, `loss_change` and `output_change`, each with `..._stderr`, of
        shape (tokens, share), and of `accuracy` and `loss` of the model as it is. `"cls"` and
        `"registers"` are replaced as a whole, at share 1; where else there is no value there is
        NaN.

    Raises:
        ValueError: for features that are no submodel of one layer of tokens and scores, tokens that
            do not fit the grid, other shares, or scores that are not finite.

    Examples:
        >>> effect = analysis.token_ablation(vit, (images, labels), shares=(0.25, 0.5))
        >>> effect.tokens.values.tolist()
        ['cls', 'random', 'largest', 'attended', 'unattended']

    See also:
        `plots.plot_token_ablation`, `head_ablation`; page measurements/flow/interventions.md.
    """
    layers = require_submodel(features, scores)
    weights = [tap for tap, x in layers.items() if len(x.shape) == 4]
    tokens = [tap for tap, x in layers.items() if len(x.shape) == 3]
    grid = grid_of(features, grid)
    if grid is not None and tokens:
        grid = as_grid(grid, layers[tokens[0]].shape[1])
    fits = grid is not None and tokens and layers[tokens[0]].shape[1] == grid.num_tokens
    if len(tokens) != 1 or len(weights) > 1 or not fits:
        raise ValueError(
            "Expected one tap of tokens (example, token, channel) of a known grid, one of "
            "attention weights at most, and the scores. Received: "
            f"{ {tap: tuple(x.shape) for tap, x in layers.items()} }, grid={grid}"
        )
    if not all(0 < share <= 1 for share in shares):
        raise ValueError(f"Expected shares in (0, 1]. Received: {tuple(shares)}")
    (tap,), edit = tokens, replacing(features, images, tokens, replacement, "means of tokens")
    sets = _sets(grid)
    orders = (RANDOM, LARGEST, *((ATTENDED, UNATTENDED) if weights else ()))
    cells = [*((name, 1.0) for name in sets), *((o, float(s)) for o in orders for s in shares)]

    def interventions(taps):
        ranks = _ranks(taps, tap, weights, grid, seed)

        def of(name, share):
            if name in sets:
                return edits.tokens(sets[name], edit[tap])
            gone = ranks[name] < round(share * grid.num_spatial)
            mask = tf.pad(gone, ((0, 0), (grid.prefix, 0)))  # False for the prefix
            return edits.where(mask[..., None], edit[tap])

        return [{tap: of(*cell)} for cell in cells]

    return effects_of_cells(
        features,
        dict.fromkeys(cells),
        images,
        scores,
        ("tokens", "share"),
        interventions=interventions,
        description="token ablation",
        least=least_batch(replacement),
        layer=tap,
        replacement=replacement,
        seed=seed,
    ).sortby("share")


def _sets(grid):
    """The sets of prefix tokens that there are: dict from name to positions."""
    names = [CLS] * (grid.prefix > 0) + [REGISTERS] * (grid.prefix > 1)
    return {name: edits.token_set(grid, name) for name in names}


def _ranks(taps, tap, weights, grid, seed):
    """The place of each spatial token in each order, of shape (example, token): dict from order."""
    values = tf.cast(taps[tap], tf.float32)
    # A number of the batch itself, so that batches differ and a run can be repeated.
    of_batch = tf.bitcast(tf.reduce_sum(values), tf.int32)
    shape = (tf.shape(values)[0], grid.num_spatial)
    keys = {RANDOM: tf.random.stateless_uniform(shape, tf.stack([seed, of_batch]))}
    keys[LARGEST] = -tf.norm(grid.spatial(values), axis=-1)
    if weights:
        received = tf.cast(taps[weights[0]], tf.float32)
        queries = grid.prefix or grid.num_tokens
        received = tf.reduce_mean(received[:, :, :queries, grid.prefix :], axis=[1, 2])
        keys |= {ATTENDED: -received, UNATTENDED: received}
    return {
        order: tf.argsort(tf.argsort(key, stable=True), stable=True) for order, key in keys.items()
    }
