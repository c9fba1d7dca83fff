"""Darcet et al. 2024: "Vision Transformers Need Registers"."""

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.common.names import join_words
from vit_tf.features.features import Features

from ..flow.outliers import CLASS, POSITION, outlier_roles, outlier_tokens
from ..plots.property_plots import plot_outlier_roles, plot_outlier_tokens
from .causes import DARCET, intervention
from .chapters import CAUSES
from .vocabulary import (
    Estimate,
    Figure,
    Measurement,
    StudyModel,
    Units,
    claim,
    each,
    expect_variable,
    statistic,
    with_error,
)


def outliers_of(model: StudyModel) -> Measurement:
    """Outlier tokens of every block, and the attention that they receive."""
    model.require_grid()
    return statistic(outlier_tokens, model, model.layers("outliers"))


def roles_of(model: StudyModel) -> Measurement:
    """What the outlier tokens encode, and the effect of replacing them."""
    model.require_grid()

    def measure(
        features: Features, test: tf.data.Dataset, scores: str, outliers: xr.Dataset
    ) -> xr.Dataset:
        return outlier_roles(features, test, scores, outliers=outliers)

    taps, inputs = model.layers("patching"), [outliers_of(model)]
    return intervention(measure, model, taps, "outlier_roles", inputs=inputs)


def difference_of(roles: xr.Dataset, content: str) -> Estimate:
    """Accuracy of the probe on outlier minus that on ordinary tokens, mean over layers."""
    means, errors = (
        expect_variable(roles, name, ("layer", "content")).sel(content=content).values
        for name in ("probe_difference", "probe_difference_stderr")
    )
    if not np.isfinite(means).any():
        raise ValueError("No layer has tokens of outlying norm in at least 20 images.")
    # The layers share images: the error of the mean is at most the mean of the errors.
    images = int(roles.attrs["examples"])
    error = float(np.nanmean(errors)), images - 1.0
    return with_error(float(np.nanmean(means)), error, Units("images", images, images))


@claim(
    "outlier_roles.{vit}",
    "section 2.1, Table 1 (ImageNet)",
    "difference in accuracy",
    effect=0.032,  # 69.0 and 65.8 %, the third smallest difference of 14 data sets
    least=0.01,
    beyond_untrained=False,
)
def outliers_hold_the_class(roles: xr.Dataset) -> Estimate:
    """High-norm tokens hold more information on the whole image than ordinary tokens.

    Accuracy of predicting the image's class from one outlier (high-norm) token minus the accuracy
    from one ordinary token of the same image, averaged over the layers with outlier tokens.

    The claim is not tested if the model has no outlier tokens. Darcet et al. 2024 observe such
    tokens in large models after long training; untrained models have none.
    """
    return difference_of(roles, CLASS)


@claim(
    "outlier_roles.{vit}",
    "section 2.1, Figure 5b",
    "difference in accuracy",
    effect=-0.189,  # 22.8 and 41.7 %
    least=0.05,
    beyond_untrained=False,
)
def outliers_hold_no_position(roles: xr.Dataset) -> Estimate:
    """High-norm tokens hold less information on their position than ordinary tokens.

    Accuracy of predicting a token's position from one outlier (high-norm) token minus the accuracy
    from one ordinary token of the same image, averaged over the layers with outlier tokens.

    If all outlier tokens have the same position, a probe predicts this position without using their
    content. The accuracy of such a probe is `chance`: compare the accuracy with it.
    """
    return difference_of(roles, POSITION)


def without_outliers(
    results: dict[str, xr.Dataset], has_outliers: Callable[[xr.Dataset], Any]
) -> str | None:
    """The sentence on models without outlier tokens, or None."""
    if any(map(has_outliers, results.values())):
        return None
    return f"No token has an outlying norm in any layer of {join_words(results)}."


OUTLIERS = Figure(
    paper=DARCET,
    numbers="outliers",
    chapter=CAUSES,
    shows="outlier tokens of each layer and the attention that they receive",
    models=each("vit", "gap"),
    measure=outliers_of,
    results="outlier_tokens",
    draw=plot_outlier_tokens,
    name="outlier-tokens-{model}",
    title="Outlier tokens, {model}",
    caption=(
        "Outlier tokens are tokens whose norm exceeds the norms that Gaussian tokens would have. "
        "The panels show the share of outlier tokens, their norm relative to other tokens, and the "
        "attention that outlier, ordinary and prefix tokens receive."
    ),
    instead=partial(without_outliers, has_outliers=lambda tokens: tokens["share"].max() > 0),
)

ROLES = Figure(
    paper=DARCET,
    numbers="roles",
    chapter=CAUSES,
    shows="what outlier tokens encode, and the output without them",
    models=each("vit", "gap"),
    measure=roles_of,
    results="outlier_roles",
    draw=plot_outlier_roles,
    name="outlier-roles-{model}",
    title="Roles of outlier tokens, {model}",
    caption=(
        "Two panels show the accuracy of probes on one outlier or one ordinary token, for the "
        "class of the image and for the position of the token. Dotted lines are chance. The other "
        "panel shows how much predictions diverge when outlier or ordinary tokens are replaced. "
        "Tokens are replaced in three ways: trust an effect only if all three show it."
    ),
    instead=partial(
        without_outliers, has_outliers=lambda roles: roles["output_change"].notnull().any()
    ),
    claims=[outliers_hold_the_class, outliers_hold_no_position],
)
