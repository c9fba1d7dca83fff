"""The models under study: loaded ones, their baselines, and which taps serve which measurement."""

import hashlib
import inspect
import logging
import os
import re
import warnings
from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, cached_property, partial
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
import xarray as xr
from keras import backend

import vit_tf
from vit_tf.common.names import format_list, is_part, join_words, match
from vit_tf.data.preprocessing import Preprocessing, interval
from vit_tf.features import recorder
from vit_tf.features.attention_weights import attention_taps, by_own_rule, contradictions
from vit_tf.features.class_names import find_class_names
from vit_tf.features.layers import (
    KINDS,
    Detail,
    attended,
    grid_of_shapes,
    layers_of,
    sublayers,
    warn_of_missed_blocks,
    with_prefix_first,
)
from vit_tf.features.scores import Scores, find_scores
from vit_tf.features.structure import MAX_LAYERS, ModelGraph, has_tap_grammar, spread
from vit_tf.features.submodels import ModelTaps, TapModel, describe_taps
from vit_tf.features.tokens import TokenGrid
from vit_tf.torch_models import is_torch_module
from vit_tf.training import checkpointing
from vit_tf.training.evaluation import correct_answers, describe_class_order, match_classes

from ..engine.estimates import accuracy_of
from ..engine.failures import as_reason, explain
from ..engine.feature_taps import token_grid_of
from ..engine.features import Selected, features_of
from ..engine.noise import gaussian_like
from ..engine.own_images import Normalised
from ..engine.store import base_code, code_of, fingerprint, keep, load
from ..engine.stream import this_worker
from .data import Data
from .supervision import LABELS, SUPERVISIONS

# The parts that models play in a study, in the words for what plays them.
ROLES = {
    "vit": "a ViT with a CLS token",
    "gap": "a ViT with average pooling",
    "resnet": "a ResNet",
    "mixer": "an MLP-Mixer",
    "without": "models trained without the skips of a block",
    "seed": "a model trained with another seed",
    "fraction": "models trained on fractions of the data",
    "resnet_fraction": "ResNets trained on the same fractions of the data",
    "larger": "a larger ViT",
    "hybrid": "a hybrid of ResNet and ViT",
    "masked": "a ViT pre-trained by masked patch prediction",
    "tuned": "the same, fine-tuned",
    "before": "a model before fine-tuning",
    "after": "a model after fine-tuning",
    "far": "a model after fine-tuning on a far domain",
    "untrained": "the untrained ViT",
    "copy": "a second untrained copy of a model",
    "noise": "noise instead of the ViT's features",
}
# The roles that trained models play by themselves; any other model is a variant of one of them.
ARMS = ("vit", "gap", "resnet", "mixer")
# Whose variants they are, where it is not the ViT with a CLS token.
BASES = {"resnet_fraction": "resnet", "after": "before", "far": "before"}
# The roles of a variant that --roles takes, and what is specified after a colon: its detail.
VARIANT_ROLES = {
    "without": str,
    "seed": int,
    "fraction": float,
    "larger": None,
    "hybrid": None,
    "masked": None,
    "tuned": None,
    "before": None,
    "after": None,
    "far": None,
}
BASELINES = ("untrained", "noise")
# Randomly initialized copies of a model, on which each claim is tested too; the first is drawn.
UNTRAINED_ROLES = ("untrained", "copy")
log = logging.getLogger(__name__)
DESCRIBED = ("keras", "vit_tf")  # packages whose layers are what their configuration says
PROBES = 3  # images to read the shapes of taps on, not one, as an axis that broadcasts has
CONSTANT = 1e-6  # share of the squares that is left around the mean, as for CKA
MIN_VARIATION = 1e-3  # the same of scores or layers that hardly vary
LOW_VARIATION = "Models whose last layers hardly vary"
CONSTANT_LAYERS = "Layers that do not vary between images"
NO_ACCURACY = "Test accuracy"
OTHER_CLASSES = "Models of other classes than those of the data"
LOW_VARIATION_MESSAGE = (
    "The last layers of {model} hardly differ between images. The model received images with "
    "values in {values}."
)
CONTRADICTION = (
    "attention weights among its layers, and weights computed from its queries and keys do not "
    "reproduce the output of {} (a mask or another rule of attention)"
)
ACCURACY = "test accuracy (%)"


class NotApplicable(ValueError):
    """Why a figure does not show a model, as a sentence."""


