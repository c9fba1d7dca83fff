"""What all tests share: the processors, two logical CPUs for two devices, their order, fixtures."""

import collections
import gc
import os
import sys

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")
# Tests run in several processes at once. Threads of NumPy and PyTorch that share a processor spin
# while they wait for each other, and a small product or convolution takes up to 100 times as long.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import numpy as np
import pytest

# What takes longest goes first, or one process would wait for the other at the end: files of the
# slow tests in the order that `.ci/dearest.py` prints, then those of the quick ones.
LONGEST = (
    "tests/vit_tf/distribute/test_replicas.py",
    "tests/vit_tf/distribute/test_multiworker.py",
    "tests/docs/test_pages.py",
    "tests/analysis/report/test_printed_calls.py",
    "tests/scripts/test_study.py",
    "tests/analysis/test_precision.py",
    "tests/analysis/figures/test_measure.py",
    "tests/docs/test_notebooks.py",
    "tests/test_natural_calls.py",
    "tests/scripts/test_stale_results.py",
    "tests/analysis/report/test_make_report.py",
    "tests/vit_tf/models/test_contract.py",
    "tests/docs/test_navigation.py",
    "tests/scripts/test_script_manners.py",
    "tests/analysis/test_examples.py",
    "tests/benchmarks/test_fault_injection.py",
    "tests/analysis/test_one_decision.py",
    "tests/scripts/test_annotations_script.py",
    "tests/vit_tf/data/test_reading.py",
    "tests/analysis/statistics/test_coverage.py",
    "tests/vit_tf/models/test_xla.py",
    "tests/test_wheel.py",
    "tests/analysis/similarity/test_formation.py",
    "tests/vit_tf/training/test_training.py",
    "tests/vit_tf/training/test_long_runs.py",
    "tests/scripts/test_analyze_script.py",
    "tests/scripts/test_train_script.py",
    "tests/analysis/report/test_explore_browser.py",
    "tests/scripts/test_released_folders.py",
    "tests/analysis/explorer/test_exploration.py",
    "tests/vit_tf/data/test_sharing.py",
    "tests/scripts/test_finetune_script.py",
    "tests/analysis/similarity/test_cka.py",
    "tests/vit_tf/features/test_taps.py",
    "tests/analysis/engine/test_traces.py",
    "tests/analysis/plots/test_plot_rule.py",
    "tests/vit_tf/checkpoints/test_bundled_models.py",
    "tests/vit_tf/data/test_files.py",
    "tests/vit_tf/common/test_backend.py",
    "tests/vit_tf/distribute/test_distribute.py",
    "tests/vit_tf/models/test_data_format.py",
    "tests/analysis/engine/test_training_recorder.py",
    "tests/vit_tf/training/test_data_forms.py",
    "tests/vit_tf/checkpoints/test_hugging_face.py",
    "tests/analysis/report/test_rendering.py",
)


def pytest_configure(config):
    """Give TensorFlow two logical CPUs, in each process that runs tests."""
    # The process that hands them out to others need not import it, which takes seconds.
    if config.getoption("dist", "no") != "no" and not hasattr(config, "workerinput"):
        return
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)


@pytest.fixture
def record_property(record_property):
    """Pytest's own, for NumPy's numbers too, which processes cannot send each other."""

    def record(name, value):
        record_property(name, value.item() if isinstance(value, np.generic) else value)

    return record


def pytest_collection_modifyitems(items):
    """Order the files, which `--dist loadfile` hands out, by `LONGEST`, then by their tests."""
    files = [item.nodeid.partition("::")[0] for item in items]
    tests = collections.Counter(files)
    first = {file: place for place, file in enumerate(LONGEST)}
    order = {file: (first.get(file, len(first)), -count) for file, count in tests.items()}
    items.sort(key=lambda item: order[item.nodeid.partition("::")[0]])


@pytest.fixture(scope="module", autouse=True)
def spared_by_the_garbage_collector():
    """What is there before a file's tests: Keras collects all garbage for each layer it quantizes,
    and a model makes enough objects for many collections of those of TensorFlow."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture(scope="module", autouse=True)
def weights_of_every_run():
    """Random weights of a file's models are the same in every run, whatever other files ran before.

    With weights of chance, a layer of few channels is now and then 0 for all images.
    """
    import keras

    keras.utils.set_random_seed(0)
    if "torch" in sys.modules:
        sys.modules["torch"].manual_seed(0)


@pytest.fixture(scope="module")
def without_xla():
    """Keras compiles no training or prediction by XLA, as it does of its own accord.

    That is most of what a short one costs. For files about what surrounds the computation, such as
    logs and states: that XLA computes the same is tested in `vit_tf/models/test_xla.py`.
    """
    import keras
    from keras.src.trainers import trainer

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(trainer, "model_supports_jit", lambda model: False)
        model = keras.Sequential([keras.Input((1,)), keras.layers.Dense(1)])
        model.compile()
        assert not model.jit_compile
        yield


@pytest.fixture
def without_graphs(request):
    """Measurements compute eagerly, except in tests that also use `in_graphs`.

    Most of what a measurement of few tiny images costs is its graph. For the many calls of files
    in which some test of each measurement is `in_graphs`.
    """
    if "in_graphs" in request.fixturenames:
        yield
        return
    from vit_tf.analysis.engine.stream import eager_steps

    with eager_steps():
        yield


@pytest.fixture
def in_graphs():
    """Measurements compute in graphs, as they do of their own accord, despite `without_graphs`."""


@pytest.fixture(autouse=True)
def figures_closed():
    """No test leaves a figure open."""
    yield
    if "matplotlib.pyplot" in sys.modules:
        sys.modules["matplotlib.pyplot"].close("all")


@pytest.fixture
def rng():
    """A seeded NumPy generator."""
    return np.random.default_rng(0)
