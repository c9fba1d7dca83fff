"""The images of a study, and how many of them share a batch."""

from dataclasses import replace

import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from image_folders import write
from study_models import study_model_of
from study_parts import EVERYTHING

import vit_tf
from vit_tf import Preprocessing, TokenGrid, analysis
from vit_tf.analysis.engine.stream import as_dataset
from vit_tf.analysis.figures.data import (
    Data,
    batch_test,
    few_images,
    field_sizes,
    make_data,
)
from vit_tf.analysis.figures.figure import all_figures, plan_pictures
from vit_tf.analysis.figures.measure import with_inputs
from vit_tf.analysis.figures.models import baselines_of
from vit_tf.analysis.report.assemble import make_report
from vit_tf.analysis.report.scorecard import untrained_measurements
from vit_tf.data.any_images import as_images
from vit_tf.features.submodels import describe_taps


@pytest.mark.parametrize(
    ("size", "at_once", "count"),
    [(32, 8, 64), (96, 8, 64), (224, 5, 20), (512, 4, 16), (None, 8, 64)],
)
def test_gradients_are_taken_of_fewer_large_images_at_once(size, at_once, count):
    spec = tf.TensorSpec((None, size, size, 3)), tf.TensorSpec((None,), tf.int64)
    data = tf.data.Dataset.from_generator(lambda: iter(()), output_signature=spec)
    assert field_sizes(data) == (at_once, count)


def test_fields_are_of_whole_batches_where_there_are_enough_images():
    images = np.zeros((70, 224, 224, 1), np.float32)
    assert [len(batch) for batch in few_images(as_dataset(images))] == [5, 5, 5, 5]
    assert [len(batch) for batch in few_images(as_dataset(images[:7]))] == [5, 2]
    small = few_images(as_dataset(images[:, :32, :32]))
    assert [len(batch) for batch in small] == [8] * 8


def folder(root, *names):
    """A folder of four grey images in each of some folders, `""` for the folder itself."""
    for name in names:
        for number in range(4):
            write(root / name / f"{number}.png", np.full((8, 8, 3), 10 * number))
    return as_images(root, Preprocessing((8, 8)))


@pytest.mark.slow
def test_labels_are_those_of_several_classes(tmp_path):
    images = np.zeros((8, 8, 8, 3), np.float32)
    labels = np.arange(8) % 2
    cases = {
        "class folders": (folder(tmp_path / "classes", "a", "b"), True),
        "nested class folders": (folder(tmp_path / "nested", "a/x", "b/y"), True),
        "without class folders": (folder(tmp_path / "flat", ""), False),
        "one class": (folder(tmp_path / "single", "a"), False),
        "folders below one": (folder(tmp_path / "below", "a/x", "a/y"), False),
        "images alone": (images, False),
        "labels": ((images, labels), True),
        "one label": ((images, np.zeros(8, int)), False),
        "batches": (tf.data.Dataset.from_tensor_slices((images, labels)).batch(4), True),
        "batches of images": (tf.data.Dataset.from_tensor_slices(images).batch(4), False),
    }
    for name, (data, expected) in cases.items():
        assert make_data(data, None, None, {}).labelled is expected, name


@pytest.mark.parametrize("labels", [np.eye(2)[np.arange(8) % 2], np.full(8, -1), np.full(8, 0.5)])
def test_what_are_no_labels_is_refused_before_anything_is_measured(labels):
    images = np.zeros((8, 8, 8, 3), np.float32)
    with pytest.raises(ValueError, match="integer labels"):
        make_data((images, labels), None, None, {})
    with pytest.raises(ValueError, match="integer labels"):
        make_data(images, (images, labels), None, {})


@pytest.mark.slow
def test_training_images_of_one_batch_are_halved(tmp_path):
    data = make_data(np.zeros((8, 8, 8, 3), np.float32), folder(tmp_path, "a", "b"), None, {})
    fitted, held_out = ([y for _, y in part] for part in (data.train, data.validation))
    assert data.num_classes == 2
    assert sum(map(len, fitted)) == sum(map(len, held_out)) == 4


