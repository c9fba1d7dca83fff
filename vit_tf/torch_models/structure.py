"""The blocks of a PyTorch module: submodules of one class, and paths that its own code joins."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from vit_tf.torch_models.axes import RESHAPING
from vit_tf.torch_models.dataflow import ADDITIONS, Dataflow, Junction, Operation

# Operations that return the values that they are given, in inference.
PASSING = (*RESHAPING, "squeeze", "contiguous", "dropout", "dropout1d", "dropout2d")
PASSING += ("alpha_dropout",)
# Operations behind the kernel of class scores: a bias, a scale, a mean over positions, a softmax.
BEHIND_KERNELS = (*PASSING, *ADDITIONS, "sub", "mul", "div", "__sub__", "__mul__", "__rmul__")
BEHIND_KERNELS += ("__truediv__", "mean", "adaptive_avg_pool2d", "avg_pool2d", "__getitem__")
BEHIND_KERNELS += ("softmax", "log_softmax", "sigmoid", "log_sigmoid", "float", "to", "type")
BEHIND_KERNELS += ("transpose", "clamp", "clamp_min", "clamp_max", "clip", "log", "round")

# The name of what the first block is given, where no submodule returns it.
EMBEDDING = "embedding"
# Modules of these packages return embeddings of images, which their last kernel projects.
EMBEDDERS = re.compile(r"(open_clip|clip|transformers\.models\.\w*clip\w*)\.")


@dataclass(frozen=True)
class Site:
    """A sum or concatenation in a submodule's own code: the names of its terms and result.

    The terms are `NAME/skip` and `NAME/branch` where `skip` is the position of the skip.
    """

    name: str
    end: str  # the name of the result
    skip: int | None = None


@dataclass(frozen=True)
class Structure:
    """The structure of a PyTorch module, from its calls and the flow of values.

    Attributes:
        blocks: names of the values at the ends of blocks, in the order of computation: paths of
            submodules, or results of sums and concatenations in a submodule's own code.
        sites: these sums and concatenations, by the path of the submodule and their number in it.
        parts: for a block of attention and an MLP, from names as in the models of this package,
            such as `attention/sum`, to the names of the values.
        entrance: path of the submodule whose input is the input of the first block.
        embedding: name of the value that is the input of the first block, if no submodule takes
            this input: the output of a submodule or a sum or concatenation.
        final_norm: the normalization of tokens or maps after the last block.
        post_norm: blocks that return another value than their last sum, such as its normalization.
        passing: layers of a module without blocks that are not representations, because they return
            their input or the class scores.
        num_repeated: number of submodules of one class, if no blocks are found.
        draws: what draws random numbers in inference: names of operations with the path of the
            first submodule that runs each.
        may_shuffle: whether it may shuffle its tokens with random numbers.
        has_head: whether a kernel computes the vector that the module returns. The output of a
            pooling or a normalization has channels, and the output of a CLIP model is an embedding.
    """

    blocks: tuple[str, ...] = ()
    sites: Mapping[tuple[str, int], Site] = field(default_factory=dict)
    parts: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    entrance: str | None = None
    embedding: str = ""
    final_norm: str | None = None
    post_norm: frozenset[str] = frozenset()
    passing: frozenset[str] = frozenset()
    num_repeated: int = 0
    draws: Mapping[str, str] = field(default_factory=dict)
    may_shuffle: bool = False
    has_head: bool = True


@dataclass
class Call:
    """The first call of a submodule, or a later one, in the order in which submodules return."""

    path: str  # of a later call with its number, as in "block@2"
    module: torch.nn.Module
    source: torch.Tensor | None  # what it was given
    output: torch.Tensor | None  # what it returned
    # Indices of its first operation and of the first operation after it.
    first: int = 0
    end: int = 0
    # Numbers of the values that it was given and returned; None where these are not known.
    source_value: int | None = None
    value: int | None = None
    has_logits: bool = False  # whether it returned several tensors, one of them called "logits"
    has_skip: bool = False  # whether its own code adds something to its input

    def holds(self, first: int, end: int) -> bool:
        """Whether operations, from the first to before the end, run inside it."""
        return self.first <= first and end <= self.end

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
    submodule with a skip around its own layers is a block, and a sequence inside it none. Where a
    class of blocks has skips, all submodules of that class are blocks.
    """
    chains = [chain for chain in _chains(calls) if len(chain) > 1]
    # What is inside a submodule with a skip whose class forms a chain is a branch.
    with_skips = {type(call.module) for call in calls if call.has_skip}
    with_skips &= {type(call.module) for chain in chains for call in chain}
    around = [call.path for call in calls if type(call.module) in with_skips]
    chains = [c for c in chains if not any(is_inside(c[0].path, path) for path in around)]
    if any(not isinstance(chain[0].module, torch.nn.Sequential) for chain in chains):
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
    kinds = {type(call.module) for call in calls if call.path in blocks and call.has_skip}
    # A block inside of another one is a part of it.
    paths = [c.path for c in calls if c.path in blocks or type(c.module) in kinds]
    return [path for path in paths if not any(is_inside(path, block) for block in blocks)]


