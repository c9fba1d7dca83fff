"""The command `vit-tf`: lists the commands, and runs the one that is named."""

import ast
import os
import signal
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path

import vit_tf
from vit_tf.common.names import unknown_name

COMMANDS = ("demo", "study", "analyze", "scorecard", "explore", "train", "finetune", "pretrain")
COMMANDS += ("evaluate", "compute", "export")
OVERVIEW = """usage: vit-tf COMMAND ...

{commands}

vit-tf COMMAND --help shows the options of a command, vit-tf --version the version."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command that the first argument names; its exit status, 2 for an unknown one."""
    try:
        try:
            return _run(arguments)
        finally:
            sys.stdout.flush()
    except BrokenPipeError:
        # The reader stopped early, as `head` does; otherwise Python would report an error at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 128 + signal.SIGPIPE


def _run(arguments: Sequence[str] | None) -> int:
    words = sys.argv[1:] if arguments is None else list(arguments)
    if not words or words[0] in ("-h", "--help"):
        commands = "\n".join(f"  {name:10} {summary_of(name)}" for name in COMMANDS)
        print(OVERVIEW.format(commands=commands))
        return 0
    name, *rest = words
    if name == "--version":
        print(f"vit-tf {vit_tf.__version__}")
        return 0
    if name not in COMMANDS:
        print(f"error: {unknown_name('command', name, COMMANDS)}", file=sys.stderr)
        return 2
    return import_module(f"vit_tf.scripts.{name}").main(rest)


def summary_of(name: str) -> str:
    """The first line of a command's docstring, read without importing the module."""
    source = Path(__file__).with_name(f"{name}.py").read_text("utf-8")
    return (ast.get_docstring(ast.parse(source)) or "").splitlines()[0]
