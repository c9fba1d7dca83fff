"""Erased concepts next to NumPy in float64, scikit-learn's probes and models whose use is known."""

import keras
import numpy as np
import pytest
import scipy.linalg
import tensorflow as tf
from scipy import stats
from sklearn.linear_model import LinearRegression, LogisticRegression, Ridge

import vit_tf
from vit_tf import analysis, data
from vit_tf.analysis.flow.concept_erasure import (
    Covariances,
    as_columns,
    fit_erasers,
    held_out_r_squared,
    quarters_of,
    random_interval,
    sums_of_tokens,
)
from vit_tf.data.shapes import KINDS

pytestmark = pytest.mark.usefixtures("without_graphs")


def covariances(x, z):
    """`Covariances` of rows of vectors and of values."""
    sums = {
        "count": len(x), "x": x.sum(axis=0), "z": z.sum(axis=0),
        "xx": x.T @ x, "xz": x.T @ z, "zz": z.T @ z,
    }  # fmt: skip
    return Covariances.from_sums([sums])


def correlated(rng, count=400, channels=7, classes=3):
    """Correlated vectors whose classes differ in their means, and these classes."""
    labels = rng.integers(classes, size=count)
    mixing = rng.normal(size=(channels, channels))
    x = rng.normal(size=(count, channels)) @ mixing + rng.normal(size=(classes, channels))[labels]
    return x + 5, labels


def test_no_linear_probe_finds_an_erased_concept(rng):
    x, labels = correlated(rng)
    z = np.eye(3)[labels]
    (eraser,) = fit_erasers(covariances(x, z))
    assert eraser.read.shape == (7, 2)
    erased = eraser(x)
    centred = erased - erased.mean(axis=0)
    assert np.abs(centred.T @ (z - z.mean(axis=0)) / len(x)).max() < 1e-10
    before, after = (LinearRegression().fit(rows, z).score(rows, z) for rows in (x, erased))
    assert before > 0.1 and abs(after) < 1e-12
    # The log loss of a classifier without a penalty is that of the frequencies of the classes.
    probe = LogisticRegression(C=np.inf, tol=1e-10, max_iter=10_000).fit(erased, labels)
    loss = -np.log(probe.predict_proba(erased)[np.arange(len(x)), labels]).mean()
    np.testing.assert_allclose(loss, stats.entropy(z.mean(axis=0)), atol=1e-8)
    np.testing.assert_allclose(erased.mean(axis=0), x.mean(axis=0))


def test_the_map_is_that_of_the_paper_and_the_smallest(rng):
    x, labels = correlated(rng)
    z = np.eye(3)[labels]
    (eraser,) = fit_erasers(covariances(x, z))
    cov, cross = np.cov(x.T, bias=True), (x - x.mean(axis=0)).T @ z / len(x)
    whitening = np.linalg.inv(scipy.linalg.sqrtm(cov))
    columns = whitening @ cross
    projection = columns @ np.linalg.pinv(columns, rcond=1e-8)
    matrix = np.linalg.inv(whitening) @ projection @ whitening
    np.testing.assert_allclose(eraser.write @ eraser.read.T, matrix, atol=1e-10)
    # Every map I - M that erases has M cross = cross: M plus anything that annihilates `cross`.
    annihilator = np.eye(7) - cross @ np.linalg.pinv(cross, rcond=1e-8)
    norms = np.eye(7), np.linalg.inv(cov), np.diag(rng.uniform(0.1, 3, 7))
    for norm in norms:
        least = np.trace(norm @ matrix @ cov @ matrix.T)
        for _ in range(20):
            other = matrix + rng.normal(size=(7, 7)) @ annihilator
            np.testing.assert_allclose(other @ cross, cross, atol=1e-10)
            assert np.trace(norm @ other @ cov @ other.T) > least
    # In the norm of the inverse covariance, the change is the rank.
    np.testing.assert_allclose(np.trace(np.linalg.inv(cov) @ matrix @ cov @ matrix.T), 2)


def test_erasure_commutes_with_invertible_maps(rng):
    x, labels = correlated(rng)
    z = np.eye(3)[labels]
    change, shift = rng.normal(size=(7, 7)), rng.normal(size=7)
    (eraser,), (changed,) = (fit_erasers(covariances(rows, z)) for rows in (x, x @ change + shift))
    np.testing.assert_allclose(changed(x @ change + shift), eraser(x) @ change + shift, atol=1e-8)


