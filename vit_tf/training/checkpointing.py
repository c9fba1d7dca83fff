"""The files of a training run, which a kill at any moment does not corrupt, and their callbacks.

A folder holds `configuration.json`, the last states, such as `state/epoch-0007.npz` (everything
needed to resume after seven epochs) or `state/epoch-0007-step-000120.npz` (after 120 steps of the
eighth), `best.keras` and `log.csv`. Each is written under another name, flushed to the disk and
then renamed, so that it is complete or absent; for addresses see `files.write_remote`. A
state is a zip archive, whose checksums are compared when it is read.
"""

import concurrent.futures
import csv
import dataclasses
import io
import json
import logging
import math
import os
import re
import shutil
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias, cast

import keras
import numpy as np
import tensorflow as tf
from etils import epath

from vit_tf.common.backend import on_jax
from vit_tf.common.names import file_error, format_list, without_password
from vit_tf.data.files import as_path, is_remote, write_whole
from vit_tf.distribute.strategies import is_chief, num_workers, of_every_worker, wait_for_workers

log = logging.getLogger("vit_tf.training")

_STATE = re.compile(r"epoch-(\d+)(?:-step-(\d+))?\.npz")
_MAX_STEPS = 2**40  # more than an epoch has
_SHARING_TIMEOUT = 30  # seconds that a file of one worker may take to appear on another
# What `fit` returns and a validation adds, by name: a number for each epoch.
History: TypeAlias = dict[str, list[float]]


@dataclasses.dataclass
class Progress:
    """How far a run has come: `history`, dict of lists with an entry for each epoch done; `step`,
    how many steps of the next one; `metrics`, arrays of the totals of these steps; `stopped_of`,
    the number of epochs of the run that a callback has ended before its last one, otherwise 0.
    """

    history: dict = dataclasses.field(default_factory=dict)
    step: int = 0
    metrics: Sequence[np.ndarray] = ()
    stopped_of: int = 0


class BackgroundWriter:
    """Writes files in a thread; at most two wait in memory. Later calls raise its errors."""

    def __init__(self):
        self._pool = concurrent.futures.ThreadPoolExecutor(1, "vit_tf-writer")
        self._pending = []

    def submit(self, write: Callable[[], object]) -> None:
        """Calls a function without arguments in the thread; waits if two others wait already."""
        while len(self._pending) > 1:
            self._pending.pop(0).result()
        self._pending.append(self._pool.submit(write))

    def finish(self) -> None:
        """Returns when everything is written."""
        while self._pending:
            self._pending.pop(0).result()


def write_on_chief(path: str | os.PathLike, write: Callable[[Path], object]) -> None:
    """`files.write_whole`, on the chief of several workers, who must all call this and wait."""
    if is_chief():
        write_whole(path, write)
    else:
        # What writes may itself reduce or make variables, in which every worker must take part.
        with tempfile.TemporaryDirectory() as folder:
            write(Path(folder) / os.path.basename(path))
    wait_for_workers()


def save_best(model: keras.Model, path: str | os.PathLike, writer: BackgroundWriter) -> None:
    """Write a model without its optimizer in a writer's thread; all workers must call this."""
    optimizer, compiled = model.optimizer, model.compiled
    model.optimizer, model.compiled = None, False
    folder = tempfile.TemporaryDirectory()
    copy = Path(folder.name) / os.path.basename(path)
    try:
        model.save(copy)
    finally:
        model.optimizer, model.compiled = optimizer, compiled

    def write() -> None:
        with folder:
            write_whole(path, lambda partial: shutil.copyfile(copy, partial))

    if is_chief():
        writer.submit(write)
    else:
        folder.cleanup()


def describe_model(model: keras.Model) -> dict[str, Any]:
    """Class, settings and precision as a dict, without the names that Keras numbers."""
    return {
        "class": type(model).__name__,
        "precision": model.dtype_policy.name,
        "config": _without_names(config_of(model)),
        "weights": [[v.name, *v.shape] for v in model.weights],
    }


def config_of(model: keras.Model) -> dict:
    """The configuration of a model; empty for a class of the user's that does not define it."""
    try:
        return model.get_config()
    except NotImplementedError:
        return {}


def describe_optimizer(optimizer: keras.optimizers.Optimizer) -> dict[str, Any]:
    """Class and settings as a dict, without the names that Keras numbers."""
    return _without_names(keras.saving.serialize_keras_object(optimizer))


