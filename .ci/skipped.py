"""Prints the tests that a run skipped since a package is not installed, one to a line.

Usage: python3 .ci/skipped.py RESULTS, the file of `pytest --junitxml=RESULTS`. The exit status is 1
if there are none: a run that had every package would leave nothing for the next.
"""

import sys
import xml.etree.ElementTree as ElementTree


def skipped(path):
    """Files, or ids of tests, to give to pytest: list of str without repeats."""
    found = []
    for case in ElementTree.parse(path).iter("testcase"):
        reasons = [skip.get("message", "") for skip in case.iter("skipped")]
        # The latter is pytest's own, of an `importorskip` that is given no reason.
        if any(r.endswith("is not installed") or r.startswith("could not import") for r in reasons):
            module, name = case.get("classname"), case.get("name")
            # Of a file that is skipped as a whole the name is the module's.
            file = (module or name).replace(".", "/") + ".py"
            found.append(f"{file}::{name}" if module else file)
    return list(dict.fromkeys(found))


if __name__ == "__main__":
    tests = skipped(sys.argv[1])
    print("\n".join(tests))
    sys.exit(not tests)
