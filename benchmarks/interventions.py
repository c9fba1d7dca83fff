"""Ablation of every head of a ViT-S/16, compared with as many plain forward passes."""

from benchmarks import vits
from benchmarks.forward import CONFIG
from benchmarks.harness import Benchmark, Ratio
from benchmarks.weights import images

COUNT = 512
RUNS = 1 + CONFIG["num_layers"] * CONFIG["num_heads"]  # one as it is, one without each head
BATCH = 128


def forward(count):
    """As many forward passes of the images, by the same engine, in full batches."""
    from vit_tf import analysis

    model, data = vits.ours(**CONFIG), images(count)

    def run():
        import tensorflow as tf

        passes = tf.data.Dataset.from_tensor_slices(data).repeat(RUNS).batch(BATCH)
        analysis.engine.collect(lambda batch: model(batch), passes)

    return run


def ours(count):
    import numpy as np

    import vit_tf
    from vit_tf import analysis

    features = vit_tf.submodel(vits.ours(**CONFIG), "*/heads", "logits")
    data = images(count), np.arange(count) % 1000

    def run():
        analysis.head_ablation(features, data)

    return run


def benchmark(count, rounds):
    """The `Benchmark` of all heads on so many images."""
    return Benchmark(
        f"ablation of each of {RUNS - 1} heads of ViT-S/16, {count} images",
        {"vit_tf": lambda: ours(count), "forward passes": lambda: forward(count)},
        (Ratio(("forward passes",), 1.1),),
        rounds=rounds,
    )


BENCHMARKS = {"interventions": benchmark(COUNT, 1), "interventions_small": benchmark(4, 1)}
