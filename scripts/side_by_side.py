"""Trainings in processes of their own, several at a time, each with its share of the cores.

One training of a small model leaves much of a processor idle: Python traces its graph on one core,
and its tensors are too small to be shared by all. Several at a time do not.
"""

import contextlib
import multiprocessing
import os
import queue
import threading
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait

# Trainings at a time, at most: each takes about a gigabyte.
MOST = 4
_told = None  # in a process of a `Processes`: where it tells how far it is


def default_jobs():
    """How many trainings at a time suit this machine: one where an accelerator does the work."""
    import tensorflow as tf

    cores = os.cpu_count() or 1
    alone = cores == 1 or tf.distribute.has_strategy() or tf.config.list_physical_devices("GPU")
    return 1 if alone else min(cores + 1, MOST)


class Processes:
    """Processes that carry out functions; they end with this one, however it ends.

    Args:
        jobs: number of processes.
        progress: called with what the functions `tell`.
    """

    def __init__(self, jobs, progress):
        context = multiprocessing.get_context("spawn")
        self._progress, self._told = progress, context.Queue()
        # A process reads the end of this pipe as soon as nobody is left to write to it.
        alive, self._alive = context.Pipe(duplex=False)
        threads = max(1, (os.cpu_count() or 1) // jobs)
        arguments = (threads, self._told, alive)
        self._pool = ProcessPoolExecutor(jobs, context, _start, arguments)

    def __enter__(self):
        return self

    def __exit__(self, kind, *_):
        if kind is not None:
            self._alive.close()
        self._pool.shutdown(cancel_futures=True)
        self._alive.close()

    def submit(self, function, *arguments):
        """The future of a call."""
        return self._pool.submit(function, *arguments)

    def first(self, futures):
        """The futures that are done as soon as there is one; meanwhile the progress is told."""
        while True:
            done, _ = wait(futures, timeout=0.2, return_when=FIRST_COMPLETED)
            with contextlib.suppress(queue.Empty):
                while True:
                    self._progress(*self._told.get_nowait())
            if done:
                return done


def tell(*arguments):
    """Tells the progress of this process to the one that started it."""
    _told.put(arguments)


def _start(threads, told, alive):
    import tensorflow as tf

    global _told
    _told = told
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    threading.Thread(target=_end_with, args=(alive,), daemon=True).start()


def _end_with(alive):
    with contextlib.suppress(EOFError):
        alive.recv()
    os._exit(1)