@dataclass(frozen=True)
class StudyModel:
    """A model under study."""

    name: str  # as figures and tables show it
    role: str  # of `ROLES`; or "model", one that is in every figure that it has the taps for
    key: str  # `fingerprint` of its weights and of the data
    taps: tuple[str, ...]  # in depth order
    grid: TokenGrid | None  # None where it is not known
    features: Callable[..., Any]  # from tap names or patterns to a callable from images to them
    detail: str | int | float | None = None  # the block, seed or fraction that sets it apart
    base: "StudyModel | None" = None  # what it is a variant, a further seed or a baseline of
    accuracy: tuple[float, int] | None = None  # test accuracy in [0, 1], number of test images
    # Which test images are classified correctly, of shape (test image,).
    correct: Any = field(default=None, compare=False, repr=False)
    # Names of the classes of its scores, where they are known to be scores of classes; those of the
    # labels where its accuracy is known.
    class_names: tuple[str, ...] = field(default=(), compare=False, repr=False)
    # The shape of each tap without the example axis; empty where all are as the tap grammar says.
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict, compare=False)
    image_size: tuple[int, int] | None = None  # (height, width) in pixels, where `shapes` are known
    # Functions of nothing to what `patch_filters` and `position_similarity` take.
    patch_kernel: Callable[[], Any] | None = field(default=None, compare=False)
    position_embedding: Callable[[], Any] | None = field(default=None, compare=False)
    # Function of nothing to the floating-point operations of its training, where they are known.
    training_flops: Callable[[], float] | None = field(default=None, compare=False)
    # How it was trained, of `supervision.SUPERVISIONS`; empty where it is not known.
    supervision: str = field(default="", compare=False)
    given_role: str | None = None  # in the scorecard, of a "model", where the user specifies it
    # JSON facts that models of other seeds share, as a scorecard keeps them.
    configuration: dict[str, Any] = field(default_factory=dict, compare=False)
    # Attention weights that are no taps but follow from queries and keys; or why there are none.
    computed: tuple[str, ...] = field(default=(), compare=False)
    # The tap of its class scores where that is not the last one, and whether the probabilities of
    # the classes are their sigmoids instead of their softmax.
    scores: str = ""
    has_sigmoids: bool = False
    no_attention: str = field(default="", compare=False)
    # Which taps are representations, blocks and scores; None where their names show it.
    graph: ModelGraph | None = field(default=None, compare=False)
    # Patterns of the layers that the user chose, where they did.
    chosen: tuple[str, ...] = field(default=(), compare=False)
    # `key` of the model whose randomly initialized copy it is, and a function of nothing to the
    # Keras model with its weights: the graphs of a model serve its copies.
    original_key: str = field(default="", compare=False)
    keras_model: Callable[[], keras.Model] | None = field(default=None, compare=False)

    @property
    def original(self) -> "StudyModel":
        """The model that this is a variant, a further seed or a baseline of."""
        if self.base is None:
            raise ValueError(f"Expected a model with a base. Received: {self.name!r}")
        return self.base

    def keras_copy(self) -> keras.Model:
        """A Keras model with its weights; a `NotApplicable` for a model that is none of Keras."""
        return self.require(self.keras_model, "Keras model")()

    @property
    def architecture(self) -> str:
        """Equal for a model and its untrained copies."""
        return self.original_key or self.key

    def require(self, value: Any, requirement: str) -> Any:
        """The value; where it is empty, a `NotApplicable`: this model has no `requirement`."""
        if not value:
            raise NotApplicable(f"{self.name} has no {requirement}.")
        return value

    def require_grid(self) -> TokenGrid:
        """The grid of its spatial tokens or positions; a `NotApplicable` where it is not known."""
        return self.require(
            self.grid, "grid of spatial tokens or positions that is known and tiles the images"
        )

    def layers(self, kind: str, detail: Detail = None, block: str = "block00") -> list[str]:
        """The layers that a measurement of a kind reads; a `NotApplicable` where there are none."""
        layers = self.find_layers(kind, detail, block)
        if "attention" in kind and not layers:
            hidden = self.has_tokens and not self.has_sums
            within = " among its layers: layers with attention do not return them" if hidden else ""
            return self.require(layers, self._no_attention or f"attention weights{within}")
        return self.require(layers, KINDS[kind].lacks)

    def find_layers(self, kind: str, detail: Detail = None, block: str = "block00") -> list[str]:
        """The layers that a measurement of a kind reads, where the model has any."""
        readable = {*self.taps, *self.computed}
        # Computed weights have their place among the taps, which `shapes` lists by depth.
        names = [tap for tap in self.shapes if tap in readable] if self.computed else self.taps
        return layers_of(
            kind, names, self.shapes, self.structure, self.grid, detail=detail, block=block
        )

    @property
    def structure(self) -> ModelGraph:
        """Which taps are representations, blocks and scores."""
        if self.graph or has_tap_grammar(self.taps):
            return self.graph or ModelGraph.of_names(self.taps)
        ranks = {tap: len(shape) for tap, shape in self.shapes.items()}
        held = [tap for tap in sublayers(self.taps) if ranks.get(tap, 2) in (1, 2, 3)]
        held = tuple(spread(held, MAX_LAYERS))
        return ModelGraph(held, held, "logits" if "logits" in self.taps else None)

    @property
    def _no_attention(self) -> str:
        weights = {tap: self.shapes[tap] for tap in self.weights if tap in self.shapes}
        return self.no_attention or attended(weights, self.grid)[1]

    def require_attention(self) -> list[str]:
        """Its attention weights over a known grid, taps or computed; a `NotApplicable` for none."""
        weights = self.layers("attention")
        self.require_grid()
        return weights

    def require_scores(self) -> str:
        """The tap that holds scores of classes; a `NotApplicable` where there is none."""
        tap = self.scores or self.structure.scores
        shape = self.shapes.get(tap or "", (2,) if tap == "logits" and not self.shapes else ())
        are_scores = len(shape) == 1 and shape[0] > 1
        return self.require(
            tap if are_scores else "",
            "scores of classes, as a last layer of one number for each class",
        )

    @property
    def scorecard_role(self) -> str | None:
        """Its role in the scorecard: that in the study, or what it is; None if unclear."""
        if self.role != "model":
            return self.role
        if self.given_role:
            return self.given_role
        if any("/token_mixing/" in tap for tap in self.taps):
            return "mixer"
        if self.weights and self.has_sums and self.grid:
            return "vit" if self.has_cls else "gap"
        return "resnet" if self.has_maps else None

    @property
    def has_maps(self) -> bool:
        """Whether it has maps through its depth, as convolutions make them."""
        return bool(self.stages) or 2 * sum(map(self.is_map, self.blocks)) > len(self.blocks)

    @property
    def scores_tap(self) -> str:
        """The tap of its class scores, if it has any."""
        return self.scores or self.structure.scores or self.taps[-1]

    @property
    def slug(self) -> str:
        """The name as a part of file names."""
        return slug(self.name)

    @property
    def weights(self) -> list[str]:
        """The taps that hold attention weights."""
        return [tap for tap in self.taps if is_part(tap, "weights")]

    @property
    def has_cls(self) -> bool:
        """Whether a prefix token comes first."""
        return bool(self.grid and self.grid.prefix)

    @property
    def stages(self) -> list[str]:
        """Names of the stages of a ResNet, whose maps differ in size; empty for other models."""
        sites = dict.fromkeys(tap.split("/")[0] for tap in self.taps)
        if any(re.fullmatch(r"block\d+", site) for site in sites):
            return []  # a ResNet that is the stem of a ViT
        return [site for site in sites if re.fullmatch(r"stage\d+", site)]

    @property
    def has_tokens(self) -> bool:
        """Whether the shapes show sequences of tokens on its grid."""
        return any(len(self.shapes.get(tap, ())) == 2 for tap in self.structure.representations)

    @property
    def has_sums(self) -> bool:
        """Whether the taps show where blocks end, as the tap grammar does."""
        return has_tap_grammar(self.taps)

    @property
    def blocks(self) -> list[str]:
        """The taps at the end of each block, and the embedding."""
        return list(self.structure.blocks)

    def map_size(self, tap: str) -> tuple[int, int]:
        """Rows and columns of the map of a ResNet's stage, each of which halves the one before."""
        if tap in self.shapes:
            rows, columns, *_ = self.shapes[tap]
            return rows, columns
        grid = self.require_grid()
        times = 2 ** (len(self.stages) - 1 - self.stages.index(tap.split("/")[0]))
        return grid.rows * times, grid.columns * times

    def is_map(self, tap: str) -> bool:
        """Whether a tap of known shape is a map in the proportions of the image."""
        shape = self.shapes.get(tap, ())
        if len(shape) != 3 or shape[0] * shape[1] == 1:
            return False
        height, width = cast(tuple[int, int], self.image_size)  # as shapes are known
        return shape[0] * width == shape[1] * height


