"""How often claims are decided, and how often intervals contain the truth, in simulations.

Both levels are simulated: these models, whose numbers vary with the images, and such models in
general, whose numbers vary between runs. The spreads are those of models on CIFAR-10: 0.006 between
the accuracies of runs, 0.02 between their CKA, and one of five images that only one of two models
classifies correctly. It takes half a minute.

The third table is about `images_needed`: a pilot is drawn, and then as many images as it asks for.

Example:
    python -m benchmarks.decisions
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import numpy as np

from vit_tf.analysis.engine.estimates import images_needed
from vit_tf.analysis.report.first_screen import is_significant
from vit_tf.analysis.statistics.claims import Outcome, PaperEffect, decide
from vit_tf.analysis.statistics.estimates import (
    Estimate,
    beyond,
    jackknife_over,
    mean_over,
    minus,
    over_runs,
    share_of,
)

COUNT = 4000  # simulations of a case
NO_LEAST = 1e-9
MOST_UNITS = 400_000  # that are simulated
LEAST_ACCURACY = 0.01  # the smallest effect of interest of claims about the accuracy of a model
ANY_EFFECT = PaperEffect(1, None, "")
RNG = np.random.default_rng(0)
FOUND = (Outcome.AS_IN_PAPER, Outcome.SMALLER, Outcome.OPPOSITE)


class Case(NamedTuple):
    """A simulated case: its name, a function that simulates an estimate, and the true value."""

    name: str
    simulate: Callable[[], Estimate]
    truth: float


def batches(effect: float, spread: float, count: int = 8) -> Estimate:
    """A ratio of sums over batches, such as CKA: jackknife."""
    numerator = RNG.normal(effect, spread, count)
    denominator = RNG.normal(1, 0.1, count)
    rest = [
        np.delete(numerator, at).sum() / np.delete(denominator, at).sum() for at in range(count)
    ]
    return jackknife_over(numerator.sum() / denominator.sum(), np.array(rest), 25 * count)


def beyond_copies(effect: float, count: int = 8) -> Estimate:
    """Trained models minus two untrained copies, which share the batches."""
    shared = RNG.normal(size=count)
    numbers = (mean_over(shared + 0.5 * RNG.normal(size=count), "batches", 200) for _ in range(3))
    trained, *copies = numbers
    lifted = mean_over(np.asarray(trained.parts) + effect, "batches", 200)
    return beyond(lifted, copies)


def accuracy_gap(effect: float, images: int, discordant: float = 0.2) -> Estimate:
    """A paired difference in accuracy: binomial."""
    both = [0.6, (discordant + effect) / 2, (discordant - effect) / 2]
    kind = np.repeat(np.arange(4), RNG.multinomial(images, [*both, 1 - sum(both)]))
    return minus(share_of(kind < 2), share_of((kind == 0) | (kind == 2)))


def runs(effect: float, spreads: tuple[float, float], count: int) -> Estimate:
    """A difference between two arms of so many runs: Welch."""
    return over_runs(RNG.normal(size=(count, 2)) * spreads + np.array([effect, 0.0]))


def null_cases() -> Iterator[Case]:
    """Cases without an effect."""
    yield Case("these models: trained and untrained, 8 batches", lambda: beyond_copies(0), 0)
    yield Case("these models: ratio of sums, 8 batches", lambda: batches(0, 0.2), 0)
    yield Case("these models: ratio of sums, 40 batches", lambda: batches(0, 0.2, 40), 0)
    for images in (200, 1000, 10_000):
        name = f"these models: accuracy, {images:,} images"
        yield Case(name, lambda images=images: accuracy_gap(0, images), 0)
    for count in (3, 5):
        for spreads in ((0.006, 0.006), (0.02, 0.01)):
            name = f"such models: {count} runs of each, spreads {spreads}"
            yield Case(name, lambda n=count, s=spreads: runs(0, s, n), 0)


def effect_cases() -> Iterator[tuple[Case, PaperEffect, float]]:
    """Cases with the effect of the paper, and the smallest effect of interest."""
    for size, images in ((0.04, 10_000), (0.02, 10_000), (0.02, 20_000)):
        name = f"these models: accuracy {size}, {images:,} images"
        simulate = lambda size=size, images=images: accuracy_gap(size, images)  # noqa: E731
        yield Case(name, simulate, size), PaperEffect(1, size, ""), LEAST_ACCURACY
    simulate_cka = lambda: batches(0.22, 0.1)  # noqa: E731
    yield (
        Case("these models: CKA 0.22, 8 batches", simulate_cka, 0.22),
        PaperEffect(1, 0.22, ""),
        0.05,
    )
    for size, least, spread, counts in (
        (0.04, LEAST_ACCURACY, 0.006, (3, 5)),
        (0.02, LEAST_ACCURACY, 0.006, (3, 5, 8)),
        (0.22, 0.05, 0.02, (3, 5)),
    ):
        for count in counts:
            name = f"such models: {size} with spread {spread}, {count} runs of each"
            simulate = lambda size=size, spread=spread, n=count: runs(size, (spread, spread), n)  # noqa: E731
            yield Case(name, simulate, size), PaperEffect(1, size, ""), least


def pilots() -> Iterator[tuple[str, Callable[[int], Estimate], int, float]]:
    """Pilots of `images_needed`: name, function from a size to an estimate, size and true value."""
    for effect in (0.01, 0.02, 0.04):
        for images in (200, 1000):
            name = f"accuracy {effect}, pilot of {images:,} images"
            yield name, partial(accuracy_gap, effect), images, effect
    for effect in (0.3, 0.6, 1.0):
        for count in (4, 8):

            def of_batches(number: int, effect: float = effect) -> Estimate:
                return mean_over(RNG.normal(effect, 1, number), "batches", number)

            name = f"{effect} standard deviations, pilot of {count} batches"
            yield name, of_batches, count, effect


def power_reached(
    simulate: Callable[[int], Estimate], size: int, effect: float | None
) -> tuple[float, float]:
    """How often the size that follows from a pilot decides, and how often a pilot has an answer."""
    found = []
    for _ in range(COUNT // 4):
        try:
            needed = images_needed(simulate(size), power=0.8, effect=effect)
        except ValueError:  # its 80 % interval contains 0
            continue
        if needed < MOST_UNITS:
            found.append(is_significant(simulate(needed)))
    return float(np.mean(found)), len(found) / (COUNT // 4)


def main() -> None:
    """Prints three tables."""
    print("no effect | an effect is found (5 % +- 1.5) | 95 % interval contains 0 (95 % +- 1.5)")
    for case in null_cases():
        intervals = [case.simulate().interval for _ in range(COUNT)]
        found = np.mean([decide(x, ANY_EFFECT, NO_LEAST) in FOUND for x in intervals])
        covered = np.mean([x is not None and x[0] <= case.truth <= x[1] for x in intervals])
        print(f"{case.name} | {found:.1%} | {covered:.1%}")
    print("the effect of the paper | as in the paper (80 %) | no effect or opposite | coverage")
    for case, paper, least in effect_cases():
        intervals = [case.simulate().interval for _ in range(COUNT)]
        outcomes = [decide(x, paper, least) for x in intervals]
        same = np.mean([outcome is Outcome.AS_IN_PAPER for outcome in outcomes])
        wrong = np.mean([x in (Outcome.NO_EFFECT, Outcome.OPPOSITE) for x in outcomes])
        covered = np.mean([x is not None and x[0] <= case.truth <= x[1] for x in intervals])
        print(f"{case.name} | {same:.1%} | {wrong:.1%} | {covered:.1%}")
    print("images_needed(power=0.8) | effect stated: decided | not stated | with an answer")
    for name, simulate, size, effect in pilots():
        stated, _ = power_reached(simulate, size, effect)
        decided, answered = power_reached(simulate, size, None)
        print(f"{name} | {stated:.1%} | {decided:.1%} | {answered:.1%}")


if __name__ == "__main__":
    main()
