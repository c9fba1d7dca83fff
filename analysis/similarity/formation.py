"""How representations form: a callback for `fit` that compares layers with earlier epochs."""

import hashlib
import os
import re
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias, cast

import keras
import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.data.any_images import batch_images
from vit_tf.data.files import write_whole
from vit_tf.data.labels import require_labels
from vit_tf.data.preprocessing import check_dtype, check_values
from vit_tf.features.conversion import as_features
from vit_tf.features.features import Features
from vit_tf.features.recorder import infer

from ..engine.least_squares import classify, fit_classifier
from ..engine.pooling import pool
from ..engine.preparation import ImagesLike
from ..engine.results import ALL, ResultDataset, as_result, model_name, require_finite, variable
from ..engine.stream import as_dataset
from ..engine.training_recorder import Recorder
from .cka import ESTIMATOR, LEAST_EXAMPLES, layer_kernels, similarity

STATE = re.compile(r"epoch-(\d+)\.nc")


class Kernels(NamedTuple):
    """U-centred kernels, float32 (layer, pair) batch by batch, and scales (layer, batch, 3)."""

    values: np.ndarray
    scales: np.ndarray


KERNEL_DIMS = {"values": ("layer", "pair"), "scales": ("layer", "batch", "scale")}
Probes: TypeAlias = tuple[list[np.ndarray], np.ndarray]  # batches of images, and all labels


def compare(before: Kernels, now: Kernels, sizes: np.ndarray, layers: Sequence[str]) -> np.ndarray:
    """CKA (layer,) of layers to themselves at another time, and its standard error."""
    both = (before, now)
    hsic = np.array([[_hsic(x, y, sizes) for y in both] for x in both])
    squares = np.array([kernels.scales[..., 1:].astype(np.float64).sum(axis=1) for kernels in both])
    estimates = [
        similarity(np.moveaxis(hsic[:, :, i], -1, 0), squares[:, i], (f"{layer} before", layer))
        for i, layer in enumerate(layers)
    ]
    return np.array(estimates)[:, :, 0, 1].T


def _hsic(x: Kernels, y: Kernels, sizes: np.ndarray) -> np.ndarray:
    """The unbiased HSIC of each layer and batch: float64 array of shape (layer, batch)."""
    first = np.concatenate([[0], np.cumsum(sizes**2)[:-1]])
    sums = np.add.reduceat(x.values.astype(np.float64) * y.values, first, axis=1)
    scale = x.scales[..., 0].astype(np.float64) * y.scales[..., 0]
    return sums / (sizes * (sizes - 3.0)) * scale


def kernels_of(record: xr.Dataset, when: str) -> Kernels:
    """The kernels at the `"start"`, or of the model as it is `"now"`, in a record."""
    return Kernels(*(record[f"{when}_{name}"].values for name in Kernels._fields))


def result_of(record: xr.Dataset) -> xr.Dataset:
    """The result so far, of dims (epoch, layer), in a record."""
    names = [name for name, variable in record.items() if variable.dims == ("epoch", "layer")]
    return cast(ResultDataset, as_result(record[names]))


def _states(folder: Path) -> dict[int, Path]:
    """Files of records by their epochs, in order."""
    paths = {int(m[1]): path for path in folder.glob("*.nc") if (m := STATE.fullmatch(path.name))}
    return dict(sorted(paths.items()))


L2 = 1024.0  # big_vision's default for its few-shot classifiers
EXPECTED = (
    "Expected features to map images to {layer: tensor} of the model being trained, such as "
    "vit_tf.submodel(model, 'block*'), or to map the model to such a callable"
)


