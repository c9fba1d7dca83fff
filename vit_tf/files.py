"""Files that appear whole or not at all, after a kill or a power cut too."""

import contextlib
import hashlib
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from vit_tf.remote import PARTIAL, is_remote, without_password, write_remote


def write_whole(path, write):
    """Calls `write` with another path next to `path`, and renames what it wrote to `path`.

    Where writing fails, such as on a full disk, an older file stays and nothing else is left. A
    file elsewhere is written on this machine and copied, see `remote.write_remote`.

    Args:
        path: where the file is to appear, which may be an address; its folder is made.
        write: function of a `pathlib.Path` of the same suffix that writes the file.
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


def refuse_other_formats(path):
    """Raises a `ValueError` for models in formats that are not read; it says how to save them."""
    path = os.fspath(path)
    lower = path.lower()
    anew = f"{os.path.splitext(os.path.basename(path))[0].removesuffix('.weights')}.keras"
    if lower.endswith((".weights.h5", ".weights.hdf5")):
        received = f"weights alone: load them into their model, then model.save({anew!r})"
    elif lower.endswith((".h5", ".hdf5")):
        received = (
            "Keras' older format: save it anew with "
            f"keras.models.load_model({without_password(path)!r}, compile=False).save({anew!r})"
        )
    elif lower.endswith((".tflite", ".lite")):
        received = (
            "compiled for TensorFlow Lite, which keeps no layers: save the Keras model that it "
            f"was made from, with model.save({anew!r})"
        )
    else:
        return
    raise ValueError(
        f"Expected a .keras file or a checkpoint. Received: {without_password(path)!r}, {received}"
    )


def _flush(path, flags):
    descriptor = os.open(path, flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def digest_files(paths, *facts):
    """SHA-256, as text, of the contents of files, in their order, and of further facts.

    Of files at an address, which would have to be copied, their sizes and times count instead.

    Args:
        paths: list of paths and addresses.
        *facts: texts or bytes.
    """
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


def digest_tree(root):
    """A digest, as text, of the names, sizes and times of all files in a folder, or of one file.

    Nothing is read, so that a folder of many images takes a moment.
    """
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
