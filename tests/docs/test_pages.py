"""Every block of Python on the pages of the documentation runs, page by page, as it stands."""

import functools
import os
import re
import runpy

import keras
import matplotlib.pyplot as plt
import pytest
import tensorflow_datasets as tfds
from paths import ROOT, TFDS
from PIL import Image

import vit_tf
from vit_tf.checkpoints.released import bundled_models

PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md")])
# A block with a title is a file that the reader writes; another test runs it.
BLOCK = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def code_of(page):
    """The blocks of a page as one program."""
    return "\n".join(BLOCK.findall(page.read_text("utf-8")))


@pytest.fixture
def readers_folder(tmp_path):
    """What pages assume that a reader has: `mine.keras`, `cat.jpg` and the folder `photos`."""
    photograph = Image.open(ROOT / "vit_tf/checkpoints/zoo/cat.jpg").resize((320, 300))
    photograph.save(tmp_path / "cat.jpg")
    (tmp_path / "photos").mkdir()
    for number in range(12):
        left, top = 10 * number, 8 * number
        photograph.crop((left, top, left + 200, top + 200)).save(
            tmp_path / "photos" / f"{number}.png"
        )
    images = keras.Input((32, 32, 3))
    x = keras.layers.Conv2D(8, 3, strides=2, activation="relu")(images)
    x = keras.layers.Conv2D(16, 3, strides=2, activation="relu")(x)
    x = keras.layers.Dense(5)(keras.layers.GlobalAveragePooling2D()(x))
    keras.Model(images, x, name="mine").save(tmp_path / "mine.keras")
    return tmp_path


@pytest.fixture(scope="module")
def bundled_models_loaded_once():
    """Pages share the models that come with the package, and the graphs of these models."""
    load, bundled = vit_tf.load, bundled_models()
    load_once = functools.cache(load)

    def of_name_or_file(source):
        return load_once(source) if source in bundled else load(source)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(vit_tf, "load", of_name_or_file)
        yield


@pytest.mark.slow
@pytest.mark.usefixtures("bundled_models_loaded_once")
@pytest.mark.parametrize(
    "page", [p for p in PAGES if code_of(p)], ids=lambda p: str(p.relative_to(ROOT))
)
def test_the_code_of_a_page_runs(page, readers_folder, monkeypatch):
    if 'cifar10",' in code_of(page) and not (TFDS / "cifar10").is_dir():
        pytest.skip("CIFAR-10 is not on this machine")
    tfds.core.add_data_dir(TFDS)
    program = readers_folder / f"{page.stem.replace('-', '_')}_page.py"
    program.write_text(code_of(page), "utf-8")
    monkeypatch.chdir(readers_folder)
    keras.utils.set_random_seed(0)
    runpy.run_path(str(program))
    plt.close("all")
    keras.backend.clear_session()
    for picture in re.findall(r"savefig\(\"(.*?)\"\)", code_of(page)):
        assert os.path.getsize(picture) > 1000
