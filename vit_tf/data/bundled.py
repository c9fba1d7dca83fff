"""Bundled photographs, which every call that takes images accepts by name."""

from pathlib import Path

from vit_tf.common.names import lookup

NAME = "photographs"  # in place of images, or of the name of a data set
FOLDER = Path(__file__).with_name(NAME)


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
    stems = sorted((path.stem for path in FOLDER.glob("*.jpg")), key=lambda x: ("-crop" in x, x))
    by_name = {stem: str(FOLDER / f"{stem}.jpg") for stem in stems}
    return [lookup("photograph", name, by_name) for name in names or by_name]
