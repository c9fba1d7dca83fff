"""The code under a figure of the report runs, and makes the figure with public calls."""

import re

import matplotlib.pyplot as plt
import numpy as np
import pytest
from placeholder_models import study_models, user_models
from study_models import study_model_of
from study_parts import EVERYTHING

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.figures.figure import (
    all_figures,
    by_figure,
    lookup_figures,
    plan_pictures,
)
from vit_tf.analysis.report.assemble import SETUP
from vit_tf.analysis.report.printed_code import example_code


def groups_of(models, numbers=()):
    return by_figure(plan_pictures(lookup_figures(numbers), models, EVERYTHING)[0])


@pytest.mark.parametrize("models", [study_models(), user_models()], ids=["study", "user_models"])
@pytest.mark.parametrize("known", [True, False])
def test_every_figure_has_code_of_public_calls_with_arguments_that_they_have(models, known):
    sources = {model.name: model.name for model in models} if known else {}
    for pictures in groups_of(models):
        code = example_code(pictures, sources, {("images",): "(images,) = data.load('digits')"})
        compile(code, pictures[0].name, "exec")
        called = re.findall(r"(analysis\.(?:plots\.)?\w+)\(", code)
        assert called, pictures[0].name
        for name in called:
            function = analysis
            for part in name.split(".")[1:]:
                function = getattr(function, part)
            assert callable(function), name


def test_the_code_loads_the_images_that_the_figure_reads():
    setup = {
        ("images",): "(images,) = data.load('a')",
        ("fitted", "validation"): "fitted, validation = data.few_shot('a', 2, held_out=2)",
        ("train",): "(train,) = data.load('b')",
        ("objects",): "objects = data.load_coco('a', 'b')",
        ("queries", "database", "truth"): "queries, database, truth = data.load_revisited('a')",
    }
    wanted = {"1": [0], "13": [0, 1], "W.9": [0, 2], "W.8": [3], "W.5": [3], "W.29": [4]}
    for number, kept in wanted.items():
        code = example_code(groups_of(user_models(), [number])[0], {}, setup)
        assert [n for n, line in enumerate(setup.values()) if line in code] == kept, number


def test_every_figure_has_code():
    shown = {
        pictures[0].figure.name
        for models in (study_models(), user_models())
        for pictures in groups_of(models)
        if example_code(pictures, {}, {})
    }
    assert {figure.name for figure in all_figures()} - shown == set()


@pytest.mark.parametrize(
    "number", [*(pytest.param(x, marks=pytest.mark.slow) for x in ("1", "3", "7")), "W.6"]
)
def test_the_code_runs_and_draws(number):
    shape = {"image_shape": (16, 16, 3), "patch_size": 8, "num_layers": 2, "num_heads": 2}
    models = {
        "one": vit_tf.ViT(**shape, hidden_dim=8, mlp_dim=16, num_classes=3),
        "two": vit_tf.ViT(**shape, hidden_dim=12, mlp_dim=16, num_classes=3),
    }
    images = np.random.default_rng(0).uniform(-1, 1, (16, 16, 16, 3)).astype("float32")
    taps = tuple(models["one"].taps)
    studied = [
        study_model_of(name, "vit", name, taps, model.token_grid, None)
        for name, model in models.items()
    ]
    pictures = groups_of(studied, [number])[0]
    code = example_code(pictures, {}, SETUP)
    plt.close("all")
    exec(code, {"models": models, "images": images})
    assert len(plt.get_fignums()) == len({picture.name for picture in pictures}), code
    plt.close("all")