def check_shared(directory: str | os.PathLike) -> None:
    """Raises a `ValueError` unless every worker finds a run's configuration and newest state."""
    path, states = as_path(directory) / "configuration.json", saved_states(directory)
    # Other machines may see a file of a network file system seconds after it is written.
    deadline = time.monotonic() + _SHARING_TIMEOUT
    while not path.is_file() and time.monotonic() <= deadline:
        time.sleep(0.1)
    newest = _position(states[-1].name) if states else 0
    newest = of_every_worker(newest if path.is_file() else -1)
    if len(set(newest)) > 1 or newest[0] < 0:
        places = [
            divmod(int(place), _MAX_STEPS) if place >= 0 else "no configuration" for place in newest
        ]
        raise ValueError(
            f"The workers do not share the folder {without_password(directory)!r}: the newest "
            f"(epoch, step) that each finds in it is {places}"
        )


# What a run writes into its folder, besides its configuration, its states and TensorBoard's files.
RUN_FILES = ("best.keras", "log.csv", "model.keras", "result.json", "formation.nc", "formation.png")


def check_configuration(configuration: dict, directory: str | os.PathLike) -> None:
    """Write a run's configuration, or compare it with its folder's; an error names what differs.

    A recipe of more epochs extends the run: its configuration takes the place of the folder's.
    """
    path = as_path(directory) / "configuration.json"
    text = json.dumps(configuration, indent=1, sort_keys=True, default=str)
    if not saved_states(directory):
        names = [name for name in RUN_FILES if (path.parent / name).exists()]
        if names and not path.exists():
            raise ValueError(
                f"The output folder {without_password(directory)!r} holds "
                f"{format_list(names)}, which no run wrote: move these files, or choose "
                "another folder"
            )
        wait_for_workers()  # until all have looked
        write_on_chief(path, lambda temporary: Path(temporary).write_text(text))
        return
    try:
        saved = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise ValueError(
            f"Cannot read {without_password(path)!r}, which belongs to the saved state: "
            f"{file_error(error, path)}"
        ) from error
    now = json.loads(text)
    epochs, more_epochs = (config.get("recipe", {}).get("epochs", 0) for config in (saved, now))
    is_extended = more_epochs > epochs > 0
    if is_extended:
        saved["recipe"]["epochs"] = more_epochs
    saved, now = flatten(saved), flatten(now)
    absent = object()
    differing = [
        f"{field}: {saved.get(field, 'absent')!r} there, {now.get(field, 'absent')!r} now"
        for field in sorted(saved | now)
        if saved.get(field, absent) != now.get(field, absent)
    ]
    if differing:
        raise ValueError(
            f"The run in {without_password(directory)!r} has another configuration. Repeat its "
            "options to resume it, or choose another folder. Differences: "
            f"{format_list(differing, '; ')}"
        )
    if is_extended:
        if is_chief():
            log.warning(
                "The run in %r is extended from %d to %d epochs; from here on, its learning rate "
                "follows the schedule of %d epochs",
                *(without_password(directory), epochs, more_epochs, more_epochs),
            )
        wait_for_workers()  # until all have read the file
        write_on_chief(path, lambda temporary: Path(temporary).write_text(text))


def save_state(
    model: keras.Model,
    history: History,
    directory: str | os.PathLike,
    step: int = 0,
    metrics: Sequence[np.ndarray] = (),
    keep: int = 2,
    writer: BackgroundWriter | None = None,
    stopped_of: int = 0,
) -> None:
    """Write what is needed to resume a run, then remove all but the last `keep` states."""
    # Typed as Any: a type checker would match arrays with `allow_pickle` of `numpy.savez`.
    arrays: dict[str, Any] = {
        # In memory that the next step does not overwrite.
        f"v{i:05d}": np.array(v.value if on_jax() else tf.convert_to_tensor(v.value))
        for i, v in enumerate(_variables(model))
    }
    arrays |= {f"metric{i:02d}": array for i, array in enumerate(metrics)}
    meta = {"history": history, "names": [v.name for v in model.variables]}
    meta |= {"stopped_of": stopped_of}
    arrays["meta"] = np.frombuffer(json.dumps(meta).encode(), np.uint8)
    name = f"epoch-{num_epochs(history):04d}" + (f"-step-{step:06d}" if step else "")
    path = as_path(directory) / "state" / f"{name}.npz"

    def write() -> None:
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


