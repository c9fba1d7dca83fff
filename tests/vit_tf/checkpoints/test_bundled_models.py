"""Models that come with the package: half-precision files, their names and their cards."""

import re
import zipfile

import h5py
import keras
import numpy as np
import pytest
from paths import ROOT, SHARED

import vit_tf
from benchmarks.release import save_half
from vit_tf.checkpoints import released
from vit_tf.checkpoints.released import fetch

CLASSES = ("cat", "dog", "frog")
RELEASED = sorted(released.BUNDLED.glob("*.keras"))
GUIDE = ROOT / "docs/guides/public-weights.md"
MOST, MOST_TOGETHER = 3e6, 12e6  # bytes
# How many of the first test images the largest models classify rightly.
FIRST = 1000
RIGHT_OF_FIRST = {
    "bit-cifar10": 887,
    "vit-cls-cifar10": 826,
    "vit-gap-cifar10": 544,
}


@pytest.fixture(scope="module")
def vit():
    keras.utils.set_random_seed(0)
    shape = {"num_layers": 2, "num_heads": 2, "hidden_dim": 24, "mlp_dim": 40}
    model = vit_tf.ViT((16, 16, 3), 8, num_classes=3, class_names=CLASSES, **shape)
    rng = np.random.default_rng(0)
    for weight in model.weights:
        if np.issubdtype(np.asarray(weight).dtype, np.floating):
            weight.assign(rng.normal(size=weight.shape))
    model.compile("adam", "mse")
    return model


@pytest.fixture
def folder(vit, tmp_path, monkeypatch):
    """A zoo of one model."""
    monkeypatch.setattr(released, "BUNDLED", tmp_path)
    save_half(vit, tmp_path / "tiny-vit.keras")
    return tmp_path


def rounded(array):
    return np.asarray(array).astype("float16").astype("float32")


def test_a_half_file_holds_each_weight_rounded_to_float16(vit, folder):
    path = folder / "tiny-vit.keras"
    actual = keras.saving.load_model(path)
    assert not actual.compiled and actual.get_config() == vit.get_config()
    for weight, original in zip(actual.weights, vit.weights, strict=True):
        assert weight.dtype == original.dtype
        np.testing.assert_array_equal(weight, rounded(original))
    with zipfile.ZipFile(path) as file, h5py.File(file.open("model.weights.h5")) as weights:
        kinds = set()
        weights.visititems(lambda _, item: kinds.add(getattr(item, "dtype", None)))
    assert np.dtype("float16") in kinds and np.dtype("float32") not in kinds
    assert vit.compiled  # the model itself is as it was


@pytest.mark.parametrize("value", [7e4, np.nan])
def test_what_no_float16_is_near_is_refused(vit, tmp_path, value):
    broken = vit_tf.reinitialize(vit, 0)
    broken.head.bias.assign([0, value, 0])
    with pytest.raises(ValueError, match=r"within the range of float16.*Received: .*head/bias"):
        save_half(broken, tmp_path / "broken.keras")
    with pytest.raises(ValueError, match=r"end in '\.keras'"):
        save_half(vit, tmp_path / "tiny.h5")
    assert not list(tmp_path.iterdir())


def test_names_of_the_zoo_open_and_are_listed_first(vit, folder):
    assert vit_tf.list_pretrained()[0] == "tiny-vit" and "tiny-vit" in vit_tf.list_pretrained("t*")
    model = vit_tf.load_pretrained("tiny-vit")
    assert model.class_names == CLASSES
    images = np.random.default_rng(1).uniform(-1, 1, (4, 16, 16, 3)).astype("float32")
    halved = type(vit).from_config(vit.get_config())
    halved.set_weights([rounded(weight) for weight in vit.get_weights()])
    np.testing.assert_array_equal(model(images), halved(images))
    assert fetch("tiny-vit") == (str(folder / "tiny-vit.keras"), None)  # as `analyze` asks for it
    with pytest.raises(ValueError, match=r"'tiny-vti'\. Did you mean 'tiny-vit'"):
        vit_tf.load_pretrained("tiny-vti")


