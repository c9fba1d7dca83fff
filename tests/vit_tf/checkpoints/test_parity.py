"""Public checkpoints, as loaded, against the published implementations of their models."""

from types import SimpleNamespace

import checkpoint_layouts as layouts
import numpy as np
import oracles
import pytest
from archive_files import write_safetensors
from checkpoint_layouts import HEADS, HIDDEN, LAYERS, PATCH, SIZE, WIDTH

import vit_tf

MOST = 1e-4


@pytest.fixture
def images():
    rng = np.random.default_rng(1)
    return rng.uniform(-1, 1, size=(2, SIZE, SIZE, 3)).astype(np.float32)


@pytest.fixture
def references():
    """The functions of those that need torch and transformers."""
    pytest.importorskip("torch", reason="torch is not installed")
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    if not transformers.__version__.startswith("4."):
        pytest.skip(f"transformers {transformers.__version__} has other names than release 4")
    import parity_google
    import parity_torch

    return SimpleNamespace(**vars(parity_google) | vars(parity_torch))


@pytest.fixture
def compare(tmp_path, images, record_property):
    """Loads tensors from a file in their format and compares every tap of a reference."""

    def compare(tensors, reference, stored=None, rectified="none", **options):
        stored = tensors if stored is None else stored
        if any("/" in name for name in stored):
            path = tmp_path / "model.npz"
            np.savez(path, **stored)
        else:
            path = tmp_path / "model.safetensors"
            write_safetensors(path, stored)
        model = vit_tf.load_pretrained(path, **options)
        taps = {tap: np.asarray(x) for tap, x in model.intermediates(images).items()}
        expected = reference(tensors, images)
        assert sum("sum" in tap for tap in expected) >= LAYERS
        taps |= {tap: np.maximum(x, 0) for tap, x in taps.items() if tap.startswith(rectified)}
        errors = {tap: _error(taps[tap], x) for tap, x in expected.items()}
        record_property("max relative error", max(errors.values()))
        assert max(errors.values()) < MOST, errors
        return model

    return compare


def _error(ours, theirs):
    """The largest difference, relative to the largest number."""
    assert ours.shape == theirs.shape
    return float(np.max(np.abs(ours - theirs)) / np.max(np.abs(theirs)))


@pytest.mark.slow
@pytest.mark.parametrize("names", ["original", "big_vision", "stacked"])
def test_google_vit(names, compare, references):
    tensors = layouts.google_vit(names)
    prefix = {"original": "", "big_vision": "params/", "stacked": "opt/target/"}[names]
    stored = {prefix + name: array for name, array in tensors.items()}
    if prefix == "opt/target/":
        stored |= {"opt/state/step": np.array(3)}
    model = compare(tensors, references.google_vit, stored)
    assert model.get_config()["activation"] == "gelu_tanh"


def test_google_vit_with_a_representation_layer(compare, references):
    compare(layouts.google_vit(pre_logits=7), references.google_vit_with_representation)


@pytest.mark.parametrize("units", [(2, 1), ()])
def test_google_hybrid(units, compare, references):
    tensors = layouts.google_vit(units=units)
    model = compare(tensors, references.google_hybrid, rectified="stage")
    assert model.get_config()["stem_units"] == units


def test_google_bit(compare, references):
    compare(layouts.google_bit(), references.google_bit, image_shape=(SIZE, SIZE, 3))


def test_timm_vit(compare, references):
    compare(layouts.timm_vit(), references.timm_vit, num_heads=HEADS)


def test_dino(compare, references):
    tensors = layouts.timm_vit(head=None)
    stored = {f"backbone.{name}": array for name, array in tensors.items()}
    stored["head.last_layer.weight_g"] = np.ones((9, 1), np.float32)
    compare(tensors, references.headless, stored, num_heads=HEADS)


def test_mae(compare, references):
    tensors = layouts.mae()
    model = compare(tensors, references.mae, num_heads=HEADS)
    np.testing.assert_array_equal(model.embedding.positions.numpy(), tensors["pos_embed"])


def test_moco(compare, references):
    tensors, stored = layouts.timm_vit(head=None), layouts.moco()
    compare(tensors, references.headless, stored, num_heads=HEADS)


def test_clip(compare, references):
    compare(layouts.clip(), references.clip, num_heads=HEADS)


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("pooling", ["gap", "cls"])
def test_beit(shared, pooling, compare, references):
    compare(layouts.beit(pooling, shared), references.beit)


