"""Updates by one operation a variable are those of the formulas, in NumPy and float64."""

from inspect import signature

import keras
import numpy as np
import pytest
import tensorflow as tf

import vit_tf
from vit_tf.distribute import strategy
from vit_tf.training.optimizers import (
    SGD,
    AdamW,
    Muon,
    WarmupDecay,
    _Adaptive,
    _KernelDecay,
    layer_factors,
)
from vit_tf.training.recipes import Recipe

STEPS, RATE, DECAY = 12, 0.05, 0.3
SHAPES = {"block00/kernel": (4, 3), "block00/bias": (3,), "head/kernel": (3, 2)}
SHAPES |= {"unit01/kernel": (3, 2, 2, 5), "root/kernel": (2, 2, 3, 2)}


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


def muon(weights, gradient, step, state):
    """Jordan et al. 2024 with the scale of Liu et al. 2025, equation 4; momentum 0.8."""
    m = 0.8 * state[0] + gradient
    x = (gradient + 0.8 * m).reshape(-1, weights.shape[-1])
    x /= np.linalg.norm(x)
    for _ in range(5):
        product = x @ x.T
        x = 3.4445 * x + (-4.7750 * product + 2.0315 * product @ product) @ x
    return weights - rate(step) * 0.2 * np.sqrt(max(x.shape)) * x.reshape(weights.shape), (m, 0)


CASES = {
    "adamw": (AdamW, {"epsilon": 1e-12}, adamw, adamw),
    "corrected epsilon": (AdamW, {"epsilon": 0.1, "corrected_epsilon": True}, corrected, corrected),
    "momentum": (SGD, {"momentum": 0.8}, momentum, momentum),
    "plain": (SGD, {}, plain, plain),
    "muon": (Muon, {"momentum": 0.8, "epsilon": 1e-12}, muon, adamw),
    "muon, corrected epsilon": (
        Muon,
        {"momentum": 0.8, "epsilon": 0.1, "corrected_epsilon": True},
        muon,
        corrected,
    ),
}


def make_variables(values):
    """Float32 variables of these paths and values."""
    variables = []
    for path, value in values.items():
        layer, name = path.split("/")
        with keras.name_scope(layer):
            variables.append(keras.Variable(value.astype("float32"), name=name))
    assert [variable.path for variable in variables] == list(values)
    return variables


@pytest.mark.parametrize("name", CASES)
def test_updates_are_those_of_the_formula(name):
    make, settings, matrix_formula, formula = CASES[name]
    schedule = WarmupDecay(RATE, 3, STEPS, "linear")
    optimizer = make(schedule, weight_decay=DECAY, global_clipnorm=6.0, **settings)
    rng = np.random.default_rng(0)
    first = {path: rng.normal(size=shape) for path, shape in SHAPES.items()}
    variables = make_variables(first)
    optimizer.build(variables)
    apply = tf.function(lambda gradients: optimizer.apply(gradients, variables))
    expected, states = dict(first), dict.fromkeys(SHAPES, (0.0, 0.0))
    for step in range(STEPS):
        gradients = {path: rng.normal(0.5, size=shape) for path, shape in SHAPES.items()}
        apply([tf.constant(gradient, "float32") for gradient in gradients.values()])
        norm = np.sqrt(sum((gradient**2).sum() for gradient in gradients.values()))
        assert norm > 6
        for path, gradient in gradients.items():
            if path.endswith("kernel"):
                expected[path] = expected[path] * (1 - rate(step) * DECAY)
            inner = path in ("block00/kernel", "unit01/kernel")
            update = matrix_formula if inner else formula
            expected[path], states[path] = update(
                expected[path], gradient * 6 / norm, step, states[path]
            )
    for variable in variables:
        np.testing.assert_allclose(variable, expected[variable.path], rtol=0, atol=3e-6)
        assert np.abs(expected[variable.path] - first[variable.path]).max() > 0.05


@pytest.mark.parametrize(
    "make, arguments, more",
    [
        (vit_tf.ViT, {"representation_dim": 5}, ["pre_logits/kernel"]),
        (vit_tf.DistilledViT, {}, []),
    ],
)
def test_muon_updates_matrices_before_the_head_only(make, arguments, more):
    """Its state has a velocity for each variable that AdamW updates."""
    model = make((8, 8, 3), 4, 2, 2, 8, 16, 3, **arguments)
    optimizer = Muon(0.01)
    optimizer.build(model.trainable_variables)
    matrices = [
        v.path.split("/", 1)[1]
        for v, velocity in zip(model.trainable_variables, optimizer.adam_velocities, strict=True)
        if velocity is None
    ]
    layers = ("query", "key", "value", "out", "expand", "contract")
    blocks = [f"block0{block}/{layer}/kernel" for block in (0, 1) for layer in layers]
    assert matrices == [*blocks, *more]
    table = keras.Variable(np.ones((4, 3), "float32"), name="table")
    assert optimizer._should_use_adamw(table)


