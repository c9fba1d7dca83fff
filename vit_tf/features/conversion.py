"""The border: any model becomes `Features`, once."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias, cast

import keras
import numpy as np

from vit_tf.common.names import as_patterns, format_list
from vit_tf.features.features import DerivedFeatures, Features, ModelFacts, pick_taps
from vit_tf.features.function_features import FunctionFeatures
from vit_tf.features.keras_features import declared_facts, keras_features
from vit_tf.features.layers import KINDS, Detail
from vit_tf.torch_models import is_torch_module

# A model, its path or name, a PyTorch module, a function from images to layers, or activations.
ModelLike: TypeAlias = Any
# Names and patterns of layers, or positions among the layers of a kind.
LayerSelection: TypeAlias = str | int | Sequence[str | int] | None


def as_features(
    model: ModelLike,
    size: tuple[int, int] | tuple[int, int, int] | None = None,
    patch_size: int | None = None,
    prefix: int | None = None,
) -> Features:
    """All layers of a model as `Features`; `Features` are returned unchanged.

    Args:
        model: a built Keras model with one input; a submodel or a SavedModel; a PyTorch module; a
            path or the name of a pretrained model; or a function from images to a dict from layer
            to tensor or array.
        size: (height, width) of the images, for a model that takes images of more than one size;
            for a PyTorch module (height, width, channel), where images are at hand.
        patch_size, prefix: side of a patch in pixels and number of prefix tokens, for a model that
            does not declare its grid.

    Raises:
        ValueError: if the model has another form.
    """
    if isinstance(model, Features):
        return model
    if isinstance(model, str | os.PathLike) and "*" not in os.fspath(model):
        import vit_tf

        model = vit_tf.load(model)
    if is_torch_module(model):
        from vit_tf.features.torch_modules import module_features_of  # which imports PyTorch

        return module_features_of(cast(Any, model), patch_size, prefix, size)
    if isinstance(model, keras.Model):
        return keras_features(model, size and size[:2], patch_size, prefix)
    require_model(model)
    return FunctionFeatures(cast(Callable, model))


def facts_of(model: ModelLike) -> ModelFacts:
    """What is known of a model's images and classes; a Keras model is not traced for it."""
    return declared_facts(model) if isinstance(model, keras.Model) else as_features(model).facts


def select_features(
    features: Features, kind: str, layers: LayerSelection, block: str, detail: Detail
) -> Features:
    """Features of the layers that a measurement reads: those that its user chose, or of a kind.

    Raises:
        ValueError: for `layers` together with `detail`, for a pattern that matches no layer, and
            for a model without layers of the kind.
    """
    if layers is None:
        return features.select_kind(kind, block, detail)
    if detail is not None:
        raise ValueError(
            "layers= and detail= cannot be combined: layers= selects layers by name, and "
            f"detail= selects a subset. Received: layers={layers!r}, detail={detail!r}"
        )
    names = _layer_names(features, kind, as_selection(layers), block)
    return features.select(names).with_grid_of_layers()


def as_selection(layers: str | int | Sequence[str | int]) -> tuple[str | int, ...]:
    """Layers that a user selects as a flat tuple of names, patterns and positions."""
    selected: list[str | int] = []
    is_many = isinstance(layers, Sequence | np.ndarray) and not isinstance(layers, str)
    listed: Any = layers if is_many else [layers]
    for layer in listed:
        is_position = isinstance(layer, int | np.integer) and not isinstance(layer, bool)
        selected += [int(layer)] if is_position else as_patterns([layer])
    return tuple(selected)


def _layer_names(
    features: Features, kind: str, layers: Sequence[str | int], block: str
) -> tuple[str, ...]:
    """Names and patterns, with the names of layers that are given by position or by their block.

    Positions count the layers that a measurement of the kind reads by default; -1 is the last.
    A block, as in `"block03"` or `"block_3"`, stands for those of these layers that lie in it.
    """
    names: list[str] = []
    defaults: Sequence[str] | None = None
    for layer in layers:
        if isinstance(layer, str) and (set("*?[/") & set(layer) or layer in features.facts.layers):
            names.append(layer)
            continue
        if defaults is None:
            defaults = features.select_kind(kind, block).facts.layers
        if isinstance(layer, int):
            if not defaults:
                raise ValueError(
                    "The layers of a plain function are unknown until it is called: select them "
                    f"by name, not by position. Received: layers={layer}"
                )
            if not -len(defaults) <= layer < len(defaults):
                raise ValueError(
                    f"Expected positions of layers from {-len(defaults)} to {len(defaults) - 1}: "
                    f"{format_list(defaults)}. Received: {layer}"
                )
            names.append(defaults[layer])
            continue
        names += [x for x in defaults if _words(x.split("/")[0]) == _words(layer)] or [layer]
    return tuple(names)


