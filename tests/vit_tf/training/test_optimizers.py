"""Updates by one operation a variable are those of the formulas, in NumPy and float64."""

import keras
import numpy as np
import pytest
import tensorflow as tf

from vit_tf.training.optimizers import SGD, AdamW, WarmupDecay

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


def momentum(weights, gradient, step, state):
    (m, _) = state
    m = 0.8 * m - rate(step) * gradient
    return weights + m, (m, 0)


def plain(weights, gradient, step, state):
    return weights - rate(step) * gradient, state


CASES = {
    "adamw": (AdamW, {"epsilon": 1e-12}, adamw),
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
