import re
import subprocess
import sys

import keras
import numpy as np
import pytest
import tensorflow as tf
from paths import ROOT

import vit_tf


@keras.saving.register_keras_serializable("tests")
class Twice(keras.layers.Layer):
    """A nested layer that returns two tensors and calls its activation twice."""

    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.dense = keras.layers.Dense(4)
        self.relu = keras.layers.ReLU()

    def call(self, x):
        y = self.relu(self.dense(x))
        return y, self.relu(y - 1.0)


@keras.saving.register_keras_serializable("tests")
class Subclassed(keras.Model):
    def __init__(self, **kwargs):
        super().__init__(**kwargs)
        self.first = keras.layers.Conv2D(3, 2)
        self.twice = Twice()
        self.last = keras.layers.Dense(2)

    def call(self, images):
        x, y = self.twice(self.first(images))
        return self.last(x + y)


class Unmakeable(keras.layers.Dense):
    """A layer that cannot be made again from its own configuration, as some libraries have."""

    def get_config(self):
        return super().get_config() | {"derived": 1}


@keras.saving.register_keras_serializable("tests")
class Backbone(keras.Model):
    """A functional model with a configuration of its own, as in KerasHub."""

    def __init__(self, width, **kwargs):
        images = keras.Input((4, 4, 3))
        x = Unmakeable(width, name="first")(images)
        relu = keras.layers.ReLU(name="relu")
        inner = keras.Sequential([keras.Input((4, 4, width)), relu], name="in")
        x = keras.layers.Dense(2, name="last")(inner(x))
        super().__init__(images, x, **kwargs)
        self.width = width

    def get_config(self):
        return {"name": self.name, "width": self.width}


@pytest.fixture(scope="module")
def vit():
    keras.utils.set_random_seed(0)
    return vit_tf.ViT((16, 24, 3), 8, 4, 2, 8, 16, 5, without_skips=("block01/mlp",))


@pytest.fixture
def images(rng):
    return rng.normal(size=(2, 16, 24, 3)).astype("float32")


def assert_same(actual, expected, **tolerance):
    assert set(actual) == set(expected)
    for tap in expected:
        np.testing.assert_allclose(actual[tap], expected[tap], err_msg=tap, **tolerance)


def test_submodel_gives_the_models_own_intermediates_in_depth_order(vit, images):
    features = vit_tf.submodel(vit, "logits", "block*/*/sum", "embedding")
    every = vit.intermediates(images)
    outputs = features(images)
    assert list(outputs) == [
        t for t in vit.taps if t.endswith("sum") or t in ("embedding", "logits")
    ]
    assert features.taps == tuple(outputs)
    assert_same(outputs, {tap: every[tap] for tap in outputs}, rtol=1e-6, atol=1e-6)
    assert features.token_grid == vit.token_grid


def test_submodel_holds_only_what_it_needs_and_shares_weights(vit, images):
    features = vit_tf.submodel(vit, "block02/mlp/norm")
    assert [layer.name for layer in features.layers] == [
        "images",
        "embedding",
        "block00",
        "block01",
        "block02",
    ]
    assert all(any(w is v for v in vit.weights) for w in features.weights)


def test_submodel_of_a_submodel(vit, images):
    features = vit_tf.submodel(vit_tf.submodel(vit, "block*/mlp/sum"), "block01/*")
    assert features.taps == ("block01/mlp/sum",)
    assert [layer.name for layer in features.layers][-1] == "block01"


@pytest.mark.slow
def test_own_submodel_reloads_bit_for_bit(vit, images, tmp_path):
    features = vit_tf.submodel(vit, "block01/*", "pooled")
    features.save(tmp_path / "features.keras")
    again = vit_tf.load_features(tmp_path / "features.keras")
    assert again.taps == features.taps
    assert again.token_grid == features.token_grid
    assert_same(again(images), features(images), rtol=0, atol=0)
    selected = vit_tf.load_features(tmp_path / "features.keras", "*/mlp/*")
    assert selected.taps == tuple(t for t in features.taps if "/mlp/" in t)


@pytest.mark.slow
def test_whole_model_file_opens_as_features(vit, images, tmp_path):
    vit.save(tmp_path / "vit.keras")
    assert vit_tf.load_features(tmp_path / "vit.keras").taps == vit.taps
    features = vit_tf.load_features(tmp_path / "vit.keras", "block*/mlp/sum")
    assert_same(features(images), vit_tf.submodel(vit, "block*/mlp/sum")(images), rtol=0, atol=0)


