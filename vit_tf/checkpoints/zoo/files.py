"""Which models come with the package, and where their files are."""

from pathlib import Path

FOLDER = Path(__file__).parent


def zoo():
    """The models that come with the package: dict from name to the path of its `.keras` file."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.keras"))}
