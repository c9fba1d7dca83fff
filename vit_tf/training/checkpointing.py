"""Reads and writes the files of a training run, so that a kill at any moment corrupts none.

A folder holds `configuration.json`, the last states, such as `state/epoch-0007.npz` (everything
needed to resume after seven epochs) or `state/epoch-0007-step-000120.npz` (after 120 steps of the
eighth), `best.keras` and `log.csv`. Each is written under another name, flushed to the disk and
then renamed, so that it is complete or absent; for addresses see `remote.write_remote`. A
state is a zip archive, whose checksums are compared when it is read.
"""

import collections
import concurrent.futures
import contextlib
import csv
import dataclasses
import io
import json
import logging
import os
import pathlib
import re
import tempfile
import time
import zipfile
import zlib

import numpy as np

from vit_tf.distribute.cluster import is_chief, of_every_worker, wait_for_workers
from vit_tf.files import write_whole
from vit_tf.names import file_error
from vit_tf.remote import PARTIAL, as_path, is_remote, without_password

log = logging.getLogger("vit_tf.training")

_SHARING_TIMEOUT = 30  # seconds that a file of one worker may take to appear on another
_STATE = re.compile(r"epoch-(\d+)(?:-step-(\d+))?\.npz")
_MAX_STEPS = 2**40  # more than an epoch has


@dataclasses.dataclass
class Progress:
    """How far a run has come: `history`, dict of lists with an entry for each epoch done; `step`,
    how many steps of the next one; `metrics`, arrays of the totals of these steps.
    """

    history: dict = dataclasses.field(default_factory=dict)
    step: int = 0
    metrics: tuple = ()


class BackgroundWriter:
    """Writes files in a thread; two may wait in memory, and the next call raises its errors."""

    def __init__(self):
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "vit_tf-writer")
        self._pending = collections.deque()

    def submit(self, write):
        """Calls a function without arguments in the thread; waits if two others wait already."""
        self._wait(1)
        self._pending.append(self._pool.submit(write))

    def finish(self):
        """Returns when everything is written."""
        self._wait(0)

    def _wait(self, most):
        while len(self._pending) > most or (self._pending and self._pending[0].done()):
            self._pending.popleft().result()


def write_on_chief(path, write):
    """`files.write_whole`, on the chief of several workers, who must all call this and wait."""
    if is_chief():
        write_whole(path, write)
    else:
        # What writes may itself reduce or make variables, in which every worker must take part.
        with tempfile.TemporaryDirectory() as folder:
            write(os.path.join(folder, os.path.basename(path)))
    wait_for_workers()


def save_model(model, path):
    """Write a model to a `.keras` file, whole or not at all."""
    write_on_chief(path, model.save)


def save_best(model, path, writer):
    """Write a model without its optimizer in a writer's thread; all workers must call this."""
    with tempfile.TemporaryDirectory() as folder, _without_optimizer(model):
        copy = pathlib.Path(folder) / os.path.basename(path)
        model.save(copy)
        content = copy.read_bytes()
    if is_chief():
        writer.submit(lambda: write_whole(path, lambda partial: partial.write_bytes(content)))


@contextlib.contextmanager
def _without_optimizer(model):
    """A model as if it had never been compiled, within a `with`."""
    optimizer, compiled = model.optimizer, model.compiled
    model.optimizer, model.compiled = None, False
    try:
        yield
    finally:
        model.optimizer, model.compiled = optimizer, compiled


def remove_leftovers(directory):
    """Remove the temporary files that a killed run may have left in a folder and its state."""
    if not is_chief():
        return
    for folder in (as_path(directory), as_path(directory) / "state"):
        for path in list(folder.glob(f"{PARTIAL}*")):
            path.unlink()


def describe_model(model):
    """Class, settings and precision, as a dict, without names, which Keras counts up."""
    return {
        "class": type(model).__name__,
        "precision": model.dtype_policy.name,
        "config": _without_names(model.get_config()),
        "weights": [[v.name, *v.shape] for v in model.weights],
    }


def check_shared(directory):
    """Check that every worker of a run sees the states and the configuration of the chief."""
    deadline = time.monotonic() + _SHARING_TIMEOUT
    path = as_path(directory) / "configuration.json"
    while not path.is_file():
        if time.monotonic() > deadline:
            break
        time.sleep(0.1)
    newest = max((_position(state.name) for state in saved_states(directory)), default=0)
    newest_states = of_every_worker(newest if path.is_file() else -1)
    if len(set(newest_states)) > 1 or newest_states[0] < 0:
        places = [
            divmod(place, _MAX_STEPS) if place >= 0 else "no configuration"
            for place in newest_states
        ]
        raise ValueError(
            f"Expected {without_password(directory)!r} to be a folder that all workers share. "
            f"Received: workers that find these epochs and steps in it: {places}"
        )


def check_configuration(configuration, directory):
    """Write a run's configuration, or compare it with its folder's; an error names what differs."""
    path = as_path(directory) / "configuration.json"
    text = json.dumps(configuration, indent=1, sort_keys=True, default=str)
    if not saved_states(directory):
        write_on_chief(path, lambda temporary: pathlib.Path(temporary).write_text(text))
        return
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Expected {str(path)!r} next to the saved state. Received: {file_error(error, path)}"
        ) from error
    # Of runs of earlier versions the number of replicas and the images are not known.
    for field in {"replicas", "images"} & configuration.keys():
        saved.setdefault(field, configuration[field])
    differing = _differences(saved, json.loads(text))
    if differing:
        more = f" and {len(differing) - 8} more" if len(differing) > 8 else ""
        raise ValueError(
            "Expected the configuration of the run in "
            f"{without_password(directory)!r} to resume it. "
            f"Received another: {'; '.join(differing[:8])}{more}"
        )


