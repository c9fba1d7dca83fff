"""The models under study: loaded ones, their baselines, and which taps serve which measurement."""

import hashlib
import inspect
import logging
import os
import re
from collections import defaultdict
from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache, partial
from pathlib import Path
from secrets import token_hex
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf
import xarray as xr
from keras import backend

import vit_tf
from vit_tf.common.errors import as_reason, explain
from vit_tf.common.names import format_list, is_part, join_words, match
from vit_tf.data.any_images import shape_of_floats
from vit_tf.data.preprocessing import Preprocessing, interval
from vit_tf.features import recorder
from vit_tf.features.attention_weights import (
    computed_weights,
    find_contradicted,
)
from vit_tf.features.conversion import as_features
from vit_tf.features.features import Features, ScoreKind
from vit_tf.features.first_images import observed_grid
from vit_tf.features.layers import (
    KINDS,
    Detail,
    Shape,
    attended,
    layers_of,
    readable_layers,
    structure_of_outputs,
    unfit_attention,
    warn_of_missed_blocks,
)
from vit_tf.features.lazy_features import LazyFeatures
from vit_tf.features.noise import gaussian_like
from vit_tf.features.preprocessed import PreprocessedFeatures
from vit_tf.features.structure import ModelGraph, has_tap_grammar
from vit_tf.features.submodels import TapModel
from vit_tf.features.tokens import TokenGrid
from vit_tf.torch_models import is_torch_module
from vit_tf.training import checkpointing
from vit_tf.training.evaluation import correct_answers, match_classes

