"""Which layers of a model hold its representations: the rule, for models of any framework."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise

MAX_LAYERS = 40  # of a model without blocks
OF_SUBLAYERS = r"/(attention|mlp|token_mixing|channel_mixing)\d*$"


@dataclass(frozen=True)
class ModelGraph:
    """What the structure of a model shows about its taps (layer outputs), in depth order.

    Attributes:
        representations: the embedding, the output of each block or stage, and the final norm or
            the input vector of the head.
        blocks: the representations that are outputs of blocks, and the embedding.
        scores: the tap that holds the output of the model; None if it is unknown.
        num_repeated: number of blocks of one class, if it exceeds the number of representations;
            otherwise 0.
        shared_values: taps of values that several heads share, as in grouped-query attention.
    """

    representations: tuple[str, ...]
    blocks: tuple[str, ...]
    scores: str | None = None
    num_repeated: int = 0
    shared_values: tuple[str, ...] = ()

    @classmethod
    def from_names(cls, taps: Sequence[str]) -> "ModelGraph":
        """The structure that names of the tap grammar show."""
        blocks = block_outputs(taps)
        representations = tuple(tap for tap in taps if tap in blocks or tap == "norm")
        return cls(representations, tuple(blocks), "logits" if "logits" in taps else None)


@dataclass(frozen=True)
class LayerEntry:
    """A layer at the level of a model's blocks, as `find_representations_among` reads it."""

    tap: str
    shape: tuple[int | None, ...]  # of its output, with the example axis
    has_weights: bool
    has_blocks: bool  # whether it contains layers with weights: a block, a stage
    is_single: bool  # whether all that follows on its path reads only its output
    kernel: tuple[int, ...] = ()  # shape of the kernel of a convolution or fully connected layer
    is_sum: bool = False  # whether it adds two paths
    activation: str = ""  # name of its own activation
    is_scores: bool = False  # whether it holds class scores, or what is computed from them
    stretch: tuple[int, ...] = ()  # which of several long paths it lies on
    kind: str = ""  # name of its class

    @property
    def has_kernel(self) -> bool:
        """Whether it is a convolution, a fully connected layer or a block."""
        return bool(self.kernel) or self.has_blocks

    @property
    def is_join(self) -> bool:
        """Whether it adds or concatenates paths."""
        return self.is_sum or self.kind == "Concatenate"

    @property
    def is_vector(self) -> bool:
        """Whether its output is one vector for each example."""
        return all(size == 1 for size in self.shape[1:-1])

    @property
    def is_pointwise(self) -> bool:
        """Whether it is a convolution of single positions of a map."""
        return self.kind == "Conv2D" and self.kernel[:2] == (1, 1) and not self.is_vector

    @property
    def may_be_scores(self) -> bool:
        """Whether it returns scores of classes if no other layer with weights follows it."""
        is_narrowing = self.is_pointwise and self.kernel[2] > self.kernel[3]
        is_map = is_narrowing and self.activation in ("", "linear", "softmax", "sigmoid")
        return bool(self.kernel) and not self.has_blocks and (self.is_vector or is_map)


def has_tap_grammar(taps: Iterable[str]) -> bool:
    """Whether names show where blocks end, as those of this package's models do."""
    return any(re.match(r"(block|stage)\d+/(.+/)?sum$", tap) for tap in taps)


def block_outputs(taps: Iterable[str]) -> list[str]:
    """The taps at the end of each block or unit, after its last sum, and those before the first."""
    taps, ends = list(taps), {}
    for tap in taps:
        site, _, end = tap.rpartition("/")
        if end == "sum":
            ends[re.sub(OF_SUBLAYERS, "", site)] = tap
    return [tap for tap in taps if tap in ends.values() or tap in ("embedding", "root")]


def find_representations_among(entries: Sequence[LayerEntry]) -> dict[str, bool]:
    """The layers that hold the representations of a model, among its layers in depth order.

    1. The output of each layer that contains layers with weights is a representation: a block or a
       stage.
    2. Between blocks, layers that contain no other layers form groups of equal rows and columns. A
       group ends where several paths begin. It also ends where a layer with a kernel follows a
       block, which ends with a sum or concatenation of paths or with a separable convolution. The
       last output of a group is a representation if the group has weights or joins paths. The
       layers in the wide middle of a separable block are in no group.
    3. In a model whose skips start at sums or concatenations, the layers between such a layer and
       the next kernel, such as a norm, belong to the next block and are in no group.
    4. The input vector of a last fully connected layer is a representation; class scores are not.

    If there are several long paths, each has groups of its own.

    Returns:
        Dict from tap to whether a block ends there.
    """
    marks: dict[str, bool] = {}
    for stretch in dict.fromkeys(entry.stretch for entry in entries):
        marks |= _mark_stretch([entry for entry in entries if entry.stretch == stretch])
    return {entry.tap: marks[entry.tap] for entry in entries if entry.tap in marks}


