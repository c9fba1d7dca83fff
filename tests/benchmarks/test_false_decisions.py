"""The benchmark of false decisions on numbers whose outcome is known."""

import numpy as np
import pytest

from benchmarks import false_decisions
from vit_tf.analysis.claims.claim import Outcome
from vit_tf.analysis.statistics.estimates import between, descriptive

ACCURACIES = {"a": (0.5, 100), "b": (0.4, 100)}
CLAIM, ESTIMATE = false_decisions.pair_estimates("a", "b", {}, ACCURACIES)["skips-cost-accuracy"]


def pair(first, second):
    return between(descriptive(first, ""), descriptive(second, ""))


def test_arms_have_no_model_twice_and_no_pair_of_one_model():
    arms = list(false_decisions.arms_of("abcde", 3))
    assert len(arms) == 320
    for pairs in arms:
        firsts, seconds = zip(*pairs, strict=True)
        assert len(set(firsts)) == len(set(seconds)) == 3
        assert all(first != second for first, second in pairs)


def test_claims_between_arms_are_tested_on_equal_models():
    assert ESTIMATE.value == pytest.approx(0.1) and ESTIMATE.terms == (0.5, -0.4)


def test_a_difference_in_each_run_is_decided_and_a_spread_around_zero_is_not():
    different = [pair(0.7 + x, 0.5) for x in (0.0, 0.01, 0.02)]
    assert false_decisions.outcome_over(CLAIM, different) is Outcome.AS_IN_PAPER
    equal = [pair(0.5 + x, 0.5) for x in (0.20, -0.21, 0.02)]
    assert false_decisions.outcome_over(CLAIM, equal) is Outcome.UNDECIDED
    assert false_decisions.outcome_over(CLAIM, different, 0.5) is Outcome.NO_EFFECT


@pytest.mark.parametrize("runs", [3, 5])
def test_equal_arms_are_decided_as_often_as_the_level_says(runs):
    """The rate is 5 %; a smallest effect lowers it."""
    pairs = [pair(x, y) for x, y in ((0.1, 0.0), (0.0, 0.1), (0.05, 0.0), (0.0, 0.05))]
    with_least, without = false_decisions.simulated(CLAIM, pairs, runs)
    assert with_least < without
    assert abs(without - 0.05) < 0.015 + 3 * np.sqrt(0.05 * 0.95 / 4000)
