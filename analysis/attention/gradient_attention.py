"""Gradient-weighted attention: through which tokens a class is decided."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.tokens import as_grid

from ..engine.features import class_gradients
from ..engine.front import measurement
from ..engine.results import provenance, require_finite
from ..engine.stream import collect
from ..engine.tokens import grid_of, pooled_tokens
from ..engine.types import Classes, Grid, Images, Model
from .attention import attention_weights, num_attended


@measurement("class_attention")
def gradient_attention(
    features: Model,
    images: Images,
    classes: Classes | None = None,
    grid: Grid | None = None,
    scores: str = "logits",
) -> xr.DataArray:
    """Relevance of tokens for a class: attention weighted by its gradient, through the layers.

        R_l = R_(l-1) + A_l R_(l-1),  A_l = mean over heads of max(0, a_l * d y_c / d a_l),  R_0 = I

    with the score y_c of class c, so that R(q, k) is how much token k of the embedding matters
    through query q of the last layer (Chefer et al. 2021, "Generic Attention-Model Explainability",
    https://arxiv.org/abs/2103.15679, equations 5 and 6). Unlike rollout it depends on the class.
    Values and MLPs are left out of account, and rows do not sum to 1. The query to look at is what
    the head reads, the mean over `pooled_tokens` in the attributes: those of the features, or else
    CLS where there is a prefix and all tokens where there is none.

    Args:
        features: a model, or a callable from images to taps with gradients: attention weights of
            shape (example, head, query, key) and the scores, as of
            `vit_tf.submodel(vit, "block*/attention/weights", "logits")`.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        classes: names or positions of the classes among the scores; by default those predicted for
            the images, 5 at most.
        grid: `TokenGrid` of the tokens, or a pair (rows, columns); by default the features' own.
        scores: the tap that holds them, of shape (example, class).

    Returns:
        DataArray of shape (example, class, query, key) over all tokens, prefix included.

    Raises:
        ValueError: for classes or scores that are not there, no grid, weights that the scores do
            not depend on, as far as TensorFlow can tell, and as `attention_distance`.

    Examples:
        >>> relevance = analysis.gradient_attention(vit, images[:2], classes=[0, 2])
        >>> relevance.dims
        ('example', 'class', 'query', 'key')
        >>> relevance["class"].values.tolist()
        [0, 2]

    See also:
        `plots.plot_gradient_attention`, `attention_rollout`, `grad_cam`; page guides/one-image.md.
    """
    known = grid_of(features, grid)
    if known is None:
        raise ValueError("Expected a grid, or features with a token_grid. Received: grid=None")
    seen = []

    def step(batch):
        def weights(_, taps):
            held = {tap: x for tap, x in taps.items() if tap != scores}
            seen[:] = [as_grid(known, num_attended(held), batch.shape[1:3])]
            return attention_weights(held, seen[0])

        pairs = class_gradients(features, batch, classes, scores, weights)
        return relevance(list(pairs.values()))

    rows = collect(step, images, description="gradient-weighted attention", checked=(features,))
    classes = [int(one) for one in classes]
    require_finite("gradient-weighted attention", np.moveaxis(rows, 1, 0), map(str, classes))
    tokens = np.arange(rows.shape[-1])
    return xr.DataArray(
        rows,
        dims=("example", "class", "query", "key"),
        coords={
            "example": np.arange(len(rows)),
            "class": classes,
            "query": tokens,
            "key": tokens,
        },
        name="gradient_attention",
        attrs=provenance(
            features,
            len(rows),
            1,
            long_name="gradient-weighted attention",
            units="1",
            estimator="sum through the layers of positive attention times gradient",
            scores=scores,
            pooled_tokens=list(pooled_tokens(getattr(features, "pooled_tokens", None), seen[0])),
            **vars(seen[0]),
        ),
    )


def relevance(layers):
    """Relevance after the last layer.

    Args:
        layers: list of pairs of weights and their gradients, each of shape (..., head, query, key),
            in depth order.

    Returns:
        float32 tensor of shape (..., query, key).
    """
    total = None
    for weights, gradient in layers:
        positive = tf.nn.relu(tf.cast(weights, tf.float32) * tf.cast(gradient, tf.float32))
        mixed = tf.reduce_mean(positive, axis=-3) + tf.eye(weights.shape[-1])
        total = mixed if total is None else tf.matmul(mixed, total)
    return total
