"""Reports that `vit-tf analyze` writes of a few images."""

import re

from vit_tf.scripts import analyze


def analyzed(out, *words):
    """Names of the figures of a report that is written to a folder, and its text."""
    line = ["--take-test", 60, "--shots", 3, "--strategy", "none", "--out", out, *words]
    assert analyze.main(list(map(str, line))) == 0
    page = (out / "report.html").read_text("utf-8")
    return re.findall(r'id="figure-([\w-]+)"', page), page
