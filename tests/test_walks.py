"""The counts of `benchmarks/walks.py`, on a call whose path through the package is known."""

import sys
import threading

import pytest
from paths import ROOT

from vit_tf.common import names


@pytest.fixture
def walks(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    import walks

    return walks


def test_functions_and_files_of_the_package_are_counted_in_all_threads(walks):
    def call():
        thread = threading.Thread(target=names.as_names, args=("a",))
        thread.start()
        thread.join()
        names.match(["a*"], ["ab", "ac"])  # whose generator expression is no function by name
        sorted([3, 1])

    files, functions = walks.count(call)
    assert files == [str(ROOT / "vit_tf" / "common" / "names.py")]
    assert functions == 2
    assert sys.getprofile() is None


def test_a_name_that_is_no_walk_is_an_error(walks, capsys):
    assert walks.main(["ckaa"]) == 2
    assert "cka, load_pretrained" in capsys.readouterr().out
