"""CKA of the normalised inputs of blocks, and of their skips and branches."""

from __future__ import annotations

import xarray as xr

from vit_tf.names import listed

from ..engine.front import measurement, statistic_of
from ..engine.stream import Statistic, evaluate
from ..engine.types import Images, Model
from .cka import cka_statistic


@measurement("norms")
def depth_cka(features: Model, images: Images) -> xr.Dataset:
    """CKA between the normalised inputs of all sites, and the last norm, of one model.

    Walmer et al. 2023, section D.3, figures 20 to 22.

    Args:
        features: a model, or a callable from images to taps, of which those named `"norm"` are
            compared.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.

    Returns:
        Dataset as that of `cka`, layers named by tap.

    Raises:
        ValueError: without such taps, and as `cka`.

    Examples:
        >>> similarity = analysis.depth_cka(vit, images)
        >>> similarity.layer_x.values.tolist()[-1]
        'norm'

    See also:
        `plots.plot_depth_cka`, `cka`; page measurements/similarity/depth.md.
    """
    return evaluate(depth_statistic(features), images, features, description="CKA of norms")


@statistic_of(depth_cka)
def depth_statistic(features):
    """The `Statistic` of `depth_cka`."""
    inner = cka_statistic(features)

    def step(images, taps):
        return inner.step(images, _ending(taps, "norm"))

    return Statistic(step, inner.finish, min_batch=inner.min_batch)


@measurement("skips")
def residual_cka(features: Model, images: Images, site: str = "attention") -> xr.Dataset:
    """CKA between the skips and the branches of all blocks of one model.

    Where a skip differs from the branch that is added to it, the block changes what is represented
    (Walmer et al. 2023, section D.4, figure 23).

    Args:
        features: a model, or a callable from images to taps, of which `"block/site/skip"` and
            `"block/site/branch"` are compared.
        images: array of shape (example, height, width, channel), or batched `tf.data.Dataset`.
        site: `"attention"`, `"mlp"` or another site that has them.

    Returns:
        Dataset as that of `cka`: `layer_x` are the branches, `layer_y` the skips.

    Raises:
        ValueError: without such taps, and as `cka`.

    Examples:
        >>> similarity = analysis.residual_cka(vit, images, site="mlp")
        >>> similarity.layer_y.values.tolist()
        ['block00/mlp/skip', 'block01/mlp/skip']

    See also:
        `plots.plot_residual_cka`, `skip_ratio`; page measurements/similarity/residual.md.
    """
    statistic = residual_statistic(features, site)
    return evaluate(statistic, images, features, description="CKA of skips and branches")


@statistic_of(residual_cka)
def residual_statistic(features, site="attention"):
    """The `Statistic` of `residual_cka`."""
    inner = cka_statistic(features, features)

    def step(images, taps):
        ends = [_ending(taps, f"{site}/{end}") for end in ("branch", "skip")]
        return inner.step(images, *ends)

    return Statistic(step, inner.finish, min_batch=inner.min_batch)


def _ending(taps, name):
    """The taps of this name in any block, or a `ValueError` if there are none."""
    chosen = {tap: x for tap, x in taps.items() if f"/{tap}".endswith(f"/{name}")}
    if not chosen:
        raise ValueError(f"Expected taps named {name!r}. Received: {listed(taps)}")
    return chosen