def save_state(model, history, directory, step=0, metrics=(), keep=2, writer=None):
    """Write what is needed to resume a run, then remove all but the last `keep` states."""
    # What `numpy` returns may share the memory that the next step overwrites.
    arrays = {f"v{i:05d}": np.array(v.numpy()) for i, v in enumerate(_variables(model))}
    arrays |= {f"metric{i:02d}": array for i, array in enumerate(metrics)}
    meta = {"history": history, "names": [v.name for v in model.variables]}
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    path = state_path(directory, history, step)

    def write():
        write_whole(path, lambda partial: np.savez(partial, **arrays))
        # A state of later steps is a corrupt one, instead of which an earlier one was restored.
        position = _position(path.name)
        before = [state for state in saved_states(directory) if _position(state.name) < position]
        remaining = [path, *before[len(before) + 1 - keep :]]
        for state in saved_states(directory):
            if state not in remaining:
                state.unlink()

    if is_chief():
        write() if writer is None else writer.submit(write)
    if writer is None:
        wait_for_workers()


def state_path(directory, history, step=0):
    """Path of the state of a run after the epochs of its history and some steps of the next."""
    name = f"epoch-{num_epochs(history):04d}" + (f"-step-{step:06d}" if step else "")
    return as_path(directory) / "state" / f"{name}.npz"


def restore_state(model, directory):
    """The `Progress` of the newest intact state, loaded into a model and its optimizer."""
    states = saved_states(directory)
    if not states:
        return Progress()
    problem = None
    for path in reversed(states):
        try:
            meta, arrays, metrics = _read_state(path)
        except ValueError as error:
            log.warning("%s", error)
            problem = problem or error
        else:
            break
    else:
        raise ValueError(
            f"{problem}. No earlier state is left: remove {str(path.parent)!r} to start again"
        )
    if problem:
        log.warning("The run resumes from the earlier state %r", str(path))
    history, names, variables = meta["history"], meta["names"], _variables(model)
    shapes = [tuple(v.shape) for v in variables]
    if shapes != [a.shape for a in arrays] or names != [v.name for v in model.variables]:
        raise ValueError(
            f"Expected {str(path)!r} to be the state of this model and optimizer, "
            f"{len(variables)} variables. Received: {len(arrays)}, or other shapes or names"
        )
    for variable, array in zip(variables, arrays, strict=True):
        # NumPy reads back bfloat16 as two raw bytes.
        variable.assign(array.view(variable.dtype) if array.dtype.kind == "V" else array)
    return Progress(history, _position(path.name) % _MAX_STEPS, metrics)


def _read_state(path):
    """What a state holds: the `meta` of `save_state`, the variables and the metrics' totals."""
    try:
        source = io.BytesIO(path.read_bytes()) if is_remote(path) else path
        with np.load(source, allow_pickle=False) as file:
            meta = json.loads(file["meta"].tobytes())
            metrics = [file[name] for name in file.files if name.startswith("metric")]
            arrays = [file[f"v{i:05d}"] for i in range(len(file.files) - len(metrics) - 1)]
        return {name: meta[name] for name in ("history", "names")}, arrays, metrics
    except (OSError, EOFError, KeyError, ValueError, zipfile.BadZipFile, zlib.error) as error:
        raise ValueError(
            f"Expected {str(path)!r} to be an intact training state. Received a corrupt file "
            f"({type(error).__name__}: {error})"
        ) from error


def write_log(history, directory):
    """Write `log.csv`: one row per epoch, counted from 1."""
    rows = list(zip(*history.values(), strict=True))

    def write(temporary):
        with open(temporary, "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["epoch", *history])
            table.writerows([epoch, *row] for epoch, row in enumerate(rows, start=1))

    write_on_chief(os.path.join(directory, "log.csv"), write)


def saved_states(directory):
    """Paths of the states in a run's folder, oldest first."""
    folder = as_path(directory) / "state"
    states = [path for path in folder.glob("*.npz") if _STATE.fullmatch(path.name)]
    return sorted(states, key=lambda path: _position(path.name))


def _position(name):
    """The position in a run of a state's name: one whole number."""
    epochs, steps = _STATE.fullmatch(name).groups()
    return int(epochs) * _MAX_STEPS + int(steps or 0)


def _variables(model):
    """Everything that training changes: weights, seeds and the optimizer's variables."""
    return [*model.variables, *model.optimizer.variables]


def num_epochs(history):
    """Number of epochs that a history has."""
    return len(next(iter(history.values()), ()))


def _without_names(config):
    if isinstance(config, dict):
        unwanted = ("name", "inbound_nodes", "input_layers", "output_layers", "class_names")
        return {k: _without_names(v) for k, v in config.items() if k not in unwanted}
    return [_without_names(v) for v in config] if isinstance(config, list | tuple) else config


def _differences(saved, now):
    """One line for each field that differs between two nested dicts."""
    saved, now = flatten(saved), flatten(now)
    absent = object()
    return [
        f"{field}: {saved.get(field, 'absent')!r} there, {now.get(field, 'absent')!r} now"
        for field in sorted(saved | now)
        if saved.get(field, absent) != now.get(field, absent)
    ]


def flatten(tree, prefix=""):
    """`{"recipe.epochs": 10}` from `{"recipe": {"epochs": 10}}`."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    parts = (flatten(v, f"{prefix}.{k}" if prefix else k) for k, v in tree.items())
    return {field: value for part in parts for field, value in part.items()}