def slug(name: str) -> str:
    """A model's name as a part of file names: `"ViT-B/16"` becomes `"vit-b-16"`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def distinct(name: str, taken: Container[str]) -> str:
    """A name whose slug is none of those `taken`: `"vit (2)"` for a second `"vit"`."""
    require_slug(name)
    number, candidate = 1, name
    while slug(candidate) in taken:
        number += 1
        candidate = f"{name} ({number})"
    return candidate


def require_slug(name: Any) -> None:
    """Raises a `ValueError` for a name that files cannot be called after."""
    if not isinstance(name, str) or not slug(name):
        raise ValueError(
            f"Expected names of models (--names) with Latin letters or digits. Received: {name!r}"
        )


def require_distinct(names: Iterable[str]) -> None:
    """Raises a `ValueError` for names of models of which results would have the same names."""
    first = {}
    for name in names:
        require_slug(name)
        if slug(name) in first:
            raise ValueError(
                f"Expected names of models that differ in more than case and punctuation, as "
                f"they are used in file names. Received: {first[slug(name)]!r} and {name!r}"
            )
        first[slug(name)] = name


def describe_model(loaded: Any, model: StudyModel) -> dict[str, Any]:
    """The row of a loaded model in the report's table."""
    grid = model.grid
    prefix = f"{grid.prefix} + " if grid and grid.prefix else ""
    kind = type(loaded.model).__name__ if loaded.is_keras else "features"
    return {
        "model": loaded.name,
        "kind": "SavedModel" if kind == "features" and loaded.source else kind,
        "parameters": loaded.model.count_params() if loaded.is_keras else None,
        "layers read": len(model.taps),
        "tokens or positions": f"{prefix}{grid.rows} x {grid.columns}" if grid else "not known",
        "trained": SUPERVISIONS.get(model.supervision, "not known"),
    }


