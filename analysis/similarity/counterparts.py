"""CKA of layers with the layers of the same name in another model."""

from __future__ import annotations

import numpy as np
import xarray as xr

from ..engine.results import expect_variable, layer_names


def counterparts(similarity: xr.Dataset) -> xr.Dataset:
    """CKA of every layer with the layer of the same name in the other model.

    As between models trained on more or less data (Raghu et al. 2021, section 8, figure 12) or
    before and after fine-tuning (appendix G, figures G.1 and G.2).

    Args:
        similarity: Dataset from `cka` of two models: cka(layer_x, layer_y) and its stderr.

    Returns:
        Dataset cka(layer) and stderr(layer), layers in the order of the first model.

    Raises:
        ValueError: if the models share no layer.

    Examples:
        >>> similarity = analysis.cka(vit, images, vit)
        >>> analysis.counterparts(similarity).cka.dims
        ('layer',)

    See also:
        `cka`, `own_matches`, `plots.plot_counterparts`; page
        measurements/similarity/counterparts.md.
    """
    cka = expect_variable(similarity, "cka", ("layer_x", "layer_y"))
    names = _shared(cka)
    pairs = {dim: xr.DataArray(names, dims="layer") for dim in ("layer_x", "layer_y")}
    chosen = similarity.sel(pairs).drop_vars(["layer_x", "layer_y"])
    return chosen.assign_coords(layer=names)


def own_matches(similarity: xr.Dataset) -> tuple[int, int]:
    """Number of layers of one training run whose best match in another has the same name.

    The sanity check of Kornblith et al. 2019, section 6.1: architecturally identical models
    trained from different initializations should be most similar layer by layer.

    Args:
        similarity: as for `counterparts`, of two runs of one architecture.

    Returns:
        Pair of the number of layers (along x) whose largest CKA is with the layer of their own
        name, and the number of layers that have one.

    Raises:
        ValueError: if the models share no layer.

    Examples:
        >>> similarity = analysis.cka(vit, images, vit)
        >>> matched, count = analysis.own_matches(similarity)
        >>> matched <= count
        True

    See also:
        `cka`, `counterparts`, `plots.plot_own_matches`; page
        measurements/similarity/counterparts.md.
    """
    cka = expect_variable(similarity, "cka", ("layer_x", "layer_y"))
    names = _shared(cka)
    best = np.array(layer_names(cka, "layer_y"))[cka.sel(layer_x=names).values.argmax(axis=1)]
    return int((best == names).sum()), len(names)


def _shared(cka):
    """Names of the layers that both models have."""
    other = set(layer_names(cka, "layer_y"))
    names = [name for name in layer_names(cka, "layer_x") if name in other]
    if not names:
        raise ValueError(
            "Expected models with layers of the same names. Received: "
            f"{layer_names(cka, 'layer_x')[:3]} and {layer_names(cka, 'layer_y')[:3]}"
        )
    return names
