"""A model as it is measured: its named layers, what is known about them, and interventions."""

import lazy_loader

# `vit_tf.edits` is a public module.
__getattr__, __dir__, __all__ = lazy_loader.attach(__name__, submodules={"edits"})
