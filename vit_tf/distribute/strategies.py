"""Where a model trains (one device, several, several machines), and its batches there."""

import contextlib
import functools
import json
import os
import re
import shutil
from collections.abc import Iterator, Sequence
from typing import Any, TypeAlias, cast

import keras
import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from vit_tf.common.backend import leave_gpus_to_jax, on_jax
from vit_tf.common.names import lookup
from vit_tf.data.batches import ResumableDataset, Shard, is_shardable
from vit_tf.distribute import jax_devices, multiworker

STRATEGIES = ("auto", "none", "mirrored", "multiworker", "tpu")
# Where a model is made and trained: by TensorFlow, or by Keras on JAX.
Strategy: TypeAlias = tf.distribute.Strategy | jax_devices.DataParallelStrategy
# On TensorFlow, filled by `multiworker_strategy`: the strategy of this process, and its index and
# the number of processes. Both are empty where it trains alone. JAX knows its processes itself.
_strategies: list[Any] = []
_position: list[int] = []


def multiworker_strategy(
    workers: Sequence[str] | None = None, worker: int | None = None
) -> Strategy:
    """The strategy of this process, which trains together with other processes.

    A process has at most one such strategy. The function waits until every worker has started. If
    the program has set no seed, all workers get the seed of the first worker, so that they shuffle
    data equally. It raises a ValueError if addresses are malformed, or if TensorFlow (or JAX) has
    already run.
    """
    if _strategies:
        return _strategies[0]
    cluster = find_cluster(workers, worker)
    if on_jax():
        return jax_devices.connect(cluster)
    if cluster is None:
        raise ValueError(
            "The addresses of the workers are unknown: pass them as arguments, set VIT_TF_WORKERS "
            "and VIT_TF_WORKER or TF_CONFIG, or start the program by Slurm's srun"
        )
    addresses, index = cluster
    tf_context = cast(Any, context.context())  # it creates one if there is none
    if tf_context._context_handle is not None:
        raise ValueError(
            "TensorFlow was used before the multi-worker strategy was created: create the "
            "strategy in the first lines of the program"
        )
    # TensorFlow is to end collective operations when a worker shows no sign of life.
    tf_context.configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=1000 * jax_devices.START,
        heartbeat_timeout_in_ms=1000 * jax_devices.HEARTBEAT,
        shutdown_barrier_timeout_in_ms=1000 * jax_devices.HEARTBEAT,
    )
    jobs = tf_context.coordination_service.coordinated_job_list
    jobs.add(name="worker", num_tasks=len(addresses))
    worker_strategy = tf.distribute.MultiWorkerMirroredStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": addresses}),
            task_type="worker",
            task_id=index,
            num_accelerators={"GPU": len(tf.config.list_physical_devices("GPU"))},
            rpc_layer="grpc",
        )
    )
    multiworker.adapt_keras()
    _strategies.append(worker_strategy)
    _position[:] = index, len(addresses)
    if context.global_seed() is None:
        entropy = cast(int, np.random.SeedSequence().entropy)  # an integer, unless it is set
        tf.random.set_seed(int(of_every_worker(entropy % 2**31)[0]))
    return worker_strategy


def num_workers() -> int:
    """How many processes train together: 1 without a multi-worker strategy."""
    if on_jax():
        return jax_devices.num_processes()
    return _position[1] if _position else 1


def worker_index() -> int:
    """The index of this process among those that train together, from 0."""
    if on_jax():
        return jax_devices.process_index()
    return _position[0] if _position else 0


def current_shard() -> Shard | None:
    """The `Shard` of this process; None for a single one."""
    if num_workers() == 1:
        return None
    if on_jax():
        return Shard(worker_index(), num_workers(), jax_devices.local_devices())
    replicas = _strategies[0].num_replicas_in_sync // num_workers()
    return Shard(worker_index(), num_workers(), replicas)


def shard_of_worker(dataset: Any) -> tf.data.Dataset:
    """This worker's shard of each batch that workers can make alone, else the whole data set."""
    shard = current_shard()
    return dataset.shard_batches(shard) if shard and is_shardable(dataset) else dataset


def is_chief() -> bool:
    """Whether this process writes files: true for the first worker and for a single process."""
    return worker_index() == 0


def sum_of_workers(array: np.ndarray) -> np.ndarray:
    """The sum of the arrays of one shape that the workers call this with."""
    if num_workers() == 1:
        return np.asarray(array)
    if on_jax():
        return jax_devices.gather(array).sum(axis=0)
    return np.asarray(_strategies[0].reduce("SUM", tf.constant(array), axis=None))


def of_every_worker(number: int) -> np.ndarray:
    """The whole numbers that the workers call this with, in their order: int64 array."""
    mine = np.zeros(num_workers(), np.int64)
    mine[worker_index()] = number
    return sum_of_workers(mine)


