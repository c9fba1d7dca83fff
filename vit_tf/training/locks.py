"""A folder that only one process works in at a time."""

import contextlib
import os

try:
    import fcntl
except ImportError:  # where files have no such locks, nobody is kept out
    fcntl = None

_LOCK = ".lock"


@contextlib.contextmanager
def only_process(folder):
    """Keep other processes out of a folder, which is made.

    The lock is the system's: it ends with the process, however that ends, so that the file which
    a killed process leaves behind keeps nobody out.

    Raises:
        ValueError: if another process holds the folder; the message names the process.
    """
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _LOCK)
    descriptor = _open_locked(path, os.fspath(folder))
    try:
        os.truncate(descriptor, 0)
        os.write(descriptor, str(os.getpid()).encode())
        yield
    finally:
        with contextlib.suppress(FileNotFoundError):  # of a folder that has vanished
            os.remove(path)
        os.close(descriptor)


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
            f"Expected no other process to work in {folder!r}. Received: process {holder}, "
            "which is at work there; wait for it or choose another folder"
        ) from error
    return os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path))