@pytest.mark.slow
def test_the_folder_of_a_training_run_opens_as_its_model(vit, images, tmp_path):
    run = tmp_path / "my-run"
    run.mkdir()
    (run / "configuration.json").write_text("{}")
    with pytest.raises(ValueError, match=r"run that holds model\.keras\. .*my-run', a folder"):
        vit_tf.load_model(run)
    vit.save(run / "model.keras")
    for load in (vit_tf.load, vit_tf.load_model):
        np.testing.assert_array_equal(load(run)(images), vit(images))


@pytest.mark.slow
def test_saved_model_answers_without_the_package(vit, images, tmp_path):
    features = vit_tf.submodel(vit, "block*/*/sum", "logits", "embedding")
    features.export(tmp_path / "exported", verbose=False)
    expected = {tap: tensor.numpy() for tap, tensor in features(images).items()}
    opened = vit_tf.load_features(tmp_path / "exported")
    assert tuple(opened(images)) == features.taps
    assert_same(opened(images), expected, rtol=1e-5, atol=1e-5)
    np.save(tmp_path / "images.npy", images)
    script = (
        "import sys, numpy as np, tensorflow as tf\n"
        "folder = sys.argv[1]\n"
        "model = tf.saved_model.load(folder + '/exported')\n"
        "taps = model.serve(np.load(folder + '/images.npy'))\n"
        "assert not any(name.startswith('vit_tf') for name in sys.modules)\n"
        "import vit_tf\n"
        "opened = vit_tf.load_features(folder + '/exported')\n"
        "again = opened(np.load(folder + '/images.npy'))\n"
        "assert all(np.array_equal(taps[tap], again[tap]) for tap in opened.taps)\n"
        "np.savez(folder + '/taps.npz', **{k.replace('/', '|'): v for k, v in taps.items()})\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path)], check=True, cwd=tmp_path)
    taps = {name.replace("|", "/"): value for name, value in np.load(tmp_path / "taps.npz").items()}
    assert_same(taps, expected, rtol=1e-5, atol=1e-5)


@pytest.mark.slow
def test_keras_applications_resnet50(rng, tmp_path):
    model = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=4)
    features = vit_tf.submodel(model, "conv2_block1_out", "conv3_block1_*_conv")
    assert features.taps[0] == "conv2_block1_out"
    assert not any(layer.name.startswith("conv4") for layer in features.layers)
    images = rng.normal(size=(2, 32, 32, 3)).astype("float32")
    reference = keras.Model(model.input, model.get_layer("conv3_block1_2_conv").output)
    outputs = features(images)
    np.testing.assert_allclose(outputs["conv3_block1_2_conv"], reference(images), rtol=1e-6)
    features.save(tmp_path / "f.keras")
    assert_same(vit_tf.load_features(tmp_path / "f.keras")(images), outputs, rtol=0, atol=0)
    features.export(tmp_path / "f", verbose=False)
    assert_same(vit_tf.load_features(tmp_path / "f")(images), outputs, rtol=1e-4, atol=1e-5)


def test_subclassed_model_with_nested_layers(rng, tmp_path):
    images = rng.normal(size=(2, 8, 8, 3)).astype("float32")
    model = Subclassed()
    model(images)
    names = [model.first.name, model.twice.name, model.last.name]
    dense, relu = model.twice.dense.name, model.twice.relu.name
    features = vit_tf.submodel(model, "*")
    assert features.taps == (
        names[0],
        f"{names[1]}/{dense}",
        f"{names[1]}/{relu}",
        f"{names[1]}/{relu}@2",
        f"{names[1]}/0",
        f"{names[1]}/1",
        names[2],
    )
    first = model.first(images)
    hidden = model.twice.dense(first).numpy()
    outputs = features(images)
    expected = [first, hidden, np.maximum(hidden, 0)]
    expected += [np.maximum(np.maximum(hidden, 0) - 1, 0)]
    expected += [*expected[2:4], model(images)]
    assert_same(outputs, dict(zip(features.taps, expected, strict=True)), rtol=1e-5, atol=1e-6)
    np.testing.assert_array_equal(model(images), model(images))
    assert "call" not in vars(model.twice)

    features.save(tmp_path / "f.keras")
    assert_same(vit_tf.load_features(tmp_path / "f.keras")(images), outputs, rtol=0, atol=0)
    features.export(tmp_path / "f", verbose=False)
    assert_same(vit_tf.load_features(tmp_path / "f")(images), outputs, rtol=1e-5, atol=1e-6)


