"""Plots warn of nothing."""

import warnings

import pytest


@pytest.fixture(autouse=True)
def strict():
    with warnings.catch_warnings():
        warnings.simplefilter("error", RuntimeWarning)
        yield
