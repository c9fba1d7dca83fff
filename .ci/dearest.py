"""Prints the test files that took longest in some runs, with their seconds and numbers of tests.

Usage: python3 .ci/dearest.py RESULTS ..., the files of `pytest --junitxml=RESULTS`.
"""

import sys
import xml.etree.ElementTree as ElementTree
from collections import defaultdict

COUNT = 30


def seconds_by_file(paths):
    """Dict from test file to its (seconds, number of tests), the longest first."""
    files = defaultdict(lambda: [0.0, 0])
    for path in paths:
        for case in ElementTree.parse(path).iter("testcase"):
            # A test in a class has the class at the end of its name; modules are in lower case.
            parts = (case.get("classname") or case.get("name")).split(".")
            module = [part for part in parts if not part[:1].isupper()]
            of_file = files["/".join(module) + ".py"]
            of_file[0] += float(case.get("time") or 0)
            of_file[1] += 1
    return dict(sorted(files.items(), key=lambda item: -item[1][0]))


if __name__ == "__main__":
    rows = seconds_by_file(sys.argv[1:])
    total = sum(seconds for seconds, _ in rows.values())
    print(f"{total:.0f} s of tests in {len(rows)} files; the longest:")
    for file, (seconds, tests) in list(rows.items())[:COUNT]:
        print(f"{seconds:7.1f} s {tests:5d} tests  {file}")