def test_nested_functional_model_is_cut_behind_the_layer_needed(rng):
    inner = keras.Sequential(
        [keras.Input((6, 6, 3)), keras.layers.Conv2D(2, 3, name="a"), keras.layers.ReLU(name="b")],
        name="inner",
    )
    outer = keras.Sequential([inner, keras.layers.Flatten(), keras.layers.Dense(3, name="head")])
    outer.build((None, 6, 6, 3))
    images = rng.normal(size=(2, 6, 6, 3)).astype("float32")
    features = vit_tf.submodel(outer, "inner/a", "inner/b")
    assert_same(
        features(images),
        {"inner/a": inner.layers[0](images), "inner/b": inner(images)},
        rtol=1e-6,
        atol=1e-6,
    )
    assert len(features.weights) == 2


def test_functional_model_with_its_own_configuration(rng, tmp_path):
    model = Backbone(3)
    images = rng.normal(size=(2, 4, 4, 3)).astype("float32")
    first = model.get_layer("first")(images).numpy()
    for patterns in (["first"], ["first", "in/relu"]):
        features = vit_tf.submodel(model, *patterns)
        outputs = features(images)
        expected = {"first": first, "in/relu": np.maximum(first, 0)}
        assert_same(outputs, {tap: expected[tap] for tap in patterns}, rtol=1e-6)
        assert len(features.weights) == 2
        features.save(tmp_path / "f.keras")
        assert_same(vit_tf.load_features(tmp_path / "f.keras")(images), outputs, rtol=0, atol=0)


def named_layers_in_no_alphabet():
    """A functional model whose layers are named against the alphabet, with two branches."""
    images = keras.Input((6, 6, 3))
    first = keras.layers.Conv2D(2, 3, name="z10")(images)
    left = keras.layers.Conv2D(2, 3, padding="same", name="b9")(first)
    right = keras.layers.ReLU(name="y1")(first)
    total = keras.layers.Add(name="c_add")([left, right])
    return keras.Model(images, keras.layers.GlobalAveragePooling2D(name="a_pool")(total))


def exported_orders(model, folder):
    """The taps of a submodel, of its export, and of that export as another program writes it."""
    features = vit_tf.submodel(model, "*")
    features.export(folder, verbose=False)
    ours = vit_tf.load_features(folder).taps
    (folder / "features.json").unlink()
    return features.taps, ours, vit_tf.load_features(folder).taps


def test_an_exported_model_keeps_the_order_of_its_layers(tmp_path):
    taps, ours, others = exported_orders(named_layers_in_no_alphabet(), tmp_path / "f")
    assert taps == ours == others == ("z10", "b9", "y1", "c_add", "a_pool")


@pytest.mark.slow
@pytest.mark.parametrize("name", ["MobileNetV2", "ResNet50"])
def test_an_exported_foreign_model_keeps_the_order_of_its_layers(name, tmp_path):
    model = getattr(keras.applications, name)(weights=None, input_shape=(32, 32, 3), classes=4)
    taps, ours, others = exported_orders(model, tmp_path / "f")
    graph = [layer.name for layer in model.layers[1:]]
    assert sorted(taps) == sorted(graph) and ours == taps == others


@pytest.mark.slow
def test_a_saved_model_of_another_program_is_ordered_by_its_graph(tmp_path):
    class Program(tf.Module):
        @tf.function(input_signature=[tf.TensorSpec((None, 4, 4, 3), tf.float32)])
        def half(self, images):
            return images / 2

        @tf.function(input_signature=[tf.TensorSpec((None, 4, 4, 3), tf.float32)])
        def serve(self, images):
            stem = self.half(images)
            last = tf.reduce_mean(stem * 3, (1, 2))
            return {"a_last": last + 1, "m_mean": last, "z_stem": stem}

    program = Program()
    signatures = {"serving_default": program.serve}
    tf.saved_model.save(program, str(tmp_path / "f"), signatures=signatures)
    features = vit_tf.load_features(tmp_path / "f")
    assert features.taps == ("z_stem", "m_mean", "a_last")
    ones = features(np.ones((1, 4, 4, 3), "float32"))
    assert [float(np.mean(ones[tap])) for tap in features.taps] == [0.5, 1.5, 2.5]
    assert vit_tf.load_features(tmp_path / "f", "a*", "z*").taps == ("z_stem", "a_last")


