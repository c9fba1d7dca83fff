"""Which layers of a model a measurement reads, and where its tokens lie: one rule for all.

Calls of measurements, figures of papers, the interactive page and the recorder of a training run
all use `layers_of`. It decides by the names, shapes and structure of a model, in any framework.
"""

import fnmatch
import itertools
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias, cast

from vit_tf.common.names import is_part, last_part, unknown_name
from vit_tf.features.structure import MAX_LAYERS, ModelGraph, has_tap_grammar, spread
from vit_tf.features.tokens import TokenGrid

Shape: TypeAlias = tuple[int | None, ...]  # of a tap, without the example axis
# A documented subset of the layers of a kind, or a number of them, evenly spaced.
Detail: TypeAlias = str | int | None

# What a call's `detail` can ask for, where layers are chosen among the representations.
DETAILS = {
    "blocks": "embedding and outputs of blocks, without the final norm and what is pooled",
    "grid": "blocks whose tokens or positions lie on the grid of the last",
    "lower": "lower half of the blocks",
    "middle": "the block at half depth",
    "sums": "sums of skip and branch of all sublayers",
    "sublayers": "layers inside of blocks too, where their names are known",
}
MOST_PREFIX_TOKENS = 8  # of a grid that is inferred


@dataclass(frozen=True)
class _Model:
    """The arguments of `layers_of`."""

    names: Sequence[str]
    shapes: Mapping[str, Shape]
    graph: ModelGraph
    grid: TokenGrid | None
    detail: Detail
    block: str

    def matching(self, *patterns: str) -> list[str]:
        return [tap for tap in self.names if any(fnmatch.fnmatchcase(tap, p) for p in patterns)]

    def representations(self) -> list[str]:
        """The representations, or the subset that the detail names."""
        graph = self.graph
        if self.detail in ("blocks", "grid", "lower"):
            blocks = [tap for tap in graph.blocks if len(self.shapes.get(tap, (1, 1))) > 1]
            blocks = blocks or list(graph.blocks)
            if self.detail == "grid":
                return self.select_on_grid(blocks)
            return blocks[: (len(blocks) + 1) // 2] if self.detail == "lower" else blocks
        if self.detail in ("sums", "sublayers") and has_tap_grammar(self.names):
            return self.matching("*/sum") if self.detail == "sums" else sublayers(self.names)
        return list(graph.representations)

    def select_on_grid(self, taps: Iterable[str]) -> list[str]:
        """Those of some taps that hold the tokens or positions of the grid."""
        return [tap for tap in taps if self.lies_on_grid(tap)]

    def lies_on_grid(self, tap: str) -> bool:
        grid = self.grid
        if grid is None or is_part(tap, "weights"):
            return False
        if tap not in self.shapes:  # the taps of this package's models show it in their names
            return _lies_on_last_grid(tap, self.names)
        shape = self.shapes[tap]
        if len(shape) == 3:
            return not grid.prefix and shape[:2] == (grid.rows, grid.columns)
        return len(shape) == 2 and shape[0] == grid.num_tokens

    def holds_tokens(self, tap: str) -> bool:
        """Whether a tap on the grid is a sequence of tokens and no map."""
        return len(self.shapes[tap]) == 2 if self.shapes else not tap.startswith("stage")

    def select_one_width(self, taps: Sequence[str]) -> list[str]:
        """Those of some taps that are tokens, or maps, of as many channels as the last of them."""
        shapes = [self.shapes.get(tap, (None,)) for tap in taps]
        forms = [(len(shape), shape[-1]) for shape in shapes]
        return [tap for tap, form in zip(taps, forms, strict=True) if form == forms[-1]]


def _lies_on_last_grid(tap: str, taps: Sequence[str]) -> bool:
    sites = [name.split("/")[0] for name in taps]
    blocks = [site for site in sites if site.startswith(("block", "stage"))]
    is_vit = any(site.startswith("block") for site in sites)
    site = tap.split("/")[0]
    if is_vit:
        return site.startswith("block") or tap in ("embedding", "norm")
    return tap == "norm" or (bool(blocks) and site == blocks[-1])


def sublayers(taps: Iterable[str]) -> list[str]:
    """The taps that hold representations of images, without skips: each is the sum before it."""
    ends = ("weights", "heads", "skip", "logits", "log_odds")
    return [t for t in taps if last_part(t) not in ends]


def structure_of_outputs(taps: Sequence[str], shapes: Mapping[str, Shape]) -> ModelGraph:
    """What names and shapes show about the outputs of a submodel, a SavedModel or a function."""
    if has_tap_grammar(taps):
        return ModelGraph.from_names(taps)
    held = [tap for tap in sublayers(taps) if len(shapes.get(tap, (1, 1))) in (1, 2, 3)]
    representations = tuple(spread(held, MAX_LAYERS))
    return ModelGraph(representations, representations, "logits" if "logits" in taps else None)


def readable_layers(
    names: Sequence[str], shapes: Mapping[str, Shape], graph: ModelGraph, grid: TokenGrid | None
) -> list[str]:
    """The layers that some measurement reads, in depth order."""
    found: set[str] = set()
    for kind, properties in KINDS.items():
        for detail in (None, *DETAILS) if properties.is_detailed else (None,):
            found |= {*layers_of(kind, names, shapes, graph, grid, detail=detail)}
    return [name for name in names if name in found]


def _outputs(model: _Model) -> list[str]:
    """The representations, without an embedding whose CLS token is the same for all images."""
    taps = model.representations()
    if not model.grid or not model.grid.prefix or len(taps) < 2:
        return taps
    # The output of a patch convolution is a map, to which no CLS token has been added yet.
    is_map = len(model.shapes.get(taps[0], ())) == 3
    return taps[1:] if is_map or "embed" in taps[0] else taps


def _tokens(model: _Model) -> list[str]:
    return model.select_on_grid(model.representations())


def _output_tokens(model: _Model) -> list[str]:
    taps = _tokens(model)
    return taps[1:] if len(taps) > 1 and "embed" in taps[0] else taps


def _lens(model: _Model) -> list[str]:
    return model.select_one_width(model.select_on_grid(model.graph.blocks))


def _patching(model: _Model) -> list[str]:
    return [tap for tap in _lens(model) if model.holds_tokens(tap)]


def _maps(model: _Model) -> list[str]:
    """The last map of each size of a model that has maps through its depth."""
    taps = model.representations()
    shapes = {tap: model.shapes[tap] for tap in taps if len(model.shapes.get(tap, ())) == 3}
    maps = {tap: shape[:2] for tap, shape in shapes.items() if shape[:2] != (1, 1)}
    sequences = [tap for tap in taps if len(model.shapes.get(tap, ())) == 2]
    return (
        list({size: tap for tap, size in maps.items()}.values()) if maps and not sequences else []
    )


def _replaced_tokens(model: _Model) -> list[str]:
    """One layer of tokens, the first or that at half depth, and the attention weights after it."""
    taps = model.select_on_grid(model.graph.blocks)
    taps = [tap for tap in taps if model.holds_tokens(tap)]
    if model.detail == "middle":
        taps = [tap for tap in taps if "embed" not in tap] or taps
        taps = taps[max(len(taps) // 2 - 1, 0) :]
        site = taps[0].split("/")[0] if taps else ""
    else:
        site = "block00"
    weights = f"{site}/attention/weights"
    return [*taps[:1], *([weights] if taps and weights in model.names else [])]


def _attention(model: _Model) -> list[str]:
    """The attention weights over the tokens of the grid, in layers of equally many heads."""
    return attended(model.names, model.shapes, model.grid)[0]


def attended(
    names: Iterable[str],
    shapes: Mapping[str, Shape],
    grid: TokenGrid | None,
    equal_heads: bool = True,
) -> tuple[list[str], str]:
    """Names of attention weights over a grid of tokens; otherwise what a model lacks, in words.

    Shapes are (head, query, key); all of these fit an unknown grid. Results with an axis of heads
    need equally many in all layers.
    """
    names = [name for name in names if is_part(name, "weights")]
    if not all(name in shapes for name in names):
        return names, ""
    weights = {name: shapes[name] for name in names}
    weights = {name: shape for name, shape in weights.items() if len(shape) == 3}
    if not weights:
        return [], ""
    over = grid and (grid.num_tokens,) * 2
    fit = [name for name, shape in weights.items() if not grid or shape[1:] == over]
    if grid and not fit:
        name, (_, queries, keys) = next(iter(weights.items()))
        counts = f"{name} has {queries} queries and {keys} keys"
        return [], f"attention over the {grid.num_tokens} tokens of its grid: {counts}"
    if equal_heads and len({weights[name][0] for name in fit}) > 1:
        return [], "attention with the same number of heads in all layers"
    return fit, ""


def _tokens_and_attention(model: _Model) -> list[str]:
    """Blocks of tokens, and the attention weights that read them, in depth order."""
    tokens = [tap for tap in model.select_on_grid(model.graph.blocks) if model.holds_tokens(tap)]
    both = {*tokens, *(_attention(model) if tokens else [])}
    return [tap for tap in model.names if tap in both]


def _rollout(model: _Model) -> list[str]:
    # The mean over heads is defined for any number of them.
    weights, _ = attended(model.names, model.shapes, model.grid, equal_heads=False)
    sites = tuple({f"{tap.split('/')[0]}/" for tap in weights if "/attention/" in tap})
    ends = ("weights", "skip", "branch", "sum")
    return [t for t in model.names if t.startswith(sites) and is_part(t, *ends)] or weights


def _heads(model: _Model) -> list[str]:
    """The outputs of heads; of Keras' attention layers the values, which they are means of."""
    values = model.matching("*/value", "*/value@*")
    values = [tap for tap in values if len(model.shapes.get(tap, ())) == 3]
    values = [tap for tap in values if tap not in model.graph.shared_values]
    return model.matching("*/heads", "*/heads@*") or values


def _block_heads(model: _Model) -> list[str]:
    both = [f"{model.block}/attention/{what}" for what in ("weights", "heads")]
    return both if set(both) <= set(model.names) else []


def _skips(model: _Model) -> list[str]:
    taps = model.matching("*/skip", "*/branch")
    sites = [{t.rpartition("/")[0] for t in taps if t.endswith(end)} for end in ("skip", "branch")]
    return taps if sites[0] & sites[1] else []


def _ablated_skips(model: _Model) -> list[str]:
    """Skips and branches by themselves; in other Keras models they are the tensors before a sum.

    What edits such a tensor changes all that reads it, and not the sum alone.
    """
    sums = {tap.removesuffix("/sum") for tap in model.matching("*/sum")}
    return [tap for tap in _skips(model) if tap.rpartition("/")[0] in sums]


def _norms(model: _Model) -> list[str]:
    taps = model.matching("*/norm", "norm")
    return taps if len(taps) > 1 else []


@dataclass(frozen=True)
class Kind:
    """A kind of layers, selected for a group of measurements, such as attention weights.

    `lacks` states in words what a model without such layers lacks, and `select` returns their
    names. If `with_scores`, measurements use the class scores too. If `is_detailed`, the layers are
    selected among the representations, and the argument `detail` names a subset of these.
    """

    lacks: str
    select: Callable[[_Model], list[str]]
    with_scores: bool = False
    is_detailed: bool = False


KINDS = {
    "representations": Kind("representations", _Model.representations, is_detailed=True),
    # Without an embedding whose CLS token is constant.
    "outputs": Kind("representations", _outputs, is_detailed=True),
    "tokens": Kind("representations on a known grid", _tokens, is_detailed=True),
    "output_tokens": Kind("representations on a known grid", _output_tokens, is_detailed=True),
    "lens": Kind("blocks on a known grid", _lens, with_scores=True),
    "stitched": Kind("blocks on a known grid", _lens),
    "scored": Kind("representations", _Model.representations, True, is_detailed=True),
    "patching": Kind("blocks of tokens on a known grid", _patching, with_scores=True),
    "maps": Kind("convolutional feature maps", _maps),
    "class_maps": Kind("convolutional feature maps", _maps, with_scores=True),
    "embedding": Kind("tokens on a known grid", _replaced_tokens, True, is_detailed=True),
    "attention": Kind("attention weights", _attention),
    "class_attention": Kind("attention weights", _attention, with_scores=True),
    "outliers": Kind("blocks of tokens on a known grid", _tokens_and_attention),
    "rollout": Kind("attention weights and skips", _rollout),
    "heads": Kind("outputs of attention heads", _heads, with_scores=True),
    "block_heads": Kind("heads of this block", _block_heads),
    "skips": Kind("separate skips and branches", _skips),
    "ablated_skips": Kind("separate skips and branches", _ablated_skips, with_scores=True),
    "norms": Kind("norms of sublayers", _norms),
    "scores": Kind("scores", lambda model: [], with_scores=True),
}


def layers_of(
    kind: str,
    names: Sequence[str],
    shapes: Mapping[str, Shape],
    graph: ModelGraph,
    grid: TokenGrid | None,
    *,
    detail: Detail = None,
    block: str = "block00",
) -> list[str]:
    """Names of the layers of one kind, such as attention weights, in depth order.

    Args:
        kind: a key of `KINDS`, such as `"representations"`, `"attention"` or `"skips"`.
        names: names of all taps (layer outputs) of the model, in depth order.
        shapes: dict from tap to its shape, without the example axis. It may be empty for the models
            of this package, whose names, such as `block03/mlp/sum`, show what each tap is.
        graph: the taps that are representations, blocks and class scores.
        grid: `TokenGrid` of the tokens or positions of the last layers; None if it is unknown.
        detail: a key of `DETAILS`, for kinds that are selected among the representations; or a
            number of evenly spaced layers.
        block: name of the block, for the kind `"block_heads"`.

    Returns:
        List of names; empty if the model has no such layers. Measurements of some kinds also use
        the class scores, whose name is not in the list.
    """
    if isinstance(detail, str):
        known = DETAILS if KINDS[kind].is_detailed else ()
        if detail not in known:
            raise unknown_name("detail", detail, known)
    layers = KINDS[kind].select(_Model(names, shapes, graph, grid, detail, block))
    if isinstance(detail, int) and not isinstance(detail, bool):
        if detail < 1:
            raise ValueError(f"Expected detail to be at least one layer. Received: {detail}")
        return spread(layers, detail)
    return layers


def unfit_attention(
    kind: str, names: Iterable[str], shapes: Mapping[str, Shape], grid: TokenGrid | None
) -> str:
    """What attention weights of a model lack for a measurement of a kind; "" if it reads none."""
    return attended(names, shapes, grid)[1] if "attention" in KINDS[kind].lacks else ""


def grid_of_shapes(
    taps: Iterable[str],
    shapes: Mapping[str, Shape],
    image_size: tuple[int | None, int | None],
    graph: ModelGraph | None = None,
    patch_size: int | None = None,
    prefix: int | None = None,
    model_layers: Iterable[str] = (),
) -> TokenGrid | None:
    """`infer_grid` of the representations, or of all `taps` where no graph shows which these are.

    If these have no tokens, the number of tokens is inferred from attention weights. None with a
    warning if the model may prune or merge tokens, as `model_layers` show: all representations,
    by default the layers that the grid is inferred from. A grid of a known patch size is that of
    all tokens, and is kept.
    """
    taps = [tap for tap in taps if tap in shapes]
    layers = taps if graph is None else [tap for tap in graph.representations if tap in shapes]
    held = [shapes[tap] for tap in layers if not is_part(tap, "weights", "heads", "value")]
    weights = [shapes[tap] for tap in taps if is_part(tap, "weights")]
    weights = [(shape[2], shape[0]) for shape in weights if len(shape) == 3]  # key, head
    grid = infer_grid(held, image_size, patch_size, prefix)
    grid = grid or infer_grid(weights, image_size, patch_size, prefix)
    of_model = [shapes[tap] for tap in model_layers] or [*held, *weights]
    if grid is None or patch_size or not (counts := pruned_counts(grid, of_model)):
        return grid
    warnings.warn(
        f"The number of tokens changes between layers of the same width: {counts}, as in models "
        "that prune or merge tokens, so that their positions are unknown. No token grid is "
        "inferred. For layers whose tokens lie on a grid, specify layers= and grid=",
        stacklevel=6,
    )
    return None


def pruned_counts(grid: TokenGrid, shapes: Iterable[Shape]) -> list[int]:
    """Numbers of tokens, in depth order, of a model that does not keep those of a grid.

    Models with stages, each on a grid of its own, have more channels where they have fewer tokens;
    models that prune or merge tokens do not. Empty if the layers of the same width have all tokens
    of the grid, and a few prefix tokens, or end with all tokens of the largest grid, as models of
    several scales do. The last layer may pool them to a few.
    """
    sequences = [cast(tuple[int, int], s) for s in shapes if len(s) == 2 and None not in s]
    sequences = [shape for shape in sequences if shape[0] > 1]
    for _, stage in itertools.groupby(sequences, key=lambda shape: shape[1]):
        counts = [count for count, _ in stage]
        *others, last = counts
        kept = others if last <= MOST_PREFIX_TOKENS and last not in others else counts
        most = grid.num_spatial + max(MOST_PREFIX_TOKENS, grid.prefix)
        is_restored = bool(kept) and kept[-1] == grid.num_tokens == max(counts)
        is_kept = is_restored or all(grid.num_spatial <= count <= most for count in kept)
        if grid.num_tokens in counts and not is_kept:
            return list(dict.fromkeys(counts))
    return []


def warn_of_missed_blocks(name: str, graph: ModelGraph) -> None:
    """Warns of a model that has more blocks than the rule finds representations."""
    if graph.num_repeated:
        warnings.warn(
            f"{name!r} has {graph.num_repeated} blocks, but {len(graph.representations)} layers "
            "are found as representations, because later layers also read other outputs: select "
            "layers with layers=",
            stacklevel=6,
        )


def infer_grid(
    shapes: Iterable[Shape],
    image_size: tuple[int | None, int | None],
    patch_size: int | None = None,
    prefix: int | None = None,
) -> TokenGrid | None:
    """Where tokens or positions lie, from the shapes of representations in depth order.

    Square patches that tile the image with fewest prefix tokens, those of the last sequence of
    tokens; where there are no sequences, the positions of the last map. `patch_size` and `prefix`
    are known from elsewhere, or None.
    """
    known_shapes = [cast(tuple[int, ...], shape) for shape in shapes if None not in shape]
    if len(image_size) != 2 or None in image_size:  # of a model of vectors, or of any size
        return None
    height, width = cast(tuple[int, int], image_size)
    counts = [shape[0] for shape in known_shapes if len(shape) == 2]
    if patch_size and counts:
        grid = TokenGrid.of_patches((height, width), patch_size)
        count = ([count for count in counts if count >= grid.num_spatial] or counts)[-1]
        extra = count - grid.num_spatial if prefix is None else prefix
        if extra < 0 or extra + grid.num_spatial != count:
            raise ValueError(
                f"Expected patch_size and prefix to fit the {count} tokens of the layers. "
                f"Received: {max(extra, 0)} + {grid.rows} x {grid.columns} tokens"
            )
        return TokenGrid.of_patches((height, width), patch_size, extra)
    if not counts:
        maps = [shape for shape in known_shapes if len(shape) == 3 and shape[0] * shape[1] > 1]
        if not maps:
            return None
        rows, columns = maps[-1][:2]
        tiles = not height % rows and height * columns == width * rows
        return TokenGrid(rows, columns, 0, height // rows) if tiles else None
    strides = [s for s in range(1, min(height, width) + 1) if not height % s and not width % s]
    # What pools the tokens at the end may return a few, which are on no grid.
    for count in dict.fromkeys(count for count in reversed(counts) if count > 1):
        fits = []
        for stride in strides:
            rows, columns = height // stride, width // stride
            extra, most = count - rows * columns, min(MOST_PREFIX_TOKENS, rows * columns - 1)
            if 0 <= extra <= most and prefix in (None, extra):
                fits.append(TokenGrid(rows, columns, extra, stride))
        if fits:
            return min(fits, key=lambda grid: grid.prefix)
    return None
