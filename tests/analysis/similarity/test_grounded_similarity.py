"""Planted models whose representations and functions are known, and SciPy's rank correlations."""

import itertools

import measure_oracles as oracles
import numpy as np
import pytest
import tensorflow as tf
from scipy import stats
from scipy.spatial.distance import jensenshannon
from sklearn.linear_model import Ridge

from vit_tf import analysis
from vit_tf.analysis.similarity.grounded_similarity import (
    correlate_pairs,
    pairwise_divergence,
    probe_loss,
    rank_correlations,
)
from vit_tf.features.features import ScoreKind

pytestmark = pytest.mark.usefixtures("without_graphs")

CHANNELS, CLASSES = 6, 3
IMAGES = np.random.default_rng(0).normal(size=(96, 2, 1, 3)).astype("float32")
ROTATIONS = ["cka", "rbf_cka", "procrustes", "rsa_pearson", "rsa_spearman"]


def rotation(rng):
    return np.linalg.qr(rng.normal(size=(CHANNELS, CHANNELS)))[0]


def linear(encoder, head):
    """A model whose layer and scores are linear in the pixels."""
    encoder, head = (np.asarray(x, "float32") for x in (encoder, head))

    def model(images):
        layer = tf.reshape(tf.cast(images, tf.float32), (-1, CHANNELS)) @ encoder
        return {"layer": layer, "logits": layer @ head}

    return model


def without(direction):
    """The projection that deletes a direction."""
    unit = direction / np.linalg.norm(direction)
    return np.eye(CHANNELS) - np.outer(unit, unit)


@pytest.fixture
def model(rng):
    """An encoder, and a head that does not read the first channel."""
    encoder, head = rng.normal(size=(CHANNELS, CHANNELS)), rng.normal(size=(CHANNELS, CLASSES))
    head[0] = 0
    return encoder, head


@pytest.fixture
def measured(model, rng):
    """The tables of a model, of rotated copies, and of copies without a direction."""
    encoder, head = model
    first, second = rotation(rng), rotation(rng)
    models = {
        "intact": linear(encoder, head),
        "rotated": linear(encoder @ first, first.T @ head),
        "rotated again": linear(encoder @ second, second.T @ head),
        "without unread": linear(encoder @ without(np.eye(CHANNELS)[0]), head),
        "without read": linear(encoder @ without(head[:, 0]), head),
    }
    return analysis.grounded_similarity(models, IMAGES, ROTATIONS)


def test_rotated_copies_differ_in_nothing(measured):
    names = ["intact", "rotated", "rotated again"]
    same = measured.sel(model_x=names, model_y=names)
    np.testing.assert_allclose(same.dissimilarity, 0, atol=1e-5)
    np.testing.assert_allclose(same.difference, 0, atol=1e-6)


def test_only_a_direction_that_the_head_reads_changes_the_function(measured):
    table = measured.sel(model_x="intact")
    for name in ("without unread", "without read"):
        assert (table.dissimilarity.sel(model_y=name) > 1e-3).all()
    np.testing.assert_allclose(table.difference.sel(model_y="without unread"), 0, atol=1e-6)
    assert (table.difference.sel(model_y="without read") > 0.02).all()


def test_models_on_a_line_have_a_rank_correlation_of_one(model, rng):
    encoder, head = model
    other = rng.normal(size=encoder.shape)
    shares = np.array([0.0, 0.02, 0.06, 0.14, 0.3, 0.62])
    models = {f"{x}": linear((1 - x) * encoder + x * other, head) for x in shares}
    distances = np.abs(shares[:, None] - shares)
    result = analysis.grounded_similarity(
        models, IMAGES, ["procrustes", "cka"], differences={"share": distances}
    )
    np.testing.assert_allclose(result.difference.sel(function="share"), distances)
    share = result.sel(function="share")
    for name in ("correlation", "correlation_low", "correlation_high"):
        np.testing.assert_allclose(share[name], 1)
    # Only the permutation that reverses the line is as extreme: 2 of 720.
    assert (share.p_value < 0.02).all()


