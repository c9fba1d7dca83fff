"""The doors open a SigLIP as it is released: a folder that transformers writes."""

import re

import numpy as np
import pytest
from PIL import Image

from vit_tf.scripts import analyze, explore


@pytest.fixture
def folder(tmp_path):
    """A folder that holds a SigLIP's, of random weights, and a photograph."""
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    import tower_models as models

    models.write(models.siglip("whole", image_size=24, patch_size=6), tmp_path / "siglip")
    rng = np.random.default_rng(0)
    levels = rng.integers(0, 256, (30, 28, 3)).astype("uint8")
    Image.fromarray(levels).save(tmp_path / "photo.png")
    return tmp_path


@pytest.mark.slow
def test_a_folder_of_siglip_is_analyzed_and_explored(folder, capsys):
    photo, siglip = folder / "photo.png", str(folder / "siglip")
    page = folder / "page.html"
    assert explore.main([siglip, str(photo), "--out", str(page), "--samples", "1"]) == 0
    assert "siglip" in page.read_text("utf-8")
    report = folder / "report"
    flags = ["--take-test", "60", "--shots", "3", "--strategy", "none", "--figures", "1,3,13"]
    assert analyze.main([siglip, *flags, "--out", str(report)]) == 0
    figures = re.findall(r'id="figure-([\w-]+)"', (report / "report.html").read_text("utf-8"))
    assert figures == ["cka-siglip", "attention-distance", "ridge-probe"]