@dataclass(frozen=True)
class LoadedModel:
    """A model as it was loaded."""

    name: str  # as figures and tables show it
    # A Keras model, or a callable from images to `{tap: tensor}`, as `load_features` returns.
    model: Any
    expects: Preprocessing
    # Identifies what it computes; by default the weights of a Keras model do. Nothing identifies a
    # function: what is measured on it is never read from an earlier run.
    digest: str = ""
    source: str = ""  # where it is from, as tables show it
    # Patterns of the layers that are read of a model whose layers have no names of ours.
    taps: tuple[str, ...] = ()
    # Pixels of a patch and number of prefix tokens, where the model does not specify them.
    patch_size: int | None = None
    prefix: int | None = None
    # As `given_role` of a `StudyModel`; or that of a variant, with its detail: "fraction:0.1".
    role: str | None = None
    supervision: str = ""  # as that of a `StudyModel`

    @property
    def is_keras(self) -> bool:
        """Whether it is a Keras model."""
        return hasattr(self.model, "count_params")

    @property
    def is_foreign(self) -> bool:
        """Whether the names of the layers do not follow the tap grammar of this package."""
        named = not self.is_keras or isinstance(self.model, TapModel)
        return not named and not hasattr(self.model, "intermediates")

    @property
    def is_plain(self) -> bool:
        """Whether the model expects values in [-1, 1]."""
        means = {*self.expects.mean, *self.expects.std}
        return means == {0.5} and self.expects.channel_order == "rgb"

    @property
    def key(self) -> str:
        """Key that identifies its results: weights, configuration and the code of own layers."""
        if not self.is_keras:
            return self.digest or token_hex(8)
        kinds = {type(layer) for layer in self.model._flatten_layers()}
        custom_kinds = [
            kind for kind in kinds if kind.__module__.partition(".")[0] not in DESCRIBED
        ]
        custom_kinds.sort(key=lambda kind: (kind.__module__, kind.__qualname__))
        code = [(kind.__qualname__, code_of(inspect.unwrap(kind.call))) for kind in custom_kinds]
        if self.digest:
            return fingerprint(self.digest, code)
        total = hashlib.sha256(str(checkpointing.config_of(self.model)).encode())
        for weight in self.model.weights:
            total.update(np.ascontiguousarray(weight).tobytes())
        return fingerprint(total.hexdigest(), code)

    @cached_property
    def _all_taps(self) -> Any:
        """A submodel of all taps, of which others are parts, or a model of other origin itself."""
        return self.model if self.is_foreign else vit_tf.submodel(self.model, "*")

    @cached_property
    def class_scores(self) -> Scores | None:
        """Where a Keras model of other origin computes its class scores."""
        return find_scores(self.model) if self.is_keras and self.is_foreign else None

    def submodel(self, *patterns: str) -> Callable:
        """The taps that fit the patterns, as a callable from images that the model expects."""
        if hasattr(self.model, "selected"):  # of a PyTorch module
            return self.model.selected(*patterns)
        if not self.is_keras:
            return Selected(self.model, patterns)
        return vit_tf.submodel(self._all_taps, *patterns)

    def features(self, grid: TokenGrid | None, *patterns: str) -> Callable:
        """The taps that fit the patterns, as a callable from images in [-1, 1], with its grid."""
        features = self.submodel(*patterns)
        features.token_grid = grid
        if not self.is_plain:
            return Normalised(features, self.expects)
        features.preprocessing = self.expects
        return features


