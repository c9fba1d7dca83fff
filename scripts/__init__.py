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
from collections.abc import Iterator

# Lines that TensorFlow's libraries log in C++, which no setting keeps back during the import.
LOG_LINE = re.compile(
    rb"[IWE]\d{4} [\d:.]+|WARNING: All log messages before absl|To enable the fol"
)


def import_tensorflow() -> None:
    """Imports TensorFlow, without its start-up lines unless `TF_CPP_MIN_LOG_LEVEL` is set."""
    if LOG_LEVEL_IS_SET or "tensorflow" in sys.modules:
        return
    with _without_log_lines():
        import tensorflow as tf

        tf.config.list_physical_devices()  # which logs that there is no GPU
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


# What the encoding of a stream lacks is printed as escapes.
for stream in (sys.stdout, sys.stderr):
    if isinstance(stream, io.TextIOWrapper):
        stream.reconfigure(errors="backslashreplace")
# These count only when they are set before TensorFlow and Matplotlib are imported.
LOG_LEVEL_IS_SET = "TF_CPP_MIN_LOG_LEVEL" in os.environ
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
if not sys.warnoptions:
    for category in (DeprecationWarning, PendingDeprecationWarning, FutureWarning):
        warnings.simplefilter("ignore", category)
os.environ.setdefault("MPLBACKEND", "Agg")
