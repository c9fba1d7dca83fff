"""The benchmark of false decisions on numbers whose outcome is known."""

import numpy as np
import pytest

from benchmarks import false_decisions
from vit_tf.analysis.statistics.claims import Outcome
from vit_tf.analysis.statistics.estimates import between, descriptive

ACCURACIES = {"a": (0.5, 100), "b": (0.4, 100)}
CLAIM, ESTIMATE = false_decisions.pair_estimates("a", "b", {}, ACCURACIES)["skips-cost-accuracy"]


def pair(first, second):
    return between(descriptive(first, ""), descriptive(second, ""))


def test_five_models_split_into_three_and_two_in_ten_ways():
    splits = false_decisions.splits_of("abcde")
    assert len(splits) == len({tuple(some) for some, _ in splits}) == 10
    assert all(sorted([*some, *rest]) == list("abcde") for some, rest in splits)


def test_claims_between_arms_are_tested_on_equal_models():
    assert ESTIMATE.value == pytest.approx(0.1) and ESTIMATE.terms == (0.5, -0.4)


def test_a_difference_of_arms_is_decided_and_a_spread_around_zero_is_not():
    different, equal = (0.7, 0.71, 0.72), (0.5, 0.29, 0.71)
    assert false_decisions.outcome_of_arms(CLAIM, different, (0.5, 0.51)) is Outcome.AS_IN_PAPER
    assert false_decisions.outcome_of_arms(CLAIM, equal, (0.5, 0.45)) is Outcome.UNDECIDED
    alike = (0.5, 0.5001, 0.4999), (0.5, 0.5001)
    assert false_decisions.outcome_of_arms(CLAIM, *alike) is Outcome.NO_EFFECT


@pytest.mark.parametrize("runs", [3, 5])
def test_equal_arms_are_decided_as_often_as_the_level_says(runs):
    """The rate is 5 %; a smallest effect lowers it."""
    pairs = [pair(x, y) for x, y in ((0.1, 0.0), (0.0, 0.1), (0.05, 0.0), (0.0, 0.05))]
    with_least, without = false_decisions.simulated(CLAIM, pairs, runs)
    assert with_least < without
    assert abs(without - 0.05) < 0.015 + 3 * np.sqrt(0.05 * 0.95 / 4000)