def restore_state(model: keras.Model, directory: str | os.PathLike) -> Progress:
    """The `Progress` of the newest intact state, loaded into a model and its optimizer."""
    states = saved_states(directory)
    if not states:
        return Progress()
    for path in reversed(states):
        try:
            meta, arrays, metrics = _read_state(path)
            break
        except ValueError as error:
            log.warning("%s", error)
            if path == states[0]:
                raise ValueError(
                    f"{error}. No earlier state is left: remove "
                    f"{without_password(path.parent)!r} to start again"
                ) from error
    if path != states[-1]:
        log.warning("The run resumes from the earlier state %r", without_password(path))
    history, names, variables = meta["history"], meta["names"], _variables(model)
    shapes = [tuple(v.shape) for v in variables]
    if shapes != [a.shape for a in arrays] or names != [v.name for v in model.variables]:
        raise ValueError(
            f"The state {without_password(path)!r} is not of this model and optimizer: it has "
            f"{len(arrays)} variables instead of {len(variables)}, or other shapes or names"
        )
    for variable, array in zip(variables, arrays, strict=True):
        # NumPy reads back bfloat16 as two raw bytes.
        variable.assign(array.view(variable.dtype) if array.dtype.kind == "V" else array)
    step = _position(path.name) % _MAX_STEPS
    return Progress(history, step, metrics, meta["stopped_of"])


def _read_state(
    path: Path | epath.Path,
) -> tuple[dict, list[np.ndarray], list[np.ndarray]]:
    """What a state holds: the `meta` of `save_state`, the variables and the metrics' totals."""
    try:
        source = io.BytesIO(path.read_bytes()) if is_remote(path) else path
        with np.load(source, allow_pickle=False) as file:
            meta = json.loads(file["meta"].tobytes())
            metrics = [file[name] for name in file.files if name.startswith("metric")]
            arrays = [file[f"v{i:05d}"] for i in range(len(file.files) - len(metrics) - 1)]
        if missing := {"history", "names", "stopped_of"} - set(meta):
            raise KeyError(*missing)
        return meta, arrays, metrics
    except Exception as error:  # of whatever kind the corrupt bytes cause
        raise ValueError(
            f"The training state {without_password(path)!r} is corrupt "
            f"({type(error).__name__}: {error})"
        ) from error


def write_log(history: History, directory: str | os.PathLike) -> None:
    """Write `log.csv`: one row per epoch, counted from 1."""
    rows = list(zip(*history.values(), strict=True))

    def write(temporary: Path) -> None:
        with open(temporary, "w", newline="") as file:
            table = csv.writer(file)
            table.writerow(["epoch", *history])
            table.writerows([epoch, *row] for epoch, row in enumerate(rows, start=1))

    write_on_chief(os.path.join(directory, "log.csv"), write)


def saved_states(directory: str | os.PathLike) -> list:
    """Paths of the states in a run's folder, oldest first."""
    folder = as_path(directory) / "state"
    states = [path for path in folder.glob("*.npz") if _STATE.fullmatch(path.name)]
    return sorted(states, key=lambda path: _position(path.name))


def _position(name: str) -> int:
    """The position in a run of a state's name: one whole number."""
    epochs, steps = cast(re.Match[str], _STATE.fullmatch(name)).groups()
    return int(epochs) * _MAX_STEPS + int(steps or 0)


def _variables(model: keras.Model) -> list[keras.Variable]:
    """Everything that training changes: weights, seeds and the optimizer's variables."""
    return [*model.variables, *model.optimizer.variables]


def num_epochs(history: History) -> int:
    """Number of epochs that a history has."""
    return len(next(iter(history.values()), ()))


def _without_names(config: Any) -> Any:
    if isinstance(config, dict):
        unwanted = ("name", "inbound_nodes", "input_layers", "output_layers", "class_names")
        return {k: _without_names(v) for k, v in config.items() if k not in unwanted}
    return [_without_names(v) for v in config] if isinstance(config, list | tuple) else config


def flatten(tree: Any, prefix: str = "") -> dict[str, Any]:
    """`{"recipe.epochs": 10}` from `{"recipe": {"epochs": 10}}`."""
    if not isinstance(tree, dict):
        return {prefix: tree}
    parts = (flatten(v, f"{prefix}.{k}" if prefix else k) for k, v in tree.items())
    return {field: value for part in parts for field, value in part.items()}


