"""The command `vit-tf`: names the doors, and hands the rest of the line to the one asked for."""

import ast
import os
import signal
import sys
from importlib import import_module
from importlib.util import find_spec

import vit_tf
from vit_tf.names import unknown_name

DOORS = (
    "study",
    "analyze",
    "scorecard",
    "explore",
    "train",
    "finetune",
    "pretrain",
    "evaluate",
    "compute",
    "export",
    "release",
    "benchmark",
    "endurance",
)
OVERVIEW = """usage: vit-tf COMMAND ...

{doors}

vit-tf COMMAND --help tells the options of one, vit-tf --version that of the package."""


def main(arguments=None):
    """Open the door that the first argument names; its exit status, 2 if there is none.

    A reader that has seen enough, such as `head`, ends it without a word.
    """
    try:
        try:
            return _open(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # What is left to write goes nowhere, or Python would say so when it ends.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _open(arguments):
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] in ("-h", "--help", "help"):
        doors = "\n".join(f"  {name:10} {sentence_of(name)}" for name in DOORS)
        print(OVERVIEW.format(doors=doors))
        return 0
    name, *rest = words
    if name == "--version":
        print(f"vit-tf {vit_tf.__version__}")
        return 0
    if name not in DOORS:
        print(f"error: {unknown_name('COMMAND', name, DOORS)}", file=sys.stderr)
        return 2
    return import_module(f"vit_tf.scripts.{name}").main(rest)


def sentence_of(name):
    """The first line of a script's docstring, read without running the script."""
    source = find_spec(f"vit_tf.scripts.{name}").loader.get_source(f"vit_tf.scripts.{name}")
    return ast.get_docstring(ast.parse(source)).splitlines()[0]
