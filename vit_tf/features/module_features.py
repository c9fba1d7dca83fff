"""Features of a PyTorch module, which TensorFlow can call and differentiate."""

from __future__ import annotations

import hashlib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from vit_tf.common.names import format_list, lookup, match
from vit_tf.data.preprocessing import require_images
from vit_tf.features.features import Features, ModelFacts, Runs, Taps, cannot_be_split
from vit_tf.torch_models.execution import (
    LOCK,
    OUTPUT,
    SCORES,
    as_inference,
    with_gradients,
)
from vit_tf.torch_models.expectations import fixed_size, num_image_channels
from vit_tf.torch_models.module import (
    Array,
    Layout,
    TorchModule,
    Trace,
    as_array,
    is_inside_a_module,
)
from vit_tf.torch_models.structure import EMBEDDING
from vit_tf.torch_models.traced import TracedModule

if TYPE_CHECKING:
    import tensorflow as tf

SAME = 1e-4  # difference of equal scores, relative to the largest
IMAGES = "images"  # what the first values are computed from
MODEL_VALUES = (EMBEDDING, SCORES, OUTPUT)  # names that patterns do not fit by chance
CONTAINERS = ("ModuleList", "ModuleDict")  # which have no forward pass of their own


class TorchFeatures(Features):
    """Layers of a PyTorch module, for images of shape (example, height, width, channel).

    Arrays give arrays. Tensors of TensorFlow give tensors, also inside a graph, with gradients by
    `torch.autograd`: each layer is differentiated with respect to the layers before it and the
    images, as far as it depends on them directly.
    """

    gradient_requirement = (
        "a PyTorch module whose forward records gradients, without torch.no_grad or detach"
    )

    def __init__(
        self,
        model: TorchModule,
        select: Callable[[Trace], dict[str, str]],
        facts: ModelFacts,
    ):
        # `select` returns the names of the layers, and what they are called in a trace.
        self.model, self._select, self._facts = model, select, facts
        self.is_editable = not isinstance(model, TracedModule)
        self._graph: tuple[Array, dict, dict] | None = None

    @property
    def source(self) -> torch.nn.Module:
        return self.model.module

    @cached_property
    def facts(self) -> ModelFacts:
        """What is known about the module; the layers are those for images of its own size."""
        image_shape = self.model.image_shape
        layouts, layers = self.model.trace(image_shape).layouts, self.layers(image_shape)
        shapes = {layer: layouts[name].shape for layer, name in layers.items()}
        return replace(self._facts, layers=tuple(layers), shapes=shapes)

    def with_facts(self, **changes: Any) -> TorchFeatures:
        return TorchFeatures(self.model, self._select, replace(self._facts, **changes))

    def with_model(self, model: torch.nn.Module) -> TorchFeatures:
        return TorchFeatures(self.model.with_module(model), self._select, self._facts)

    def select(self, layers: Iterable[str]) -> TorchFeatures:
        patterns = tuple(layers)

        def select(trace: Trace) -> dict[str, str]:
            known = self._select(trace)
            return {name: known[name] for name in match(patterns, tuple(known))}

        return TorchFeatures(self.model, select, self._facts)

    def digest(self) -> str:
        """SHA-256 of the module's structure and weights."""
        total = hashlib.sha256(str(self.model.module).encode())
        for name, tensor in self.model.module.state_dict().items():
            total.update(name.encode())
            if isinstance(tensor, torch.Tensor):
                total.update(as_array(tensor).tobytes())
        return total.hexdigest()

    def layers(self, image_shape: Sequence[int]) -> dict[str, str]:
        """The names of the layers for images of a shape, and what they are called in its trace."""
        return self._select(self.model.trace(image_shape))

    def gradient(self, images: Array, target: str, source: str, upstream: Array) -> Array:
        """The product of `upstream` with the derivative of one layer by another one."""
        layers = self.layers(images.shape[1:])
        names = list(dict.fromkeys(layers.values()))
        return self._backward(images, layers[target], upstream, [layers[source]], names)[0]

    def split_at_last_layer(
        self, images: tf.Tensor, scores: str
    ) -> tuple[Taps, Callable[[tf.Tensor], tf.Tensor]]:
        import tensorflow as tf

        taps = self(images)
        last = [layer for layer in taps if layer != scores][-1]
        image_shape = self.model.image_shape
        layers = self.layers(image_shape)
        # The values of the last layer must give the same scores in a run on other images.
        noise = np.random.default_rng(0).uniform(-1, 1, (2, *image_shape)).astype(np.float32)
        values = self.model.values(noise, [layers[last], layers[scores]])
        edited = {layers[last]: values[layers[last]]}
        (repeated,) = self.model.values(0 * noise, [layers[scores]], edited).values()
        tolerance = SAME * np.abs(repeated).max()
        if not np.allclose(repeated, values[layers[scores]], atol=tolerance, equal_nan=True):
            raise cannot_be_split(self.name)

        def head(values: tf.Tensor) -> tf.Tensor:
            blank = tf.zeros(tf.concat([tf.shape(values)[:1], image_shape], axis=0))
            blank = tf.ensure_shape(blank, (values.shape[0], *image_shape))
            return self._replaced(blank, {last: values})[scores]

        return taps, head

    def run_interventions(
        self, runs: Runs, layer: str, images: tf.Tensor, max_runs: int = 128
    ) -> tuple[Taps, tf.Tensor]:
        """Each run is one more forward pass, in which hooks replace computed values by edited."""
        import tensorflow as tf

        taps = self(images)
        edits_of_runs = runs(taps) if callable(runs) else runs
        values = [self.edited(images, edits, taps)[layer] for edits in edits_of_runs]
        return taps, tf.stack(values)

    def edited(
        self, images: tf.Tensor, edits: Mapping[str, Callable], taps: dict | None = None
    ) -> dict[str, tf.Tensor]:
        """The layers where functions of values, by layer, change them while the module runs."""
        layers = self.layers(tuple(images.shape[1:]))
        for name in edits:
            lookup("layer", name, layers)
        taps, replaced = self(images) if taps is None else taps, {}
        for layer in layers:
            if layer in edits:
                # Later edits are given values that are computed from the earlier ones.
                taps = self._replaced(images, replaced) if replaced else taps
                replaced[layer] = edits[layer](taps[layer])
        return self._replaced(images, replaced) if replaced else taps

    def _replaced(
        self, images: tf.Tensor, replaced: Mapping[str, tf.Tensor]
    ) -> dict[str, tf.Tensor]:
        """The layers where some values take the place of the computed ones; without gradients."""
        image_shape = tuple(images.shape[1:])
        layers, trace = self.layers(image_shape), self.model.trace(image_shape)

        def run(batch: Array, *values: Array) -> list[Array]:
            edited = {layers[x]: value for x, value in zip(replaced, values, strict=True)}
            results = self.model.values(batch, list(layers.values()), edited)
            return [results[name] for name in layers.values()]

        layouts = [trace.layouts[name] for name in layers.values()]
        results = _numpy_function(run, [images, *replaced.values()], layouts)
        return dict(zip(layers, results, strict=True))

    def __call__(self, images: Array | tf.Tensor) -> dict:
        """The layers of a batch: arrays for an array, tensors for a tensor."""
        if isinstance(images, np.ndarray):
            layers = self.layers(images.shape[1:])
            values = self.model.values(images, list(layers.values()))
            return {layer: values[name] for layer, name in layers.items()}
        return super().__call__(images)

    def compute(self, images: tf.Tensor) -> Taps:
        import tensorflow as tf

        return tf.autograph.experimental.do_not_convert(self._tensors)(images)

    def require_shape(self, shape: Iterable[int | None]) -> None:
        expected = self._facts.input_shape
        if expected is not None:
            # Images that its user selects layers for may have other channels than its convolution.
            require_images(shape, (*expected[:3], None))

    def _tensors(self, images: tf.Tensor) -> dict[str, tf.Tensor]:
        """The layers as tensors that TensorFlow can differentiate."""
        import tensorflow as tf

        image_shape = tuple(images.shape[1:])
        if len(image_shape) != 3 or None in image_shape:
            raise ValueError(
                f"Expected images of one known size for {self.name}, a PyTorch module. "
                f"Received: images of shape {tuple(images.shape)}"
            )
        layers = self.layers(image_shape)
        names, trace = list(dict.fromkeys(layers.values())), self.model.trace(image_shape)
        images = tf.cast(images, tf.float32)

        def run(batch: Array) -> list[Array]:
            values = self.model.values(batch, names)
            return [values[name] for name in names]

        values = _numpy_function(run, [images], [trace.layouts[name] for name in names])
        outputs: dict[str, tf.Tensor] = {}
        for name, value in zip(names, values, strict=True):
            outputs[name] = self._differentiable(name, value, images, outputs, names)
        return {layer: outputs[name] for layer, name in layers.items()}

    def _differentiable(
        self,
        name: str,
        value: tf.Tensor,
        images: tf.Tensor,
        earlier: Mapping[str, tf.Tensor],
        names: list[str],
    ) -> tf.Tensor:
        """A value with its gradients with respect to the images and to earlier values."""
        import tensorflow as tf

        sources = {IMAGES: images, **earlier}

        def identity(value: tf.Tensor, *tensors: tf.Tensor) -> tuple[tf.Tensor, Callable]:
            def gradient(upstream: tf.Tensor) -> list[tf.Tensor | None]:
                direct = self._direct_sources(name, tuple(images.shape[1:]), names)
                if not direct:
                    return [None] * (1 + len(sources))
                results = tf.numpy_function(
                    lambda batch, up: self._backward(batch, name, up, direct, names),
                    [images, upstream],
                    [tf.float32] * len(direct),
                    stateful=False,
                )
                gradients = dict(zip(direct, tf.nest.flatten(results), strict=True))
                by_name = dict(zip(sources, tensors, strict=True))
                for source, result in gradients.items():
                    result.set_shape(by_name[source].shape)
                return [None, *map(gradients.get, sources)]

            return tf.identity(value), gradient

        return tf.custom_gradient(identity)(value, *sources.values())

    @with_gradients()
    def _direct_sources(
        self, name: str, image_shape: tuple[int, ...], names: list[str]
    ) -> list[str]:
        """What a value depends on without the other values in between."""
        images = np.zeros((1, *image_shape), np.float32)
        _, values, leaves = self._differentiable_run(images, names)
        value = values[name]
        if not value.requires_grad:
            return []
        # A value depends on the images and on what was computed before it.
        order = list(leaves)
        candidates = {source: leaves[source] for source in order[: order.index(name)]}
        try:
            gradients = torch.autograd.grad(
                value.sum(), list(candidates.values()), allow_unused=True, retain_graph=True
            )
        except RuntimeError as error:
            # Checkpoints run parts of the module again.
            if "checkpoint" not in f"{type(error).__name__} {error}".lower():
                raise
            raise ValueError(
                "Expected a module of which PyTorch computes gradients, without gradient "
                "checkpointing (set_grad_checkpointing(False) in timm, "
                "gradient_checkpointing_disable() in transformers). "
                f"Received: {self.name}, which raises for {name!r}: {error}"
            ) from error
        return [s for s, g in zip(candidates, gradients, strict=True) if g is not None]

    @with_gradients()
    def _differentiable_run(self, images: Array, names: list[str]) -> tuple[Array, dict, dict]:
        """Values of a batch by name, each computed from copies of the values before it."""
        graph = self._graph
        if graph is not None and list(graph[1]) == names and np.array_equal(graph[0], images):
            return graph
        trace = self.model.trace(images.shape[1:])
        values: dict[str, torch.Tensor] = {}
        pixels = self.model.as_tensor(images).requires_grad_(True)
        leaves = {IMAGES: pixels}

        def watch(name: str, value: torch.Tensor) -> torch.Tensor:
            if name not in names:
                return value
            values[name] = value
            leaves[name] = value.detach().clone().requires_grad_(True)
            return leaves[name].clone()  # which an operation in place may change

        with LOCK, as_inference(self.model.module):
            self.model.execution(trace, watch, set(names)).run(pixels.clone())
        graph = images, {name: values[name] for name in names}, leaves
        self._graph = graph
        return graph

    @with_gradients()
    def _backward(
        self, images: Array, name: str, upstream: Array, sources: list[str], names: list[str]
    ) -> list[Array]:
        """The product of `upstream` with the derivative of a value by each of its sources."""
        with LOCK:
            trace = self.model.trace(images.shape[1:])
            _, values, leaves = self._differentiable_run(images, names)
            given = torch.from_numpy(np.ascontiguousarray(upstream))
            value = values[name]
            gradients = torch.autograd.grad(
                value,
                [leaves[source] for source in sources],
                trace.layouts[name].native(given).to(value.device, value.dtype),
                allow_unused=True,
                retain_graph=True,
            )
        arrays = []
        for source, gradient in zip(sources, gradients, strict=True):
            gradient = torch.zeros_like(leaves[source]) if gradient is None else gradient
            moved = (
                gradient.movedim(1, -1)
                if source == IMAGES
                else trace.layouts[source].measured(gradient)
            )
            arrays.append(as_array(moved))
        return arrays


