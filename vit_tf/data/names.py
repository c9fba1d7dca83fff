"""Names of data sets; TensorFlow is not imported."""

import os

from vit_tf.common.names import unknown_name
from vit_tf.data.files import is_remote

OWN_NAMES = ("digits", "shapes", "textured-shapes", "photographs")


def is_tfds_name(name: str) -> bool:
    """Whether a name, without its configuration and version, is one that TFDS knows."""
    return name.split("/")[0].split(":")[0] in _tfds_names()


def _tfds_names() -> list[str]:
    """The names that TFDS knows by itself: those of its community are on a server."""
    import tensorflow_datasets as tfds

    return tfds.list_builders(with_community_datasets=False)


def require_known_data(name: str, data_dir: str | os.PathLike | None = None) -> None:
    """Raises a `ValueError` for a name that neither this package, TFDS nor its folder has."""
    if name in OWN_NAMES or is_tfds_name(name):
        return
    # TFDS also opens data sets that were prepared in its folder, and those of its community.
    folder = data_dir or os.environ.get("TFDS_DATA_DIR", "~/tensorflow_datasets")
    is_prepared = is_remote(folder) or os.path.isdir(
        os.path.join(os.path.expanduser(folder), name.split("/")[0])
    )
    if not is_prepared and ":" not in name:
        raise unknown_data(name)


def unknown_data(name: str) -> ValueError:
    """The error for a name of no data set, with near matches."""
    return unknown_name(
        "data set, and no such folder",
        name,
        [*OWN_NAMES, *_tfds_names()],
    )
