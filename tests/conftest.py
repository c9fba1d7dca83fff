"""One TensorFlow process for the whole suite, with two logical CPUs standing in for two devices."""

import gc
import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
os.environ.setdefault("MPLBACKEND", "Agg")

import numpy as np
import pytest
import tensorflow as tf

tf.config.set_logical_device_configuration(
    tf.config.list_physical_devices("CPU")[0], [tf.config.LogicalDeviceConfiguration()] * 2
)


@pytest.fixture(scope="module", autouse=True)
def spared_by_the_garbage_collector():
    """What is there before a file's tests: Keras collects all garbage for each layer it quantizes,
    and a model makes enough objects for many collections of those of TensorFlow."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(50_000, 20, 100)


@pytest.fixture
def rng():
    """A seeded NumPy generator."""
    return np.random.default_rng(0)
