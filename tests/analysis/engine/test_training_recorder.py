"""A recorder measures a model during `fit` as a call does, and leaves the training as it is."""

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr

from vit_tf import analysis

pytestmark = pytest.mark.usefixtures("without_xla")


@keras.saving.register_keras_serializable("recorder")
class Small(keras.Model):
    """A subclassed model of two blocks with dropout, whose random numbers a fit uses."""

    def __init__(self):
        super().__init__()
        block = [keras.layers.Conv2D(4, 3, 2, activation="relu"), keras.layers.Dropout(0.5)]
        self.first = keras.Sequential(block, name="first")
        self.second = keras.Sequential([keras.layers.Conv2D(4, 3, 2)], name="second")
        self.head = keras.layers.Dense(2)

    def call(self, images):
        return self.head(keras.ops.mean(self.second(self.first(images)), axis=(1, 2)))


def fitted(images, labels, *callbacks, built=True):
    keras.utils.set_random_seed(0)
    model = Small()
    if built:
        model(images[:1])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1), loss)
    model.fit(images, labels, batch_size=8, epochs=3, verbose=0, callbacks=list(callbacks))
    return model


def test_what_it_records_is_what_the_calls_give_and_the_training_is_the_same(rng, tmp_path):
    images = rng.uniform(-1, 1, (16, 16, 16, 3)).astype("float32")
    labels = np.arange(16) % 2
    half = {"half": lambda model, images: analysis.cka(model, images[:8])}
    recorder = analysis.Recorder(
        {"cka": analysis.cka} | half, images, every=2, folder=tmp_path, log_dir=tmp_path / "logs"
    )
    model = fitted(images, labels, recorder)
    plain = fitted(images, labels)
    for ours, theirs in zip(model.weights, plain.weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)

    result = recorder.results["cka"]
    assert result.cka.dims == ("epoch", "layer_x", "layer_y")
    assert result.epoch.values.tolist() == [0, 2, 3]
    now = analysis.cka(model, images)
    np.testing.assert_allclose(result.cka.sel(epoch=3), now.cka, atol=1e-6)
    assert not np.allclose(result.cka.sel(epoch=0), now.cka, atol=1e-3)
    np.testing.assert_allclose(
        recorder.results["half"].cka.sel(epoch=3), analysis.cka(model, images[:8]).cka, atol=1e-6
    )
    saved = xr.load_dataset(tmp_path / "cka.nc")
    np.testing.assert_array_equal(saved.cka, result.cka)

    layer = str(result.layer_x.values[0])
    logged = {
        event.step: tf.make_ndarray(value.tensor)
        for path in sorted((tmp_path / "logs").iterdir())
        for event in tf.compat.v1.train.summary_iterator(str(path))
        for value in event.summary.value
        if value.tag == f"cka/cka/{layer}"
    }
    means = result.cka.sel(layer_x=layer).mean("layer_y")
    assert list(logged) == [0, 2, 3]
    np.testing.assert_allclose(list(logged.values()), means, rtol=1e-6)


def test_mistakes_are_raised_before_training():
    with pytest.raises(ValueError, match="Did you mean cka"):
        analysis.Recorder(["ckaa"], None)
    with pytest.raises(ValueError, match="number of epochs, at least 1"):
        analysis.Recorder("cka", None, every=0)


@pytest.mark.slow
def test_a_fit_that_goes_on_adds_its_epochs(rng):
    images = rng.uniform(-1, 1, (8, 16, 16, 3)).astype("float32")
    recorder = analysis.Recorder(["cka"], images)
    model = fitted(images, np.arange(8) % 2, recorder)
    first = recorder.results["cka"].cka
    how = {"verbose": 0, "callbacks": [recorder]}
    model.fit(images, np.arange(8) % 2, initial_epoch=3, epochs=4, **how)
    result = recorder.results["cka"].cka
    assert result.epoch.values.tolist() == [0, 1, 2, 3, 4]
    np.testing.assert_array_equal(result.sel(epoch=first.epoch), first)
    other = analysis.Recorder(["cka"], images)
    model.fit(images, np.arange(8) % 2, initial_epoch=5, epochs=6, verbose=0, callbacks=[other])
    assert other.results["cka"].epoch.values.tolist() == [5, 6]


