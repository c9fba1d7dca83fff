"""Logit lens: the final norm and head applied to the output of every layer."""

from __future__ import annotations

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.common.names import format_list
from vit_tf.data.labels import require_labels
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features
from vit_tf.features.layers import Detail

from ..engine.class_scores import ONE_SCORE, class_coords, require_scores
from ..engine.measurements import measurement
from ..engine.preparation import ImagesLike, prepare_scored
from ..engine.results import (
    ResultArray,
    ResultDataset,
    array_of,
    expect_array,
    provenance,
    stack_layers,
    variable,
)
from ..engine.stream import Statistic, evaluate, row_statistic
from ..engine.traces import reusable
from ..statistics.intervals import mean_and_error


@measurement("lens")
def logit_lens(
    model: ModelLike,
    images: ImagesLike,
    scores: str | None = None,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Logit lens: the final norm and head of a model applied to the output of every layer.

        scores(layer) = head(pooling(final norm(layer)))

    The lens takes the part of a model that computes the scores from the last layer, and applies it
    to every layer (nostalgebraist 2020, "interpreting GPT: the logit lens"; for ViTs, Vilas et al.
    2023, https://arxiv.org/abs/2310.18969). The lens decodes a layer in the basis of the last
    layer. A layer that the lens cannot decode may still encode the class in another basis. To test
    for this, use a probe such as `ridge_probe`.

    Args:
        model: a model, or a submodel that returns the class scores and layers with equally many
            channels, as in `vit_tf.submodel(vit, "block*/mlp/sum", "logits")`. The scores must
            depend on the last layer only.
        images: as in `vit_tf.analysis`.
        scores: name of the layer that returns the class scores, of shape (example, class). By
            default, it is found in the model.

    Returns:
        DataArray of shape (example, layer, class), in the units of the scores. For the last layer,
        the values are the scores of the model itself. The coordinate `class_name` holds the names
        of the classes, if they are known.

    Raises:
        ValueError: if the scores depend on more than the last layer, if layers differ from the last
            layer in their number of channels, or if the scores do not exist.

    Examples:
        >>> lens = analysis.logit_lens(vit, images)
        >>> lens.dims
        ('example', 'layer', 'class')
        >>> lens.layer.values.tolist()
        ['embedding', 'block00/mlp/sum', 'block01/mlp/sum']
        >>> ax = analysis.plot(lens, classes=[0, 2])

    See also:
        `plots.plot_logit_lens`, `lens_accuracy`, `ridge_probe`; page
        measurements/flow/activation-patching.md.
    """
    features, images, scores = prepare_scored(
        model, images, scores, kind="lens", layers=layers, detail=detail, keep_order=True
    )
    by_layer = evaluate(
        _lens_statistic(features, scores), images, description="logit lens", checked=(features,)
    )
    names, rows = stack_layers("the logit lens", by_layer, axis=1)
    return array_of(
        "logit_lens",
        rows,
        ("example", "layer", "class"),
        ("score by the model's own head", "score"),
        provenance(
            features,
            len(rows),
            1,
            estimator="what follows the last layer, applied to each",
            scores=scores,
        ),
        **class_coords(features, range(rows.shape[2])),
        layer=names,
    )


@reusable
def _lens_statistic(features: Features, scores: str) -> Statistic[dict[str, np.ndarray]]:
    """`Statistic` over images with the scores (example, class) by layer."""

    def step(batch: tf.Tensor) -> dict[str, tf.Tensor]:
        features.require_shape(batch.shape)
        taps, head = features.split_at_last_layer(tf.cast(batch, tf.float32), scores)
        require_scores(taps, scores, [0])
        held = {tap: x for tap, x in taps.items() if tap != scores}
        last = list(held)[-1]
        if unlike := [t for t, x in held.items() if x.shape[-1] != held[last].shape[-1]]:
            raise ValueError(
                f"Expected layers of {held[last].shape[-1]} channels, as {last!r} has. "
                f"Received: {format_list(unlike)}"
            )
        return {tap: tf.cast(head(x), tf.float32) for tap, x in held.items()}

    return row_statistic(step)


LARGEST = 2**22  # numbers of a batch of layers that the head is applied to at once


def token_lens(features: Features, images: ImagesLike, scores: str = "logits") -> xr.DataArray:
    """Logit lens of single tokens: the head applied to a layer with all tokens equal to one token.

        scores(layer, t) = head(pooling(final norm(x_t, ..., x_t)))

    The result therefore does not depend on how the head pools the tokens.

    Args:
        features, images, scores: as for `logit_lens`; all layers have the shape of the last.

    Returns:
        DataArray of shape (example, layer, token, class); positions of feature maps are counted row
        by row.
    """
    by_layer = evaluate(
        _token_lens_statistic(features, scores),
        images,
        description="logit lens of tokens",
        checked=(features,),
    )
    layers, rows = stack_layers("the logit lens of tokens", by_layer, axis=1)
    return ResultArray(
        rows,
        {"layer": layers},
        ("example", "layer", "token", "class"),
        name="token_lens",
        attrs=provenance(features, len(rows), 1, long_name="score of a token", units="score"),
    )


@reusable
def _token_lens_statistic(features: Features, scores: str) -> Statistic[dict[str, np.ndarray]]:
    """`Statistic` over images with the scores (example, token, class) by layer."""

    def step(batch: tf.Tensor) -> dict[str, tf.Tensor]:
        taps, head = features.split_at_last_layer(tf.cast(batch, tf.float32), scores)
        held = {tap: tf.cast(x, tf.float32) for tap, x in taps.items() if tap != scores}
        shape = list(held.values())[-1].shape[1:]
        channels, count = shape[-1], int(np.prod(shape[:-1]))
        # The tokens of all layers, in groups of a size that fits in memory.
        rows = tf.reshape(tf.stack(list(held.values()), axis=1), (-1, channels))
        size = max(1, LARGEST // (count * channels))
        spare = -tf.shape(rows)[0] % size
        groups = tf.reshape(tf.pad(rows, ((0, spare), (0, 0))), (-1, size, channels))

        # The head reads a whole layer: it is shown each token at every position.
        def read(group: tf.Tensor) -> tf.Tensor:
            same = tf.reshape(group, (size, *[1] * (len(shape) - 1), channels))
            return tf.cast(head(tf.broadcast_to(same, (size, *shape))), tf.float32)

        spec = tf.TensorSpec((size, taps[scores].shape[-1]), tf.float32)
        scores_of_rows = tf.reshape(
            tf.map_fn(read, groups, fn_output_signature=spec), (-1, spec.shape[-1])
        )
        lead = (tf.shape(batch)[0], len(held), count, spec.shape[-1])
        every = tf.reshape(scores_of_rows[: tf.shape(rows)[0]], lead)
        return dict(zip(held, tf.unstack(every, len(held), axis=1), strict=True))

    return row_statistic(step)


def lens_accuracy(lens: xr.DataArray, labels: np.ndarray) -> xr.Dataset:
    """Accuracy of the logit lens of each layer, and its agreement with the last layer.

        accuracy  = mean over examples of [argmax s_layer = y]
        agreement = mean over examples of [argmax s_layer = argmax s_last]

    Here, s_layer are the scores of the lens at a layer, and y is the label.

    Args:
        lens: DataArray of shape (example, layer, class) from `logit_lens`.
        labels: labels of the images, an integer array of shape (example,).

    Returns:
        Dataset with four variables of shape (layer,).

        * `accuracy`: the share of examples that the lens of the layer classifies correctly.
        * `agreement`: the share of examples for which the lens of the layer and the lens of the
          last layer predict the same class.
        * `accuracy_stderr` and `agreement_stderr`: the standard errors of `accuracy` and
          `agreement` over examples.

    Raises:
        ValueError: if `lens` is not from `logit_lens`, or if there is not exactly one label for
            each example.

    Examples:
        >>> lens = analysis.logit_lens(vit, images)
        >>> accuracy = analysis.lens_accuracy(lens, labels)
        >>> accuracy.accuracy.dims
        ('layer',)
        >>> float(accuracy.agreement[-1])
        1.0

    See also:
        `logit_lens`, `plots.plot_lens_accuracy`; page measurements/flow/activation-patching.md.
    """
    lens, labels = expect_array(lens, ("example", "layer", "class")), np.asarray(labels)
    if lens.sizes["class"] < 2:
        raise ValueError(ONE_SCORE.format("of a single class"))
    require_labels(labels, lens.sizes["class"], count=lens.sizes["example"])
    predicted = lens.values.argmax(axis=2)
    # Accuracy is agreement with the labels, agreement that with the last layer.
    right = {"accuracy": predicted == labels[:, None], "agreement": predicted == predicted[:, -1:]}
    variables = {}
    for name, hits in right.items():
        mean, error = mean_and_error(hits)
        variables[name] = variable("layer", mean, f"{name} of the logit lens")
        variables[f"{name}_stderr"] = variable("layer", error, f"standard error of {name}")
    return ResultDataset(
        variables,
        coords={"layer": lens["layer"].values},
        attrs=lens.attrs | {"examples": len(labels), "num_classes": lens.sizes["class"]},
    )
