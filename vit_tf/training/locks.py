"""Locks a folder, so that only one process uses it at a time."""

import contextlib
import logging
import os
import socket
import time

from vit_tf.remote import as_path, is_remote

try:
    import fcntl
except ImportError:  # where files have no such locks, other processes are not blocked
    fcntl = None

log = logging.getLogger("vit_tf.training")

_LOCK = ".lock"


@contextlib.contextmanager
def only_process(folder):
    """Lock a folder, created if missing; yields a function that raises after a takeover.

    The operating system releases the lock when the process ends, even if it is killed. Remote
    folders, such as `gs://`, have no locks: there the latest process takes over, which is logged,
    and the earlier one stops at its next check; until then both may write.
    """
    if is_remote(folder):
        with _claimed(folder) as check:
            yield check
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _LOCK)
    descriptor = _open_locked(path, os.fspath(folder))
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield lambda: None
    finally:
        with contextlib.suppress(FileNotFoundError):  # of a folder that has vanished
            os.remove(path)
        os.close(descriptor)


@contextlib.contextmanager
def _claimed(folder):
    """Note in a folder elsewhere that this process works in it."""
    folder = as_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path, mine = folder / _LOCK, f"{os.getpid()} on {socket.gethostname()}, {time.time():.6f}"
    if path.exists():
        log.warning(
            "Taking over %r from process %s, which has ended without releasing it or is still "
            "running",
            str(folder),
            path.read_text(),
        )
    path.write_text(mine)

    def holder():
        return path.read_text() if path.exists() else "unknown"

    def check():
        if (other := holder()) != mine:
            raise ValueError(
                f"Expected no other process to use {str(folder)!r}. Received: process {other}, "
                "which has taken over; this process stops"
            )

    try:
        yield check
    finally:
        if holder() == mine:
            path.unlink()


def _open_locked(path, folder):
    """A descriptor of the file at a path, locked."""
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            if fcntl is None or _lock(descriptor, path, folder):
                return descriptor
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _lock(descriptor, path, folder):
    """Lock an open file; False if it was removed by the process that had it until now."""
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        holder = os.read(descriptor, 20).decode() or "unknown"
        raise ValueError(
            f"Expected no other process to use {folder!r}. Received: process {holder}, "
            "which is using it; wait until it ends, or choose another folder"
        ) from error
    return os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path))