def _keras_hub_vit(tensors, images, activation, google):
    """KerasHub's `ViTBackbone` filled from timm's or Google's tensors, class token or not."""
    from keras_hub.models import ViTBackbone

    token = None if google else tensors["cls_token"]
    backbone = ViTBackbone(
        *((SIZE, SIZE, 3), (PATCH, PATCH), LAYERS, HEADS, WIDTH, HIDDEN),
        use_class_token=token is not None,
    )
    embed = backbone.get_layer("vit_patching_and_embedding")
    encoder = backbone.get_layer("vit_encoder")
    if google:
        embed.patch_embedding.kernel.assign(tensors["embedding/kernel"])
        embed.patch_embedding.bias.assign(tensors["embedding/bias"])
        embed.position_embedding.embeddings.assign(tensors["pos_embedding"][0])
    else:
        kernel = tensors["patch_embed.proj.weight"].transpose(2, 3, 1, 0)
        embed.patch_embedding.kernel.assign(kernel)
        embed.patch_embedding.bias.assign(tensors["patch_embed.proj.bias"])
        embed.class_token.assign(token)
        embed.position_embedding.embeddings.assign(tensors["pos_embed"][0])
    for i, layer in enumerate(encoder.encoder_layers):
        fill = _fill_from_google if google else _fill_from_timm
        fill(layer, tensors, i)
        layer.mlp.dense_1.activation = activation
    ends = ("Transformer/encoder_norm/scale", "Transformer/encoder_norm/bias")
    ends = ends if google else ("norm.weight", "norm.bias")
    encoder.layer_norm.set_weights([tensors[end] for end in ends])
    taps = {"embedding": embed(images)}
    x = taps["embedding"]
    for i, layer in enumerate(encoder.encoder_layers):
        taps[f"block{i:02d}/mlp/sum"] = x = layer(x)
    taps["norm"] = encoder.layer_norm(x)
    np.testing.assert_array_equal(taps["norm"], backbone(images))
    return {tap: np.asarray(array) for tap, array in taps.items()}


def _fill_from_google(layer, tensors, i):
    b, attention = f"Transformer/encoderblock_{i}", "MultiHeadDotProductAttention_0"

    def pair(name, ends=("kernel", "bias")):
        return [tensors[f"{b}/{name}/{end}"] for end in ends]

    layer.layer_norm_1.set_weights(pair("LayerNorm_0", ("scale", "bias")))
    layer.layer_norm_2.set_weights(pair("LayerNorm_1", ("scale", "bias")))
    names = ("query", "key", "value", "out")
    layer.mha.set_weights([x for name in names for x in pair(f"{attention}/{name}")])
    layer.mlp.dense_1.set_weights(pair("MlpBlock_0/Dense_0"))
    layer.mlp.dense_2.set_weights(pair("MlpBlock_0/Dense_1"))


def _fill_from_timm(layer, tensors, i):
    def pair(name):
        return tensors[f"blocks.{i}.{name}.weight"].T, tensors[f"blocks.{i}.{name}.bias"]

    layer.layer_norm_1.set_weights(pair("norm1"))
    layer.layer_norm_2.set_weights(pair("norm2"))
    kernel, bias = pair("attn.qkv")
    split = (HEADS, WIDTH // HEADS)
    weights = []
    for k, b in zip(np.split(kernel, 3, axis=1), np.split(bias, 3), strict=True):
        weights += [k.reshape(WIDTH, *split), b.reshape(split)]
    kernel, bias = pair("attn.proj")
    layer.mha.set_weights([*weights, kernel.reshape(*split, WIDTH), bias])
    layer.mlp.dense_1.set_weights(pair("mlp.fc1"))
    layer.mlp.dense_2.set_weights(pair("mlp.fc2"))


@pytest.mark.parametrize("google", [False, True])
def test_keras_hub(google, compare):
    """timm's names and a class token; big_vision's, mean pooling and flax's GELU."""
    pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    from vit_tf.models.transformer import ACTIVATIONS

    gelu = ACTIVATIONS["gelu_tanh" if google else "gelu"]
    tensors = layouts.google_vit("big_vision", cls=False) if google else layouts.timm_vit()

    def reference(tensors, images):
        taps = _keras_hub_vit(tensors, images, gelu, google)
        end = taps["norm"].mean(1) if google else taps["norm"][:, 0]
        kernel = tensors["head/kernel"] if google else tensors["head.weight"].T
        return taps | {"logits": end @ kernel + tensors["head/bias" if google else "head.bias"]}

    model = compare(tensors, reference, num_heads=HEADS)
    assert model.pooling == ("gap" if google else "cls")


def test_google_mixer_against_an_oracle(compare):
    """Tolstikhin et al. 2021, equation 1, in NumPy float64 from the file's own names."""

    def norm(x, name, tensors):
        weights = {"norm/gamma": tensors[f"{name}/scale"], "norm/beta": tensors[f"{name}/bias"]}
        return oracles.norm(x, weights, "norm", 1e-6)

    def oracle(tensors, images):
        t = {name: array.astype(float) for name, array in tensors.items()}
        patches = {f"embedding/patches/{end}": t[f"stem/{end}"] for end in ("kernel", "bias")}
        taps = {"embedding": oracles.patches(images, patches, PATCH)}
        x = taps["embedding"]

        def mlp(x, name):
            hidden = oracles.GELUS["gelu_tanh"](oracles.dense(x, t, f"{name}/Dense_0"))
            return oracles.dense(hidden, t, f"{name}/Dense_1")

        for i in range(LAYERS):
            b = f"MixerBlock_{i}"
            mixed = mlp(norm(x, f"{b}/LayerNorm_0", t).swapaxes(1, 2), f"{b}/token_mixing")
            taps[f"block{i:02d}/token_mixing/sum"] = x = x + mixed.swapaxes(1, 2)
            x = x + mlp(norm(x, f"{b}/LayerNorm_1", t), f"{b}/channel_mixing")
            taps[f"block{i:02d}/channel_mixing/sum"] = x
        pooled = norm(x, "pre_head_layer_norm", t).mean(1)
        return taps | {"logits": oracles.dense(pooled, t, "head")}

    compare(layouts.google_mixer(), oracle)
