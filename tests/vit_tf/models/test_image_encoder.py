"""Heads of texts: logits of CLIP and SigLIP against their formula, and transformers' own."""

import numpy as np
import oracles
import pytest
from archive_files import refuses
from tiny_models import tiny

import vit_tf
from vit_tf import analysis


@pytest.fixture(scope="module", params=["clip", "siglip"])
def encoder(request):
    model = tiny(request.param, num_classes=2, class_names=("cat", "dog"))
    oracles.randomize(model)
    return model


@pytest.fixture
def images(rng):
    return rng.normal(size=(3, 16, 24, 3)).astype("float32")


def texts(rng, count, channels):
    embeddings = rng.normal(size=(count, channels))
    return embeddings / np.linalg.norm(embeddings, axis=1, keepdims=True)


def test_logits_compare_images_with_texts(encoder, images, rng, tmp_path):
    before = np.asarray(encoder.intermediates(images)[encoder.taps[-2]], np.float64)
    embeddings = texts(rng, 4, before.shape[1])
    for bias in (None, -10.0, [1.0, -2.0, 3.0, 0.5]):
        model = vit_tf.with_text_head(encoder, embeddings, 7.5, bias)
        unit = before / np.linalg.norm(before, axis=1, keepdims=True)
        expected = 7.5 * unit @ embeddings.T + (0 if bias is None else np.asarray(bias))
        np.testing.assert_allclose(model(images), expected, rtol=1e-5, atol=1e-5)
    assert model.taps == encoder.taps and model.num_classes == 4 and model.class_names is None
    model.class_names = ("a", "b", "c", "d")
    model.save(tmp_path / "encoder.keras")
    again = vit_tf.load_model(tmp_path / "encoder.keras")
    assert again.get_config() == model.get_config() and again.class_names[3] == "d"
    np.testing.assert_array_equal(again(images), model(images))
    # The model that was given is as it was.
    assert encoder.num_classes == 2 and encoder.class_names == ("cat", "dog")


@pytest.mark.slow
def test_the_logit_lens_reads_each_block_by_the_texts(encoder, images, rng):
    embeddings = texts(rng, 4, encoder.embedding_dim)
    model = vit_tf.with_text_head(encoder, embeddings, 7.5, -3.0)
    features = vit_tf.submodel(model, "block*/mlp/sum", "logits")
    lens = analysis.logit_lens(features, images)
    assert lens.shape == (3, 2, 4)
    np.testing.assert_allclose(lens[:, -1], model(images), rtol=1e-4, atol=1e-5)
    # A cosine is at most 1.
    assert np.abs(lens + 3).max() <= 7.5 + 1e-4
    weights = oracles.weights_of(model)
    x = np.asarray(model.intermediates(images)["block00/mlp/sum"], np.float64)
    if "projection/kernel" in weights:
        x = oracles.norm(x, weights, "norm", 1e-5)[:, 0] @ weights["projection/kernel"]
        expected = 7.5 * x / np.linalg.norm(x, axis=1, keepdims=True) @ embeddings.T - 3
        np.testing.assert_allclose(lens[:, 0], expected, rtol=1e-4, atol=1e-4)


@pytest.mark.slow
def test_a_text_head_goes_with_the_model(encoder, images, rng):
    model = vit_tf.with_text_head(encoder, texts(rng, 4, encoder.embedding_dim), 7.5, -3.0)
    larger = vit_tf.at_resolution(model, (24, 24))
    np.testing.assert_array_equal(larger.head.kernel, model.head.kernel)
    assert float(larger.head.scale) == 7.5
    linear = vit_tf.at_resolution(model, num_classes=5)
    assert not linear.get_config()["text_head"] and not np.any(linear(images))
    other = vit_tf.with_text_head(model, texts(rng, 3, encoder.embedding_dim), 2.0)
    assert other.num_classes == 3 and np.abs(other(images)).max() <= 2.0 + 1e-5
    np.testing.assert_array_equal(vit_tf.reinitialize(model)(images), np.zeros((3, 4)))


@pytest.fixture(scope="module")
def tiny_clip():
    return tiny("clip", num_layers=1)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"embeddings": np.ones((4, 6))}, r"each of length 1.*shape \(4, 6\), of length 2.449"),
        ({"embeddings": np.eye(5)}, r"\(text, 6\).*\(5, 5\)"),
        ({"embeddings": np.zeros((0, 6))}, r"\(0, 6\)"),
        ({"embeddings": np.eye(6)[0]}, r"Received: shape \(6,\)"),
        ({"embeddings": np.full((2, 6), np.nan)}, "of length nan"),
        ({"scale": 0}, "scale.*scale=0"),
        ({"scale": np.ones(2)}, "scale"),
        ({"scale": np.inf}, "scale=inf"),
        ({"bias": [1.0, 2.0]}, "6 texts"),
        ({"bias": np.nan}, "bias=nan"),
    ],
)
def test_what_is_no_head_is_refused(change, message, tiny_clip):
    arguments = {"embeddings": np.eye(6), "scale": 2.0} | change
    with refuses(message):
        vit_tf.with_text_head(tiny_clip, **arguments)


def test_models_without_an_embedding_of_images_are_refused():
    with refuses("CLIPViT or SigLIPViT.*Received: ViT"):
        vit_tf.with_text_head(tiny("vit"), np.eye(8), 1.0)


def test_logits_are_those_of_siglip_and_clip(tmp_path):
    """Of transformers, whole models: images against texts."""
    pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    import torch
    import tower_models as models

    reference = models.siglip("whole")
    folder = models.write(reference, tmp_path / "folder")
    images = models.pictures((20, 20, 3))
    tokens = torch.tensor([[1, 2, 3, 4, 5], [6, 7, 8, 9, 10], [3, 3, 1, 0, 2]])
    assert isinstance(reference, transformers.SiglipModel)
    with torch.no_grad():
        pixels = torch.tensor(images.transpose(0, 3, 1, 2))
        outputs = reference(input_ids=tokens, pixel_values=pixels)
    embeddings = outputs.text_embeds.numpy()
    scale, bias = (float(p.detach()) for p in (reference.logit_scale.exp(), reference.logit_bias))
    model = vit_tf.load_pretrained(folder)
    model = vit_tf.with_text_head(model, embeddings, scale, bias)
    expected = outputs.logits_per_image.numpy()
    assert np.abs(model(images) - expected).max() < 1e-5 * np.abs(expected).max()