def declared(model: Any) -> Preprocessing | None:
    """The preprocessing that a model declares, or that its layers show; None if neither does."""
    from vit_tf.features.input_range import find_preprocessing

    if hasattr(model, "count_params"):
        return find_preprocessing(model)[0]
    return getattr(model, "preprocessing", None)


def expected(model: Any) -> Preprocessing:
    """The preprocessing of a model's images; by default values in [-1, 1]."""
    from vit_tf.features.input_range import input_size

    if preprocessing := declared(model):
        return preprocessing
    if not hasattr(model, "count_params"):
        return Preprocessing(None)
    channels = (recorder.input_spec(model)[0][3:] or (1,))[0] or 3
    return Preprocessing(input_size(model), (0.5,) * channels, (0.5,) * channels)


def shared_framing(
    expected_images: Sequence[Preprocessing], size: tuple[int, int] | None = None
) -> Preprocessing:
    """How the images that all models of a report are shown are resized, whatever their order.

    Images are cropped and resized as all models expect if the models agree. Otherwise the whole
    image is resized, with bilinear interpolation.
    """
    size = size or next((images.size for images in expected_images if images.size), None)
    framings = {images.framing(size) for images in expected_images}
    if len(framings) == 1:
        return framings.pop()
    channels = {framing.num_channels for framing in framings}
    if len(channels) > 1:
        raise ValueError(
            "Expected models of images of equally many channels. "
            f"Received: models of {join_words(map(str, sorted(channels)))}"
        )
    half = (0.5,) * channels.pop()
    return Preprocessing(size, half, half)


def open_model(model: Any) -> Any:
    """A model that is loaded, if given by its path or name; the layers of a PyTorch module."""
    if isinstance(model, str | os.PathLike):
        model = vit_tf.load(model)
    if not is_torch_module(model):
        return model
    from vit_tf.features.module_taps import study_features  # which imports PyTorch

    features = study_features(model)
    features.token_grid = features_of(model).token_grid
    return features


def prepare_models(
    loaded: list[LoadedModel],
    data: Data,
    folder: str | Path,
    class_names: Sequence[str] = (),
    seed: int = 0,
    remedy: str = "",
    copies: int = 2,
) -> tuple[list[StudyModel], list[dict], list[tuple[str, list[str]]]]:
    """Models under study with their random baselines, a table row for each, and `left_out`.

    `copies` is the number of untrained copies on which claims are tested too, at most 2.
    """
    names = [model.name for model in loaded]
    require_distinct(
        [*names, *(f"{name} ({role})" for name in names for role in (*BASELINES, "untrained 2"))]
    )
    few = next(iter(data.few))
    few = (few[0] if isinstance(few, tuple) else few)[:PROBES].numpy()
    titles = (LOW_VARIATION, CONSTANT_LAYERS, OTHER_CLASSES, NO_ACCURACY)
    models, rows, notes = [], [], {title: [] for title in titles}
    for source in loaded:
        model, constant, variation_of_last = study_model(source, few)
        log.info("%s: %d layers are measured", source.name, len(model.taps))
        correct, why_not = None, ""
        try:
            correct, why_not = correct_of(source, model, data, class_names, Path(folder, "results"))
        except Exception as error:
            # One of several workers must not go on without the others, nor any on a full disk.
            if isinstance(error, OSError) or this_worker(tf.distribute.get_strategy())[1] > 1:
                raise
            reason = explain(error, f"The test accuracy of {source.name}")
            notes[NO_ACCURACY].append(f"{source.name}: {reason}")
        accuracy = None if correct is None else (float(correct.mean()), len(correct))
        # A model whose own head classifies these images was trained with labels, unless it is known
        # how it was trained.
        chance = 1 / data.num_classes if data.num_classes else 1.0
        if accuracy and not model.supervision and accuracy_of(*accuracy).low > chance:
            model = replace(model, supervision=LABELS)
        names = class_names if accuracy else find_class_names(source.model) or ()
        names = tuple(names) if model.shapes.get(model.scores_tap) == (len(names),) else ()
        model = replace(model, accuracy=accuracy, correct=correct, class_names=names)
        models.append(model)
        rows.append(describe_model(source, model))
        if accuracy:
            rows[-1][ACCURACY] = round(100 * accuracy[0], 2)
            own_names = getattr(source.model, "class_names", None)
            if class_order := describe_class_order(own_names, class_names):
                log.info("%s: %s", source.name, class_order)
        if why_not:
            notes[OTHER_CLASSES].append(f"{source.name}: {why_not}")
            log.info("The accuracy of %s is not reported: %s", source.name, why_not)
        if constant:
            notes[CONSTANT_LAYERS].append(f"{source.name}: {', '.join(constant)}.")
        if variation_of_last < MIN_VARIATION:
            values = interval(*source.expects.value_range)
            message = LOW_VARIATION_MESSAGE.format(model=source.name, values=values)
            notes[LOW_VARIATION].append(message + remedy)
    if any(ACCURACY in row for row in rows):
        rows = [row | {ACCURACY: row.get(ACCURACY)} for row in rows]
    models = [
        each
        for source, model in zip(loaded, with_given_roles(models), strict=True)
        for each in [model, *(_baselines_of_loaded(source, model, seed, copies))]
    ]
    return models, rows, [(title, sentences) for title, sentences in notes.items() if sentences]


