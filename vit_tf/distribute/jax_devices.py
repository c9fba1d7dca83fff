"""Data parallelism with `keras.distribution`, where Keras runs on JAX: devices and processes."""

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, cast

import keras
import numpy as np

# Seconds without a sign of life after which a worker is dead, and to wait for all to start.
HEARTBEAT, START = 20, 600


class DataParallelStrategy:
    """A strategy for Keras on JAX, like `tf.distribute.Strategy`; create models in its scope.

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
    _require_all_processes(strategy)
    if num_processes() > 1 and getattr(distribution, "auto_shard_dataset", False):
        raise ValueError(
            "Expected a keras.distribution.DataParallel with auto_shard_dataset=False, since "
            "vit_tf shards batches itself. Received: auto_shard_dataset=True"
        )
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
    if name == "tpu":
        # JAX finds the hosts of a pod. On a single host it finds none, or was used before: both are
        # right there, and `_require_all_processes` raises on several.
        with contextlib.suppress(ValueError):
            connect(None)
    devices = _devices("tpu") if name == "tpu" else tuple(keras.distribution.list_devices())
    if name == "tpu" and not devices:
        raise ValueError(
            "JAX finds no TPU: install jax[tpu]. Received: devices "
            f"{keras.distribution.list_devices()}"
        )
    is_single = name == "none" or len(devices) == 1
    strategy = DataParallelStrategy() if is_single else _strategy(devices)
    _require_all_processes(strategy)
    _share_seed()
    return strategy


def connect(cluster: tuple[Sequence[str], int] | None) -> DataParallelStrategy:
    """Connects this process with the others, and divides batches over the devices of all.

    The cluster is the addresses of all processes and the index of this one. Where it is None, JAX
    finds it in the environment (Open MPI, Kubernetes, TPU pods), unless the program has connected
    its processes already.
    """
    import jax

    if not jax.distributed.is_initialized():
        addresses, index = cluster or ([], None)
        # It would take SIGTERM, which `Preemption` catches.
        jax.config.update("jax_enable_preemption_service", False)
        try:
            jax.distributed.initialize(
                addresses[0] if addresses else None,
                len(addresses) or None,
                index,
                initialization_timeout=START,
                heartbeat_timeout_seconds=HEARTBEAT,
                shutdown_timeout_seconds=HEARTBEAT,
            )
        except RuntimeError as error:
            if "before any JAX" not in str(error):
                raise
            raise ValueError(
                "JAX was used before the multi-worker strategy was created: create the "
                "strategy in the first lines of the program"
            ) from error
        except ValueError as error:
            raise ValueError(
                "The addresses of the workers are unknown: pass them as arguments, set "
                "VIT_TF_WORKERS and VIT_TF_WORKER or TF_CONFIG, or use an environment that "
                f"JAX knows (Slurm, Open MPI, Kubernetes, a TPU pod). JAX reports: {error}"
            ) from error
    _share_seed()
    return _strategy(tuple(keras.distribution.list_devices()))


def num_processes() -> int:
    """Number of processes that JAX has connected."""
    import jax

    # The number of processes alone would initialize the devices, after which none can connect.
    return jax.process_count() if jax.distributed.is_initialized() else 1


def process_index() -> int:
    """The index of this process among those that JAX has connected, from 0."""
    import jax

    return jax.process_index() if jax.distributed.is_initialized() else 0


def local_devices() -> int:
    """Number of devices of this process."""
    import jax

    return jax.local_device_count()


def _require_all_processes(strategy: DataParallelStrategy) -> None:
    """Raises a `ValueError` for a strategy that leaves out devices of some processes."""
    import jax

    if jax.process_count() == 1:
        return
    if not jax.distributed.is_initialized():
        raise ValueError(
            f"This TPU has {jax.process_count()} hosts, but their processes are not connected: "
            "create the strategy 'tpu' in the first lines of the program"
        )
    if strategy.num_replicas_in_sync != jax.device_count():
        raise ValueError(
            f"Expected a strategy on all {jax.device_count()} devices of {jax.process_count()} "
            "connected processes, such as 'auto', and a model made in its scope. Received: "
            f"{strategy.num_replicas_in_sync} devices"
        )


def _share_seed() -> None:
    """Gives all processes the seed of the first, unless the program has set one."""
    if num_processes() > 1 and keras.src.utils.rng_utils.get_random_seed() is None:
        entropy = cast(int, np.random.SeedSequence().entropy)  # an integer, unless it is set
        keras.utils.set_random_seed(int(gather(np.array(entropy % 2**31))[0]))


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
