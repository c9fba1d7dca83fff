"""Opened models as those of a report: their accuracy, and what is said of them."""

import re

import keras
import numpy as np
import pytest
import tensorflow as tf
from study_models import study_model_of

import vit_tf
from vit_tf import Preprocessing, analysis
from vit_tf.analysis.figures import models as study_models
from vit_tf.analysis.figures.data import SMALLEST_BATCH, make_data
from vit_tf.analysis.figures.models import (
    LoadedModel,
    prepare_models,
    shared_framing,
    with_given_roles,
)
from vit_tf.data.batches import RANDOM
from vit_tf.features.conversion import facts_of

NAMES = ("cat", "dog", "owl")


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (24, 16, 16, 3)).astype("float32"), rng.integers(3, size=24)


def small_vit(seed, **options):
    model = vit_tf.ViT((16, 16, 3), 8, 1, 1, 8, 8, 3, **options)
    kernel, bias = model.get_layer("head").get_weights()
    rng = np.random.default_rng(seed)
    model.get_layer("head").set_weights([rng.normal(size=kernel.shape), bias])
    return model


def opened(name, model):
    return LoadedModel(name, model, facts_of(model).expected_images)


def test_the_accuracy_is_how_often_the_largest_score_is_right(images, tmp_path):
    vit, other = small_vit(0), small_vit(1, class_names=["ant", "bee", "fly"])
    models, rows, notes = prepare_models(
        [opened("ViT", vit), opened("other", other)],
        make_data(images, None, None, {}),
        tmp_path,
        NAMES,
    )
    pixels, labels = images
    right = np.mean(np.argmax(vit.predict(pixels, verbose=0), axis=-1) == labels)
    actual = {model.slug: model.accuracy for model in models}
    assert actual["vit"] == (pytest.approx(right), 24)
    assert {name for name, accuracy in actual.items() if accuracy} == {"vit"}
    assert rows[0]["test accuracy (%)"] == pytest.approx(100 * right, abs=0.005)
    assert "test accuracy (%)" not in rows[1]
    message = dict(notes)["Models whose classes differ from the classes of the data"]
    assert len(message) == 1 and message[0].startswith("other: It needs data of the 3 classes")
    assert [path.name for path in (tmp_path / "results").iterdir()] == ["accuracy.vit.nc"]


def test_an_accuracy_that_fails_is_explained(images, tmp_path, monkeypatch):
    def fail(*_):
        raise tf.errors.InvalidArgumentError(None, None, "Incompatible shapes: [1] vs. [2]")

    monkeypatch.setattr(study_models, "correct_answers", fail)
    data = make_data(images, None, None, {})
    models, _, notes = prepare_models([opened("ViT", small_vit(0))], data, tmp_path, NAMES)
    (sentence,) = dict(notes)["Test accuracy"]
    assert sentence.startswith("ViT: ") and "Incompatible shapes" in sentence
    assert models[0].accuracy is None


def test_without_names_of_classes_nothing_is_said_of_accuracy(images, tmp_path):
    data = make_data(images[0], None, None, {})
    models, rows, notes = prepare_models([opened("ViT", small_vit(0))], data, tmp_path)
    assert models[0].accuracy is None and not notes and "test accuracy (%)" not in rows[0]
    assert not list(tmp_path.iterdir())


def test_models_with_low_variation_are_reported_with_their_values(images, tmp_path):
    still = small_vit(0)
    kernel, _ = still.get_layer("head").get_weights()
    still.get_layer("head").set_weights([1e-3 * kernel, np.ones(3)])
    data = make_data(images, None, None, {})
    _, _, notes = prepare_models([opened("ViT", still)], data, tmp_path, remedy=" Tell others.")
    message = dict(notes)["Models whose last layers hardly vary between images"]
    assert message == [
        "The last layers of ViT hardly differ between images. The model received images with "
        "values in [-1, 1]. Tell others."
    ]


@pytest.mark.slow
def test_a_report_of_named_classes_draws_causes(images, tmp_path):
    report = analysis.make_report(
        {"ViT": small_vit(0)}, images, class_names=NAMES, figures=["heads"], folder=tmp_path
    )
    assert "head_ablation.vit" in report.results
    assert "test accuracy" in report.path.read_text("utf-8")
    with pytest.raises(ValueError, match="needs labels of two or more classes"):
        analysis.make_report({"ViT": small_vit(0)}, images[0], class_names=NAMES, folder=tmp_path)


