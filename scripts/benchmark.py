"""Measures this package beside others that do the same work, and itself as the work grows.

Each comparison runs every package in a process of its own, in turns. Their answers are compared
before anything is timed. The table gives the median of the ratios of runs in the same turn and
their quartiles: below 1 this package is faster or smaller. Peers: pip install 'vit_tf[bench]'.

Examples:
    vit-tf benchmark
    vit-tf benchmark --list
    vit-tf benchmark --what forward_vit,cka --rounds 15
    vit-tf benchmark --what growth --out growth.png
"""

import sys
from pathlib import Path

if not __package__:  # started by its path: the package is that of its own checkout
    sys.path[0] = str(Path(__file__).resolve().parents[1])

from vit_tf.scripts import common, option_groups
from vit_tf.scripts.benchmarks import contest

CONTESTS = (
    "cka",
    "cka_stream",
    "cka_taps",
    "cka_paper",
    "measures",
    "one_pass",
    "every_statistic",
    "interventions",
    "interventions_small",
    "fields",
    "probes",
    "forward_vit_small",
    "forward_vit",
    "forward_bit",
    "training_vit",
    "training_vit_s",
    "training_bit",
    "input",
    "input_tfds",
    "input_memory",
)
WORDS = {"seconds": "time", "peak": "memory", "growth": "growth of memory"}
UNITS = {"seconds": " s", "peak": " GiB", "growth": " MB"}
HEADER = """| what | beside | ratio (quartiles) | target | |
| --- | --- | --- | --- | --- |"""


def main(arguments=None):
    """Measure as told on the command line; the exit status, 2 for a mistake of the user."""
    return common.run_script(parse, run, arguments, backends=None)


def parse(arguments=None):
    """The options of the command line."""
    parser = option_groups.make_parser("benchmark", __doc__)
    add = parser.group("comparisons")
    add("--what", metavar="NAME,NAME", default=",".join(CONTESTS), help="these, or growth")
    add("--rounds", type=int, help="turns of each comparison (default: its own)")
    run = parser.group("run")
    run("--list", action="store_true", help="list the comparisons, and stop")
    out = {"type": Path, "metavar": "FILE", "default": Path("growth.png")}
    run("--out", help="picture of growth", **out)
    options = parser.parse_args(arguments)
    options.what = options.what.split(",")
    unknown = set(options.what) - {*CONTESTS, "growth"}
    if unknown:
        known = ", ".join((*CONTESTS, "growth"))
        raise ValueError(f"Expected --what among {known}. Received: {', '.join(sorted(unknown))}")
    option_groups.require_at_least(options, rounds=1)
    return options


def run(options):
    """List, or measure and print the table."""
    if options.list:
        for name in CONTESTS:
            print(f"{name:14} {contest.contest_of(name).title}")
        print(f"{'growth':14} time and memory against images, activations, tokens and replicas")
        return
    rows = []
    for name in options.what:
        if name == "growth":
            rows += grow(options.out)
            continue
        say(name)
        found, runs, absent = contest.hold(name, options.rounds, say)
        rows += [describe(found, runs, absent, wanted) for wanted in found.ratios]
    print("\n".join([HEADER, *rows]))


def describe(found, runs, absent, wanted):
    """A row of the table."""
    part = "" if wanted.of == "vit_tf" else f", {wanted.of}"
    title = f"{found.title}{part}: {WORDS[wanted.what]}"
    others = " + ".join(wanted.over)
    missing = [absent[name] for name in (wanted.of, *wanted.over) if name in absent]
    if missing:
        return f"| {title} | {others} | not measured: {'; '.join(missing)} | {wanted.target} | |"
    low, middle, high = contest.ratio(runs, wanted)
    unit = "" if others else UNITS[wanted.what]
    target = f"{wanted.target:g}{unit}" if wanted.target < float("inf") else ""
    verdict = "" if not target else "met" if middle <= wanted.target else "missed"
    spread = f" ({low:.2f} to {high:.2f})" if len(runs[wanted.of]) > 1 else ""
    return f"| {title} | {others} | {middle:.2f}{unit}{spread} | {target} | {verdict} |"


def grow(path):
    """Draws the growth; rows of the table that tell the largest size beside the smallest."""
    from vit_tf.scripts.benchmarks import growth

    found = growth.measure(say)
    growth.plot(found, path)
    say(str(path))
    rows = []
    for what, points in found.items():
        (small, seconds, peak), (large, more_seconds, more_peak) = points[0], points[-1]
        title = f"{large} {what} beside {small}"
        target = f"{large / small:.2f}" if what in ("images", "taps") else ""
        for name, value in (("time", more_seconds / seconds), ("memory", more_peak / peak)):
            verdict = "" if not target else "met" if value <= large / small else "missed"
            rows.append(
                f"| growth, {title}: {name} | itself | {value:.2f} | {target} | {verdict} |"
            )
    return rows


def say(text):
    """Progress, beside the table."""
    print(text, file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