def test_recording_in_a_compiled_function(rng):
    model = Subclassed()
    images = rng.normal(size=(2, 8, 8, 3)).astype("float32")
    model(images)
    features = vit_tf.submodel(model, "*")
    assert_same(tf.function(features)(images), features(images), rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_the_patterns_of_the_guide_fit_what_it_says():
    guide = (ROOT / "docs" / "guides" / "your-own-model.md").read_text()
    (example,) = re.findall("For example, .* selects all layers", guide)
    ours, theirs, every = re.findall('`"(.*?)"`', example)
    assert every == "*"
    small = {"num_layers": 1, "num_heads": 2, "hidden_dim": 4, "mlp_dim": 4}
    vit = vit_tf.ViT((8, 8, 3), 4, **small)
    models = {
        vit: 2,
        vit_tf.BiT((8, 8, 3), (1, 1), 0.5): 2,
        vit_tf.CLIPViT((8, 8, 3), 4, **small): 2,
    }
    models |= {vit_tf.BEiT((8, 8, 3), 4, **small): 2, vit_tf.Mixer((8, 8, 3), 4, 1, 4, 4, 4): 2}
    for model, sites in models.items():
        assert len(vit_tf.submodel(model, ours).taps) == sites
    resnet = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=2)
    assert len(vit_tf.submodel(resnet, theirs).taps) == 16


def test_without_patterns_the_representations(vit):
    blocks = [tap for tap in vit.taps if tap.endswith("mlp/sum")]
    assert vit_tf.submodel(vit).taps == ("embedding", *blocks, "norm")


@pytest.mark.slow
def test_without_patterns_the_units_of_a_resnet():
    resnet = keras.applications.ResNet50(weights=None, input_shape=(32, 32, 3), classes=2)
    counts = {2: 3, 3: 4, 4: 6, 5: 3}
    units = [f"conv{s}_block{u}_out" for s, count in counts.items() for u in range(1, count + 1)]
    assert vit_tf.submodel(resnet).taps == ("conv1_relu", *units, "avg_pool")


def test_errors(vit, tmp_path):
    with pytest.raises(ValueError, match=r"Unknown layer or pattern.*block00/mlp/sum"):
        vit_tf.submodel(vit, "block00/mlp/sun")
    with pytest.raises(ValueError, match="Expected at least one pattern of layer names"):
        vit_tf.submodel(vit, ())
    with pytest.raises(ValueError, match=r"Expected model to be a keras\.Model"):
        vit_tf.submodel(lambda images: images, "*")
    with pytest.raises(ValueError, match="is not built"):
        vit_tf.submodel(Subclassed(), "*")
    with pytest.raises(ValueError, match="no such file"):
        vit_tf.load_features(tmp_path / "none.keras")
    with pytest.raises(ValueError, match="Cannot read the SavedModel"):
        vit_tf.load_features(tmp_path)
    (tmp_path / "weights.txt").write_text("")
    with pytest.raises(ValueError, match=r"intact \.keras file.*weights\.txt', a truncated"):
        vit_tf.load_features(tmp_path / "weights.txt")


def test_truncated_and_foreign_files(vit, tmp_path):
    vit.save(tmp_path / "vit.keras")
    data = (tmp_path / "vit.keras").read_bytes()
    for content in (data[: len(data) // 2], b"", b"PNG not a model"):
        (tmp_path / "bad.keras").write_bytes(content)
        with pytest.raises(ValueError, match=r"intact \.keras file.*bad\.keras', a truncated"):
            vit_tf.load_model(tmp_path / "bad.keras")


@pytest.mark.parametrize("name", ["my model", "模型", "_a (b)"])
def test_a_file_with_any_name_is_measured(name, tmp_path, rng):
    """TensorFlow traces only models whose names are plain."""
    images = keras.Input((8, 8, 3))
    x = keras.layers.GlobalAveragePooling2D()(keras.layers.Conv2D(4, 3, name="c")(images))
    model = keras.Model(images, keras.layers.Dense(3)(x))
    model.save(tmp_path / f"{name}.keras")
    pixels = rng.normal(size=(2, 8, 8, 3)).astype("float32")
    taps = vit_tf.extract_features(tmp_path / f"{name}.keras", pixels, layers="c")
    np.testing.assert_allclose(taps["c"], model.get_layer("c")(pixels), atol=1e-6)
