"""The page of the bundled models that a report on digits links to."""

import numpy as np
import pytest
from PIL import Image
from sklearn.datasets import load_sample_images

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine import store
from vit_tf.analysis.study import bundled

MOST_BYTES = 1_000_000  # of the page


def test_crops_are_windows_of_three_photographs_in_turn():
    photographs = [np.asarray(Image.open(bundled.PHOTOGRAPH)), *load_sample_images().images]
    crops = bundled.photograph_crops()
    assert len(crops) == bundled.NUM_CROPS and len({crop.tobytes() for crop in crops}) > 100
    for index, crop in enumerate(crops[:12]):
        photograph = photographs[index % 3]
        assert crop.shape[0] == crop.shape[1] >= bundled.SMALLEST_CROP
        windows = np.lib.stride_tricks.sliding_window_view(photograph[..., 0], (4, 4))
        assert (windows == crop[:4, :4, 0]).all((2, 3)).any()
    for crop, again in zip(crops, bundled.photograph_crops(), strict=True):
        np.testing.assert_array_equal(crop, again)


@pytest.mark.slow
def test_the_page_is_written_once_and_its_panels_show_the_results(tmp_path, monkeypatch):
    page = bundled.explore_bundled(tmp_path)
    path = tmp_path / page.address
    assert path.stat().st_size < MOST_BYTES and "cat.jpg" in path.read_text("utf-8")
    titles = [panel.title for panel in page.panels]
    assert len(set(titles)) == len(titles) == 5
    # The models classify the photograph correctly, and attend as their own call measures.
    vit = vit_tf.load_pretrained(bundled.VIT)
    photograph = str(bundled.PHOTOGRAPH)
    maps = analysis.attention(vit, photograph)["attention"].values[0]
    saved = store.load_unchanged(path.with_name("attention.nc"))
    np.testing.assert_allclose(next(iter(saved.data_vars.values())), maps, atol=1e-6)
    scores = analysis.logit_lens(vit, photograph)[0, -1].values
    assert vit.class_names[scores.argmax()] == "cat"
    # Chosen heads attend to few places; attention distances of the layers differ.
    for block, head in bundled.HEADS:
        assert maps[block, head].max() > 10 * maps[block, head].mean()
    distance = store.load_unchanged(path.with_name("attention_distance.nc"))
    means = next(iter(distance.data_vars.values())).mean("head").values
    assert means.max() > 1.5 * means.min()

    written = {file: file.stat().st_mtime_ns for file in path.parent.iterdir()}
    again = bundled.explore_bundled(tmp_path)
    assert again == page
    assert written == {file: file.stat().st_mtime_ns for file in path.parent.iterdir()}
    monkeypatch.setattr(bundled, "_measure", lambda path: {})
    path.unlink()
    with pytest.raises(KeyError):  # it is measured again
        bundled.explore_bundled(tmp_path)