def wait_for_workers() -> None:
    """Blocks until every worker has called this function."""
    of_every_worker(0)


@contextlib.contextmanager
def explained_failures() -> Iterator[None]:
    """Turns errors of TensorFlow or JAX about workers that stopped into a `ConnectionError`."""
    lost = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    lost += (tf.errors.DeadlineExceededError, tf.errors.FailedPreconditionError)
    lost += (tf.errors.InternalError,)
    if on_jax():
        import jax

        lost += (jax.errors.JaxRuntimeError,)
    try:
        yield
    except lost as error:
        if num_workers() == 1:
            raise
        words = getattr(error, "message", str(error)).strip()[:200]
        library = "JAX" if on_jax() else "TensorFlow"
        raise ConnectionError(
            f"Another worker stopped or cannot be reached. Start all workers again: a run "
            f"resumes from its last saved state. {library} reports: {words}"
        ) from error


def find_cluster(
    workers: Sequence[str] | None = None, worker: int | None = None
) -> tuple[list[str], int] | None:
    """The addresses of all workers and the index of this one in their list; None if none is set.

    The arguments win over VIT_TF_WORKERS ("host:port,host:port") and VIT_TF_WORKER (0, 1, ...),
    these over TF_CONFIG, and that over Slurm's variables.
    """
    if workers is not None or worker is not None:
        return _checked("workers and worker", workers, worker)
    if "VIT_TF_WORKERS" in os.environ or "VIT_TF_WORKER" in os.environ:
        names = os.environ.get("VIT_TF_WORKERS"), os.environ.get("VIT_TF_WORKER")
        return _checked("VIT_TF_WORKERS and VIT_TF_WORKER", *names)
    if "TF_CONFIG" in os.environ:
        return _from_tf_config(os.environ["TF_CONFIG"])
    if "SLURM_PROCID" in os.environ:
        return _from_slurm()
    return None


def has_several_workers() -> bool:
    """Whether VIT_TF_WORKERS or TF_CONFIG names more than one worker."""
    configured = "VIT_TF_WORKERS" in os.environ or "cluster" in os.environ.get("TF_CONFIG", "")
    cluster = find_cluster() if configured else None
    return cluster is not None and len(cluster[0]) > 1


def _from_tf_config(text: str) -> tuple[list[str], int]:
    """The tasks of type chief and worker, in this order."""
    try:
        config = json.loads(text)
        kind, index = config["task"]["type"], int(config["task"]["index"])
        tasks = {"chief": [], "worker": [], **config["cluster"]}
        if len(tasks) > 2 or not 0 <= index < len(tasks[kind]):
            raise KeyError(f"no task {index} of type {kind!r} among those of type chief and worker")
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            'Expected TF_CONFIG to be JSON such as {"cluster": {"worker": ["host:port", ...]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {text!r} ({error!r})'
        ) from error
    first = len(tasks["chief"]) if kind == "worker" else 0
    return _checked("TF_CONFIG", [*tasks["chief"], *tasks["worker"]], first + index)


def _from_slurm() -> tuple[list[str], int]:
    """The tasks of the job step, on ports that depend on the job, so that jobs do not meet."""
    port = 12_000 + int(os.environ.get("SLURM_JOB_ID", 0)) % 20_000
    gpus = "CUDA_VISIBLE_DEVICES" in os.environ or shutil.which("nvidia-smi")
    # The resolver counts GPUs with nvidia-smi and cannot share out none: pretend that each has one.
    pretended = {} if gpus else {"gpus_per_node": 2**20, "gpus_per_task": 1, "auto_set_gpu": False}
    try:
        resolver = tf.distribute.cluster_resolver.SlurmClusterResolver(port_base=port, **pretended)
        addresses = resolver.cluster_spec().job_tasks("worker")
    except (RuntimeError, ValueError) as error:
        raise ValueError(
            f"Expected Slurm's variables of a job step, started by srun. Received: {error}"
        ) from error
    return _checked("Slurm's variables", addresses, resolver.task_id)


def _checked(source: str, workers: Any, worker: Any) -> tuple[list[str], int]:
    """A list of addresses and an index into it."""
    addresses = workers.split(",") if isinstance(workers, str) else list(workers or ())
    addresses = [str(address).strip() for address in addresses]
    well_formed = all(
        re.fullmatch(r"[^\s:/]+:[0-9]+|\[[^\]]+\]:[0-9]+", address) for address in addresses
    )
    index = int(worker) if str(worker).isdecimal() else -1
    if not addresses or not well_formed or len(set(addresses)) < len(addresses):
        raise ValueError(
            f'Expected {source} to specify different addresses "host:port" of the workers. '
            f"Received: {workers!r}"
        )
    if not 0 <= index < len(addresses):
        raise ValueError(
            f"Expected {source} to specify which of {len(addresses)} workers this is, from 0. "
            f"Received: {worker!r}"
        )
    return addresses, index


