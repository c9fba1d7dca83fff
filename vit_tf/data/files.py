"""Files and paths, on this machine or remote (`gs://bucket/run`), and folders of one process."""

import contextlib
import errno
import fnmatch
import hashlib
import io
import logging
import os
import pickletools
import re
import secrets
import shutil
import socket
import stat
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from types import SimpleNamespace
from typing import IO, Any, BinaryIO, TypeAlias

from vit_tf.common.names import without_password

try:
    import fcntl
except ImportError:  # where files have no such locks, other processes are not blocked
    fcntl = None
log = logging.getLogger("vit_tf.training")
_LOCK = ".lock"
# What the name of a file begins with while it is written. Eight random bytes follow, in 16 digits.
PARTIAL = ".partial-"
_LEFTOVER = re.compile(rf"{re.escape(PARTIAL)}[0-9a-f]{{16}}(\.\w+)?")
# Raises a `ValueError` where another process has taken a folder over.
Check: TypeAlias = Callable[[], None]
CHUNK = 2**24  # bytes that are copied at a time


def write_whole(
    path: str | os.PathLike, write: Callable[[Path], object], own_folders: int = 0
) -> None:
    """Calls `write` with a path next to `path`, which may be an address, and renames what it wrote.

    Where writing fails, such as on a full disk, an older file stays and nothing else is left. A
    link at `path` is replaced, not followed. The last `own_folders` folders of `path` are made by
    this package inside of one that the user chose.

    Raises:
        ValueError: where `path` is something else than a file, or one of its own folders a link.
    """
    if is_remote(path):
        write_remote(path, write)
        return
    path = Path(os.path.abspath(path))
    # Whoever made such a link chose neither the folder behind it nor that its files are replaced.
    for folder in path.parents[:own_folders]:
        if folder.is_symlink():
            raise ValueError(
                f"Expected {str(folder)!r} to be a folder. Received: a link to "
                f"{os.readlink(folder)!r}; remove it, or choose another output folder"
            )
    if path.exists() and not path.is_file():
        raise ValueError(
            f"Expected a path of a file, or one that is free. Received: {str(path)!r}, not a file"
        )
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = partial_path(path)
    try:
        os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
        write(partial)
        _flush(partial, os.O_RDWR)
        os.replace(partial, path)
    except BaseException as error:
        # On a full disk the half file would take the space of the next try.
        with contextlib.suppress(OSError):
            partial.unlink(missing_ok=True)
        # HDF5 reports what the system refuses, such as to fill a full disk, in words.
        is_of_system = isinstance(error, OSError | RuntimeError)
        if is_of_system and (found := re.search(r"errno = (\d+)", str(error))):
            number = int(found[1])
            raise OSError(number, os.strerror(number), str(path)) from error
        is_unnamed = getattr(error, "filename", "") in (None, str(partial), partial)
        if isinstance(error, OSError) and error.errno and is_unnamed:
            error.filename = str(path)
        raise
    # A rename is on the disk only when its folder is; not every system can open a folder.
    with contextlib.suppress(OSError):
        _flush(path.parent, os.O_RDONLY)


def partial_path(path: Path) -> Path:
    """A path in the same folder and of the same suffix, whose name nobody else uses."""
    return path.with_name(f"{PARTIAL}{secrets.token_hex(8)}{path.suffix}")


def is_leftover(name: str) -> bool:
    """Whether a name is that of a file of `write_whole`, which a kill may leave behind."""
    return bool(_LEFTOVER.fullmatch(name))