# Steps after which several workers ask each other whether one is to end.
ASK_EVERY = 10


class Preemption:
    """Catches SIGTERM within a `with` of the main thread, so that a run saves its state."""

    def __init__(self):
        self._signalled = False
        self._previous_handler = None

    def __enter__(self) -> "Preemption":
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = (
                signal.signal(signal.SIGTERM, self._on_signal) or signal.SIG_DFL
            )
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            if self._signalled and kind is None:
                signal.raise_signal(signal.SIGTERM)

    def requested(self) -> bool:
        """Whether this process or another worker was asked to end; all workers must call this."""
        asked = bool(of_every_worker(self._signalled).any())
        # A signal can arrive while the workers are asked: it is kept for the next time, when all
        # hear of it.
        self._signalled = self._signalled or asked
        return asked

    def deliver(self) -> None:
        """Let SIGTERM do what it does outside of the `with`; returns if the process goes on."""
        self._signalled = False
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            signal.raise_signal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number: int, frame: Any) -> None:
        self._signalled = True


class Checkpoint(keras.callbacks.Callback):
    """Writes the best model, the state and the log of a run, and ends it when it is asked to.

    With an average of the weights, the average is validated and is the best model; states hold the
    weights and their average as training left them.
    """

    def __init__(
        self,
        directory: str | os.PathLike,
        progress: Progress,
        steps: int,
        preemption: Preemption,
        save_every: int | None,
        still_alone: Callable[[], None],
        keep: int,
    ):
        super().__init__()
        self._still_alone, self._keep = still_alone, keep
        self.writer = BackgroundWriter()
        self.directory, self.history = directory, progress.history
        self._steps, self._preemption, self._save_every = steps, preemption, save_every
        # The steps of this epoch done before this process and in all, and the totals at its end.
        self._before = self._done = progress.step
        self._metrics, self._cut, self._is_average = progress.metrics, False, False

    def on_epoch_begin(self, epoch: int, logs: dict | None = None) -> None:
        self._done = self._before
        if self._before:
            # The metrics go on with the totals of the steps before this process.
            variables = self.model.metrics_variables
            for variable, total in zip(variables, self._metrics, strict=True):
                variable.assign(total)
        if self._before == self._steps:
            # Keras takes one step at least.
            real, model = self.model.train_function, self.model
            results = model.get_metrics_result()

            def take_no_step(*state_and_iterator: Any) -> Any:
                model.train_function = real
                return (results, state_and_iterator[0]) if on_jax() else results

            model.train_function = take_no_step

    def on_train_batch_end(self, batch: int, logs: dict) -> None:
        saved = self._saves_until(self._done)
        self._done = min(self._before + batch + 1, self._steps)
        saves, ends = self._saves_until(self._done) > saved, self._done == self._steps
        is_tenth = ends or not self._done % ASK_EVERY
        if is_tenth or saves or not on_jax():  # where the host would wait for each step
            self._check_finite(logs["loss"])
        if ends:
            self._metrics = self._totals()
            if self._before and not self.model.stop_training:
                # Ends the loop over the steps of this epoch; the validation goes on with the run.
                self.model.stop_training = self._cut = True
        # Workers ask each other, which takes longer than a small step.
        asked = (is_tenth or num_workers() == 1) and self._preemption.requested()
        if asked or saves:
            self.save()
        if asked:
            self._deliver()

    def on_test_begin(self, logs: dict | None = None) -> None:
        if self._cut:
            self.model.stop_training = self._cut = False
        self._swap()

    def on_test_batch_end(self, batch: int, logs: dict | None = None) -> None:
        asks = num_workers() == 1 or not (batch + 1) % ASK_EVERY
        if asks and self._preemption.requested():
            attach_variables(self.model)
            self.save()
            self._deliver()

    def on_test_end(self, logs: dict) -> None:
        self._check_finite(logs["loss"])
        if logs["accuracy"] > max(self.history.get("val_accuracy", ()), default=-1):
            save_best(self.model, os.path.join(self.directory, "best.keras"), self.writer)
        self._swap()

    def on_epoch_end(self, epoch: int, logs: dict) -> None:
        if "val_loss" not in logs:
            self.on_test_begin()  # there was none
            save_best(self.model, os.path.join(self.directory, "best.keras"), self.writer)
            self._swap()
        row = {name: float(value) for name, value in logs.items()}
        # A callback that has lowered the rate after this epoch has logged the one of the epoch.
        row.setdefault("learning_rate", float(self.model.optimizer.learning_rate))
        for name, value in row.items():
            self.history.setdefault(name, []).append(value)
        self._before = self._done = 0
        self._save_state()
        write_log(self.history, self.directory)

    def on_train_end(self, logs: dict | None = None) -> None:
        """Writes the state of a run that a callback has stopped, which is not trained further."""
        if self.model.stop_training:
            self._save_state(stopped_of=self.params["epochs"])

    def save(self) -> None:
        """Write the state in the middle of an epoch or of its validation."""
        is_average = self._is_average
        if is_average:
            self._swap()
        # After the last step, the totals may be those of the validation.
        metrics = self._metrics if self._done == self._steps else self._totals()
        self._save_state(self._done, metrics)
        if is_average:
            self._swap()

    def save_if_validating(self) -> None:
        """Write the state of a run whose validation, not a training step, has failed."""
        if self._done == self._steps:
            self.save()

    def _save_state(
        self, step: int = 0, metrics: Sequence[np.ndarray] = (), stopped_of: int = 0
    ) -> None:
        self._still_alone()
        attach_variables(self.model)
        save_state(
            self.model,
            self.history,
            self.directory,
            step,
            metrics,
            keep=self._keep,
            writer=self.writer,
            stopped_of=stopped_of,
        )

    def _deliver(self) -> None:
        self.writer.finish()
        wait_for_workers()
        self._preemption.deliver()

    def _swap(self) -> None:
        """Exchanges the weights of the model with their average, if there is one."""
        # Keras' `SwapEMAWeights` adds and subtracts them, which rounds.
        optimizer = inner_optimizer(self.model)
        if not optimizer.use_ema:
            return
        averages = optimizer._model_variables_moving_average
        for weight, average in zip(optimizer._trainable_variables, averages, strict=True):
            held = keras.ops.copy(weight.value)
            weight.assign(keras.ops.copy(average.value))
            average.assign(held)
        self._is_average = not self._is_average

    def _totals(self) -> list[np.ndarray]:
        attach_variables(self.model)
        return [np.asarray(variable) for variable in self.model.metrics_variables]

    def _saves_until(self, done: int) -> int:
        """How many saves are due after so many steps of the epoch, of those between epochs."""
        steps = num_epochs(self.history) * self._steps + done
        return steps // self._save_every if self._save_every else 0

    def _check_finite(self, loss: float) -> None:
        if not math.isfinite(loss):
            raise ValueError(
                f"The loss became {float(loss)} in epoch {num_epochs(self.history) + 1}. Try a "
                "smaller learning_rate or a longer warm-up. The files of earlier epochs in "
                f"{without_password(self.directory)!r} are intact."
            )


