"""Features that look up the rows of arrays, and the images that hold the numbers of the rows."""

import numpy as np
import tensorflow as tf


def features_of(tables, grid=None):
    """Features of a dict from tap to array (example, ...): the rows that images number."""
    tables = {tap: tf.constant(np.asarray(values, "float32")) for tap, values in tables.items()}

    def features(images):
        rows = tf.cast(images[:, 0, 0, 0], tf.int32)
        return {tap: tf.gather(table, rows) for tap, table in tables.items()}

    features.token_grid = grid
    return features


def numbers(count, batch=None):
    """Images whose only pixel is their number: an array, or batches of a data set."""
    images = np.arange(count, dtype="float32").reshape(-1, 1, 1, 1)
    return images if batch is None else tf.data.Dataset.from_tensor_slices(images).batch(batch)