def test_constant_and_dependent_channels_and_concepts(rng):
    x, labels = correlated(rng)
    x = np.column_stack([x, x[:, 0] - 2 * x[:, 1], np.full(len(x), 3.0)])
    values = np.column_stack([labels, 2 * labels, labels == 1, np.zeros(len(x))]).astype(float)
    (eraser,) = fit_erasers(covariances(x, values))
    assert eraser.read.shape == (9, 2)
    erased = eraser(x)
    assert np.abs(np.cov(erased.T, values.T, bias=True)[:9, 9:]).max() < 1e-10
    np.testing.assert_allclose(erased[:, 8], 3)
    np.testing.assert_allclose(erased[:, 7], erased[:, 0] - 2 * erased[:, 1], atol=1e-8)
    # A layer that does not vary has nothing to erase.
    (constant,) = fit_erasers(covariances(np.ones((len(x), 2)), values))
    assert constant.read.shape == (2, 0)


def test_held_out_r_squared_is_that_of_ridge_regression(rng):
    x, labels = correlated(rng)
    z = np.eye(3)[labels]
    rows = np.array_split(np.arange(len(x)), 4)
    quarters = [covariances(x[part], z[part]) for part in rows]
    (eraser,) = fit_erasers(covariances(x[rows[0]], z[rows[0]]))
    (other,) = fit_erasers(covariances(x[rows[3]], z[rows[3]]))
    for erasers in (None, [eraser, other]):
        squared_error = total = 0
        for number in range(4):
            train, test = rows[number], rows[number ^ 1]
            seen = x if erasers is None else erasers[number // 2](x)
            penalty = 0.3 * np.var(seen[train], axis=0).mean() * len(train)
            probe = Ridge(penalty).fit(seen[train], z[train])
            squared_error += ((probe.predict(seen[test]) - z[test]) ** 2).sum()
            total += ((z[train].mean(axis=0) - z[test]) ** 2).sum()
        expected = 1 - squared_error / total
        np.testing.assert_allclose(held_out_r_squared(quarters, erasers, 0.3), expected)


def test_a_random_concept_leaves_the_interval_of_random_subspaces_in_5_percent(rng):
    """Labels of chance, erased with maps of other images, and a head that reads some directions."""
    count, runs, outside = 200, 600, 0
    mixing, head = rng.normal(size=(10, 10)), rng.normal(size=(10, 3))

    def loss_change(x, y, eraser):
        def loss(rows):
            scores = rows @ head / 4
            return np.log(np.exp(scores).sum(axis=1)) - scores[np.arange(len(y)), y]

        return (loss(eraser(x)) - loss(x)).mean()

    for _ in range(runs):
        x, y = rng.normal(size=(2 * count, 10)) @ mixing, rng.integers(3, size=2 * count)
        z = np.eye(4)[rng.integers(4, size=count)]
        erasers = fit_erasers(covariances(x[:count], z), 8, rng)
        changes = np.array([loss_change(x[count:], y[count:], eraser) for eraser in erasers])
        low, high = random_interval(changes[1:])
        outside += not low <= changes[0] <= high
    low, high = stats.binom.ppf([0.001, 0.999], runs, 0.05)
    assert low <= outside <= high, outside


def dense_model(head):
    """A model with one layer of six vectors of features, which are sums of pixels, and a head."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((2, 3, 1))
    x = keras.layers.Flatten(name="pixels")(inputs)
    x = keras.layers.Dense(6, name="features")(x)
    model = keras.Model(inputs, keras.layers.Dense(head.shape[1], name="logits")(x))
    model.get_layer("features").kernel.assign(np.eye(6))
    model.get_layer("logits").kernel.assign(head)
    return model


def log_softmax(scores):
    return scores - np.log(np.exp(scores).sum(axis=-1, keepdims=True))


def test_effects_are_those_of_maps_of_the_other_half(rng):
    head = rng.normal(size=(6, 3)).astype("float32")
    model = dense_model(head)
    features = vit_tf.submodel(model, "features", "logits")
    images = (rng.normal(size=(300, 6)) @ rng.normal(size=(6, 6)) / 3).astype("float32")
    images = images.reshape(300, 2, 3, 1)
    x = images.reshape(300, 6).astype("float64")
    concept = x[:, :1] + 0.5 * rng.normal(size=(300, 2))
    labels = rng.integers(3, size=300)
    result = analysis.concept_erasure(features, (images, labels), concept, draws=3, seed=5)
    quarters = quarters_of(tf.constant(images), 5).numpy()
    assert (np.bincount(quarters, minlength=4) > 40).all()
    erased, z = np.empty_like(x), as_columns(concept)
    for half in (0, 1):
        own, other = quarters // 2 == half, quarters // 2 != half
        erased[own] = fit_erasers(covariances(x[other], z[other]))[0](x[own])
    before, after = (log_softmax(rows @ head.astype("float64")) for rows in (x, erased))
    right = np.arange(300), labels
    changes = {
        "accuracy_change": 1.0 * (after.argmax(1) == labels) - (before.argmax(1) == labels),
        "loss_change": before[right] - after[right],
        "output_change": (np.exp(before) * (before - after)).sum(axis=1),
    }
    of_concept = result.sel(layer="features", erased="concept")
    for name, values in changes.items():
        np.testing.assert_allclose(of_concept[name], values.mean(), atol=1e-6)
        error = values.std(ddof=1) / np.sqrt(300)
        np.testing.assert_allclose(of_concept[f"{name}_stderr"], error, rtol=1e-3)
    assert result["rank"].sel(layer="features").item() == 2
    # A probe finds the concept, which is half noise, and nothing is left of it.
    assert 0.4 < result.r_squared.item() < 0.9 and abs(result.erased_r_squared.item()) < 0.05
    halved = analysis.concept_erasure(
        features, tf.data.Dataset.from_tensor_slices((images, labels)).batch(70), concept,
        draws=3, seed=5,
    )  # fmt: skip
    np.testing.assert_allclose(halved.output_change, result.output_change, atol=1e-6)


@pytest.mark.usefixtures("in_graphs")
def test_only_a_concept_that_the_head_reads_has_an_effect(rng):
    """Six independent features, of which the head reads the first."""
    head = np.zeros((6, 2))
    head[0] = -2, 2
    model = dense_model(head)
    features = vit_tf.submodel(model, "features", "logits")
    images = rng.normal(size=(2000, 2, 3, 1)).astype("float32")
    x = images.reshape(2000, 6)
    labels = (x[:, 0] > 0).astype(int)
    used = analysis.concept_erasure(features, (images, labels), "class")
    np.testing.assert_allclose(used.accuracy, 1)
    # Without its only feature the model gives all images of a half one class.
    accuracy = 1 + used.accuracy_change.sel(erased="concept").item()
    assert abs(accuracy - 0.5) < 0.1
    assert used.accuracy_change.sel(erased="concept") < used.accuracy_change_low.item()
    unused = analysis.concept_erasure(features, (images, labels), x[:, 3] > 0)
    assert unused.r_squared.item() > 0.5
    assert abs(unused.output_change.sel(erased="concept").item()) < 0.01
    # By hand: replacing the first feature by its mean.
    values = x[:, 0].astype("float64")
    before, after = (log_softmax(np.outer(v, head[0])) for v in (values, np.zeros(2000)))
    by_hand = (np.exp(before) * (before - after)).sum(axis=1).mean()
    exact = analysis.concept_erasure(features, (images, labels), values)
    np.testing.assert_allclose(exact.output_change.sel(erased="concept"), by_hand, rtol=0.02)


@pytest.fixture(scope="module")
def vit():
    keras.utils.set_random_seed(0)
    model = vit_tf.ViT(
        (16, 16, 3), 8, num_layers=2, num_heads=2, hidden_dim=8, mlp_dim=12, num_classes=3
    )
    # The head of an untrained ViT is zero, and its position embeddings are small.
    rng = np.random.default_rng(0)
    (positions,) = (weight for weight in model.weights if "position" in weight.path)
    for weight in (model.head.kernel, positions):
        weight.assign(rng.normal(size=weight.shape))
    return model


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.slow
def test_concepts_and_tokens_of_a_vit(vit, rng):
    pixels = rng.uniform(-0.5, 0.5, (80, 16, 16, 3)) + rng.uniform(-0.5, 0.5, (80, 1, 1, 3))
    images = pixels.astype("float32"), np.arange(80) % 3
    options = {"draws": 2, "layers": ["embedding", "block01/mlp/sum", "norm", "pooled"]}
    result = analysis.concept_erasure(vit, images, **options)
    assert result.layer.values.tolist() == options["layers"]
    rank = result["rank"]
    assert rank.tokens.values.tolist() == ["cls", "spatial", "all"]
    # The CLS token of the embedding is the same for all images.
    assert rank.sel(layer="embedding").values.tolist()[:2] == [0, 2]
    assert rank.sel(layer="pooled", tokens="all") == 2
    effect = result.output_change.sel(erased="concept")
    assert (effect > 0).all() and np.isfinite(result.output_change_stderr).all()
    # The head reads the CLS token of the last norm, which is what is pooled.
    np.testing.assert_allclose(effect.sel(layer="norm"), effect.sel(layer="pooled"), rtol=1e-4)
    colour = analysis.concept_erasure(vit, images, "colour", **options)
    assert colour["rank"].sel(layer="pooled", tokens="all") == 3
    assert colour.r_squared.sel(layer="embedding", tokens="spatial") > 0.1
    position = analysis.concept_erasure(vit, images, "position", **options)
    assert position.tokens.values.tolist() == ["spatial"] and "pooled" not in position.layer
    assert (position["rank"] == 3).all()
    # Positions are added to the patches, and remain.
    assert (position.r_squared > 0.5).all() and (position.erased_r_squared < 0.2).all()
    # After the last layer of attention, nothing reads the spatial tokens.
    np.testing.assert_allclose(
        position.output_change.sel(layer="norm", erased="concept"), 0, atol=1e-6
    )


def test_sums_of_positions_and_of_images(rng):
    x = rng.normal(size=(5, 4, 3))
    z = rng.normal(size=(5, 2))
    for values, rows in ((z, np.repeat(z, 4, axis=0)), (None, np.tile(np.eye(4), (5, 1)))):
        z_of_images = None if values is None else tf.constant(values)
        sums = tf.nest.map_structure(np.asarray, sums_of_tokens(tf.constant(x), z_of_images))
        own, expected = Covariances.from_sums([sums]), covariances(x.reshape(20, 3), rows)
        for name in ("count", "mean_x", "mean_z", "xx", "xz", "zz"):
            np.testing.assert_allclose(getattr(own, name), getattr(expected, name), atol=1e-12)


def test_other_concepts_are_refused(vit, rng):
    images = rng.uniform(-1, 1, (20, 16, 16, 3)).astype("float32"), np.arange(20) % 3
    for concept, message in (
        ("colours", "colour"),
        (np.zeros(20), "vary"),
        (np.full(20, np.nan), "finite"),
        (np.arange(19), "19 rows for 20 images"),
        (np.arange(21), "21 rows for 20 images"),
        (np.zeros((20, 2, 2)), "shape"),
    ):
        with pytest.raises(ValueError, match=message):
            analysis.concept_erasure(vit, images, concept, layers="norm")
    with pytest.raises(ValueError, match="draws"):
        analysis.concept_erasure(vit, images, draws=1, layers="norm")
    with pytest.raises(ValueError, match="more images"):
        analysis.concept_erasure(vit, (images[0][:3], images[1][:3]), layers="norm")
    with pytest.raises(ValueError, match="positions"):
        analysis.concept_erasure(vit, images, "position", layers="pooled")


@pytest.mark.usefixtures("in_graphs")
@pytest.mark.long  # a planted truth in a trained ViT; other tests plant some in features
def test_without_texture_a_classifier_decides_by_shape_if_it_could_learn_it():
    """Linear classifiers on a bundled ViT, of images whose texture shows the class, and without."""
    vit = vit_tf.load("vit-cls-cifar10")
    inputs = keras.Input((32, 32, 3))
    pooled = keras.layers.Identity(name="features")(vit.intermediates(inputs)["pooled"])
    model = keras.Model(inputs, keras.layers.Dense(8, name="logits")(pooled))
    features = vit_tf.submodel(model, "features", "logits")
    settings = {"image_size": 32, "splits": ("train",), "take": 1600, "batch_size": 1600}
    rows, labels = {}, {}
    for name in ("textured-shapes", "shapes"):
        (train,) = data.load(name, **settings)
        ((images, labels[name]),) = train.as_numpy_iterator()
        parts = [features(part)["features"] for part in np.split(images, 8)]
        rows[name] = np.concatenate(parts)
    conflicts, pairs = data.load_cue_conflict(952, image_size=32)
    shape, texture = np.array([train.class_names.index(kind) for kind in KINDS])[pairs].T

    def erase_texture(names, true_labels):
        """The effect on the accuracy with respect to these labels."""
        training = [np.concatenate([part[name] for name in names]) for part in (rows, labels)]
        probe = LogisticRegression(max_iter=1000).fit(*training)
        model.get_layer("logits").set_weights([probe.coef_.T, probe.intercept_])
        return analysis.concept_erasure(features, (conflicts, true_labels), texture, draws=4)

    def accuracies(effect):
        return float(effect.accuracy), effect.accuracy.values + effect.accuracy_change.values[0]

    # A classifier of both sets learns both cues and decides by texture.
    both = "textured-shapes", "shapes"
    by_shape, (shape_after, shape_random) = accuracies(erase_texture(both, shape))
    by_texture, (texture_after, texture_random) = accuracies(erase_texture(both, texture))
    assert by_texture > 0.7 and by_shape < 0.1
    # Without the texture it decides as often by shape as one that could only learn the shape, and
    # by texture about as often as by chance.
    plain = erase_texture(("shapes",), shape)
    assert abs(shape_after - plain.accuracy) < 0.04 and shape_after > 0.15
    assert texture_after < 0.2 and shape_after / (shape_after + texture_after) > 0.5
    assert texture_random > 0.7 and shape_random < 0.1
    # The other one never used the texture.
    change = plain.accuracy_change.sel(erased="concept")
    assert plain.accuracy_change_low <= change <= plain.accuracy_change_high
    assert abs(change) < 0.03
