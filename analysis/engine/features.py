"""Features: what a measurement reads of a model, a function, or activations at hand."""

import math
import os
import warnings
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, cast

import keras
import numpy as np
import tensorflow as tf

import vit_tf
from vit_tf.common.names import as_patterns, format_list, match
from vit_tf.features import recorder
from vit_tf.features.class_names import find_class_names
from vit_tf.features.layers import (
    KINDS,
    Detail,
    grid_of_shapes,
    layers_of,
    warn_of_missed_blocks,
    with_prefix_first,
)
from vit_tf.features.scores import find_scores
from vit_tf.features.submodels import TapModel, describe_taps
from vit_tf.torch_models import is_torch_module

from .feature_taps import require_model, taps_of, token_grid_of
from .results import model_name
from .roles import Features, Model, Models, Taps
from .traces import keep


def features_of(
    model: Model,
    kind: str = "representations",
    layers: str | Sequence[str] | None = None,
    block: str = "block00",
    detail: Detail = None,
) -> Callable:
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

    Raises:
        ValueError: if the `model` is not supported or has no layers of this kind, or if `detail` is
            unknown.
        ValueError: if a pattern matches no layer; the message lists similar names.

    Examples:
        features = analysis.features_of("vit-cls-cifar10", layers="block*/mlp/sum")
    """

    def make_anew(owner: Any, key: tuple, make: Callable) -> Any:
        """What is made, which is not kept with the model, as its user may change it."""
        return make()

    return features_for_measurement(model, kind, layers, block, detail, make_anew)


def features_for_measurement(
    model: Model,
    kind: str,
    layers: str | Sequence[str] | None,
    block: str,
    detail: Detail,
    keep: Callable[[Any, tuple, Callable], Any] = keep,
) -> Callable:
    """`features_of`, which a measurement keeps with the model for its next call."""
    if isinstance(model, str | os.PathLike) and "*" not in os.fspath(model):
        return features_for_measurement(vit_tf.load(model), kind, layers, block, detail, keep)
    require_model(model)
    patterns = () if layers is None else as_patterns([layers])
    if patterns and detail is not None:
        raise ValueError(
            "Expected layers, which selects them by name, or detail, which selects a subset. "
            f"Received: layers={layers!r} and detail={detail!r}"
        )
    if isinstance(model, TapModel) and patterns:
        return keep(model, ("selected", *patterns), partial(_selected, model, patterns))
    if is_torch_module(model):
        return _features_of_module(model, kind, patterns, block, detail)
    if not isinstance(model, keras.Model) or isinstance(model, TapModel):
        return _selected(model, patterns) if patterns else model
    key = "features", kind, tuple(patterns), block, detail
    return keep(model, key, lambda: _features_of_model(model, kind, patterns, block, detail))


def _features_of_model(
    model: keras.Model, kind: str, patterns: Sequence[str], block: str, detail: Detail
) -> TapModel:
    """The features of a whole Keras model, as `features_of` describes them."""
    what = KINDS[kind]
    # Measurements of other kinds of layers are made of the same trace of the model.
    described = keep(model, ("taps",), lambda: describe_taps(model))
    found = find_scores(model) if what.with_scores else None
    scores = [found.tap] if found and found.tap else []
    if found and not scores and kind == "scores":
        scores = [tap for tap in found.vectors.values() if tap]
    # A model of vectors has no height and width, and `grid_of_shapes` then infers no grid.
    size = cast(tuple[int, int], recorder.input_spec(model)[0][1:3])
    model_grid = token_grid_of(model)
    shapes, graph = described.shapes, described.graph
    if patterns:
        features = vit_tf.submodel(described.source, *patterns, *scores)
        taps = [tap for tap in features.taps if tap not in scores]
        selected = {tap: tuple(features.output[tap].shape[1:]) for tap in taps}
        grid = model_grid or grid_of_shapes(taps, selected, size)
    else:
        grid = model_grid or grid_of_shapes(described.names, shapes, size, graph)
    if not model_grid:

        def values_of_tap(tap: str) -> np.ndarray:
            shape, dtype = recorder.input_spec(model)
            # A grid is inferred for images of a known size only.
            sizes = cast(tuple[int, ...], shape[1:])
            images = np.random.default_rng(0).uniform(0, 256, (2, *sizes))
            return np.asarray(vit_tf.submodel(described.source, tap)(images.astype(dtype))[tap])

        grid = with_prefix_first(grid, model.name, described.names, shapes, values_of_tap)
    if not patterns:
        chosen = layers_of(kind, described.names, shapes, graph, grid, detail=detail, block=block)
        if not chosen and kind != "scores":
            raise ValueError(
                f"Expected a model with {what.lacks}. Received: {model.name!r}, a "
                f"{type(model).__name__} in which they are not found; specify them with layers="
            )
        warn_of_missed_blocks(model.name, graph)
        features = vit_tf.submodel(described.source, *dict.fromkeys([*chosen, *scores]))
    features.token_grid = grid
    features.num_classes = getattr(model, "num_classes", None)
    features.class_names = find_class_names(model)
    features.vectors = found.vectors if found else {}
    return features


def _features_of_module(
    module: Any, kind: str, patterns: Sequence[str], block: str, detail: Detail
) -> Callable:
    """`features_of` of a PyTorch module."""
    from vit_tf.features.module_taps import describe_module, pooled_tokens

    described, what = describe_module(module), KINDS[kind]
    shapes, graph = described.shapes, described.graph
    size = cast(tuple[int, int], described.image_shape[:2])
    scores = [graph.scores] if what.with_scores and graph.scores else []
    patch_size = described.patch_size  # of all tokens, not of those that a model merges
    grid = grid_of_shapes(graph.representations, shapes, size, patch_size=patch_size)

    def values_of_tap(tap: str) -> np.ndarray:
        images = np.random.default_rng(0).uniform(-1, 1, (2, *described.image_shape))
        return described.features([tap], [], None)(images.astype(np.float32))[tap]

    grid = with_prefix_first(grid, described.model.name, described.names, shapes, values_of_tap)
    chosen = []
    if not patterns:
        chosen = layers_of(kind, described.names, shapes, graph, grid, detail=detail, block=block)
        reads_attention = kind in ("attention", "class_attention", "rollout")
        in_windows = format_list(described.windows) if reads_attention else ""
        if (not chosen and kind != "scores") or (kind == "rollout" and in_windows):
            within = f"; it attends within windows in {in_windows}" if in_windows else ""
            raise ValueError(
                f"Expected a model with {what.lacks}. Received: {described.model.name}, a PyTorch "
                f"module in which they are not found; specify them with layers={within}"
            )
        if in_windows:
            warnings.warn(f"Attention within windows is left out: {in_windows}", stacklevel=6)
    features = described.features([*chosen, *scores], patterns, grid)
    if kind == "class_attention":
        features.pooled_tokens = pooled_tokens(described, grid)
    return features


def _selected(features: Features, patterns: Sequence[str]) -> Features:
    """The taps of a submodel or a function that fit patterns."""
    if isinstance(features, TapModel):
        return vit_tf.submodel(features, *patterns)
    if hasattr(features, "taps"):
        match(patterns, features.taps)  # a pattern that fits none raises here, and not when called
    return Selected(features, patterns)


class Selected:
    """The taps of a function that fit patterns."""

    def __init__(self, features: Features, patterns: Sequence[str]) -> None:
        self.name, self.features = model_name(features), features
        self.token_grid = token_grid_of(features)
        self._patterns = patterns

    def __call__(self, images: tf.Tensor) -> Taps:
        taps = taps_of(self.features, images)
        return {name: taps[name] for name in match(self._patterns, tuple(taps))}


def name_models(models: Models) -> dict[str, Any]:
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


def own_name(model: Model) -> str:
    """The name of a model; for a path, the file name without the ending."""
    if isinstance(model, str | os.PathLike):
        base = os.path.basename(os.path.normpath(model))
        return base.removesuffix(".keras")
    return model_name(model)


def features_from_arrays(*activations: Mapping[str, np.ndarray]) -> tuple[Any, ...]:
    """Rows (example, number) of given activations, and a callable to the columns of each."""
    columns, features = [], []
    for layers in activations:
        if not isinstance(layers, Mapping) or not layers:
            raise ValueError(
                "Expected activations to be {name: array of shape (example, ...)}. "
                f"Received: {type(layers).__name__}"
            )
        arrays = {layer: np.asarray(values, np.float32) for layer, values in layers.items()}
        if any(values.ndim == 0 for values in arrays.values()):
            raise ValueError("Expected arrays of shape (example, ...). Received: a single number")
        first = sum(column.shape[1] for column in columns)
        columns += [values.reshape(len(values), -1) for values in arrays.values()]
        shapes = {layer: values.shape[1:] for layer, values in arrays.items()}
        features.append(_Columns(shapes, first))
    sizes = sorted({len(column) for column in columns})
    if len(sizes) > 1:
        raise ValueError(
            f"Expected activations of the same examples. Received: arrays of {sizes} examples"
        )
    return np.concatenate(columns, axis=1), *features


class _Columns:
    """Features that are some columns of the rows of `features_from_arrays`."""

    name = "activations"

    def __init__(self, shapes: Mapping[str, tuple[int, ...]], first: int) -> None:
        self._shapes, self._first = shapes, first
        self._sizes = [math.prod(shape) for shape in shapes.values()]

    def __call__(self, rows: tf.Tensor) -> Taps:
        mine = rows[:, self._first : self._first + sum(self._sizes)]
        parts = zip(self._shapes.items(), tf.split(mine, self._sizes, axis=1), strict=True)
        return {layer: tf.reshape(part, (-1, *shape)) for (layer, shape), part in parts}
