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
    """What the structure of a model shows about its taps, whose names are in depth order.

    Attributes:
        representations: the embedding, the output of each block or stage, and the final norm or
            the vector that the head reads.
        blocks: those of them that are the outputs of blocks, and the embedding.
        scores: the tap that holds what the model returns; None where it is not known.
        num_repeated: how many blocks there are of one kind, where there are more of them than
            representations, or layers on long paths that are no blocks; otherwise 0.
    """

    representations: tuple[str, ...]
    blocks: tuple[str, ...]
    scores: str | None = None
    num_repeated: int = 0

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
    is_single: bool  # whether all that follows reads only its output
    has_kernel: bool = False  # whether it is a convolution, a fully connected layer or a block
    is_sum: bool = False  # whether it adds two paths
    is_expansion: bool = False  # whether it lies in the wide middle of a separable block
    is_projection: bool = False  # whether it is the convolution that ends such a block
    kind: str = ""  # name of its class


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
    """The layers that hold the representations of a model, of its layers in depth order.

    1. The output of each layer that contains layers with weights is a representation: a block, a
       stage.
    2. Between them, layers without layers inside form groups of equal rows and columns. A group
       ends where several paths begin, and where a layer with a kernel follows a block, which ends
       with a sum or concatenation of paths or with a separable convolution; the last output of a
       group with weights, or in which paths are joined, is a representation. Expansions, in the
       wide middle of a separable block, are in no group.
    3. In a model whose skips start at sums or concatenations, what lies between one of them and the
       next kernel belongs to the next block, such as its norm, and is in no group.
    4. The vector that a last fully connected layer reads is one; its output, the scores of
       classes, is not.

    Returns:
        Dict from tap to whether a block ends there.
    """
    entries = [entry for entry in entries if not (entry.is_expansion and entry.is_single)]
    end = _num_before_head(entries)
    last_join = max((i for i, entry in enumerate(entries[:end]) if not entry.is_single), default=-1)
    pairs = pairwise(entries[:end])
    # Where a skip starts at a sum or concatenation, the norm behind another one is the first layer
    # of its branch.
    is_preactivated = any(
        (a.is_sum or a.kind == "Concatenate") and a.is_single and not b.is_single for a, b in pairs
    )
    is_before_kernel = False  # between a sum and the kernel of the next block
    marks: dict[str, bool] = {}
    previous, weighted, end_of_block = None, False, ""
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
        end_of_block = "projection" if entry.is_projection else end_of_block
        if weighted:
            marks[entry.tap] = bool(end_of_block)
        previous = entry
    # In a model of several classifiers, the vector before the last one holds another's scores.
    if end < len(entries) and end and _is_vector(entries[end - 1]) and entries[end - 1].is_single:
        marks.setdefault(entries[end - 1].tap, False)
    return marks


def _is_vector(entry: LayerEntry) -> bool:
    return all(size == 1 for size in entry.shape[1:-1])


def _num_before_head(entries: Sequence[LayerEntry]) -> int:
    """How many entries there are before a last fully connected layer, which returns scores."""
    weighted = [index for index, entry in enumerate(entries) if entry.has_weights]
    if weighted:
        last = entries[weighted[-1]]
        if last.has_kernel and not last.has_blocks and _is_vector(last):
            return weighted[-1]
    return len(entries)


def graph_of_entries(entries: Sequence[LayerEntry]) -> ModelGraph:
    """The structure of a model whose layers have names of their own."""
    marks = find_representations_among(entries)
    names = list(marks)
    first_end = next((index for index, name in enumerate(names) if marks[name]), 0)
    # What comes before the first block is the embedding.
    blocks = [name for index, name in enumerate(names) if marks[name] or index < first_end]
    of_kinds = Counter(entry.kind for entry in entries if entry.has_blocks)
    repeated = max([*of_kinds.values(), sum(entry.is_sum for entry in entries)], default=0)
    if not any(marks.values()):
        names = blocks = spread(names, MAX_LAYERS)
    return ModelGraph(
        tuple(names),
        tuple(blocks),
        entries[-1].tap if entries else None,
        num_repeated=repeated if len(marks) < repeated else _num_in_long_paths(entries),
    )


def _num_in_long_paths(entries: Sequence[LayerEntry]) -> int:
    """Kernels on paths that are joined after maps of three sizes, which are more than one block."""
    most, kernels, sizes = 0, 0, set()
    for entry in entries:
        if entry.is_single:
            kernels, sizes = 0, set()
            continue
        kernels += entry.has_kernel
        if len(entry.shape) == 4 and not _is_vector(entry):
            sizes.add(entry.shape[1:3])
        most = max(most, kernels) if len(sizes) > 2 else most
    return most


def spread(items: Sequence, most: int) -> list:
    """At most `most` of the items, evenly spread, the first and the last among them."""
    if len(items) <= most:
        return list(items)
    if most == 1:
        return [items[-1]]
    return [items[round(index * (len(items) - 1) / (most - 1))] for index in range(most)]