def _words(name: str) -> list[str | int]:
    """The words and numbers of a name, in which "block_3" is "block03"."""
    return [int(x) if x.isdecimal() else x for x in re.findall(r"[a-z]+|[0-9]+", name.lower())]


def features_of(
    model: ModelLike,
    kind: str = "representations",
    layers: LayerSelection = None,
    block: str = "block00",
    detail: Detail = None,
) -> Features:
    """Returns the features of a model for a measurement.

    Features are a callable from images to `{layer: tensor}`. The features of a whole model are the
    layers of the given `kind`. The features of a submodel, a SavedModel or a function are all of
    its outputs, unless `layers` selects some of them.

    Args:
        model: a built Keras model with one input; a submodel or a SavedModel; a PyTorch module; a
            path or the name of a pretrained model, which `vit_tf.load` opens; or a function from
            images to a dict from layer to tensor. A function that returns NumPy arrays is run
            eagerly.
        kind: the layers of a whole model that are returned, as a key of
            `vit_tf.features.layers.KINDS` such as `"attention"`, `"skips"` or `"scores"`. The kind
            `"representations"` selects the layers of `vit_tf.submodel(model)`.
        layers: a name or shell pattern of layers, or a list of names and patterns. It is used
            instead of `kind`.
        block: name of the block, for the kind `"block_heads"` only.
        detail: selects some of the layers of a whole model. A string is a key of
            `vit_tf.features.layers.DETAILS`, such as `"blocks"` or `"sublayers"`. A number n
            selects n evenly spaced layers.

    Returns:
        `Features`: `features(images)` returns the layers, and `features.facts` holds the known
        properties of the model, such as its `layers`, `grid` and `preprocessing`.

    Raises:
        ValueError: if the `model` is not supported or has no layers of this kind, or if `detail` is
            unknown.
        ValueError: if a pattern matches no layer; the message lists similar names.

    Examples:
        features = analysis.features_of("vit-cls-cifar10", layers="block*/mlp/sum")
    """
    features = select_features(as_features(model), kind, layers, block, detail)
    return features.read_scores(None) if KINDS[kind].with_scores else features


def choose(features: ModelLike, names: Iterable[str]) -> Features:
    """Selects layers of features by name, in the order of the names.

    Statistics that use different layers of one model can thus share the forward pass of the model.

    Args:
        features: features of a model, a submodel or a function.
        names: names of layers.

    Returns:
        Features of these layers, with the `facts` of the given features.

    Raises:
        ValueError: when the features are called, if they do not have one of the names.
    """
    features, names = as_features(features), tuple(names)
    facts = replace(features.facts, layers=names)
    return DerivedFeatures(features, lambda taps: pick_taps(taps, names), facts)


def name_models(models: Any) -> dict[str, Any]:
    """Converts one model, a list of models or a dict to a dict from name to model."""
    if isinstance(models, Mapping):
        named = dict(models)
    else:
        models = list(models) if isinstance(models, list | tuple) else [models]
        named = {}
        for model in models:
            name, number = own_name(model), 2
            while name in named:
                name, number = f"{own_name(model)} ({number})", number + 1
            named[name] = model
    if not named:
        raise ValueError("Expected at least one model. Received: none")
    return named


def own_name(model: ModelLike) -> str:
    """The name of a model; for a path, the file name without the ending."""
    if isinstance(model, str | os.PathLike):
        base = os.path.basename(os.path.normpath(model))
        return base.removesuffix(".keras")
    return getattr(model, "name", None) or getattr(model, "__name__", type(model).__name__)


def require_model(model: Any) -> None:
    """Raises a `ValueError` for what no measurement can be made of."""
    is_pipeline = type(model).__module__.startswith("transformers.pipelines.")
    if callable(model) and not isinstance(model, type) and not is_pipeline:
        return
    received = repr(model)
    if isinstance(model, Mapping) or hasattr(model, "shape"):
        received = "activations at hand, which are compared by cka({name: array})"
    elif isinstance(model, type):
        received = f"the class {model.__name__} in place of a model: {model.__name__}(...)"
    elif hasattr(model, "model"):
        received = f"{type(model).__name__}, whose attribute model is one"
    raise ValueError(
        "Expected features to be a callable from images to {layer: tensor}, such as "
        f"vit_tf.submodel(model, 'block*'). Received: {received}"
    )
