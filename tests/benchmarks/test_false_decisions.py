"""The benchmark of false decisions on rows whose outcome is known."""

from dataclasses import replace

import numpy as np
import pytest

from benchmarks import false_decisions
from vit_tf.analysis.study.claims import RUNS, scorecard


def row(value, least=0.0):
    """A row of a claim about how models are trained, with a value and an interval."""
    name = "skips-cost-accuracy"
    accuracies = {"a": (0.5, 100), "b": (0.5, 100)}
    rows = scorecard({}, vit="a", without="b", block="block03", accuracy=accuracies)
    found = next(each for each in rows if each.name == name)
    assert found.about == RUNS
    return replace(found, value=value, low=value - 1e-4, high=value + 1e-4, least=least)


def test_arms_have_no_model_twice_and_no_pair_of_one_model():
    arms = list(false_decisions.arms_of("abcde", 3))
    assert len(arms) == 320
    for pairs in arms:
        firsts, seconds = zip(*pairs, strict=True)
        assert len(set(firsts)) == len(set(seconds)) == 3
        assert all(first != second for first, second in pairs)


def test_a_difference_in_each_run_is_decided_and_a_spread_around_zero_is_not():
    different = [row(value) for value in (0.20, 0.21, 0.22)]
    assert false_decisions.outcome_over(different) == "replicates"
    equal = [row(value) for value in (0.20, -0.21, 0.02)]
    assert false_decisions.outcome_over(equal) == "inconclusive"
    assert false_decisions.outcome_over([row(x.value, 0.5) for x in different]) == "inconclusive"


@pytest.mark.parametrize("runs", [3, 5])
def test_equal_arms_are_decided_as_often_as_the_level_says(runs):
    """Without an interval within runs, the rate is 5 %; a smallest effect lowers it to 0."""
    pairs = [row(value, least=1.0) for value in (0.1, -0.1, 0.05, -0.05)]
    with_least, without = false_decisions.simulated(pairs, runs)
    assert with_least == 0
    assert abs(without - 0.05) < 3 * np.sqrt(0.05 * 0.95 / 4000)