from ..engine.store import base_code, code_of, fingerprint, load_result, store_result
from ..engine.stream import this_worker
from ..statistics.estimates import accuracy_of
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
    "finer": "the same ViT with smaller patches",
    "positions": "the same ViT with another kind of position embeddings",
    "hybrid": "a hybrid of ResNet and ViT",
    "masked": "a ViT pre-trained by masked patch prediction",
    "tuned": "a ViT pre-trained by masked patch prediction and fine-tuned",
    "before": "a model before fine-tuning",
    "after": "a model after fine-tuning",
    "far": "a model after fine-tuning on a far domain",
    "untrained": "the untrained ViT",
    "copy": "a second untrained copy of a model",
    "noise": "noise instead of the ViT's features",
}
# The roles that trained models play by themselves; any other model is a variant of one of them.
ARMS = ("vit", "gap", "resnet", "mixer")
# Variants of another architecture than their base, which have untrained copies of their own.
COPIED_VARIANTS = ("without", "larger", "finer", "masked")
# Whose variants they are, where it is not the ViT with a CLS token.
BASES = {"resnet_fraction": "resnet", "after": "before", "far": "before"}
# The roles of a variant that --roles takes, and what is specified after a colon: its detail.
VARIANT_ROLES = {
    "without": str,
    "seed": int,
    "fraction": float,
    "larger": None,
    "finer": None,
    "positions": None,
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
    features: Features  # the layers that are read, for images with values in [-1, 1]
    detail: str | int | float | None = None  # the block, seed or fraction that sets it apart
    base: "StudyModel | None" = None  # what it is a variant, a further seed or a baseline of
    accuracy: tuple[float, int] | None = None  # test accuracy in [0, 1], number of test images
    # Which test images are classified correctly, of shape (test image,).
    correct: Any = field(default=None, compare=False, repr=False)
    # Names of the classes of its scores, where they are known to be scores of classes; those of the
    # labels where its accuracy is known.
    class_names: tuple[str, ...] = field(default=(), compare=False, repr=False)
    # Attributes of the Keras model that it has, of `FIRST_LAYER`.
    first_layer: tuple[str, ...] = field(default=(), compare=False)
    # Function of nothing to the floating-point operations of its training, where they are known.
    training_flops: Callable[[], float] | None = field(default=None, compare=False)
    # How it was trained, of `supervision.SUPERVISIONS`; empty where it is not known.
    supervision: str = field(default="", compare=False)
    training_images: int | None = field(default=None, compare=False)  # None: not known
    given_role: str | None = None  # in the scorecard, of a "model", where the user specifies it
    # JSON facts that models of other seeds share, as a scorecard keeps them.
    configuration: dict[str, Any] = field(default_factory=dict, compare=False)
    # Patterns of the layers that the user chose, where they did.
    chosen: tuple[str, ...] = field(default=(), compare=False)
    # `key` of the model whose randomly initialized copy it is, and a function of nothing to the
    # Keras model with its weights: the graphs of a model serve its copies.
    original_key: str = field(default="", compare=False)
    keras_model: Callable[[], keras.Model] | None = field(default=None, compare=False)

    def select(self, *layers: str) -> Features:
        """Features of some of its layers, given by name or shell pattern."""
        return self.features.select(layers)

    @property
    def taps(self) -> tuple[str, ...]:
        """Names of the layers that are read, in depth order."""
        return self.features.facts.layers

    @property
    def shapes(self) -> Mapping[str, tuple[int, ...]]:
        """The shape of each layer without the example axis; empty where names show it."""
        return cast(Mapping[str, tuple[int, ...]], self.features.facts.shapes)

    @property
    def grid(self) -> TokenGrid | None:
        """Where its tokens or positions lie; None where it is not known."""
        return self.features.facts.grid

    @property
    def structure(self) -> ModelGraph:
        """Which layers are representations, blocks and scores."""
        return self.features.facts.structure

    @property
    def has_sigmoids(self) -> bool:
        """Whether the probabilities of classes are sigmoids of their scores, one by one."""
        scores = self.features.facts.scores
        return scores is not None and scores.kind is not ScoreKind.SOFTMAX

    @property
    def original(self) -> "StudyModel":
        """The model that this is a variant, a further seed or a baseline of."""
        return cast(StudyModel, self.base)

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
            self.grid, "known grid of spatial tokens or positions that tiles the images"
        )

    def layers(self, kind: str, detail: Detail = None, block: str = "block00") -> list[str]:
        """The layers that a measurement of a kind reads; a `NotApplicable` where there are none."""
        layers = self.find_layers(kind, detail, block)
        if "attention" in kind and not layers:
            reason = self.features.facts.reasons.get("attention weights", "")
            reason = reason or unfit_attention(kind, self.taps, self.shapes, self.grid)
            reason = reason or "attention weights"
            is_known = has_tap_grammar(self.taps)
            if reason == "attention weights" and self.has_tokens and not is_known:
                reason += " among its layers: layers with attention do not return them"
            return self.require(layers, reason)
        return self.require(layers, KINDS[kind].lacks)

    def find_layers(self, kind: str, detail: Detail = None, block: str = "block00") -> list[str]:
        """The layers that a measurement of a kind reads, where the model has any."""
        return layers_of(
            kind, self.taps, self.shapes, self.structure, self.grid, detail=detail, block=block
        )

    def require_attention(self) -> list[str]:
        """Its attention weights over a known grid, taps or computed; a `NotApplicable` for none."""
        weights = self.layers("attention")
        self.require_grid()
        return weights

    def require_scores(self) -> str:
        """The tap that holds scores of classes; a `NotApplicable` where there is none."""
        scores = self.features.facts.scores
        tap = scores.layer if scores else self.structure.scores
        shape = self.shapes.get(tap or "", (2,) if tap == "logits" and not self.shapes else ())
        are_scores = len(shape) == 1 and shape[0] > 1
        return self.require(
            tap if are_scores else "",
            "scores of classes: its last layer does not return one number for each class",
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
        if self.weights and self.grid and has_tap_grammar(self.taps):
            return "vit" if self.has_cls else "gap"
        return "resnet" if self.has_maps else None

    @property
    def has_maps(self) -> bool:
        """Whether it has maps through its depth, as convolutions make them."""
        return bool(self.stages) or 2 * sum(map(self.is_map, self.blocks)) > len(self.blocks)

    @property
    def scores_tap(self) -> str:
        """The tap of its class scores, if it has any."""
        scores = self.features.facts.scores
        return scores.layer if scores else self.structure.scores or self.taps[-1]

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
        height, width = self.features.image_size or shape[:2]
        return shape[0] * width == shape[1] * height


def slug(name: str) -> str:
    """A model's name as a part of file names: `"ViT-B/16"` becomes `"vit-b-16"`.

    Raises a `ValueError` for a name that files cannot be called after.
    """
    text = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") if isinstance(name, str) else ""
    if not text:
        raise ValueError(
            f"Expected names of models (--names) with Latin letters or digits. Received: {name!r}"
        )
    return text


def distinct(name: str, taken: Container[str]) -> str:
    """A name whose slug is none of those `taken`: `"vit (2)"` for a second `"vit"`."""
    number, candidate = 1, name
    while slug(candidate) in taken:
        number += 1
        candidate = f"{name} ({number})"
    return candidate


def require_distinct(names: Iterable[str]) -> None:
    """Raises a `ValueError` for names of models of which results would have the same names."""
    first = {}
    for name in names:
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
        "layers measured": len(model.taps),
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
    training_images: int | None = None  # as those of a `StudyModel`

    @property
    def is_keras(self) -> bool:
        """Whether it is a Keras model."""
        return isinstance(self.model, keras.Model)

    @property
    def original(self) -> Any:
        """The Keras model or PyTorch module that untrained copies are made of; None for others."""
        if isinstance(self.model, Features):
            return self.model.source
        return self.model if self.is_keras else None

    @property
    def is_foreign(self) -> bool:
        """Whether it is a whole Keras model whose layers have names of their own."""
        is_whole = self.is_keras and not isinstance(self.model, TapModel)
        return is_whole and not recorder.names_its_layers(self.model)

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

    def features(self, size: tuple[int, int] | None) -> Features:
        """All of its layers, for images of a size with values in [-1, 1]."""
        whole = as_features(self.model, size, self.patch_size, self.prefix)
        if not self.is_plain:
            return PreprocessedFeatures(whole, self.expects)
        return whole.with_facts(preprocessing=self.expects)


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
            "The models take images with different numbers of channels: "
            f"{join_words(map(str, sorted(channels)))}. Models of one report take the same "
            "images."
        )
    half = (0.5,) * channels.pop()
    return Preprocessing(size, half, half)