def test_names_of_classes_are_those_of_the_data_or_else_of_the_model(images, tmp_path):
    vit, (pixels, labels) = small_vit(0, class_names=NAMES), images
    right = np.mean(np.argmax(vit.predict(pixels, verbose=0), axis=-1) == labels)
    arguments = {"figures": ["lens"], "folder": tmp_path, "untrained": 0}
    report = analysis.make_report({"ViT": vit, "other": small_vit(1)}, images, **arguments)
    assert {"lens_accuracy.vit", "lens_accuracy.other"} <= report.results.keys()
    shown = re.sub(r"<[^>]+>|\s+", " ", report.path.read_text("utf-8"))
    assert re.search(rf" {100 * right:.1f} % +test accuracy", shown)


@pytest.mark.slow
def test_labels_of_other_classes_or_of_classes_that_models_order_otherwise_do_not_count(
    images, tmp_path
):
    vit = small_vit(0, class_names=NAMES)
    data = tf.data.Dataset.from_tensor_slices(images).batch(8)
    data.class_names = ["ant", "bee", "fly"]
    arguments = {"figures": ["3"], "untrained": 0}
    report = analysis.make_report({"ViT": vit}, data, folder=tmp_path / "others", **arguments)
    assert "It needs data of the 3 classes of the model" in report.path.read_text("utf-8")

    disagree = {"ViT": vit, "other": small_vit(1, class_names=["ant", "bee", "fly"])}
    report = analysis.make_report(disagree, images, folder=tmp_path / "disagree", **arguments)
    assert "test accuracy" not in report.path.read_text("utf-8")


def test_models_of_a_report_are_shown_the_same_images_whatever_their_order():
    bicubic = Preprocessing((8, 8), (0.1,) * 3, (0.2,) * 3, "bicubic", crop=0.5)
    others = [Preprocessing((8, 8), interpolation="bicubic", crop=0.5), Preprocessing((8, 8))]
    assert shared_framing([bicubic]) == shared_framing([bicubic, others[0]]) == others[0]
    assert shared_framing([bicubic, *others]) == shared_framing([*others, bicubic])
    assert shared_framing([bicubic, *others]) == Preprocessing((8, 8))
    grey = Preprocessing((8, 8), (0.0,), (1.0,))
    assert shared_framing([grey]).num_channels == 1
    assert shared_framing([Preprocessing(None)], (4, 6)).size == (4, 6)
    with pytest.raises(ValueError, match="channels"):
        shared_framing([grey, bicubic])


def layers_of_vit(width, prefix=1):
    names = ("embedding", "block00/attention/weights", "block00/mlp/sum", "logits")
    return dict.fromkeys(names, (4 + prefix, width))


def given(name, role=None, width=8, prefix=1):
    shapes = layers_of_vit(width, prefix)
    grid = vit_tf.TokenGrid(2, 2, prefix, 8)
    return study_model_of(
        name, "model", name, tuple(shapes), grid, None, shapes=shapes, given_role=role
    )


def test_variants_have_the_base_of_their_kind_and_size_whatever_the_order():
    models = [
        given("few", "fraction:0.1"),
        given("few wide", "fraction:0.03", width=16),
        given("wide", "larger", width=16),
        given("bare", "without:block00"),
        given("gap", prefix=0),
        given("vit"),
        given("again", "seed:1"),
        given("tuned on", "after"),
        given("half", "before"),
    ]
    actual = {model.name: model for model in with_given_roles(models)}
    assert list(actual) == [model.name for model in models]
    assert {name: (model.role, model.detail) for name, model in actual.items()} == {
        "few": ("fraction", 0.1),
        "few wide": ("fraction", 0.03),
        "wide": ("larger", None),
        "bare": ("without", "block00"),
        "gap": ("gap", None),
        "vit": ("vit", None),
        "again": ("seed", 1),
        "tuned on": ("after", None),
        "half": ("before", None),
    }
    bases = {name: model.base and model.base.name for name, model in actual.items()}
    assert bases == {
        **dict.fromkeys(("few", "wide", "bare", "again", "half"), "vit"),
        **{"few wide": "wide", "gap": None, "vit": None, "tuned on": "half"},
    }
    # Without variants, the roles of the user's models are only those in the scorecard.
    assert with_given_roles(models[4:6]) == models[4:6]


@pytest.mark.parametrize("role", ["fraction", "fraction:some", "larger:2", "vti", "vit:1"])
def test_roles_that_do_not_exist_are_refused_with_those_that_do(role):
    with pytest.raises(ValueError, match=r"fraction:0\.1.*Received: " + repr(role)):
        with_given_roles([given("vit"), given("few", role)])


def test_a_model_before_fine_tuning_needs_no_other():
    before, after = with_given_roles([given("first", "before"), given("second", "after")])
    assert (before.role, before.base, after.role, after.base) == ("before", None, "after", before)


