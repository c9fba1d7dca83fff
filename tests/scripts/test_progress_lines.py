"""Lines of the log while a step takes long, and one for all that is not measured."""

import logging
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from study_models import study_model_of

import vit_tf
from vit_tf import TokenGrid
from vit_tf.analysis import make_report
from vit_tf.analysis.engine import stream
from vit_tf.analysis.figures.data import Data
from vit_tf.analysis.figures.measure import measure_all, task
from vit_tf.analysis.statistics.claims import Tested


@pytest.fixture
def lines(caplog):
    caplog.set_level(logging.INFO, logger="vit_tf")
    return lambda: [record.getMessage() for record in caplog.records]


def test_a_pass_over_images_reports_its_progress(lines, monkeypatch):
    monkeypatch.setattr(stream, "SECONDS_BETWEEN_LINES", 0)
    images = tf.data.Dataset.from_tensor_slices(np.zeros((6, 2), "float32")).batch(2)
    stream.collect(lambda x: {"rows": {"sum": tf.reduce_sum(x, 1)}}, images, description="sums")
    # The time of the first batch, which is traced, says nothing about the others.
    expected = ["sums: 0 of 3 batches", "sums: 1 of 3 batches", "sums: 2 of 3 batches, about "]
    assert len(lines()) == 3 and all(map(str.startswith, lines(), expected))
    assert lines()[2].endswith(" left") and "left" not in lines()[1]


def test_the_time_left_is_that_of_the_batches_left(lines, monkeypatch):
    monkeypatch.setattr(stream, "SECONDS_BETWEEN_LINES", 0)
    now = iter([0, 0, 50, 53, 56])  # the first batch takes 50 s, the others 3 s each
    monkeypatch.setattr(stream, "time", SimpleNamespace(monotonic=lambda: next(now)))
    images = tf.data.Dataset.from_tensor_slices(np.zeros((12, 2), "float32")).batch(2)
    groups = stream._groups(images.map(lambda x: (x,)), 1, 1, "sums")
    for _ in range(4):
        next(groups)
    assert lines()[-1] == "sums: 3 of 6 batches, about 00:09 left"


@pytest.mark.slow
def test_the_log_of_a_report_names_models_and_sums_up_the_rest(lines, tmp_path):
    rng = np.random.default_rng(0)
    models = {f"ViT {n}": vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 8, 3) for n in "ab"}
    images = rng.uniform(-1, 1, (16, 16, 16, 3)).astype("float32")
    report = make_report(models, images, figures=["1", "7", "8", "9", "13", "W.2"], folder=tmp_path)
    measured = [row for row in report.claims if isinstance(row, Tested)]
    assert measured and len(report.claims) > len(measured) + 1
    message = [line for line in lines() if any(row.claim.statement in line for row in measured)]
    assert len(message) == len(measured)
    assert all("ViT a" in line or "ViT b" in line for line in message)
    (rest,) = [line for line in lines() if "not tested" in line]
    missing = len(report.claims) - len(measured)
    assert rest.endswith(f"{missing} are not tested.")
    assert sum("not shown" in line for line in lines()) == 1


def test_the_log_of_a_report_says_first_how_many_images_go_through_which_models(lines, tmp_path):
    images = tf.data.Dataset.from_tensor_slices(np.zeros((24, 8, 8, 3), np.float32)).batch(8)
    vit = study_model_of("ViT", "vit", "key", ("embedding",), TokenGrid(2, 2, 1, 4), None)
    copy = replace(vit, name="ViT (untrained)", role="untrained", original_key="key")

    def make():
        return xr.DataArray([1.0], dims="layer")

    wanted = [task("measured", model, make, reads="test") for model in (vit, copy)]
    measure_all([*wanted, task("made", vit, make)], Data(images, images), tmp_path)
    assert lines()[1] == (
        "3 results in 2 passes over up to 24 images, of 2 models (1 of them untrained copies)"
    )