def parse_role(
    text: str, what: str = "roles", *others: str
) -> tuple[str, str | int | float | None]:
    """The role and the detail in a text such as "vit" or "fraction:0.1".

    An error names `what`, where the text is from, and what else may stand there.
    """
    role, _, detail = text.partition(":")
    kind = VARIANT_ROLES.get(role)
    try:
        if (role in ARMS or role in VARIANT_ROLES) and bool(kind) == bool(detail):
            return role, kind(detail) if kind else None
    except ValueError:  # no number
        pass
    examples = {"without": "block03", "seed": "1", "fraction": "0.1"}
    known = [f"{name}:{examples[name]}" if name in examples else name for name in VARIANT_ROLES]
    every = ", ".join([*ARMS, *others, *known])
    raise ValueError(f"Expected {what} among {every}. Received: {text!r}")


def with_given_roles(models: list[StudyModel]) -> list[StudyModel]:
    """Models of which some have the roles of variants, as those of a study, each with its base.

    The base of a variant is the first model with the role that the variant's layers show, such as
    "vit" for a ViT with a CLS token; if some are of the variant's size, the first of these.
    """
    given = [parse_role(model.given_role or "vit") for model in models]
    if not any(role in VARIANT_ROLES for role, _ in given):
        return models
    assigned = {}
    for stage in (ARMS, ("larger", "before"), VARIANT_ROLES):
        for position, (model, (role, detail)) in enumerate(zip(models, given, strict=True)):
            if position in assigned or role not in stage:
                continue
            if role in ARMS:
                assigned[position] = replace(model, role=model.scorecard_role or "model")
                continue
            base = _base_of(replace(model, given_role=None), role, list(assigned.values()))
            changes = {"role": role, "detail": detail, "base": base, "given_role": None}
            assigned[position] = replace(model, **changes)
    return [assigned[position] for position in range(len(models))]


def _base_of(model: StudyModel, role: str, others: list[StudyModel]) -> StudyModel | None:
    """What a model with the role of a variant is compared with, of these."""
    wanted = BASES.get(role) or model.scorecard_role
    fitting = [other for other in others if other.role == wanted]
    larger = [other for other in others if other.role == "larger" and role == "fraction"]
    of_equal_size = [other for other in [*fitting, *larger] if other.shapes == model.shapes]
    if role == "before" and not fitting:  # compared with what is fine-tuned from it alone
        return None
    if not fitting:
        raise ValueError(
            f"Expected a model with the role {wanted!r}, of which {model.name} is a variant "
            f"({role}). Received: none"
        )
    return (of_equal_size or fitting)[0]


def correct_of(
    loaded: LoadedModel, model: StudyModel, data: Data, class_names: Sequence[str], folder: Path
) -> tuple[np.ndarray | None, str]:
    """Which test images a model's own head classifies correctly, kept in a folder of results.

    Truth values of shape (test image,), or None for a model whose last layer does not hold a number
    for each of these classes; and, where it names other ones, words for that.
    """
    tap = model.scores_tap
    is_vector = len(model.shapes.get(tap, ())) == 1
    is_unclear = loaded.class_scores is not None and not loaded.class_scores.tap
    has_scores = (loaded.is_keras and not is_unclear) or getattr(loaded.model, "scores", None)
    if not has_scores or not is_vector or not class_names or not data.labelled:
        return None, ""
    model_classes = getattr(loaded.model, "class_names", None)
    try:
        (num_classes,) = model.shapes[tap]
        match_classes(model_classes, num_classes, class_names)
    except ValueError as error:
        return None, as_reason(str(error)) if model_classes else ""
    path = folder / f"accuracy.{model.slug}.nc"
    key = fingerprint("correct answers", base_code(), model.key, data.facts, list(class_names))
    result = load(path, key)
    if result is None:
        head = model.features(tap)
        correct = correct_answers(cast(Any, lambda images: head(images)[tap]), data.test)
        result = xr.DataArray(correct, dims="example", name="correct")
        result = keep(result, path, key, {"model": model.name})
    return cast(xr.DataArray, result).values.astype(bool), ""


