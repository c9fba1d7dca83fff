"""Linear probes: softmax classifiers of every layer, trained at once by gradient descent."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, TypeAlias, cast

import keras
import numpy as np
import tensorflow as tf
import xarray as xr
from keras import ops
from tqdm.auto import tqdm

from vit_tf.data.batches import without_autotune
from vit_tf.data.labels import require_labels
from vit_tf.features.conversion import LayerSelection, ModelLike
from vit_tf.features.layers import Detail

from ..engine.measurements import labels_after_images, measurement
from ..engine.pooling import Pooled, pooled_statistic
from ..engine.preparation import ImagesLike, prepare_labelled
from ..engine.results import ALL, CLS, SPATIAL, ResultArray, provenance
from ..engine.stream import one_pass

EPSILON = 1e-6  # of the batch normalisation of MAE
MOMENTUM = 0.9
SCORED = 1024  # examples that are scored in one call


Key: TypeAlias = tuple[str, str | None]  # a layer, and the word for its tokens
FeaturesByKey: TypeAlias = dict[Key, np.ndarray]  # arrays (example, channel)


@measurement("outputs", arguments="{model}, train, {images}")
@labels_after_images
def linear_probe(
    model: ModelLike,
    train: ImagesLike,
    test: ImagesLike | None = None,
    num_classes: int | None = None,
    *,
    tokens: str | Sequence[str] | None = None,
    batch_norm: bool | Sequence[bool] = (False, True),
    epochs: int = 20,
    batch_size: int = 256,
    learning_rate: float = 2.0,
    seed: int = 0,
    layers: LayerSelection = None,
    detail: Detail = None,
) -> xr.DataArray:
    """Test accuracy of a softmax classifier trained by gradient descent on every layer.

        logits = W x / r + b,    r^2 = mean of |x|^2 over the training images

    The model is frozen. Its pooled features x are used without change, or after batch normalisation
    without scale and shift (He et al. 2021, MAE, appendix A.1; Walmer et al. 2023, section E.4 and
    table 6). The classifier is trained by SGD with momentum 0.9, no weight decay and a cosine decay
    to 0, as in the linear evaluation of Caron et al. 2021 (DINO, `eval_linear.py`). W and b start
    at 0. Dividing the features of a layer by r is equivalent to dividing the learning rate of W by
    r^2. With features divided by r, the curvature of the loss is at most 1, so one learning rate
    suits the features of all layers.

    All probes are trained together as one Keras model, whose loss is the sum of their losses. The
    update of a probe does not depend on other probes, so the result is the same as if each probe
    were trained alone. The pooled features of all images are stored in memory, as an array of shape
    (example, channel) for each layer and choice of tokens.

    Args:
        model, train, test, num_classes: as in `vit_tf.analysis`.
        tokens: the tokens whose features are classified, as one word or several. `"cls"` is the CLS
            token, `"spatial"` is the mean of the spatial tokens, and `"all"` is the mean of all
            tokens. None means `("cls", "spatial")` for a model with a CLS token, and `"all"` for
            other models.
        batch_norm: whether to use batch normalisation: False, True or both. In training, it uses
            the statistics of the batch; afterwards, it uses the statistics of all training images.
        epochs: number of passes over the training images.
        batch_size: number of examples per step. The last incomplete batch of an epoch is not used.
        learning_rate: initial learning rate for a batch size of 256. It is scaled in proportion to
            the batch size.
        seed: seed of the order of the training images.

    Returns:
        DataArray of test accuracies of shape (layer, tokens, batch_norm). The coordinate
        `training_loss` of the same shape is the mean cross-entropy of the trained probe on the
        training images.

    Raises:
        ValueError: if `tokens` is unknown, if labels are not classes, if features are not finite or
            all zero, or if `epochs`, `batch_size` or `learning_rate` is not above 0.

    Examples:
        >>> train, test = (images[:16], labels[:16]), (images[16:], labels[16:])
        >>> accuracy = analysis.linear_probe(vit, train, test, epochs=2)
        >>> accuracy.dims
        ('layer', 'tokens', 'batch_norm')
        >>> accuracy.tokens.values.tolist()
        ['cls', 'spatial']
        >>> ax = analysis.plot(accuracy)

    See also:
        `plots.plot_linear_probe`, `ridge_probe`, `knn_accuracy`; page
        measurements/probes/linear-probe.md.
    """
    features, (train, test), num_classes = prepare_labelled(
        model,
        {"train": train, "test": test},
        num_classes,
        kind="outputs",
        layers=layers,
        detail=detail,
        keep_order=True,
    )
    settings = {"epochs": epochs, "batch_size": batch_size, "learning_rate": learning_rate}
    if wrong := {name: value for name, value in settings.items() if not value > 0}:
        received = ", ".join(f"{name}={value}" for name, value in wrong.items())
        raise ValueError(f"Expected {', '.join(wrong)} above 0. Received: {received}")
    grid = features.facts.grid
    if tokens is None:
        tokens = (CLS, SPATIAL) if grid is not None and grid.prefix else ALL
    # One pass over each set of images pools the features of all choices of tokens.
    words: list[str] = np.atleast_1d(tokens).tolist()
    requests = {word: (pooled_statistic(word, grid), features) for word in words}
    pooled = []
    for subset, data in (("training", train), ("test", test)):
        totals = one_pass(requests, data, f"linear probes: {subset} images")
        pooled.append([requests[word][0].finish(totals[word]) for word in words])
    fitted, tested = pooled
    return fit_linear_probe(
        features,
        fitted,
        tested,
        num_classes,
        batch_norm=np.atleast_1d(batch_norm).tolist(),
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )


def fit_linear_probe(
    features: object,
    fitted: Sequence[Pooled],
    tested: Sequence[Pooled],
    num_classes: int,
    *,
    layers: Iterable[str] | None = None,
    batch_norm: Sequence[bool] = (False, True),
    epochs: int = 20,
    batch_size: int = 256,
    learning_rate: float = 2.0,
    seed: int = 0,
) -> xr.DataArray:
    """`linear_probe` of lists of `Pooled` features, one for each choice of tokens."""
    layers = list(layers or fitted[0].layers)
    tokens = [pooled.tokens for pooled in fitted]
    for subset, pooled in (("training", fitted), ("test", tested)):
        require_labels(pooled[0].labels, num_classes, subset)
    (x, labels), (x_test, test_labels) = _rows(fitted, layers), _rows(tested, layers)
    # All probes are trained at once, as one model.
    model = fit_probes(
        x,
        labels,
        num_classes,
        batch_norm,
        epochs=epochs,
        batch_size=batch_size,
        learning_rate=learning_rate,
        seed=seed,
    )
    _, loss = score(model, x, labels)
    accuracy, _ = score(model, x_test, test_labels)
    # The accuracy and the training loss of each probe, in their places of a table.
    coords = {"layer": layers, "tokens": tokens, "batch_norm": list(batch_norm)}
    result = ResultArray(np.nan, coords, tuple(coords), name="accuracy")
    losses = result.copy()
    for ((layer, word), norm), right, wrong in zip(
        probe_keys(x, batch_norm), accuracy, loss, strict=True
    ):
        at = {"layer": layer, "tokens": word, "batch_norm": norm}
        result.loc[at], losses.loc[at] = right, wrong
    return result.assign_coords(training_loss=losses.variable).assign_attrs(
        provenance(
            features,
            len(test_labels),
            tested[0].batches,
            long_name="test accuracy of a linear probe",
            units="1",
            estimator="softmax regression by SGD with momentum 0.9 and cosine decay",
            train_examples=len(labels),
            num_classes=num_classes,
            epochs=epochs,
            step_examples=min(batch_size, len(labels)),  # `batch_size` is that of the test images
            learning_rate=learning_rate,
            seed=seed,
        )
    )


def _rows(pooled: Sequence[Pooled], layers: Sequence[str]) -> tuple[FeaturesByKey, np.ndarray]:
    """Features by (layer, tokens), and the labels."""
    x = {
        (layer, features.tokens): features.layers[layer].astype(float)
        for features in pooled
        for layer in layers
    }
    return x, pooled[0].labels.astype(np.int64)


def fit_probes(
    x: FeaturesByKey,
    labels: np.ndarray,
    num_classes: int,
    batch_norm: Sequence[bool],
    *,
    epochs: int,
    batch_size: int,
    learning_rate: float,
    seed: int,
) -> keras.Model:
    """The trained model of the probes of x, dict from (layer, tokens) to (example, channel)."""
    size = min(batch_size, len(labels))
    steps = len(labels) // size
    model = _make_model(x, num_classes, batch_norm)
    rates: Any = keras.optimizers.schedules.CosineDecay(
        learning_rate * batch_size / 256, epochs * steps
    )
    # Compiling by XLA takes longer than it saves on one product of matrices.
    compile_model: Any = model.compile  # whose types declare `jit_compile` to be a string
    compile_model(keras.optimizers.SGD(rates, momentum=MOMENTUM), _loss, jit_compile=False)
    batches = _batches(stacked(x), labels, size, steps, epochs, seed)
    with tqdm(
        total=epochs, desc="linear probes: epochs", delay=2, disable=None, leave=False
    ) as bar:
        progress = keras.callbacks.LambdaCallback(on_epoch_end=lambda *_: bar.update())
        fit_model: Any = model.fit  # whose types declare `verbose` to be a string
        fit_model(
            batches,
            shuffle=False,
            epochs=epochs,
            steps_per_epoch=steps,
            callbacks=[progress],
            verbose=0,
        )
    return model


def probe_keys(x: FeaturesByKey, batch_norm: Sequence[bool]) -> list[tuple[Key, bool]]:
    """List of (key, batch_norm) of the probes of `fit_probes`, in their order."""
    return [(key, norm) for keys in _groups(x).values() for norm in batch_norm for key in keys]


def score(
    model: keras.Model, x: FeaturesByKey, labels: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Accuracy and mean cross-entropy of trained probes: two arrays of shape (probe,)."""
    inputs, hits, loss = stacked(x), np.zeros(()), np.zeros(())
    for start in range(0, len(labels), SCORED):
        part = slice(start, start + SCORED)
        logits = model({name: rows[part] for name, rows in inputs.items()}, training=False)
        hits = hits + (np.argmax(logits, axis=-1) == labels[part, None]).sum(axis=0)
        loss = loss + np.asarray(_cross_entropy(labels[part], logits), np.float64).sum(axis=0)
    return hits / len(labels), loss / len(labels)


