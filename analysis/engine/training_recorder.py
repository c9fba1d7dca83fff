"""A Keras callback that measures a model while it is trained."""

import os
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import keras
import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.common.names import format_list, lookup, unknown_name
from vit_tf.data.files import write_whole

from .results import as_result
from .stream import as_dataset, this_worker

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# From a model and images to a labelled result.
Measure: TypeAlias = Callable[..., xr.DataArray | xr.Dataset]
LAYER_DIMS = ("layer", "layer_x")


class Recorder(keras.callbacks.Callback):
    """Keras callback that measures a model before training and after every few epochs.

    It works with `fit` of any Keras model, including subclassed models, and with any measurement
    that can be called as `measure(model, images)`. A model without weights is built from the first
    of the images. The callback does not change the weights, the optimizer or the random numbers of
    the training. If there are several workers, only the first worker writes files.

    With `folder`, a stopped run can resume with a new `Recorder`: `fit(..., initial_epoch=n)` keeps
    the records of the epochs before `n` that the folder holds.

    Args:
        measurements: a list of measurements, as names such as `"cka"` or as functions. To pass
            other arguments to a measurement, use a dict from name to a function of the model and
            the images.
        images: images, or images and labels, for all measurements.
        every: number of epochs between two measurements. The last epoch is always measured.
        folder: folder for the results, or None. The results of the measurement NAME are written to
            `NAME.nc` in this folder after every measured epoch.
        log_dir: folder for TensorBoard, or None. The mean of each variable in each layer is
            written as a scalar.

    Attributes:
        results: dict from the name of a measurement to a DataArray or Dataset with the dim `epoch`.
            The coordinate `epoch` is the number of epochs of training before the measurement.

    Raises:
        ValueError: if a measurement is unknown, or if `every` is below 1. During `fit`: the errors
            of the measurements, and an error if `folder` holds later epochs than the one from which
            the run starts, or the records of other layers.

    Examples:
        >>> recorder = analysis.Recorder(["cka", "attention_distance"], images, every=2)
        >>> vit.compile("sgd", keras.losses.SparseCategoricalCrossentropy(from_logits=True))
        >>> history = vit.fit(images, labels, epochs=2, verbose=0, callbacks=[recorder])
        >>> recorder.results["attention_distance"].epoch.values.tolist()
        [0, 2]
        >>> ax = recorder.plot("attention_distance")

    See also:
        `FormationRecorder`, which compares every epoch with the one before; page
        measurements/similarity/formation.md.
    """

    def __init__(
        self,
        measurements: Sequence[str | Measure] | Mapping[str, Measure],
        images: Any,
        every: int = 1,
        folder: str | os.PathLike | None = None,
        log_dir: str | os.PathLike | None = None,
    ) -> None:
        super().__init__()
        if not isinstance(every, int) or every < 1:
            raise ValueError(
                f"Expected every= to be a number of epochs, at least 1. Received: {every!r}"
            )
        self._measures = _measures_by_name(measurements)
        self._images, self._every = images, every
        self._folder = None if folder is None else Path(folder)
        self._log_dir = None if log_dir is None else os.fspath(log_dir)
        self._recorded: dict[str, dict[int, xr.DataArray | xr.Dataset]] = {}
        self._is_loaded = False  # whether what is recorded was read from the folder
        self._last: int | None = None
        self._writer: Any = None  # a `tf.summary.SummaryWriter` from the first writing on

    @property
    def results(self) -> dict[str, xr.DataArray | xr.Dataset]:
        """The results over the epochs: dict from the name of a measurement to its result."""
        return {
            name: _concat_epochs(result_by_epoch)
            for name, result_by_epoch in self._recorded.items()
            if result_by_epoch
        }

    def plot(self, name: str | None = None, ax: "Axes | None" = None) -> "Axes":
        """Draws a measurement over the epochs.

        Args:
            name: name of the measurement. None draws all measurements, one below the other.
            ax: Matplotlib axes to draw in. None creates a figure.

        Returns:
            The Matplotlib axes, as from `analysis.plot(recorder.results[name])`. If there are
            several measurements, the axes of their panels are `ax.panels`.

        Raises:
            ValueError: if nothing is recorded yet, if `name` is not a recorded measurement, or if
                `ax` is given without a `name` for several measurements.

        Examples:
            >>> ax = recorder.plot("attention_distance")
        """
        from vit_tf import analysis

        results = self.results
        if not results:
            raise ValueError(
                "The recorder has no results yet: pass it to model.fit(..., callbacks=[recorder])."
            )
        if name is not None or len(results) == 1:
            return analysis.plot(lookup("measurement", name or next(iter(results)), results), ax)
        if ax is not None:
            raise ValueError(
                "The recorder has several results. Select the one to draw with name=: "
                f"{format_list(list(results))}."
            )
        import matplotlib.pyplot as plt

        # One panel below the other, for all measurements.
        size = 7.2, 3.4 * len(results)
        _, axes = plt.subplots(len(results), figsize=size, layout="constrained")
        drawn = [analysis.plot(*pair) for pair in zip(results.values(), axes, strict=True)]
        vars(drawn[0])["panels"] = np.array(drawn)
        return drawn[0]

    def on_train_begin(self, logs: Mapping | None = None) -> None:
        """Marks the start of a `fit`, whose first epoch decides whether the records continue."""
        self._last = None
        model = cast(keras.Model, self.model)
        if not model.built:
            batch = next(iter(as_dataset(self._images)))
            images = batch[0] if isinstance(batch, tuple) else batch
            with model.distribute_strategy.scope():
                model(tf.cast(images[:1], "float32"), training=False)
        if self._folder is not None and not self._recorded:
            self._recorded = self._load(self._folder)

    def on_epoch_begin(self, epoch: int, logs: Mapping | None = None) -> None:
        """Measures the model before its first epoch."""
        if self._last is None:
            self._last = epoch
            if self._begin(epoch):
                self._record(epoch)

    def on_epoch_end(self, epoch: int, logs: Mapping | None = None) -> None:
        """Measures the model after every few epochs."""
        self._last = epoch + 1
        if self._last % self._every == 0:
            self._record(self._last)

    def on_train_end(self, logs: Mapping | None = None) -> None:
        """Measures the trained model, unless its last epoch was measured."""
        if self._last is None:  # there was no epoch
            return
        if any(self._last not in of_epochs for of_epochs in self._recorded.values()):
            self._record(self._last)
        self._close_events()

    def _close_events(self) -> None:
        """Closes the file of events, so that another training begins one of its own."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None

    def _load(self, folder: Path) -> dict[str, dict[int, xr.DataArray | xr.Dataset]]:
        """What an earlier run recorded in the folder, by measurement and epoch."""
        recorded = {}
        for name in self._measures:
            path = folder / f"{name}.nc"
            if path.exists():
                result = as_result(xr.load_dataset(path))
                epochs = result["epoch"].values.tolist()
                recorded[name] = {epoch: result.sel(epoch=epoch, drop=True) for epoch in epochs}
        self._is_loaded = bool(recorded)
        return recorded

    def _begin(self, epoch: int) -> bool:
        """Keeps what was recorded up to an epoch; whether the model is measured before it."""
        last = max((done for results in self._recorded.values() for done in results), default=0)
        if self._is_loaded and epoch == 0 and last > 0:
            raise ValueError(
                f"{self._folder} holds records of epochs up to {last}, but this run starts at "
                f"epoch 0. Continue with fit(..., initial_epoch={last}), or choose a new "
                "folder."
            )
        self._is_loaded = False
        # Records of epochs that this run is about to repeat are dropped.
        earlier = {
            name: {done: result for done, result in of_epochs.items() if done <= epoch and epoch}
            for name, of_epochs in self._recorded.items()
        }
        self._recorded = {name: earlier.get(name, {}) for name in self._measures}
        return any(epoch not in of_epochs for of_epochs in self._recorded.values())

    def _record(self, epoch: int) -> None:
        """Measures the model as it is after so many epochs, and writes what is recorded."""
        for name, measure in self._measures.items():
            result = measure(self.model, self._images)
            _require_same_layers(name, result, self._recorded[name])
            self._recorded[name][epoch] = result
        if not self._is_writer():
            return
        if self._folder is not None:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._save(self._folder)
        if self._log_dir is not None:
            # One file of events for a call of `fit`, as TensorBoard's own callback writes.
            if self._writer is None:
                self._writer = tf.summary.create_file_writer(self._log_dir)
            with self._writer.as_default(step=epoch):
                for name, of_epochs in self._recorded.items():
                    for tag, value in scalars_of(of_epochs[epoch]).items():
                        tf.summary.scalar(f"{name}/{tag}", value)
            self._writer.flush()

    def _save(self, folder: Path) -> None:
        """Writes all that is recorded."""
        for name, result in self.results.items():
            write_whole(folder / f"{name}.nc", partial(result.to_netcdf, engine="h5netcdf"))

    def _is_writer(self) -> bool:
        """Whether this process writes: the first of several workers does."""
        return this_worker(cast(keras.Model, self.model).distribute_strategy)[0] == 0


def _concat_epochs(result_by_epoch: dict[int, xr.DataArray | xr.Dataset]) -> Any:
    """The results of all epochs as one, with the dim `epoch`."""
    epochs = sorted(result_by_epoch)
    return xr.concat(
        cast(list[xr.Dataset], [result_by_epoch[epoch] for epoch in epochs]),
        xr.DataArray(epochs, dims="epoch", name="epoch"),
        combine_attrs="override",
    )


def _require_same_layers(
    name: str, result: xr.DataArray | xr.Dataset, earlier: Mapping[int, xr.DataArray | xr.Dataset]
) -> None:
    """Raises a `ValueError` if a result is of other layers than the records of earlier epochs."""
    for record in list(earlier.values())[-1:]:
        for dim in LAYER_DIMS:
            before, now = (
                list(each[dim].values) if dim in each.dims else [] for each in (record, result)
            )
            if before != now:
                raise ValueError(
                    f"The layers of {name} differ from those of earlier epochs. Expected: "
                    f"{format_list(before)}. Received: {format_list(now)}"
                )


def _measures_by_name(measurements: Any) -> dict[str, Measure]:
    from vit_tf import analysis

    if isinstance(measurements, Mapping):
        return dict(measurements)
    measurements = [measurements] if isinstance(measurements, str) else list(measurements)
    measures = {}
    for measure in measurements:
        if isinstance(measure, str):
            known = [name for name in dir(analysis) if hasattr(getattr(analysis, name), "kind")]
            if measure not in known:
                raise unknown_name("measurement", measure, known)
            measure = getattr(analysis, measure)
        measures[measure.__name__] = measure
    return measures


def scalars_of(result: xr.DataArray | xr.Dataset) -> dict[str, float]:
    """The mean of each variable of a result in each of its layers, by `"variable/layer"`."""
    dataset = result if isinstance(result, xr.Dataset) else result.to_dataset(name="value")
    scalars = {}
    for name, values in dataset.data_vars.items():
        if values.dtype.kind not in "fiu":
            continue
        prefix = "" if name == "value" else f"{name}/"
        # One number for each layer, the mean over all other dims; without layers a single mean.
        layer_dim = next((dim for dim in LAYER_DIMS if dim in values.dims), None)
        if layer_dim is None:
            scalars[f"{prefix}mean"] = float(np.nanmean(values))
            continue
        means = values.mean([dim for dim in values.dims if dim != layer_dim])
        for layer, value in zip(means[layer_dim].values, means.values, strict=True):
            scalars[f"{prefix}{layer}"] = float(value)
    return scalars
