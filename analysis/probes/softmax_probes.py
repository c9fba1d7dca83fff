"""Softmax classifiers of many features, trained at once as one Keras model."""

import keras
import numpy as np
import tensorflow as tf
from keras import ops
from tqdm.auto import tqdm

from vit_tf.batches import untuned

EPSILON = 1e-6  # of the batch normalisation of MAE
MOMENTUM = 0.9
SCORED = 1024  # examples that are scored in one call


def fit_probes(x, labels, num_classes, batch_norm, *, epochs, batch_size, learning_rate, seed):
    """Trains the probes of `linear_probe`.

    Args:
        x: dict from (layer, tokens) to array of shape (example, channel).
        labels: int array of shape (example,).
        batch_norm: list of bool.
        num_classes, epochs, batch_size, learning_rate, seed: as for `linear_probe`.

    Returns:
        The `keras.Model` from `stacked(x)` to logits of shape (example, probe, class); the probes
        are in the order of `probe_places`.

    Raises:
        ValueError: for features that are all zero.
    """
    size = min(batch_size, len(labels))
    steps = len(labels) // size
    model = _make_model(x, num_classes, batch_norm)
    rates = keras.optimizers.schedules.CosineDecay(learning_rate * batch_size / 256, epochs * steps)
    # Compiling by XLA takes longer than it saves on one product of matrices.
    model.compile(keras.optimizers.SGD(rates, momentum=MOMENTUM), _loss, jit_compile=False)
    batches = _batches(stacked(x), labels, size, steps, epochs, seed)
    model.fit(
        batches,
        epochs=epochs,
        steps_per_epoch=steps,
        callbacks=[_Bar(epochs)],
        verbose=0,
        shuffle=False,
    )
    return model


def stacked(x):
    """Features stacked by their number of channels: dict from that number, as a string.

    Args:
        x: dict from key to array of shape (example, channel).

    Returns:
        dict to float32 arrays of shape (example, key, channel).
    """
    return {
        name: np.stack([x[key] for key in keys], axis=1, dtype=np.float32)
        for name, keys in _groups(x).items()
    }


def probe_places(x, batch_norm):
    """List of (key, batch_norm) of the probes of `fit_probes`, in their order."""
    return [(key, norm) for keys in _groups(x).values() for norm in batch_norm for key in keys]


def score(model, x, labels):
    """Accuracy and mean cross-entropy of trained probes: two arrays of shape (probe,).

    Args:
        model: what `fit_probes` returned.
        x, labels: as for it.
    """
    inputs, hits, loss = stacked(x), 0.0, 0.0
    for start in range(0, len(labels), SCORED):
        part = slice(start, start + SCORED)
        logits = model({name: rows[part] for name, rows in inputs.items()}, training=False)
        hits += (np.argmax(logits, axis=-1) == labels[part, None]).sum(axis=0)
        loss += np.asarray(_cross_entropy(labels[part], logits), np.float64).sum(axis=0)
    return hits / len(labels), loss / len(labels)


class Probes(keras.layers.Layer):
    """Linear classifiers side by side, each of its own features.

    Args:
        num_classes: number of classes.
        scales: array of shape (probe,), by which the features of each are multiplied.
    """

    def __init__(self, num_classes, scales, **kwargs):
        super().__init__(**kwargs)
        self.num_classes, self.scales = num_classes, np.asarray(scales, np.float32)

    def build(self, shape):
        _, probes, channels = shape
        start = {"initializer": "zeros"}  # the loss is convex
        self.kernel = self.add_weight((probes, channels, self.num_classes), name="kernel", **start)
        self.bias = self.add_weight((probes, self.num_classes), name="bias", **start)

    def call(self, x):
        return ops.einsum("epc,pck->epk", x * self.scales[:, None], self.kernel) + self.bias


def _make_model(x, num_classes, batch_norm):
    """A model of untrained probes, with the statistics of the features."""
    inputs, logits = {}, []
    for name, keys in _groups(x).items():
        channels = int(name)
        inputs[name] = keras.Input((len(keys), channels), name=name, dtype="float32")
        for norm in batch_norm:
            rows = inputs[name]
            if norm:
                rows = _normalised(rows, [x[key] for key in keys])
                scales = np.full(len(keys), channels**-0.5)
            else:
                scales = [_scale(key, x[key]) for key in keys]
            kind = f"normalised_{name}" if norm else f"plain_{name}"
            logits.append(Probes(num_classes, scales, name=kind, dtype="float32")(rows))
    return keras.Model(inputs, ops.concatenate(logits, axis=1) if logits[1:] else logits[0])


def _normalised(rows, x):
    """Symbolic rows (example, key, channel) after batch normalisation, given all examples."""
    # A momentum of 1 keeps the statistics of all examples, which are assigned below.
    layer = keras.layers.BatchNormalization(
        momentum=1.0, epsilon=EPSILON, center=False, scale=False, dtype="float32"
    )
    normalised = layer(keras.layers.Reshape((-1,), dtype="float32")(rows))
    layer.moving_mean.assign(np.concatenate([of.mean(axis=0) for of in x]))
    layer.moving_variance.assign(np.concatenate([of.var(axis=0) for of in x]))
    return keras.layers.Reshape(rows.shape[1:], dtype="float32")(normalised)


def _scale(key, x):
    """1 / r of features (example, channel)."""
    square = np.square(x).sum(axis=1).mean()
    if not square:
        layer, tokens = key
        raise ValueError(
            f"Expected features that are not all zero. Received zeros at {layer}, tokens={tokens!r}"
        )
    return square**-0.5


def _groups(x):
    """Keys of the features of each number of channels: dict from the number, as a string."""
    groups = {}
    for key, rows in x.items():
        groups.setdefault(str(rows.shape[1]), []).append(key)
    return groups


def _cross_entropy(labels, logits):
    """Cross-entropy of logits (example, probe, class): tensor of shape (example, probe)."""
    labels = ops.broadcast_to(ops.reshape(labels, (-1, 1)), ops.shape(logits)[:2])
    return ops.sparse_categorical_crossentropy(labels, logits, from_logits=True)


def _loss(labels, logits):
    """The sum over probes, whose gradients are those of each probe's own loss."""
    return ops.sum(_cross_entropy(labels, logits), axis=-1)


def _batches(inputs, labels, size, steps, epochs, seed):
    """Batches of all epochs, each epoch in an order drawn from the seed and its number."""
    inputs = {name: tf.constant(rows) for name, rows in inputs.items()}
    labels = tf.constant(labels)

    def epoch(number):
        order = tf.random.experimental.stateless_shuffle(
            tf.range(len(labels)), tf.stack([tf.constant(seed, tf.int64), number])
        )
        return tf.data.Dataset.from_tensor_slices(tf.reshape(order[: steps * size], (steps, size)))

    def gather(rows):
        return tf.nest.map_structure(lambda x: tf.gather(x, rows), (inputs, labels))

    return untuned(tf.data.Dataset.range(epochs).flat_map(epoch).map(gather).prefetch(1))


class _Bar(keras.callbacks.Callback):
    """A progress bar of epochs, which appears when training takes long."""

    def __init__(self, epochs):
        super().__init__()
        self.bar = tqdm(
            total=epochs, desc="linear probes: epochs", delay=2, disable=None, leave=False
        )

    def on_epoch_end(self, epoch, logs=None):
        self.bar.update()

    def on_train_end(self, logs=None):
        self.bar.close()
