"""A folder that only one process works in at a time."""

import contextlib
import logging
import os
import socket
import time

from vit_tf.remote import as_path, is_remote

try:
    import fcntl
except ImportError:  # where files have no such locks, nobody is kept out
    fcntl = None

log = logging.getLogger("vit_tf.training")

_LOCK = ".lock"


@contextlib.contextmanager
def only_process(folder):
    """Keep other processes out of a folder, which is made.

    The lock is the system's: it ends with the process, however that ends, so that the file which
    a killed process leaves behind keeps nobody out. Elsewhere, such as at `gs://`, there are no
    such locks. There the process that comes last takes over, which a line of the log says, and the
    one before it learns that at its next check: until then both may write.

    Yields:
        Function that checks that this process is still alone; a `ValueError` where it is not.

    Raises:
        ValueError: if another process holds the folder; the message names the process.
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
