"""Runs the notebooks of the documentation and keeps them with their pictures.

Run it in the root of a checkout: `python docs/notebooks.py`, or with the names of some notebooks.
"""

import argparse
import base64
import io
import os
import re
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from PIL import Image

FOLDER = Path(__file__).resolve().parent / "notebooks"
# What the first cell of a notebook sets, and less of it for a run that only shows that it works.
QUICK = {
    r"^EPOCHS = \d+$": "EPOCHS = 1",
    r"^NUM_TRAIN, NUM_TEST = .*$": "NUM_TRAIN, NUM_TEST = 60, 40",
}


def executed(path, quick=False, timeout=1200):
    """A notebook after its run, a `QUICK` one if asked for, without its standard error."""
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    for pattern, less in QUICK.items() if quick else ():
        cells[0].source = re.sub(pattern, less, cells[0].source, flags=re.MULTILINE)
    os.environ.pop("MPLBACKEND", None)  # pictures are kept by the notebook's own
    with tempfile.TemporaryDirectory() as folder:  # of the files that cells write
        options = {"kernel_name": "python3", "record_timing": False, "timeout": timeout}
        resources = {"metadata": {"path": folder}}
        NotebookClient(notebook, resources=resources, **options).execute()
    for cell in cells:
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
        for data in (out["data"] for out in cell.outputs if "image/png" in out.get("data", {})):
            data["image/png"] = with_few_colours(data["image/png"])
    return notebook


def with_few_colours(png):
    """A base64-encoded PNG with 256 colours, which is about a third as large."""
    picture, file = Image.open(io.BytesIO(base64.b64decode(png))).convert("RGB"), io.BytesIO()
    picture.quantize(256, dither=Image.Dither.NONE).save(file, "PNG", optimize=True)
    return base64.b64encode(file.getvalue()).decode()


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks (default: all)")
    paths = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    names = parser.parse_args().names or list(paths)
    if unknown := sorted(set(names) - set(paths)):
        parser.error(f"Expected names among {', '.join(paths)}. Received: {', '.join(unknown)}")
    for name in names:
        print(name, flush=True)
        nbformat.write(executed(paths[name]), paths[name])


if __name__ == "__main__":
    main()
