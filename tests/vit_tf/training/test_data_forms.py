"""The forms in which `train` takes its data, and what it refuses in them."""

import keras
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from training_runs import assert_same_weights, kill_at, read_log

import vit_tf
from vit_tf.training.evaluation import majority_accuracy, top_k_accuracy

pytestmark = pytest.mark.usefixtures("without_xla")

SLOW = pytest.mark.slow
RNG = np.random.default_rng(0)
IMAGES = RNG.uniform(-1, 1, (40, 4, 4, 1)).astype("float32")
LABELS = RNG.integers(3, size=40).astype("int32")
WEIGHTS = RNG.uniform(0, 2, 40).astype("float32")
RECIPE = vit_tf.Recipe(epochs=2, learning_rate=0.01, warmup_epochs=0, label_smoothing=0.0)
SIZES = {"patch_size": 2, "num_layers": 1, "num_heads": 1, "hidden_dim": 8, "mlp_dim": 8}


def make_model():
    keras.utils.set_random_seed(3)
    return keras.Sequential([keras.Input((4, 4, 1)), keras.layers.Flatten(), keras.layers.Dense(3)])


def batches(*arrays, size=40):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(size)


def losses_of(model, images=IMAGES, labels=LABELS):
    """Cross-entropy of each example in float64."""
    kernel, bias = (np.asarray(w, np.float64) for w in model.get_weights())
    logits = images.reshape(len(images), -1) @ kernel + bias
    logits = logits - np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return -logits[np.arange(len(labels)), labels]


def train(directory, data, validation, recipe=RECIPE, model=None):
    model = model or make_model()
    return model, vit_tf.train(model, recipe, data, validation, directory, verbose=0)


def test_weights_of_examples_weigh_their_losses(tmp_path):
    before = make_model()
    expected = np.mean(WEIGHTS * losses_of(before))
    data = batches(IMAGES, LABELS, WEIGHTS)
    model, history = train(tmp_path, data, data)
    assert history["loss"][0] == pytest.approx(expected, rel=1e-5)
    after = np.mean(WEIGHTS * losses_of(model))
    assert history["val_loss"][-1] == pytest.approx(after, rel=1e-5)


def test_weights_go_through_augmentation_and_are_refused_where_examples_are_mixed(tmp_path):
    data = batches(np.repeat(IMAGES, 3, axis=-1), LABELS, WEIGHTS)
    flipped = vit_tf.data.augment(data, 3, flip=True)
    np.testing.assert_array_equal(next(iter(flipped))[2], WEIGHTS)
    for mix in ("mixup", "cutmix"):
        with pytest.raises(ValueError, match="mixup and cutmix cannot be used"):
            vit_tf.data.augment(data, 3, **{mix: 0.2})


def test_batches_for_replicas_have_the_loss_of_one_device():
    """5 examples on two replicas: the mean over 6 rows is that over 5 examples."""
    strategy = vit_tf.distribute.strategy("mirrored")
    data = batches(IMAGES[:5], LABELS[:5], WEIGHTS[:5])
    ((images, labels, weights),) = vit_tf.distribute.divide_batches(data, strategy)
    assert images.shape == (6, 4, 4, 1) and labels.shape == (6,)
    np.testing.assert_array_equal(images[5], 0)
    expected = np.stack([WEIGHTS[:5] * 6 / 5, WEIGHTS[:5], np.ones(5)], axis=1)
    np.testing.assert_allclose(weights, [*expected, [0, 0, 0]], rtol=1e-6)


@pytest.mark.parametrize(
    "weights", [pytest.param((), id="plain"), pytest.param((WEIGHTS,), id="weighted", marks=SLOW)]
)
def test_arrays_give_what_data_sets_give(tmp_path, weights):
    arrays = (IMAGES[:32], LABELS[:32], *(w[:32] for w in weights))
    _, expected = train(tmp_path / "a", batches(*arrays), batches(IMAGES, LABELS))
    _, found = train(tmp_path / "b", arrays, (IMAGES, LABELS))
    for name, values in expected.items():  # one batch each: the shuffle changes nothing
        np.testing.assert_allclose(found[name], values, rtol=1e-5, err_msg=name)


@pytest.mark.slow
def test_arrays_are_shuffled_by_the_seed_of_the_recipe(tmp_path):
    def run(name, seed):
        recipe = vit_tf.Recipe(epochs=2, learning_rate=0.1, seed=seed)
        return train(tmp_path / name, (IMAGES, LABELS), None, recipe)[1]["loss"]

    first = run("a", 0)
    assert run("b", 0) == first and run("c", 1) != first


