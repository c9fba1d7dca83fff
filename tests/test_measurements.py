from functools import partial

import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.figures import SECTIONS, figures
from vit_tf.analysis.measurements import (
    Data,
    Subject,
    block_outputs,
    measurements,
    representations,
    slug,
)


@pytest.fixture(scope="module")
def study():
    """A ViT, a BiT and data, everything tiny; weights are random so that no layer is constant."""
    rng = np.random.default_rng(0)
    vit = vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 3, name="vit")
    bit = vit_tf.BiT((16, 16, 3), (1, 1), 0.5, 3)

    def batches(count):
        labels = rng.integers(0, 3, count)
        images = rng.normal(size=(count, 16, 16, 3)) + labels[:, None, None, None]
        data = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels))
        return data.batch(16)

    data = Data(batches(48), batches(32), batches(48), batches(4), 3)
    subjects = [
        Subject(name, model.taps, partial(vit_tf.submodel, model), model.token_grid)
        for name, model in {"ViT-CLS": vit, "BiT": bit}.items()
    ]
    return subjects, data


def test_taps_chosen_for_comparison():
    taps = vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 3, without_skips=["block01/mlp"]).taps
    assert representations(taps)[:5] == [
        "embedding",
        "block00/attention/norm",
        "block00/attention/branch",
        "block00/attention/sum",
        "block00/mlp/norm",
    ]
    assert representations(taps)[-3:] == ["block01/mlp/sum", "norm", "pooled"]
    assert block_outputs(taps) == ["embedding", "block00/mlp/sum", "block01/mlp/sum"]
    bit = vit_tf.BiT((16, 16, 3), (1, 2), 0.5, 3).taps
    assert block_outputs(bit) == [
        "root",
        "stage1/unit01/sum",
        "stage2/unit01/sum",
        "stage2/unit02/sum",
    ]


def test_slugs_are_file_names():
    assert slug("ViT-CLS without skips in block03") == "vit-cls-without-skips-in-block03"
    assert slug("ViT-B/16") == "vit-b-16"


def test_every_figure_finds_its_results_and_draws_them(study):
    subjects, data = study
    table = measurements(subjects, data)
    rows = figures(subjects)
    needed = {name for row in rows for name in row.results.values()}
    assert needed == set(table)
    assert len({row.name for row in rows}) == len(rows)
    assert {row.section for row in rows} == set(SECTIONS)
    results = {name: compute() for name, compute in table.items()}
    assert results["cka.vit-cls.bit"].attrs["model_y"] == "BiT"
    for row in rows:
        import matplotlib.pyplot as plt

        figure = row.draw({model: results[name] for model, name in row.results.items()})
        assert figure.axes, row.name
        plt.close(figure)


def test_measurements_are_those_of_the_analyses(study):
    subjects, data = study
    table = measurements(subjects, data)
    vit = subjects[0]
    direct = analysis.skip_ratio(vit.features("*/skip", "*/branch"), data.test)
    np.testing.assert_allclose(
        table["skip_ratio.vit-cls"]().norm_ratio, direct.norm_ratio, rtol=1e-5
    )
    probe = table["ridge_probe.vit-cls"]()
    features = vit.features(*block_outputs(vit.taps))
    for layer in probe.layer.values:
        held_out = analysis.ridge_probe(features, data.train, data.validation, 3)
        best = held_out.sel(layer=layer)
        strongest = max(best.l2.values[best.values == best.values.max()])
        assert probe.sel(layer=layer).l2 == strongest
        test = analysis.ridge_probe(features, data.train, data.test, 3, l2=[strongest])
        assert probe.sel(layer=layer).item() == pytest.approx(test.sel(layer=layer).item())
