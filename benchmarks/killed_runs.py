"""Runs of a command that are killed at a moment, and their files: watched, checked, compared."""

import contextlib
import csv
import ctypes
import dataclasses
import io
import json
import os
import re
import select
import signal
import socket
import struct
import subprocess
import sys
import time
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Self, TypeAlias

import h5py
import numpy as np
from PIL import Image

from vit_tf.data.files import PARTIAL

# When a run is stopped: after so many temporary files, and so many seconds after the last.
Moment: TypeAlias = tuple[int, float]
Contents: TypeAlias = dict[str, Any]  # arrays, numbers and texts of a file, by name

CREATED, A_FOLDER = 0x100, 0x40000000  # IN_CREATE, IN_ISDIR


class Watch:
    """Sees the temporary files that appear in a folder and in the folders therein (Linux)."""

    def __init__(self, folder: str | Path) -> None:
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
        if self._descriptor < 0:
            raise OSError(ctypes.get_errno(), "Expected inotify to be there")
        self._folders = {}
        self._add(Path(folder))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        os.close(self._descriptor)

    def wait(self, seconds: float) -> list[str]:
        """Names of the temporary files that appeared, after so many seconds at the latest."""
        if not select.select([self._descriptor], [], [], max(seconds, 0))[0]:
            return []
        data, names = os.read(self._descriptor, 2**16), []
        while data:
            folder, mask, _, length = struct.unpack_from("iIII", data)
            name = data[16 : 16 + length].rstrip(b"\0").decode()
            data = data[16 + length :]
            if mask & A_FOLDER:
                names += self._add(self._folders[folder] / name)
            elif name.startswith(PARTIAL):
                names.append(name)
        return names

    def _add(self, folder: Path) -> list[str]:
        """Watch a folder too; the temporary files that are there already."""
        number = self._libc.inotify_add_watch(self._descriptor, bytes(folder), CREATED)
        if number < 0:  # gone again
            return []
        self._folders[number] = folder
        inside = sorted(folder.iterdir())
        names = [path.name for path in inside if path.name.startswith(PARTIAL)]
        return names + [name for path in inside if path.is_dir() for name in self._add(path)]


def finished(folder: Path) -> dict[str, Path]:
    """The files that a run would accept as complete: dict from relative path to path."""
    paths = (path for path in sorted(Path(folder).rglob("*")) if path.is_file())
    return {
        str(path.relative_to(folder)): path
        for path in paths
        if not path.name.startswith(".") and ".tfevents." not in path.name
    }


def problems_of(folder: Path) -> list[str]:
    """One line for each corrupt file in a folder that a run would accept as complete."""
    problems = []
    for name, path in finished(folder).items():
        try:
            read(path)
        except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
            problems.append(f"{name} is corrupt: {type(error).__name__}: {error}")
    return problems


def read(path: Path) -> Contents:
    """The contents of a file to compare, arrays and texts by name; it raises if not whole."""
    return READERS[path.suffix](path)


def made_once(folder: Path) -> dict[str, tuple[int, int]]:
    """Results, figures and models that no later run makes again: inode and time by path."""
    files = finished(folder)
    names = [name for name in files if name.startswith("results/") and "scorecard" not in name]
    if manifest := files.get("figures/keys.json"):
        names += [f"figures/{name}.png" for name in json.loads(manifest.read_text())]
    models = [name for name in files if name.startswith("models/")]
    names += [name for name in models if name.replace(".keras", ".json") in files]
    stats = {name: files[name].stat() for name in names}
    return {name: (stat.st_ino, stat.st_mtime_ns) for name, stat in stats.items()}


def compare(folder: Path, reference: Path, tolerance: float = 0.0) -> tuple[float, int, list[str]]:
    """(Largest difference of two numbers, files compared, a line for each file that differs)."""
    files, expected = (_without_earlier_states(finished(path)) for path in (folder, reference))
    problems = [f"{name} is only in one folder" for name in sorted(set(files) ^ set(expected))]
    left = [p.name for p in Path(folder).rglob(".*") if p.name.startswith(PARTIAL)]
    problems += [f"{name} is left over" for name in left]
    both = sorted(set(files) & set(expected))
    pairs = {name: (read(files[name]), read(expected[name])) for name in both}
    pairs["tensorboard"] = logged(folder), logged(reference)
    largest = 0.0
    for name, contents in pairs.items():
        difference, same = _compare_contents(*contents)
        largest = max(largest, difference)
        if not (same or difference <= tolerance > 0):
            problems.append(f"{name} is not the same (largest difference {difference:.3g})")
    return largest, len(pairs), problems


