"""File systems of fsspec in the place of `gs://`, so that runs at addresses need no network.

Import this module before anything asks `etils.epath` for an address of `gs://`.
"""

import os
import threading

# Otherwise `etils.epath` leaves addresses to TensorFlow, whose `gs://` needs the network.
os.environ["EPATH_USE_TF"] = "false"

import fsspec
from fsspec.implementations.ftp import FTPFileSystem
from fsspec.implementations.memory import MemoryFileSystem


class MemoryBucket(MemoryFileSystem):
    """Buckets in the memory of this process."""

    protocol = ("gs", "gcs", "s3")
    store, pseudo_dirs = {}, [""]

    def __init__(self, finalize_on_close=True):
        super().__init__()

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.rpartition("://")[2].strip("/")


class FtpBucket(FTPFileSystem):
    """Buckets that are the folders of a server, whose port the environment names."""

    protocol = ("gs", "gcs", "s3")

    # `etils.epath` has one file system for all threads, and a connection serves only one.
    @property
    def ftp(self):
        if not hasattr(self._connections, "ftp"):
            self._connect()
        return self._connections.ftp

    @ftp.setter
    def ftp(self, connection):
        self._connections.ftp = connection

    def __init__(self, finalize_on_close=True):
        self._connections = threading.local()
        port = int(os.environ["FTP_BUCKET_PORT"])
        user = {"username": "user", "password": "word"}
        super().__init__("127.0.0.1", port, use_listings_cache=False, **user)

    @classmethod
    def _strip_protocol(cls, path):
        return "/" + path.rpartition("://")[2].strip("/")


def serve_buckets(file_system):
    """Lets a file system answer to `gs://` from now on."""
    from etils.epath import backend

    for name in ("gs", "gcs", "s3"):
        fsspec.register_implementation(name, file_system, clobber=True)
    # It keeps the file system that answered before.
    backend.fsspec_backend._get_filesystem.cache_clear()
