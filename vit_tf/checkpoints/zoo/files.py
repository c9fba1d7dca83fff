"""Names and files of the bundled models."""

from pathlib import Path

FOLDER = Path(__file__).parent


def zoo():
    """The bundled models: dict from name to the path of the `.keras` file."""
    return {path.stem: path for path in sorted(FOLDER.glob("*.keras"))}