@pytest.mark.slow
def test_a_restarted_training_keeps_the_records_of_earlier_epochs(rng, tmp_path):
    images, labels = rng.uniform(-1, 1, (8, 16, 16, 3)).astype("float32"), np.arange(8) % 2
    means = {"mean": lambda model, images: xr.DataArray([float(np.mean(model(images)))], dims="x")}
    measures = {"cka": analysis.cka} | means
    model = fitted(images, labels, analysis.Recorder(measures, images, folder=tmp_path))
    before = {name: xr.load_dataset(tmp_path / f"{name}.nc") for name in measures}
    recorder = analysis.Recorder(measures, images, folder=tmp_path)
    model.fit(images, labels, initial_epoch=2, epochs=4, verbose=0, callbacks=[recorder])
    for name, saved in before.items():
        after = xr.load_dataset(tmp_path / f"{name}.nc")
        assert after.epoch.values.tolist() == [0, 1, 2, 3, 4]
        xr.testing.assert_equal(after.sel(epoch=[0, 1]), saved.sel(epoch=[0, 1]))
        if name == "mean":
            now = means["mean"](model, images)
            np.testing.assert_allclose(recorder.results["mean"].sel(epoch=4), now, rtol=1e-6)
    with pytest.raises(ValueError, match=r"epochs up to 4.*initial_epoch=4"):
        again = analysis.Recorder(measures, images, folder=tmp_path)
        model.fit(images, labels, epochs=1, verbose=0, callbacks=[again])
    other = keras.Sequential([keras.Input((16, 16, 3)), keras.layers.Conv2D(2, 3, name="other")])
    other.compile("sgd", "mse")
    of_other = {"cka": lambda model, images: analysis.cka(lambda x: {"other": model(x)}, images)}
    with pytest.raises(ValueError, match=r"layers of cka differ .*other"):
        again = analysis.Recorder(of_other, images, folder=tmp_path)
        outputs = np.zeros((8, 14, 14, 2))
        other.fit(images, outputs, initial_epoch=4, epochs=5, verbose=0, callbacks=[again])


@pytest.mark.slow
def test_a_model_that_is_not_built_is_measured_from_its_first_weights(rng):
    images, labels = rng.uniform(-1, 1, (8, 16, 16, 3)).astype("float32"), np.arange(8) % 2
    recorder, of_built = (analysis.Recorder(["cka"], images, every=3) for _ in range(2))
    model = fitted(images, labels, recorder, built=False)
    for ours, theirs in zip(model.weights, fitted(images, labels).weights, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    fitted(images, labels, of_built)
    np.testing.assert_allclose(
        recorder.results["cka"].cka, of_built.results["cka"].cka, rtol=1e-5, atol=1e-6
    )


def test_results_over_epochs_are_drawn(rng):
    images, labels = rng.uniform(-1, 1, (8, 16, 16, 3)).astype("float32"), np.arange(8) % 2
    recorder = analysis.Recorder(["cka", "receptive_field"], images)
    with pytest.raises(ValueError, match="no results yet"):
        recorder.plot()
    fitted(images, labels, recorder)
    result = recorder.results["cka"]
    (panel,) = analysis.plot(result).panels
    for line, means in zip(panel.lines, result.cka.mean("layer_y").T.values, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [0, 1, 2, 3])
        np.testing.assert_allclose(line.get_ydata(), means)
    assert len(recorder.plot().panels.ravel()) == 2
    assert len(recorder.plot("receptive_field").panels[0].lines) == 2
    with pytest.raises(ValueError, match="Did you mean cka"):
        recorder.plot("ckaa")
    with pytest.raises(ValueError, match="result of a measurement"):
        analysis.plot(xr.DataArray([0.5, 0.4], dims="epoch", name="loss"))
