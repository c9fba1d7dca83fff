"""The recorder of how representations form, against CKA and few-shot accuracy of saved models."""

import csv
import shutil

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from training_runs import count_calls

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.probes.ridge import few_shot
from vit_tf.analysis.similarity import formation
from vit_tf.distribute.strategies import strategy
from vit_tf.scripts import train as train_script
from vit_tf.training import checkpointing
from vit_tf.training.objectives import SoftmaxCrossEntropy

pytestmark = pytest.mark.usefixtures("without_xla")

IMAGES = np.random.default_rng(1).normal(size=(24, 8, 8, 1)).astype("float32")
LABELS = np.arange(24) % 3
TAPS = ("embedding", "block*/mlp/sum")
RECIPE = vit_tf.Recipe(epochs=4, learning_rate=0.02, warmup_epochs=0, ema=0.5)


def make_model():
    keras.utils.set_random_seed(4)
    return vit_tf.ViT((8, 8, 1), 4, 2, 2, 8, 16, num_classes=3, dropout_rate=0.1)


def taps_of(model):
    return vit_tf.submodel(model, *TAPS)


def data():
    return tf.data.Dataset.from_tensor_slices((IMAGES, LABELS))


def make_small():
    """A model of another kind, soon compiled, with dropout's state."""
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Flatten(), keras.layers.Dense(8, "gelu", name="early")]
    layers += [keras.layers.Dropout(0.2), keras.layers.Dense(6, "gelu", name="late")]
    return keras.Sequential([keras.Input((8, 8, 1)), *layers, keras.layers.Dense(3)])


def small_taps_of(model):
    return vit_tf.submodel(model, "early", "late")


def recorder(folder=None, features=taps_of, **options):
    options = {"probes": (data().take(12).batch(5), data().skip(12).batch(12), 3)} | options
    return analysis.FormationRecorder(
        features, tf.data.Dataset.from_tensor_slices(IMAGES).batch(10), folder=folder, **options
    )


def fit(model, callbacks, rate=0.05, epochs=2, **options):
    model.compile(keras.optimizers.SGD(rate), SoftmaxCrossEntropy())
    quiet = {"verbose": 0, "shuffle": False}
    model.fit(data().batch(8), epochs=epochs, callbacks=callbacks, **quiet, **options)
    return model


def train(folder, **options):
    """A run of `vit_tf.train` with its records in its folder."""
    model, formed = make_small(), recorder(folder, small_taps_of)
    batches = data().shuffle(24, seed=2).batch(8), data().batch(12)
    vit_tf.train(model, RECIPE, *batches, folder, verbose=0, callbacks=[formed], **options)
    return formed.result


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    return folder, train(folder)


@pytest.mark.slow
def test_records_are_cka_and_few_shot_accuracy_of_the_models_at_these_epochs(tmp_path):
    saved = keras.callbacks.ModelCheckpoint(
        str(tmp_path / "{epoch}.weights.h5"), save_weights_only=True
    )
    model, formed = make_model(), recorder()
    model.save_weights(tmp_path / "0.weights.h5")
    fit(model, [formed, saved], rate=0.3, epochs=2)
    models = [make_model() for _ in range(3)]
    for epoch, one in enumerate(models):
        one.load_weights(tmp_path / f"{epoch}.weights.h5")
    images = tf.data.Dataset.from_tensor_slices(IMAGES).batch(10)  # the last of 4
    few, rest = data().take(12).batch(12), data().skip(12).batch(12)
    for epoch, name, other in (
        (1, "start", 0),
        (2, "start", 0),
        (1, "previous", 0),
        (2, "previous", 1),
    ):
        expected = analysis.cka(taps_of(models[other]), images, taps_of(models[epoch]))
        for variable, suffix in (("cka", ""), ("stderr", "_stderr")):
            found = formed.result[f"cka_to_{name}{suffix}"].sel(epoch=epoch)
            of_layers = np.diagonal(expected[variable])
            np.testing.assert_allclose(found, of_layers, atol=2e-5, err_msg=f"{name} {epoch}")
    assert (formed.result["cka_to_start"].sel(epoch=2) < 0.999).any()
    for epoch, one in enumerate(models):
        expected = few_shot(taps_of(one), [(few, None)], rest, 3, (4,), (1024.0,))["accuracy"]
        np.testing.assert_array_equal(
            formed.result["accuracy"].sel(epoch=epoch), expected[:, 0, 0, 0]
        )
    assert formed.result.sizes == {"epoch": 3, "layer": 3}
    assert formed.result["cka_to_previous"].sel(epoch=0).isnull().all()


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["submodel", "function of images"])
def test_features_of_the_model_are_as_good_as_a_function_of_it(kind):
    model, of_function = make_small(), analysis.FormationRecorder(small_taps_of, IMAGES)
    taps = small_taps_of(model)
    features = taps if kind == "submodel" else lambda images: dict(taps(images))
    of_features = analysis.FormationRecorder(features, IMAGES)
    fit(model, [of_function, of_features], rate=0.3)
    xr.testing.assert_allclose(of_features.result, of_function.result, atol=1e-6)
    assert (of_features.result["cka_to_start"].sel(epoch=2) < 0.999).all()