@pytest.mark.slow
@pytest.mark.parametrize("count", [133, 1000])
def test_a_figure_and_its_call_have_the_same_batches(tmp_path, count):
    """Arrays sorted by brightness: a figure shows the numbers that its printed code gives."""
    rng = np.random.default_rng(0)
    levels = np.linspace(-0.8, 0.8, count)[:, None, None, None]
    images = (levels + rng.uniform(-0.2, 0.2, (count, 8, 8, 3))).astype(np.float32)
    model = vit_tf.ViT((8, 8, 3), 4, 2, 2, 8, 8, 3, name="vit")
    make_report(model, images, folder=tmp_path, figures="1", untrained=0)
    figure = xr.load_dataset(tmp_path / "results" / "cka.vit.nc")
    assert "images = batch_test(images)" in (tmp_path / "report.html").read_text()
    layers = figure.layer_x.values.tolist()
    printed = analysis.cka(model, batch_test(images), layers=layers)
    np.testing.assert_allclose(printed.cka, figure.cka, atol=1e-6)
    np.testing.assert_allclose(printed.stderr, figure.stderr, atol=1e-6)
    if count > 7 * 128:  # a call alone has batches as large
        call = analysis.cka(model, images, layers=layers)
        np.testing.assert_allclose(call.cka, figure.cka, atol=1e-6)


def test_nothing_that_needs_labels_is_planned_without_them():
    taps = {"embedding": (17, 4)}
    for block in ("block00", "block01"):
        taps |= {f"{block}/attention/weights": (2, 17, 17), f"{block}/attention/heads": (17, 2, 2)}
        for site in ("attention", "mlp"):
            taps |= {
                f"{block}/{site}/{what}": (17, 4) for what in ("norm", "skip", "branch", "sum")
            }
    taps |= {"norm": (17, 4), "pooled": (4,), "logits": (10,)}
    grid = TokenGrid(4, 4, 1, 2)
    vit = study_model_of(
        "ViT", "model", "ViT", tuple(taps), grid, None, None, None, (0.5, 8), shapes=taps
    )
    labelled, _ = plan_pictures(all_figures(), [vit], EVERYTHING)
    without, left_out = plan_pictures(all_figures(), [vit], replace(EVERYTHING, labelled=False))
    needed = {p.name for p in labelled} - {p.name for p in without}
    assert {name.removesuffix("-vit") for name in needed} == {
        *("clusters", "clusters-spatial", "knn-top-1", "knn-top-5", "linear-probe"),
        *("ridge-probe", "ridge-probe-map", "ridge-probe-tokens", "ridge-probe-variants"),
        *("head-effects", "logit-lens", "without-blocks", "without-tokens", "best-layer-knn"),
        "outlier-roles",
    }
    reasons = {reason for _, sentences in left_out for reason in sentences}
    assert "It needs labels of two classes or more." in reasons


def test_a_result_of_an_untrained_copy_has_one_definition():
    """Figures select copies as baselines, and claims in the role of the trained model."""
    model = vit_tf.ViT((8, 8, 3), 2, 2, 2, 8, 8, 10)
    taps = describe_taps(model).shapes
    vit = study_model_of(
        "ViT", "vit", "ViT", tuple(taps), model.token_grid, None, None, None, (0.5, 8), shapes=taps
    )
    models = [vit, *baselines_of(vit, [lambda: None] * 2)]
    pictures, _ = plan_pictures(all_figures(), models, EVERYTHING)
    of_figures = [m for p in pictures for m in p.measurements.values()]
    claims = [claim for figure in all_figures() for claim in figure.claims]
    of_claims = untrained_measurements(all_figures(), claims, models, EVERYTHING)
    assert any(m.name.startswith("clustering_first") for m in of_claims)
    with_inputs([*of_figures, *of_claims])  # which refuses two results of a name


@pytest.mark.parametrize(
    ("images", "size", "batches"),
    [
        (200, 25, None),
        (224, 28, None),
        (304, 38, 5),
        (1008, 56, 9),
        (512, 128, None),
        (1024, 64, 8),
    ],
)
def test_copies_are_shown_half_of_the_images_or_enough_for_an_interval(images, size, batches):
    data = tf.data.Dataset.range(images).map(lambda i: (i, i)).batch(size)
    assert Data(data, data).batches_of_copies("test") == batches
    assert Data(data, data, train=data).batches_of_copies("train") is None
    unknown = data.filter(lambda *_: True)
    assert Data(unknown, unknown).batches_of_copies("test") is None
