"""Times implementations of the same work: each in a process of its own, in alternation.

Their results are compared before anything is timed. In each round the faster of two runs counts.
The median of the ratios within a round is reported, since the speed of a machine drifts.
"""

import contextlib
import importlib
import multiprocessing
import resource
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any, TypeAlias, TypeVar

import numpy as np


@dataclass(frozen=True)
class Ratio:
    """A ratio to report: of the first implementation, over the sum of others, and its target."""

    over: tuple[str, ...]  # names of implementations; none for the number itself
    target: float  # the largest that is good enough
    figure: str = "seconds"  # or "peak", of the whole process, or "growth", of a `Growth`
    name: str = "vit_tf"


@dataclass(frozen=True)
class Seconds:
    """In place of an answer: how long the work takes, from something that was measured."""

    value: float


@dataclass(frozen=True)
class Growth:
    """In place of an answer: by how many MB the memory of the process grew."""

    value: float


# Does the work once, and returns an array to compare, or None if there is none.
Run: TypeAlias = Callable[[], np.ndarray | list | float | Seconds | Growth | None]
Figures: TypeAlias = dict[str, float]  # of one run: "seconds", "peak" in GiB, perhaps "growth"
Runs: TypeAlias = dict[str, list[Figures]]  # by implementation, a dict for each round
T = TypeVar("T")


@dataclass(frozen=True)
class Benchmark:
    """Implementations of the same work, which prepare it and return a function that does it once.

    The function returns an array, None where there is nothing to compare, `Seconds` or `Growth`.
    """

    title: str
    implementations: dict[str, Callable[[], Run]]
    ratios: tuple[Ratio, ...]
    tolerance: float = 1e-3  # of answers, as a share of their largest value
    once: tuple[str, ...] = ()  # so slow that they run once
    rounds: int = 7


# The module of this folder that defines each benchmark.
_BY_MODULE = {
    "measurement_speed": "cka cka_stream cka_taps cka_paper measures one_pass every_statistic "
    "interventions interventions_small fields",
    "probes": "probes",
    "model_speed": "forward_vit_small forward_vit forward_bit training_vit training_vit_s "
    "training_bit",
    "input": "input input_tfds input_memory",
}
MODULES = {name: module for module, names in _BY_MODULE.items() for name in names.split()}


def without_answer(function: Callable[..., object], *arguments: Any, **options: Any) -> Run:
    """A run of a function whose results are not compared."""

    def run() -> None:
        function(*arguments, **options)

    return run


def benchmark_of(name: str) -> Benchmark:
    """The `Benchmark` of a name in `MODULES`."""
    return importlib.import_module(f"{__package__}.{MODULES[name]}").BENCHMARKS[name]


def _work(connection: Connection, benchmark: str, name: str) -> None:
    """The process of one implementation: a first run, then one round for each message."""
    try:
        run = benchmark_of(benchmark).implementations[name]()
        answer, figures = _timed(run)
        connection.send(("ran", (answer, figures)))
        while connection.recv() == "run":
            # The faster of two, since a process that waited for the others starts cold.
            pair = [_timed(run)[1] for _ in range(2)]
            connection.send(("ran", min(pair, key=lambda figures: figures["seconds"])))
    except Exception as error:  # whatever it is, it is the parent that reports it
        connection.send(("failed", f"{type(error).__name__}: {error}"))


def _timed(run: Run) -> tuple[np.ndarray | None, Figures]:
    """The answer of a run, and a dict of its figures: seconds, the peak memory so far in GiB ..."""
    start = time.perf_counter()
    answer = run()
    seconds = time.perf_counter() - start
    figures = {"seconds": seconds, "peak": peak_memory()}
    for kind, name in ((Seconds, "seconds"), (Growth, "growth")):
        if isinstance(answer, kind):
            answer, figures[name] = None, answer.value
    return None if answer is None else np.asarray(answer, np.float64), figures


def peak_memory() -> float:
    """Largest memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def apart(function: Callable[..., T], *arguments: Any) -> T:
    """What a function returns in a new process, so that peaks of memory do not add up."""
    with _ignoring_interrupts():
        pool = multiprocessing.get_context("spawn").Pool(1)
    with pool:
        return pool.apply(function, arguments)


@contextlib.contextmanager
def _ignoring_interrupts() -> Iterator[None]:
    """Processes that are started here ignore Ctrl-C, as it is this one that ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class ImplementationProcess:
    """A process that runs an implementation on request."""

    def __init__(self, benchmark: str, name: str) -> None:
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there, benchmark, name))
        with _ignoring_interrupts():
            self._process.start()
        there.close()

    def receive(self) -> Any:
        """What the process sends next; a RuntimeError if it failed or died."""
        try:
            kind, content = self._connection.recv()
        except EOFError:
            self._process.join()
            kind, content = "failed", f"it ended with status {self._process.exitcode}"
        if kind == "failed":
            raise RuntimeError(f"{self.name}: {content}")
        return content

    def run(self) -> Figures:
        """Seconds of one run and peak memory so far in GiB, as a dict."""
        self._connection.send("run")
        return self.receive()

    def stop(self) -> None:
        """End the process."""
        self._process.terminate()
        self._process.join()


def run_benchmark(
    benchmark_name: str, rounds: int | None = None, progress: Callable = lambda text: None
) -> tuple[Benchmark, dict, dict]:
    """(`Benchmark`, runs, reasons by absent implementation); a ValueError if results differ."""
    benchmark = benchmark_of(benchmark_name)
    rounds = rounds or benchmark.rounds
    started, answers, runs, absent = [], {}, {}, {}
    try:
        for name in benchmark.implementations:
            progress(f"{name} is prepared")
            implementation = ImplementationProcess(benchmark_name, name)
            started.append(implementation)
            try:
                answers[name], first = implementation.receive()
            except RuntimeError as error:
                absent[name] = str(error)
            else:
                if name in benchmark.once:
                    runs[name] = [first] * rounds
            if name in absent or name in benchmark.once:
                started.pop().stop()
        check_results(benchmark, answers)
        for number in range(rounds):
            for implementation in started:
                runs.setdefault(implementation.name, []).append(implementation.run())
            seconds = ", ".join(f"{name} {x[-1]['seconds']:.3g} s" for name, x in runs.items())
            progress(f"round {number + 1}: {seconds}")
        return benchmark, runs, absent
    finally:
        for implementation in started:
            implementation.stop()


def check_results(benchmark: Benchmark, answers: dict[str, np.ndarray | None]) -> None:
    """Raises a ValueError if an answer differs from the first by more than the tolerance."""
    given = {name: answer for name, answer in answers.items() if answer is not None}
    first = next(iter(given), None)
    for name, answer in given.items():
        expected = given[first]
        if answer.shape != expected.shape:
            raise ValueError(
                f"Expected results of one shape. Received: {expected.shape} from {first}, "
                f"{answer.shape} from {name}"
            )
        difference = np.abs(answer - expected).max() / np.abs(expected).max()
        if not difference <= benchmark.tolerance:
            raise ValueError(
                f"Expected results that differ by at most {benchmark.tolerance:g} of their largest "
                f"value. Received: {difference:.2g} between {first} and {name}"
            )


def ratio(runs: Runs, wanted: Ratio) -> np.ndarray:
    """The three quartiles of a `Ratio` over the rounds."""
    above, *parts = (
        np.array([run[wanted.figure] for run in runs[name]]) for name in (wanted.name, *wanted.over)
    )
    return np.quantile(above / (sum(parts) if parts else 1.0), [0.25, 0.5, 0.75])
