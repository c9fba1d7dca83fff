"""Kills runs of commands repeatedly and checks that nothing is lost.

A command is started, killed with SIGKILL at a random moment (at its start, in an epoch, as it
begins to write a file) and started again, until it ends. Training runs are stopped with SIGTERM
every other time, and must end within 30 seconds. After each kill, every file that the next run
would read is opened and checked, and a finished result, figure or model must not be computed again.
At the end, the files are compared with those of an uninterrupted run: weights, states, logs,
results and pictures bit for bit, those of a study to 1e-5, as TensorFlow may round a measurement
differently in a process that has trained models before.

If two workers train or measure together, the chief and the other are killed alternately; the
remaining one must stop by itself. Their numbers may differ from those of uninterrupted workers and
of one process: weights by 1e-4, results by 1e-5. Prints a table; the exit status is 1 if anything
differs. Needs Linux.

Examples:
    python benchmarks/fault_injection.py
    python benchmarks/fault_injection.py --what train --kills 50 --seed 1
    python benchmarks/fault_injection.py --what study --out out/fault-injection
    python benchmarks/fault_injection.py --what workers --options="--data cifar10 --take 50000"
"""

from __future__ import annotations

import dataclasses
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from signal import SIGKILL, SIGTERM
from typing import Any, TypeAlias

from benchmarks.killed_runs import Moment
from vit_tf.scripts.common import Arguments, Options

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import killed_runs
from benchmarks.killed_runs import Job, run_job
from vit_tf.scripts import common

Row: TypeAlias = dict[str, Any]  # of the table

TINY = "--image-size 16 --batch-size 60 --patch-size 8 --num-layers 2 --num-heads 2"
TINY += " --hidden-dim 64 --mlp-dim 128 --ema 0.9"
LONG = f"{TINY} --take 500 --epochs 12 --dropout-rate 0.1 --mixup 0.2 --cutmix 1.0 --flip --shift 1"
SHARED = f"{TINY} --take 400 --epochs 8"  # 360 images to train on: whole batches
MEASURED = "--take-test 60 --shots 3 --strategy none"
STUDY = f"--figures 1 {MEASURED} --image-size 16 --take 200 --epochs 1 --bit-epochs 1 --seeds 1"
JOBS = {
    "train": Job("train", f"{LONG} --strategy none --save-every 3", signals=(SIGKILL, SIGTERM)),
    "study": Job("study", STUDY, tolerance=1e-5),
    "analyze": Job("analyze", f"{{folder}}/model/model.keras --figures 1,3,7 {MEASURED}"),
    "workers": Job("train", f"{SHARED} --strategy multiworker", workers=2, tolerance=1e-4),
    "analyze-workers": Job(
        "analyze",
        f"{{folder}}/model/model.keras --figures 1,3,7 {MEASURED} --strategy multiworker",
        workers=2,
        tolerance=1e-5,
    ),
}
MODEL = Job("train", f"{TINY} --take 200 --epochs 1 --strategy none")  # the model to analyze


@dataclasses.dataclass
class Timing:
    """Seconds of an uninterrupted run until its first file, between two files, and in all."""

    start: float
    between: float
    seconds: float


def draw_moment(rng: random.Random, timing: Timing, workers: int = 1) -> Moment:
    """A random moment to kill a run, for `run_job`: at its start, at a file, between files."""
    # One of several workers is not killed before they are connected: others would wait for it.
    kinds = ("file", "file", "between", *(("start",) if workers == 1 else ()))
    kind, count = rng.choice(kinds), rng.randint(1, 6)
    if kind == "start":
        return 0, rng.uniform(0, timing.start)
    return count, rng.uniform(0, 0.01 if kind == "file" else 4 * timing.between)


def uninterrupted(job: Job, folder: Path) -> Timing:
    """Run a job to its end in a new folder; its `Timing`."""
    folder.mkdir(parents=True)
    _, times, _ = run_job(job, folder)
    return Timing(times[0], (times[-1] - times[0]) / len(times), times[-1])


