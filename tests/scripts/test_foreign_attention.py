"""Attention of models of other origin in a report: distances, maps, and why there are none."""

import re

import keras
import numpy as np
import pytest
import xarray as xr
from attention_heads import pixel_distances

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis.figures.models import LoadedModel, NotApplicable, study_model
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.scripts import analyze

SIDE, PATCH = 16, 4


def own_model(causal=False, queries=None, heads=(2, 2)):
    """A model of Keras' own layers, whose 4 x 4 tokens have no token before them."""
    layers = keras.layers
    keras.utils.set_random_seed(3)
    x = images = keras.Input((SIDE, SIDE, 3))
    x = layers.Conv2D(6, PATCH, PATCH, name="patches")(x)
    x = tokens = layers.Reshape((-1, 6), name="tokens")(x)
    for index, count in enumerate(heads):
        attend = layers.MultiHeadAttention(count, 5, name=f"attend{index}")
        both = (x[:, :queries], tokens) if queries else (x, x)
        x = layers.LayerNormalization(name=f"norm{index}")(attend(*both, use_causal_mask=causal))
    x = layers.GlobalAveragePooling1D(name="mean")(x)
    model = keras.Model(images, layers.Dense(3, name="classes")(x))
    rng = np.random.default_rng(5)
    model.set_weights([2 * rng.normal(size=w.shape).astype("float32") for w in model.get_weights()])
    return model


def under_study(model, patch_size=PATCH, low=-1):
    expects = Preprocessing.from_range((SIDE, SIDE), low, 1)
    return study_model(LoadedModel("own", model, expects, patch_size=patch_size), pictures(3))[0]


def pictures(count):
    shape = (count, SIDE, SIDE, 3)
    return np.random.default_rng(1).uniform(-1, 1, shape).astype("float32")


@pytest.mark.parametrize("low", [pytest.param(-1, marks=pytest.mark.slow), 0])
def test_distances_are_those_of_the_scores_of_each_layer(low):
    model, images = own_model(), pictures(4)
    studied = under_study(model, low=low)
    names = studied.require_attention()
    assert names == ["attend0/weights", "attend1/weights"]
    outputs = analysis.attention_distance(studied.select(*names), images, studied.grid)
    values = images if low else (images + 1) / 2
    inputs = vit_tf.submodel(model, "tokens", "norm0")(values)
    for layer, before, row in zip(("attend0", "attend1"), inputs.values(), outputs, strict=True):
        _, scores = model.get_layer(layer)(before, before, return_attention_scores=True)
        distances = (np.float64(scores) * pixel_distances(TokenGrid(4, 4, 0, PATCH))).sum(axis=-1)
        np.testing.assert_allclose(row, distances.mean(axis=(0, 2)), rtol=1e-5)
    assert np.ptp(outputs.values) > 0.1


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "patch_size", "reason"),
    [
        ({"causal": True}, PATCH, "attention weights.*output of attend0, attend1 .a mask"),
        ({"queries": 15}, None, "attention over the 16 tokens.*attend0.*15 queries and 16"),
        ({"queries": 15}, 2 * PATCH, "attention over the 15 tokens.*attend0.*15 queries and 16"),
        ({"heads": (2, 3)}, PATCH, "attention with the same number of heads"),
    ],
)
def test_a_reason_is_stated_where_there_is_none(options, patch_size, reason):
    with pytest.raises(NotApplicable, match=f"own has no {reason}"):
        under_study(own_model(**options), patch_size).require_attention()


@pytest.mark.slow
def test_a_keras_hub_vit_has_the_attention_of_ours_in_a_report(tmp_path):
    """With the same weights: distances, maps and the kinds of heads; a masked model has none."""
    keras_hub = pytest.importorskip("keras_hub", reason="keras_hub is not installed")
    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 12, "patch_size": PATCH}
    hub = keras_hub.models.ViTBackbone(image_shape=(SIDE, SIDE, 3), **sizes)
    rng = np.random.default_rng(0)
    hub.set_weights([rng.normal(size=w.shape).astype("float32") for w in hub.get_weights()])
    models = {"hub": hub, "ours": vit_tf.from_keras_hub(hub), "masked": own_model(causal=True)}
    for name, model in models.items():
        model.save(tmp_path / f"{name}.keras")
    files = [str(tmp_path / f"{name}.keras") for name in models]
    flags = ["--patch-size", str(PATCH), "--take-test", "12", "--strategy", "none"]
    flags += ["--figures", "3,W.2,W.3,W.4", "--out", str(tmp_path / "out")]
    assert analyze.main(files + flags) == 0
    page = (tmp_path / "out" / "report.html").read_text("utf-8")
    figures = re.findall(r'id="figure-([\w-]+)"', page)
    assert "attention-distance" in figures
    assert [name.replace("-hub", "") for name in figures if name.endswith("-hub")] == [
        name.replace("-ours", "") for name in figures if name.endswith("-ours")
    ]
    assert re.search("masked has no attention weights.*attend0, attend1 .a mask", page)
    folder, compared = tmp_path / "out" / "results", []
    for path in sorted(folder.glob("*.hub.nc")):
        kind = path.name.removesuffix(".hub.nc")
        outputs, expected = (xr.load_dataset(folder / f"{kind}.{n}.nc") for n in ("hub", "ours"))
        numbers = {name: x for name, x in outputs.items() if x.dtype.kind in "fi"}
        for name, variable in numbers.items():
            np.testing.assert_allclose(variable, expected[name], rtol=1e-4, atol=1e-5)
        compared.append(kind)
    assert {"attention_distance", "mean_attention", "head_classes"} <= set(compared), compared