def study_model(loaded: LoadedModel, images: np.ndarray) -> tuple[StudyModel, list[str], float]:
    """A loaded model as one under study, from a few of the images, with values in [-1, 1]."""
    size = images.shape[1:3]
    described = describe_taps(loaded.model) if loaded.is_foreign else None
    values, constant = values_of_taps(loaded, images, described)
    shapes = {tap: value.shape[1:] for tap, value in values.items()}
    scores = loaded.class_scores
    graph = graph_of_values(loaded, shapes, described)
    grid = token_grid_of(loaded.model)
    if grid is None:
        known = shapes if described is None else described.shapes | shapes
        grid = grid_of_shapes(known, known, size, graph, loaded.patch_size, loaded.prefix)

        def values_of_tap(tap: str) -> np.ndarray:
            noise = np.random.default_rng(0).uniform(-1, 1, (2, *images.shape[1:]))
            return np.asarray(loaded.features(None, tap)(noise.astype(np.float32))[tap])

        grid = with_prefix_first(grid, loaded.name, tuple(known), known, values_of_tap)
    plain = [] if loaded.is_plain else [loaded.expects.to_config()]
    names = ("patch_kernel", "position_embedding")
    present: dict[str, Any] = {
        name: partial(getattr, loaded.model, name)
        for name in names
        if getattr(loaded.model, name, None) is not None
    }
    computed, why = _attention_of(loaded, images, grid)
    configuration = (
        checkpointing.describe_model(loaded.model) if loaded.is_keras else {"layers": shapes}
    )
    model = StudyModel(
        loaded.name,
        "model",
        fingerprint(loaded.key, list(shapes), grid and vars(grid), *plain, *computed),
        tuple(shapes),
        grid,
        partial(loaded.features, grid),
        shapes=by_depth(shapes | computed, described),
        image_size=size,
        given_role=loaded.role,
        supervision=loaded.supervision,
        scores=scores.tap if scores and scores.tap in shapes else "",
        has_sigmoids=bool(scores) and scores.activation == "sigmoid",
        configuration=configuration,
        computed=tuple(computed),
        no_attention=why,
        graph=graph,
        chosen=loaded.taps if loaded.is_foreign else (),
        keras_model=(lambda: loaded.model) if loaded.is_keras else None,
        **present,
    )
    variations = map(variation, reversed(values.values()))  # none where a head is still zero
    return model, constant, next(filter(None, variations), 0.0)


def values_of_taps(
    loaded: LoadedModel, images: np.ndarray, described: ModelTaps | None
) -> tuple[dict[str, np.ndarray], list[str]]:
    """The values of the taps to read, and the names of layers that do not vary between the images.

    Of a model whose layers have no names of ours, those that some measurement reads.
    """
    patterns = ["*"] if described is None else readable_taps(described, loaded.taps)
    values = {
        tap: np.asarray(value, np.float32)
        for tap, value in loaded.features(None, *patterns)(images).items()
        if backend.is_float_dtype(backend.standardize_dtype(value.dtype))
        and len(value.shape) > 1
        and len(value) == len(images)
    }
    constant = [
        t for t, value in values.items() if loaded.is_foreign and variation(value) <= CONSTANT
    ]
    taps = [tap for tap in values if tap not in constant]
    if not taps:
        raise ValueError(
            "Expected layers with floating-point values that vary between images. "
            f"Received: {loaded.source or loaded.name} with none"
        )
    return {tap: values[tap] for tap in taps}, constant


def readable_taps(described: ModelTaps, patterns: Sequence[str]) -> list[str]:
    """The taps of a foreign model that measurements read, without computed attention weights."""
    graph = described.graph
    representations = match(patterns, described.names) if patterns else graph.representations
    wanted = {*representations, *(() if patterns else graph.blocks), graph.scores}
    wanted |= {*layers_of("heads", described.names, described.shapes, graph, None)}
    taps = recorder.find_taps(described.source)
    read = [tap for tap in taps if tap in wanted or is_part(tap, "weights")]
    skips = layers_of("skips", described.names, described.shapes, graph, None)
    read += [tap for tap in skips if tap not in read]
    # Scores before a last softmax are no output of a layer.
    return read if graph.scores in (None, *taps) else [*read, cast(str, graph.scores)]