def _mark_stretch(entries: Sequence[LayerEntry]) -> dict[str, bool]:
    """The representations among the layers of one path, and whether a block ends there."""
    inside, projections = _find_separable(entries)
    entries = [entry for entry in entries if not (entry.tap in inside and entry.is_single)]
    end = next((i for i, entry in enumerate(entries) if entry.is_scores), len(entries))
    last_join = max((i for i, entry in enumerate(entries[:end]) if not entry.is_single), default=-1)
    # Where a skip starts at a sum or concatenation, the norm behind another one is the first layer
    # of its branch.
    pairs = pairwise(entries[:end])
    is_preactivated = any(a.is_join and a.is_single and not b.is_single for a, b in pairs)
    is_before_kernel = False  # between a sum and the kernel of the next block
    marks: dict[str, bool] = {}
    previous, end_of_block = None, ""
    weighted = bool(entries) and entries[0].is_join  # of long paths
    for index, entry in enumerate(entries[:end]):
        if not entry.is_single:
            previous, weighted, end_of_block = None, True, "join"  # paths are joined next
            is_before_kernel = False
            continue
        if entry.has_blocks:
            marks[entry.tap] = True
            previous, weighted, end_of_block = None, False, ""
            continue
        is_before_kernel = is_before_kernel and not entry.has_kernel
        if is_preactivated and end_of_block == "join" and entry.has_weights:
            is_before_kernel |= not entry.has_kernel and index < last_join
        if is_before_kernel:
            continue
        # The norm behind the last sum of all is no part of its block.
        is_final_norm = entry.has_weights and end_of_block == "join" and index > last_join + 1
        is_of_block = not (end_of_block and (entry.has_kernel or is_final_norm))
        if previous is None:
            pass
        elif previous.shape[1:-1] != entry.shape[1:-1] or not is_of_block:
            weighted, end_of_block = False, ""
        elif weighted or entry.has_weights:
            marks.pop(previous.tap, None)
        weighted = weighted or entry.has_weights
        end_of_block = "projection" if entry.tap in projections else end_of_block
        if weighted:
            marks[entry.tap] = bool(end_of_block)
        previous = entry
    if 0 < end < len(entries) and entries[end - 1].is_vector and entries[end - 1].is_single:
        marks.setdefault(entries[end - 1].tap, False)
    return marks


def _find_separable(entries: Sequence[LayerEntry]) -> tuple[set[str], set[str]]:
    """Taps in the wide middle of blocks with a depthwise convolution, and taps that end them.

    A block begins with the 1 x 1 convolution that widens what the depthwise one reads, where there
    is one, and ends with the 1 x 1 convolution that projects its output. Gates lie between them.
    """
    inside: set[str] = set()
    projections: set[str] = set()
    # Joins break the row of kernels, as what they return is computed from other layers too.
    row = [i for i, x in enumerate(entries) if x.is_join or (x.has_kernel and not x.is_vector)]
    for place, index in enumerate(row):
        if entries[index].kind != "DepthwiseConv2D":
            continue
        first, *earlier = row[max(place - 2, 0) : place][::-1] or [index]
        widens = entries[first].is_pointwise and entries[first].kernel[2] < entries[first].kernel[3]
        # Behind another depthwise convolution it is the projection that ends a block.
        if not widens or any(entries[i].kind == "DepthwiseConv2D" for i in earlier):
            first = index
        inside |= {entry.tap for entry in entries[first:index]}
        last = row[place + 1] if place + 1 < len(row) else index
        if entries[last].is_pointwise and entries[last].shape[1:3] == entries[index].shape[1:3]:
            inside |= {entry.tap for entry in entries[index:last]}
            projections.add(entries[last].tap)
    return inside, projections


def graph_of_entries(entries: Sequence[LayerEntry]) -> ModelGraph:
    """The structure of a model whose layers have names of their own."""
    marks = find_representations_among(entries)
    names = list(marks)
    first_end = next((index for index, name in enumerate(names) if marks[name]), 0)
    # What comes before the first block is the embedding.
    blocks = [name for index, name in enumerate(names) if marks[name] or index < first_end]
    of_kinds = Counter(entry.kind for entry in entries if entry.has_blocks)
    num_sums, joins = 0, False
    for entry in reversed(entries):
        joins = entry.kind == "Concatenate" if entry.is_single else joins
        num_sums += entry.is_sum and not joins  # those inside of a concatenated block are no blocks
    repeated = max([*of_kinds.values(), num_sums])
    if not any(marks.values()):
        names = blocks = spread(names, MAX_LAYERS)
    return ModelGraph(
        tuple(names),
        tuple(blocks),
        entries[-1].tap if entries else None,
        num_repeated=repeated if len(marks) < repeated else 0,
    )


def spread(items: Sequence, most: int) -> list:
    """At most `most` of the items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[-1]]
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]
