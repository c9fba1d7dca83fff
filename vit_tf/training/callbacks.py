"""Callbacks of a run: SIGTERM, saved states, and validation of averaged weights."""

import contextlib
import math
import os
import signal
import tempfile
import threading
from pathlib import Path

import keras
import numpy as np

from vit_tf.backend import on_jax
from vit_tf.distribute.cluster import num_workers, of_every_worker, wait_for_workers
from vit_tf.files import write_whole
from vit_tf.remote import is_remote, without_password
from vit_tf.training import checkpointing

# Steps after which several workers ask each other whether one is to end.
ASK_EVERY = 10


class Preemption:
    """Catches SIGTERM within a `with` of the main thread, so that a run saves its state."""

    def __init__(self):
        self._signalled = False
        self._previous_handler = None

    def __enter__(self):
        if threading.current_thread() is threading.main_thread():
            self._previous_handler = (
                signal.signal(signal.SIGTERM, self._on_signal) or signal.SIG_DFL
            )
        return self

    def __exit__(self, kind, *_):
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            if self._signalled and kind is None:
                signal.raise_signal(signal.SIGTERM)

    def requested(self):
        """Whether this process or another worker was asked to end; all workers must call this."""
        self._signalled = bool(of_every_worker(self._signalled).any())
        return self._signalled

    def deliver(self):
        """Let SIGTERM do what it does outside of the `with`; returns if the process goes on."""
        self._signalled = False
        if self._previous_handler is not None:
            signal.signal(signal.SIGTERM, self._previous_handler)
            signal.raise_signal(signal.SIGTERM)
            signal.signal(signal.SIGTERM, self._on_signal)

    def _on_signal(self, number, frame):
        self._signalled = True


class Checkpoint(keras.callbacks.Callback):
    """Writes the best model, the state and the log of a run, and ends it when it is asked to.

    The state is written after each epoch, every `save_every` steps, and on SIGTERM. The first epoch
    of a run that was stopped in one takes only the steps that are left of it. The best model is
    saved at the end of the validation, when averaged weights, if any, are still in place: put this
    callback before `AverageValidation`. A ValueError, before any file is touched, for a loss that
    is not finite.
    """

    def __init__(
        self,
        directory,
        progress,
        steps,
        preemption,
        save_every=None,
        average=None,
        still_alone=lambda: None,
        keep=2,
    ):
        super().__init__()
        self._still_alone, self._keep = still_alone, keep
        self._writer = checkpointing.BackgroundWriter()
        self.directory, self.history = directory, progress.history
        self._steps, self._preemption = steps, preemption
        self._save_every, self._averages = save_every, average is not None
        self._average = average or contextlib.nullcontext()
        # Of the epoch: steps done before this process and in all, totals then and at its end.
        self._before = self._done = progress.step
        self._metrics, self._cut = progress.metrics, False

    def on_epoch_begin(self, epoch, logs=None):
        self._done = self._before
        if self._before:
            self._restore_totals()
        if self._before == self._steps:
            # Keras takes one step at least.
            real, model = self.model.train_function, self.model
            results = model.get_metrics_result()

            def take_no_step(*state_and_iterator):
                model.train_function = real
                return (results, state_and_iterator[0]) if on_jax() else results

            model.train_function = take_no_step

    def on_train_batch_end(self, batch, logs=None):
        saved = self._saves_until(self._done)
        self._done = min(self._before + batch + 1, self._steps)
        saves = self._saves_until(self._done) > saved
        now = saves or not self._done % ASK_EVERY or self._done == self._steps
        if now or not on_jax():  # where the host would wait for each step
            self._check_finite(logs["loss"])
        if self._done == self._steps:
            self._metrics = self._totals()
            if self._before and not self.model.stop_training:
                # Ends the loop over the steps of this epoch; the validation goes on with the run.
                self.model.stop_training = self._cut = True
        # Workers ask each other, which takes longer than a small step.
        asks = num_workers() == 1 or not self._done % ASK_EVERY or self._done == self._steps
        asked = asks and self._preemption.requested()
        if asked or saves:
            self.save()
        if asked:
            self._deliver()

    def _deliver(self):
        self.finish_files()
        wait_for_workers()
        self._preemption.deliver()

    def on_test_begin(self, logs=None):
        if self._cut:
            self.model.stop_training = self._cut = False

    def on_test_batch_end(self, batch, logs=None):
        asks = num_workers() == 1 or not (batch + 1) % ASK_EVERY
        if asks and self._preemption.requested():
            attach_variables(self.model)
            with self._average:
                self.save()
                self._deliver()

    def on_test_end(self, logs=None):
        self._check_finite(logs["loss"])
        if logs["accuracy"] > max(self.history.get("val_accuracy", ()), default=-1):
            self._save_best()

    def _save_best(self):
        path = os.path.join(self.directory, "best.keras")
        checkpointing.save_best(self.model, path, self._writer)

    def on_epoch_end(self, epoch, logs=None):
        if "val_loss" not in logs:
            self.on_test_begin()  # there was none
            with self._average.in_place() if self._averages else contextlib.nullcontext():
                self._save_best()
        row = {name: float(value) for name, value in logs.items()}
        row["learning_rate"] = float(self.model.optimizer.learning_rate)
        for name, value in row.items():
            self.history.setdefault(name, []).append(value)
        self._before = self._done = 0
        self._save_state()
        checkpointing.write_log(self.history, self.directory)

    def save(self):
        """Write the state in the middle of an epoch."""
        ended = self._done == self._steps  # the totals may be those of the validation
        metrics = self._metrics if ended else self._totals()
        self._save_state(self._done, metrics)

    def _save_state(self, *within):
        self._still_alone()
        attach_variables(self.model)
        how = {"keep": self._keep, "writer": self._writer}
        checkpointing.save_state(self.model, self.history, self.directory, *within, **how)

    def finish_files(self):
        """Returns when all files of this worker are written."""
        self._writer.finish()

    def save_if_validating(self):
        """Write the state of a run whose validation, not a training step, has failed."""
        if self._done == self._steps:
            with self._average:
                self.save()

    def _restore_totals(self):
        """Give the metrics the totals of the steps before this process."""
        variables = self.model.metrics_variables
        shapes = [tuple(variable.shape) for variable in variables]
        received = [np.shape(total) for total in self._metrics]
        if received != shapes:
            path = checkpointing.state_path(self.directory, self.history, self._before)
            raise ValueError(
                f"Expected {without_password(str(path))!r} to hold the totals of {len(shapes)} "
                f"metric variables, of shapes {shapes}. Received: {len(received)}, of shapes "
                f"{received}, which another version of vit_tf wrote; remove this file, and the "
                "run resumes from the state before it"
            )
        for variable, total in zip(variables, self._metrics, strict=True):
            variable.assign(total)

    def _totals(self):
        attach_variables(self.model)
        return [np.asarray(variable) for variable in self.model.metrics_variables]

    def _saves_until(self, done):
        """How many saves are due after so many steps of the epoch, of those between epochs."""
        steps = checkpointing.num_epochs(self.history) * self._steps + done
        return steps // self._save_every if self._save_every else 0

    def _check_finite(self, loss):
        if not math.isfinite(loss):
            raise ValueError(
                f"Expected the loss to stay finite. Received: loss={float(loss)} in epoch "
                f"{checkpointing.num_epochs(self.history) + 1}; try a smaller learning_rate or a "
                "longer warm-up. "
                f"The files of earlier epochs in {without_password(self.directory)!r} are intact"
            )


