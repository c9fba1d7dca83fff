"""The page of single images from the command line."""

import numpy as np
import pytest
import xarray as xr
from oracles import randomize
from PIL import Image

import vit_tf
from vit_tf.scripts import explore


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """Folder of a model and a photograph."""
    folder = tmp_path_factory.mktemp("files")
    vit = vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 8, 3, class_names=["ant", "bee", "cat"])
    randomize(vit)
    vit.save(folder / "vit.keras")
    levels = np.random.default_rng(0).integers(0, 256, (20, 20, 3)).astype("uint8")
    Image.fromarray(levels).save(folder / "photo.png")
    return folder


@pytest.mark.slow
def test_a_page_and_its_numbers_are_written(files, tmp_path, capsys):
    flags = ["--explain", "cat", "0", "--results", str(tmp_path / "numbers"), "--names", "My ViT"]
    page = tmp_path / "page.html"
    paths = [str(files / name) for name in ("vit.keras", "photo.png")]
    assert explore.main([*paths, "--out", str(page), "--samples", "1", *flags]) == 0
    text, printed_text = page.read_text("utf-8"), capsys.readouterr().out
    assert "<h1>My ViT: photo.png</h1>" in text
    assert (
        f"{page}, 0." in printed_text
        and "not shown: Grad-CAM. My ViT has no convolutional" in printed_text
    )
    relevance = xr.load_dataarray(tmp_path / "numbers" / "gradient_attention.nc")
    assert relevance["class"].values.tolist() == [2, 0]
    attention = xr.load_dataset(tmp_path / "numbers" / "attention.nc")
    np.testing.assert_allclose(attention.attention.sum("key"), 1, rtol=1e-5)
    norms = xr.load_datatree(tmp_path / "numbers" / "token_norms.nc")
    components = xr.load_datatree(tmp_path / "numbers" / "components.nc")
    assert norms["embedding"]["norm"].dims == ("example", "row", "column")
    assert components["embedding"]["components"].sizes["component"] == 3


@pytest.mark.slow
def test_several_models_share_a_page(files, tmp_path):
    photo, page = str(files / "photo.png"), tmp_path / "page.html"
    sources = [str(files / "vit.keras"), "vit-cls-cifar10"]
    flags = ["--samples", "1", "--results", str(tmp_path / "numbers")]
    assert explore.main([*sources, photo, "--out", str(page), *flags]) == 0
    assert "<h1>vit and vit-cls-cifar10: photo.png</h1>" in page.read_text("utf-8")
    for name in ("vit", "vit-cls-cifar10"):
        model = vit_tf.load(sources[0] if name == "vit" else name)
        pixels = np.asarray(Image.open(photo))
        expected = model(model.preprocessing(pixels)[None])
        scores = xr.load_dataarray(tmp_path / "numbers" / name / "scores.nc")
        np.testing.assert_allclose(scores, expected, rtol=1e-3, atol=1e-4)
