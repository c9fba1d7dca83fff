"""Wrong names and files are refused before TensorFlow is imported, without a trace."""

import os
import subprocess
import sys

import pytest

from vit_tf.analysis.figures.figure import all_figures
from vit_tf.analysis.papers import FIGURE_NUMBERS, known_figures

PROGRAM = """
import sys
from vit_tf.scripts import cli

status = cli.main(sys.argv[1:])
heavy = [name for name in ("tensorflow", "keras", "torch") if name in sys.modules]
sys.exit(f"imported {heavy}" if heavy else status)
"""


@pytest.mark.parametrize(
    "words, said",
    [
        (
            ["analyze", "vit-cls-cifar"],
            "Unknown model 'vit-cls-cifar'. Did you mean 'vit-cls-cifar10",
        ),
        (["analyze", "missing.keras"], "Model file not found: 'missing.keras'"),
        (
            ["analyze", "vit-cls-cifar10", "--data", "photos/"],
            "Folder not found: 'photos/'",
        ),
        (
            ["analyze", "vit-cls-cifar10", "--figures", "99"],
            "Unknown figure in --figures: '99'",
        ),
        (
            ["analyze", "vit-cls-cifar10", "--data", "cifar11"],
            "Unknown data set, and no such folder: 'cifar11'. Did you mean cifar10",
        ),
        (
            ["train", "--data", "digit", "--out", "run"],
            "Unknown data set, and no such folder: 'digit'. Did you mean digits",
        ),
        (["evaluate", "vit-cls-cifar"], "Unknown model 'vit-cls-cifar'. Did you mean"),
        (
            ["evaluate", "vit-cls-cifar10", "--classes", "classes.txt"],
            "File of classes not found: 'classes.txt'",
        ),
        (["export", "missing.keras", "--list"], "Model file not found: 'missing.keras'"),
        (["study", "--figures", "99"], "Unknown figure in --figures: '99'"),
        (["demo", "--figures", "99"], "Unknown figure in --figures: '99'"),
        (["analyze", "google/vit"], "'hf://OWNER/NAME' a folder on the Hugging Face hub"),
        (["explore", "vit-cls-cifar", __file__], "Unknown model 'vit-cls-cifar'. Did you mean"),
        (["explore", "vit-cls-cifar10", "cat.jpg"], "Image file not found: 'cat.jpg'"),
    ],
)
def test_an_error_is_immediate_and_leaves_nothing(words, said, tmp_path):
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *words], cwd=tmp_path, capture_output=True, text=True
    )
    assert said in done.stderr and done.stderr.startswith("error: "), done.stderr
    assert done.returncode == 2 and len(done.stderr.strip().splitlines()) == 1, done.stderr
    assert not os.listdir(tmp_path)


def test_the_numbers_of_figures_that_are_known_without_importing_them_are_all():
    numbers = {number for figure in all_figures() for number in figure.choices}
    assert set(known_figures()) == numbers
    assert set(" ".join(FIGURE_NUMBERS.values()).split()) == numbers