def test_features_that_are_neither_are_refused_and_named():
    def wrong_pattern(model):
        return vit_tf.submodel(model, "lately")

    for features, message in [
        (wrong_pattern, r"\{layer: tensor\}.*or to map the model.*wrong_pattern.*lately"),
        (lambda images: images[:, 0], r"or to map the model.*Tensor.* for images"),
        (
            small_taps_of(make_small()),
            r"weights of .* are not those of the model being trained",
        ),
    ]:
        with pytest.raises(ValueError, match=message):
            fit(make_small(), [analysis.FormationRecorder(features, IMAGES)])
    with pytest.raises(ValueError, match=r"or to map the model.*Received: \('early',\)"):
        analysis.FormationRecorder(("early",), IMAGES)


def test_it_is_a_case_of_the_recorder_with_scalars(tmp_path):
    formed = analysis.FormationRecorder(small_taps_of, IMAGES, log_dir=tmp_path)
    fit(make_small(), [formed], rate=0.3)
    assert isinstance(formed, analysis.Recorder)
    recorded = formed.results["formation"].transpose(*formed.result["cka_to_start"].dims)
    xr.testing.assert_equal(recorded, formed.result)
    logged = {
        event.step: tf.make_ndarray(value.tensor)
        for path in tmp_path.iterdir()
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == "formation/cka_to_start/late"
    }
    expected = formed.result["cka_to_start"].sel(layer="late")
    assert list(logged) == expected.epoch.values.tolist() == [0, 1, 2]
    np.testing.assert_allclose(list(logged.values()), expected, rtol=1e-6)


@pytest.mark.slow
def test_a_learning_rate_of_0_changes_nothing():
    formed = recorder(features=small_taps_of, every=2)
    fit(make_small(), [formed], rate=0.0, epochs=5)
    assert formed.result["epoch"].values.tolist() == [0, 2, 4]
    np.testing.assert_allclose(formed.result["cka_to_start"], 1, atol=1e-12)
    np.testing.assert_allclose(formed.result["cka_to_previous"][1:], 1, atol=1e-12)
    np.testing.assert_allclose(formed.result["cka_to_start_stderr"], 0, atol=1e-12)
    assert (formed.result["accuracy"] == formed.result["accuracy"][0]).all()


@pytest.mark.slow
def test_weights_set_by_hand_are_compared_and_nothing_is_traced_anew():
    traced, model, other = [], make_model(), make_model()
    other.set_weights(
        [w + 0.3 * np.sin(np.arange(w.size)).reshape(w.shape) for w in other.get_weights()]
    )

    def features(of):
        taps = taps_of(of)
        return lambda images: traced.append(None) or taps(images)

    class Swap(keras.callbacks.Callback):
        def on_epoch_end(self, epoch, logs=None):
            self.model.set_weights(other.get_weights())

    formed = analysis.FormationRecorder(features, IMAGES)
    fit(model, [Swap(), formed], rate=0.0, epochs=4)
    expected = np.diagonal(analysis.cka(taps_of(make_model()), IMAGES, taps_of(other))["cka"])
    assert (expected < 0.99).any()
    for epoch in (1, 4):
        np.testing.assert_allclose(
            formed.result["cka_to_start"].sel(epoch=epoch), expected, atol=2e-5
        )
    np.testing.assert_allclose(formed.result["cka_to_previous"].sel(epoch=2), 1, atol=1e-12)
    assert len(traced) == 1 and "accuracy" not in formed.result
    assert formed.result["cka_to_start_stderr"].isnull().all()  # one batch


@pytest.mark.slow
def test_a_run_is_the_same_with_and_without_a_recorder():
    recorders = [recorder(features=small_taps_of)]
    with_one, without = fit(make_small(), recorders), fit(make_small(), [])
    for w, v in zip(with_one.get_weights(), without.get_weights(), strict=True):
        np.testing.assert_array_equal(w, v)


