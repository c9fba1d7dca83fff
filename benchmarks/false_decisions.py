"""How often claims are decided for real models without a difference: equal, or untrained ones.

Equal models are runs of one arm of docs/natural/train.py, which differ in the seed only: every
claim about how models are trained compares them, with one run in the role of each model that the
claim names. Untrained models are analyzed as if they were trained. The docs page how-sure.md has
the numbers; tests/analysis/engine/test_false_decisions.py has the simulations.

Example:
    python -m benchmarks.false_decisions runs-seeds false-decisions --data-dir DATA
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from vit_tf.analysis.engine.estimates import Estimate, claim_outcome, over_trainings, range_of
from vit_tf.analysis.study.claims import RUNS, Result, decide, scorecard

DECIDED = ("replicates", "does not replicate", "also holds untrained")
LEAST_RUNS = 3
NUM_IMAGES, NUM_TEST = 500, 10_000
UNTRAINED = {"vit-cls-0": ("vit", "vit"), "vit-gap-0": ("gap", "gap"), "bit-0": ("bit", "resnet")}
FIGURES = "1,2,3,7,9,W.2,W.3,W.4,W.23,agreement"
UNTRAINED_SEEDS = (101, 102)


def measure_equal(
    runs: Path, out: Path, data_dir: str | None, arm: str
) -> tuple[list[str], dict[str, Any], dict[str, tuple[float, int]]]:
    """Names of the runs of an arm, the results that claims need of each, and test accuracies."""
    import vit_tf
    from vit_tf import analysis

    paths = sorted(runs.glob(f"{arm}-[0-9]/model.keras"))
    names = [path.parent.name for path in paths]
    settings = {"image_size": 32, "splits": ("test",), "take": NUM_IMAGES, "batch_size": 100}
    (images,) = vit_tf.data.load("cifar10", data_dir=data_dir, **settings)
    measures = {
        "cka": analysis.cka,
        "localization": analysis.localization,
        "attention_distance": analysis.attention_distance,
        "skip_ratio": analysis.skip_ratio,
    }
    results, accuracies = {}, {}
    for name, path in zip(names, paths, strict=True):
        model = vit_tf.load_model(path)
        for analysis_name, measure in measures.items():
            file = out / f"{analysis_name}.{name}.nc"
            if not file.exists():
                measure(model, images).to_netcdf(file)
            result = xr.load_dataset(file)
            is_array = list(result.data_vars) == [analysis_name]
            results[f"{analysis_name}.{name}"] = result[analysis_name] if is_array else result
        stated = json.loads((path.parent / "result.json").read_text())["test_accuracy"]
        accuracies[name] = stated, NUM_TEST
    return names, results, accuracies


def pair_rows(
    first: str, second: str, results: Mapping[str, Any], accuracies: Mapping[str, Any]
) -> dict[str, Result]:
    """Claims about how models are trained, with two equal models in the roles of different ones."""
    others = dict.fromkeys(("fraction", "larger", "masked", "resnet_fraction"), second)
    rows = scorecard(
        results,
        vit=first,
        resnet=second,
        gap=second,
        without=second,
        block="block03",
        others=others,
        accuracy=accuracies,
    )
    return {row.name: row for row in rows if row.about == RUNS and row.outcome != "not tested"}


def outcome_over(rows: Sequence[Result]) -> str:
    """The outcome of a claim over several runs, without what needs reports of them."""
    first = rows[0]
    measured = [Estimate(row.value, row.low, row.high, "") for row in rows]
    mean = over_trainings(measured, range_of(first.quantity))
    return decide(mean.low, mean.high, first, ())


def arms_of(names: Sequence[str], size: int) -> Iterable[list[tuple[str, str]]]:
    """All ways to choose `size` pairs, in which no model is twice in one arm, or in one pair."""
    for firsts in itertools.combinations(names, size):
        for seconds in itertools.permutations(names, size):
            pairs = list(zip(firsts, seconds, strict=True))
            if all(first != second for first, second in pairs):
                yield pairs


def simulated(rows: Sequence[Result], runs: int, count: int = 4000) -> tuple[float, float]:
    """Shares decided with equal arms of `runs` runs, with and without the smallest effect.

    The standard deviation between runs is that of the measured differences; the half-width within a
    run is their mean one, and its noise is equal in all runs.
    """
    rng, first = np.random.default_rng(0), rows[0]
    # Differences of all ordered pairs have mean 0; each is of two independent runs.
    deviation = np.sqrt(np.mean([row.value**2 for row in rows]))
    widths = [(row.high - row.low) / 2 for row in rows]
    within = float(np.mean(widths)) if np.isfinite(widths).all() else 0.0
    centre = 1.0 if first.threshold == 1 else 0.0
    outcomes = []
    for _ in range(count):
        values = centre + deviation * rng.normal(size=runs) + within / 1.96 * rng.normal()
        estimates = [Estimate(x, x - within, x + within, "") for x in values]
        mean = over_trainings(estimates)
        where = mean.low, mean.high, centre, first.direction
        outcomes.append([claim_outcome(*where, least) in DECIDED for least in (first.least, 0.0)])
    return tuple(np.mean(outcomes, axis=0))


def print_equal(names: Sequence[str], results: dict, accuracies: dict) -> None:
    """A row for each claim that equal models test."""
    rows = {
        pair: pair_rows(*pair, results, accuracies) for pair in itertools.permutations(names, 2)
    }
    claims = sorted(set.intersection(*(set(each) for each in rows.values())))
    total = Counter()
    print("claim | one run, pairs with a mark | three runs | simulated 3, 5 runs | without least")
    for claim in claims:
        single = [each[claim].outcome in DECIDED for each in rows.values()]
        own = [decide(x[claim].low, x[claim].high, x[claim], ()) for x in rows.values()]
        beyond = np.mean([outcome in DECIDED for outcome in own])
        three = [
            outcome_over([rows[pair][claim] for pair in pairs]) in DECIDED
            for pairs in arms_of(names, LEAST_RUNS)
        ]
        of_claim = [each[claim] for each in rows.values()]
        shares = [simulated(of_claim, runs) for runs in (3, 5)]
        total.update(single=sum(single), pairs=len(single), three=sum(three), arms=len(three))
        print(
            f"{claim} | {sum(single)} of {len(single)}, own interval beyond {beyond:.0%} | "
            f"{sum(three)} of {len(three)} | {shares[0][0]:.1%}, {shares[1][0]:.1%} | "
            f"{shares[0][1]:.1%}, {shares[1][1]:.1%}"
        )
    print(dict(total))


def measure_untrained(runs: Path, out: Path, data_dir: str | None) -> None:
    """A report of untrained models, for each of two initializations, next to untrained copies."""
    import vit_tf
    from vit_tf.scripts import analyze

    for seed in UNTRAINED_SEEDS:
        folder = out / f"untrained-{seed}"
        folder.mkdir(parents=True, exist_ok=True)
        paths = []
        for name in UNTRAINED:
            paths.append(str(folder / f"{name}.keras"))
            model = vit_tf.load_model(runs / name / "model.keras")
            vit_tf.reinitialize(model, seed=seed).save(paths[-1])
        names, roles = zip(*UNTRAINED.values(), strict=True)
        arguments = [*paths, "--names", *names, "--roles", *roles, "--figures", FIGURES]
        arguments += ["--supervision", *["labels"] * len(names), "--untrained", "2"]
        arguments += ["--data", "cifar10", "--take-test", str(NUM_IMAGES), "--strategy", "none"]
        arguments += ["--out", str(folder / "report")]
        arguments += ["--data-dir", data_dir] if data_dir else []
        analyze.main(arguments)


def print_untrained(out: Path) -> None:
    """The outcome of each tested claim, for both initializations."""
    cards = [
        xr.load_dataset(out / f"untrained-{seed}" / "report" / "results" / "scorecard.nc")
        for seed in UNTRAINED_SEEDS
    ]
    for claim in cards[0]["claim"].values:
        outcomes = [str(card.sel(claim=claim)["outcome"].item()) for card in cards]
        if set(outcomes) != {"not tested"}:
            print(claim, "|", " | ".join(outcomes))


def main() -> None:
    """Measures, and prints the tables."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", type=Path, help="folder of runs that docs/natural/train.py wrote")
    parser.add_argument("out", type=Path, help="folder of results, made if missing")
    parser.add_argument("--data-dir", help="data folder of TFDS")
    parser.add_argument("--arm", default="vit-cls", help="equal models")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print_equal(*measure_equal(options.runs, options.out, options.data_dir, options.arm))
    measure_untrained(options.runs, options.out, options.data_dir)
    print_untrained(options.out)


if __name__ == "__main__":
    main()
