"""The commands: each script parses its options, loads, calls the package and saves.

TensorFlow's start-up lines and the deprecation warnings of other packages are kept out of what a
command prints, unless `TF_CPP_MIN_LOG_LEVEL` or Python's `-W` asks for them.
"""

import contextlib
import io
import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Callable, Iterator, Sequence
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType

# Lines that TensorFlow's libraries log in C++, which no setting keeps back during the import.
LOG_LINE = re.compile(
    rb"[IWE]\d{4} [\d:.]+|WARNING: All log messages before absl|To enable the fol"
)


class _QuietImport:
    """Finds TensorFlow as the other finders do, and imports it without its start-up lines."""

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name != "tensorflow":
            return None
        sys.meta_path.remove(self)
        spec = find_spec(name)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: _execute_quietly(execute, module)
        return spec


def _execute_quietly(execute: Callable[[ModuleType], None], module: ModuleType) -> None:
    with _without_log_lines():
        execute(module)
        module.config.list_physical_devices()  # which logs that there is no GPU
    for name in ("absl", "tensorflow"):
        logging.getLogger(name).setLevel(logging.ERROR)


@contextlib.contextmanager
def _without_log_lines() -> Iterator[None]:
    """Holds back the standard error, and prints what is not a log line of C++ at the end."""
    sys.stderr.flush()
    shown = os.dup(2)
    with tempfile.TemporaryFile() as held:
        os.dup2(held.fileno(), 2)
        try:
            yield
        finally:
            sys.stderr.flush()
            os.dup2(shown, 2)
            os.close(shown)
            held.seek(0)
            os.write(2, b"".join(line for line in held if not LOG_LINE.match(line)))


def open_standard_streams() -> None:
    """Opens standard streams that are closed, and prints what their encoding lacks as escapes."""
    # The next file that is opened would otherwise be the standard output, and be printed into.
    for number, name in enumerate(("stdin", "stdout", "stderr")):
        try:
            os.fstat(number)
        except OSError:
            null = os.open(os.devnull, os.O_RDONLY if number == 0 else os.O_WRONLY)
            if null != number:
                os.dup2(null, number)
                os.close(null)
        if getattr(sys, name) is None:
            setattr(sys, name, os.fdopen(number, "w" if number else "r", closefd=False))
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


open_standard_streams()
# These count only when they are set before TensorFlow and Matplotlib are imported.
if "TF_CPP_MIN_LOG_LEVEL" not in os.environ:
    os.environ["TF_CPP_MIN_LOG_LEVEL"] = "2"
    sys.meta_path.insert(0, _QuietImport())
if not sys.warnoptions:
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.simplefilter("ignore", category)
os.environ.setdefault("MPLBACKEND", "Agg")
