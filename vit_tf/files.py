"""Files that appear whole or not at all, after a kill too, and folders of one process at a time."""

import contextlib
import hashlib
import logging
import os
import socket
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vit_tf.remote import PARTIAL, as_path, is_remote, write_remote


def write_whole(path, write):
    """Calls `write` with a path next to `path`, which may be an address, and renames what it wrote.

    Where writing fails, such as on a full disk, an older file stays and nothing else is left. A
    file elsewhere is written on this machine and copied, see `remote.write_remote`.
    """
    if is_remote(path):
        write_remote(path, write)
        return
    path = Path(os.path.abspath(path))
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f"{PARTIAL}{path.name}")
    try:
        write(partial)
        _flush(partial, os.O_RDWR)
        os.replace(partial, path)
    except BaseException as error:
        # On a full disk the half file would take the space of the next try.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno and not error.filename:
            error.filename = str(path)
        raise
    # A rename is on the disk only when its folder is; not every system can open a folder.
    with contextlib.suppress(OSError):
        _flush(path.parent, os.O_RDONLY)


def _flush(path, flags):
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_files(paths: list, *facts: str | bytes) -> str:
    """SHA-256, as text, of files, in their order, and facts; of an address its size and time."""
    total = hashlib.sha256()
    with ThreadPoolExecutor() as pool:
        for part in (*pool.map(_digest_file, paths), *facts):
            part = part.encode() if isinstance(part, str) else part
            total.update(len(part).to_bytes(8, "big") + part)
    return total.hexdigest()


def _digest_file(path):
    if is_remote(path):
        return _size_and_time(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def digest_tree(root) -> str:
    """A digest, as text, of the names, sizes and times of the files in a folder, or of one file."""
    root = os.fspath(root)
    if is_remote(root):
        import tensorflow as tf

        walk = tf.io.gfile.walk
    else:
        walk = os.walk
    files = sorted(os.path.join(folder, name) for folder, _, names in walk(root) for name in names)
    with ThreadPoolExecutor() as pool:
        facts = list(pool.map(_size_and_time, files or [root]))
    return digest_files([], *(file.removeprefix(root) for file in files), *facts)


def _size_and_time(path):
    if is_remote(path):
        import tensorflow as tf

        status = tf.io.gfile.stat(path)
        return f"{status.length} {status.mtime_nsec}"
    status = os.stat(path)
    return f"{status.st_size} {status.st_mtime_ns}"


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
