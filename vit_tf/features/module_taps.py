"""The taps of a PyTorch module: which of its values are representations, blocks and attention."""

from __future__ import annotations

import fnmatch
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from vit_tf.common.names import format_list, is_part, lookup
from vit_tf.features.class_names import NUM_IMAGENET, imagenet_names
from vit_tf.features.features import ClassScores, ModelFacts, ScoreKind
from vit_tf.features.module_features import input_shape_of, select_layers
from vit_tf.features.structure import MAX_LAYERS, ModelGraph, spread
from vit_tf.features.tokens import TokenGrid
from vit_tf.torch_models import expectations
from vit_tf.torch_models.execution import OUTPUT, SCORES
from vit_tf.torch_models.module import TorchModule, Trace
from vit_tf.torch_models.structure import EMBEDDING, is_inside
from vit_tf.torch_models.traced import TracedModule, as_model

SITES = ("attention", "mlp")


@dataclass(frozen=True)
class ModuleTaps:
    """What there is to read of a module, as `features.submodels.ModelTaps` for Keras."""

    model: TorchModule
    trace: Trace
    # From the names of taps, in depth order, to those of the trace.
    sources: dict[str, str]
    graph: ModelGraph

    @property
    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Shapes of the taps without the axis of examples."""
        return {tap: self.trace.layouts[name].shape for tap, name in self.sources.items()}

    @property
    def windows(self) -> list[str]:
        """Attention weights that are within windows of an image, not over all of it."""
        layouts = self.trace.layouts.items()
        return [n for n, layout in layouts if is_part(n, "weights") and not layout.has_examples]

    @property
    def patch_size(self) -> int | None:
        """Pixels of a patch, where the first convolution cuts the image into square patches."""
        convolutions = (m for m in self.model.module.modules() if isinstance(m, torch.nn.Conv2d))
        first = next(convolutions, None)
        if first is None or {*first.kernel_size, *first.stride} != {first.stride[0]}:
            return None
        side, (height, width) = first.stride[0], self.model.image_shape[:2]
        counts = [
            self.shapes[tap][0] for tap in self.graph.representations if len(self.shapes[tap]) == 2
        ]
        # Where tokens are merged on the way, the last ones are larger than patches.
        fits = height % side == 0 and width % side == 0 and counts
        return side if fits and counts[-1] >= height // side * (width // side) else None

    def facts(self, grid: TokenGrid | None) -> ModelFacts:
        """What is known about the module."""
        module, image_shape = self.model.module, self.model.image_shape
        has_scores = self.graph.scores is not None
        preprocessing, origin = expectations.find_preprocessing(module, image_shape)
        num_classes = self.shapes[SCORES][0] if has_scores else None
        class_names = expectations.find_class_names(module)
        # Models of these libraries with 1,000 classes are those of ImageNet.
        is_torchvision = type(module).__module__.startswith("torchvision.models.")
        is_released = is_torchvision or bool(expectations.pretrained_config(module))
        if num_classes == NUM_IMAGENET and is_released:
            class_names = class_names or imagenet_names()
        reasons: dict[str, str] = {}
        if isinstance(self.model, TracedModule) and list(self.sources) == [SCORES]:
            reasons["layers"] = (
                "PyTorch does not show the layers of torch.jit.script: measure the module itself"
            )
        if between := self.trace.channel_attention:
            reasons["attention weights"] = (
                f"{format_list(between)} attend between channels, not between tokens"
            )
        if changed := self.trace.changed_weights:
            reasons["attention weights"] = (
                f"{format_list(changed)} change the softmax before it weights the values, as "
                "talking heads and attention sinks do"
            )
        return ModelFacts(
            name=self.model.name,
            layers=tuple(self.sources),
            shapes=self.shapes,
            structure=self.graph,
            grid=grid,
            preprocessing=preprocessing,
            preprocessing_origin=origin,
            input_shape=input_shape_of(module, image_shape),
            num_classes=num_classes,
            class_names=class_names,
            scores=self.class_scores(SCORES) if has_scores else None,
            reasons=reasons,
        )

    def class_scores(self, layer: str) -> ClassScores:
        """A layer as the class scores, whose kind is that of what the module ends in."""
        ending = self.trace.ending if layer == SCORES else ""
        if ending in ("", "linear"):
            ending = expectations.declared_score_kind(self.model.module)
        return ClassScores(
            layer, ScoreKind(ending) if ending in [*ScoreKind] else ScoreKind.SOFTMAX
        )

    @property
    def vectors(self) -> dict[str, str]:
        """Several vectors that the module returns, and the taps that hold them, "" for none."""
        taps = {name: tap for tap, name in self.sources.items()}
        return {vector: taps.get(name, "") for vector, name in self.trace.vectors.items()}


def describe_module(module: torch.nn.Module, size: Sequence[int] | None = None) -> ModuleTaps:
    """The taps of a PyTorch module for images of a size, by default that which it is made for."""
    model = as_model(module, size)
    trace = model.trace(model.image_shape)
    sources = tap_sources(trace)
    return ModuleTaps(model, trace, sources, _graph(trace, sources))


def tap_sources(trace: Trace) -> dict[str, str]:
    """From the names of taps, in the order of computation, to those of a trace.

    Where all blocks have attention over tokens and an MLP with a skip around each, the values of
    blocks have the names of this package's ViTs, such as `block00/attention/weights`, and the final
    norm is `norm`; all other values keep the paths of their submodules.
    """
    names = [name for name, layout in trace.layouts.items() if layout.has_examples]
    grammar = _grammar(trace) if _has_usual_form(trace) else {}
    return {grammar.get(name, name): name for name in names}


def _has_usual_form(trace: Trace) -> bool:
    """Whether each block is attention and an MLP over one sequence of tokens."""
    tokens: set[int] = set()
    for block in trace.structure.blocks:
        parts = trace.structure.parts.get(block, {})
        weights, heads, *sums = (
            trace.layouts.get(parts.get(part, ""))
            for part in ("attention/weights", "attention/heads", "attention/sum", "mlp/sum")
        )
        layouts = [trace.layouts.get(block), *sums]
        if not all(layout and layout.has_examples for layout in (weights, heads, *layouts)):
            return False
        shapes = {layout.shape for layout in layouts if layout}
        if len(shapes) > 1 or len(min(shapes)) != 2:
            return False
        tokens |= {min(shapes)[0], *(weights.shape[1:] if weights else ())}
    return len(tokens) == 1


def _grammar(trace: Trace) -> dict[str, str]:
    """From names of a trace to those of the tap grammar."""
    renamed = {}
    if trace.structure.final_norm:
        renamed[trace.structure.final_norm] = "norm"
    for number, block in enumerate(trace.structure.blocks):
        for part, name in trace.structure.parts[block].items():
            renamed[name] = f"block{number:02d}/{part}"
        if "/" not in block:  # a submodule, not a sum in the code of its parent
            renamed |= _norms(trace, block, f"block{number:02d}")
    return renamed


def _norms(trace: Trace, block: str, name: str) -> dict[str, str]:
    """The normalizations before attention and before the MLP of a pre-norm block."""
    order, blocks = list(trace.layouts), trace.structure.blocks
    skips = [trace.structure.parts[block][f"{site}/skip"] for site in SITES]
    ends = [order.index(name) for name in skips]
    start = order.index(blocks[blocks.index(block) - 1]) if name != "block00" else -1
    spans = {"attention": (start, ends[0]), "mlp": (ends[0], ends[1])}
    norms = {}
    for site, (first, last) in spans.items():
        inside = [
            path
            for path in order[first + 1 : last]
            if is_inside(path, block)
            and "norm" in trace.classes.get(path.partition("@")[0], "").lower()
        ]
        # With one normalization before attention and one before the MLP, and none after.
        if len(inside) == 1:
            norms[inside[0]] = f"{name}/{site}/norm"
    return norms


def _graph(trace: Trace, sources: dict[str, str]) -> ModelGraph:
    """Which taps are representations and blocks."""
    by_name = {name: tap for tap, name in sources.items()}
    structure = trace.structure
    is_vector = SCORES in trace.layouts and len(trace.layouts[SCORES].shape) == 1
    scores = by_name.get(SCORES) if is_vector and structure.has_head else None
    if not structure.blocks:
        layers = [tap for tap in sources if tap not in (SCORES, OUTPUT, EMBEDDING)]
        layers = [t for t in layers if not any(is_inside(o, t) for o in layers)]
        layers = [t for t in layers if sources[t] not in structure.passing]
        representations = tuple(spread(layers, MAX_LAYERS))
        return ModelGraph(representations, (), scores, structure.num_repeated)
    is_usual = _has_usual_form(trace)
    ends = [
        structure.parts[block]["mlp/sum"]
        if is_usual and block not in structure.post_norm
        else block
        for block in structure.blocks
    ]
    embedding = EMBEDDING if structure.entrance else structure.embedding
    norm = structure.final_norm
    blocks = [by_name[name] for name in (embedding, *ends) if name in by_name]
    norms = [by_name[norm]] if norm in by_name else []
    # Blocks that return no tensor with an axis of examples, as those of two streams, are missed.
    num_missed = len(ends) if any(name not in by_name for name in ends) else 0
    return ModelGraph((*blocks, *norms), tuple(blocks), scores, num_missed)


def select_taps(
    model: TorchModule, names: tuple[str, ...], patterns: tuple[str, ...], trace: Trace
) -> dict[str, str]:
    """Taps by name and by patterns, in the order of computation, and their names in a trace."""
    sources = tap_sources(trace)
    layers = {name: lookup("layer", name, sources) for name in names}
    # Taps that are not named as submodules share the first part of their names with such a tap.
    sites = {tap.split("/")[0] for tap, name in sources.items() if tap != name}
    sites |= {EMBEDDING, SCORES, OUTPUT}
    grammar_taps = [tap for tap in sources if tap.split("/")[0] in sites]
    for pattern in patterns:
        matched = fnmatch.filter(grammar_taps, pattern)
        if pattern == "*":  # those measured by default, too, also of modules without this grammar
            matched += _graph(trace, sources).representations
        of_grammar = {tap: sources[tap] for tap in matched}
        layers |= of_grammar or select_layers(model, trace, [pattern])
    place = {name: index for index, name in enumerate(trace.layouts)}
    return dict(sorted(layers.items(), key=lambda pair: place[pair[1]]))
