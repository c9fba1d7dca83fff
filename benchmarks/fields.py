"""Receptive fields of all 25 sublayers of a ViT-B/32."""

from benchmarks import vits
from benchmarks.harness import Benchmark, Ratio
from benchmarks.weights import images

CONFIG = {
    "image_shape": (224, 224, 3),
    "patch_size": 32,
    "num_layers": 12,
    "num_heads": 12,
    "hidden_dim": 768,
    "mlp_dim": 3072,
}
COUNT = 32
TAPS = ("embedding", "block*/*/sum")


def ours():
    import vit_tf
    from vit_tf import analysis

    features = vit_tf.submodel(vits.ours(**CONFIG), *TAPS)
    batch = images(COUNT)
    return lambda: analysis.receptive_field(features, batch).values


def one_by_one():
    """As one would write it: a tape, a forward pass up to the layer and a gradient for each."""
    import numpy as np
    import tensorflow as tf

    import vit_tf

    model = vits.ours(**CONFIG)
    center = model.token_grid.center
    features = [vit_tf.submodel(model, tap) for tap in vit_tf.submodel(model, *TAPS).taps]
    batch = tf.constant(images(COUNT))

    def field(features):
        with tf.GradientTape(watch_accessed_variables=False) as tape:
            tape.watch(batch)
            (activations,) = features(batch).values()
            total = tf.reduce_sum(activations[:, center])
        return tf.reduce_mean(tf.reduce_sum(tf.abs(tape.gradient(total, batch)), 3), 0)

    return lambda: np.stack([field(one) for one in features])


BENCHMARKS = {
    "fields": Benchmark(
        f"receptive fields of 25 sublayers of ViT-B/32, {COUNT} images",
        {"vit_tf": ours, "one by one": one_by_one},
        (Ratio(("one by one",), 0.6),),
        rounds=5,
    ),
}
