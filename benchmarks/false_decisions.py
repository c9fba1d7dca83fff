"""How often claims are decided for real models without a difference: equal, or untrained ones.

Equal models differ in the seed only, such as five runs of one arm of docs/natural/train.py: every
claim that compares two models is tested on them, on each pair and on all splits into three and two
runs. Untrained models are analyzed as if they were trained. The docs page how-sure.md has the
numbers; tests/analysis/statistics/test_claim_decisions.py has the simulations.

Example:
    python -m benchmarks.false_decisions runs-seeds false-decisions --data-dir DATA
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import xarray as xr

from vit_tf.analysis.figures.figure import all_figures
from vit_tf.analysis.figures.models import ROLES
from vit_tf.analysis.statistics.claims import DECIDED, Claim, Outcome, decide
from vit_tf.analysis.statistics.estimates import (
    Accuracy,
    Estimate,
    Method,
    Units,
    over_runs,
    with_error,
)
from vit_tf.analysis.statistics.intervals import mean_error, sum_of_errors

MARKED = tuple(outcome for outcome in DECIDED if outcome is not Outcome.NO_EFFECT)
LEAST_RUNS = 3
NO_LEAST = 1e-9
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


def pair_estimates(
    first: str, second: str, results: Mapping[str, Any], accuracies: Mapping[str, Any]
) -> dict[str, tuple[Claim, Estimate]]:
    """Numbers of claims between arms, with two equal models in the roles of different ones.

    Untrained copies of equal models have the same number but for their seed: none is subtracted.
    """
    names = dict.fromkeys(ROLES, second) | {"vit": first}
    values = dict(results)
    values |= {f"accuracy.{name}": Accuracy(*facts) for name, facts in accuracies.items()}
    values["block"] = "block03"
    estimates = {}
    for claim in (claim for figure in all_figures() for claim in figure.claims):
        inputs = [values.get(template.format(**names)) for template in claim.inputs]
        if any(value is None for value in inputs) or "{vit}" not in " ".join(claim.inputs):
            continue
        try:
            estimate = claim(*inputs)
        except ValueError:  # the claim is not tested on such models
            continue
        if len(estimate.arms) == 2:
            estimates[claim.name] = claim, estimate
    return estimates


def splits_of(names: Sequence[str]) -> list[tuple[list[str], list[str]]]:
    """All ways to split models into an arm of three and an arm of the others."""
    if len(names) < LEAST_RUNS + 2:
        raise ValueError(f"Expected at least {LEAST_RUNS + 2} models. Received: {list(names)}")
    return [
        (list(firsts), [name for name in names if name not in firsts])
        for firsts in itertools.combinations(names, LEAST_RUNS)
    ]


def outcome_of_arms(
    claim: Claim, first: Sequence[float], second: Sequence[float], least: float | None = None
) -> Outcome:
    """The outcome of a claim, from the term of each model of two arms (Welch)."""
    arms = np.array(first), np.array(second)
    value = arms[0].mean() - arms[1].mean()
    error = sum_of_errors(*map(mean_error, arms))
    estimate = with_error(value, error, Units("runs", len(first) + len(second)), Method.RUNS)
    return decide(estimate.interval, claim.paper, claim.least if least is None else least)


def simulated(
    claim: Claim, estimates: Sequence[Estimate], runs: int, count: int = 4000
) -> tuple[float, float]:
    """Shares decided with equal arms of `runs` runs, with and without the smallest effect.

    The standard deviation between runs is that of the terms of the measured differences.
    """
    rng = np.random.default_rng(0)
    deviations = np.std([estimate.terms for estimate in estimates], axis=0, ddof=1)
    outcomes = []
    for terms in rng.normal(size=(count, runs, len(deviations))) * deviations:
        interval = over_runs(terms).interval
        outcomes.append(
            [decide(interval, claim.paper, least) in MARKED for least in (claim.least, NO_LEAST)]
        )
    with_least, without = np.mean(outcomes, axis=0)
    return float(with_least), float(without)


def print_equal(names: Sequence[str], results: dict, accuracies: dict) -> None:
    """A row for each claim that equal models test."""
    rows = {
        pair: pair_estimates(*pair, results, accuracies)
        for pair in itertools.permutations(names, 2)
    }
    claims = sorted(set.intersection(*(set(each) for each in rows.values())))
    total = Counter()
    ways = "3 against 2 runs | simulated: 3, 5 runs"
    print(f"claim | pairs with a mark | {ways} | without a smallest effect: {ways}")
    for name in claims:
        claim = rows[names[0], names[1]][name][0]
        estimates = {pair: row[name][1] for pair, row in rows.items()}
        decisions = [decide(x.interval, claim.paper, claim.least) for x in estimates.values()]
        single = [decision in MARKED for decision in decisions]
        # The term of each model in the role of the ViT, and in that of another model.
        first = {pair[0]: estimate.terms[0] for pair, estimate in estimates.items()}
        second = {pair[1]: -estimate.terms[-1] for pair, estimate in estimates.items()}
        arms = [
            ([first[x] for x in some], [second[x] for x in rest]) for some, rest in splits_of(names)
        ]
        splits, of_any_size = (
            [outcome_of_arms(claim, *pair, least) in MARKED for pair in arms]
            for least in (None, NO_LEAST)
        )
        shares = [simulated(claim, list(estimates.values()), runs) for runs in (3, 5)]
        total.update(single=sum(single), pairs=len(single), splits=sum(splits), of=len(splits))
        total.update(of_any_size=sum(of_any_size))
        print(
            f"{name} | {sum(single)} of {len(single)} | {sum(splits)} of {len(splits)} | "
            f"{shares[0][0]:.1%}, {shares[1][0]:.1%} | {sum(of_any_size)} of {len(splits)} | "
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
    parser.add_argument("--equal-only", action="store_true", help="no reports of untrained models")
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    print_equal(*measure_equal(options.runs, options.out, options.data_dir, options.arm))
    if not options.equal_only:
        measure_untrained(options.runs, options.out, options.data_dir)
        print_untrained(options.out)


if __name__ == "__main__":
    main()
