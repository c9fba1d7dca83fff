"""Public measurements: annotated signatures, "See also", and examples that run on tiny models."""

import doctest
import inspect
import os
import typing

import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from paths import ROOT
from public_measurements import public_measurements
from saved_results import assert_saves
from tensorflow.python.framework.func_graph import FuncGraph

import vit_tf
from vit_tf import analysis
from vit_tf.analysis import plots


@pytest.fixture(scope="module")
def names_in_examples():
    """A tiny ViT and BiT with a random head, 24 images and their labels."""
    rng = np.random.default_rng(0)
    vit = vit_tf.ViT((32, 32, 3), 8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16)
    bit = vit_tf.BiT((32, 32, 3), units=(1,), width_factor=0.5, num_classes=3, stem="small")
    vit.name, bit.name = "vit", "bit"
    for model in (vit, bit):
        kernel = model.head.kernel
        kernel.assign(rng.normal(size=kernel.shape))
    images = rng.uniform(-1, 1, (24, 32, 32, 3)).astype(np.float32)
    names = {"vit": vit, "bit": bit, "images": images, "labels": np.arange(24) % 3}
    return names | {"analysis": analysis, "vit_tf": vit_tf, "np": np, "tf": tf, "os": os}


# Examples of each kind of measurement, and those that trace no model.
QUICK = {"cka", "attention_distance", "attention_rows", "grad_cam"}
QUICK |= {"patch_filters", "position_similarity", "projection"}
QUICK |= {"average_precision", "boundary_accuracy", "correct_keypoints", "dense_size", "propagate"}
QUICK |= {"propagate_masks", "region_similarity", "write_masks"}
assert set(public_measurements()) >= QUICK


def marked(name):
    """Most examples are slow: each traces a model, and other tests compare with truth."""
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)


# They make a new Keras model, or functions.
TRACED_ANEW = {"linear_probe", "grounded_similarity"}


@pytest.fixture
def graphs(monkeypatch):
    """Names of the graphs that are made, as they are made."""
    names, init = [], FuncGraph.__init__

    def note(self, name, *args, **kwargs):
        names.append(name)
        init(self, name, *args, **kwargs)

    monkeypatch.setattr(FuncGraph, "__init__", note)
    return names


@pytest.mark.parametrize("name", public_measurements())
def test_measurement_is_annotated_and_refers_to_its_plot_and_page(name):
    function = getattr(analysis, name)
    signature = inspect.signature(function)
    for parameter in signature.parameters.values():
        assert parameter.annotation is not parameter.empty, parameter
    assert signature.return_annotation is not signature.empty
    assert typing.get_type_hints(inspect.unwrap(function))

    text = inspect.getdoc(function)
    positions = [text.find(f"\n{title}:\n") for title in ("Returns", "Examples", "See also")]
    assert min(positions) > 0 and positions == sorted(positions), positions
    see_also = text[positions[-1] :]
    if hasattr(plots, f"plot_{name}"):
        assert f"`plots.plot_{name}`" in see_also
    (page,) = [word.strip(".;,") for word in see_also.split() if ".md" in word]
    assert name in (ROOT / "docs" / page).read_text("utf-8")


@pytest.mark.parametrize("name", [marked(name) for name in public_measurements()])
def test_example_runs_and_is_traced_once(name, names_in_examples, tmp_path, monkeypatch, graphs):
    text = inspect.getdoc(getattr(analysis, name))
    monkeypatch.chdir(tmp_path)
    for result in run_example(name, text, names_in_examples):
        assert_saves(result, tmp_path / "result.nc")
    if name not in TRACED_ANEW:
        graphs.clear()
        run_example(name, text, names_in_examples)
        assert [graph for graph in graphs if "step" in graph] == []


def run_example(name, text, names):
    """Runs the example of a docstring, whose output has to be as written; its labelled results."""
    example = doctest.DocTestParser().get_doctest(text, dict(names), name, None, None)
    assert 2 <= len(example.examples) <= 6
    report = []
    doctest.DocTestRunner(verbose=False).run(example, out=report.append, clear_globs=False)
    assert not report, "".join(report)
    made = [value for variable, value in example.globs.items() if variable not in names]
    return [value for value in made if isinstance(value, xr.Dataset | xr.DataArray)]
