"""Similarity measures compared with CKA, on activations of the shapes of a ViT-B/16.

Those left out do what others do: `cca` what `svcca` does, `rsa_pearson` less than `rsa_spearman`.
"""

from functools import partial

from benchmarks.harness import Benchmark, Ratio

COUNT, BLOCKS, TOKENS, CHANNELS = 64, 12, 197, 768
# Of each block: six taps of the width of the model, and the hidden layer of its MLP.
WIDTHS = (1, 1, 1, 1, 4, 1, 1)
POOLED = 28  # channels, of which those of two layers are fewer than the images
MEASURES = (
    "cka",
    "rbf_cka",
    "token_cka",
    "procrustes",
    "svcca",
    "rsa_spearman",
    "mutual_knn",
    "linear_predictivity",
)
TARGET = 3.0  # times that of CKA


def compare(measures, pooled=False):
    """Similarities of 84 layers, by these measures; of single vectors where `pooled`."""
    import numpy as np
    import tensorflow as tf

    from vit_tf import analysis

    rng = np.random.default_rng(0)
    size = (POOLED,) if pooled else (TOKENS, CHANNELS)
    mix = tf.constant(rng.normal(size=(64, int(np.prod(size)))), tf.float32)
    shifts = rng.normal(size=BLOCKS * len(WIDTHS))

    def features(rows):
        base = tf.reshape(tf.matmul(rows, mix), (-1, *size))
        taps = {}
        for number, shift in enumerate(shifts):
            width = 1 if pooled else WIDTHS[number % len(WIDTHS)]
            tap = tf.nn.relu(base + 8.0 * float(shift))
            taps[f"tap{number:02d}"] = tf.concat([tap] * width, axis=-1) if width > 1 else tap
        return taps

    rows = rng.normal(size=(COUNT, 64)).astype("float32")

    def run():
        analysis.similarities(features, rows, measures=measures)

    return run


POOLED_PWCCA = f"pwcca, of {POOLED} channels"
RATIOS = [
    Ratio(("cka",), TARGET, what, of=of)
    for of in (*MEASURES[1:], POOLED_PWCCA)
    for what in ("seconds", "peak")
]
BENCHMARKS = {
    "measures": Benchmark(
        f"84 activations of the shapes of ViT-B/16, {COUNT} images",
        {name: partial(compare, [name]) for name in MEASURES}
        | {POOLED_PWCCA: partial(compare, ["pwcca"], pooled=True)},
        (*RATIOS, *(Ratio((), float("inf"), what, of="cka") for what in ("seconds", "peak"))),
        once=(*MEASURES, POOLED_PWCCA),
        rounds=1,
    ),
}
