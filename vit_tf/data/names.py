"""Names of data sets, and the bundled photographs; TensorFlow is not imported."""

import os
from pathlib import Path

from vit_tf.common.names import lookup, unknown_name, without_password
from vit_tf.data.files import is_remote

PHOTOGRAPHS = "photographs"  # in place of images, or of the name of a data set
PHOTOGRAPHS_FOLDER = Path(__file__).with_name(PHOTOGRAPHS)
OWN_NAMES = ("digits", "shapes", "textured-shapes", PHOTOGRAPHS)


def photographs(*names: str) -> list[str]:
    """Returns the paths of bundled photographs.

    There are 200 JPEG images without labels: 36 photographs of animals, plants, buildings and
    landscapes, and 164 square crops of them at random positions. `CREDITS.md` in their folder
    lists authors and licenses. Crops of one photograph are not independent, so that intervals over
    these images are too narrow: measure your own images for results that you report.

    The word `"photographs"` stands for all of them, wherever images or the name of a data set are
    expected.

    Examples:
        analysis.explore("vit-cls-cifar10", vit_tf.data.photographs("cat", "dogs"))
        analysis.cka("vit-cls-cifar10", "photographs", "bit-cifar10")

    Args:
        names: names of files without their ending, such as `"cat"`. By default, all photographs,
            and then all crops.

    Returns:
        The paths as strings, in the order of the names.

    Raises:
        ValueError: if there is no photograph with a name.
    """
    # Photographs in alphabetical order, and then their crops.
    stems = sorted(
        (path.stem for path in PHOTOGRAPHS_FOLDER.glob("*.jpg")), key=lambda x: ("-crop" in x, x)
    )
    by_name = {stem: str(PHOTOGRAPHS_FOLDER / f"{stem}.jpg") for stem in stems}
    return [lookup("photograph", name, by_name) for name in names or by_name]


def is_path(name: str | os.PathLike) -> bool:
    """Whether a name means a folder, be it there or not, rather than a TFDS data set."""
    if isinstance(name, os.PathLike) or is_remote(name):
        return True
    if name.startswith((".", "/", "~", "\\")) or name.endswith(("/", "\\")):
        return True
    place = os.path.dirname(name) or name
    return os.path.isdir(place) and not is_tfds_name(name)


def is_tfds_name(name: str) -> bool:
    """Whether a name, without its configuration and version, is one that TFDS knows."""
    return name.split("/")[0].split(":")[0] in _tfds_names()


def _tfds_names() -> list[str]:
    """The names that TFDS knows by itself: those of its community are on a server."""
    import tensorflow_datasets as tfds

    return tfds.list_builders(with_community_datasets=False)


def require_known_data(name: str, data_dir: str | os.PathLike | None = None) -> None:
    """Raises a `ValueError` for a folder that is not there, or a name of no data set."""
    if is_path(name):
        if not is_remote(name) and not os.path.isdir(os.path.expanduser(name)):
            raise ValueError(f"Folder not found: {without_password(name)!r}")
        return
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
    return unknown_name("data set, and no such folder", name, [*OWN_NAMES, *_tfds_names()])