def test_tables_are_those_of_numpy(model, rng):
    """Disagreement, divergence, accuracy and probe loss of every pair, and both directions."""
    labels = rng.integers(CLASSES, size=len(IMAGES))
    weights = [(rng.normal(size=model[0].shape), rng.normal(size=model[1].shape)) for _ in "abcd"]
    data = tf.data.Dataset.from_tensor_slices((IMAGES, labels)).batch(48)
    names = ["cka", "linear_predictivity"]
    result = analysis.grounded_similarity([linear(*x) for x in weights], data, names)
    assert result.model_x.values.tolist() == ["model", "model (2)", "model (3)", "model (4)"]

    layers = [IMAGES.reshape(-1, CHANNELS).astype(float) @ encoder for encoder, _ in weights]
    logits = [x @ head for x, (_, head) in zip(layers, weights, strict=True)]
    predicted = np.argmax(logits, axis=-1)
    probabilities = np.exp(logits) / np.exp(logits).sum(axis=-1, keepdims=True)
    accuracies = (predicted == labels).mean(axis=1)
    losses = [probe_loss(x, labels, CLASSES) for x in layers]
    for i, j in itertools.product(range(4), repeat=2):
        divergence = jensenshannon(probabilities[i], probabilities[j], axis=1) ** 2
        expected = {
            "disagreement": np.mean(predicted[i] != predicted[j]),
            "divergence": np.mean(divergence),
            "accuracy": abs(accuracies[i] - accuracies[j]),
            "probe_loss": abs(losses[i] - losses[j]),
        }
        assert list(expected) == result.function.values.tolist()
        np.testing.assert_allclose(result.difference[:, i, j], [*expected.values()], atol=1e-5)
        columns = np.split(np.stack(layers), 2, axis=1)
        for measure, oracle in (("cka", oracles.cka), ("linear_predictivity", predictivity)):
            similarity = np.mean(
                [oracle([x[[a, b]] for x in columns]) for a, b in ((i, j), (j, i))]
            )
            got = result.dissimilarity.sel(measure=measure)[i, j]
            np.testing.assert_allclose(got, 1 - similarity, atol=1e-4)


def predictivity(batches):
    return oracles.predictivity(batches, 0.1, 5)


def test_a_probe_is_the_ridge_regression_of_scikit_learn(rng):
    labels = rng.integers(CLASSES, size=61)
    targets = np.eye(CLASSES)[labels]
    for channels in (5, 40):  # fewer and more than images in a half
        x = rng.normal(size=(61, channels)) + labels[:, None]
        error = total = 0
        order = np.argsort(labels, kind="stable")
        for fitted, tested in ((order[::2], order[1::2]),) * 2:
            if total:
                fitted, tested = tested, fitted
            penalty = 0.1 * np.var(x[fitted], axis=0).mean() * len(x[fitted])
            probe = Ridge(penalty).fit(x[fitted], targets[fitted])
            error += np.sum((probe.predict(x[tested]) - targets[tested]) ** 2)
            total += np.sum((targets[tested] - targets[fitted].mean(axis=0)) ** 2)
        np.testing.assert_allclose(probe_loss(x.astype("float32"), labels, 3), error / total, 1e-4)
    assert probe_loss(np.ones((61, 5), "float32"), labels, CLASSES) == 1


def test_the_loss_of_a_probe_does_not_depend_on_the_order_of_labels(rng):
    """Labels that take turns hold other classes at even positions than at odd ones."""
    labels = np.arange(120) % 4
    x = np.eye(4)[labels] + 0.1 * rng.normal(size=(120, 4))
    order = rng.permutation(120)
    losses = [probe_loss(x[i].astype("float32"), labels[i], 4) for i in (np.arange(120), order)]
    assert max(losses) < 0.1


@pytest.mark.parametrize("kind", [ScoreKind.SOFTMAX, ScoreKind.SIGMOIDS])
def test_divergence_is_that_of_scipy(kind, rng):
    scores = 30 * rng.normal(size=(3, 7, CLASSES))
    p = np.exp(scores) / np.exp(scores).sum(axis=-1, keepdims=True)
    p = p[..., None, :]
    if kind is ScoreKind.SIGMOIDS:  # a distribution over two outcomes for each class
        p = 1 / (1 + np.exp(-scores))
        p = np.stack([p, 1 - p], axis=-1)
    expected = np.nan_to_num(jensenshannon(p[:, None], p[None], axis=-1) ** 2).sum(axis=-1)
    divergence = pairwise_divergence(tf.constant(scores), kind)
    np.testing.assert_allclose(divergence, expected, atol=1e-7)


