"""Draw one labelled result: `plot_*(result, ax=None)` returns axes; it neither saves nor shows.

Depth runs left to right (and bottom up where both axes are layers), so the input lies at the
origin, as in Raghu et al. 2021, "Do Vision Transformers See Like Convolutional Neural Networks?",
whose figures are named in the docstrings. Functions that are given no axes make a figure of a
fitting size; the caller saves and closes it. A title takes the model's name from the attribute
`model` of the result, or `model_x` and `model_y`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