def open_model(model: Any, images: Any = None) -> Any:
    """A model that is loaded, if given by its path or name; features of a PyTorch module.

    A module is measured at the size of the images, if these are floats of one size.
    """
    if isinstance(model, str | os.PathLike):
        model = vit_tf.load(model)
    if not is_torch_module(model):
        return model
    return as_features(model, None if images is None else shape_of_floats(images))


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
    few = tf.nest.flatten(next(iter(data.few)))[0][:PROBES].numpy()
    models, rows = [], []
    # Sentences by the title of an entry of what is not shown.
    notes: defaultdict[str, list[str]] = defaultdict(list)
    for source in loaded:
        model, constant, variation_of_last = study_model(source, few)
        log.info("%s: %d layers are measured", source.name, len(model.taps))

        # The test accuracy, where the model's own head classifies these images.
        correct, why_not = None, ""
        try:
            correct, why_not = correct_of(source, model, data, class_names, Path(folder, "results"))
        except Exception as error:
            # One of several workers must not go on without the others, nor any on a full disk.
            if isinstance(error, OSError) or this_worker(tf.distribute.get_strategy())[1] > 1:
                raise
            reason = explain(error, f"The test accuracy of {source.name}")
            notes["Test accuracy"].append(f"{source.name}: {reason}")
        accuracy = None if correct is None else (float(correct.mean()), len(correct))
        # A model that does so above chance was trained with labels, unless its training is known.
        chance = 1 / data.num_classes if data.num_classes else 1.0
        interval_of_accuracy = accuracy_of(*accuracy).interval if accuracy else None
        is_able = interval_of_accuracy is not None and interval_of_accuracy[0] > chance
        if is_able and not model.supervision:
            model = replace(model, supervision=LABELS)
        names = class_names if accuracy else model.features.facts.class_names
        names = tuple(names) if model.shapes.get(model.scores_tap) == (len(names),) else ()
        model = replace(model, accuracy=accuracy, correct=correct, class_names=names)
        models.append(model)
        rows.append(describe_model(source, model))
        if accuracy:
            rows[-1][ACCURACY] = round(100 * accuracy[0], 2)

        # What the report does not show of the model, and what makes its results doubtful.
        if why_not:
            title = "Models whose classes differ from the classes of the data"
            notes[title].append(f"{source.name}: {why_not}")
            log.info("The accuracy of %s is not reported: %s", source.name, why_not)
        if constant:
            layers = f"{source.name}: {', '.join(constant)}."
            notes["Layers that do not vary between images"].append(layers)
        if variation_of_last < MIN_VARIATION:
            values = interval(*source.expects.value_range)
            message = LOW_VARIATION_MESSAGE.format(model=source.name, values=values)
            title = "Models whose last layers hardly vary between images"
            notes[title].append(message + remedy)

    # Untrained copies need the roles of all models, as only some roles have copies.
    all_models = []
    for source, model in zip(loaded, with_given_roles(models), strict=True):
        seeds = range(seed, seed + copies) if source.original is not None else ()
        makers = [partial(vit_tf.reinitialize, source.original, each) for each in seeds]
        # Only an attempt shows whether all weights of a PyTorch module can be drawn.
        if makers and not source.is_keras:
            try:
                makers[0]()
            except Exception as error:  # constructors of other libraries may raise anything
                reason = explain(error, f"An untrained copy of {source.name}")
                notes["Models without untrained copies"].append(f"{source.name}: {reason}")
                makers = []
        all_models += [model, *baselines_of(model, makers, seed)]
    return all_models, rows, list(notes.items())


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
    if not any(model.given_role for model in models):
        return models
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
            assigned[position] = replace(
                model, role=role, detail=detail, base=base, given_role=None
            )
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
            f"{model.name} is a variant ({role}) of a model with the role {wanted!r}, but no "
            "model has this role: add such a model, or correct the roles"
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
    facts = model.features.facts
    has_scores = facts.scores or (loaded.is_keras and facts.structure.scores)
    if not has_scores or not is_vector or not class_names or not data.labelled:
        return None, ""
    model_classes = facts.class_names or None
    try:
        (num_classes,) = model.shapes[tap]
        match_classes(model_classes, num_classes, class_names)
    except ValueError as error:
        return None, as_reason(str(error)) if model_classes else ""
    path = folder / f"accuracy.{model.slug}.nc"
    key = fingerprint("correct answers", base_code(), model.key, data.facts, list(class_names))
    result = load_result(path, key)
    if result is None:
        head = model.features.select([tap])
        # As in every pass of a measurement, AutoGraph converts nothing.
        score = tf.autograph.experimental.do_not_convert(lambda images: head(images)[tap])
        correct = correct_answers(cast(Any, score), data.test)
        result = xr.DataArray(correct, dims="example", name="correct")
        result = store_result(result, path, key, {"model": model.name})
    return cast(xr.DataArray, result).values.astype(bool), ""


