"""Features of a whole PyTorch module: the layers that a measurement of a kind reads."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from vit_tf.common.names import format_list
from vit_tf.data.preprocessing import require_images
from vit_tf.features.features import (
    Features,
    ModelFacts,
    layer_of_scores,
    no_class_scores,
    require_layers_of_kind,
)
from vit_tf.features.first_images import confirmed_grid
from vit_tf.features.function_features import NUM_SHOWN, recover_scores
from vit_tf.features.layers import Detail, grid_of_shapes
from vit_tf.features.module_features import TorchFeatures
from vit_tf.features.module_taps import ModuleTaps, describe_module, select_taps
from vit_tf.features.recorder import apply_in_turn
from vit_tf.torch_models.execution import OUTPUT, SCORES
from vit_tf.torch_models.traced import TracedModule

if TYPE_CHECKING:
    import tensorflow as tf
    import torch


class ModuleFeatures(TorchFeatures):
    """All layers of a PyTorch module, or some of them, given by name and by shell pattern."""

    def __init__(
        self,
        described: ModuleTaps,
        facts: ModelFacts,
        names: tuple[str, ...] | None = None,
        patterns: tuple[str, ...] = (),
    ) -> None:
        chosen = tuple(described.sources) if names is None and not patterns else names or ()
        select = partial(select_taps, described.model, chosen, patterns)
        super().__init__(described.model, select, facts)
        self._described, self._names, self._patterns = described, names, patterns

    def with_facts(self, **changes: Any) -> ModuleFeatures:
        facts = replace(self._facts, **changes)
        return ModuleFeatures(self._described, facts, self._names, self._patterns)

    def with_model(self, model: torch.nn.Module) -> ModuleFeatures:
        described = replace(self._described, model=self._described.model.with_module(model))
        return ModuleFeatures(described, self._facts, self._names, self._patterns)

    def require_shape(self, shape: Iterable[int | None]) -> None:
        if self._facts.input_shape is not None:
            require_images(shape, self._facts.input_shape)

    @property
    def _is_whole(self) -> bool:
        return self._names is None and not self._patterns

    def select(self, layers: Iterable[str]) -> TorchFeatures:
        if self._is_whole:
            return ModuleFeatures(self._described, self._facts, None, tuple(layers))
        return super().select(layers)

    def select_kind(
        self, kind: str, block: str = "block00", detail: Detail = None
    ) -> ModuleFeatures:
        if not self._is_whole:
            return self
        names = require_layers_of_kind(self._facts, kind, block, detail)
        reads_attention = kind in ("attention", "class_attention", "rollout")
        in_windows = format_list(self._described.windows) if reads_attention else ""
        if in_windows and kind == "rollout":
            raise ValueError(
                f"This measurement needs attention over all tokens, but {self.name} attends "
                f"within windows in {in_windows}"
            )
        if in_windows:
            warnings.warn(f"Attention within windows is left out: {in_windows}", stacklevel=6)
        features = ModuleFeatures(self._described, self._facts, tuple(names))
        return features.with_pooled_tokens() if kind == "class_attention" else features

    def with_pooled_tokens(self) -> ModuleFeatures:
        taps, grid = self._described, self._facts.grid
        last = "norm" if "norm" in taps.sources else (taps.graph.blocks or ("",))[-1]
        has_tokens = grid is not None and taps.shapes.get(last, ())[:1] == (grid.num_tokens,)
        if not has_tokens or SCORES not in taps.sources or isinstance(taps.model, TracedModule):
            return self.with_facts(pooled_tokens=None)
        features = ModuleFeatures(taps, self._facts, (last, SCORES))
        images = (
            np.random.default_rng(0).uniform(-1, 1, (1, *taps.model.image_shape)).astype(np.float32)
        )
        # A gradient of a sum over classes may vanish; that of one class rarely does.
        gradient = features.gradient(images, SCORES, last, np.eye(1, taps.shapes[SCORES][0]))
        read = tuple(np.flatnonzero(np.abs(gradient[0]).sum(axis=-1)).tolist())
        return self.with_facts(pooled_tokens=read or None)

    def read_scores(
        self, layer: str | None, images: Callable[[], tf.Tensor] | None = None
    ) -> Features:
        import tensorflow as tf

        name = layer_of_scores(self.name, layer, self._described.vectors)
        name = name or self._described.graph.scores
        if name is None:
            layouts = self._described.trace.layouts
            layout = layouts.get(SCORES, layouts.get(OUTPUT))
            shape = layout.shape if layout else ()  # () also for what is no tensor
            outputs = {0: "one number", 1: "channels that no classifier computes"}
            output = outputs.get(len(shape), f"tokens or maps of shape {shape}")
            form = f"it returns {output} for each image"
            # Its user may have squeezed the one logit of a binary classifier.
            form += ", an array of shape (example,)" if not shape else ""
            raise no_class_scores(self.name, form, SCORES if len(shape) == 1 else None)
        names = tuple(dict.fromkeys([*(self._names or ()), name]))
        features = ModuleFeatures(self._described, self._facts, names, self._patterns)
        shape = self._described.shapes.get(name, ())
        num_classes = shape[0] if len(shape) == 1 else None
        scores = self._described.class_scores(name)
        features = features.with_facts(scores=scores, num_classes=num_classes)
        if images is None or (name == SCORES and self._described.trace.ending):
            return features
        # The module does not show whether these are probabilities.
        return recover_scores(features, name, tf.cast(images()[:NUM_SHOWN], tf.float32))


def module_features_of(
    module: torch.nn.Module,
    patch_size: int | None = None,
    prefix: int | None = None,
    size: tuple[int, int] | tuple[int, int, int] | None = None,
) -> ModuleFeatures:
    """All layers of a PyTorch module; `patch_size` and `prefix` where its user knows them.

    `size` is that of the images, (height, width) or (height, width, channel), where it is known.
    """
    described = describe_module(module, size)
    shapes, image_shape = described.shapes, described.model.image_shape
    # The patch size is that of all tokens, not of those that a model merges.
    grid = grid_of_shapes(
        described.graph.representations,
        shapes,
        image_shape[:2],
        patch_size=patch_size or described.patch_size,
        prefix=prefix,
    )
    if grid is not None and described.trace.structure.may_shuffle:
        warnings.warn(
            f"{described.model.name!r} draws random numbers in inference, as masked autoencoders "
            "do to mask or shuffle tokens: no token grid is inferred",
            stacklevel=5,
        )
        grid = None
    facts = replace(described.facts(None), is_grid_inferred=True)
    features = ModuleFeatures(described, facts)
    grid, reasons = confirmed_grid(grid, features, shapes, image_shape, patch_size)
    return features.with_facts(grid=grid, reasons={**facts.reasons, **reasons})


def module_features(module: torch.nn.Module, patterns: Sequence[str]) -> ModuleFeatures:
    """The layers of a module that fit patterns; without any, its representations."""
    return _features_matching(describe_module(module), patterns)


def _features_matching(described: ModuleTaps, patterns: Sequence[str]) -> ModuleFeatures:
    names = () if patterns else described.graph.representations
    return ModuleFeatures(described, described.facts(None), tuple(names), tuple(patterns))


class IntervenedModule:
    """A module that runs with edits, functions by layer, and returns some of its layers."""

    def __init__(
        self, module: torch.nn.Module, edits: Mapping[str, Callable], patterns: Sequence[str]
    ) -> None:
        described = describe_module(module)
        self._features = _features_matching(described, [*edits, *patterns])
        facts = self._features.facts
        self.name, self.preprocessing = facts.name, facts.preprocessing
        self.token_grid, self.input_shape = None, facts.input_shape
        self.taps = _features_matching(described, patterns).taps
        of_layers: dict[str, list[Callable]] = {}
        for pattern, edit in edits.items():
            for layer in _features_matching(described, [pattern]).taps:
                of_layers.setdefault(layer, []).append(edit)
        self._edits = {layer: partial(apply_in_turn, e) for layer, e in of_layers.items()}

    def __call__(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        import tensorflow as tf

        values = self._features.edited(tf.cast(images, tf.float32), self._edits)
        return {layer: values[layer] for layer in self.taps}
