"""Every public measurement of models of mixed and of double precision, next to float32."""

import contextlib
import doctest
import functools
import inspect
import io
import os

import keras
import matplotlib.pyplot as plt
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from public_measurements import public_measurements

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.engine.stream import eager_steps

# Largest difference from float32 as a share of its norm, about ten roundings of an activation.
TOLERANCES = {"mixed_bfloat16": 0.04, "mixed_float16": 5e-3, "float64": 2e-5}
# Results that jump, for precisions of 16 bits: counts and ranks of few examples or layers, the
# gradient of a ReLU near zero, correlations of as many directions as there are examples, and
# accuracies of few examples.
COARSE = {"knn_accuracy", "ridge_probe", "select_l2", "clustering", "object_clustering"}
COARSE |= {"similarities", "position_attribution", "cca", "pwcca", "predict", "concept_erasure"}
COARSE |= {"stitching", "grounded_similarity"}
COARSE_TOLERANCE = 0.3
# Sums of signed gradients, and logarithms of amplitudes far below the largest, round more.
ILL_CONDITIONED = {"integrated_gradients", "frequency_amplitude"}
QUICK = {"cka"}
# In mixed precision, these alone are computed in graphs, as all are in float64. Without graphs, a
# match of the few keypoints jumps.
IN_GRAPHS = QUICK | {"keypoint_correspondence"}
assert set(public_measurements()) >= IN_GRAPHS


def make_models(policy):
    """A tiny ViT and BiT by name."""
    vit = vit_tf.ViT(
        (32, 32, 3), 8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=16, dtype=policy
    )
    bit = vit_tf.BiT(
        (32, 32, 3), units=(1,), width_factor=0.5, num_classes=3, stem="small", dtype=policy
    )
    vit.name, bit.name = "vit", "bit"
    return {"vit": vit, "bit": bit}


@pytest.fixture(scope="module")
def names_of_policy():
    """Function from a policy to the names in the examples, of models with the same weights."""
    keras.utils.set_random_seed(0)
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (24, 32, 32, 3)).astype(np.float32)
    full = make_models("float32")
    for model in full.values():
        model.head.kernel.assign(rng.normal(size=model.head.kernel.shape))

    @functools.cache
    def get(policy):
        models = make_models(policy)
        for name, model in models.items():
            model.set_weights(full[name].get_weights())
        names = models | {"images": images, "labels": np.arange(24) % 3, "np": np}
        return names | {"analysis": analysis, "vit_tf": vit_tf, "tf": tf, "os": os}

    return get


@pytest.fixture(scope="module")
def in_float32(names_of_policy):
    """Function from a measurement to its results in float32, each computed once and eagerly."""
    results = {}

    def get(name):
        if name not in results:
            with eager_steps():
                results[name] = results_of_example(name, names_of_policy("float32"))
        return results[name]

    return get


def results_of_example(name, names):
    """What the example of a measurement computes: dict from variable to array of numbers."""
    text, namespace = inspect.getdoc(getattr(analysis, name)), dict(names)
    for example in doctest.DocTestParser().get_examples(text, name):
        with contextlib.redirect_stdout(io.StringIO()):
            exec(compile(example.source, name, "single"), namespace)
    plt.close("all")
    arrays = {}
    for variable in sorted(namespace.keys() - names.keys()):
        value = namespace[variable]
        if isinstance(value, xr.Dataset):
            arrays |= {f"{variable}.{part}": x.values for part, x in value.data_vars.items()}
        elif isinstance(value, xr.DataArray | np.ndarray | float):
            arrays[variable] = np.asarray(value)
    return {key: x for key, x in arrays.items() if x.dtype.kind in "fiub"}


def check(name, policy, names_of_policy, in_float32):
    is_coarse = name in COARSE and policy != "float64"
    tolerance = COARSE_TOLERANCE if is_coarse else TOLERANCES[policy]
    if name in ILL_CONDITIONED and policy != "float64":
        tolerance *= 3
    expected = in_float32(name)
    received = results_of_example(name, names_of_policy(policy))
    assert expected.keys() == received.keys()
    for key, values in expected.items():
        if key.startswith("result.untrained_") and policy == "float64":
            continue  # of an untrained copy, whose weights are drawn in the precision of the model
        assert received[key].shape == values.shape and received[key].dtype == values.dtype
        is_finite = np.isfinite(values)
        np.testing.assert_array_equal(received[key][~is_finite], values[~is_finite], err_msg=key)
        expected_numbers = np.asarray(values[is_finite], float)
        difference = received[key][is_finite] - expected_numbers
        norm = np.linalg.norm(expected_numbers)
        # The agreement of clusters with random labels is zero but for chance.
        least = 0.2 if is_coarse else 1e-9
        assert np.linalg.norm(difference) <= tolerance * max(norm, least), key


@pytest.fixture(autouse=True)
def folder(tmp_path, monkeypatch):
    """The folder that examples write files to."""
    monkeypatch.chdir(tmp_path)


def marked(name):
    """Most measurements of models of mixed precision, which are rarer than float32, are slow."""
    return name if name in QUICK else pytest.param(name, marks=pytest.mark.slow)


@pytest.mark.parametrize("name", [marked(name) for name in public_measurements()])
def test_mixed_precision_changes_a_measurement_by_its_rounding(
    name, names_of_policy, in_float32, request
):
    if name not in IN_GRAPHS:
        request.getfixturevalue("without_graphs")
    check(name, "mixed_bfloat16", names_of_policy, in_float32)


# The code distinguishes the precision of weights and of activations, not the two of 16 bits.
@pytest.mark.parametrize(
    "policy",
    [
        pytest.param("mixed_float16", marks=pytest.mark.long),
        pytest.param("float64", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("name", public_measurements())
def test_other_precisions_too(name, policy, names_of_policy, in_float32):
    """In graphs, next to eager float32: float64 tells most strictly whether the two agree."""
    check(name, policy, names_of_policy, in_float32)