class AverageValidation(keras.callbacks.Callback):
    """Validates averaged weights of an optimizer with `use_ema`, exchanged without rounding."""

    def __init__(self):
        super().__init__()
        self._in_place = False

    def on_test_begin(self, logs=None):
        self._swap()

    def on_test_end(self, logs=None):
        self._swap()

    @contextlib.contextmanager
    def in_place(self):
        """The averages instead of the weights, within a `with` outside of a validation."""
        self._swap()
        try:
            yield
        finally:
            self._swap()

    def __enter__(self):
        self._validating = self._in_place
        if self._validating:
            self._swap()

    def __exit__(self, *_):
        if self._validating:
            self._swap()

    def _swap(self):
        optimizer = self.model.optimizer
        # With `mixed_float16` Keras wraps it in one that scales the loss.
        optimizer = getattr(optimizer, "inner_optimizer", optimizer)
        averages = optimizer._model_variables_moving_average
        for weight, average in zip(optimizer._trainable_variables, averages, strict=True):
            held = keras.ops.copy(weight.value)
            weight.assign(keras.ops.copy(average.value))
            average.assign(held)
        self._in_place = not self._in_place


def attach_variables(model):
    """Give a model in JAX, whose `fit` holds the variables meanwhile, those of the last step."""
    if on_jax():
        model.jax_state_sync()


def tensorboard(folder):
    """Callbacks that log for TensorBoard to a folder, which may be an address."""
    if not is_remote(folder):
        return [keras.callbacks.TensorBoard(folder, write_graph=False)]
    return _Uploaded(folder).callbacks


class _Uploaded(keras.callbacks.Callback):
    """Copies what TensorBoard's callback logs on this machine to an address, after each epoch."""

    def __init__(self, folder):
        super().__init__()
        self._folder, self._local = folder, tempfile.TemporaryDirectory()
        self._sizes = {}
        self.callbacks = [keras.callbacks.TensorBoard(self._local.name, write_graph=False), self]

    def on_epoch_end(self, epoch, logs=None):
        local = Path(self._local.name)
        for path in (path for path in local.rglob("*") if path.is_file()):
            if self._sizes.get(path) != (size := path.stat().st_size):
                name = path.relative_to(local).as_posix()
                content = path.read_bytes()
                write_whole(f"{self._folder}/{name}", lambda copy, c=content: copy.write_bytes(c))
                self._sizes[path] = size

    def on_train_end(self, logs=None):
        self.on_epoch_end(None)
        self._local.cleanup()