def stacked(x: FeaturesByKey) -> dict[str, np.ndarray]:
    """Features stacked by their number of channels: float32 (example, key, channel)."""
    return {
        name: np.stack([x[key] for key in keys], axis=1, dtype=np.float32)
        for name, keys in _groups(x).items()
    }


def _groups(x: FeaturesByKey) -> dict[str, list[Key]]:
    """Keys of the features of each number of channels: dict from the number, as a string."""
    groups = {}
    for key, rows in x.items():
        groups.setdefault(str(rows.shape[1]), []).append(key)
    return groups


def _make_model(x: FeaturesByKey, num_classes: int, batch_norm: Sequence[bool]) -> keras.Model:
    """A model of untrained probes, with the statistics of the features."""
    inputs, logits = {}, []
    # Probes of equally many channels are one layer, which trains all of them in one product.
    for name, keys in _groups(x).items():
        channels = int(name)
        inputs[name] = keras.Input((len(keys), channels), name=name, dtype="float32")
        for norm in batch_norm:
            if norm:
                rows = _normalised(inputs[name], [x[key] for key in keys])
                scales = np.full(len(keys), channels**-0.5)
            else:
                rows, scales = inputs[name], np.array([_scale(key, x[key]) for key in keys])
            # A linear classifier of each key, of its own features times their scale. They start at
            # zero, as the loss is convex.
            probes: Any = keras.layers.EinsumDense(
                "epc,pck->epk",
                (len(keys), num_classes),
                bias_axes="pk",
                kernel_initializer="zeros",
                name=f"normalised_{name}" if norm else f"plain_{name}",
                dtype="float32",
            )
            logits.append(probes(rows * scales[:, None].astype(np.float32)))
    return keras.Model(inputs, ops.concatenate(logits, axis=1) if logits[1:] else logits[0])


