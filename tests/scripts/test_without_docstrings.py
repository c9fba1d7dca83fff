"""`python -OO`, which removes docstrings, in a C locale: commands that read them say so at once."""

import os
import subprocess
import sys

from paths import ROOT


def test_claims_that_docstrings_state_are_refused_in_one_line():
    environment = os.environ | {"LC_ALL": "C", "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-OO", "-m", "vit_tf", "analyze", "--list"]
    run = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert run.returncode == 2 and not run.stdout
    assert "run python or python -O instead" in run.stderr and len(run.stderr.splitlines()) == 1
