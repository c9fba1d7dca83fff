"""The paper's scale: CKA of every activation of a ViT-B/16 on batches of 1,024 images."""

from vit_tf.scripts.benchmarks import vits
from vit_tf.scripts.benchmarks.contest import Contest, Ratio
from vit_tf.scripts.benchmarks.weights import images

CONFIG = {
    "image_shape": (224, 224, 3),
    "patch_size": 16,
    "num_layers": 12,
    "num_heads": 12,
    "hidden_dim": 768,
    "mlp_dim": 3072,
}
BATCH = 1024


def ours():
    import tensorflow as tf

    import vit_tf
    from vit_tf import analysis

    features = vit_tf.submodel(vits.ours(**CONFIG), "*")
    batch = tf.data.Dataset.from_tensors(images(BATCH))

    def run():
        analysis.cka(features, batch)

    return run


CONTEST = Contest(
    f"CKA of all 135 activations of ViT-B/16, one batch of {BATCH:,} images",
    {"vit_tf": ours},
    (Ratio((), 16.0, "peak"), Ratio((), float("inf"))),
    once=("vit_tf",),
)
