"""Head ablation: what does a model lose with each of its heads?"""

from __future__ import annotations

import xarray as xr

from vit_tf import edits

from ...engine.front import measurement
from ...engine.types import LabelledImages, Model
from .effects import ZERO, effects_of_cells, least_batch, replacing, require_submodel


@measurement("heads")
def head_ablation(
    features: Model, images: LabelledImages, scores: str = "logits", replacement: str = ZERO
) -> xr.Dataset:
    """Change of a model's predictions when the output of one attention head is removed.

    The output of the head, before the heads are projected together, is replaced at every token
    (Michel et al. 2019, https://arxiv.org/abs/1905.10650). See `effects` for the
    formulas of the changes; where one is zero, the other heads and layers make up for the head, or
    nothing reads it.

    Args:
        features: a model, or a submodel of the outputs of heads, of shape (example, token, head,
            channel), and of the scores, such as `vit_tf.submodel(vit, "*/heads", "logits")`; of a
            Keras model with attention layers of Keras' own the values, `"*/value"`, of which each
            head's output is a mean.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays.
        scores: the tap that holds the scores before a softmax, of shape (example, class).
        replacement: what stands in the place of a head: `"zero"`; `"mean"`, its mean over the
            images at each token; or `"resample"`, that of another image of the batch.

    Returns:
        Dataset of `accuracy_change`, `loss_change` and `output_change`, each with `..._stderr`, of
        shape (layer, head), and of `accuracy` and `loss` of the model as it is. Layers of fewer
        heads than others have NaN.

    Raises:
        ValueError: for features that are no submodel of heads and scores, another replacement, or
            scores that are not finite.

    Examples:
        >>> effect = analysis.head_ablation(vit, (images, labels))
        >>> effect.accuracy_change.dims
        ('layer', 'head')
        >>> ax = analysis.plot(effect)

    See also:
        `plots.plot_head_ablation`, `skip_ablation`, `token_ablation`; page
        measurements/flow/interventions.md.
    """
    layers = require_submodel(features, scores)
    if unlike := {tap: tuple(x.shape) for tap, x in layers.items() if len(x.shape) != 4}:
        raise ValueError(
            "Expected outputs of heads of shape (example, token, head, channel). "
            f"Received: {unlike}"
        )
    replace = replacing(features, images, list(layers), replacement, "means of heads")
    cells = {
        (tap, head): {tap: edits.head(head, replace[tap])}
        for tap, x in layers.items()
        for head in range(x.shape[2])
    }
    result = effects_of_cells(
        features,
        cells,
        images,
        scores,
        ("layer", "head"),
        description="head ablation",
        least=least_batch(replacement),
        replacement=replacement,
    )
    return result.reindex(layer=list(layers))
