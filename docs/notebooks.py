"""Runs the notebooks of the documentation and keeps them with their pictures.

Run it in the root of a checkout: `python docs/notebooks.py`, or with the names of some notebooks.
"""

import argparse
import os
import re
from pathlib import Path

import nbformat
from nbclient import NotebookClient

FOLDER = Path(__file__).resolve().parent / "notebooks"
# Of many passes over the data in a notebook, for a run that only shows that it works.
EPOCHS = re.compile(r"^EPOCHS = \d+$", re.MULTILINE)


def executed(path, epochs=None, timeout=1200):
    """A notebook after its run, without what was written to the standard error.

    Args:
        path: the notebook.
        epochs: the number in its line `EPOCHS = ...`; None for the notebook's own.
        timeout: seconds that a cell may take.

    Raises:
        nbclient.exceptions.CellExecutionError: for a cell that raises an error.
    """
    notebook = nbformat.read(path, as_version=4)
    cells = [cell for cell in notebook.cells if cell.cell_type == "code"]
    if epochs is not None:
        cells[0].source = EPOCHS.sub(f"EPOCHS = {epochs}", cells[0].source)
    os.environ.pop("MPLBACKEND", None)  # pictures are kept by the notebook's own
    NotebookClient(notebook, timeout=timeout, kernel_name="python3", record_timing=False).execute()
    for cell in cells:
        cell.outputs = [out for out in cell.outputs if out.get("name") != "stderr"]
    return notebook


def main():
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("names", nargs="*", metavar="NAME", help="notebooks (default: all)")
    known = {path.stem: path for path in sorted(FOLDER.glob("*.ipynb"))}
    names = parser.parse_args().names or list(known)
    if unknown := sorted(set(names) - set(known)):
        parser.error(f"Expected names among {', '.join(known)}. Received: {', '.join(unknown)}")
    for name in names:
        print(name, flush=True)
        nbformat.write(executed(known[name]), known[name])


if __name__ == "__main__":
    main()
