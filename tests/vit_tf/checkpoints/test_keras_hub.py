"""Weights of KerasHub's models in our own: every block puts out what KerasHub's does."""

from importlib.util import find_spec

import lazy_loader
import numpy as np
import pytest

import vit_tf
from vit_tf.data.preprocessing import CLIP

pytestmark = pytest.mark.skipif(not find_spec("keras_hub"), reason="keras_hub is not installed")
keras_hub = lazy_loader.load("keras_hub")  # seconds, which only the process that runs these waits
SIZES = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8}
HALF = (0.5, 0.5, 0.5)
SLOW = pytest.mark.slow


def vit(**options):
    sizes = {"image_shape": (24, 40, 3), "patch_size": 8, "mlp_dim": 12}
    return keras_hub.models.ViTBackbone(**SIZES | sizes | options)


def deit(**options):
    sizes = {"image_shape": (24, 40, 3), "patch_size": 8, "intermediate_dim": 12}
    return keras_hub.models.DeiTBackbone(**SIZES | sizes | options)


def dino(registers, gated):
    return keras_hub.models.DINOV2Backbone(
        **SIZES,
        patch_size=14,
        intermediate_dim=24,
        image_shape=(42, 42, 3),
        position_embedding_shape=(56, 56),
        num_register_tokens=registers,
        use_swiglu_ffn=gated,
    )


def dino3(**options):
    sizes = {"hidden_dim": 24, "num_heads": 3, "num_layers": 2}
    sizes |= {"image_shape": (24, 40, 3), "patch_size": 8, "intermediate_dim": 12}
    return keras_hub.models.DINOV3Backbone(**sizes | options)


GATED = {"use_gated_mlp": True, "hidden_activation": "silu", "use_key_bias": False}
CASES = {
    "vit": (vit, "vit_encoder/transformer_block_{}", 1),
    "vit gap": (lambda: vit(use_class_token=False), "vit_encoder/transformer_block_{}", 1),
    "vit without biases": (
        lambda: vit(use_mha_bias=False, use_mlp_bias=False, use_patch_bias=False),
        "vit_encoder/transformer_block_{}",
        1,
    ),
    "vit of another epsilon": (
        lambda: vit(layer_norm_epsilon=0.1),
        "vit_encoder/transformer_block_{}",
        1,
    ),
    "deit": (deit, "deit_encoder/transformer_block_{}/output_layer", 1),
    "dinov2": (lambda: dino(0, False), "encoder/layers_{}", 0),
    "dinov2 with registers": (lambda: dino(3, False), "encoder/layers_{}", 0),
    "dinov3": (dino3, "encoder/layers_{}", 0),
    "dinov3 gated": (lambda: dino3(**GATED, num_register_tokens=0), "encoder/layers_{}", 0),
    "dinov3 gated without biases": (
        lambda: dino3(**GATED, use_mlp_bias=False, use_query_bias=False),
        "encoder/layers_{}",
        0,
    ),
    "dinov2 gated": (lambda: dino(0, True), "encoder/layers_{}", 0),
}
# Of learned positions and of rotary ones.
QUICK = ("vit", "dinov3 gated")


def randomise(model, rng):
    """Weights unlike each other, biases, scales and positions among them."""
    for weight in model.weights:
        if "position_ids" not in weight.path:
            weight.assign(rng.normal(0.3 if "gamma" in weight.path else 0, 0.3, weight.shape))
    return model


