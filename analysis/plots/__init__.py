"""Draw a labelled result: `plot(result)`, or `plot_<measurement>(result, ax=None)` by name.

Every plot returns the Matplotlib axes it drew in: those given as `ax`, or those of a new figure,
which is `.figure` of them; a notebook shows it once. It neither saves nor shows. A plot of several
panels lays them out where the axes are; `ax.panels` is the array of the panels' axes. A plot
that compares several results takes a dict from label to result too.

Depth runs left to right (and bottom up where both axes are layers), so the input lies at the
origin, as in Raghu et al. 2021, "Do Vision Transformers See Like Convolutional Neural Networks?",
whose figures are named in the docstrings.

A title takes the model's name from the attribute `model` of the result, or `model_x` and `model_y`.
Lines through the depth are named by their layers if all results have the same layers; otherwise
depth is normalised to [0, 1].
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
