"""The processes that train one model together: who they are, and what they agree on."""

import contextlib
import json
import os
import re
import shutil
import sys

import numpy as np
import tensorflow as tf
from tensorflow.python.eager import context

from vit_tf.backend import on_jax
from vit_tf.batches import Shard, is_shardable
from vit_tf.distribute import multiworker

# Seconds without a sign of life after which a worker is dead, and to wait for all to start.
HEARTBEAT, START = 20, 600

# The strategy of this process, if it is one of several, its index and their number.
_strategies, _position = [], []


def make_strategy(workers=None, worker=None):
    """The strategy of this process, one of several that train together; there is one at most.

    It waits until every worker has started. Where the program has set no seed, that of the first
    worker is set on all, so that data are shuffled equally. A ValueError for malformed addresses,
    or if TensorFlow (or JAX) has run before.
    """
    if _strategies:
        return _strategies[0]
    addresses, index = find_cluster(workers, worker)
    if on_jax():
        from vit_tf.distribute import jax_devices

        strategy = jax_devices.connect(addresses, index)
        _strategies.append(strategy)
        _position[:] = index, len(addresses)
        return strategy
    if context.context()._context_handle is not None:
        raise ValueError(
            "Expected the multi-worker strategy to be created before any other use of "
            "TensorFlow. Received: a program that has already used it; create the strategy in "
            "its first lines"
        )
    _watch_workers(len(addresses))
    strategy = tf.distribute.MultiWorkerMirroredStrategy(
        tf.distribute.cluster_resolver.SimpleClusterResolver(
            tf.train.ClusterSpec({"worker": addresses}),
            task_type="worker",
            task_id=index,
            num_accelerators={"GPU": len(tf.config.list_physical_devices("GPU"))},
            rpc_layer="grpc",
        )
    )
    multiworker.adapt_keras()
    _strategies.append(strategy)
    _position[:] = index, len(addresses)
    if context.global_seed() is None:
        tf.random.set_seed(int(of_every_worker(np.random.SeedSequence().entropy % 2**31)[0]))
    return strategy


def num_workers():
    """How many processes train together: 1 without a multi-worker strategy."""
    return _position[1] if _position else 1


def worker_index():
    """The index of this process among those that train together, from 0."""
    return _position[0] if _position else 0


def current_shard():
    """The `Shard` of this process; None for a single one."""
    if num_workers() == 1:
        return None
    replicas = _strategies[0].num_replicas_in_sync // num_workers()
    return Shard(worker_index(), num_workers(), replicas)


def shard_of_worker(dataset):
    """This worker's shard of each batch that workers can make alone, else the whole data set."""
    shard = current_shard()
    return dataset.shard_batches(shard) if shard and is_shardable(dataset) else dataset


def is_chief():
    """Whether this process writes files: true for the first worker and for a single process."""
    return worker_index() == 0


def sum_of_workers(array):
    """The sum of the arrays of one shape that the workers call this with."""
    if not _strategies:
        return np.asarray(array)
    if on_jax():
        from vit_tf.distribute import jax_devices

        return jax_devices.gather(array).sum(axis=0)
    return np.asarray(_strategies[0].reduce("SUM", tf.constant(array), axis=None))


def of_every_worker(number):
    """The whole numbers that the workers call this with, in their order: int64 array."""
    mine = np.zeros(num_workers(), np.int64)
    mine[worker_index()] = number
    return sum_of_workers(mine)


def wait_for_workers():
    """Blocks until every worker has called this function."""
    of_every_worker(0)


@contextlib.contextmanager
def explained_failures():
    """Turns errors of TensorFlow or JAX about workers that stopped into a `ConnectionError`."""
    lost = (tf.errors.UnavailableError, tf.errors.AbortedError, tf.errors.CancelledError)
    lost += (tf.errors.DeadlineExceededError, tf.errors.FailedPreconditionError)
    try:
        yield
    except (*lost, tf.errors.InternalError, *_jax_errors()) as error:
        if num_workers() == 1:
            raise
        words = getattr(error, "message", str(error)).strip()[:200]
        library = "JAX" if on_jax() else "TensorFlow"
        raise ConnectionError(
            f"Another worker stopped or cannot be reached. Start all workers again: a run "
            f"resumes from its last saved state. {library} reports: {words}"
        ) from error


def _jax_errors():
    """The errors of collective operations in JAX, where Keras runs on it."""
    if not on_jax():
        return ()
    import jax

    return (jax.errors.JaxRuntimeError,)


def leave(status):
    """End a process whose other workers are lost, at once: Python would wait for TensorFlow."""
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(status)


def find_cluster(workers=None, worker=None):
    """The addresses of all workers and the index of this one in their list.

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
    raise ValueError(
        "Expected the addresses of the workers: as arguments, in VIT_TF_WORKERS and VIT_TF_WORKER, "
        "in TF_CONFIG, or from Slurm's srun. Received: none of them"
    )


def has_several_workers():
    """Whether VIT_TF_WORKERS or TF_CONFIG names more than one worker."""
    configured = "VIT_TF_WORKERS" in os.environ or "cluster" in os.environ.get("TF_CONFIG", "")
    return configured and len(find_cluster()[0]) > 1


def _from_tf_config(text):
    try:
        config = json.loads(text)
        cluster, task = dict(config["cluster"]), config["task"]
        kind, index = task["type"], int(task["index"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(
            'Expected TF_CONFIG to be JSON such as {"cluster": {"worker": ["host:port", ...]}, '
            f'"task": {{"type": "worker", "index": 0}}}}. Received: {text!r} ({error!r})'
        ) from error
    if not set(cluster) <= {"chief", "worker"} or kind not in cluster:
        raise ValueError(
            "Expected TF_CONFIG to name tasks of type chief and worker, and this one's among them. "
            f"Received: cluster of {sorted(cluster)}, task of type {kind!r}"
        )
    if not 0 <= index < len(cluster[kind]):
        raise ValueError(
            f"Expected TF_CONFIG to specify which of {len(cluster[kind])} tasks of type "
            f"{kind!r} this "
            f"is, from 0. Received: {index}"
        )
    chiefs = list(cluster.get("chief", ()))
    addresses = [*chiefs, *cluster.get("worker", ())]
    return _checked("TF_CONFIG", addresses, index + (len(chiefs) if kind == "worker" else 0))


def _from_slurm():
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


def _checked(source, workers, worker):
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


def _watch_workers(count):
    """Let TensorFlow end collective operations when a worker shows no sign of life."""
    context.context().configure_coordination_service(
        service_type="standalone",
        service_leader="/job:worker/replica:0/task:0",
        cluster_register_timeout_in_ms=1000 * START,
        heartbeat_timeout_in_ms=1000 * HEARTBEAT,
        shutdown_barrier_timeout_in_ms=1000 * HEARTBEAT,
    )
    context.context().coordination_service.coordinated_job_list.add(name="worker", num_tasks=count)
