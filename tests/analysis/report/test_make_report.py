"""A report of any number and mix of models, however they are given."""

from functools import cache
from itertools import combinations_with_replacement
from pathlib import Path
from types import SimpleNamespace

import keras
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from study_models import study_model_of

import vit_tf
from vit_tf import TokenGrid
from vit_tf.analysis import branch_norms, make_report
from vit_tf.analysis.figures.data import TEST_RULE
from vit_tf.analysis.figures.figure import all_figures, lookup_figures
from vit_tf.analysis.figures.models import open_model, slug
from vit_tf.analysis.report import assemble
from vit_tf.analysis.report.scorecard import evaluate
from vit_tf.analysis.statistics.claims import NotTested, Tested
from vit_tf.features.conversion import name_models

SHAPE = (16, 16, 3)
SLOW = pytest.mark.slow


def vit(num_layers=2):
    return vit_tf.ViT(SHAPE, 8, num_layers, 2, 8, 8, 3, pooling="cls")


def bit():
    return vit_tf.BiT(SHAPE, units=(1, 1), width_factor=0.5, num_classes=3)


def mixer():
    return vit_tf.Mixer(SHAPE, 8, 2, 8, 4, 8, 3)


def cnn():
    """A network of another origin, whose layers have no names of ours."""
    x = images = keras.Input(SHAPE)
    for number, stride in enumerate((2, 1, 2)):
        x = keras.layers.Conv2D(8, 3, stride, "same", activation="relu", name=f"conv{number}")(x)
    x = keras.layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(images, keras.layers.Dense(3, name="classes")(x), name="cnn")


KINDS = {"ViT": vit, "BiT": bit, "Mixer": mixer, "CNN": cnn}
MIXES = [
    mix for count in range(1, 5) for mix in combinations_with_replacement(sorted(KINDS), count)
]


@pytest.fixture(scope="module")
def images():
    rng = np.random.default_rng(0)
    return rng.uniform(-1, 1, (24, *SHAPE)).astype("float32"), rng.integers(3, size=24)


@pytest.fixture(scope="module")
def of_mix():
    """Function of a mix of kinds to models by name, each of which is made once."""

    @cache
    def made(kind, number):
        keras.utils.set_random_seed(number)
        model = KINDS[kind]()
        for weight in model.trainable_weights:  # no head is zero
            weight.assign_add(0.1 * keras.random.normal(weight.shape))
        return model

    def of_mix(mix):
        numbered = [(kind, mix[:place].count(kind)) for place, kind in enumerate(mix)]
        return {f"{kind} {number}": made(kind, number) for kind, number in numbered}

    return of_mix


def require_whole(report, names):
    """Every claim has a row, and those that lack a part say so once."""
    page = report.path.read_text("utf-8")
    assert all(name in page for name in names)
    names = [(row.name, row.models) for row in report.claims]
    assert len(set(names)) == len(names)
    for row in report.claims:
        assert row.reason if isinstance(row, NotTested) else np.isfinite(row.estimate.value)


def as_study_model(name):
    """The part of a model that claims are about, without anything to measure."""
    kind = name.partition(" ")[0]
    taps, grid = {
        "ViT": (
            ["embedding", "block00/attention/weights", "block00/mlp/sum"],
            TokenGrid(2, 2, 1, 8),
        ),
        "BiT": (["root", "stage1/unit01/sum"], TokenGrid(2, 2, 0, 8)),
        "Mixer": (["embedding", "block00/token_mixing/sum"], TokenGrid(2, 2, 0, 8)),
        "CNN": (["conv", "pool"], TokenGrid(2, 2, 0, 8)),
    }[kind]
    shapes = {"conv": (2, 2, 4), "pool": (4,)} if kind == "CNN" else {}
    size = (16, 16) if shapes else None
    return study_model_of(
        name, "model", name, tuple(taps), grid, None, shapes=shapes, image_size=size
    )


@pytest.mark.parametrize("mix", MIXES, ids="-".join)
def test_claims_of_every_mix_that_lack_a_part_say_so_once(mix):
    names = [f"{kind} {mix[:place].count(kind)}" for place, kind in enumerate(mix)]
    models = [as_study_model(name) for name in names]
    parts = {model.scorecard_role for model in models}
    claims = evaluate(all_figures(), models, {})
    assert len({(row.name, row.models) for row in claims}) == len(claims)
    claims_by_name = {claim.name: claim for figure in all_figures() for claim in figure.claims}
    for name, claim in claims_by_name.items():
        rows = [row for row in claims if row.name == name]
        needed = {
            role
            for role in ("vit", "gap", "resnet", "mixer")
            if f"{{{role}}}" in " ".join(claim.inputs)
        }
        counts = [sum(model.scorecard_role == role for model in models) for role in needed]
        assert len(rows) == (np.prod(counts) if needed <= parts else 1), name
        assert all(isinstance(row, NotTested) for row in rows)
        if not needed <= parts:
            assert "No model with this role" in rows[0].reason