def _remove_leftovers(folder: str) -> None:
    """Removes the files in a folder and in its subfolders that killed processes left there."""
    with os.scandir(folder) as entries:
        inside = [entry.path for entry in entries if entry.is_dir(follow_symlinks=False)]
    for directory in (folder, *inside):
        # A subfolder that is not this user's holds nothing that this user's process left.
        with contextlib.suppress(PermissionError), os.scandir(directory) as entries:
            for entry in entries:
                if is_leftover(entry.name) and entry.is_file(follow_symlinks=False):
                    os.remove(entry.path)


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
        ValueError: while another process uses the folder, or where `.lock` in it is not a file.
    """
    if is_remote(folder):
        with _claimed(folder) as check:
            yield check
        return
    os.makedirs(folder, exist_ok=True)
    path = os.path.join(folder, _LOCK)
    descriptor, is_own = _open_locked(path, os.fspath(folder))
    try:
        if is_own:
            os.truncate(descriptor, 0)
            os.lseek(descriptor, 0, os.SEEK_SET)
            os.write(descriptor, str(os.getpid()).encode())
        _remove_leftovers(os.fspath(folder))
        yield lambda: None
    finally:
        if is_own:
            with contextlib.suppress(FileNotFoundError):  # of a folder that has vanished
                os.remove(path)
        os.close(descriptor)


@contextlib.contextmanager
def _claimed(folder: str | os.PathLike) -> Iterator[Check]:
    """Note in a folder elsewhere that this process works in it."""
    folder = as_path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    path, mine = folder / _LOCK, f"{os.getpid()} on {socket.gethostname()}, {time.time():.6f}"
    if path.exists():
        process = path.read_bytes().decode(errors="replace")
        if not re.fullmatch(r"\d+ on .*", process):
            raise ValueError(
                f"Expected {str(path)!r} to be free, or written by vit_tf. Received: another file"
            )
        log.warning(
            "Taking over %r from process %s, which has ended without releasing it or is still "
            "running",
            str(folder),
            process,
        )
    path.write_text(mine)

    def holder() -> str:
        return path.read_text() if path.exists() else "unknown"

    def check() -> None:
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


def _open_locked(path: str, folder: str) -> tuple[int, bool]:
    """A descriptor of the file at a path, locked, and whether this package wrote the file."""
    while True:
        descriptor, is_new = _open_lock_file(path)
        try:
            if _lock(descriptor, path, folder):
                # A killed process leaves its number there. A file of others is locked as it is.
                return descriptor, is_new or os.read(descriptor, 20).isdigit()
        except BaseException:
            os.close(descriptor)
            raise
        os.close(descriptor)


def _open_lock_file(path: str) -> tuple[int, bool]:
    """A descriptor of the file at a path, which is not emptied, and whether it is a new one."""
    # A link is not followed, and a pipe not waited for; Windows has neither flag.
    flags = os.O_RDWR | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
    while True:
        with contextlib.suppress(FileExistsError):
            return os.open(path, flags | os.O_CREAT | os.O_EXCL, 0o666), True
        with contextlib.suppress(FileNotFoundError):  # its holder has ended in between
            if not stat.S_ISREG(os.lstat(path).st_mode):
                raise ValueError(
                    f"Expected {path!r} to be free, or a file. Received: a link, a folder or a "
                    "device; remove it, or choose another output folder"
                )
            return os.open(path, flags), False


def _lock(descriptor: int, path: str, folder: str) -> bool:
    """Lock an open file; False if it was removed by the process that had it until now."""
    if fcntl is None:
        return True
    try:
        fcntl.lockf(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError) as error:
        content = os.read(descriptor, 20)
        holder = content.decode() if content.isdigit() else "unknown"
        raise ValueError(
            f"Expected no other process to use {folder!r}. Received: process {holder}, "
            "which is using it; wait until it ends, or choose another folder"
        ) from error
    return os.path.exists(path) and os.path.samestat(os.fstat(descriptor), os.stat(path))


def require_small_table(stream: IO[bytes]) -> None:
    """Raises a `ValueError` for a pickle that would take more memory than a file of its size."""
    start = stream.tell()
    for steps, (opcode, argument, _) in enumerate(pickletools.genops(stream)):
        # The C unpickler has a table as long as the largest number that something is stored under.
        if opcode.name in ("PUT", "BINPUT", "LONG_BINPUT") and int(argument or 0) > 2 * steps + 256:
            raise ValueError("a pickle with a table larger than itself")
    stream.seek(start)


def require_file(path: str | os.PathLike) -> None:
    """Raises a `ValueError` for what is there and no file: a pipe, a socket, a device, a folder."""
    # Opening a pipe would wait for its other end.
    if not is_remote(path) and os.path.exists(path) and not os.path.isfile(path):
        raise ValueError(f"Expected the path of a file. Received: {os.fspath(path)!r}, not a file")


def require_utf8(path: str | os.PathLike) -> None:
    """Raises a `ValueError` for a name that is not in UTF-8, which TensorFlow expects."""
    try:
        os.fspath(path).encode()
    except UnicodeEncodeError as error:
        raise ValueError(
            "Expected names of files and folders in UTF-8, which renaming gives them. "
            f"Received: {os.fspath(path)!r}"
        ) from error


def is_remote(path: str | os.PathLike) -> bool:
    """Whether a path is an address, such as `"gs://bucket/run"`, and not on this machine."""
    return "://" in os.fspath(path)


def as_path(path: str | os.PathLike) -> "Path | RemotePath":
    """A path as a `pathlib.Path`, or as a `RemotePath` where it is an address."""
    if isinstance(path, (Path, RemotePath)):
        return path
    return RemotePath(path) if is_remote(path) else Path(path)


def write_remote(path: str | os.PathLike, write: Callable[[Path], object]) -> None:
    """Calls `write` with a path on this machine and copies what it wrote to an address.

    Object stores show a copy whole or not at all; other file systems may show a part of it.
    """
    target = RemotePath(path)
    with tempfile.TemporaryDirectory() as folder:
        local = Path(folder) / target.name
        write(local)
        with open(local, "rb") as source:
            target.write_from(source)


@contextlib.contextmanager
def local_copy(path: str | os.PathLike) -> Iterator[str]:
    """The path itself or, of an address, that of a copy on this machine while it is needed."""
    if not is_remote(path):
        yield os.fspath(path)
        return
    remote = RemotePath(path)
    with tempfile.TemporaryDirectory() as folder:
        local = os.path.join(folder, remote.name)
        with remote.open() as source, open(local, "wb") as target:
            shutil.copyfileobj(source, target, CHUNK)
        yield local


class RemotePath(os.PathLike):
    """A file or folder of a file system that TensorFlow (`tf.io.gfile`) or fsspec can open.

    Of the calls of a `pathlib.Path` those that a run needs. A scheme that both know, such as `gs`,
    is TensorFlow's. A folder of an object store is there when something is in it. `str` and `repr`
    hide a password; `os.fspath` gives the whole address.

    Raises:
        ValueError: for a scheme that neither knows.
    """

    def __init__(self, path: str | os.PathLike):
        scheme, _, rest = os.fspath(path).partition("://")
        self._scheme, self._rest = scheme, PurePosixPath(rest)
        self._files = _file_system(scheme, os.fspath(path))

    def __fspath__(self) -> str:
        return f"{self._scheme}://{self._rest}"

    def __str__(self) -> str:
        return without_password(os.fspath(self))

    def __repr__(self) -> str:
        return repr(str(self))

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemotePath) and os.fspath(self) == os.fspath(other)

    def __hash__(self) -> int:
        return hash(os.fspath(self))

    def __truediv__(self, name: str | os.PathLike) -> "RemotePath":
        return RemotePath(f"{os.fspath(self)}/{os.fspath(name)}")

    @property
    def parent(self) -> "RemotePath":
        return RemotePath(f"{self._scheme}://{self._rest.parent}")

    @property
    def name(self) -> str:
        return self._rest.name

    @property
    def stem(self) -> str:
        return self._rest.stem

    def exists(self) -> bool:
        return self._files.exists(os.fspath(self))

    def is_dir(self) -> bool:
        return self._files.is_dir(os.fspath(self))

    def is_file(self) -> bool:
        return self.exists() and not self.is_dir()

    def mkdir(self, parents: bool = True, exist_ok: bool = True) -> None:
        self._files.mkdir(os.fspath(self))

    def iterdir(self) -> "list[RemotePath]":
        return [self / name for name in self._files.names(os.fspath(self))]

    def glob(self, pattern: str) -> "list[RemotePath]":
        """The entries of this folder whose names match; none where there is no folder."""
        entries = self.iterdir() if self.is_dir() else []
        return [path for path in entries if fnmatch.fnmatchcase(path.name, pattern)]

    def unlink(self, missing_ok: bool = False) -> None:
        if self.exists() or not missing_ok:
            self._files.remove(os.fspath(self))

    def open(self) -> BinaryIO:
        """The file, opened to read bytes."""
        if not self.is_file():
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(self))
        return self._files.open(os.fspath(self))

    def read_bytes(self) -> bytes:
        with self.open() as file:
            return file.read()

    def read_text(self) -> str:
        return self.read_bytes().decode()

    def write_text(self, text: str) -> None:
        self.write_from(io.BytesIO(text.encode()))

    def write_from(self, source: BinaryIO) -> None:
        """Copy an open file here, instead of an older one; the folder is made."""
        self.parent.mkdir()
        self._files.write(os.fspath(self), source)


def _tensorflow_files() -> SimpleNamespace:
    """The calls of `tf.io.gfile` that `RemotePath` makes."""
    import tensorflow as tf

    files = tf.io.gfile

    def write(path: str, source: BinaryIO) -> None:
        # Not every file system of TensorFlow empties a file that is opened to be written.
        folder, _, name = path.rpartition("/")
        partial = f"{folder}/{partial_path(Path(name))}"
        try:
            with files.GFile(partial, "wb") as target:
                shutil.copyfileobj(source, target, CHUNK)
            files.rename(partial, path, overwrite=True)
        except BaseException:
            with contextlib.suppress(tf.errors.OpError):
                files.remove(partial)
            raise

    return SimpleNamespace(
        exists=files.exists,
        is_dir=files.isdir,
        mkdir=files.makedirs,
        names=lambda path: sorted(name.rstrip("/") for name in files.listdir(path)),
        remove=files.remove,
        open=lambda path: files.GFile(path, "rb"),
        write=write,
    )


def _fsspec_files(path: str) -> SimpleNamespace:
    """The same of fsspec, for the host of an address."""
    from fsspec.core import url_to_fs

    system, _ = url_to_fs(path)

    def uncached() -> Any:
        system.invalidate_cache()
        return system

    def names(path: str) -> list[str]:
        entries = (entry.rstrip("/") for entry in uncached().ls(path, detail=False))
        return sorted(PurePosixPath(entry).name for entry in entries)

    def write(path: str, source: BinaryIO) -> None:
        with system.open(path, "wb") as target:
            shutil.copyfileobj(source, target, CHUNK)

    return SimpleNamespace(
        exists=lambda path: uncached().exists(path),
        is_dir=lambda path: uncached().isdir(path),
        mkdir=lambda path: system.makedirs(path, exist_ok=True),
        names=names,
        remove=system.rm_file,
        open=lambda path: system.open(path, "rb"),
        write=write,
    )


def _file_system(scheme: str, path: str) -> SimpleNamespace:
    import tensorflow as tf

    if scheme in tf.io.gfile.get_registered_schemes():
        return _tensorflow_files()
    try:
        return _fsspec_files(path)
    except (ImportError, ValueError) as error:
        raise ValueError(
            "Expected a path that TensorFlow or fsspec can open. "
            f"Received: {scheme + '://'!r} ({error})"
        ) from error
