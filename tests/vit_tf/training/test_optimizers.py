"""Updates by one operation a variable are those of the formulas, in NumPy and float64."""

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf.distribute import strategy
from vit_tf.training.optimizers import SGD, AdamW, WarmupDecay, layer_factors
from vit_tf.training.recipes import Recipe

STEPS, RATE, DECAY = 12, 0.05, 0.3
SHAPES = {"kernel": (4, 3), "bias": (3,)}


def rate(step):
    """Of `WarmupDecay(RATE, 3, STEPS, "linear")`."""
    return RATE * (step / 3 if step < 3 else 1 - (step - 3) / (STEPS - 3))


def adamw(weights, gradient, step, state):
    """Loshchilov and Hutter 2019, algorithm 2, of weights that have been decayed."""
    m, v = state
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient**2
    over = np.sqrt(v / (1 - 0.999 ** (step + 1))) + 1e-12
    return weights - rate(step) * m / (1 - 0.9 ** (step + 1)) / over, (m, v)


def corrected(weights, gradient, step, state):
    """Kingma and Ba 2015, algorithm 1, as optax and PyTorch have it, with a large epsilon."""
    m, v = state
    m = 0.9 * m + 0.1 * gradient
    v = 0.999 * v + 0.001 * gradient**2
    over = np.sqrt(v / (1 - 0.999 ** (step + 1))) + 0.1
    return weights - rate(step) * m / (1 - 0.9 ** (step + 1)) / over, (m, v)


def momentum(weights, gradient, step, state):
    (m, _) = state
    m = 0.8 * m - rate(step) * gradient
    return weights + m, (m, 0)


def plain(weights, gradient, step, state):
    return weights - rate(step) * gradient, state


CASES = {
    "adamw": (AdamW, {"epsilon": 1e-12}, adamw),
    "corrected epsilon": (AdamW, {"epsilon": 0.1, "corrected_epsilon": True}, corrected),
    "momentum": (SGD, {"momentum": 0.8}, momentum),
    "plain": (SGD, {}, plain),
}


@pytest.mark.parametrize("name", CASES)
def test_updates_are_those_of_the_formula(name):
    make, settings, formula = CASES[name]
    schedule = WarmupDecay(RATE, 3, STEPS, "linear")
    optimizer = make(schedule, weight_decay=DECAY, global_clipnorm=2.0, **settings)
    rng = np.random.default_rng(0)
    first = {kind: rng.normal(size=shape) for kind, shape in SHAPES.items()}
    variables = [keras.Variable(first[kind].astype("float32"), name=kind) for kind in SHAPES]
    optimizer.build(variables)
    apply = tf.function(lambda gradients: optimizer.apply(gradients, variables))
    expected, states = dict(first), dict.fromkeys(SHAPES, (0.0, 0.0))
    for step in range(STEPS):
        gradients = {kind: rng.normal(size=shape) for kind, shape in SHAPES.items()}
        apply([tf.constant(gradient, "float32") for gradient in gradients.values()])
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        assert norm > 2
        expected["kernel"] = expected["kernel"] * (1 - rate(step) * DECAY)
        for kind, gradient in gradients.items():
            expected[kind], states[kind] = formula(
                expected[kind], gradient * 2 / norm, step, states[kind]
            )
    for variable, kind in zip(variables, SHAPES, strict=True):
        np.testing.assert_allclose(variable, expected[kind], rtol=0, atol=3e-6)
        assert np.abs(expected[kind] - first[kind]).max() > 0.05


def test_layer_decay_lowers_the_rate_from_block_to_block():
    """Adam's first step is the rate itself: -rate * factor, and the decay is as much smaller."""
    keras.utils.set_random_seed(0)
    model = vit_tf.ViT((8, 8, 3), 4, 2, 2, 8, 16, 3)
    optimizer = AdamW(0.01, weight_decay=0.5, epsilon=1e-12, layer_decay=0.5)
    for variable in model.trainable_variables:
        variable.assign(np.ones(variable.shape))
    optimizer.build(model.trainable_variables)
    optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables])
    factors = {"embedding": 0.125, "block00": 0.25, "block01": 0.5, "norm": 1.0, "head": 1.0}
    for variable in model.trainable_variables:
        rate = 0.01 * factors[variable.path.split("/")[1]]
        decayed = 1 - 0.5 * rate if variable.name == "kernel" else 1
        np.testing.assert_allclose(variable, decayed - rate, rtol=1e-5, err_msg=variable.path)
    again = AdamW.from_config(optimizer.get_config())
    assert again.layer_decay == 0.5
    with pytest.raises(ValueError, match="Expected a model of blocks"):
        AdamW(0.01, layer_decay=0.5).build([keras.Variable([1.0], name="kernel")])


@pytest.mark.parametrize(
    "part", ["stem/root/kernel", "pre_norm/gamma", "rotation/periods", "patch_embedding/positions"]
)
def test_what_comes_before_the_blocks_has_the_lowest_rate(part):
    paths = [f"m/{part}", "m/block00/mlp_norm/gamma", "m/block01/query/kernel", "m/norm/gamma"]
    assert list(layer_factors(paths, 0.5).values()) == [0.125, 0.25, 0.5, 1.0]


@pytest.mark.parametrize("momentum", [None, 0.9], ids=["adamw", "sgd"])
def test_gradients_of_several_batches_are_those_of_a_larger_one(momentum):
    """Weights and their average, with warm-up, schedule, decay and clipping in updates."""
    rng = np.random.default_rng(0)
    # Its epsilon keeps AdamW from making whole steps of rounding errors.
    settings = {"momentum": momentum, "epsilon": 0.1 if momentum is None else None}
    settings |= {"epochs": 6, "warmup_epochs": 2, "learning_rate": 0.2, "ema": 0.6}
    images = rng.normal(size=(24, 4, 4, 1)).astype("float32")
    labels = rng.integers(3, size=24)
    trained = []
    for batch_size, steps in ((12, 1), (4, 3)):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Flatten(), keras.layers.Dense(5, "gelu"), keras.layers.Dense(3)]
        model = keras.Sequential([keras.Input((4, 4, 1)), *layers])
        recipe = Recipe(gradient_accumulation_steps=steps, clip_norm=0.3, **settings)
        recipe.compile(model, 24 // batch_size)
        first = model.get_weights()
        options = {"batch_size": batch_size, "epochs": 6, "shuffle": False, "verbose": 0}
        keras.Model.fit(model, images, labels, **options)
        assert int(model.optimizer.iterations) == 12
        averages = model.optimizer._model_variables_moving_average
        trained.append([*map(np.asarray, [*model.trainable_variables, *averages])])
        # `fit` ends with the averages in place of the weights.
        trained[-1] += [np.asarray(v) for v in model.optimizer.variables if "momentum" in v.path]
        assert max(np.abs(a - b).max() for a, b in zip(first, trained[-1], strict=False)) > 0.05
    for one, other in zip(*trained, strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=1e-6)


def test_accumulation_is_one_of_the_fields_that_are_checked():
    with pytest.raises(ValueError, match="gradient_accumulation_steps to be an int > 0"):
        Recipe(gradient_accumulation_steps=0)
    with strategy("mirrored").scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
        with pytest.raises(ValueError, match="gradient_accumulation_steps=4 on 2 replicas"):
            Recipe(gradient_accumulation_steps=4).compile(model, 9)
    assert "gradient_accumulation_steps" not in Recipe().to_config()
    assert Recipe(gradient_accumulation_steps=2).to_config()["gradient_accumulation_steps"] == 2