@SLOW
def test_an_image_file_that_is_cut_is_named(tmp_path):
    for number in range(8):
        path = tmp_path / "train" / "ab"[number % 2] / f"{number}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(RNG.integers(0, 256, (8, 8, 3), np.uint8)).save(path)
    path.write_bytes(path.read_bytes()[:200])
    sizes = {"image_size": 8, "batch_size": 4}
    (data,) = vit_tf.data.load(str(tmp_path), splits=("train",), **sizes)
    model = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Flatten(), keras.layers.Dense(2)]
    )
    with pytest.raises(ValueError, match=rf"^Expected an image file.*undecodable {path} \("):
        train(tmp_path / "run", data, None, model=model)


@SLOW
@pytest.mark.parametrize("ema", [None, 0.5])
def test_without_a_validation_the_last_model_is_kept_and_runs_resume(tmp_path, monkeypatch, ema):
    recipe = vit_tf.Recipe(epochs=3, learning_rate=0.01, warmup_epochs=0, ema=ema)
    data = batches(IMAGES, LABELS, size=8)
    model, history = train(tmp_path / "a", data, None, recipe)
    assert set(history) == {"loss", "accuracy", "learning_rate"}
    assert [float(row["loss"]) for row in read_log(tmp_path / "a")] == history["loss"]
    best = vit_tf.load_model(tmp_path / "a" / "best.keras")
    assert_same_weights(best, model)
    with monkeypatch.context() as patch:
        kill_at(patch, "on_train_batch_end", 8)
        with pytest.raises(KeyboardInterrupt):
            vit_tf.train(make_model(), recipe, data, None, tmp_path / "b", verbose=0, save_every=2)
    resumed, again = train(tmp_path / "b", data, None, recipe)
    assert again == history
    assert_same_weights(resumed, model)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (IMAGES, r"arrays, of \(images, labels\).*Received: ndarray"),
        ((IMAGES,), r"arrays, of \(images, labels\).*Received: tuple"),
        ((IMAGES, LABELS[:5]), r"as many labels as images.*\(40, 4, 4, 1\), \(5,\)"),
        ((IMAGES[:0], LABELS[:0]), "at least one image"),
        (batches(IMAGES).map(lambda x: x), r"batches of \(images, labels\)"),
    ],
)
def test_other_data_are_refused_in_one_line(tmp_path, data, message):
    for split in ((data, None), (batches(IMAGES, LABELS), data)):
        with pytest.raises(ValueError, match=message):
            train(tmp_path / "run", *split)
    assert not (tmp_path / "run").exists()


PIXELS = RNG.integers(0, 256, (8, 4, 4, 3)).astype("uint8")
PIXELS[0, 0, 0, :2] = 0, 255


@pytest.mark.parametrize(
    ("dtype", "received"),
    [("uint8", "uint8"), pytest.param("float32", "values from 0 to 255", marks=SLOW)],
)
def test_pixels_are_refused_where_the_model_declares_another_range(tmp_path, dtype, received):
    images = PIXELS.astype(dtype)
    good = batches(images / np.float32(127.5) - 1, LABELS[:8])
    for data in ((batches(images, LABELS[:8]), good), (good, batches(images, LABELS[:8]))):
        model = vit_tf.ViT((4, 4, 3), **SIZES, num_classes=3)
        with pytest.raises(ValueError, match=rf"in \[-1, 1\].*Received: {received}"):
            train(tmp_path / "run", *data, model=model)


@pytest.mark.slow
def test_pixels_train_a_model_that_declares_their_range_or_none(tmp_path):
    own = vit_tf.Preprocessing.from_range((4, 4), 0, 255)
    model = vit_tf.ViT((4, 4, 3), **SIZES, num_classes=3, preprocessing=own)
    train(tmp_path / "own", (PIXELS, LABELS[:8]), None, model=model)
    foreign = keras.Sequential(
        [keras.Input((4, 4, 3)), keras.layers.Rescaling(1 / 255), keras.layers.Flatten()]
    )
    foreign.add(keras.layers.Dense(3))
    train(tmp_path / "foreign", (PIXELS, LABELS[:8]), None, model=foreign)


