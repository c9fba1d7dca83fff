"""Files and paths, on this machine or remote (`gs://bucket/run`), and folders of one process."""

import contextlib
import hashlib
import logging
import os
import re
import secrets
import socket
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TypeAlias

import filelock
from etils import epath

from vit_tf.common.names import format_list, without_password

log = logging.getLogger("vit_tf.training")
_LOCK = ".lock"
# What the name of a file begins with while it is written. Eight random bytes follow, in 16 digits.
PARTIAL = ".partial-"
_LEFTOVER = re.compile(rf"{re.escape(PARTIAL)}[0-9a-f]{{16}}(\.\w+)?")
# Raises a `ValueError` where another process has taken a folder over.
Check: TypeAlias = Callable[[], None]
SCHEMES = ("gs", "s3", "az", "hf")  # of addresses that `etils.epath` opens


def write_whole(path: str | os.PathLike, write: Callable[[Path], object]) -> None:
    """Calls `write` with a path next to `path`, which may be an address, and renames what it wrote.

    Where writing fails, such as on a full disk, an older file stays and nothing else is left. A
    link at `path` is replaced, not followed.

    Raises:
        ValueError: where `path` is something else than a file.
    """
    if is_remote(path):
        write_remote(path, write)
        return
    path = Path(os.path.abspath(path))
    if path.exists() and not path.is_file():
        raise ValueError(f"Cannot write {str(path)!r}: it exists and is not a file")
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        write(partial)
        _flush(partial, os.O_RDWR)
        os.replace(partial, path)
    except BaseException as error:
        # On a full disk the half file would take the space of the next try.
        partial.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.filename in (str(partial), partial):
            error.filename = str(path)
        raise
    # A rename is on the disk only when its folder is; not every system can open a folder.
    with contextlib.suppress(OSError):
        _flush(path.parent, os.O_RDONLY)


def partial_path(path: Path) -> Path:
    """A path in the same folder and of the same suffix, whose name nobody else uses."""
    return path.with_name(f"{PARTIAL}{secrets.token_hex(8)}{path.suffix}")


def _flush(path: str | os.PathLike, flags: int) -> None:
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_files(paths: Iterable[str | os.PathLike], *facts: str | bytes) -> str:
    """SHA-256, as text, of files, in their order, and facts; of an address its size and time."""
    total = hashlib.sha256()
    with ThreadPoolExecutor() as pool:
        for content in (*pool.map(_digest_file, paths), *facts):
            content = content.encode() if isinstance(content, str) else content
            total.update(len(content).to_bytes(8, "big") + content)
    return total.hexdigest()


def _digest_file(path: str | os.PathLike) -> str | bytes:
    if is_remote(path):
        return _size_and_time(path)
    with open(path, "rb") as file:
        return hashlib.file_digest(file, "sha256").digest()


def digest_tree(root: str | os.PathLike) -> str:
    """A digest, as text, of the names, sizes and times of the files in a folder, or of one file."""
    root, walk = os.fspath(root), os.walk
    if is_remote(root):
        import tensorflow as tf

        walk = tf.io.gfile.walk
    files = sorted(os.path.join(folder, name) for folder, _, names in walk(root) for name in names)
    with ThreadPoolExecutor() as pool:
        facts = list(pool.map(_size_and_time, files or [root]))
    return digest_files([], *(file.removeprefix(root) for file in files), *facts)


def _size_and_time(path: str | os.PathLike) -> str:
    if is_remote(path):
        import tensorflow as tf

        status = tf.io.gfile.stat(path)
        return f"{status.length} {status.mtime_nsec}"
    status = os.stat(path)
    return f"{status.st_size} {status.st_mtime_ns}"


@contextlib.contextmanager
def only_process(folder: str | os.PathLike) -> Iterator[Check]:
    """Lock a folder, created if missing; yields a function that raises after a takeover.

    The operating system releases the lock when the process ends, even if it is killed; what a
    killed process left half written is removed. Remote folders, such as `gs://`, have no locks:
    there the latest process takes over, which is logged, and the earlier one stops at its next
    check; until then both may write.

    Raises:
        ValueError: while another process uses the folder.
    """
    if is_remote(folder):
        with _claimed(folder) as check:
            yield check
        return
    folder = Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(folder / _LOCK)
    try:
        lock.acquire(blocking=False)
    except filelock.Timeout as error:
        raise ValueError(
            f"Another process is using {str(folder)!r}: wait until it ends, or choose another "
            "folder"
        ) from error
    try:
        # What killed processes left in the folder and in its subfolders.
        for path in (*folder.glob(f"{PARTIAL}*"), *folder.glob(f"*/{PARTIAL}*")):
            if _LEFTOVER.fullmatch(path.name) and path.is_file() and not path.is_symlink():
                path.unlink()
        yield lambda: None
    finally:
        # Removed before it is released: who has opened it meanwhile finds it without a name.
        (folder / _LOCK).unlink(missing_ok=True)
        lock.release()


@contextlib.contextmanager
def _claimed(folder: str | os.PathLike) -> Iterator[Check]:
    """Note in a folder elsewhere that this process works in it."""
    folder = as_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path, mine = folder / _LOCK, f"{os.getpid()} on {socket.gethostname()}, {time.time():.6f}"

    def holder() -> str:
        return path.read_text() if path.exists() else "unknown"

    if path.exists():
        log.warning(
            "Taking over %r from process %s, which has ended without releasing it or is still "
            "running",
            without_password(folder),
            holder(),
        )
    path.write_text(mine)

    def check() -> None:
        if (other := holder()) != mine:
            raise ValueError(
                f"Process {other} has taken over {without_password(folder)!r}, so this process "
                "stops"
            )

    try:
        yield check
    finally:
        if holder() == mine:
            path.unlink()


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path is an address, such as `"gs://bucket/run"`, and not on this machine."""
    return "://" in os.fspath(path)


def as_path(path: str | os.PathLike) -> "Path | epath.Path":
    """A path as a `pathlib.Path`, or as an `etils.epath.Path` where it is an address.

    Raises:
        ValueError: for an address of a scheme that `etils.epath` does not know.
    """
    if isinstance(path, Path | epath.Path):
        return path
    if not is_remote(path):
        return Path(path)
    if os.fspath(path).partition("://")[0] not in SCHEMES:
        schemes = format_list(f"{scheme}://" for scheme in SCHEMES)
        raise ValueError(
            f"Expected a path on this machine or an address that begins with one of {schemes}. "
            f"Received: {without_password(path)!r}"
        )
    return epath.Path(path)


def write_remote(path: str | os.PathLike, write: Callable[[Path], object]) -> None:
    """Calls `write` with a path on this machine and copies what it wrote to an address.

    Object stores show a copy whole or not at all.
    """
    target = as_path(path)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / target.name
        write(local)
        target.parent.mkdir(parents=True, exist_ok=True)
        epath.Path(local).copy(target, overwrite=True)


@contextlib.contextmanager
def local_copy(path: str | os.PathLike) -> Iterator[str]:
    """The path itself or, of an address, that of a copy on this machine while it is needed."""
    if not is_remote(path):
        yield os.fspath(path)
        return
    remote = as_path(path)
    if not remote.is_file():
        raise ValueError(f"File not found: {without_password(path)!r}")
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, remote.name)
        epath.Path(remote).copy(local)
        yield local