def study_model(loaded: LoadedModel, images: np.ndarray) -> tuple[StudyModel, list[str], float]:
    """A loaded model as one under study, from a few of the images, with values in [-1, 1].

    Returns the model, the names of layers that do not vary between the images, and the variation of
    the last layer that varies.
    """
    features, constant, last_variation = _observed_features(loaded, images)
    facts = features.facts
    if loaded.is_foreign:
        warn_of_missed_blocks(loaded.name, facts.structure)
    plain = [] if loaded.is_plain else [loaded.expects.to_config()]
    configuration = (
        checkpointing.describe_model(loaded.model)
        if loaded.is_keras
        else {"layers": dict(facts.shapes)}
    )
    model = StudyModel(
        loaded.name,
        "model",
        fingerprint(loaded.key, list(facts.layers), facts.grid and vars(facts.grid), *plain),
        features,
        given_role=loaded.role,
        supervision=loaded.supervision,
        training_images=loaded.training_images,
        configuration=configuration,
        chosen=loaded.taps if loaded.is_foreign else (),
        keras_model=(lambda: loaded.model) if loaded.is_keras else None,
        first_layer=tuple(x for x in FIRST_LAYER if getattr(loaded.model, x, None) is not None),
    )
    return model, constant, last_variation


# Attributes of Keras models with what `patch_filters` and `position_similarity` take.
FIRST_LAYER = ("patch_kernel", "position_embedding")


