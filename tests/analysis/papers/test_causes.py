"""The chapter on causes: its claims on results whose truth is known, and its figures whole."""

import dataclasses
from functools import partial

import numpy as np
import pytest
import xarray as xr
from study_models import study_model_of

import vit_tf
from vit_tf.analysis.engine.stream import as_dataset, evaluate
from vit_tf.analysis.figures.data import Data
from vit_tf.analysis.figures.measure import DATA, with_inputs
from vit_tf.analysis.papers import causes
from vit_tf.analysis.papers.ding import AGREEMENT
from vit_tf.analysis.statistics.claims import Outcome, decide

FACTS = {"examples": 1000, "num_classes": 10}


def table(dims, coords, **variables):
    return xr.Dataset({name: (dims, values) for name, values in variables.items()}, coords=coords)


def heads(loss):
    values = {"accuracy_change": -loss * np.ones((3, 4))}
    values["accuracy_change_stderr"] = 0.001 * np.ones((3, 4))
    return [table(("layer", "head"), {}, **values).assign(accuracy=0.5).assign_attrs(FACTS)]


def layers(loss):
    change, coords = -loss * np.ones(8), {"path": ["skip", "branch"]}
    values = {"accuracy_change": np.stack([0 * change - 0.9, change], axis=1)}
    values["accuracy_change_stderr"] = 0.001 * np.ones((8, 2))
    return [table(("layer", "path"), coords, **values).assign(accuracy=0.5).assign_attrs(FACTS)]


BUILDERS = {causes.heads_are_dispensable: heads, causes.vits_survive_layers: layers}


@pytest.mark.parametrize("claim", BUILDERS, ids=lambda item: item.name)
def test_outcome_and_value(claim):
    """The claim is that a part costs no relevant accuracy."""
    least, outcomes = claim.least, {}
    for loss in (0.0, 0.3 * least, least, 3 * least):
        estimate = claim(*BUILDERS[claim](loss))
        np.testing.assert_allclose(estimate.value, loss, atol=1e-12)
        outcomes[loss] = decide(estimate.interval, claim.paper, least)
    expected = [Outcome.AS_IN_PAPER] * 2 + [Outcome.UNDECIDED, Outcome.OPPOSITE]
    assert list(outcomes.values()) == expected


@pytest.mark.parametrize("examples", [1000, 5000])
def test_the_loss_of_a_head_does_not_depend_on_the_number_of_images(examples):
    """64 heads, a quarter of which cost 5 points, measured with noise of 0.05 an image."""
    rng = np.random.default_rng(examples)
    error = 0.05 / np.sqrt(examples) * np.ones(64)
    cost = np.repeat([0.0, 0.05], [48, 16])
    effects = effects_of_heads(examples, error * rng.normal(size=64) - cost, error)
    low, high = causes.heads_are_dispensable(effects).interval
    assert low < 0.0125 < high


def effects_of_heads(examples, change, error):
    values = {"accuracy_change": change, "accuracy_change_stderr": error}
    values = {name: np.reshape(x, (8, 8)) for name, x in values.items()}
    facts = {"examples": examples, "num_classes": 10}
    return table(("layer", "head"), {}, **values).assign(accuracy=0.8).assign_attrs(facts)


def test_few_images_do_not_show_that_heads_are_dispensable():
    """Every head costs 5 points, which 32 images do not show: for most, no answer changes."""
    outcomes, claim = {}, causes.heads_are_dispensable
    for examples in (32, 100_000):
        rng = np.random.default_rng(3)
        changed = rng.random((64, examples)) < 0.05
        error = changed.std(axis=1) / np.sqrt(examples)
        estimate = claim(effects_of_heads(examples, -changed.mean(axis=1), error))
        outcomes[examples] = decide(estimate.interval, claim.paper, claim.least)
    assert outcomes == {32: Outcome.UNDECIDED, 100_000: Outcome.OPPOSITE}


@pytest.mark.parametrize("claim", BUILDERS, ids=lambda item: item.name)
def test_a_model_at_chance_does_not_test_a_claim_on_accuracy(claim):
    results = BUILDERS[claim](0.0)
    results = [item.assign(accuracy=0 * item["accuracy"] + 0.11) for item in results]
    with pytest.raises(ValueError, match="above chance"):
        claim(*results)


@pytest.mark.parametrize("sign", [1, -1])
def test_heads_that_look_further_matter_as_their_rank_says(sign):
    distance = np.arange(12.0).reshape(3, 4)
    changes = {"distance": distance, "output_change": np.exp(sign * distance)}
    effects = table(("layer", "head"), {}, **changes)
    effects["output_change"][0, 0] = np.nan  # no such head
    estimate = causes.global_heads_matter.estimator(effects)
    assert estimate.value == pytest.approx(sign)
    assert estimate.interval is None