# One model, several of two kinds, whose pairs have figures of their own, and of three kinds: other
# mixes differ in nothing that the code asks for.
DIFFERENT = {("CNN",), ("BiT", "BiT", "ViT", "ViT"), ("CNN", "CNN", "Mixer", "ViT")}
assert set(MIXES) >= DIFFERENT


@pytest.mark.parametrize(
    "mix",
    [
        pytest.param(m, marks=pytest.mark.slow if m in DIFFERENT else pytest.mark.long)
        for m in MIXES
    ],
    ids="-".join,
)
def test_every_mix_of_one_to_four_models_has_a_report(of_mix, images, folder, mix):
    """What was measured of some models is not measured again for the next mix."""
    report_of(of_mix(mix), images, folder, figures=[1, "2", "W.19"], untrained=1)


# A model alone and one of each kind; that of several of a kind is among `DIFFERENT`.
SOME = [("CNN",), (*sorted(KINDS),)]


@pytest.mark.parametrize(
    "mix",
    [pytest.param(m, marks=SLOW if m in SOME else pytest.mark.long) for m in MIXES],
    ids="-".join,
)
def test_every_mix_has_a_report_of_all_figures(of_mix, images, folder, mix):
    report_of(of_mix(mix), images, folder, figures="all")


def report_of(named, images, folder, **options):
    report = make_report(named, images, folder=folder, **options)
    require_whole(report, named)
    measured = [row for row in report.claims if isinstance(row, Tested)]
    kinds = {name.split()[0] for name in named}
    assert measured or "ViT" not in kinds or not {"BiT", "CNN"} & kinds


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


def test_models_are_given_by_name_alone_or_in_a_list(of_mix, images, tmp_path):
    cnn = of_mix(("CNN",))["CNN 0"]
    cnn.save(tmp_path / "saved model.keras")
    path = tmp_path / "saved model.keras"
    for given, names in (
        (cnn, {"cnn"}),
        ([cnn, cnn], {"cnn", "cnn-2"}),
        ((str(path), cnn), {"saved-model", "cnn"}),
    ):
        named = {name: open_model(model) for name, model in name_models(given).items()}
        assert {slug(name) for name in named} == names
        assert all(model.count_params() == cnn.count_params() for model in named.values())


@pytest.mark.parametrize(
    ("models", "words"),
    [
        ({}, "at least one model"),
        ([], "at least one model"),
        ({"a": 3}, "a=3"),
        ({"My Model": vit_tf, "my-model": vit_tf}, "'My Model' and 'my-model'"),
        ({"!": vit_tf}, "Latin letters"),
        ({"a": len, "a, untrained": len}, "'a, untrained'"),
    ],
)
def test_models_that_cannot_have_a_report_are_refused_at_once(models, words, images, tmp_path):
    with pytest.raises(ValueError, match=r"Expected .*model") as error:
        make_report(models, images, folder=tmp_path)
    assert words in str(error.value) and not list(tmp_path.iterdir())


def test_a_number_of_a_figure_may_be_a_number():
    assert lookup_figures([1]) == lookup_figures(["1"])
    with pytest.raises(ValueError, match="Unknown figure: '99'"):
        make_report({"a": len}, np.zeros((4, *SHAPE)), figures=99, folder="none")


@pytest.mark.parametrize("folder", ["gs://bucket/report", Path("gs://bucket/report")])
def test_a_report_at_an_address_is_refused(folder, of_mix, images):
    with pytest.raises(ValueError, match=r"local path.*gs:/+bucket"):
        make_report(of_mix(("CNN",)), images, figures=["1"], folder=folder)


@pytest.mark.parametrize("ending", ["", ".html"])
def test_a_report_of_others_is_not_replaced(of_mix, images, tmp_path, ending):
    folder = tmp_path / "others"
    folder.mkdir()
    page = folder / "report.html"
    page.write_text("<html>my thesis</html>")
    with pytest.raises(ValueError, match=r"report.html.* not written by vit_tf"):
        make_report(of_mix(("CNN",)), images, figures=["1"], folder=f"{folder}{ending}")
    assert page.read_text() == "<html>my thesis</html>" and list(tmp_path.rglob("*.*")) == [page]