def _without_earlier_states(paths: dict[str, Path]) -> dict[str, Path]:
    """Files without the states before the last: a killed run has them of other steps."""
    from vit_tf.training.checkpointing import saved_states

    runs = {path.parent.parent for path in paths.values() if path.parent.name == "state"}
    earlier = {state for run in runs for state in saved_states(run)[:-1]}
    return {name: path for name, path in paths.items() if path not in earlier}


def logged(folder: Path) -> Contents:
    """What runs logged for TensorBoard: dict from folder, tag and step to least and largest."""
    from tensorflow import make_ndarray
    from tensorflow.compat.v1.train import summary_iterator
    from tensorflow.errors import DataLossError

    points = {}
    for path in sorted(Path(folder).rglob("*.tfevents.*")):
        place = str(path.parent.relative_to(folder))
        with contextlib.suppress(DataLossError):  # where a killed run was cut off
            for event in summary_iterator(str(path)):
                for value in event.summary.value:
                    if value.metadata.plugin_data.plugin_name == "scalars":
                        key = f"{place} {value.tag} {event.step}"
                        points.setdefault(key, []).append(float(make_ndarray(value.tensor)))
    return {key: np.array([min(some), max(some)]) for key, some in points.items()}


def _compare_contents(contents: Contents, expected: Contents) -> tuple[float, bool]:
    """Largest difference, infinite for other than numbers; whether all is the same bit for bit."""
    if contents.keys() != expected.keys():
        return np.inf, False
    largest, same = 0.0, True
    for name, values in contents.items():
        values, other = np.asarray(values), np.asarray(expected[name])
        if values.shape == other.shape and values.dtype.kind in "fiu":
            gap = np.abs(values.astype(float) - other.astype(float))
            largest = max(largest, float(np.max(gap, initial=0.0)))
            same &= values.tobytes() == other.tobytes()
        elif values.shape != other.shape or values.tolist() != other.tolist():
            largest, same = np.inf, False
    return largest, bool(same)


def _hdf5(file: Path | io.BytesIO) -> Contents:
    """The arrays of an HDF5 file, which netCDF files are too."""
    arrays = {}
    with h5py.File(file) as opened:
        opened.visititems(
            lambda name, item: arrays.update({name: item[()]} if hasattr(item, "dtype") else {})
        )
    return {name: np.asarray(array) for name, array in arrays.items()}


def _keras(path: Path) -> Contents:
    with zipfile.ZipFile(path) as file:
        if file.testzip() is not None:
            raise ValueError("wrong checksum")
        return _hdf5(io.BytesIO(file.read("model.weights.h5")))


def _npz(path: Path) -> Contents:
    """The arrays of a state, and its history as arrays."""
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    meta = json.loads(arrays.pop("meta").tobytes())
    history = {f"history of {name}": np.array(values) for name, values in meta["history"].items()}
    return arrays | history | {"names": np.array(meta["names"])}


def _json(path: Path) -> Contents:
    """The facts of a JSON file, without the times and places of the run."""
    facts = json.loads(path.read_text())
    facts.pop("options", None)
    facts.get("row", {}).pop("training (s)", None)
    return {
        name: fact if isinstance(fact, float) else json.dumps(fact, sort_keys=True)
        for name, fact in facts.items()
    }


def _csv(path: Path) -> Contents:
    with open(path, newline="") as file:
        names, *rows = csv.reader(file)
    return {name: np.array(column, float) for name, *column in zip(names, *rows, strict=True)}


def _png(path: Path) -> Contents:
    with Image.open(path) as image:
        return {"pixels": np.asarray(image)}


def _html(path: Path) -> Contents:
    """That a page is whole and all that it links to is there; its times differ."""
    page = path.read_text()
    if not page.rstrip().endswith("</html>"):
        raise ValueError("incomplete page")
    for link in re.findall(r'(?:href|src)="([^"#:]+)"', page):
        if not (path.parent / link).is_file():
            raise ValueError(f"broken link to {link}")
    return {}


READERS = {".keras": _keras, ".npz": _npz, ".nc": lambda path: _hdf5(path)}
READERS |= {".json": _json, ".csv": _csv, ".png": _png, ".html": _html}


TIMEOUT = 600  # seconds that a run may take
GRACE_PERIOD = 30  # seconds between SIGTERM and SIGKILL on a preemptible machine
DETECTION = 60  # seconds within which a worker must detect that another died


