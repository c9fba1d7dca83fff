"""An opened model as one under study, and its random baselines."""

import warnings
from dataclasses import replace
from functools import cache, partial

import vit_tf
from vit_tf.names import format_list
from vit_tf.taps.attention_weights import attention_taps, contradictions
from vit_tf.training.checkpointing import describe_model

from ...engine.features import gaussian_like
from ...engine.store import fingerprint
from ..models import StudyModel, attended
from .layers import grid_of, values_of_taps, variation
from .opened import features_of, is_plain

PROBES = 3  # images to read the shapes of taps on, not one, as an axis that broadcasts has


def study_model(opened, images):
    """An opened model as one under study.

    Args:
        opened: the `Opened`.
        images: array of a few of the images that are measured, with values in [-1, 1].

    Returns:
        The `StudyModel`, the names of the layers that do not vary between images and are left out,
        and the `variation` of the last of the others that is not a constant.
    """
    size = images.shape[1:3]
    values, constant = values_of_taps(opened, images)
    shapes = {tap: value.shape[1:] for tap, value in values.items()}
    grid = grid_of(opened, shapes, size)
    plain = [] if is_plain(opened) else [opened.expects.to_config()]
    names = ("patch_kernel", "position_embedding")
    there = [name for name in names if getattr(opened.model, name, None) is not None]
    first_layer = {name: partial(getattr, opened.model, name) for name in there}
    computed, why = _attention_of(opened, images, grid)
    model = StudyModel(
        opened.name,
        "model",
        fingerprint(opened.key, list(shapes), grid and vars(grid), *plain, *computed),
        tuple(shapes),
        grid,
        partial(features_of, opened, grid),
        shapes=shapes | computed,
        image_size=size,
        told=opened.part,
        configuration=describe_model(opened.model) if opened.is_keras else {"layers": shapes},
        computed=tuple(computed),
        unattended=why,
        **first_layer,
    )
    moves = [variation(value) for value in values.values()]  # none where a head is still zero
    return model, constant, next((share for share in reversed(moves) if share), 0.0)


def _attention_of(opened, images, grid):
    """Attention weights that a foreign model's layers do not return: dict from name to shape.

    With words for `StudyModel.lacks` where there are none, though it has layers of attention.
    """
    told = attention_taps(opened.model) if opened.is_foreign and opened.is_keras else {}
    if not told:
        return {}, ""
    needed = [*told, *(name for names in told.values() for name in names)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of masks, which `contradictions` finds too
        taps = features_of(opened, None, *needed)(images)
    shapes = {name: tuple(taps[name].shape[1:]) for name in told}
    names, why = attended(shapes, grid)
    wrong = contradictions(opened.model, taps, names)
    return (
        ({}, STRANGE.format(format_list(wrong))) if wrong else ({n: shapes[n] for n in names}, why)
    )


STRANGE = (
    "attention weights among its layers, and what it projects to queries and keys does not give "
    "the output of {}: it is masked, or has a rule of its own"
)


BASELINE_WORDS = {"fresh": "untrained", "noise": "noise"}


def baselines_of(model, fresh=None, seed=0):
    """The random baselines of a model, to compare its features with: list of `StudyModel`.

    Args:
        model: the `StudyModel`.
        fresh: function that makes a copy of the model with weights as before any training and
            returns a function from taps to its features; None where there is no such copy.
        seed: of these weights.
    """
    made = cache(fresh) if fresh else None
    features = {"noise": lambda *taps: gaussian_like(model.features(*taps))}
    if fresh:
        features = {"fresh": lambda *taps: made()(*taps)} | features
    return [
        replace(
            model,
            name=f"{model.name}, {BASELINE_WORDS[role]}",
            role=role,
            key=fingerprint(model.key, role, seed),
            features=of,
            detail=None,
            of=model,
            accuracy=None,
        )
        for role, of in features.items()
    ]


def opened_baselines(opened, model, seed):
    """The random baselines of an opened model; of one without weights noise alone."""

    def fresh():
        copy = replace(opened, model=vit_tf.reinitialize(opened.model, seed))
        return partial(features_of, copy, model.grid)

    return baselines_of(model, fresh if opened.is_keras else None, seed)