@pytest.mark.parametrize(
    "case", [case if case in QUICK else pytest.param(case, marks=SLOW) for case in CASES]
)
def test_every_block_is_that_of_keras_hub(case, rng):
    make, block, first = CASES[case]
    theirs = randomise(make(), rng)
    ours = vit_tf.from_keras_hub(theirs)
    images = rng.normal(size=(2, *ours.image_shape)).astype("float32")
    blocks = [block.format(i + first) for i in range(2)]
    expected = vit_tf.submodel(theirs, *blocks)(images)
    actual = ours.intermediates(images)
    taps = {"block00/mlp/sum": expected[blocks[0]], "block01/mlp/sum": expected[blocks[1]]}
    for tap, value in taps.items():
        scale = np.abs(value).max()
        np.testing.assert_allclose(actual[tap], value, atol=1e-5 * scale, err_msg=tap)
    last = np.asarray(theirs(images))
    np.testing.assert_allclose(actual["norm"], last, atol=1e-5 * np.abs(last).max())
    pooled = last.mean(axis=1) if case == "vit gap" else last[:, 0]
    np.testing.assert_allclose(actual[ours.taps[-1]], pooled, atol=1e-5 * np.abs(last).max())


def pair(kind, name=None, activation=None):
    """An image encoder of KerasHub's, and the model of it and a text encoder."""
    models, options = keras_hub.models, {"num_layers": 2, "num_heads": 2, "hidden_dim": 8}
    activation = {"intermediate_activation": activation} if activation else {}
    encoder = getattr(models, f"{kind}VisionEncoder")(
        8,
        intermediate_dim=12,
        image_shape=(28, 28, 3) if kind == "SigLIP" else (24, 24, 3),
        name=name,
        **activation,
        **options,
    )
    text = getattr(models, f"{kind}TextEncoder")(
        vocabulary_size=7, embedding_dim=8, intermediate_dim=12, **options
    )
    last = {"projection_dim": 6} if kind == "CLIP" else {}
    return encoder, getattr(models, f"{kind}Backbone")(encoder, text, **last)


@pytest.mark.parametrize(
    ("kind", "name", "activation"),
    [
        ("CLIP", None, None),
        pytest.param("CLIP", "encoder", "gelu", marks=SLOW),
        pytest.param("SigLIP", None, None, marks=SLOW),
        pytest.param("SigLIP", "encoder", "gelu", marks=SLOW),
    ],
)
def test_image_encoders_are_those_of_keras_hub(kind, name, activation, rng, record_property):
    encoder, both = pair(kind, name, activation)
    randomise(both, rng)
    # Those of an untrained CLIP are all 0.
    ids = encoder.embedding.position_ids
    ids.assign(rng.permutation(ids.shape[1])[None])
    ours = vit_tf.from_keras_hub(encoder)
    images = rng.normal(size=(2, *encoder.image_shape)).astype("float32")
    prefix = f"{name}_" if name else ""
    norm = f"{prefix}layer_norm" if kind == "CLIP" else f"{prefix}post_layer_norm"
    layers = [*(f"{prefix}encoder_block_{i}" for i in range(2)), norm]
    expected = list(vit_tf.submodel(encoder, *layers)(images).values())
    output = np.asarray(encoder(images))
    expected.append(output[:, 0] if kind == "CLIP" else output)
    taps = ("block00/mlp/sum", "block01/mlp/sum", "norm", "pooled")
    intermediates = ours.intermediates(images)
    actual = {tap: intermediates[tap] for tap in taps}
    assert len(actual) == len(expected) == 4
    errors = [
        np.abs(a - b).max() / np.abs(b).max()
        for a, b in zip(actual.values(), expected, strict=True)
    ]
    np.testing.assert_array_equal(ours(images), actual["pooled"])
    embedding = np.asarray(both.get_vision_embeddings(images))
    actual = vit_tf.from_keras_hub(both)(images)
    errors.append(np.abs(actual - embedding).max() / np.abs(embedding).max())
    assert actual.shape == embedding.shape == (2, 6 if kind == "CLIP" else 8)
    record_property("max relative error", max(errors))
    assert max(errors) < 1e-5, errors
    assert ours.preprocessing.mean == (HALF if kind == "SigLIP" else CLIP["mean"])


