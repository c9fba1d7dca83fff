"""Kills trainings and studies again and again and checks that nothing is lost.

A real script is started, killed with SIGKILL at a random moment (while it starts, in an epoch,
when it begins to write a file) and started again, until it ends. After each kill every file that
the next run would take for whole is opened and checked; in the end the files are compared with
those of an undisturbed run: weights, states, results and pictures bit for bit. Prints a table; the
exit status is 1 if anything differs. Needs Linux.

Examples:
    python scripts/endurance.py
    python scripts/endurance.py --what train --kills 50 --seed 1
    python scripts/endurance.py --what study --out out/endurance
"""

import argparse
import dataclasses
import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import endurance_files as files

SCRIPTS = Path(__file__).parent
PATIENCE = 600  # seconds that a run may take
SMALL = "--image-size 16 --take 500 --epochs 12 --batch-size 100 --patch-size 8 --num-layers 2"
SMALL += " --num-heads 2 --hidden-dim 64 --mlp-dim 128 --dropout-rate 0.1 --ema 0.9"
MIXED = " --mixup 0.2 --cutmix 1.0 --flip --shift 1 --strategy none"
STUDY = "--figures 1 --image-size 16 --take 300 --take-test 120 --epochs 2 --bit-epochs 2"
STUDY += " --seeds 1 --shots 5 --strategy none"
JOBS = {"train": SMALL + MIXED, "study": STUDY}


@dataclasses.dataclass
class Pace:
    """Seconds that an undisturbed run took until its first file, and between two files."""

    start: float
    between: float
    seconds: float


def commands_of(script, arguments, out):
    """The commands of the processes that together are one run: list of lists of words."""
    return [[sys.executable, str(SCRIPTS / f"{script}.py"), *arguments.split(), "--out", str(out)]]


def start_job(commands, log):
    """Start the processes of a run, each in a group of its own; list of `Popen`."""
    return [
        subprocess.Popen(c, stdout=log, stderr=subprocess.STDOUT, start_new_session=True)
        for c in commands
    ]


def kill_job(processes):
    """Kill every process of a run, and their children, at once."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
    for process in processes:
        process.wait()


def is_over(processes):
    """Whether every process of a run has ended."""
    return all(process.poll() is not None for process in processes)


def run_job(commands, out, log, moment=None):
    """Start a run and, unless it ends before, kill it at a moment.

    Args:
        commands: those of `commands_of`.
        out: the run's folder, which is there.
        log: file that its output is added to.
        moment: (files, seconds): killed so long after so many temporary files have appeared.

    Returns:
        Whether it was killed, and seconds from the start to each temporary file and to the end.

    Raises:
        RuntimeError: if it fails, or does not end.
    """
    start, seen, deadline = time.monotonic(), [], None
    with files.Watch(out) as watch, open(log, "ab") as output:
        processes = start_job(commands, output)
        try:
            while not is_over(processes):
                now = time.monotonic()
                if moment and deadline is None and len(seen) >= moment[0]:
                    deadline = now + moment[1]
                if deadline is not None and now >= deadline:
                    break
                if now - start > PATIENCE:
                    raise RuntimeError(f"no end after {PATIENCE} seconds; see {log}")
                names = watch.wait(0.05 if deadline is None else min(0.05, deadline - now))
                seen += [time.monotonic() - start] * len(names)
        finally:
            kill_job(processes)
    seen.append(time.monotonic() - start)
    codes = {process.returncode for process in processes}
    if codes - {0, -signal.SIGKILL}:
        raise RuntimeError(f"exit status {sorted(codes)}; see {log}")
    return -signal.SIGKILL in codes, seen


def draw_moment(rng, pace):
    """A moment to kill a run at, as `run_job` takes it: in its start, at a file, between files."""
    kind, count = rng.choice(("start", "file", "file", "between")), rng.randint(1, 6)
    if kind == "start":
        return 0, rng.uniform(0, pace.start)
    return count, rng.uniform(0, 0.01 if kind == "file" else 4 * pace.between)


def torment(script, arguments, kills, rng, folder, reference, pace):
    """Kill one run up to so many times, let it end, and compare it with the undisturbed one.

    Returns:
        dict with the row of the table, and list of problems.
    """
    folder.mkdir(parents=True)
    commands, log = commands_of(script, arguments, folder), folder.with_suffix(".log")
    start, done, alive, problems, kept = time.monotonic(), 0, True, [], set()
    while alive:
        moment = draw_moment(rng, pace) if done < kills else None
        alive, _ = run_job(commands, folder, log, moment)
        done += alive
        problems += [f"after kill {done}: {line}" for line in files.problems_of(folder)]
        here = {name for name in files.finished(folder) if not name.startswith("state")}
        here = {name for name in here if "/state/" not in name}
        problems += [f"after kill {done}: {name} is lost" for name in sorted(kept - here)]
        kept = here
    largest, compared, differing = files.compare(folder, reference)
    row = {"run": folder.name, "kills": done, "seconds": round(time.monotonic() - start)}
    row |= {"undisturbed (s)": round(pace.seconds), "largest difference": f"{largest:.3g}"}
    row |= {"files": compared, "the same": compared - len(differing)}
    return row, problems + differing


def endure(script, kills, seed, out, arguments=None):
    """Torment runs of a script until so many kills are done.

    Returns:
        List of rows of the table, and list of problems.
    """
    arguments = arguments or JOBS[script]
    reference, rng = out / f"{script}-undisturbed", random.Random(f"{script}{seed}")
    reference.mkdir(parents=True)
    commands, log = commands_of(script, arguments, reference), reference.with_suffix(".log")
    _, seen = run_job(commands, reference, log)
    pace = Pace(seen[0], (seen[-1] - seen[0]) / len(seen), seen[-1])
    rows, problems = [], []
    while (left := kills - sum(row["kills"] for row in rows)) > 0:
        folder = out / f"{script}-{len(rows) + 1}"
        row, found = torment(script, arguments, left, rng, folder, reference, pace)
        rows.append(row)
        problems += [f"{folder.name}: {problem}" for problem in found]
    return rows, problems


def table(rows):
    """Rows, dicts of the same keys, as text in columns."""
    cells = [list(rows[0]), *([str(value) for value in row.values()] for row in rows)]
    widths = [max(len(line[i]) for line in cells) for i in range(len(cells[0]))]
    pad = ["  ".join(c.rjust(w) for c, w in zip(line, widths, strict=True)) for line in cells]
    return "\n".join(pad)


def parse(arguments=None):
    """The options of the command line."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    add = parser.add_argument
    add("--what", choices=(*JOBS, "all"), default="all", help="what is killed; all by default")
    add("--kills", type=int, default=20, help="of each; 20 by default")
    add("--seed", type=int, default=0, help="of the moments; 0 by default")
    add("--out", type=Path, help="new folder to keep the runs in; a temporary one if not given")
    options = parser.parse_args(arguments)
    if options.kills < 1:
        parser.error(f"Expected --kills to be at least 1. Received: {options.kills}")
    if options.out and options.out.exists():
        parser.error(f"Expected --out to be a new folder. Received: {options.out}")
    return options


def main(arguments=None):
    """Kill as told on the command line; the exit status, 1 if anything was lost or differs."""
    options = parse(arguments)
    # So that ending this process ends the run that it is at.
    signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(128 + number))
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary) / "endurance"
        rows, problems = [], []
        for script in JOBS if options.what == "all" else [options.what]:
            more, found = endure(script, options.kills, options.seed, out)
            rows, problems = rows + more, problems + found
    print(table(rows))
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