def _opened(chain: list[Call], calls: Sequence[Call]) -> list[Call]:
    """A chain with the blocks in its sequences in place of these."""
    if not isinstance(chain[0].module, torch.nn.Sequential):
        return chain
    inside = [
        call
        for call in calls
        if any(is_inside(call.path, sequence.path) for sequence in chain)
        and _is_composite(call.module)
        and not isinstance(call.module, torch.nn.Sequential)
    ]
    return [c for c in inside if not any(is_inside(c.path, other.path) for other in inside)]


def _chains(calls: Sequence[Call]) -> Iterator[list[Call]]:
    """Runs of submodules of one parent and class, each given what the one before returned."""
    by_parent: dict[str, list[Call]] = {}
    for call in calls:
        if call.path and _is_composite(call.module):
            by_parent.setdefault(call.parent, []).append(call)
    for siblings in by_parent.values():
        chain: list[Call] = []
        for call in siblings:
            before = chain[-1] if chain else None
            if before is not None and not (
                type(before.module) is type(call.module)
                and before.output is not None
                and call.source is not None
                and same_values(before.output, call.source)
            ):
                yield chain
                chain = []
            chain.append(call)
        yield chain


def _is_composite(module: torch.nn.Module) -> bool:
    """Whether a module has submodules with parameters."""
    return any(True for child in module.children() for _ in child.parameters())


def same_values(first: torch.Tensor, second: torch.Tensor) -> bool:
    """Whether two tensors are one, or share their values in other shapes."""
    same_size = first.numel() == second.numel() and first.dtype == second.dtype
    return first is second or (same_size and first.data_ptr() == second.data_ptr())


def find_structure(calls: Sequence[Call], flow: Dataflow) -> Structure:
    """The blocks of a module, and what it computes before and after them.

    Blocks are those of `find_blocks`. Where several paths are joined outside of these, such as
    `x = x + attention(x)` in the code of a parent, the submodule around the paths is a block if its
    output is all that the rest is computed from; if it contains several such joins, each sum or
    concatenation ends a block, and a sum after attention is part of the block that the next ends.
    """
    by_path = {call.path: call for call in calls}
    is_known = "" in by_path and by_path[""].value is not None
    bottlenecks = flow.bottlenecks() if is_known else {}
    has_head = not is_known or _has_head(by_path, flow)
    # Paths that are joined inside of a block of the first kind belong to it.
    siblings = [by_path[path] for path in find_blocks(calls)]
    joins = [join for join in flow.junctions(bottlenecks) if _has_positions(join.operation.shape)]
    outside = [j for j in joins if not any(c.holds(j.first, j.last + 1) for c in siblings)]
    by_owner: dict[str, list[Junction]] = {}
    for join in outside:
        # The innermost submodule around a join whose output all that follows is computed from.
        around = (call for call in calls if call.holds(join.first, join.last + 1))
        owner = next((call.path for call in around if call.value in bottlenecks), "")
        by_owner.setdefault(owner, []).append(join)
    # The other joins end blocks of their own: the submodule around one, or the joins themselves.
    ends = {call.path: call.end - 1 for call in siblings}
    starts: dict[str, Junction] = {}  # of blocks that end in sums or concatenations
    sites: dict[tuple[str, int], Site] = {}
    parts: dict[str, dict[str, str]] = {}
    for path, of_owner in by_owner.items():
        groups = _blocks_of_joins(of_owner)
        owner, join = by_path[path], groups[0][0]
        inside = [c for c in siblings if owner.holds(c.first, c.end)]
        is_alone = all(join.first <= c.first and c.end <= join.last + 1 for c in inside)
        if path and len(groups) == 1 and is_alone and (not inside or len(inside) < len(siblings)):
            ends = {name: end for name, end in ends.items() if name not in {c.path for c in inside}}
            ends[path] = owner.end - 1
            continue
        for group in groups:
            of_group = [_add_site(join, sites) for join in group]
            block = of_group[-1].end
            ends[block], starts[block] = group[-1].last, group[0]
            attends = [join.attention_path is not None for join in group]
            if attends == [True, False] and all(join.is_sum for join in group):
                parts[block] = _parts(of_group, "", *_attention_of(group[0], of_owner, by_path))
    blocks = sorted(ends, key=ends.__getitem__)
    post_norm = {
        path for path in blocks if path in by_path and _add_sums(by_path[path], flow, sites, parts)
    }
    structure = Structure(draws=flow.draws, may_shuffle=flow.may_shuffle, has_head=has_head)
    # One join around everything, as in a U-Net, shows no blocks.
    is_around = len(blocks) == 1 and (blocks[0] in starts or not by_path[blocks[0]].source_value)
    if not blocks or is_around:
        kinds = Counter(type(c.module) for c in calls if c.path and _is_composite(c.module))
        repeated = max(kinds.values(), default=0)
        passing = frozenset(_passing(calls, flow))
        return replace(structure, passing=passing, num_repeated=repeated if repeated > 1 else 0)
    # What the first block is given is the input of the submodule around it, or another's output,
    # or a sum or concatenation in a submodule's own code.
    entrance, embedding = blocks[0].partition("@")[0], ""
    if (start := starts.get(blocks[0])) is not None:
        around = [c for c in calls if c.path and c.holds(start.first, start.last + 1)]
        entrance = next((c.path for c in around if c.source_value == start.source), None)
        returns = [c.path for c in calls if c.path and c.value == start.source]
        embedding = returns[-1] if returns and not entrance else ""
        operation = flow.operations[bottlenecks[start.source]] if start.source else None
        if operation and operation.join_index and not entrance and not embedding:
            embedding = EMBEDDING
            sites[operation.path, operation.join_index] = Site(EMBEDDING, EMBEDDING)
    return replace(
        structure,
        blocks=tuple(blocks),
        sites=sites,
        parts=parts,
        entrance=entrance,
        embedding=embedding,
        final_norm=_final_norm(calls, ends[blocks[-1]], bottlenecks),
        post_norm=frozenset(post_norm),
    )