class FormationRecorder(Recorder):
    """Records, while a model is trained, how its layers change and how well they classify.

    At the start of the training and then every `every` epochs, the callback records two things. The
    first is the CKA of each layer with the same layer at the start, and with the same layer at the
    previous record, on the same images (computed as by `cka` for two models). The second is the
    accuracy of a ridge classifier on the features of a few images (computed as by `few_shot` with
    one `l2`).

    The callback stores kernels of the images, not weights. A record costs one forward pass over the
    images. The forward pass is compiled once per `fit`. If the optimizer keeps a moving average of
    the weights, the weights without averaging are measured.

    If `folder` is given, a killed run can resume: `formation-state/` holds the two latest records.
    Put this callback before the callback that saves the weights. The run can then resume even if
    its saved weights are one epoch older than the last record. With several workers, only the first
    one writes.

    Args:
        features: callable from images to `{layer: tensor}` that shares the weights of the model
            being trained, such as `vit_tf.submodel(model, "block*/mlp/sum")`. It may also be a
            function from the model to such a callable, such as `lambda model:
            vit_tf.submodel(model, "block*/mlp/sum")`.
        images: images for CKA, an array of shape (example, height, width, channel) or a batched
            `tf.data.Dataset`. The images are read once. For each layer and batch, a kernel of shape
            (example, example) is stored.
        every: number of epochs between records.
        probes: tuple `(train, test, num_classes)`, or None for no classifiers. `train` and `test`
            are data sets of (images, labels), which are read once. The ridge classifiers are fitted
            on `train`, which has a few images, and scored on `test`, which has other images.
        l2: strength of the penalty of the ridge classifiers.
        folder: folder in which `formation.nc` and `formation-state/` are written; None writes
            nothing.
        log_dir: folder for TensorBoard scalars of each layer; None writes none.

    Raises:
        ValueError: if `every` or `l2` is out of range, if a batch has fewer than 4 images, or if a
            label is outside the classes. During training: if `features` has neither of the two
            forms described under `features`, if it does not belong to the model being trained, if a
            layer is constant or not finite, or if the records in `folder` belong to other images or
            to a later epoch.
    """

    def __init__(
        self,
        features: Callable,
        images: ImagesLike,
        *,
        every: int = 1,
        probes: tuple[Any, Any, int] | None = None,
        l2: float = L2,
        folder: str | os.PathLike | None = None,
        log_dir: str | os.PathLike | None = None,
    ) -> None:
        if every < 1 or l2 <= 0:
            raise ValueError(
                f"Expected every of at least 1 and l2 above 0. Received: every={every}, l2={l2}"
            )
        if not callable(features):
            raise ValueError(f"{EXPECTED}. Received: {features!r}")
        measure = {"formation": self._formation}
        batches = as_dataset(batch_images(images)).as_numpy_iterator()
        arrays = [batch[0] if isinstance(batch, tuple) else batch for batch in batches]
        super().__init__(measure, arrays, every, folder, log_dir)
        self._features, self._l2 = features, l2
        self._sizes = np.array([len(batch) for batch in self._images])
        if min(self._sizes, default=0) < LEAST_EXAMPLES:
            wanted = f"Expected batches of at least {LEAST_EXAMPLES} images"
            raise ValueError(f"{wanted}. Received: {self._sizes.tolist()}")
        self._probes = probes and _read_probes(*probes)
        # The records of the last two epochs hold the result so far and the kernels to go on from.
        self._records: dict[int, xr.Dataset] = {}
        self._layers: list[str] = []  # known from the first call of the model on

    @property
    def result(self) -> xr.Dataset:
        """Dataset of dims (epoch, layer); epoch 0 is before the training.

        The Dataset has `cka_to_start`, `cka_to_previous` (NaN in the first epoch) and their
        standard errors, `cka_to_start_stderr` and `cka_to_previous_stderr`. If there are probes, it
        also has `accuracy`.

        Raises:
            ValueError: if the training has not started.
        """
        if not self._records:
            raise ValueError(
                "The recorder has no results yet: pass it to model.fit(..., callbacks=[recorder])."
            )
        return result_of(self._records[max(self._records)])

    def on_train_begin(self, logs: Mapping | None = None) -> None:
        """Compiles what is measured, and reads what a killed run has recorded."""
        super().on_train_begin(logs)
        model = cast(keras.Model, self.model)
        features = _features_of(self._features, model, self._images[0][:1])
        self._name = model_name(features)
        for batch in self._images:
            check_dtype(features.facts, batch.dtype.name)
        check_values(features.facts, self._images[0])

        # One compiled function returns the kernels of all layers, another the pooled features.
        def kernels(images: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
            taps = features(images)
            self._layers = list(taps)
            return layer_kernels(taps.values())

        self._kernels = _compiled(kernels, self._images[0])
        self._rows = _compiled(lambda images: pool(features(images), ALL), self._images[0])
        # A run that goes on continues the records of the same images.
        if self._folder is not None and not self._records:
            paths = _states(self._folder / "formation-state")
            self._records = {epoch: xr.load_dataset(path) for epoch, path in paths.items()}
            digests = {record.attrs["images"] for record in self._records.values()}
            if digests - {self._digest()}:
                raise ValueError(
                    f"The records in {self._folder} are from other images, or another order of "
                    "them: use a new folder"
                )

    def on_train_end(self, logs: Mapping | None = None) -> None:
        """Writes the result again, which a finished run may lack."""
        if self._records and self._folder is not None and self._is_writer():
            self._write_result(self._folder)
        self._close_events()

    def _begin(self, epoch: int) -> bool:
        """Drops records of epochs that are trained again; whether the start is missing."""
        earlier = {number: record for number, record in self._records.items() if number <= epoch}
        if self._records and not earlier:
            raise ValueError(
                f"The records start at epoch {min(self._records)}, but this run starts at "
                f"epoch {epoch}: use a new recorder and folder"
            )
        self._records = earlier
        self._recorded = {"formation": {}}
        if earlier:
            rows = result_of(earlier[max(earlier)])
            for done in rows["epoch"].values.tolist():
                self._recorded["formation"][done] = rows.sel(epoch=done, drop=True)
        return not earlier

    def _formation(self, model: keras.Model, images: list[np.ndarray]) -> xr.Dataset:
        """The result (layer,) of the model as it is, which is compared with earlier records."""
        epoch = cast(int, self._last)
        last = self._records[max(self._records)] if self._records else None
        now, layers = self._kernels_now(), self._layers
        nothing = np.full((2, len(layers)), np.nan)
        if last is not None and list(last["layer"].values) != layers:
            names = ", ".join(last["layer"].values)
            raise ValueError(
                f"Expected the layers of the records, {names}. Received: {', '.join(layers)}"
            )
        # Compared with the first record and with the last one.
        start = now if last is None else kernels_of(last, "start")
        previous = None if last is None else kernels_of(last, "now")
        dims, variables = ("epoch", "layer"), {}
        for name, earlier, words in (
            ("cka_to_start", start, "CKA to the start"),
            ("cka_to_previous", previous, "CKA to the record before"),
        ):
            both = compare(earlier, now, self._sizes, layers) if earlier else nothing
            variables[name] = variable(dims, both[:1], words)
            variables[f"{name}_stderr"] = variable(dims, both[1:], f"standard error of {words}")
        if self._probes:
            accuracy = self._accuracy()[None]
            variables["accuracy"] = variable(dims, accuracy, "test accuracy of a ridge classifier")
        result = ResultDataset(variables, {"epoch": [epoch], "layer": layers}, self._facts())
        rows = result if last is None else xr.concat([result_of(last), result], "epoch")
        record = rows.assign(
            {
                f"{when}_{name}": (KERNEL_DIMS[name], values)
                for when, kernels in (("start", start), ("now", now))
                for name, values in kernels._asdict().items()
            }
        ).assign_attrs(self._facts())
        self._records = dict(list(self._records.items())[-1:]) | {epoch: record}
        return result.sel(epoch=epoch, drop=True)

    def _save(self, folder: Path) -> None:
        """Writes what a killed run needs to go on, then the result, and removes older records."""
        states, epoch = folder / "formation-state", max(self._records)
        path = states / f"epoch-{epoch:04d}.nc"
        write_whole(path, self._records[epoch].to_netcdf)
        for other, path in _states(states).items():
            if other not in self._records:
                path.unlink()
        self._write_result(folder)

    def _write_result(self, folder: Path) -> None:
        write_whole(folder / "formation.nc", self.result.to_netcdf)

    def _kernels_now(self) -> Kernels:
        """The `Kernels` of the model as it is."""
        values, scales = zip(*map(self._kernels, self._images), strict=True)
        flat = [np.asarray(kernels).reshape(len(kernels), -1) for kernels in values]
        return Kernels(np.concatenate(flat, axis=1), np.stack(scales, axis=1))

    def _accuracy(self) -> np.ndarray:
        """Accuracy of a ridge classifier on each layer: array of shape (layer,)."""
        (train, labels), (test, wanted), num_classes = cast(tuple, self._probes)
        train_rows, test_rows = self._pooled(train), self._pooled(test)
        accuracies = []
        for layer, x in train_rows.items():
            classifier = fit_classifier(x, labels, num_classes, [self._l2])
            accuracies.append((classify(test_rows[layer], *classifier)[0] == wanted).mean())
        return np.array(accuracies)

    def _pooled(self, batches: Sequence[np.ndarray]) -> dict[str, np.ndarray]:
        """Mean over tokens of each layer: dict to float64 array of shape (example, channel)."""
        parts = [tf.nest.map_structure(np.asarray, self._rows(images)) for images in batches]
        rows = {layer: np.concatenate([part[layer] for part in parts]) for layer in parts[0]}
        require_finite("ridge classifiers", list(rows.values()), rows)
        return rows

    def _facts(self) -> dict[str, Any]:
        """Attributes of the result."""
        facts = {
            "model": self._name,
            "examples": int(self._sizes.sum()),
            "units": "1",
            "batch_size": int(self._sizes.max()),
            "images": self._digest(),
        }
        facts["estimator"] = ESTIMATOR
        if self._probes:
            (_, labels), (_, wanted), num_classes = self._probes
            facts |= {"train_examples": len(labels), "test_examples": len(wanted)}
            facts |= {"num_classes": num_classes, "l2": self._l2, "tokens": ALL}
        return facts

    def _digest(self) -> str:
        """What identifies these images."""
        digest = hashlib.sha256()
        for batch in tf.nest.flatten([self._images, self._probes and self._probes[:2]]):
            digest.update(b"" if batch is None else np.ascontiguousarray(batch).tobytes())
        return digest.hexdigest()[:16]


def _features_of(features: Callable, model: keras.Model, images: np.ndarray) -> Features:
    """The callable from images to layers that `features` is, or that it reads from the model."""
    if isinstance(features, keras.Model):
        variable_ids = {id(variable) for variable in model.variables}
        if not variable_ids.issuperset(map(id, features.variables)):
            raise ValueError(
                f"The weights of {features.name!r} are not those of the model being trained. "
                f"{EXPECTED}."
            )
        return as_features(features)
    # A function may make features of the model, or be features of images: calling it shows which.
    returned = []
    for argument in (model, tf.convert_to_tensor(images)):
        try:
            made = infer(features, argument)
        except Exception as error:
            made = error
        if argument is model and callable(made):
            return as_features(made)
        if isinstance(made, Mapping):
            return as_features(features)
        returned.append(repr(made) if isinstance(made, Exception) else type(made).__name__)
    raise ValueError(
        f"{EXPECTED}. Received: {features!r}, which returns {returned[0]} for the model, and "
        f"{returned[1]} for images"
    )


def _compiled(step: Callable[[tf.Tensor], Any], images: np.ndarray) -> Callable[[np.ndarray], Any]:
    """A function of batches like `images`, of any number, traced once."""
    spec = tf.TensorSpec([None, *images.shape[1:]], images.dtype)
    return tf.function(step, input_signature=[spec], autograph=False)


def _read_probes(train: Any, test: Any, num_classes: int) -> tuple[Probes, Probes, int]:
    """Images, in batches, and labels of both data sets."""
    parts = []
    for subset, data in (("training", train), ("test", test)):
        images, labels = zip(*as_dataset(data).as_numpy_iterator(), strict=True)
        labels = np.concatenate(labels)
        require_labels(labels, num_classes, subset)
        parts.append((list(images), labels))
    return (*parts, num_classes)