@SLOW
@pytest.mark.parametrize("value", [np.nan, np.inf])
def test_an_image_that_is_not_finite_is_named(tmp_path, value):
    images = IMAGES.copy()
    images[21, 1, 2] = value
    bad, good = batches(images, LABELS, size=16), batches(IMAGES, LABELS, size=16)
    for data in ((bad, good), (good, bad)):
        with pytest.raises(ValueError, match="image 5 of batch 1"):
            train(tmp_path / "run", *data)
    with pytest.raises(ValueError, match=r"image 21 of the data"):  # before it is shuffled
        train(tmp_path / "run", (images, LABELS), None)
    with pytest.raises(ValueError, match=r"1 of 16 images.*image 21 of the data"):
        top_k_accuracy(make_model(), bad)
    features = vit_tf.submodel(make_model(), "*")
    with pytest.raises(ValueError, match=r"image 21 of the data"):
        vit_tf.analysis.cka(features, bad)
    with pytest.raises(ValueError, match=r"image 21 of the data"):
        vit_tf.analysis.ridge_probe(features, good, bad, 3)


@SLOW
def test_data_without_an_end_are_refused(tmp_path):
    model, endless = make_model(), batches(IMAGES, LABELS, size=8).repeat()
    features = vit_tf.submodel(model, "*")
    good = batches(IMAGES, LABELS, size=8)
    calls = [
        lambda: train(tmp_path, good, endless),
        lambda: top_k_accuracy(model, endless),
        lambda: majority_accuracy(good, endless, 3),
        lambda: vit_tf.analysis.cka(features, endless),
        lambda: vit_tf.analysis.ridge_probe(features, endless, good, 3),
        lambda: vit_tf.analysis.linear_probe(features, endless, good, 3),
        lambda: vit_tf.analysis.knn_accuracy(features, good, endless, 3),
        lambda: vit_tf.analysis.make_report({"a": model}, endless, folder=tmp_path),
        lambda: vit_tf.analysis.input_gradients(model, endless),
        lambda: vit_tf.analysis.explore(model, endless),
    ]
    for call in calls:
        with pytest.raises(ValueError, match=r"take\("):
            call()
    assert top_k_accuracy(model, endless.take(5)) == top_k_accuracy(model, good)
    assert majority_accuracy(endless, good, 3, most=5) == majority_accuracy(good, good, 3)


class Subclassed(keras.Model):
    """The layers of `make_model` in a user's own class, which has no output shape."""

    def __init__(self, with_features=False):
        super().__init__()
        self.flatten, self.dense = keras.layers.Flatten(), keras.layers.Dense(3)
        self.with_features = with_features

    def call(self, images):
        flat = self.flatten(images)
        return (self.dense(flat), flat) if self.with_features else self.dense(flat)

    def get_config(self):
        return {"with_features": self.with_features}


class Unsaved(keras.Model):
    """A class of a user who did not think of saving: its argument is a layer."""

    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def call(self, images):
        return self.layer(images)[:, 0, 0]


def subclassed(with_features=False):
    model = Subclassed(with_features=with_features)
    model(IMAGES[:1])
    model.set_weights(make_model().get_weights())
    return model


@pytest.mark.slow
def test_a_subclassed_model_trains_as_the_functional_one(tmp_path):
    functional, expected = train(tmp_path / "functional", (IMAGES, LABELS), (IMAGES, LABELS))
    model, history = train(
        tmp_path / "subclassed", (IMAGES, LABELS), (IMAGES, LABELS), model=subclassed()
    )
    assert history == expected
    assert_same_weights(model, functional)
    again, loaded = train(tmp_path / "subclassed", (IMAGES, LABELS), None, model=subclassed())
    assert loaded == history
    assert_same_weights(again, model)
    with pytest.raises(ValueError, match=r"one tensor of scores.*tuple"):
        train(tmp_path / "two", (IMAGES, LABELS), None, model=subclassed(with_features=True))
    unsaved = Unsaved(keras.layers.Conv2D(3, 4))
    unsaved(IMAGES[:1])
    with pytest.raises(ValueError, match="get_config"):
        train(tmp_path / "unsaved", (IMAGES, LABELS), None, model=unsaved)


@pytest.mark.parametrize(
    ("labels", "word"),
    [
        (LABELS + 1, "Received: 3"),
        pytest.param(LABELS - 1, "-1", marks=SLOW),
        pytest.param(LABELS.astype("int64") + 2**32, "4294967", marks=SLOW),
        (LABELS.astype("float32"), "float32"),
        (LABELS[:, None], r"\(None, 1\)"),
        (LABELS > 0, "bool"),
        (np.array(["a", "b", "c"])[LABELS], "np.unique"),
    ],
)
def test_what_are_no_labels_is_refused(tmp_path, labels, word):
    with pytest.raises(ValueError, match=f"labels.*{word}"):
        train(tmp_path, (IMAGES, labels), None)