def adds_to_input(call: Call, flow: Dataflow) -> bool:
    """Whether a submodule's own code adds something to its input, or to a shortcut of it.

    A shortcut has at most one kernel, and fewer than the other term: of two paths with equally
    many, none is a skip.
    """
    source, path = call.source_value, call.path.partition("@")[0]
    for index in range(call.first, call.end) if source is not None else ():
        operation = flow.operations[index]
        if operation.is_sum_of_two and operation.path == path:
            terms = (flow.num_kernels(x, call.first, index, source) for x in operation.sources)
            fewest, most = sorted(terms)
            if fewest <= 1 and fewest < most:
                return True
    return False


def _add_sums(
    block: Call,
    flow: Dataflow,
    sites: dict[tuple[str, int], Site],
    parts: dict[str, dict[str, str]],
) -> bool:
    """Names the residual sums inside a block; returns whether something follows the last of them.

    They are called `attention`, `mlp` and `mlp2` after what their branch holds; the first of a
    block without attention has no name of its own.
    """
    path, at, number = block.path.partition("@")
    streams = {flow.base_of(block.source_value)}  # the values that hold the residual stream
    attends, last = 0, None  # how often the branch attends, and the last sum
    of_block: list[Site] = []
    num_attended: list[int] = []
    for operation in flow.operations[block.first : block.end]:
        attends += operation.attends
        is_stream = [flow.base_of(value) in streams for value in operation.sources]
        if operation.name == "layer_norm" and is_stream[0]:
            streams.add(operation.results[0])  # in post-norm blocks a skip starts here
        # A shortcut that changes the shape is added to the branch.
        is_shortcut = last is None and not attends and operation.path == path
        if not operation.is_sum_of_two or not (any(is_stream) or is_shortcut):
            continue
        num_mlps = sum(not count for count in num_attended[1:])
        mlp = f"/mlp{num_mlps + 1 if num_mlps else ''}" if num_attended else ""
        name = f"{path}/attention" if attends else f"{path}{mlp}"
        of_block.append(Site(name, f"{name}/sum", 0 if is_stream[0] else 1))
        # A sum that ends a block of its own keeps its name.
        sites.setdefault((operation.path, operation.join_index), of_block[-1])
        num_attended.append(attends)
        attends, last = 0, operation.results[0]
        streams = {last}
    if num_attended == [1, 0]:
        parts[block.path] = _parts(of_block, at + number, f"{path}/attention", at + number)
    return last is not None and flow.base_of(block.value) != last