def _observed_features(
    loaded: LoadedModel, images: np.ndarray
) -> tuple[Features, list[str], float]:
    """The layers of a loaded model that measurements read and that vary between a few images."""
    whole = loaded.features(tuple(images.shape[1:3]))
    if not loaded.is_keras and not isinstance(loaded.model, Features):
        # A function shows by its values whether its scores are probabilities.
        whole = whole.read_scores(None, lambda: tf.constant(images))
    facts = whole.facts
    computed, reasons = _attention_of(loaded, whole, images)
    features, graph = whole, facts.structure
    if facts.layers:  # of a function they are known once it has been called
        names = readable_layers(facts.layers, facts.shapes, graph, facts.grid)
        if loaded.is_foreign and loaded.taps:
            chosen = tuple(match(loaded.taps, facts.layers))
            graph = replace(graph, representations=chosen, blocks=chosen, num_repeated=0)
            others = {*facts.structure.representations, *facts.structure.blocks} - {*chosen}
            names = [name for name in names if name not in others] + list(chosen)
        elif not loaded.is_foreign and not isinstance(loaded.model, Features):
            names = list(facts.layers)
        features = whole.select([name for name in names if name not in computed])
    if facts.scores and facts.scores.layer not in features.facts.layers:
        features = features.read_scores(None)

    # Layers of other types, and those without an example axis, are no activations.
    values = {
        layer: np.asarray(value, np.float32)
        for layer, value in features(tf.constant(images)).items()
        if backend.is_float_dtype(backend.standardize_dtype(value.dtype))
        and len(value.shape) > 1
        and len(value) == len(images)
    }
    is_own = loaded.is_foreign
    constant = [x for x, value in values.items() if is_own and variation(value) <= CONSTANT]
    shapes = {layer: x.shape[1:] for layer, x in values.items() if layer not in constant}
    if not shapes:
        raise ValueError(
            f"{loaded.source or loaded.name} has no layer to measure: no layer is "
            "floating-point and varies between images"
        )
    variations = [variation(values[layer]) for layer in reversed(shapes)]
    last_variation = next(filter(None, variations), 0.0)  # none where a head is still zero

    shapes |= {layer: shape for layer, shape in computed.items() if shape}
    depth = {layer: number for number, layer in enumerate(facts.layers)}
    layers = tuple(sorted(shapes, key=lambda layer: depth.get(layer, len(depth))))
    if not facts.layers:
        graph = structure_of_outputs(layers, shapes)
    kept = {
        side: tuple(layer for layer in getattr(graph, side) if layer in shapes)
        for side in ("representations", "blocks")
    }
    scores = facts.scores if facts.scores and facts.scores.layer in shapes else None
    selected = whole.select([layer for layer in layers if layer in depth or not depth])
    if facts.scores and facts.scores.layer in shapes and facts.scores.layer not in depth:
        selected = selected.read_scores(None)
    observed = selected.with_facts(
        layers=layers, shapes=shapes, structure=replace(graph, **kept), scores=scores
    )
    grid = observed_grid(observed, images, loaded.patch_size, loaded.prefix)
    reasons = {**facts.reasons, **reasons}
    if grid is not None:
        reasons.pop("grid", None)
    return observed.with_facts(grid=grid, reasons=reasons), constant, last_variation


def variation(values: np.ndarray) -> float:
    """Share of the squares of an array of shape (example, ...) that is left around the mean."""
    values = np.asarray(values, np.float64)
    return np.sum((values - values.mean(axis=0)) ** 2) / (np.sum(values**2) or 1)


def _attention_of(
    loaded: LoadedModel, whole: Features, images: np.ndarray
) -> tuple[dict[str, Shape], dict[str, str]]:
    """Attention weights that follow from queries and keys of a Keras model of other origin.

    Returns the shape of each, empty for weights that contradict the output of their layer, and the
    reason why there are none, by "attention weights".
    """
    computed: dict[str, Any] = {}
    if loaded.is_foreign:
        computed = computed_weights(loaded.model, recorder.find_taps(loaded.model))
    if not computed:
        return {}, {}
    nothing: dict[str, Shape] = dict.fromkeys(computed, ())
    shapes = {name: whole.facts.shapes[name] for name in computed}
    names, why = attended(computed, shapes, whole.facts.grid)
    if wrong := find_contradicted(loaded.model, names, images):
        paths = list(dict.fromkeys(recorder.split_weights(name)[0] for name in wrong))
        return nothing, {"attention weights": CONTRADICTION.format(format_list(paths))}
    reasons = {"attention weights": why} if why else {}
    return nothing | {name: shapes[name] for name in names}, reasons


def baselines_of(
    model: StudyModel, copies: Sequence[Callable[[], Any]] = (), seed: int = 0
) -> list[StudyModel]:
    """The random baselines of a model, to compare its features with; none for other baselines.

    `copies` are functions that make copies of the Keras model or PyTorch module with random
    weights, of different seeds.
    """
    is_variant = model.role in COPIED_VARIANTS
    if not is_variant and model.role not in (*ARMS, "model"):
        return []
    baselines: dict[str, dict[str, Any]] = {}
    for role, make in zip(UNTRAINED_ROLES, copies, strict=False):
        copy = cache(make)  # when it is first needed
        baselines[role] = {
            "features": LazyFeatures(
                model.features.facts, lambda copy=copy: model.features.with_model(copy())
            ),
            "keras_model": copy if model.keras_model else None,
            "original_key": model.key,
        }
    if not is_variant:
        baselines["noise"] = {"features": gaussian_like(model.features), "keras_model": None}
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
        for role in (*BASELINES, "copy")
        if role in baselines
    ]
