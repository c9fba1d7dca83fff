"""Ridge probes on each of 50 tokens of a layer, for 10 penalties; every layer costs the same."""

from __future__ import annotations

from typing import TYPE_CHECKING

from benchmarks.harness import Benchmark, Ratio, Run

if TYPE_CHECKING:
    import numpy as np
    import tensorflow as tf

EXAMPLES, TOKENS, CHANNELS, CLASSES = 10_000, 50, 768, 10
TESTED, BATCH = 1_000, 500
PENALTIES = tuple(10.0**power for power in range(-3, 7))


def activations(examples: int, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Activations of shape (example, token, channel) that depend on labels, and these labels."""
    import numpy as np

    rng = np.random.default_rng(seed)
    labels = rng.integers(CLASSES, size=examples)
    means = np.random.default_rng(1).standard_normal((CLASSES, TOKENS, CHANNELS), np.float32)
    values = rng.standard_normal((examples, TOKENS, CHANNELS), np.float32)
    values += 0.05 * means[labels]
    return values, labels


def ours() -> Run:
    import numpy as np
    import tensorflow as tf

    from vit_tf import analysis

    train, labels = activations(EXAMPLES, 2)
    test, answers = activations(TESTED, 3)
    table = tf.concat([train, test], axis=0)
    numbers = np.arange(EXAMPLES + TESTED)[:, None]

    def data(part: slice, answers: np.ndarray) -> tf.data.Dataset:
        return tf.data.Dataset.from_tensor_slices((numbers[part], answers)).batch(BATCH)

    fitted, scored = data(slice(EXAMPLES), labels), data(slice(EXAMPLES, None), answers)

    def features(numbers: tf.Tensor) -> dict[str, tf.Tensor]:
        return {"layer": tf.gather(table, numbers[:, 0])}

    features.integer_images = True

    def run() -> np.ndarray:
        score = analysis.ridge_probe(features, fitted, scored, CLASSES, PENALTIES, tokens="each")
        return score.sel(layer="layer").transpose("token", "l2").values

    return run


def scikit_learn() -> Run:
    import numpy as np
    from sklearn.linear_model import RidgeClassifier

    train, labels = activations(EXAMPLES, 2)
    test, answers = activations(TESTED, 3)

    def accuracy(token: int, penalty: float) -> float:
        classifier = RidgeClassifier(alpha=penalty).fit(train[:, token], labels)
        return np.mean(classifier.predict(test[:, token]) == answers)

    return lambda: [[accuracy(t, penalty) for penalty in PENALTIES] for t in range(TOKENS)]


BENCHMARKS = {
    "probes": Benchmark(
        f"ridge probes, {TOKENS} tokens x {len(PENALTIES)} penalties, {EXAMPLES:,} examples, "
        f"{CHANNELS} channels, a layer",
        {"vit_tf": ours, "scikit-learn": scikit_learn},
        (Ratio(("scikit-learn",), 0.12),),
        tolerance=0.003,
        once=("scikit-learn",),
        rounds=3,
    ),
}