def _has_head(calls: Mapping[str, Call], flow: Dataflow) -> bool:
    """Whether a module returns class scores: a kernel computes them, but for a bias or a scale.

    The kernel that projects the embedding of a CLIP model computes none.
    """
    root = calls[""]
    declared = getattr(root.module, "num_classes", None)
    width = 0 if root.output is None else root.output.shape[-1]
    if root.has_logits or (width and declared == width):
        return True
    producers = {value: operation for operation in flow.operations for value in operation.results}
    operation = producers.get(root.value or 0)
    while operation is not None and not operation.has_kernel:
        if operation.name not in BEHIND_KERNELS or len({*operation.sources}) > 1:
            return False
        operation = producers.get(operation.sources[0])
    if operation is None:
        return False
    around = [call.module for p, call in calls.items() if is_inside(operation.path + ".", p)]
    return not any(EMBEDDERS.match(type(module).__module__) for module in [root.module, *around])


def _blocks_of_joins(joins: Sequence[Junction]) -> list[list[Junction]]:
    """The joins in one submodule as blocks: attention and what is added up to the next attention.

    Without attention each join is a block.
    """
    groups: list[list[Junction]] = []
    for join in joins:
        if groups and groups[-1][0].attention_path is not None and join.attention_path is None:
            groups[-1].append(join)
        else:
            groups.append([join])
    return groups


def _add_site(join: Junction, sites: dict[tuple[str, int], Site]) -> Site:
    """Names a join after the submodule whose own code it is in, and its number among them."""
    path = join.operation.path
    number = sum(other == path for other, _ in sites)
    name = f"{path}/{number:02d}" if path else f"{number:02d}"
    end = f"{name}/sum" if join.is_sum else f"{name}/concatenation"
    site = Site(name, end, join.skip)
    sites[path, join.operation.join_index] = site
    return site


def _attention_of(
    join: Junction, joins: Sequence[Junction], by_path: Mapping[str, Call]
) -> tuple[str, str]:
    """The submodule whose code attends on the paths of a join, and the number of its call."""

    def holder_of(path: str) -> str:
        # A softmax may be a submodule, and what holds it may not run, as in a graph of torch.fx.
        while path not in by_path or isinstance(by_path[path].module, torch.nn.Softmax):
            path = path.rpartition(".")[0]
        return path

    before = [other.attention_path for other in joins if other.last <= join.last]
    holders = [holder_of(path) for path in before if path is not None]
    number = holders.count(holders[-1])
    return holders[-1], f"@{number}" if number > 1 else ""


def _parts(
    sites: Sequence[Site], number: str, attention: str, attention_number: str
) -> dict[str, str]:
    """The values of a block of attention and an MLP by their names in the tap grammar."""
    parts = {
        f"{name}/{end}": f"{site.name}/{end}{number}"
        for name, site in zip(("attention", "mlp"), sites, strict=True)
        for end in ("skip", "branch", "sum")
    }
    weights = {f"attention/{x}": f"{attention}/{x}{attention_number}" for x in ("weights", "heads")}
    return parts | weights


def _passing(calls: Sequence[Call], flow: Dataflow) -> Iterator[str]:
    """The layers that return what they are given, and from the class scores on."""
    leaves = [c for c in calls if not any(True for _ in c.module.children())]
    scores: set[int] = set()  # vectors after which no kernel comes, and what they give
    for call in leaves:
        has_kernel = any(parameter.dim() > 1 for parameter in call.module.parameters())
        is_vector = call.output is not None and not _has_positions(call.output.shape)
        if has_kernel and is_vector and call.value is not None:
            scores |= _scores_from(call.value, flow.operations[call.end :])
    for call in leaves:
        operations = {operation.name for operation in flow.operations[call.first : call.end]}
        is_same = False
        if call.source is not None and call.output is not None and operations <= {*PASSING}:
            is_same = same_values(call.source, call.output)
        if call.value in scores or is_same:
            yield call.path


def _scores_from(value: int, operations: Sequence[Operation]) -> set[int]:
    """A value and those that operations compute from it; none if one of them has a kernel."""
    values = {value}
    for operation in operations:
        if values & {*operation.sources}:
            if operation.has_kernel:
                return set()
            values |= {*operation.results}
    return values


def _has_positions(shape: Sequence[int]) -> bool:
    """Whether a tensor has tokens or a map, and not a vector for each example."""
    return sum(length > 1 for length in shape[1:]) > 1


def _final_norm(calls: Sequence[Call], end: int, bottlenecks: Mapping[int, int]) -> str | None:
    """The normalization of tokens or maps after the last block."""
    for call in calls:
        is_leaf = not any(True for _ in call.module.children())
        shape = () if call.output is None else call.output.shape
        is_norm = is_leaf and "norm" in type(call.module).__name__.lower()
        is_single = not bottlenecks or call.value in bottlenecks
        if call.first > end and is_norm and len(shape) > 2 and _has_positions(shape) and is_single:
            return call.path
    return None