@dataclasses.dataclass(frozen=True)
class Job:
    """What is run: a command, its arguments without `--out`, and in how many workers."""

    script: str
    arguments: str
    workers: int = 1
    tolerance: float = 0.0  # of a number, compared with that of an uninterrupted run
    signals: tuple[int, ...] = (signal.SIGKILL,)  # with which it is stopped, in turn


def log_of(out: Path, worker: int) -> Path:
    """The file of what a worker of the latest run in a folder printed."""
    return Path(f"{out}.{worker}.log")


def start_job(job: Job, out: Path) -> list[subprocess.Popen]:
    """Start the processes of a run, each in a group of its own; list of `Popen`."""
    words = [sys.executable, "-m", "vit_tf", job.script, *job.arguments.split()]
    addresses, processes = ",".join(_free_addresses(job.workers)), []
    for worker in range(job.workers):
        variables = {"VIT_TF_WORKERS": addresses, "VIT_TF_WORKER": str(worker)}
        variables = variables if job.workers > 1 else {}
        how = {"env": os.environ | variables | {"PYTHONPATH": str(Path(__file__).parents[1])}}
        how |= {"stderr": subprocess.STDOUT, "start_new_session": True}
        with open(log_of(out, worker), "wb") as log:
            processes.append(subprocess.Popen([*words, "--out", str(out)], stdout=log, **how))
    return processes


def _free_addresses(count: int) -> list[str]:
    """Addresses on this machine whose ports nobody listens on."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    addresses = [f"127.0.0.1:{listener.getsockname()[1]}" for listener in sockets]
    for listener in sockets:
        listener.close()
    return addresses


def kill(*processes: subprocess.Popen, number: int = signal.SIGKILL) -> None:
    """Stop processes, and their children, at once; raises if one does not end."""
    for process in processes:
        if process.poll() is None:
            os.killpg(process.pid, number)
    for process in processes:
        process.wait(GRACE_PERIOD)


def run_job(
    job: Job, out: Path, moment: Moment | None = None, victim: int = 0, number: int = signal.SIGKILL
) -> tuple[bool, list[float], list[str]]:
    """(Whether it was stopped, seconds to each temporary file and the end, lines on other workers).

    At a `moment`, so many (files, seconds) after it started, the worker `victim` is sent the signal
    `number`.
    """
    start, times, deadline, problems = time.monotonic(), [], None, []
    with Watch(out) as watch:
        processes = start_job(job, out)
        try:
            while any(process.poll() is None for process in processes):
                now = time.monotonic()
                if moment and deadline is None and len(times) >= moment[0]:
                    deadline = now + moment[1]
                if deadline is not None and now >= deadline:
                    kill(processes[victim], number=number)
                    break
                if now - start > TIMEOUT:
                    raise RuntimeError(f"no end after {TIMEOUT} seconds; see {log_of(out, 0)}")
                names = watch.wait(0.05 if deadline is None else min(0.05, deadline - now))
                times += [time.monotonic() - start] * len(names)
            # A command that handles a signal exits with 128 plus its number.
            killed = processes[victim].returncode in (-number, 128 + number)
            if killed:
                problems = _ends_alone(processes, out, victim)
        finally:
            kill(*processes)
    times.append(time.monotonic() - start)
    if not killed and any(process.returncode for process in processes):
        codes = [process.returncode for process in processes]
        raise RuntimeError(f"exit status {codes}; see {log_of(out, codes.index(max(codes)))}")
    return killed, times, problems


def _ends_alone(processes: Sequence[subprocess.Popen], out: Path, victim: int) -> list[str]:
    """Wait for the workers that are left to stop by themselves; one line for each that does not."""
    problems, deadline = [], time.monotonic() + DETECTION
    for worker, process in enumerate(processes):
        if worker == victim:
            continue
        try:
            status = process.wait(max(deadline - time.monotonic(), 0))
        except subprocess.TimeoutExpired:
            problems.append(
                f"worker {worker} still runs {DETECTION} s after worker {victim} was killed"
            )
            continue
        lines = log_of(out, worker).read_text(errors="replace").splitlines()
        errors = [line for line in lines if line.startswith("error: ")]
        # A worker that needed nothing more from the other may end normally.
        if status and (status != 2 or len(errors) != 1 or "Another worker" not in errors[0]):
            problems.append(f"worker {worker} ended with status {status} and {errors}")
    return problems