@pytest.mark.parametrize("paths", [("a/kernel", "b/kernel"), ("a/bias", "head/kernel")])
def test_muon_requires_a_head_and_other_matrices(paths):
    variables = make_variables({path: np.ones((2, 2)) for path in paths})
    with pytest.raises(ValueError, match=r"layer called 'head'.*Muon"):
        Muon(0.01).build(variables)


@pytest.mark.parametrize("make", [AdamW, Muon])
def test_layer_decay_lowers_the_rate_from_block_to_block(make):
    """A first gradient of ones moves weights by a multiple of the rate: by 1 for AdamW."""
    keras.utils.set_random_seed(0)
    model = vit_tf.ViT((8, 8, 3), 4, 2, 2, 8, 16, 3)
    optimizer = make(0.01, weight_decay=0.5, epsilon=1e-12, layer_decay=0.5)
    for variable in model.trainable_variables:
        variable.assign(np.ones(variable.shape))
    optimizer.build(model.trainable_variables)
    optimizer.apply([tf.ones(v.shape) for v in model.trainable_variables])
    factors = {"embedding": 0.125, "block00": 0.25, "block01": 0.5, "norm": 1.0, "head": 1.0}
    for variable in model.trainable_variables:
        layer = variable.path.split("/")[1]
        factor = 0.01 * factors[layer]
        decayed = 1 - 0.5 * factor if variable.name == "kernel" else 1
        step = 1
        if make is Muon and variable.name == "kernel" and layer.startswith("block"):
            moved, _ = muon(np.zeros(variable.shape), np.ones(variable.shape), 3, (0.0, 0.0))
            step = -moved / rate(3)
        np.testing.assert_allclose(
            variable, decayed - factor * step, rtol=1e-5, err_msg=variable.path
        )
    again = make.from_config(optimizer.get_config())
    assert again.layer_decay == 0.5
    assert again.get_config() == optimizer.get_config()
    with pytest.raises(ValueError, match="Expected a model of blocks"):
        variables = make_variables({"a/kernel": np.ones((2, 2)), "head/kernel": np.ones((2, 2))})
        make(0.01, layer_decay=0.5).build(variables)


@pytest.mark.parametrize(
    "part", ["stem/root/kernel", "pre_norm/gamma", "rotation/periods", "patch_embedding/positions"]
)
def test_what_comes_before_the_blocks_has_the_lowest_rate(part):
    paths = [f"m/{part}", "m/block00/mlp_norm/gamma", "m/block01/query/kernel", "m/norm/gamma"]
    assert list(layer_factors(paths, 0.5).values()) == [0.125, 0.25, 0.5, 1.0]


@pytest.mark.usefixtures("without_xla")
@pytest.mark.parametrize(
    "name", ["adamw", *(pytest.param(name, marks=pytest.mark.slow) for name in ("sgd", "muon"))]
)
def test_gradients_of_several_batches_are_those_of_a_larger_one(name):
    """Weights and their average, with warm-up, schedule, decay and clipping in updates."""
    rng = np.random.default_rng(0)
    # Its epsilon keeps AdamW from making whole steps of rounding errors.
    settings = {"optimizer": name, "epsilon": None if name == "sgd" else 0.1}
    settings |= {"epochs": 6, "warmup_epochs": 2, "learning_rate": 0.2, "ema": 0.6}
    images = rng.normal(size=(24, 4, 4, 1)).astype("float32")
    labels = rng.integers(3, size=24)
    trained = []
    for batch_size, steps in ((12, 1), (4, 3)):
        keras.utils.set_random_seed(1)
        layers = [keras.layers.Flatten(), keras.layers.Dense(5, "gelu")]
        layers.append(keras.layers.Dense(3, name="head"))
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


# Methods of Keras' optimizers that those of this package override or call, and what they take.
HOOKS = {
    "_all_reduce_sum_gradients": ["self", "grads_and_vars"],
    "_apply_weight_decay": ["self", "variables"],
    "_backend_update_step": ["self", "grads", "trainable_variables", "learning_rate"],
    "_clip_gradients": ["self", "grads"],
    "_get_current_learning_rate": ["self"],
    "_get_variable_index": ["self", "variable"],
    "_update_model_variables_moving_average": ["self", "trainable_variables"],
    "_use_weight_decay": ["self", "variable"],
}


