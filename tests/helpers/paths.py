"""Where things lie: the checkout, its scripts, the data beside it; copies, and other processes."""

import contextlib
import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPTS = ROOT / "scripts"
HELPERS = ROOT / "tests" / "helpers"
SHARED = ROOT.parent / "shared"
TFDS = SHARED / "tfds"
needs_fashion = pytest.mark.skipif(
    not (TFDS / "fashion_mnist").is_dir(), reason=f"no Fashion-MNIST in {TFDS}"
)


def copy_checkout(folder):
    """A copy of the package in a new folder, where its code may change."""
    for part in ("vit_tf", "analysis", "scripts"):
        unwanted = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / part, folder / part, ignore=unwanted)
    return folder


def run_python(checkout, *words):
    """A program that is run in a new process on the package of a checkout, when it has ended."""
    environment = os.environ | {"PYTHONPATH": str(checkout), "TF_CPP_MIN_LOG_LEVEL": "3"}
    command = [sys.executable, *map(str, words)]
    return subprocess.run(command, cwd=checkout, env=environment, capture_output=True, text=True)


@contextlib.contextmanager
def process_group(command, log, **settings):
    """A new process that writes to a log; in the end, it and all that it has forked are killed."""
    with open(log, "w") as file:
        process = subprocess.Popen(
            command, stdout=file, stderr=file, start_new_session=True, **settings
        )
    try:
        yield process
    finally:
        with contextlib.suppress(ProcessLookupError):  # none of them is left
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def free_addresses(count):
    """Addresses on this machine whose ports nobody listens on, joined by commas."""
    sockets = [socket.create_server(("localhost", 0)) for _ in range(count)]
    addresses = [f"localhost:{server.getsockname()[1]}" for server in sockets]
    for server in sockets:
        server.close()
    return ",".join(addresses)
