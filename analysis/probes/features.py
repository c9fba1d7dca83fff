"""The features of images, as arrays by layer."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from vit_tf.data.any_images import ImagesLike
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.features import Features
from vit_tf.features.layers import Detail

from ..engine.measurements import measurement
from ..engine.preparation import prepare
from ..engine.results import require_finite
from ..engine.stream import Statistic, evaluate, row_statistic
from ..engine.traces import reusable


@measurement()
def extract_features(
    model: ModelLike,
    images: ImagesLike,
    *,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> dict[str, np.ndarray]:
    """The features of every layer for each image, as arrays in memory.

    Measurements accept them instead of a model: `cka(extract_features(model, images))`.

    Args:
        model, images: as in `vit_tf.analysis`.

    Returns:
        Dict from layer name to an array with one row for each image, in the order of the images.
        Its shape is (example, token, channel), (example, row, column, channel) or (example,
        channel).

    Raises:
        ValueError: if a pattern matches no layer, or if features are not finite.

    Examples:
        >>> pooled = analysis.extract_features(vit, images, layers="pooled")["pooled"]
        >>> pooled.shape
        (24, 8)
        >>> last = analysis.extract_features(vit, images, layers=-1)
        >>> list(last)
        ['norm']

    See also:
        `vit_tf.submodel`, `layers`, `projection`; page guides/ten-lines.md.
    """
    features, batches = prepare(model, images, layers=layers, detail=detail, keep_order=True)
    values = evaluate(_rows_of_layers(features), batches, features, description="features")
    require_finite("features", list(values.values()), list(values))
    return values


@reusable
def _rows_of_layers(features: Features) -> Statistic[dict[str, np.ndarray]]:
    """`Statistic` over images with the layers of each."""

    def step(images: tf.Tensor, taps: dict[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        return {layer: tf.cast(values, tf.float32) for layer, values in taps.items()}

    return row_statistic(step)
