"""Choosing where a model trains: one device, copies on several, several machines, or a TPU."""

import functools
import os

import tensorflow as tf

from vit_tf.backend import on_jax, require_tensorflow_or_jax
from vit_tf.distribute import cluster
from vit_tf.names import lookup

# Steps that a TPU takes between two answers to its host, at most.
TPU_STEPS = 50


def strategy(name="auto", workers=None, worker=None):
    """Returns a `tf.distribute.Strategy` by name; create and train the model in its `scope()`.

    Args:
        name: `"none"`, one device; `"mirrored"`, a copy of the model on each GPU, or on each
            logical CPU where there is no GPU; `"multiworker"`, on each GPU of several processes,
            which each run the same program and create the strategy before any other use of
            TensorFlow; `"tpu"`, on each core of the TPU of the environment variable TPU_NAME, by
            default a local one; `"auto"`, `"multiworker"` if VIT_TF_WORKERS or TF_CONFIG names
            several workers, else `"mirrored"` if there are several GPUs. Where Keras runs on JAX,
            the strategy is a `DataParallelStrategy`: `"mirrored"`, and by default `"auto"`, of all
            devices of this process, `"tpu"` of its TPU's, `"multiworker"` of those of all
            processes, created before any other use of JAX.
        workers, worker: for `"multiworker"`, the addresses `"host:port"` of all processes and the
            index of this one among them; by default those that `cluster.find_cluster` finds.

    Raises:
        ValueError: for an unknown name, a cluster that is not configured, or a missing TPU.
    """
    if workers is not None or worker is not None:
        if name != "multiworker":
            raise ValueError(
                f"Expected workers and worker with strategy 'multiworker'. Received: {name!r}"
            )
        return cluster.make_strategy(workers, worker)
    make = lookup("strategy", name, STRATEGIES)
    if not on_jax():
        return make()
    require_tensorflow_or_jax("a strategy")
    if name == "multiworker" or (name == "auto" and cluster.has_several_workers()):
        return cluster.make_strategy()
    from vit_tf.distribute import jax_devices

    return jax_devices.make(name)


def strategy_of(model):
    """The strategy that a model was made under: of TensorFlow, or a `DataParallelStrategy`.

    Raises:
        ValueError: where Keras runs on JAX, for a model created in another scope than the current
            one.
    """
    if not on_jax():
        return model.distribute_strategy
    from vit_tf.distribute import jax_devices

    return jax_devices.strategy_of(model)


def steps_per_execution(strategy, steps, asked=None):
    """The largest divisor of `steps` up to `asked`, by default up to 50 on a TPU and 1 elsewhere.

    Keras runs this many steps per call; otherwise the last call would read past the end of repeated
    data.
    """
    asked = asked or (TPU_STEPS if is_tpu(strategy) else 1)
    return max(count for count in range(1, min(asked, steps) + 1) if steps % count == 0)


def is_tpu(strategy):
    """Whether a strategy trains on a TPU."""
    return isinstance(strategy, tf.distribute.TPUStrategy)


def _auto():
    if cluster.has_several_workers():
        return cluster.make_strategy()
    gpus = _devices("GPU")
    return _mirrored(gpus) if len(gpus) > 1 else tf.distribute.get_strategy()


def _devices(kind):
    return tuple(device.name for device in tf.config.list_logical_devices(kind))


@functools.cache
def _mirrored(devices):
    """One strategy per process: the collectives of a second one would collide with its own."""
    on_cpu = "CPU" in devices[0]
    reduction = tf.distribute.ReductionToOneDevice() if on_cpu else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)


@functools.cache
def _tpu():
    """One strategy per process: a second start of the TPU would lose what is on it."""
    name = os.environ.get("TPU_NAME", "local")
    try:
        resolver = tf.distribute.cluster_resolver.TPUClusterResolver.connect(tpu=name)
    except (ValueError, RuntimeError, ImportError, OSError, tf.errors.OpError) as error:
        reason = str(error).strip().partition("\n")[0]
        raise ValueError(
            f"Expected a TPU; TPU_NAME names one that is not local. Received: TPU_NAME={name!r}, "
            f"{type(error).__name__}: {reason}"
        ) from error
    return tf.distribute.TPUStrategy(resolver)


# How each strategy is made.
STRATEGIES = {
    "auto": _auto,
    "none": tf.distribute.get_strategy,
    "mirrored": lambda: _mirrored(_devices("GPU") or _devices("CPU")),
    "multiworker": cluster.make_strategy,
    "tpu": _tpu,
}