FORMS = {"8-bit": (0, 255), "floats": (0, 1), "data set": (-1, 1)}
RANGES = [(-1, 1), (0, 1), (0, 255)]


@pytest.mark.parametrize(
    ("form", "low", "high"),
    [
        pytest.param(form, *ends, marks=() if FORMS[form] == ends else SLOW)
        for form in FORMS
        for ends in RANGES
    ],
)
def test_a_report_and_a_call_take_images_by_one_rule(low, high, form, monkeypatch, tmp_path):
    """8-bit images are prepared for the model, floats are what it expects; figures see [-1, 1]."""
    model, levels = vit(1), np.random.default_rng(1).integers(0, 256, (12, *SHAPE), np.uint8)
    model.preprocessing = vit_tf.Preprocessing.from_range(SHAPE[:2], low, high)
    images = levels if form == "8-bit" else model.preprocessing(levels)
    if form == "data set":
        images = tf.data.Dataset.from_tensor_slices(images).batch(6)
    made = []
    monkeypatch.setattr(assemble, "write_figures", lambda *given, **_: made.extend(given[1:3]))
    make_report(model, images, folder=tmp_path, untrained=0)
    (study, *_), data = made
    order = np.arange(12) if form == "data set" else TEST_RULE.order(12)
    found = branch_norms(study.select(*study.layers("skips")), data.test)
    expected = branch_norms(model, images).isel(example=order)
    expected = expected.assign_coords(example=found.example)
    xr.testing.assert_allclose(found, expected, rtol=1e-5)
    shown = np.concatenate(list(data.test.as_numpy_iterator()))
    np.testing.assert_allclose(shown, levels[order] / 127.5 - 1, atol=1e-6)


def test_floats_for_models_that_expect_other_values_are_refused_or_warned_of(tmp_path):
    one, other = vit(1), vit(1)
    one.preprocessing = vit_tf.Preprocessing.from_range(SHAPE[:2], 0, 1)
    floats = np.random.default_rng(1).uniform(-1, 1, (12, *SHAPE)).astype("float32")
    with pytest.raises(ValueError, match="models expect different pixel values"):
        make_report({"one": one, "other": other}, floats, folder=tmp_path)
    with pytest.raises(ValueError, match=r"values in \[0, 1\]. Received: values from"):
        make_report(one, 300 * floats, folder=tmp_path)


def test_the_first_images_are_shown_with_what_each_model_predicts():
    rng = np.random.default_rng(0)
    images = rng.uniform(-1, 1, (20, 6, 5, 3)).astype("float32")
    labels, scores = rng.integers(3, size=20), rng.normal(size=(20, 3))

    def model(name, columns, **changes):
        def select(tap):
            return lambda batch: {tap: scores[: len(batch)][:, columns]}

        fields = {"select": select, "scores_tap": "logits", "has_sigmoids": False}
        fields |= {"class_names": ("a", "b", "c"), "accuracy": (0.5, 6), "role": "model"}
        return SimpleNamespace(name=name, base=None, **fields | changes)

    models = [
        model("first", [0, 1, 2]),
        model("turned", [2, 1, 0], accuracy=None),  # of whose classes no label is known
        model("nameless", [0, 1, 2], class_names=()),
        model("broken", [0, 1, 2], select=lambda tap: lambda batch: {}[tap]),
    ]
    few = tf.data.Dataset.from_tensor_slices((images, labels)).batch(20)
    shown, failed = assemble._shown_images(models, SimpleNamespace(few=few, labelled=True))
    assert len(shown) == 9 and [title for title, _ in failed] == ["Predictions"]
    shares = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    for index, image in enumerate(shown):
        first, turned = image.predictions
        best = shares[index].argmax()
        assert (first.model, first.class_name) == ("first", "abc"[best])
        assert first.probability == pytest.approx(shares[index, best])
        assert first.is_correct == (best == labels[index])
        assert turned.class_name == "cba"[best] and turned.is_correct is None
        assert image.label == "abc"[labels[index]]
        expected = np.rint((images[index] + 1) * 127.5)
        np.testing.assert_allclose(image.picture, expected, atol=1)
    unlabelled, _ = assemble._shown_images(models[:1], SimpleNamespace(few=few, labelled=False))
    assert unlabelled[0].label == "" and unlabelled[0].predictions[0].is_correct is None
