"""Draw a labelled result: `plot(result)`, or `plot_<measurement>(result, ax=None)` by name.

Every plot returns the Matplotlib axes in which it drew: the argument `ax`, or the axes of a new
figure, `ax.figure`. It neither saves nor shows the figure; a notebook shows it once. A plot of
several panels draws them in the area of the axes, and `ax.panels` is the array of the panels' axes.
A plot that compares several results also takes a dict from label to result.

Depth increases from left to right. If both axes are layers, it also increases from bottom to top,
so the input lies at the origin, as in Raghu et al. 2021, "Do Vision Transformers See Like
Convolutional Neural Networks?".

The title contains the attribute `model` of the result, or `model_x` and `model_y`. If all results
have the same layers, the depth axis has the names of the layers; otherwise, depth is normalised to
[0, 1].
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