def run_with_kills(
    job: Job, kills: int, rng: random.Random, folder: Path, reference: Path, timing: Timing
) -> tuple[Row, list[str]]:
    """(Row of the table, problems) of a run killed up to `kills` times and an uninterrupted one."""
    folder.mkdir(parents=True)
    start, done, killed, problems, finished, within = time.monotonic(), [], True, [], {}, 0
    while killed:
        moment = draw_moment(rng, timing, job.workers) if len(done) < kills else None
        victim = len(done) % job.workers
        number = job.signals[len(done) % len(job.signals)]
        killed, _, lines = run_job(job, folder, moment, victim, number)
        done += [victim] * killed
        within += killed and any(folder.glob("state/*-step-*.npz"))
        lines += killed_runs.problems_of(folder)
        before, finished = finished, killed_runs.made_once(folder)
        changed = [name for name, stamp in before.items() if finished.get(name) != stamp]
        lines += [f"{name} was finished, and is lost or made again" for name in changed]
        problems += [f"after kill {len(done)}: {line}" for line in lines]
    largest, compared, differing = killed_runs.compare(folder, reference, job.tolerance)
    row = {"run": folder.name, "kills": len(done), "of the chief": done.count(0)}
    row |= {"resumed within an epoch": within}
    row |= {"seconds": round(time.monotonic() - start), "uninterrupted (s)": round(timing.seconds)}
    row |= {"largest difference": f"{largest:.3g}"}
    row |= {"files": compared, "the same": compared - len(differing)}
    return row, problems + differing


def inject_faults(
    name: str, job: Job, kills: int, seed: int, out: Path, compare_alone: bool = True
) -> tuple[list[Row], list[str]]:
    """(Rows of the table, problems) of a job run again and again until there were so many kills."""
    reference, rng = out / f"{name}-uninterrupted", random.Random(f"{name}{seed}")
    if "{folder}" in job.arguments:
        uninterrupted(MODEL, out / "model")
        job = dataclasses.replace(job, arguments=job.arguments.format(folder=out))
    timing = uninterrupted(job, reference)
    rows, problems = [], []
    if job.workers > 1 and compare_alone:
        alone = dataclasses.replace(job, arguments=f"{job.arguments} --strategy none", workers=1)
        uninterrupted(alone, out / f"{name}-alone")
        problems += killed_runs.compare(reference, out / f"{name}-alone", job.tolerance)[2]
    while (left := kills - sum(row["kills"] for row in rows)) > 0:
        folder = out / f"{name}-{len(rows) + 1}"
        row, lines = run_with_kills(job, left, rng, folder, reference, timing)
        rows.append(row)
        problems += [f"{folder.name}: {problem}" for problem in lines]
    return rows, problems


def table(rows: Sequence[Row]) -> str:
    """Rows, dicts of the same keys, as text in columns."""
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    pad = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(pad)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    more = "; 1 if anything was lost or differs"
    section = {
        "--what": {"choices": (*JOBS, "all"), "default": "all", "help": "command to kill"},
        "--kills": common.integer("number of kills of each", default=20),
        "--seed": common.integer("seed of the moments", default=0),
        "--options": common.named(
            "further options of the command, such as '--data cifar10 --take 50000'",
            "OPTIONS",
            default="",
        ),
        "--not-alone": {
            "action": "store_true",
            "help": "do not compare workers with one process, whose batches of TFDS data are "
            "others",
        },
        **common.output("new folder to keep the runs in (default: a temporary one)"),
    }
    name = "python benchmarks/fault_injection.py"
    parser = common.make_parser(name, __doc__, {"run": section}, more=more)
    options = parser.parse_args(arguments)
    if options.kills < 1:
        parser.error(f"Expected --kills to be at least 1. Received: {options.kills}")
    if options.out and options.out.exists():
        parser.error(f"Expected --out to be a new folder. Received: {options.out}")
    return options


def main(arguments: Arguments = None) -> int:
    """Run the command; its exit status, 1 if anything was lost or differs."""
    return common.run_command(parse, run, arguments, describe_runs)


def describe_runs(options: Options) -> str:
    """What is saved if this is stopped."""
    if options.out and options.out.exists():
        return f"{options.out} holds the runs so far; a new run needs another --out"
    return common.NOTHING_SAVED


def run(options: Options) -> int:
    """Inject faults, print the table and the problems; the exit status."""
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary) / "fault-injection"
        rows, problems = [], []
        for name in JOBS if options.what == "all" else [options.what]:
            job = dataclasses.replace(
                JOBS[name], arguments=f"{JOBS[name].arguments} {options.options}"
            )
            more, lines = inject_faults(
                name, job, options.kills, options.seed, out, not options.not_alone
            )
            rows, problems = rows + more, problems + lines
    print(table(rows))
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
