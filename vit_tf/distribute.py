"""Choosing where a model trains: one device, or copies of it on several."""

import functools

import tensorflow as tf

from vit_tf.names import choose


def strategy(name="auto"):
    """The `tf.distribute.Strategy` of a name; make and train the model in its `scope()`.

    Args:
        name: `"none"`, one device; `"mirrored"`, a copy of the model on each GPU, or on each
            logical CPU where there is no GPU; `"auto"`, `"mirrored"` if there are several GPUs.

    Raises:
        ValueError: for another name.
    """
    gpus = _devices("GPU")
    makers = {
        "auto": _mirrored if len(gpus) > 1 else _default,
        "none": _default,
        "mirrored": _mirrored,
    }
    return choose("strategy", name, makers)(gpus or _devices("CPU"))


def _devices(kind):
    return tuple(device.name for device in tf.config.list_logical_devices(kind))


@functools.cache
def _mirrored(devices):
    """One strategy per process: the collectives of a second one would collide with its own."""
    on_cpu = "CPU" in devices[0]
    reduction = tf.distribute.ReductionToOneDevice() if on_cpu else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)


def _default(devices):
    return tf.distribute.get_strategy()