def strategy(
    name: str = "auto", workers: Sequence[str] | None = None, worker: int | None = None
) -> Strategy:
    """Returns a `tf.distribute.Strategy` by name; create and train the model in its `scope()`.

    Args:
        name: name of the strategy. `"none"` is the current strategy, by default one device.
            `"mirrored"` has a copy of the model on each GPU, or on each logical CPU if there is no
            GPU. `"multiworker"` has a copy on each GPU of several processes. Each process runs the
            same program and creates the strategy before any other use of TensorFlow. `"auto"`
            selects `"multiworker"` if VIT_TF_WORKERS or TF_CONFIG names several workers, otherwise
            `"mirrored"` if there are several GPUs, otherwise `"none"`. `"tpu"` requires JAX. On
            JAX, the result is a `DataParallelStrategy`. `"none"` uses one device. `"mirrored"` and
            `"auto"` use all devices of the processes that JAX has connected, usually of one
            process. `"multiworker"` connects processes first, and `"tpu"` the hosts of a TPU pod;
            create them before any other use of JAX.
        workers, worker: for `"multiworker"`, the addresses `"host:port"` of all processes and the
            index of this process among them. By default, `find_cluster` determines both.

    Raises:
        ValueError: if the name is unknown, if the cluster is not configured, if there is no TPU, or
            if the strategy would not use all processes that JAX has connected.
    """
    lookup("strategy", name, dict.fromkeys(STRATEGIES))  # an unknown one raises
    if name != "multiworker" and (workers is not None or worker is not None):
        raise ValueError(
            f"Expected workers and worker with strategy 'multiworker'. Received: {name!r}"
        )
    leave_gpus_to_jax()
    if name == "multiworker" or (name == "auto" and has_several_workers()):
        return multiworker_strategy(workers, worker)
    if on_jax():
        return jax_devices.make(name)
    if name == "tpu":
        raise ValueError(
            "A TPU needs KERAS_BACKEND=jax, since no package of TensorFlow 2.21 or later runs on "
            "TPUs. Received: KERAS_BACKEND=tensorflow"
        )
    gpus = _devices("GPU") if name != "none" else ()
    if name == "mirrored" or len(gpus) > 1:
        return _mirrored(gpus or _devices("CPU"))
    return tf.distribute.get_strategy()


def strategy_of(model: keras.Model) -> Strategy:
    """The strategy that a model was made under: of TensorFlow, or a `DataParallelStrategy`.

    Raises:
        ValueError: if Keras runs on JAX and the model was created in another scope than the current
            one.
    """
    if not on_jax():
        return model.distribute_strategy
    return jax_devices.strategy_of(model)


def steps_per_execution(steps: int, asked: int = 1) -> int:
    """The largest divisor of `steps` up to `asked`.

    Keras runs this many steps per call; otherwise the last call would read past the end of repeated
    data.
    """
    return max(count for count in range(1, min(asked, steps) + 1) if steps % count == 0)


def _devices(kind: str) -> tuple[str, ...]:
    return tuple(device.name for device in tf.config.list_logical_devices(kind))


@functools.cache
def _mirrored(devices: tuple[str, ...]) -> tf.distribute.Strategy:
    """Returns the process's only `MirroredStrategy`: collectives of a second one would collide."""
    on_cpu = "CPU" in devices[0]
    reduction = tf.distribute.ReductionToOneDevice() if on_cpu else None
    return tf.distribute.MirroredStrategy(devices, cross_device_ops=reduction)


def divide_batches(batches: tf.data.Dataset, strategy: Strategy) -> tf.data.Dataset:
    """Pads and weights batches so that several replicas compute the results of one device.

    Each example gets three weights: (1) its weight in the loss of a step, (2) its weight in means
    over examples, (3) 1 for an example and 0 for padding. The losses and metrics of
    `Recipe.compile` use these weights. Batches are padded to a multiple of the number of replicas.
    In JAX, all batches are padded to one size if it is known. Batches of several TensorFlow workers
    are not padded: the workers take shards of different sizes. Each JAX worker gets its own shard.

    Args:
        batches: `tf.data.Dataset` of (images, labels), or of (images, labels, weights).
        strategy: `tf.distribute.Strategy` or `DataParallelStrategy`.

    Returns:
        `tf.data.Dataset` of (images, labels, weights), the last float32 of shape (example, 3); on
        one device, `batches`.
    """
    replicas = strategy.num_replicas_in_sync
    if on_jax():
        return pad_batches(batches, replicas) if replicas > 1 else batches
    if num_workers() > 1:
        return shard_of_worker(_weigh_shards(batches, replicas))
    return pad_batches(batches, replicas) if replicas > 1 else batches


