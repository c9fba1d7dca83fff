"""Draw one labelled result: `plot_*(result, ax=None)` returns axes; it neither saves nor shows.

Depth runs left to right (and bottom up where both axes are layers), so the input lies at the
origin, as in Raghu et al. 2021, "Do Vision Transformers See Like Convolutional Neural Networks?",
whose figures are named in the docstrings. A title takes the model's name from the attribute
`model` of the result, or `model_x` and `model_y`.

Args that the plots share, unless their docstrings say otherwise:
    result: one result, with the dims that the docstring names.
    results: one such result, or a dict from label to such results, which are told apart by colour.
    ax: Matplotlib axes; by default those of a new figure, which the caller saves and closes.
    axes: array of Matplotlib axes, one for each panel or more; by default as for `ax`.
    layers: names of the layers to draw, in order; by default all.
    baselines: labels of results that are drawn in grey.

Lines through the depth are named by their layers if all results have the same layers; otherwise
depth is normalised to [0, 1].

Raises:
    ValueError: for a result without the dims, variables, coordinates or attributes that the
        docstring names, a dict without results, a layer, token, query or other choice that the
        result does not have, and fewer axes than panels.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