def test_weighted_correlations_are_spearmans_of_repeated_pairs(rng):
    x, y = rng.integers(5, size=(2, 2, 15))
    weights = np.concatenate([np.ones((1, 15), int), rng.integers(4, size=(3, 15))])
    signs = [np.sign(z[:, :, None] - z[:, None]) for z in (x, y)]
    correlations = rank_correlations(*signs, weights)
    for r, i, j in itertools.product(range(4), range(2), range(2)):
        repeated = (np.repeat(z, weights[r]) for z in (x[i], y[j]))
        np.testing.assert_allclose(correlations[r, i, j], stats.spearmanr(*repeated).statistic)


def pairs_of(points):
    """Distances of all pairs of points on a line or in space, as (1, pair)."""
    first, second = np.triu_indices(len(points), 1)
    return np.linalg.norm(points[first] - points[second], axis=-1)[None]


def test_the_p_value_is_that_of_all_permutations(rng):
    x, y = (pairs_of(rng.normal(size=(5, 2))) for _ in "xy")
    index = np.zeros((5, 5), int)
    index[np.triu_indices(5, 1)] = np.arange(10)
    index += index.T
    rho = [
        abs(stats.spearmanr(x[0], y[0][index[np.ix_(p, p)][np.triu_indices(5, 1)]]).statistic)
        for p in itertools.permutations(range(5))
    ]
    exact = np.mean(np.array(rho) >= rho[0] - 1e-9)
    p_value = correlate_pairs(x, y, 9999, 0)["p_value"].item()
    assert abs(p_value - exact) < 4 * np.sqrt(exact * (1 - exact) / 9999) + 1e-4


def test_the_interval_is_that_of_a_bootstrap_without_pairs_of_a_model_with_itself(rng):
    z = rng.normal(size=(8, 2))
    x, y = pairs_of(z), pairs_of(z + 0.5 * rng.normal(size=z.shape))
    estimates = correlate_pairs(x, y, 1500, 0)
    table = np.zeros((2, 8, 8))
    table[:, *np.triu_indices(8, 1)] = x[0], y[0]
    table += table.swapaxes(1, 2)
    resampled = []
    for _ in range(1500):
        drawn = rng.integers(8, size=8)
        differ = drawn[:, None] != drawn
        upper = np.triu(differ)
        if len(set(drawn)) > 2:
            resampled.append(stats.spearmanr(*table[:, drawn][:, :, drawn][:, upper]).statistic)
    ends = [estimates[f"correlation_{end}"].item() for end in ("low", "high")]
    np.testing.assert_allclose(ends, np.quantile(resampled, (0.025, 0.975)), atol=0.08)
    np.testing.assert_allclose(estimates["correlation"], stats.spearmanr(x[0], y[0]).statistic)


@pytest.mark.slow
@pytest.mark.parametrize("num_models", [5, 10])
def test_unrelated_functions_are_rejected_in_five_percent(num_models):
    """Distances of unrelated points: in 2,000 draws, the standard error is 0.5 points."""
    rng = np.random.default_rng(0)
    covered, rejected = np.zeros((2, 2000), bool)
    for draw in range(2000):
        x, y = (pairs_of(rng.normal(size=(num_models, 3))) for _ in "xy")
        estimates = correlate_pairs(x, y, 199, draw)
        covered[draw] = estimates["correlation_low"] <= 0 <= estimates["correlation_high"]
        rejected[draw] = estimates["p_value"] <= 0.05
    assert abs(rejected.mean() - 0.05) < 0.015
    # The interval of few models is too long: see the page.
    assert covered.mean() > 0.935


def test_what_has_no_rank_has_no_correlation(model, rng):
    """Functions that are equal, and canonical correlations of too few images."""
    encoder, head = model
    models = {name: linear(encoder @ rotation(rng), 0 * head) for name in "abcd"}
    with pytest.warns(UserWarning, match=r"^cca has no correlation.*'?a'?, '?b'?"):
        result = analysis.grounded_similarity(models, IMAGES[:12], ["cka", "cca"])
    for name in ("correlation", "correlation_low", "correlation_high", "p_value"):
        assert result[name].isnull().all()


