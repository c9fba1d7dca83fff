"""Runs of a command, in one process or as several workers, that are killed at a moment."""

import dataclasses
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

from benchmarks import run_files

SCRIPTS = Path(__file__).parents[1] / "scripts"
TIMEOUT = 600  # seconds that a run may take
GRACE_PERIOD = 30  # seconds between SIGTERM and SIGKILL on a preemptible machine
DETECTION = 60  # seconds within which a worker must detect that another died


@dataclasses.dataclass(frozen=True)
class Job:
    """What is run: a script, its arguments without `--out`, and in how many workers.

    Attributes:
        tolerance: largest difference of a number from that of an uninterrupted run.
        signals: with which it is stopped, in turn.
    """

    script: str
    arguments: str
    workers: int = 1
    tolerance: float = 0.0
    signals: tuple = (signal.SIGKILL,)


def log_of(out, place):
    """The file of what a worker of the latest run in a folder printed."""
    return Path(f"{out}.{place}.log")


def start_job(job, out):
    """Start the processes of a run, each in a group of its own; list of `Popen`."""
    words = [sys.executable, str(SCRIPTS / f"{job.script}.py"), *job.arguments.split()]
    addresses, processes = ",".join(_free_addresses(job.workers)), []
    for place in range(job.workers):
        variables = {"VIT_TF_WORKERS": addresses, "VIT_TF_WORKER": str(place)}
        with open(log_of(out, place), "wb") as log:
            process = subprocess.Popen(
                [*words, "--out", str(out)],
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=os.environ | (variables if job.workers > 1 else {}),
            )
        processes.append(process)
    return processes


def _free_addresses(count):
    """Addresses on this machine whose ports nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{one.getsockname()[1]}" for one in sockets]
    for one in sockets:
        one.close()
    return addresses


def kill(*processes, number=signal.SIGKILL):
    """Stop processes, and their children, at once; raises if one does not end."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)
    for process in processes:
        process.wait(GRACE_PERIOD)


def run_job(job, out, moment=None, victim=0, number=signal.SIGKILL):
    """Start a run and, unless it ends before, stop one of its workers at a moment.

    Args:
        job: the `Job`.
        out: the run's folder, which is there.
        moment: (files, seconds): killed so long after so many temporary files have appeared.
        victim: the place of the worker that is stopped.
        number: the signal that stops it.

    Returns:
        Whether it was stopped, seconds from the start to each temporary file and to the end, and a
        line for each other worker that did not end as it should.

    Raises:
        RuntimeError: if it fails, or does not end.
    """
    start, seen, deadline, problems = time.monotonic(), [], None, []
    with run_files.Watch(out) as watch:
        processes = start_job(job, out)
        try:
            while any(process.poll() is None for process in processes):
                now = time.monotonic()
                if moment and deadline is None and len(seen) >= moment[0]:
                    deadline = now + moment[1]
                if deadline is not None and now >= deadline:
                    kill(processes[victim], number=number)
                    break
                if now - start > TIMEOUT:
                    raise RuntimeError(f"no end after {TIMEOUT} seconds; see {log_of(out, 0)}")
                names = watch.wait(0.05 if deadline is None else min(0.05, deadline - now))
                seen += [time.monotonic() - start] * len(names)
            # A command that handles a signal exits with 128 plus its number.
            killed = processes[victim].returncode in (-number, 128 + number)
            if killed:
                problems = _ends_alone(processes, out, victim)
        finally:
            kill(*processes)
    seen.append(time.monotonic() - start)
    if not killed and any(process.returncode for process in processes):
        codes = [process.returncode for process in processes]
        raise RuntimeError(f"exit status {codes}; see {log_of(out, codes.index(max(codes)))}")
    return killed, seen, problems


def _ends_alone(processes, out, victim):
    """Wait for the workers that are left to stop by themselves; one line for each that does not."""
    problems, deadline = [], time.monotonic() + DETECTION
    for place, process in enumerate(processes):
        if place == victim:
            continue
        try:
            status = process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            problems.append(
                f"worker {place} still runs {DETECTION} s after worker {victim} was killed"
            )
            continue
        lines = log_of(out, place).read_text(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        # A worker that needed nothing more from the other may end normally.
        if status and (status != 2 or len(errors) != 1 or "Another worker" not in errors[0]):
            problems.append(f"worker {place} ended with status {status} and {errors}")
    return problems
