"""Loads data sets by name as batches of images in [-1, 1] and labels, and augments them."""

import lazy_loader

# Imported when first used: files and preprocessing need no TensorFlow.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