def graph_of_values(
    loaded: LoadedModel, shapes: dict[str, tuple[int, ...]], described: ModelTaps | None
) -> ModelGraph | None:
    """Which of the taps that are read are representations; None where their names show it."""
    if described is None:
        return None
    graph = described.graph
    if loaded.taps:
        chosen = tuple(tap for tap in match(loaded.taps, described.names) if tap in shapes)
        return replace(graph, representations=chosen, blocks=chosen, num_repeated=0)
    warn_of_missed_blocks(loaded.name, graph)
    representations = tuple(tap for tap in graph.representations if tap in shapes)
    blocks = tuple(tap for tap in graph.blocks if tap in shapes)
    return replace(graph, representations=representations, blocks=blocks)


def by_depth(
    shapes: dict[str, tuple[int, ...]], described: ModelTaps | None
) -> dict[str, tuple[int, ...]]:
    """Shapes of taps in the order in which a model computes them, where that is known."""
    if described is None:
        return shapes
    depths = {tap: depth for depth, tap in enumerate(described.names)}
    return dict(sorted(shapes.items(), key=lambda item: depths.get(item[0], len(depths))))


def variation(values: np.ndarray) -> float:
    """Share of the squares of an array of shape (example, ...) that is left around the mean."""
    values = np.asarray(values, np.float64)
    return np.sum((values - values.mean(axis=0)) ** 2) / (np.sum(values**2) or 1)


def _attention_of(
    loaded: LoadedModel, images: np.ndarray, grid: TokenGrid | None
) -> tuple[dict[str, tuple[int, ...]], str]:
    """Shapes of attention weights that a foreign model's layers do not return, by name.

    With words for `StudyModel.require` where there are none, though it has layers of attention.
    """
    foreign = loaded.is_foreign and loaded.is_keras
    inputs = attention_taps(loaded.model) if foreign else {}
    if not inputs:
        return {}, ""
    if wrong := by_own_rule(loaded.model, inputs, ()):
        paths = list(dict.fromkeys(recorder.split_weights(name)[0] for name in wrong))
        return {}, CONTRADICTION.format(format_list(paths))
    needed = [*inputs, *(name for names in inputs.values() for name in names)]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of masks, which `contradictions` finds too
        taps = loaded.features(None, *needed)(images)
    shapes = {name: tuple(taps[name].shape[1:]) for name in inputs}
    names, why = attended(shapes, grid)
    if wrong := contradictions(loaded.model, taps, names):
        return {}, CONTRADICTION.format(format_list(wrong))
    return {name: shapes[name] for name in names}, why


@dataclass(frozen=True)
class UntrainedCopy:
    """A randomly initialized copy of a model."""

    features: Callable[..., Any]  # as those of a `StudyModel`
    model: keras.Model


def baselines_of(
    model: StudyModel,
    fresh: Callable[[], UntrainedCopy] | None = None,
    seed: int = 0,
    again: Callable[[], UntrainedCopy] | None = None,
) -> list[StudyModel]:
    """The random baselines of a model, to compare its features with.

    `fresh` and `again` make copies of the model with random weights, of different seeds.
    """
    noise = {"features": lambda *taps: gaussian_like(model.features(*taps)), "keras_model": None}
    baselines = {"noise": noise}
    for role, make in zip(UNTRAINED_ROLES, (fresh, again), strict=True):
        if make:
            copy = cache(make)
            baselines[role] = {
                "features": partial(_features_of_copy, copy),
                "keras_model": partial(_model_of_copy, copy),
                "original_key": model.key,
            }
    order = (*BASELINES, "copy")
    return [
        replace(
            model,
            name=f"{model.name} ({'untrained 2' if role == 'copy' else role})",
            role=role,
            key=fingerprint(model.key, role, seed),
            detail=None,
            base=model,
            accuracy=None,
            correct=None,
            class_names=(),
            **baselines[role],
        )
        for role in order
        if role in baselines
    ]


def _features_of_copy(copy: Callable[[], UntrainedCopy], *taps: str) -> Callable:
    """Features of a copy that is made once, when it is first needed."""
    return copy().features(*taps)


def _model_of_copy(copy: Callable[[], UntrainedCopy]) -> keras.Model:
    """The Keras model of the same copy."""
    return copy().model


def _baselines_of_loaded(
    loaded: LoadedModel, model: StudyModel, seed: int, copies: int
) -> list[StudyModel]:
    if model.role not in (*ARMS, "model"):  # a variant
        return []

    def fresh(own_seed: int) -> UntrainedCopy:
        copy = replace(loaded, model=vit_tf.reinitialize(loaded.model, own_seed))
        return UntrainedCopy(partial(copy.features, model.grid), copy.model)

    is_able = loaded.is_keras
    return baselines_of(
        model,
        partial(fresh, seed) if is_able else None,
        seed,
        partial(fresh, seed + 1) if is_able and copies > 1 else None,
    )
