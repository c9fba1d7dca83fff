"""Profiles a command: where `vit-tf analyze` and `vit-tf study` spend their time.

The command runs in this process, one pass after another, with clocks around the functions that
import, read, trace, compile and compute. Each second counts once, for the innermost of them. The
first call of a function is repeated: the time by which it exceeds the second is compiling.
Processor seconds are those of all threads.

Examples:
    python benchmarks/analysis_profile.py analyze vit-cls-cifar10 bit-cifar10 --data cifar10
    python benchmarks/analysis_profile.py study --out study
"""

from __future__ import annotations

import functools
import importlib
import resource
import sys
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, TypeVar

if TYPE_CHECKING:
    from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction

    from vit_tf.analysis.figures.measure import Measurement

STARTED = time.perf_counter()

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

REST = "other Python"
KINDS = ("importing", "reading models and images", "tracing", "compiling", "forward passes")
KINDS += ("passes with gradients", "pictures", "page", REST, "pictures, in other processes")
KINDS += ("repeated by this profile",)
FORWARD, GRADIENTS, REPEATED = KINDS[4], KINDS[5], KINDS[-1]
# The functions of each kind, by module; of those that are not there nothing is counted.
CLOCKED = {
    "reading models and images": {
        "vit_tf": ("load",),
        "vit_tf.data": ("load", "few_shot"),
        "tensorflow.python.data.ops.iterator_ops": ("OwnedIterator.__next__",),
    },
    "tracing": {
        "tensorflow.python.framework.func_graph": ("func_graph_from_py_func",),
        "vit_tf.features.submodels": ("submodel",),
        "vit_tf": ("submodel",),
    },
    "pictures": {
        "vit_tf.analysis.report.drawing": ("draw",),
        "vit_tf.analysis.report.assemble": ("draw", "draw_overview"),
    },
    "page": {"vit_tf.analysis.report.assemble": ("write_report", "compare", "evaluate")},
}


P = ParamSpec("P")
T = TypeVar("T")


class Clock:
    """Wall and processor seconds of nested kinds of work in the main thread."""

    def __init__(self) -> None:
        self.seconds = {kind: [0.0, 0.0] for kind in KINDS}
        self.calls = dict.fromkeys(KINDS, 0)
        self._kinds, self._last = [REST], self._now()

    def _now(self) -> tuple[float, float]:
        usage = resource.getrusage(resource.RUSAGE_SELF)
        return time.perf_counter(), usage.ru_utime + usage.ru_stime

    def advance(self) -> list[float]:
        """Counts wall and processor seconds since the last change for the present kind."""
        now = self._now()
        passed = [new - old for new, old in zip(now, self._last, strict=True)]
        total = self.seconds[self._kinds[-1]]
        self.seconds[self._kinds[-1]] = [a + b for a, b in zip(total, passed, strict=True)]
        self._last = now
        return passed

    def total(self) -> list[float]:
        """Wall and processor seconds until now, without those of repeated calls."""
        self.advance()
        counted = [value for kind, value in self.seconds.items() if kind != REPEATED]
        return [sum(column) for column in zip(*counted, strict=True)]

    def __call__(self, kind: str, function: Callable[P, T]) -> Callable[P, T]:
        """A function whose time counts for a kind."""

        @functools.wraps(function)
        def timed(*args: P.args, **kwargs: P.kwargs) -> T:
            if threading.current_thread() is not threading.main_thread():
                return function(*args, **kwargs)
            self.advance()
            self._kinds.append(kind)
            self.calls[kind] += 1
            try:
                return function(*args, **kwargs)
            finally:
                self.advance()
                self._kinds.pop()

        return timed

    def move(self, seconds: Sequence[float], source: str, target: str) -> None:
        """Counts wall and processor seconds for another kind than they were counted for."""
        for which, value in enumerate(seconds):
            self.seconds[source][which] -= value
            self.seconds[target][which] += value


def clock_functions(clock: Clock) -> None:
    """Puts clocks around the functions of `CLOCKED`, imports and calls of compiled functions."""
    bootstrap = importlib._bootstrap
    bootstrap._find_and_load = clock("importing", bootstrap._find_and_load)
    for kind, modules in CLOCKED.items():
        for module, names in modules.items():
            for name in names:
                owner, _, attribute = name.rpartition(".")
                holder = importlib.import_module(module)
                holder = getattr(holder, owner) if owner else holder
                setattr(holder, attribute, clock(kind, getattr(holder, attribute)))
    clock_calls(clock)


