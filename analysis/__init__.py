"""Measurements of what a vision model has learned.

Every analysis takes `features`, a callable from a batch of images to `{tap: tensor}`, streams a
data set through it once and returns a labelled xarray result.

Args that the measurements share, unless their docstrings say otherwise:
    features: callable from a batch of images to `{layer: tensor}`, tensors of shape (example,
        token, channel), (example, row, column, channel) or (example, channel).
    images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
    train, test: batched `tf.data.Dataset` of (images, labels), or pairs of arrays; labels are
        integers from 0 to `num_classes - 1`.
    num_classes: number of classes.
    grid: `TokenGrid` of the tokens, or a pair (rows, columns); by default the features' own.
    tokens: what a layer is summarised by: the `"cls"` token, or the mean of the `"spatial"` tokens
        or of `"all"`. The `token_grid` of the features tells which are which.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
