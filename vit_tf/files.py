"""Files that appear whole or not at all, after a kill or a power cut too."""

import contextlib
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vit_tf.remote import PARTIAL, is_remote, write_remote


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

        found = tf.io.gfile.stat(path)
        return f"{found.length} {found.mtime_nsec}"
    found = os.stat(path)
    return f"{found.st_size} {found.st_mtime_ns}"
