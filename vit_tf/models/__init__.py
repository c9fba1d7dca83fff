"""Models: one architecture a file, each intermediate named where it is computed."""

import lazy_loader

# The classes by name, imported when first used.
__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