def cka_of_arrays(x, y, batch_size):
    """CKA of two representations (example, feature) in float64, as Nguyen et al. 2020."""

    def hsic(first, second):  # Song et al. 2012, equation 5
        n = len(first)
        k, m = (kernel - np.diag(np.diag(kernel)) for kernel in (first, second))
        rest = k.sum() * m.sum() / (n - 1) / (n - 2) - 2 * (k @ m).sum() / (n - 2)
        return (np.sum(k * m) + rest) / n / (n - 3)

    sums = np.zeros(3)
    for start in range(0, len(x), batch_size):
        k, m = (part @ part.T for part in (a[start : start + batch_size] for a in (x, y)))
        sums += hsic(k, m), hsic(k, k), hsic(m, m)
    return sums[0] / np.sqrt(sums[1] * sums[2])


@pytest.mark.slow
def test_a_report_compares_fine_tuning_on_a_near_and_on_a_far_domain(images, tmp_path):
    """The far model has other classes, and weights that changed more, most of all late."""
    models = {}
    for name, classes, changes in (
        ("before", 3, (0, 0, 0)),
        ("near", 3, (0.05, 0.1, 0.1)),
        ("far", 5, (0.05, 2.0, 5.0)),
    ):
        models[name] = model = vit_tf.ViT((16, 16, 3), 8, 3, 1, 8, 8, classes)
        rng = np.random.default_rng(3)
        for block, change in zip(range(3), changes, strict=True):
            for weight in model.get_layer(f"block{block:02}").weights:
                first, second = rng.normal(size=(2, *weight.shape))
                weight.assign(0.3 * (first + change * second))
        model.get_layer("embedding").set_weights(
            models["before"].get_layer("embedding").get_weights()
        )
    report = analysis.make_report(
        models,
        images[0],
        figures=["G.1"],
        roles={"before": "before", "near": "after", "far": "far"},
        folder=tmp_path,
        untrained=0,
    )
    taps = [f"block{block:02}/mlp/sum" for block in range(3)]
    values = {
        name: [
            np.float64(x).reshape(len(x), -1)
            for x in vit_tf.submodel(model, *taps).predict(images[0], verbose=0).values()
        ]
        for name, model in models.items()
    }
    order = RANDOM.order(len(images[0]))  # in which a report reads its images
    near, far = (
        [
            cka_of_arrays(x[order], y[order], SMALLEST_BATCH)
            for x, y in zip(values["before"], values[name], strict=True)
        ]
        for name in ("near", "far")
    )
    claims = {claim.name: claim for claim in report.claims}
    expected = {
        "fine-tuning-keeps-first-blocks": near[0] - np.mean(near[1:]),
        "far-fine-tuning-keeps-first-blocks": far[0] - np.mean(far[1:]),
        "far-domains-change-more": np.mean(near) - np.mean(far),
    }
    assert expected["far-domains-change-more"] > 0.05
    for name, value in expected.items():
        assert claims[name].estimate.value == pytest.approx(value, abs=1e-4), name
    assert claims["far-domains-change-more"].models == ("before", "near", "far")


def test_a_variant_needs_a_base():
    with pytest.raises(ValueError, match=r"few is a variant .* role 'vit'"):
        with_given_roles([given("few", "fraction:0.1"), given("gap", prefix=0)])


@pytest.mark.slow
def test_a_report_tests_claims_about_amounts_of_data_on_given_variants(images, tmp_path):
    """The labels are what the ViT predicts, so that its accuracy is 1."""
    keras.utils.set_random_seed(0)  # of several classes, which is not so for every seed
    vit = small_vit(0)
    labels = np.argmax(vit.predict(images[0], verbose=0), axis=-1)
    models = {"few": small_vit(1), "ViT": vit}
    models |= {name: vit_tf.BiT((16, 16, 3), (1,), 0.5, 3, stem="small") for name in ("BiT", "b3")}
    report = analysis.make_report(
        models,
        (images[0], labels),
        class_names=NAMES,
        figures=["V.3"],
        roles={"few": "fraction:0.1", "b3": "fraction:0.1"},
        folder=tmp_path,
        untrained=0,
    )
    assert set(report.results) == {"accuracy_by_data.few.vit", "accuracy_by_data.b3.bit"}
    table = report.results["accuracy_by_data.few.vit"]
    assert table["fraction"].values.tolist() == [0.1, 1.0] and table["accuracy"].values[1] == 1
    claims = {claim.name: claim for claim in report.claims}
    of_bit = report.results["accuracy_by_data.b3.bit"]["accuracy"].values
    gap = of_bit[0] - table["accuracy"].values[0]
    row = claims["resnet-better-on-little-data"]
    assert row.estimate.value == pytest.approx(gap)
    assert row.models == ("ViT", "BiT", "few", "b3")
    assert "unknown number of images" in claims["vit-better-on-all-data"].reason
