"""What the tests of models share."""

import pytest


@pytest.fixture
def images(rng):
    """Two images of noise, of 16 x 24 pixels."""
    return rng.normal(size=(2, 16, 24, 3)).astype("float32")
