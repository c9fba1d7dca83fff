"""Calls leave no graphs behind: TensorFlow's registries hold what they are given for good."""

import gc
from functools import partial

import keras
import numpy as np
import pytest
from tensorflow.python.framework.func_graph import FuncGraph
from tiny_models import tiny_vit

import vit_tf
from vit_tf import analysis

IMAGES = np.random.default_rng(0).uniform(-1, 1, (8, 16, 16, 3)).astype("float32")


def num_graphs() -> int:
    gc.collect()
    return sum(isinstance(each, FuncGraph) for each in gc.get_objects())


def make_bit() -> keras.Model:
    return vit_tf.BiT(image_shape=(16, 16, 3), units=(1,), width_factor=0.5, num_classes=3)


@pytest.mark.slow
@pytest.mark.parametrize("make", [partial(tiny_vit, 1), make_bit], ids=["ViT", "BiT"])
def test_calls_of_new_models_leave_no_graphs(make):
    def measure() -> None:
        model = make()
        analysis.cka(model, IMAGES)
        analysis.receptive_field(model, IMAGES, layers="*/branch")

    measure()
    first = num_graphs()
    measure()
    assert num_graphs() <= first