def _normalised(rows: keras.KerasTensor, x: Sequence[np.ndarray]) -> keras.KerasTensor:
    """Symbolic rows (example, key, channel) after batch normalisation, given all examples."""
    # A momentum of 1 keeps the statistics of all examples, which are assigned below.
    layer: Any = keras.layers.BatchNormalization(
        momentum=1.0, epsilon=EPSILON, center=False, scale=False, dtype="float32"
    )
    normalised = layer(keras.layers.Reshape((-1,), dtype="float32")(rows))
    layer.moving_mean.assign(np.concatenate([rows_of_key.mean(axis=0) for rows_of_key in x]))
    layer.moving_variance.assign(np.concatenate([rows_of_key.var(axis=0) for rows_of_key in x]))
    return keras.layers.Reshape(rows.shape[1:], dtype="float32")(normalised)


def _scale(key: Key, x: np.ndarray) -> float:
    """1 / r of features (example, channel)."""
    square = np.square(x).sum(axis=1).mean()
    if not square:
        layer, tokens = key
        raise ValueError(
            f"All features are zero at {layer}, tokens={tokens!r}: a probe cannot be fitted."
        )
    return square**-0.5


def _cross_entropy(labels: tf.Tensor | np.ndarray, logits: tf.Tensor) -> tf.Tensor:
    """Cross-entropy of logits (example, probe, class): tensor of shape (example, probe)."""
    labels = ops.broadcast_to(ops.reshape(labels, (-1, 1)), cast(tuple, ops.shape(logits))[:2])
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def _loss(labels: tf.Tensor, logits: tf.Tensor) -> tf.Tensor:
    """The sum over probes, whose gradients are those of each probe's own loss."""
    return ops.sum(_cross_entropy(labels, logits), axis=-1)


def _batches(
    inputs: dict[str, np.ndarray], labels: np.ndarray, size: int, steps: int, epochs: int, seed: int
) -> tf.data.Dataset:
    """Batches of all epochs, each epoch in an order drawn from the seed and its number."""
    data = {name: tf.constant(rows) for name, rows in inputs.items()}, tf.constant(labels)

    def epoch(number: tf.Tensor) -> tf.data.Dataset:
        order = tf.random.experimental.stateless_shuffle(
            tf.range(len(labels)), tf.stack([tf.constant(seed, tf.int64), number])
        )
        return tf.data.Dataset.from_tensor_slices(tf.reshape(order[: steps * size], (steps, size)))

    def gather(rows: tf.Tensor) -> tuple[dict[str, tf.Tensor], tf.Tensor]:
        return tf.nest.map_structure(lambda x: tf.gather(x, rows), data)

    return without_autotune(tf.data.Dataset.range(epochs).flat_map(epoch).map(gather).prefetch(1))