def inner_optimizer(model: keras.Model) -> keras.optimizers.Optimizer:
    """The optimizer that holds the average of a model's weights."""
    # With `mixed_float16` Keras wraps it in one that scales the loss.
    return getattr(model.optimizer, "inner_optimizer", model.optimizer)


def attach_variables(model: keras.Model) -> None:
    """Give a model in JAX, whose `fit` holds the variables meanwhile, those of the last step."""
    if on_jax():
        model.jax_state_sync()


def tensorboard(folder: str | os.PathLike) -> list[keras.callbacks.Callback]:
    """Callbacks that log for TensorBoard to a folder, which may be an address."""
    if not is_remote(folder):
        return [keras.callbacks.TensorBoard(folder, write_graph=False)]
    return _Uploaded(folder).callbacks


class _Uploaded(keras.callbacks.Callback):
    """Copies what TensorBoard's callback logs on this machine to an address, after each epoch."""

    def __init__(self, folder: str | os.PathLike):
        super().__init__()
        self._folder, self._local = folder, tempfile.TemporaryDirectory()
        self.callbacks = [keras.callbacks.TensorBoard(self._local.name, write_graph=False), self]

    def on_epoch_end(self, epoch: int, logs: dict | None = None) -> None:
        for path in Path(self._local.name).rglob("*"):
            if path.is_file():
                name, content = path.relative_to(self._local.name).as_posix(), path.read_bytes()
                write_whole(f"{self._folder}/{name}", lambda copy, c=content: copy.write_bytes(c))

    def on_train_end(self, logs: dict | None = None) -> None:
        self.on_epoch_end(0)
        self._local.cleanup()
