"""Data parallelism with `keras.distribution`, where Keras runs on JAX: devices and processes."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import keras
import numpy as np


class DataParallelStrategy:
    """The counterpart of a `tf.distribute.Strategy` for Keras on JAX; models are made in its scope.

    Attributes:
        devices: names of the devices, such as `"cpu:0"`, of all processes; None for the default.
    """

    def __init__(self, devices: Sequence[str] | None = None):
        self.devices = devices
        self._distribution = None
        if devices:
            self._distribution = keras.distribution.DataParallel(
                devices=list(devices), auto_shard_dataset=False
            )

    @property
    def num_replicas_in_sync(self) -> int:
        """Number of devices that share each batch."""
        return len(self.devices or (0,))

    def scope(self) -> AbstractContextManager:
        """Context in which variables are replicated and batches are divided over the devices."""
        if self._distribution is None:
            return contextlib.nullcontext()
        return self._distribution.scope()


def strategy_of(model: keras.Model) -> DataParallelStrategy:
    """The `DataParallelStrategy` of the current scope; an error for a model made in another."""
    distribution = keras.distribution.distribution()
    if distribution is None:
        strategy = DataParallelStrategy()
    else:
        strategy = _strategy(tuple(distribution.device_mesh.devices.ravel().tolist()))
    devices = {len(variable.value.sharding.device_set) for variable in model.variables}
    if devices and devices != {strategy.num_replicas_in_sync}:
        raise ValueError(
            f"Expected {model.name!r} to be created and trained in the same scope of a strategy: "
            "call `vit_tf.train` too within `with strategy.scope():`. Received: a model on "
            f"{max(devices)} devices in a scope of {strategy.num_replicas_in_sync}"
        )
    return strategy


def make(name: str) -> DataParallelStrategy:
    """The `DataParallelStrategy` of a name in `strategies.STRATEGIES`, but for `"multiworker"`."""
    if name == "none":
        return DataParallelStrategy()
    devices = _devices("tpu") if name == "tpu" else tuple(keras.distribution.list_devices())
    if name == "tpu" and not devices:
        raise ValueError(
            "Expected a TPU that JAX can use. Received: devices "
            f"{keras.distribution.list_devices()}; install jax[tpu]"
        )
    return _strategy(devices) if len(devices) > 1 else DataParallelStrategy()


def connect(
    addresses: Sequence[str], index: int, start_seconds: int, heartbeat_seconds: int
) -> DataParallelStrategy:
    """Connects this process with the others, and divides batches over the devices of all.

    Processes wait so many seconds for all to start, and take one without a sign of life for so many
    seconds for dead.
    """
    import jax

    # It would take SIGTERM, which `Preemption` catches.
    jax.config.update("jax_enable_preemption_service", False)
    try:
        jax.distributed.initialize(
            addresses[0],
            len(addresses),
            index,
            initialization_timeout=start_seconds,
            heartbeat_timeout_seconds=heartbeat_seconds,
        )
    except RuntimeError as error:
        if "before any JAX" not in str(error):
            raise
        raise ValueError(
            "Expected the multi-worker strategy to be created before any other use of JAX. "
            "Received: a program that has already used it; create the strategy in its first lines"
        ) from error
    if keras.src.utils.rng_utils.get_random_seed() is None:
        entropy = cast(int, np.random.SeedSequence().entropy)  # an integer, unless it is set
        seed = gather(np.array(entropy % 2**31))[0]
        keras.utils.set_random_seed(int(seed))
    return _strategy(tuple(keras.distribution.list_devices()))


def gather(array: np.ndarray) -> np.ndarray:
    """The arrays of one shape and type that the processes call this with, on a new first axis."""
    from jax.experimental import multihost_utils

    array = np.asarray(array)
    # As bytes, since JAX has no integers of 64 bits by default.
    bytes_of_all = multihost_utils.process_allgather(np.frombuffer(array.tobytes(), np.uint8))
    return np.frombuffer(bytes_of_all.tobytes(), array.dtype).reshape(-1, *array.shape)


def scorer(model: keras.Model) -> Callable[[np.ndarray], Any]:
    """A compiled function from a batch to a model's outputs, shared by this process's devices."""
    import jax
    from jax.sharding import Mesh, NamedSharding, PartitionSpec

    count = len(jax.local_devices()) if keras.distribution.distribution() else 1
    mesh = Mesh(np.array(jax.local_devices()[:count]), ("batch",))
    replicated = NamedSharding(mesh, PartitionSpec())
    divided = NamedSharding(mesh, PartitionSpec("batch"))
    variables = [
        [jax.device_put(np.asarray(variable.value), replicated) for variable in variables]
        for variables in (model.trainable_variables, model.non_trainable_variables)
    ]

    @jax.jit
    def call(variables: Any, images: Any) -> Any:
        return model.stateless_call(*variables, images, training=False)[0]

    def score(images: np.ndarray) -> Any:
        images = np.asarray(images)
        padding = -len(images) % count
        padded = np.concatenate([images, np.zeros((padding, *images.shape[1:]), images.dtype)])
        outputs = call(variables, jax.device_put(padded, divided))
        return jax.tree.map(lambda output: np.asarray(output)[: len(images)], outputs)

    return score


def _devices(kind: str) -> tuple[str, ...]:
    try:
        return tuple(keras.distribution.list_devices(kind))
    except RuntimeError:
        return ()


@functools.cache
def _strategy(devices: tuple[str, ...]) -> DataParallelStrategy:
    return DataParallelStrategy(devices)