def clock_passes(clock: Clock) -> dict[str, list[float]]:
    """Counts wall and processor seconds of each pass: a dict from its title, filled meanwhile."""
    from vit_tf.analysis.figures import measure

    make, passes = measure._make, {}

    def timed(measurements: Sequence[Measurement], *args: Any, **kwargs: Any) -> Any:
        before = clock.total()
        made = make(measurements, *args, **kwargs)
        passes[measure._title(measurements)] = difference(clock.total(), before)
        return made

    measure._make = timed
    return passes


def clock_calls(clock: Clock) -> None:
    """Puts clocks around calls of compiled TensorFlow functions, the first of each apart."""
    from tensorflow import executing_eagerly
    from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction

    call, kinds = AtomicFunction.call_flat, {}

    def call_flat(self, *args: Any) -> Any:
        # A function that is being traced only adds its calls to its graph.
        if threading.current_thread() is not threading.main_thread() or not executing_eagerly():
            return call(self, *args)
        kind, is_first = kinds.get(self.name), self.name not in kinds
        if is_first:
            kind = kinds[self.name] = GRADIENTS if has_gradients(self) else FORWARD
        before = list(clock.seconds[kind])
        result = clock(kind, call)(self, *args)
        if is_first:
            first = difference(clock.seconds[kind], before)
            before = list(clock.seconds[REPEATED])
            clock(REPEATED, call)(self, *args)
            again = difference(clock.seconds[REPEATED], before)
            clock.move([max(0.0, gap) for gap in difference(first, again)], kind, "compiling")
        return result

    AtomicFunction.call_flat = call_flat


def has_gradients(function: AtomicFunction) -> bool:
    """Whether a graph, or a function that it calls, has gradients."""
    text = function.graph.as_graph_def()
    nodes = [*text.node, *(node for inner in text.library.function for node in inner.node_def)]
    return any("gradient_tape" in node.name for node in nodes)


def difference(first: Sequence[float], second: Sequence[float]) -> list[float]:
    """Differences of pairs of numbers."""
    return [a - b for a, b in zip(first, second, strict=True)]


def table(clock: Clock, passes: dict[str, list[float]], seconds: float, peak: float) -> str:
    """Wall and processor seconds of each kind, and of each pass of over a second, as Markdown."""
    lines = ["| what | calls | wall (s) | processor (s) |", "| --- | --- | --- | --- |"]
    shown = {kind: value for kind, value in clock.seconds.items() if sum(value) > 0}
    for kind, (wall, processor) in shown.items():
        lines.append(f"| {kind} | {clock.calls[kind]} | {wall:.1f} | {processor:.1f} |")
    repeated = clock.seconds[REPEATED]
    processor = sum(value[1] for value in shown.values()) - repeated[1]
    lines.append(f"| total without repeats | | {seconds - repeated[0]:.1f} | {processor:.1f} |")
    lines += ["", "| pass | wall (s) | processor (s) |", "| --- | --- | --- |"]
    long = {title: value for title, value in passes.items() if max(value) >= 1}
    lines += [f"| {title} | {wall:.1f} | {cpu:.1f} |" for title, (wall, cpu) in long.items()]
    return "\n".join([*lines, "", f"Peak memory of the process: {peak / 2**20:.2f} GiB"])


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command under the clocks, then print the table; the command's exit status."""
    clock = Clock()
    clock.seconds["importing"][0] += time.perf_counter() - STARTED
    clock("importing", importlib.import_module)("tensorflow")
    clock_functions(clock)
    passes = clock_passes(clock)
    from vit_tf.__main__ import main as run

    status = run(sys.argv[1:] if arguments is None else arguments)
    clock.advance()
    children = resource.getrusage(resource.RUSAGE_CHILDREN)
    clock.seconds["pictures, in other processes"][1] = children.ru_utime + children.ru_stime
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    print(table(clock, passes, time.perf_counter() - STARTED, peak))
    return status


if __name__ == "__main__":
    sys.exit(main())
