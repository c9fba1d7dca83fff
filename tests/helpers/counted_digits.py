"""The digits as data that are not kept in memory, each noted when it is decoded."""

import tensorflow as tf

from vit_tf.data import pipeline, reading
from vit_tf.data.pipeline import Digits


def count_decoding(monkeypatch):
    """Let `load("digits")` decode each image when it is wanted; the list of those decoded."""
    decoded = []

    def note(image):
        decoded.append(image.tobytes())
        return image

    class CountedDigits(Digits):
        def decode(self, item):
            return tf.ensure_shape(tf.numpy_function(note, [item], tf.float32), item.shape), ""

    source = CountedDigits()
    monkeypatch.setattr(reading, "CACHE_BYTES", 0)
    monkeypatch.setattr(pipeline, "open_source", lambda *_: source)
    return decoded