def input_shape_of(
    module: torch.nn.Module, image_shape: Sequence[int] | None = None
) -> tuple[int | None, ...]:
    """Shape of a batch of images, with None for sides that may vary.

    The channels are those of `image_shape`, (height, width, channel) of images that it takes, and
    so are the sides of a module that declares any.
    """
    size = fixed_size(module)
    if image_shape is None:
        return (None, *(size or (None, None)), num_image_channels(module))
    height, width, channels = image_shape
    return (None, *((height, width) if size else (None, None)), channels)


def _numpy_function(
    function: Callable[..., list[Array]], arguments: list[tf.Tensor], layouts: Sequence[Layout]
) -> list[tf.Tensor]:
    """The results of a function of a batch, as float32 tensors of the shapes of their layouts."""
    import tensorflow as tf

    types = [tf.float32] * len(layouts)
    results = tf.nest.flatten(tf.numpy_function(function, arguments, types, stateful=False))
    for result, layout in zip(results, layouts, strict=True):
        count = arguments[0].shape[0] if layout.has_examples else None
        result.set_shape((count, *layout.shape))
    return results


def select_layers(model: TorchModule, trace: Trace, patterns: Sequence[str]) -> dict[str, str]:
    """The layers of a trace that fit patterns, and what they are called in it.

    A pattern without a slash matches names of submodules. If some of them have as many parts as
    the pattern, only these match: "blocks.*" matches the blocks and not the layers inside of them.
    """
    kinds = {path: type(module).__name__ for path, module in model.module.named_modules()}
    inside = [name for name in trace.layouts if is_inside_a_module(name)]
    submodules = dict.fromkeys([*trace.layouts, *kinds])
    submodules = [name for name in submodules if name not in ("", *MODEL_VALUES, *inside)]
    names: set[str] = set()
    for pattern in patterns:
        if pattern in MODEL_VALUES:
            names.add(pattern)
        elif "/" in pattern:
            names |= {*match([pattern], inside)}
        else:
            matched = match([pattern], submodules)
            as_deep = {name for name in matched if name.count(".") == pattern.count(".")}
            names |= as_deep or {*matched}
    absent = sorted(names - trace.layouts.keys())
    if not names & trace.layouts.keys():
        raise ValueError(
            f"These submodules of {model.name} do not run, or return no tensor: "
            f"{format_list([f'{name} ({kinds.get(name)})' for name in absent])}"
        )
    if absent := [name for name in absent if kinds.get(name) not in CONTAINERS]:
        warnings.warn(
            f"Submodules of {model.name} that do not run or return no tensor are left out: "
            f"{format_list(absent)}",
            stacklevel=2,
        )
    return {name: name for name in trace.layouts if name in names}
