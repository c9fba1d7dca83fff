"""Activation patching: where does what tells two runs apart pass through?"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import edits
from vit_tf.names import listed
from vit_tf.taps.interventions import each_alone

from ...engine.features import require_scores
from ...engine.front import measurement
from ...engine.results import provenance, require_finite, variable
from ...engine.stream import Statistic, evaluate
from ...engine.types import LabelledImages, Model
from .effects import TOGETHER, in_batches, in_table, require_submodel


@measurement("patching")
def activation_patching(
    features: Model,
    pairs: LabelledImages,
    scores: str = "logits",
    source: Model | None = None,
    tokens: Sequence[int] | None = None,
) -> xr.Dataset:
    """How far the scores move to those of another run when one token of one layer is patched.

        transfer = sum over pairs of <s_patched - s, d> / sum over pairs of |d|^2,  d = s_other - s

    of scores `s` of an image, `s_other` of the other run, and `s_patched` with the token's value of
    the other run (after Meng et al. 2022, https://arxiv.org/abs/2202.05262, of language models): 0
    where the token does not matter, 1 where the whole difference of the runs passes through it. It
    may lie outside [0, 1].

    Args:
        features: a model, or a submodel of layers of tokens, of shape (example, token, channel),
            and of the scores, such as `vit_tf.submodel(vit, "block*/mlp/sum", "logits")`.
        pairs: batched `tf.data.Dataset` of (images, other images), or a pair of arrays; the other
            run is that of the other image.
        scores: the tap that holds the scores, of shape (example, class).
        source: a submodel of another model of the same architecture whose run on the other images
            is taken; by default the same model's. For two models on the same images, let both
            images of a pair be the same.
        tokens: positions of the tokens to patch; all by default.

    Returns:
        Dataset with `transfer` and its standard error, by linearization of the ratio, `stderr`, of
        shape (layer, token).

    Raises:
        ValueError: for features that are no submodel of layers with equally many tokens and scores,
            a source without their taps, pairs whose runs do not differ, or scores that are not
            finite.

    Examples:
        >>> effect = analysis.activation_patching(vit, (images[:2], images[2:4]), tokens=[0, 1])
        >>> effect.transfer.dims
        ('layer', 'token')
        >>> ax = analysis.plot(effect)

    See also:
        `plots.plot_activation_patching`, `logit_lens`; page
        measurements/flow/activation-patching.md.
    """
    layers = require_submodel(features, scores)
    counts = {tap: x.shape[1] if len(x.shape) == 3 else None for tap, x in layers.items()}
    if len(set(counts.values())) > 1 or None in counts.values():
        raise ValueError(
            "Expected layers of equally many tokens, of shape (example, token, channel). "
            f"Received: { {tap: tuple(x.shape) for tap, x in layers.items()} }"
        )
    source = features if source is None else source
    if missing := [tap for tap in features.taps if tap not in require_taps(source)]:
        raise ValueError(f"Expected a source with the same taps. Received: no {listed(missing)}")
    places = range(next(iter(counts.values()))) if tokens is None else [int(t) for t in tokens]
    cells = [(tap, place) for tap in layers for place in places]
    size = max(TOGETHER // (len(cells) + 1), 1)

    def step(images, others):
        other = source(tf.cast(others, tf.float32))
        runs = [{t: edits.tokens(p, edits.constant(other[t]))} for t, p in cells]
        taps, found = each_alone(features, runs, scores, images, TOGETHER // size)
        require_scores(taps, scores, [0])
        plain = tf.cast(taps[scores], tf.float32)
        way = tf.cast(other[scores], tf.float32) - plain
        gone = tf.reduce_sum((tf.cast(found, tf.float32) - plain) * way, axis=-1)
        whole = tf.reduce_sum(tf.square(way), axis=-1)
        return {
            "gone": tf.reduce_sum(gone, axis=1),
            "whole": tf.reduce_sum(whole),
            "gone_gone": tf.reduce_sum(gone**2, axis=1),
            "gone_whole": tf.reduce_sum(gone * whole, axis=1),
            "whole_whole": tf.reduce_sum(whole**2),
            "examples": tf.shape(images)[0],
            "batches": 1,
        }

    def finish(totals):
        require_finite("activation patching", [totals["gone"], totals["whole"]], ["scores"] * 2)
        whole, count = totals["whole"], totals["examples"]
        if not whole > 0:
            raise ValueError("Expected pairs whose scores differ. Received: pairs alike")
        ratio = totals["gone"] / whole
        residual = totals["gone_gone"] - 2 * ratio * totals["gone_whole"]
        residual = np.maximum(residual + ratio**2 * totals["whole_whole"], 0)
        correction = count / (count - 1) if count > 1 else np.nan
        error = np.sqrt(residual * correction) / whole
        result = xr.Dataset(
            {
                "transfer": variable("intervention", ratio, "share of the way to the other run"),
                "stderr": variable("intervention", error, "standard error"),
            },
            attrs=provenance(
                features,
                count,
                totals["batches"],
                estimator="ratio of sums over pairs, standard error by linearization",
                scores=scores,
            ),
        )
        return in_table(result, cells, ("layer", "token"))

    statistic = Statistic(step, finish, with_labels=True)
    data = in_batches(pairs, size)
    return evaluate(statistic, data, description="activation patching", checked=(features, source))


def require_taps(source):
    """The names of the taps of a submodel; a `ValueError` for what is none."""
    if not hasattr(source, "taps"):
        raise ValueError(f"Expected source to be a submodel. Received: {type(source).__name__}")
    return source.taps