@pytest.fixture(scope="module")
def models():
    rng = np.random.default_rng(0)

    def subject(name, role, model, **facts):
        for weight in model.trainable_weights:
            weight.assign(np.asarray(weight) + rng.normal(0, 0.3, weight.shape))
        features = partial(vit_tf.submodel, model)
        return study_model_of(name, role, name, model.taps, model.token_grid, features, **facts)

    def tiny(**more):
        return vit_tf.ViT((16, 16, 3), 8, 2, 2, 8, 16, 3, **more)

    vit = subject("ViT", "vit", tiny(), accuracy=(0.5, 8), correct=np.arange(8) < 4)
    bare, quarter = tiny(without_skips=["block01"]), {"accuracy": (0.25, 8)}
    quarter["correct"] = np.arange(8) < 2
    bit = vit_tf.BiT((16, 16, 3), (1, 1), 0.5, 3, stem="small")
    return [
        vit,
        subject("Bare", "without", bare, base=vit, detail="block01", **quarter),
        subject("Again", "seed", tiny(), base=vit, detail=1),
        subject("BiT", "resnet", bit),
    ]


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(1)
    pair = rng.uniform(-1, 1, (6, 16, 16, 3)).astype("float32"), rng.integers(0, 3, 6)
    return Data(as_dataset(pair), None, num_classes=3)


def made(measurement, data, results):
    """The result of a measurement, with all that it is made of."""
    for name, item in with_inputs([measurement]).items():
        if name not in results:
            fed = [data if x is DATA else results[x.name] for x in item.inputs]
            if hasattr(item, "taps"):
                features = item.models[0].select(*item.taps[0])
                results[name] = evaluate(item.make(features, *fed), data.test, features)
            else:
                results[name] = item.make(*fed)
    return results[measurement.name]


@pytest.mark.parametrize(
    "figure",
    [
        pytest.param(causes.HEADS, marks=pytest.mark.slow),
        pytest.param(causes.BLOCKS, marks=pytest.mark.slow),
        pytest.param(causes.TOKENS, marks=pytest.mark.slow),
        causes.LENS,
    ],
    ids=lambda f: f.numbers,
)
def test_each_figure_is_measured_drawn_and_evaluated(figure, models, data):
    (picture,), reasons = figure.select(models)
    assert not reasons
    results = {}
    drawn = {label: made(item, data, results) for label, item in picture.measurements.items()}
    assert np.ravel(figure.draw(drawn))[0].figure is not None
    slugs = {"vit": "vit", "resnet": "bit"}
    for claim in figure.claims:
        names = [name.format(**slugs) for name in claim.inputs]
        # As if the models, which are not trained, were above chance.
        able = [results[name].assign(accuracy=0 * results[name].accuracy + 1) for name in names]
        assert np.isfinite(claim(*able).value)
    if figure is causes.BLOCKS:
        removal = results["removal.vit.bare"]
        trained = removal.accuracy_change.sel(path="skip, in training too")
        np.testing.assert_allclose(trained, [np.nan, -0.25])
        # Paired: two images of eight are classified correctly only with the skips.
        error = removal.accuracy_change_stderr.sel(path="skip, in training too")
        np.testing.assert_allclose(error[1], np.std([-1, -1] + [0] * 6, ddof=1) / np.sqrt(8))
        bare = removal.accuracy_change.sel(path="skip").values
        np.testing.assert_array_equal(bare, results["skip_ablation.vit"].accuracy_change[:, 0])


def test_a_quick_study_has_none_of_them(models):
    quick = [model for model in models if model.role in ("vit", "resnet")]
    for figure in (causes.HEADS, causes.BLOCKS, causes.TOKENS, causes.LENS):
        assert figure.select(quick)[0] == []


@pytest.fixture(scope="module")
def user_models(models):
    """The ViT and the BiT as models of the user."""
    choice = [models[0], models[3]]
    return [dataclasses.replace(m, role="model", accuracy=(0.5, 10)) for m in choice]


def test_models_of_the_user_are_shown_those_they_have_the_parts_for(user_models):
    names = {
        figure.numbers: [name for s in figure.select(user_models)[0] for name in s.measurements]
        for figure in (causes.HEADS, causes.BLOCKS, causes.TOKENS, causes.LENS, AGREEMENT)
    }
    both = ["ViT", "BiT"]
    assert names.pop("blocks") == names.pop("agreement") == names.pop("lens") == both
    assert names == {"heads": ["ViT"], "tokens": ["ViT"]}
    (picture,), _ = causes.HEADS.select(user_models)
    assert picture.full_title == "Head ablation by attention distance"


def test_models_of_other_classes_are_left_out_with_the_reason(user_models):
    other = [dataclasses.replace(model, accuracy=None) for model in user_models]
    for figure in (causes.HEADS, causes.BLOCKS, causes.TOKENS, causes.LENS):
        claim, reasons = figure.select(other)
        assert not claim
        assert "ViT has no class scores for these images." in reasons


@pytest.mark.slow
def test_of_models_of_the_user_the_first_images_are_read(user_models, data, monkeypatch):
    monkeypatch.setattr(causes, "MOST_IMAGES", 5)  # two batches of two
    measurement = causes.skip_ablation_of(user_models[1])
    batches = Data(as_dataset(data.test.unbatch().batch(2)), None, num_classes=3)
    first = made(measurement, batches, {})
    (images, labels) = next(iter(data.test))
    four = as_dataset((images[:4].numpy(), labels[:4].numpy()))
    complete = dataclasses.replace(user_models[1], role="resnet")
    expected = made(causes.skip_ablation_of(complete), Data(four, None, num_classes=3), {})
    np.testing.assert_allclose(first.loss_change, expected.loss_change, rtol=1e-4, atol=1e-6)
