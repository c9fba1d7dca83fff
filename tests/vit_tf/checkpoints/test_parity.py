"""Google's checkpoints, as loaded, against published implementations of their models."""

import checkpoint_layouts as layouts
import numpy as np
import oracles
import pytest
from archive_files import helper_or_skip
from checkpoint_layouts import LAYERS, PATCH, SIZE

import vit_tf

MOST = 1e-4


@pytest.fixture
def images():
    rng = np.random.default_rng(1)
    return rng.uniform(-1, 1, size=(2, SIZE, SIZE, 3)).astype(np.float32)


@pytest.fixture
def references():
    """The functions of those that need torch and transformers."""
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    if not transformers.__version__.startswith("4."):
        pytest.skip(f"transformers {transformers.__version__} has other names than release 4")
    return helper_or_skip("parity_google")


@pytest.fixture
def compare(tmp_path, images, record_property):
    """Loads tensors from a file in their format and compares every tap of a reference."""

    def compare(tensors, reference, stored=None, rectified="none", **options):
        stored = tensors if stored is None else stored
        path = tmp_path / "model.npz"
        np.savez(path, **stored)
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