def pad_batches(
    batches: tf.data.Dataset, replicas: int, size: int | None = None
) -> ResumableDataset:
    """Pads batches to a multiple of `replicas`, and to one size if the batch size is known."""
    size = size or _batch_size(batches)
    most = None if size is None else -(-size // replicas) * replicas
    shard = current_shard()  # of several JAX workers
    # Set where each worker makes its shard of a batch before that is padded.
    batch_shard = shard if shard is not None and is_shardable(batches) else None

    def pad(batch: Any, count: tf.Tensor) -> tuple:
        total = most or -(-count // replicas) * replicas
        # The loss is the mean over all of a batch, the padding included.
        scale = tf.cast(total, tf.float32) / tf.cast(count, tf.float32)
        weighted = _weighted(batch, tf.fill(tf.shape(batch[1])[:1], scale))
        padded_size = total if batch_shard is None else total // batch_shard.num_shards

        def fill(tensor: tf.Tensor) -> tf.Tensor:
            rows = [[0, padded_size - tf.shape(tensor)[0]], *[[0, 0]] * (tensor.shape.rank - 1)]
            filled = tf.pad(tensor, rows)
            filled.set_shape((padded_size if most else None, *tensor.shape[1:]))
            if shard is None or batch_shard is not None:
                return filled
            first, last = (total * n // shard.num_shards for n in (shard.index, shard.index + 1))
            return filled[first:last]

        return tf.nest.map_structure(fill, weighted)

    if batch_shard is None:
        return ResumableDataset.from_sources(
            lambda batches: batches.map(lambda *batch: pad(batch, tf.shape(batch[1])[0])), batches
        )
    counts = ResumableDataset.from_examples(
        lambda numbers, full: numbers.batch(size, drop_remainder=full).map(tf.size),
        tf.data.Dataset.range(batches.num_examples),
        cast(int, size),  # shardable batches have a known size
    )
    return ResumableDataset.from_sources(
        lambda own, counts: tf.data.Dataset.zip(own, counts).map(pad),
        shard_of_worker(batches),
        counts,
    )


def _batch_size(batches: tf.data.Dataset) -> int | None:
    """Examples of a full batch, or None where the data set does not store it."""
    spec = batches.element_spec[1].shape
    if spec.rank and spec[0]:
        return spec[0]
    return getattr(batches, "batch_size", None)


def _weigh_shards(batches: tf.data.Dataset, replicas: int) -> ResumableDataset:
    """Batches with weights, so that workers with unequal shards train as one device does."""
    # Replica `r` minimises the mean over its `n_r` examples of a batch of `n`, and the means count
    # equally: each example needs the weight `replicas * n_r / n`.

    def weigh(*batch: Any) -> tuple:
        count = tf.shape(batch[1])[0]
        most = -(-count // replicas)
        sizes = tf.clip_by_value(count - most * tf.range(replicas), 0, most)
        return _weighted(batch, _weights(sizes))

    if is_shardable(batches):
        # A worker cannot infer the size of a batch from its own shard alone.
        weights = _weights_by_shard(batches.num_examples, batches.batch_size, replicas)
        return ResumableDataset.from_sources(
            lambda *both: tf.data.Dataset.zip(both).map(_weighted), batches, weights
        )
    return ResumableDataset.from_sources(lambda batches: batches.map(weigh), batches)


def _weights_by_shard(num_examples: int, batch_size: int, replicas: int) -> ResumableDataset:
    """Weights for batches of examples, of which each worker takes its shard."""

    def weigh(numbers: tf.Tensor) -> tf.Tensor:
        count = tf.size(numbers)
        of_replicas = [Shard(replica, replicas).size(count) for replica in range(replicas)]
        return _weights(tf.stack(of_replicas))

    weights = ResumableDataset.from_examples(
        lambda numbers, full: numbers.batch(batch_size, drop_remainder=full).map(weigh),
        tf.data.Dataset.range(num_examples),
        batch_size,
    )
    return weights.with_shards(lambda shard: weights.map(shard.slice_batch))


def _weights(sizes: tf.Tensor) -> tf.Tensor:
    """The weights of all examples of a batch, from the number of them on each replica."""
    weights = sizes * tf.size(sizes) / tf.reduce_sum(sizes)
    return tf.repeat(tf.cast(weights, tf.float32), sizes)


def _weighted(batch: tuple, weights: tf.Tensor) -> tuple:
    """A batch of (images, labels) or (images, labels, weights) with the three weights."""
    inputs, labels, *given_weights = batch
    weights = tf.ensure_shape(weights, labels.shape[:1])
    given = tf.cast(given_weights[0], tf.float32) if given_weights else tf.ones_like(weights)
    return inputs, labels, tf.stack([weights * given, given, tf.ones_like(given)], axis=1)
