"""A folder of a DINOv2 with registers, from transformers to a report and a page, offline."""

import numpy as np
import pytest
import xarray as xr
from PIL import Image

from vit_tf.scripts import analyze, explore

TOKENS = ["CLS", "register 1", "register 2"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    import hugging_face_models as models

    path = tmp_path_factory.mktemp("models") / "registers"
    kind, config, fields = models.MODELS["registers"]
    fields = fields | {"image_size": 32, "patch_size": 8, "num_register_tokens": 2}
    models.MODELS["registers-32"] = (kind, config, fields)
    try:
        return models.write(models.make("registers-32"), path, models.processor("registers-32"))
    finally:
        del models.MODELS["registers-32"]


@pytest.mark.slow
def test_a_page_names_the_tokens_without_a_place(folder, tmp_path):
    levels = np.random.default_rng(0).integers(0, 256, (40, 50, 3)).astype("uint8")
    Image.fromarray(levels).save(tmp_path / "photo.png")
    page, numbers = tmp_path / "page.html", tmp_path / "numbers"
    flags = ["--out", str(page), "--samples", "1", "--results", str(numbers)]
    assert explore.main([str(folder), str(tmp_path / "photo.png"), *flags]) == 0
    text = page.read_text("utf-8")
    assert all(f'"{name}"' in text for name in TOKENS)
    attention = xr.load_dataset(numbers / "attention.nc").attention
    assert attention.sizes["query"] == 3 + 16


@pytest.mark.slow
def test_a_report_leaves_them_out_where_it_speaks_of_places(folder, tmp_path, capsys):
    flags = ["--data", "digits", "--take-test", "60", "--shots", "3", "--strategy", "none"]
    out = tmp_path / "report"
    assert analyze.main([str(folder), *flags, "--out", str(out)]) == 0
    assert (out / "report.html").stat().st_size > 100_000
    results = {
        path.name.removesuffix(".registers.nc"): xr.load_dataset(path)
        for path in out.rglob("*.registers.nc")
    }
    for name in ("mean_attention", "skip_ratio", "attention_offset", "attention_patterns"):
        assert int(results[name].attrs["prefix"]) == 3, name
    # The grid is one of 4 x 4 patches.
    for name in ("cls_attention", "localization", "position_similarity"):
        assert (results[name].sizes["row"], results[name].sizes["column"]) == (4, 4), name
    assert results["mean_attention"].sizes["spatial_key"] == 16
    assert results["aligned_attention"].sizes["row_offset"] == 7
    shown = results["mean_attention"].sizes
    assert shown["query"] == shown["key"] == 19
