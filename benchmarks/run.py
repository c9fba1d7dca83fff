"""Measures speed and memory against other packages, and how they scale.

Each comparison runs every package in a process of its own, in alternation. Results are compared
before anything is timed. The table shows the median of the ratios of runs in the same round, with
quartiles: below 1 this package is faster or uses less memory. Other packages: pip install
'vit_tf[bench]'.

Examples:
    python benchmarks/run.py
    python benchmarks/run.py --list
    python benchmarks/run.py --what forward_vit,cka --rounds 15
    python benchmarks/run.py --what growth --out growth.png
"""

from __future__ import annotations

import sys
from pathlib import Path

from vit_tf.scripts.common import Arguments, Options

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from benchmarks import growth, harness
from vit_tf.common.names import lookup
from vit_tf.scripts import common

WORDS = {"seconds": "time", "peak": "memory", "growth": "growth of memory"}
UNITS = {"seconds": " s", "peak": " GiB", "growth": " MB"}
HEADER = """| what | compared with | ratio (quartiles) | target | |
| --- | --- | --- | --- | --- |"""


def main(arguments: Arguments = None) -> int:
    """Run the command; its exit status."""
    return common.run_command(parse, run, arguments, backends=None)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    sections = {
        "comparisons": {
            "--what": common.named(
                "these, or growth", "NAME,NAME", default=",".join(harness.MODULES)
            ),
            "--rounds": common.integer("rounds of each comparison (default: its own)"),
        },
        "run": {
            "--list": {"action": "store_true", "help": "list the comparisons and exit"},
            **common.output("file of the picture of growth", "FILE", default=Path("growth.png")),
        },
    }
    parser = common.make_parser("python benchmarks/run.py", __doc__, sections)
    options = parser.parse_args(arguments)
    options.what = options.what.split(",")
    names = (*harness.MODULES, "growth")
    for name in options.what:
        lookup("--what", name, dict.fromkeys(names))
    common.require_at_least(options, rounds=1)
    return options


def run(options: Options) -> None:
    """List, or measure and print the table."""
    if options.list:
        for name in harness.MODULES:
            print(f"{name:14} {harness.benchmark_of(name).title}")
        print(f"{'growth':14} time and memory against images, activations, tokens and replicas")
        return
    rows = []
    for name in options.what:
        if name == "growth":
            rows += grow(options.out)
            continue
        say(name)
        benchmark, runs, absent = harness.run_benchmark(name, options.rounds, say)
        rows += [describe(benchmark, runs, absent, wanted) for wanted in benchmark.ratios]
    print("\n".join([HEADER, *rows]))


def describe(
    benchmark: harness.Benchmark, runs: harness.Runs, absent: dict[str, str], wanted: harness.Ratio
) -> str:
    """A row of the table."""
    part = "" if wanted.name == "vit_tf" else f", {wanted.name}"
    title = f"{benchmark.title}{part}: {WORDS[wanted.figure]}"
    others = " + ".join(wanted.over)
    missing = [absent[name] for name in (wanted.name, *wanted.over) if name in absent]
    if missing:
        return f"| {title} | {others} | not measured: {'; '.join(missing)} | {wanted.target} | |"
    low, middle, high = harness.ratio(runs, wanted)
    unit = "" if others else UNITS[wanted.figure]
    target = f"{wanted.target:g}{unit}" if wanted.target < float("inf") else ""
    outcome = "" if not target else "met" if middle <= wanted.target else "missed"
    spread = f" ({low:.2f} to {high:.2f})" if len(runs[wanted.name]) > 1 else ""
    return f"| {title} | {others} | {middle:.2f}{unit}{spread} | {target} | {outcome} |"


def grow(path: Path) -> list[str]:
    """Draws the growth; rows of the table that compare the largest size with the smallest."""
    points_of = growth.measure(say)
    growth.plot(points_of, path)
    say(str(path))
    rows = []
    for quantity, points in points_of.items():
        (small, seconds, peak), (large, more_seconds, more_peak) = points[0], points[-1]
        title = f"growth, {large} {quantity} compared with {small}"
        target = f"{large / small:.2f}" if quantity in ("images", "taps") else ""
        for name, value in (("time", more_seconds / seconds), ("memory", more_peak / peak)):
            outcome = "" if not target else "met" if value <= large / small else "missed"
            rows.append(f"| {title}: {name} | itself | {value:.2f} | {target} | {outcome} |")
    return rows


def say(text: str) -> None:
    """Print progress on the standard error."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
