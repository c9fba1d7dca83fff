"""A fair race: each contestant in a process of its own, one after the other in turns.

All answers are compared before anything is timed. In each turn the faster of two runs counts. What
is reported is the median of the ratios of the same turn, since the speed of a machine drifts.
"""

import contextlib
import importlib
import multiprocessing
import resource
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class Ratio:
    """A ratio to report: of the first contestant, over the sum of others, and its target.

    Attributes:
        over: names of the contestants; none for the number itself.
        target: the largest ratio that is good enough.
        what: `"seconds"`, `"peak"`, of the whole process, or `"growth"`, of a `Growth`.
        of: name of the contestant above the line.
    """

    over: tuple[str, ...]
    target: float
    what: str = "seconds"
    of: str = "vit_tf"


@dataclass(frozen=True)
class Seconds:
    """In place of an answer: how long the work takes, from something that was measured."""

    value: float


@dataclass(frozen=True)
class Growth:
    """In place of an answer: by how many MB the memory of the process grew."""

    value: float


@dataclass(frozen=True)
class Contest:
    """Contestants that do the same work.

    Attributes:
        title: what is measured.
        contestants: dict from a name to a function that gets everything ready and returns a
            function of nothing, which does the work once and returns its answer: an array, None
            where there is nothing to compare, `Seconds` or `Growth`.
        ratios: what to report.
        tolerance: largest difference of answers, as a share of their largest value.
        once: names of contestants so slow that they run once.
        rounds: number of turns by default.
    """

    title: str
    contestants: dict[str, Callable]
    ratios: tuple[Ratio, ...]
    tolerance: float = 1e-3
    once: tuple[str, ...] = ()
    rounds: int = 7


def contest_of(module):
    """The `Contest` of a module of this folder, by its name."""
    return importlib.import_module(f"{__package__}.{module}").CONTEST


def _work(connection, module, name):
    """The process of one contestant: one run when it is ready, then one turn for each message."""
    try:
        run = contest_of(module).contestants[name]()
        answer, figures = _timed(run)
        connection.send(("ran", (answer, figures)))
        while connection.recv() == "run":
            # The faster of two, since what has waited for the others' turns starts cold.
            pair = [_timed(run)[1] for _ in range(2)]
            connection.send(("ran", min(pair, key=lambda figures: figures["seconds"])))
    except Exception as error:  # whatever it is, it is the parent that reports it
        connection.send(("failed", f"{type(error).__name__}: {error}"))


def _timed(run):
    """The answer of a run, and a dict of its figures: seconds, the peak memory so far in GiB ..."""
    start = time.perf_counter()
    answer = run()
    seconds = time.perf_counter() - start
    figures = {"seconds": seconds, "peak": peak_memory()}
    for kind, name in ((Seconds, "seconds"), (Growth, "growth")):
        if isinstance(answer, kind):
            answer, figures[name] = None, answer.value
    return None if answer is None else np.asarray(answer, np.float64), figures


def peak_memory():
    """Largest memory of this process so far, in GiB."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024**2


def apart(function, *arguments):
    """What a function returns in a new process, so that peaks of memory do not add up."""
    with _deaf_children():
        pool = multiprocessing.get_context("spawn").Pool(1)
    with pool:
        return pool.apply(function, arguments)


@contextlib.contextmanager
def _deaf_children():
    """Processes that are started here ignore Ctrl-C, as it is this one that ends them."""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Contestant:
    """A process that does the work of a contestant whenever it is told to."""

    def __init__(self, module, name):
        context = multiprocessing.get_context("spawn")
        self.name = name
        self._connection, there = context.Pipe()
        self._process = context.Process(target=_work, args=(there, module, name))
        with _deaf_children():
            self._process.start()
        there.close()

    def receive(self):
        """What the process sends next.

        Raises:
            RuntimeError: if it failed or died.
        """
        try:
            kind, content = self._connection.recv()
        except EOFError:
            self._process.join()
            kind, content = "failed", f"it ended with status {self._process.exitcode}"
        if kind == "failed":
            raise RuntimeError(f"{self.name}: {content}")
        return content

    def run(self):
        """Seconds of one run and peak memory so far in GiB, as a dict."""
        self._connection.send("run")
        return self.receive()

    def stop(self):
        """End the process."""
        self._process.terminate()
        self._process.join()


def hold(module, rounds=None, progress=lambda text: None):
    """Hold the contest of a module of this folder.

    Returns:
        Tuple of the `Contest`, dict from contestant to the list of its runs, and dict from the
        contestants that could not take part to the reason.

    Raises:
        ValueError: if the answers differ.
    """
    contest = contest_of(module)
    rounds = rounds or contest.rounds
    started, answers, runs, absent = [], {}, {}, {}
    try:
        for name in contest.contestants:
            progress(f"{name} gets ready")
            contestant = Contestant(module, name)
            started.append(contestant)
            try:
                answers[name], first = contestant.receive()
            except RuntimeError as error:
                absent[name] = str(error)
            else:
                if name in contest.once:
                    runs[name] = [first] * rounds
            if name in absent or name in contest.once:
                started.pop().stop()
        check_answers(contest, answers)
        for number in range(rounds):
            for contestant in started:
                runs.setdefault(contestant.name, []).append(contestant.run())
            seconds = ", ".join(f"{name} {of[-1]['seconds']:.3g} s" for name, of in runs.items())
            progress(f"turn {number + 1}: {seconds}")
        return contest, runs, absent
    finally:
        for contestant in started:
            contestant.stop()


def check_answers(contest, answers):
    """Raises a ValueError if an answer differs from the first by more than the tolerance."""
    given = {name: answer for name, answer in answers.items() if answer is not None}
    first = next(iter(given), None)
    for name, answer in given.items():
        one = given[first]
        if answer.shape != one.shape:
            raise ValueError(
                f"Expected answers of one shape. Received: {one.shape} from {first}, "
                f"{answer.shape} from {name}"
            )
        difference = np.abs(answer - one).max() / np.abs(one).max()
        if not difference <= contest.tolerance:
            raise ValueError(
                f"Expected answers that differ by at most {contest.tolerance:g} of their largest "
                f"value. Received: {difference:.2g} between {first} and {name}"
            )


def ratio(runs, wanted):
    """The three quartiles of a `Ratio` over the turns; its middle one is the median."""
    above = np.array([run[wanted.what] for run in runs[wanted.of]])
    parts = [np.array([run[wanted.what] for run in runs[name]]) for name in wanted.over]
    return np.quantile(above / (sum(parts) if parts else 1.0), [0.25, 0.5, 0.75])
