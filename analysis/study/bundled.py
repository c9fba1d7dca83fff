"""The bundled models on photographs: an interactive page, and the panels that link to it."""

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import tensorflow as tf
import xarray as xr
from PIL import Image
from sklearn.datasets import load_sample_images

import vit_tf
from vit_tf.checkpoints.released import BUNDLED
from vit_tf.data.any_images import as_images
from vit_tf.data.files import digest_files

from ..engine.store import SEPARATE, Labelled, base_code, digest_modules, fingerprint, keep, load
from ..heads.attention_distance import attention_distance
from ..plots import style
from ..plots.primitives import overlay
from ..report.first_screen import draw_panel, overview_panels
from ..report.page import LinkedPage, Panel
from ..similarity.cka import cka
from .exploration import explore
from .figure import lookup_figures

if TYPE_CHECKING:
    from matplotlib.axes import Axes

VIT, RESNET = "vit-cls-cifar10", "bit-cifar10"
PHOTOGRAPH = BUNDLED / "cat.jpg"  # `cat` of scikit-image, by Stefan van der Walt, CC0
NUM_CROPS, SMALLEST_CROP = 120, 48  # pixels of a side
HEADS = ((3, 2), (3, 3))  # (block, head) of the ViT whose attention a report shows
NAMES = ("attention", "attention_distance", f"cka.{VIT}", f"cka.{RESNET}")
TEXT = (
    "Two bundled models, a ViT and a ResNet, were trained on photographs of CIFAR-10. Heads of the "
    "ViT attend to parts of this cat, and its attention distance differs between layers. CKA and "
    f"attention distance are measured on {NUM_CROPS} crops of three photographs."
)


def explore_bundled(folder: Path) -> LinkedPage:
    """Writes `bundled/explore.html` in the folder of a report, unless it is there."""
    path = folder / "bundled" / "explore.html"
    weights = [BUNDLED / f"{name}.keras" for name in (VIT, RESNET)]
    page_files = sorted(Path(__file__).parents[1].glob("report/explore*"))
    code = base_code(), digest_modules(*SEPARATE)
    key = fingerprint(code, digest_files([PHOTOGRAPH, *weights, *page_files]))
    loaded = {name: load(path.with_name(f"{name}.nc"), key) for name in NAMES}
    results = {name: result for name, result in loaded.items() if result is not None}
    if not path.is_file() or len(results) < len(NAMES):
        results = {
            name: keep(result, path.with_name(f"{name}.nc"), key, {})
            for name, result in _measure(path).items()
        }
    return LinkedPage(
        "Models trained on photographs",
        TEXT,
        "Explore the photograph",
        path.relative_to(folder).as_posix(),
        _panels(results),
    )


def _measure(path: Path) -> dict[str, Labelled]:
    """The results in `NAMES`; the page is written too."""
    path.parent.mkdir(parents=True, exist_ok=True)
    models = {name: vit_tf.load_pretrained(name) for name in (VIT, RESNET)}
    rows = explore(models, str(PHOTOGRAPH), path).results[VIT]["attention"]["attention"]
    grid = models[VIT].token_grid
    maps = grid.as_map(rows.isel(example=0, query=0).values[..., grid.prefix :])
    crops = as_images(photograph_crops(), models[VIT].preprocessing)
    # Standard errors need several batches.
    batches = tf.data.Dataset.from_tensor_slices(crops).batch(NUM_CROPS // 4)
    results = {
        "attention": xr.DataArray(maps, dims=("layer", "head", "row", "column")),
        "attention_distance": attention_distance(models[VIT], batches),
    }
    return results | {f"cka.{name}": cka(model, batches) for name, model in models.items()}


def photograph_crops() -> list[np.ndarray]:
    """Square crops of three photographs, of random size and position."""
    photographs = [np.asarray(Image.open(PHOTOGRAPH)), *load_sample_images().images]
    rng, crops = np.random.default_rng(0), []
    for index in range(NUM_CROPS):
        photograph = photographs[index % len(photographs)]
        side = rng.integers(SMALLEST_CROP, min(photograph.shape[:2]), endpoint=True)
        row, column = rng.integers(0, np.array(photograph.shape[:2]) - side, endpoint=True)
        crops.append(photograph[row : row + side, column : column + side])
    return crops


def _panels(results: dict[str, Labelled]) -> list[Panel]:
    """Attention on the photograph, and the panels that a report has of models that it measures."""
    photograph = np.asarray(Image.open(PHOTOGRAPH))
    panels = []
    for block, head in HEADS:
        values = np.asarray(results["attention"])[block, head]
        title = f"Attention of CLS, block {block}, head {head}"
        panels.append(draw_panel(title, _draw_attention, photograph, values / values.max()))
    by_name = {name: results[f"cka.{name}"] for name in (VIT, RESNET)}
    colours = dict(zip(by_name, style.as_hex(style.distinct_colours(2)), strict=True))
    (similarity,), (distance,) = lookup_figures(["1"]), lookup_figures(["3"])
    panels += overview_panels(similarity.overview, by_name, colours)
    panels += overview_panels(distance.overview, {VIT: results["attention_distance"]}, colours)
    return panels


def _draw_attention(ax: "Axes", photograph: np.ndarray, shares: np.ndarray) -> None:
    """Attention relative to its maximum, of shape (row, column), over a photograph."""
    look = {"cmap": style.colours("magma"), "vmin": 0, "vmax": 1}
    overlay(ax, photograph, shares, opacity=0.1 + 0.65 * shares, **look)
