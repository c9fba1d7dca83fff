"""Folders that transformers writes, from the file to a page and a report, offline."""

import numpy as np
import pytest
import xarray as xr
from PIL import Image
from reports import analyzed

from vit_tf.scripts import explore

pytestmark = pytest.mark.slow
TOKENS = ["CLS", "register 1", "register 2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Folder of a SigLIP, a DINOv2 with registers, both with random weights, and a photograph."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    import hugging_face_models as models
    import tower_models

    root = tmp_path_factory.mktemp("models")
    tower_models.write(tower_models.siglip("whole", image_size=24, patch_size=6), root / "siglip")
    kind, config, fields = models.MODELS["registers"]
    fields = fields | {"image_size": 32, "patch_size": 8, "num_register_tokens": 2}
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(models.MODELS, "small", (kind, config, fields))
        models.write(models.make("small"), root / "registers", models.processor("small"))
    levels = np.random.default_rng(0).integers(0, 256, (40, 50, 3)).astype("uint8")
    Image.fromarray(levels).save(root / "photo.png")
    return root


def explored(folder, name, out):
    """The text of the page of a model, and its attention."""
    flags = ["--out", out / "page.html", "--samples", "1", "--results", out / "numbers"]
    assert explore.main([*map(str, (folder / name, folder / "photo.png", *flags))]) == 0
    attention = xr.load_dataset(out / "numbers" / "attention.nc").attention
    return (out / "page.html").read_text("utf-8"), attention


def test_a_siglip_is_explored_and_analyzed(folder, tmp_path):
    page, _ = explored(folder, "siglip", tmp_path)
    assert "siglip" in page
    figures, _ = analyzed(tmp_path / "report", folder / "siglip", "--figures", "1,3,13")
    assert figures == ["cka-siglip", "attention-distance", "ridge-probe"]


def test_a_page_names_the_registers(folder, tmp_path):
    page, attention = explored(folder, "registers", tmp_path)
    assert all(f'"{name}"' in page for name in TOKENS)
    assert attention.sizes["query"] == 3 + 16


def test_a_report_leaves_registers_out_of_measurements_of_positions(folder, tmp_path):
    figures = ("--figures", "7,9,V.7,W.2,W.3")
    analyzed(tmp_path, folder / "registers", "--data", "digits", *figures)
    results = {
        path.name.removesuffix(".registers.nc"): xr.load_dataset(path)
        for path in tmp_path.rglob("*.registers.nc")
    }
    for name in ("mean_attention", "skip_ratio", "attention_offset", "attention_patterns"):
        assert int(results[name].attrs["prefix"]) == 3, name
    # The grid is one of 4 x 4 patches.
    for name in ("cls_attention", "localization", "position_similarity"):
        assert (results[name].sizes["row"], results[name].sizes["column"]) == (4, 4), name
    assert results["mean_attention"].sizes["spatial_key"] == 16
    assert results["aligned_attention"].sizes["row_offset"] == 7
    sizes = results["mean_attention"].sizes
    assert sizes["query"] == sizes["key"] == 19
