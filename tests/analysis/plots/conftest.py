"""Plots warn of nothing, and every figure is closed."""

import warnings

import matplotlib.pyplot as plt
import pytest


@pytest.fixture(autouse=True)
def strict_and_closed():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield
    plt.close("all")
