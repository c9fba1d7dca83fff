"""The commonest first mistakes are answered by one line that says what to do."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.probes.ridge import few_shot
from vit_tf.scripts import evaluate
from vit_tf.training.evaluation import top_k_accuracy

IMAGES = np.random.default_rng(0).normal(size=(8, 8, 8, 3)).astype("float32")
LABELED = tf.data.Dataset.from_tensor_slices((IMAGES, np.arange(8) % 2)).batch(8)
GRID = TokenGrid(2, 2, 1, 4)


@pytest.fixture(scope="module")
def vit():
    keras.utils.set_random_seed(0)
    return vit_tf.ViT((8, 8, 3), 4, 2, 1, 8, 8, num_classes=3)


CALLS = {
    "cka": analysis.cka,
    "receptive_field": analysis.receptive_field,
    "ridge_probe": lambda f, x: analysis.ridge_probe(f, with_labels(x), with_labels(x), 2),
    "knn_accuracy": lambda f, x: analysis.knn_accuracy(f, with_labels(x), with_labels(x), 2),
    "few_shot": lambda f, x: few_shot(f, [(with_labels(x), None)], with_labels(x), 2, (1,), (1.0,)),
    "dense_features": lambda f, x: analysis.dense_features(f, x, GRID),
    "noise": lambda f, x: analysis.cka(analysis.engine.gaussian_like(f), x),
    "rollout": lambda f, x: analysis.rollout_of_images(f, x, GRID),
}


def with_labels(images):
    return tf.data.Dataset.from_tensor_slices((images, np.arange(len(images)) % 2)).batch(8)


# What is given in place of features, and words of the one line that says so.
WRONG = {
    "tensor": (lambda images: 2 * images, r"callable.*vit_tf\.submodel.*'<lambda>'.* a tensor"),
    "array": (IMAGES, r"vit_tf\.submodel.*activations at hand.*cka\("),
    "text": ("block*", r"vit_tf\.submodel.*'block\*'"),
    "dict": ({"layer": IMAGES}, r"activations at hand.*by cka\("),
}


@pytest.mark.parametrize("wrong", WRONG)
@pytest.mark.parametrize("call", CALLS)
def test_what_is_no_features_is_told_what_is(call, wrong):
    if (call, wrong) == ("cka", "dict") or (call == "noise" and wrong != "tensor"):
        return
    features, words = WRONG[wrong]
    with pytest.raises(ValueError, match=f"^.*{words}.*$") as caught:
        CALLS[call](features, IMAGES)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("call", [name for name in CALLS if name != "dense_features"])
def test_grey_images_are_told_how_to_become_colour_images(vit, call):
    features, grey = vit_tf.submodel(vit, "block*/attention/weights"), IMAGES[..., :1]
    for images, words in (
        (grey, r"\(None, 8, 8, 3\).*8, 8, 1\); .*numpy\.repeat\(images, 3, axis=-1\)"),
        (grey[..., 0], r"an axis of channels, images\[\.\.\., None\]"),
    ):
        with pytest.raises(ValueError, match=words):
            CALLS[call](features, images)


def test_grey_images_are_refused_in_training_and_evaluation(vit, tmp_path):
    foreign = keras.Sequential(
        [keras.Input((8, 8, 3)), keras.layers.Flatten(), *[keras.layers.Dense(3)]]
    )
    grey = with_labels(IMAGES[..., :1])
    for model in (vit, foreign):
        for call in (
            lambda model: vit_tf.train(model, vit_tf.Recipe(epochs=1), grey, grey, tmp_path / "r"),
            lambda model: top_k_accuracy(model, grey),
        ):
            with pytest.raises(ValueError, match=r"Received: shape \(None, 8, 8, 1\); grey"):
                call(model)
        assert len(top_k_accuracy(model, LABELED)) == 1
    with pytest.raises(ValueError, match=r"grey images images\[\.\.\., None\]"):
        top_k_accuracy(vit, with_labels(IMAGES[..., 0]))
    assert not (tmp_path / "r").exists()


@pytest.mark.slow
def test_submodel_takes_lists_of_patterns(vit, tmp_path):
    patterns = ["block00/mlp/sum", "pooled"]
    for features in (
        vit_tf.submodel(vit, patterns),
        vit_tf.submodel(vit, tuple(patterns[:1]), "pooled"),
    ):
        assert features.taps == vit_tf.submodel(vit, *patterns).taps == tuple(patterns)
    vit_tf.submodel(vit, patterns).save(tmp_path / "taps.keras")
    assert vit_tf.load_features(tmp_path / "taps.keras", ["pooled"]).taps == ("pooled",)
    for wrong in (3, ["pooled", None]):
        with pytest.raises(
            ValueError, match=r"Expected patterns of layer names to be text.*Received: "
        ):
            vit_tf.submodel(vit, wrong)
    with pytest.raises(ValueError, match="Expected at least one pattern of layer names"):
        vit_tf.submodel(vit, [])


@pytest.mark.slow
def test_a_saved_model_folder_is_told_what_opens_it(vit, tmp_path, capsys):
    folder = tmp_path / "exported"
    vit_tf.submodel(vit, "pooled").export(folder, verbose=False)
    with pytest.raises(ValueError, match=r"exported', a SavedModel folder, which load_features"):
        vit_tf.load_model(folder)
    (tmp_path / "empty").mkdir()
    with pytest.raises(ValueError, match=r"empty', a folder$"):
        vit_tf.load_model(tmp_path / "empty")
    assert evaluate.main([str(folder)]) == 2
    (line,) = capsys.readouterr().err.strip().splitlines()
    assert line.startswith("error: Expected path to be an intact .keras file")
    assert line.endswith("a SavedModel folder, which load_features opens")


@pytest.mark.parametrize(
    "pattern, near",
    [
        ("block*/MLP/sum", r"Did you mean block00/mlp/sum, block01/mlp/sum"),
        ("block01/mlp/sun", r"Did you mean block01/mlp/sum, block00/mlp/sum, "),
        ("block7/*/branhc", r"Did you mean block00/mlp/branch, block01/mlp/branch"),
        ("xyzzy*", r"Expected one of: embedding, "),
    ],
)
def test_near_matches_of_patterns(vit, pattern, near):
    with pytest.raises(ValueError, match=near):
        vit_tf.submodel(vit, pattern)


def test_a_saved_model_that_tells_no_shape_is_measured_all_the_same(tmp_path):
    module = tf.Module()
    any_shape = tf.TensorSpec(None, tf.float32, name="images")
    module.serve = tf.function(lambda images: {"half": images / 2}, input_signature=[any_shape])
    tf.saved_model.save(module, str(tmp_path / "any"), signatures=module.serve)
    features = vit_tf.load_features(tmp_path / "any")
    assert features.input_shape is None
    expected = analysis.cka(lambda images: {"half": images}, IMAGES)["cka"]
    np.testing.assert_allclose(analysis.cka(features, IMAGES)["cka"], expected, atol=1e-6)