def test_private_methods_that_are_overridden_are_those_of_keras():
    """A method that Keras renames would be called no more: gradients would be clipped twice."""
    for name, parameters in HOOKS.items():
        assert list(signature(getattr(keras.optimizers.Optimizer, name)).parameters) == parameters
    overridden = {
        name for kind in (_KernelDecay, _Adaptive) for name in vars(kind) if name[:2] != "__"
    }
    # What this package adds, and what Keras documents as methods to override.
    ours = {"_adamw", "_factor", "_replaced", "_update", "_update_in_jax"}
    ours |= {"build", "get_config", "update_step"}
    assert overridden - ours <= HOOKS.keys()


def test_accumulation_needs_one_replica():
    with strategy("mirrored").scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(3)])
        with pytest.raises(ValueError, match="gradient_accumulation_steps=4 on 2 replicas"):
            Recipe(gradient_accumulation_steps=4).compile(model, 9)
    assert Recipe(gradient_accumulation_steps=2).to_config()["gradient_accumulation_steps"] == 2


@pytest.mark.parametrize(
    "settings, name, momentum",
    [
        ({}, "AdamW", None),
        ({"momentum": 0.8}, "SGD", 0.8),
        ({"optimizer": "sgd"}, "SGD", 0.9),
        ({"optimizer": "muon", "momentum": 0.8}, "Muon", 0.8),
    ],
)
def test_optimizers_of_recipes(settings, name, momentum):
    optimizer = Recipe(weight_decay=0.3, clip_norm=0.5, **settings).make_optimizer(9)
    assert type(optimizer).__name__ == name and optimizer.global_clipnorm == 0.5
    assert getattr(optimizer, "momentum", None) == momentum
    assert {optimizer.weight_decay, getattr(optimizer, "adam_weight_decay", 0.3)} == {0.3}


@pytest.mark.parametrize(
    "settings, message",
    [
        ({"optimizer": "adam"}, "adamw"),
        ({"optimizer": "adamw", "momentum": 0.9}, "momentum"),
        ({"optimizer": "sgd", "epsilon": 1e-8}, "epsilon"),
        ({"momentum": 0.9, "layer_decay": 0.5}, "layer_decay"),
    ],
)
def test_settings_of_another_optimizer_are_refused(settings, message):
    with pytest.raises(ValueError, match=message):
        Recipe(**settings)


@pytest.mark.parametrize("decay", ["cosine", "linear"])
@pytest.mark.parametrize("warmup", [0, 20])
def test_schedule_is_the_formula(decay, warmup):
    steps = np.array([0, 1, 10, 19, 20, 21, 60, 99, 100, 130])
    rates = [float(WarmupDecay(0.3, warmup, 100, decay)(step)) for step in steps]
    progress = np.clip((steps - warmup) / (100 - warmup), 0, 1)
    fall = (1 + np.cos(np.pi * progress)) / 2 if decay == "cosine" else 1 - progress
    expected = 0.3 * np.where(steps < warmup, steps / max(warmup, 1), fall)
    np.testing.assert_allclose(rates, expected, atol=1e-7)


@pytest.mark.parametrize("kind", ["vit", "bit", "reloaded vit"])
def test_only_kernels_decay(kind, tmp_path):
    if kind == "bit":
        model = vit_tf.BiT((8, 8, 3), units=(1, 1), width_factor=0.5, num_classes=3)
    else:
        model = vit_tf.ViT((8, 8, 3), 4, 1, 2, 8, 16, num_classes=3)
    for variable in model.trainable_variables:
        variable.assign(np.random.default_rng(0).normal(size=variable.shape) + 1)
    recipe = Recipe(epochs=2, learning_rate=0.1, warmup_epochs=0, weight_decay=0.3)
    recipe.compile(model, 4)
    model.optimizer.build(model.trainable_variables)
    if kind == "reloaded vit":
        model.save(tmp_path / "model.keras")
        model = keras.saving.load_model(tmp_path / "model.keras")
    before = {v.path: v.numpy() for v in model.trainable_variables}
    zeros = [tf.zeros(v.shape) for v in model.trainable_variables]
    model.optimizer.apply(zeros, model.trainable_variables)
    names = set()
    for variable in model.trainable_variables:
        names.add(variable.name)
        shrunk = before[variable.path].astype(float) * (1 - 0.1 * 0.3)
        expected = shrunk if variable.name == "kernel" else before[variable.path]
        np.testing.assert_allclose(variable.numpy(), expected, rtol=3e-7, err_msg=variable.path)
        if variable.name != "kernel":
            np.testing.assert_array_equal(variable.numpy(), before[variable.path])
    expected = {"kernel", "bias", "gamma", "beta"}
    assert names == expected | (set() if kind == "bit" else {"prefix", "positions"})
