import numpy as np
import pytest
from tables import features_of, numbers

import vit_tf
from vit_tf import TokenGrid, analysis
from vit_tf.analysis import plots


@pytest.fixture
def models(rng):
    """Two models with CLS on different grids, and one of maps, that have something in common."""
    common = rng.normal(size=(48, 1, 6))
    x, y = (common + rng.normal(size=(48, tokens, 6)) for tokens in (5, 7))
    z = common[:, :, None] + rng.normal(size=(48, 3, 2, 6))
    return {
        "one": ({"early": x**2, "last": x}, TokenGrid(2, 2, 1, 8)),
        "two": ({"last": y}, TokenGrid(2, 3, 1, 8)),
        "maps": ({"last": z}, TokenGrid(3, 2, 0, 8)),
    }


def last_layer_cka(models):
    features = {name: features_of(*tables) for name, tables in models.items()}
    return analysis.last_layer_cka(features, numbers(48, 16))


def test_each_cell_is_the_cka_of_the_parts(models):
    result = last_layer_cka(models)
    parts = {name: tables["last"] for name, (tables, _) in models.items()}
    cls = {name: parts[name][:, 0] for name in ("one", "two")}
    spatial = {"one": parts["one"][:, 1:], "two": parts["two"][:, 1:], "maps": parts["maps"]}
    for part, values in (("cls", cls), ("spatial", spatial)):
        known = analysis.cka(features_of(values), numbers(48, 16))
        names = list(values)
        here = result.sel(part=part, model_x=names, model_y=names)
        np.testing.assert_allclose(here.cka, known.cka, atol=1e-5)
        np.testing.assert_allclose(here.stderr, known.stderr, atol=1e-5)
        np.testing.assert_allclose(np.diag(here.cka), 1, atol=1e-6)
        assert 0.05 < here.cka.sel(model_x="one", model_y="two").item() < 0.95
    for dim in ("model_x", "model_y"):
        assert np.isnan(result.cka.sel(part="cls", **{dim: "maps"})).all()
    assert result.attrs["layers"] == ["last"] * 3 and result.attrs["examples"] == 48


def test_models_of_this_package(rng):
    images = rng.normal(size=(8, 16, 16, 3)).astype("float32")
    vits = {
        pooling: vit_tf.ViT((16, 16, 3), 8, 1, 2, 8, 16, 5, pooling=pooling)
        for pooling in ("cls", "gap")
    }
    models = {name: vit_tf.submodel(vit, "norm") for name, vit in vits.items()}
    result = analysis.last_layer_cka(models, images)
    assert np.isfinite(result.cka.sel(part="spatial")).all()
    assert np.isfinite(result.cka.sel(part="cls")).sum() == 1
    with pytest.raises(ValueError, match=r"Expected the last tap to have the 5 tokens.*'pooled'"):
        analysis.last_layer_cka({"pooled": vit_tf.submodel(vits["cls"], "pooled")}, images)


def test_errors(models):
    constant = models | {"two": ({"last": np.ones((48, 7, 6))}, models["two"][1])}
    for wrong, words in (
        ({}, "at least one model"),
        ({"one": (models["one"][0], None)}, "Expected a grid"),
        (constant, "constant layer: cls of two, spatial of two"),
    ):
        with pytest.raises(ValueError, match=words):
            last_layer_cka(wrong)


def test_the_plot_writes_the_numbers(models):
    result = last_layer_cka(models)
    axes = plots.plot_last_layer_cka(result).panels
    assert [ax.get_title() for ax in axes] == ["CLS token", "spatial tokens"]
    for ax, part in zip(axes, ("cls", "spatial"), strict=True):
        drawn = np.ma.filled(ax.images[0].get_array(), np.nan)
        np.testing.assert_array_equal(drawn, result.cka.sel(part=part).values.T)
        assert ax.images[0].get_clim() == (0, 1)
    assert [len(ax.texts) for ax in axes] == [4, 9]
    assert (
        len(plots.plot_last_layer_cka(result.sel(model_x=["maps"], model_y=["maps"])).panels) == 1
    )
    one_cls = result.sel(model_x=["one", "maps"], model_y=["one", "maps"])
    assert [ax.get_title() for ax in plots.plot_last_layer_cka(one_cls).panels] == [
        "spatial tokens"
    ]
