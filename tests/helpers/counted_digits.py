"""The digits as data that are not kept in memory, each noted when it is decoded."""

import dataclasses

import tensorflow as tf

from vit_tf.data import pipeline, reading
from vit_tf.data.pipeline import open_digits


def count_decoding(monkeypatch):
    """Let `load("digits")` decode each image when it is wanted; the list of those decoded."""
    decoded, digits = [], open_digits()

    def note(image):
        decoded.append(image.tobytes())
        return image

    def decode(image):
        return tf.ensure_shape(tf.numpy_function(note, [image], tf.float32), image.shape), ""

    source = dataclasses.replace(digits, decode=decode)
    monkeypatch.setattr(reading, "CACHE_BYTES", 0)
    monkeypatch.setattr(pipeline, "open_source", lambda *_: source)
    return decoded
