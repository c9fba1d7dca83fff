"""One headless Chromium for the tests of a file."""

import pytest
from browser import Browser


@pytest.fixture(scope="module")
def browser(tmp_path_factory):
    browser = Browser(tmp_path_factory.mktemp("profile"))
    yield browser
    browser.close()
