"""Results of which a part was selected are drawn, or refused in words."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
from plot_results import results

from vit_tf import analysis


@pytest.fixture(scope="module")
def by_name():
    return results()


@pytest.mark.parametrize("measure", ["two_nn", "participation_ratio"])
def test_one_measure_of_dimension_is_drawn(by_name, measure):
    whole = by_name["intrinsic_dimension"]
    ax = analysis.plot(whole.sel(measure=[measure]))
    drawn = [np.asarray(line.get_ydata(), float) for line in ax.lines]
    expected = whole["dimension"].sel(measure=measure).values
    assert any(y.shape == expected.shape and np.allclose(y, expected) for y in drawn)
    others = [name for name in whole["measure"].values if name != measure]
    assert not any(
        y.shape == expected.shape and np.allclose(y, whole["dimension"].sel(measure=name))
        for y in drawn
        for name in others
    )
    with pytest.raises(ValueError, match="effective_rank"):
        analysis.plot(whole.sel(measure=[measure]), measure="effective_rank")
    plt.close("all")


@pytest.mark.parametrize(
    ("name", "selection", "words"),
    [
        ("projection", {"component": [0]}, "two components.*1"),
        ("mistakes", {"colour": slice(0, 0)}, "not empty"),
        ("neighbours", {"colour": slice(0, 0)}, "not empty"),
    ],
)
def test_results_without_what_a_plot_needs_are_refused(by_name, name, selection, words):
    with pytest.raises(ValueError, match=words):
        analysis.plot(by_name[name].isel(selection))
    plt.close("all")