def test_a_zoo_model_for_other_classes_and_sizes(vit, folder):
    other = vit_tf.load_pretrained("tiny-vit", num_classes=5, image_shape=(32, 24))
    assert (other.num_classes, other.image_shape) == (5, (32, 24, 3))
    assert other.class_names is None and not np.asarray(other.head.kernel).any()
    kernel = rounded(vit.embedding.patches.kernel)
    np.testing.assert_array_equal(other.embedding.patches.kernel, kernel)
    images = np.random.default_rng(1).uniform(-1, 1, (2, 16, 16, 3)).astype("float32")
    same = vit_tf.load_pretrained("tiny-vit", num_classes=3, image_shape=(16, 16, 3))
    assert np.asarray(same.head.kernel).any() and same.class_names == CLASSES
    pooled = same.intermediates(images)["pooled"]
    features = vit_tf.load_pretrained("tiny-vit", num_classes=0)
    np.testing.assert_allclose(features(images), pooled, atol=1e-6)
    values = vit_tf.Preprocessing((16, 16), (0.4,) * 3, (0.2,) * 3)
    assert vit_tf.load_pretrained("tiny-vit", preprocessing=values).preprocessing == values
    for options in ({"pooling": "gap"}, {"num_heads": 3}, {"activation": "gelu"}):
        with pytest.raises(ValueError, match=rf"{next(iter(options))} to be None .*bundled"):
            vit_tf.load_pretrained("tiny-vit", **options)


def test_the_zoo_is_small_and_every_model_has_its_card():
    assert sum(path.stat().st_size for path in RELEASED) <= MOST_TOGETHER
    assert {path.stem for path in released.BUNDLED.glob("*.md")} == {path.stem for path in RELEASED}
    for path in RELEASED:
        assert path.stat().st_size <= MOST
        model, card = vit_tf.load_pretrained(path.stem), path.with_suffix(".md").read_text()
        assert card.startswith(f"# {path.stem}\n") and "**Limits.**" in card
        assert f"| parameters | {model.count_params():,}, " in card
        assert f"| classes | {', '.join(model.class_names)} |" in card
        (row,) = re.findall(rf"^\| `{path.stem}` \|.*", GUIDE.read_text(), re.MULTILINE)
        assert re.search(r"accuracy of this file \| ([\d.]+ %)", card)[1] in row


def evaluations():
    """Each model on all test images of its card, or on the first ones where all take a minute."""
    for path in RELEASED:
        if path.stem in RIGHT_OF_FIRST:
            yield pytest.param(path, FIRST, marks=pytest.mark.slow, id=f"{path.stem}-{FIRST}")
        marks = pytest.mark.long if path.stem in RIGHT_OF_FIRST else pytest.mark.slow
        yield pytest.param(path, None, marks=marks, id=path.stem)


@pytest.mark.parametrize(("path", "first"), evaluations())
def test_a_bundled_model_has_the_accuracy_of_its_card(path, first):
    card = path.with_suffix(".md").read_text()
    stated = re.search(r"accuracy of this file \| ([\d.]+) % .* of ([\d,]+) test images", card)
    name = "tiny-imagenet-20" if "tiny-imagenet" in path.stem else path.stem.rpartition("-")[2]
    data = {"cifar10": {"name": "cifar10", "data_dir": SHARED / "tfds"}}
    data["tiny-imagenet-20"] = {"name": str(SHARED / "images" / "tiny_imagenet_20")}
    if not SHARED.is_dir():
        pytest.skip("no ../shared")
    model = vit_tf.load_pretrained(path.stem)
    (test,) = vit_tf.data.load(**data[name], splits=("test",), preprocessing=model.preprocessing)
    if first is not None:
        test = test.unbatch().take(first).batch(100)
    right = [np.argmax(model.predict_on_batch(images), -1) == labels for images, labels in test]
    right = np.concatenate(right)
    assert len(right) == (first or int(stated[2].replace(",", "")))
    expected = RIGHT_OF_FIRST[path.stem] if first else float(stated[1]) / 100 * len(right)
    # A processor that rounds otherwise may turn an image whose best two classes are as likely.
    assert abs(right.sum() - expected) <= 2


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit-cls-cifar10", "bit-cifar10"])
def test_no_classes_are_features(name, rng):
    model, features = (vit_tf.load_pretrained(name, num_classes=n) for n in (None, 0))
    images = rng.uniform(-1, 1, (2, 32, 32, 3)).astype("float32")
    expected = model.intermediates(images)["pooled"]
    np.testing.assert_allclose(features(images), expected, atol=1e-6)
