"""The blocks of a PyTorch module: submodules of one class that run one after another."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch


@dataclass
class Call:
    """The first call of a submodule, or a later one, in the order in which submodules return."""

    path: str  # of a later call with its number, as in "block@2"
    module: torch.nn.Module
    source: torch.Tensor | None  # what it was given
    output: torch.Tensor | None  # what it returned
    has_skip: bool = False  # whether its own code adds something to its input

    @property
    def parent(self) -> str:
        """The path of the module that holds it."""
        return self.path.rpartition(".")[0]


def is_inside(path: str, other: str) -> bool:
    """Whether a submodule is inside another one, or inside that of a call with a number."""
    other = other.partition("@")[0]
    return path.startswith(f"{other}.") if other else bool(path)


def find_blocks(calls: Sequence[Call]) -> list[str]:
    """The paths of the blocks in the order of computation; none for models without repetition.

    Blocks are submodules of one class, with layers that have parameters inside, each of which is
    given what the one before returned. Where these contain such a sequence themselves, as stages
    do, the innermost are the blocks; a stage of one block has the class of block of the others. A
    submodule with a skip around its own layers is a block, and a sequence inside it none.
    """
    chains = _without_branches([chain for chain in _chains(calls) if len(chain) > 1], calls)
    if any(not _is_sequence(chain[0]) for chain in chains):
        # Sequences are stages or stems, but for a model that is made of nothing else.
        chains = [_opened(chain, calls) for chain in chains]
    members = [call for chain in chains for call in chain]
    inner = [c for c in members if not any(is_inside(x.path, c.path) for x in members)]
    outer = [call for call in members if call not in inner]
    stages = {(call.parent, type(call.module)) for call in outer}
    kinds = {type(call.module) for call in inner if (call.parent, type(call.module)) not in stages}
    blocks = set()
    for call in inner:
        single = [x.path for x in calls if is_inside(x.path, call.path) and type(x.module) in kinds]
        is_stage = (call.parent, type(call.module)) in stages and single
        blocks.add(single[-1] if is_stage else call.path)
    # A block inside of another one is a part of it.
    paths = [call.path for call in calls if call.path in blocks]
    return [path for path in paths if not any(is_inside(path, block) for block in blocks)]


def _without_branches(chains: Sequence[list[Call]], calls: Sequence[Call]) -> list[list[Call]]:
    """The chains that are not inside a submodule with a skip whose class forms a chain itself."""
    classes = {type(call.module) for call in calls if call.has_skip}
    classes &= {type(call.module) for chain in chains for call in chain}
    paths = [call.path for call in calls if type(call.module) in classes]
    return [chain for chain in chains if not any(is_inside(chain[0].path, path) for path in paths)]


def _is_sequence(call: Call) -> bool:
    return isinstance(call.module, torch.nn.Sequential)


def _opened(chain: list[Call], calls: Sequence[Call]) -> list[Call]:
    """A chain with the blocks in its sequences in place of these."""
    if not _is_sequence(chain[0]):
        return chain
    inside = [
        call
        for call in calls
        if any(is_inside(call.path, sequence.path) for sequence in chain)
        and _has_layers(call.module)
        and not _is_sequence(call)
    ]
    return [c for c in inside if not any(is_inside(c.path, other.path) for other in inside)]


def _chains(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Runs of submodules of one parent and class, each given what the one before returned."""
    by_parent: dict[str, list[Call]] = {}
    for call in calls:
        if call.path and _has_layers(call.module):
            by_parent.setdefault(call.parent, []).append(call)
    for siblings in by_parent.values():
        chain: list[Call] = []
        for call in siblings:
            if chain and not _follows(chain[-1], call):
                yield chain
                chain = []
            chain.append(call)
        yield chain


def _has_layers(module: torch.nn.Module) -> bool:
    """Whether a module has submodules with parameters."""
    return any(True for child in module.children() for _ in child.parameters())


def _follows(before: Call, after: Call) -> bool:
    """Whether a submodule is of the class of another, and is given what it returned."""
    if type(before.module) is not type(after.module):
        return False
    if before.output is None or after.source is None:
        return False
    return same_values(before.output, after.source)


def same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are one, or share their values in other shapes."""
    same_size = first.numel() == second.numel() and first.dtype == second.dtype
    return first is second or (same_size and first.data_ptr() == second.data_ptr())


def find_final_norm(calls: Sequence[Call], blocks: Sequence[str]) -> str | None:
    """The normalization of tokens or maps after the last block."""
    if not blocks:
        return None
    last = [call.path for call in calls].index(blocks[-1])
    for call in calls[last + 1 :]:
        is_leaf = not any(True for _ in call.module.children())
        shape = () if call.output is None else call.output.shape
        has_positions = len(shape) > 2 and (len(shape) < 4 or shape[2] * shape[3] > 1)
        if is_leaf and "norm" in type(call.module).__name__.lower() and has_positions:
            return call.path
    return None
