"""Files that appear whole or not at all, after a kill or a power cut too."""

import contextlib
import os
from pathlib import Path

from vit_tf.remote import PARTIAL, is_remote, write_remote


def write_whole(path, write):
    """Calls `write` with another path beside `path`, and renames what it wrote to `path`.

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
        # On a full disk the half file would take the room of the next try.
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
