"""The clocks of `benchmarks/analysis_profile.py`: each second counts once, for the innermost."""

import time

import numpy as np
import pytest
import tensorflow as tf

from benchmarks import analysis_profile as profile


def spin(seconds):
    """Takes so many seconds of wall time."""
    until = time.perf_counter() + seconds
    while time.perf_counter() < until:
        pass


def test_time_counts_for_the_innermost_kind():
    clock = profile.Clock()
    read = clock("reading models and images", lambda: spin(0.2))

    def measure():
        spin(0.1)
        read()

    clock("tracing", measure)()
    spin(0.05)
    clock.advance()
    seconds = {kind: wall for kind, (wall, _) in clock.seconds.items()}
    assert seconds["reading models and images"] == pytest.approx(0.2, abs=0.05)
    assert seconds["tracing"] == pytest.approx(0.1, abs=0.05)
    assert clock.calls["tracing"] == 1
    assert "| reading models and images | 1 | 0.2 |" in profile.table(
        clock, {"activations": [2, 3]}, 0.35, 2**20
    )


def test_steps_with_gradients_count_apart_from_forward_passes(monkeypatch):
    from tensorflow.python.eager.polymorphic_function.atomic_function import AtomicFunction

    monkeypatch.setattr(AtomicFunction, "call_flat", AtomicFunction.call_flat)
    clock = profile.Clock()
    profile.clock_calls(clock)

    @tf.function
    def slope(x):
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = tf.reduce_sum(x**3)
        return tape.gradient(y, x)

    x = tf.constant([1.0, 2.0])
    np.testing.assert_allclose(slope(x), [3, 12])
    np.testing.assert_allclose(slope(x), [3, 12])
    np.testing.assert_allclose(tf.function(lambda x: x + 1)(x), [2, 3])
    assert clock.calls[profile.GRADIENTS] == 2
    assert clock.calls[profile.FORWARD] == 1
    assert clock.calls[profile.REPEATED] == 2  # the first call of each