def test_refuses_image_encoders_that_no_model_here_computes():
    encoder, _ = pair("SigLIP", activation="relu")
    with pytest.raises(ValueError, match=r"intermediate_activation.*'relu'"):
        vit_tf.from_keras_hub(encoder)
    encoder = keras_hub.models.SigLIPVisionEncoder(
        8, **SIZES, intermediate_dim=12, layer_norm_epsilon=1e-3, image_shape=(24, 24, 3)
    )
    with pytest.raises(ValueError, match=r"layer_norm_epsilon.*0\.001"):
        vit_tf.from_keras_hub(encoder)


def test_a_classifier_keeps_its_head_and_its_images(rng):
    scale, offset = [1 / (255 * s) for s in (0.2, 0.3, 0.4)], [-1.0, -1.5, -0.5]
    converter = keras_hub.layers.ViTImageConverter((24, 40), scale=scale, offset=offset)
    preprocessor = keras_hub.models.ViTImageClassifierPreprocessor(converter)
    theirs = keras_hub.models.ViTImageClassifier(
        vit(), 5, preprocessor=preprocessor, intermediate_dim=6
    )
    ours = vit_tf.from_keras_hub(randomise(theirs, rng))
    images = rng.normal(size=(2, 24, 40, 3)).astype("float32")
    expected = np.asarray(theirs(images))
    assert ours.get_config()["representation_dim"] == 6 and expected.shape == (2, 5)
    np.testing.assert_allclose(ours(images), expected, atol=1e-5 * np.abs(expected).max())
    np.testing.assert_allclose(ours.preprocessing.std, (0.2, 0.3, 0.4), rtol=1e-6)
    np.testing.assert_allclose(ours.preprocessing.mean, (0.2, 0.45, 0.2), rtol=1e-6)
    # Photographs are cropped to the aspect ratio of the model, and are not antialiased.
    photo = rng.uniform(0, 255, (90, 61, 3)).astype("float32")
    np.testing.assert_allclose(ours.preprocessing(photo), preprocessor(photo), atol=1e-4)


def test_images_that_no_preprocessing_makes_are_the_callers_to_state():
    converter = keras_hub.layers.ViTImageConverter((24, 40), scale=-1 / 255)
    preprocessor = keras_hub.models.ViTImageClassifierPreprocessor(converter)
    backbone = vit(num_layers=1)
    theirs = keras_hub.models.ViTImageClassifier(backbone, 5, preprocessor=preprocessor)
    with pytest.raises(ValueError, match=r"preprocessing=vit_tf.Preprocessing.*image converter"):
        vit_tf.from_keras_hub(theirs)
    own = vit_tf.Preprocessing((24, 40))
    assert vit_tf.from_keras_hub(theirs, preprocessing=own).preprocessing == own


def test_images_are_those_of_the_family_or_the_caller():
    theirs = vit(num_layers=1)
    assert vit_tf.from_keras_hub(theirs).preprocessing.mean == HALF
    assert vit_tf.from_keras_hub(deit(num_layers=1)).preprocessing.mean == (0.485, 0.456, 0.406)
    own = vit_tf.Preprocessing((24, 40), (0.1, 0.2, 0.3), HALF)
    assert vit_tf.from_keras_hub(theirs, preprocessing=own).preprocessing == own


def test_refuses_what_a_vit_is_not():
    vgg = keras_hub.models.VGGBackbone([1], [4], image_shape=(16, 16, 3))
    with pytest.raises(ValueError, match=r"ViTBackbone, DeiTBackbone.*VGGBackbone"):
        vit_tf.from_keras_hub(vgg)
    with pytest.raises(ValueError, match=r"(?s)keras_hub.*Received: vit_tf"):
        vit_tf.from_keras_hub(vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, 3))
    pooled = keras_hub.models.ViTImageClassifier(vit(num_layers=1), 5, pooling="gap")
    with pytest.raises(ValueError, match=r"pooling to be 'token'.*Received: pooling='gap'"):
        vit_tf.from_keras_hub(pooled)
    with pytest.raises(ValueError, match="square patches"):
        vit_tf.from_keras_hub(vit(num_layers=1, patch_size=(8, 4)))
