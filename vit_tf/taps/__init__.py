"""Taps: named intermediates of any Keras model, saved features and operation counts."""

import lazy_loader

# `vit_tf.edits` is a public module.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules={"edits"})
