"""Kills trainings, studies and analyses again and again and checks that nothing is lost.

A real script is started, killed with SIGKILL at a random moment (while it starts, in an epoch,
when it begins to write a file) and started again, until it ends. A training is stopped with SIGTERM
in every other turn, and must end within 30 seconds. After each kill every file that
the next run would take for whole is opened and checked, and a result, figure or model that was
finished must not be made again. In the end the files are compared with those of an undisturbed run:
weights, states, logs, results and pictures bit for bit, those of a study to 1e-5, as TensorFlow may
round a measurement otherwise in a process that has trained models before.

Of two workers that train together the chief and the other are killed in turn; the one that is left
must stop by itself. The weights may differ by 1e-4 from those of undisturbed workers and of one
process. Prints a table; the exit status is 1 if anything differs. Needs Linux.

Examples:
    vit-tf endurance
    vit-tf endurance --what train --kills 50 --seed 1
    vit-tf endurance --what study --out out/endurance
"""

import dataclasses
import random
import sys
import tempfile
import time
from pathlib import Path
from signal import SIGKILL, SIGTERM

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from vit_tf.scripts import common, option_groups
from vit_tf.scripts.kills import files
from vit_tf.scripts.kills.processes import Job, run_job

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
}
ONCE = Job("train", f"{TINY} --take 200 --epochs 1 --strategy none")  # makes what is analysed
ALONE = Job("train", f"{SHARED} --strategy none", tolerance=1e-4)  # what two workers amount to


@dataclasses.dataclass
class Pace:
    """Seconds that an undisturbed run took until its first file, and between two files."""

    start: float
    between: float
    seconds: float


def draw_moment(rng, pace, workers=1):
    """A moment to kill a run at, as `run_job` takes it: in its start, at a file, between files.

    One of several workers is not killed before they have met: the others would wait for it.
    """
    kinds = ("file", "file", "between", *(("start",) if workers == 1 else ()))
    kind, count = rng.choice(kinds), rng.randint(1, 6)
    if kind == "start":
        return 0, rng.uniform(0, pace.start)
    return count, rng.uniform(0, 0.01 if kind == "file" else 4 * pace.between)


def undisturbed(job, folder):
    """Run a job to its end in a new folder; its `Pace`."""
    folder.mkdir(parents=True)
    _, seen, _ = run_job(job, folder)
    return Pace(seen[0], (seen[-1] - seen[0]) / len(seen), seen[-1])


def torment(job, kills, rng, folder, reference, pace):
    """Kill one run up to so many times, let it end, and compare it with the undisturbed one.

    Returns:
        dict with the row of the table, and list of problems.
    """
    folder.mkdir(parents=True)
    start, done, alive, problems, kept, within = time.monotonic(), [], True, [], {}, 0
    while alive:
        moment = draw_moment(rng, pace, job.workers) if len(done) < kills else None
        victim = len(done) % job.workers
        number = job.signals[len(done) % len(job.signals)]
        alive, _, found = run_job(job, folder, moment, victim, number)
        done += [victim] * alive
        within += alive and any(folder.glob("state/*-step-*.npz"))
        found += files.problems_of(folder)
        here = files.made_once(folder)
        changed = [name for name, stamp in kept.items() if here.get(name) != stamp]
        found += [f"{name} was finished, and is lost or made again" for name in changed]
        problems += [f"after kill {len(done)}: {line}" for line in found]
        kept = here
    largest, compared, differing = files.compare(folder, reference, job.tolerance)
    row = {"run": folder.name, "kills": len(done), "of the chief": done.count(0)}
    row |= {"goes on within an epoch": within}
    row |= {"seconds": round(time.monotonic() - start), "undisturbed (s)": round(pace.seconds)}
    row |= {"largest difference": f"{largest:.3g}"}
    row |= {"files": compared, "the same": compared - len(differing)}
    return row, problems + differing


def endure(name, job, kills, seed, out):
    """Torment runs of a job until so many kills are done.

    Returns:
        List of rows of the table, and list of problems.
    """
    reference, rng = out / f"{name}-undisturbed", random.Random(f"{name}{seed}")
    if "{folder}" in job.arguments:
        undisturbed(ONCE, out / "model")
        job = dataclasses.replace(job, arguments=job.arguments.format(folder=out))
    pace = undisturbed(job, reference)
    rows, problems = [], []
    if job.workers > 1:
        undisturbed(ALONE, out / f"{name}-alone")
        problems += files.compare(reference, out / f"{name}-alone", ALONE.tolerance)[2]
    while (left := kills - sum(row["kills"] for row in rows)) > 0:
        folder = out / f"{name}-{len(rows) + 1}"
        row, found = torment(job, left, rng, folder, reference, pace)
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
    more = "; 1 if anything was lost or differs"
    parser = option_groups.make_parser("endurance", __doc__, more)
    add = parser.group("run")
    add("--what", choices=(*JOBS, "all"), default="all", help="what is killed")
    add("--kills", type=int, default=20, help="how often each is killed")
    add("--seed", type=int, default=0, help="of the moments")
    keep = "new folder to keep the runs in (default: a temporary one)"
    add("--out", type=Path, metavar="FOLDER", help=keep)
    options = parser.parse_args(arguments)
    if options.kills < 1:
        parser.error(f"Expected --kills to be at least 1. Received: {options.kills}")
    if options.out and options.out.exists():
        parser.error(f"Expected --out to be a new folder. Received: {options.out}")
    return options


def main(arguments=None):
    """Kill as told on the command line; the exit status, 1 if anything was lost or differs."""
    return common.run_script(parse, run, arguments, kept)


def kept(options):
    """What is left if this is stopped."""
    if options.out and options.out.exists():
        return f"{options.out} keeps the runs so far; a new one needs another --out"
    return common.NOTHING_KEPT


def run(options):
    """Kill, print the table and the problems; the exit status."""
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary) / "endurance"
        rows, problems = [], []
        for name in JOBS if options.what == "all" else [options.what]:
            more, found = endure(name, JOBS[name], options.kills, options.seed, out)
            rows, problems = rows + more, problems + found
    print(table(rows))
    for problem in problems:
        print(f"problem: {problem}")
    return 1 if problems else 0


if __name__ == "__main__":
    sys.exit(main())