@pytest.mark.slow
@pytest.mark.parametrize(
    "owner, name, call",
    [
        (checkpointing, "save_state", 1),  # epoch 1 is recorded, its weights are lost
        (checkpointing, "save_state", 4),
        (checkpointing, "write_log", 2),  # the weights of epoch 2 are kept
        (formation, "write_whole", 4),  # epoch 3 is recorded, `formation.nc` is older
    ],
)
def test_a_killed_run_goes_on_where_it_was(undisturbed, tmp_path, monkeypatch, owner, name, call):
    with monkeypatch.context() as context, pytest.raises(KeyboardInterrupt):
        count_calls(context, owner, name, call)
        train(tmp_path)
    assert (tmp_path / "formation.nc").exists()
    resumed = train(tmp_path)
    xr.testing.assert_allclose(resumed, undisturbed[1], atol=1e-5)
    assert xr.load_dataset(tmp_path / "formation.nc").identical(resumed)
    assert sorted(path.name for path in (tmp_path / "formation-state").iterdir()) == [
        "epoch-0003.nc",
        "epoch-0004.nc",
    ]


@pytest.mark.slow
def test_a_whole_run_answers_again(undisturbed, tmp_path):
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    (tmp_path / "copy" / "formation.nc").unlink()
    xr.testing.assert_identical(train(tmp_path / "copy"), undisturbed[1])
    assert (tmp_path / "copy" / "formation.nc").exists()
    assert undisturbed[1]["epoch"].values.tolist() == [0, 1, 2, 3, 4]
    assert (undisturbed[1]["cka_to_start"].sel(epoch=4) < 0.999).all()


@pytest.mark.slow
def test_replicas_leave_no_trace():
    alone, spread = (recorder(features=small_taps_of) for _ in range(2))
    fit(make_small(), [alone], rate=0.0)
    with strategy("mirrored").scope():
        fit(make_small(), [spread], rate=0.0)
    xr.testing.assert_allclose(spread.result, alone.result, atol=1e-6)


@pytest.mark.slow
def test_the_script_records_and_trains_as_without_a_recorder(tmp_path):
    tiny = "--image-size 16 --patch-size 8 --num-layers 1 --num-heads 1 --hidden-dim 8 --mlp-dim 8"
    logs = []
    for name, extra in (("with", ["--record-formation", "2"]), ("without", [])):
        line = [*tiny.split(), "--epochs", "3", "--out", str(tmp_path / name), *extra]
        assert train_script.main(line) == 0
        with open(tmp_path / name / "log.csv") as file:
            logs.append([row["loss"] for row in csv.DictReader(file)])
    assert logs[0] == logs[1] and len(logs[0]) == 3
    result = xr.load_dataset(tmp_path / "with" / "formation.nc")
    assert result["epoch"].values.tolist() == [0, 2]
    assert result["layer"].values.tolist() == ["embedding", "block00/mlp/sum"]
    assert result.attrs["examples"] == result.attrs["test_examples"] == 128
    assert result.attrs["train_examples"] == 100
    assert (tmp_path / "with" / "formation.png").stat().st_size > 10_000
    assert not (tmp_path / "without" / "formation.nc").exists()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"every": 0}, "every=0"),
        ({"l2": 0.0}, "l2=0.0"),
        ({"images": IMAGES[:3]}, "at least 4 images"),
        ({"probes": (data().batch(9), data().batch(9), 2)}, "training labels from 0 to 2"),
    ],
)
def test_errors_of_arguments(options, words):
    with pytest.raises(ValueError, match=words):
        analysis.FormationRecorder(taps_of, **{"images": IMAGES} | options)


@pytest.mark.slow
def test_errors_of_runs(undisturbed, tmp_path):
    shutil.copytree(undisturbed[0], tmp_path / "copy")
    constant = make_model()
    constant.head.kernel.assign(0 * constant.head.kernel)
    logits = analysis.FormationRecorder(lambda model: vit_tf.submodel(model, "logits"), IMAGES)
    for call, words in (
        (lambda: recorder().result, "no results yet"),
        (lambda: fit(make_model(), [recorder(tmp_path / "copy")]), "start at epoch 3.*at epoch 0"),
        (
            lambda: fit(make_model(), [recorder(tmp_path / "copy", probes=None)]),
            "another order of them",
        ),
        (lambda: fit(constant, [logits]), "constant layer: logits"),
    ):
        with pytest.raises(ValueError, match=words):
            call()


@pytest.mark.slow
def test_the_plot_shows_every_quantity(undisturbed):
    axes = analysis.plots.plot_formation(undisturbed[1]).panels
    assert len(axes) == 3
    for ax, name in zip(axes, ("cka_to_start", "cka_to_previous", "accuracy"), strict=True):
        (mesh,) = ax.collections
        np.testing.assert_array_equal(
            mesh.get_array().filled(np.nan), undisturbed[1][name].values.T
        )
        np.testing.assert_array_equal(mesh.get_coordinates()[0, :, 0], np.arange(-0.5, 5))
    assert axes[0].collections[0].get_clim() == axes[1].collections[0].get_clim() == (0, 1)
    assert axes[0].figure.axes[0].get_title().endswith(undisturbed[1].attrs["model"])
    assert len(analysis.plots.plot_formation(undisturbed[1].drop_vars("accuracy")).panels) == 2