def test_binary_classifiers_of_one_sigmoid(model, rng):
    """Their probabilities are those of two classes."""
    encoder, _ = model
    heads = [rng.normal(size=(CHANNELS, 1)) for _ in "abcd"]
    layer = IMAGES.reshape(-1, CHANNELS).astype(float) @ encoder
    p = 1 / (1 + np.exp(-np.stack([layer @ head for head in heads])))

    def binary(head):
        whole = linear(encoder, head)

        def classify(images):
            taps = whole(images)
            return {"layer": taps["layer"], "logits": tf.sigmoid(taps["logits"])}

        return classify

    models = dict(zip("abcd", map(binary, heads), strict=True))
    result = analysis.grounded_similarity(models, IMAGES, ["cka"])
    table = result.difference.sel(model_x="a", model_y="b")
    assert table.sel(function="disagreement") == np.mean((p[0] > 0.5) != (p[1] > 0.5))
    both = np.concatenate([p, 1 - p], axis=-1)
    divergence = np.mean(jensenshannon(both[0], both[1], axis=1) ** 2)
    np.testing.assert_allclose(table.sel(function="divergence"), divergence, rtol=1e-5)
    with pytest.raises(ValueError, match="all in sigmoids"):
        mixed = models | {"d": linear(encoder, np.repeat(heads[0], 2, axis=1))}
        analysis.grounded_similarity(mixed, IMAGES, ["cka"])


def test_errors(model):
    encoder, head = model
    models = {name: linear(encoder, head) for name in "abcd"}
    with pytest.raises(ValueError, match=r"at least 4 models. Received: \['a'\]"):
        analysis.grounded_similarity({"a": models["a"]}, IMAGES)
    with pytest.raises(ValueError, match=r"shape \(4, 4\).*'cost' of shape \(3, 3\)"):
        analysis.grounded_similarity(models, IMAGES, differences={"cost": np.eye(3)})
    logits = {name: linear(encoder, head[:, :1]) for name in "abcd"}
    with pytest.raises(ValueError, match=r"two or more classes.*'logits' of 'a'"):
        analysis.grounded_similarity(logits, IMAGES)
    with pytest.raises(ValueError, match=r"two classes or more\. Received: one class"):
        analysis.grounded_similarity(models, (IMAGES, np.zeros(96, int)), ["cka"])
    images = tf.data.Dataset.from_tensor_slices((IMAGES, np.arange(96) % 2)).batch(48)
    images.class_names = ("cat", "dog")
    with pytest.raises(ValueError, match="labels that number the model's classes"):
        analysis.grounded_similarity(models, images, ["cka"])
    with pytest.raises(ValueError, match=r"built-in measures: \['accuracy'\]"):
        analysis.grounded_similarity(models, IMAGES, differences={"accuracy": np.eye(4)})
    with pytest.raises(ValueError, match=r"same classes.*'d': 2"):
        analysis.grounded_similarity(models | {"d": linear(encoder, head[:, :2])}, IMAGES, ["cka"])
    with pytest.raises(ValueError, match=r"finite activations.*at b"):
        analysis.grounded_similarity(
            models | {"b": linear(encoder * np.nan, head)}, IMAGES, ["cka"]
        )
    constant = models | {"b": linear(encoder * 0, head)}
    with (
        pytest.raises(ValueError, match=r"vary between images. Received: b"),
        pytest.warns(UserWarning, match="do not vary"),
    ):
        analysis.grounded_similarity(constant, IMAGES, ["cka"])
    headless = models | {"b": lambda images: {"logits": models["a"](images)["logits"]}}
    with pytest.raises(ValueError, match=r"layer before the scores. Received: 'b'"):
        analysis.grounded_similarity(headless, IMAGES, ["cka"])
    with pytest.raises(ValueError, match="from 0 to num_classes - 1 = 2"):
        analysis.grounded_similarity(models, (IMAGES, np.arange(96)), ["cka"])
