"""Forward pass of a ViT-S/16."""

from benchmarks import vits
from benchmarks.contest import Contest, Ratio
from benchmarks.weights import images

CONFIG = {
    "image_shape": (224, 224, 3),
    "patch_size": 16,
    "num_layers": 12,
    "num_heads": 6,
    "hidden_dim": 384,
    "mlp_dim": 1536,
}
BATCH = 32


def _keras(model):
    import tensorflow as tf

    batch = tf.constant(images(BATCH))
    compiled = tf.function(lambda x: model(x, training=False))
    return lambda: compiled(batch).numpy()


def hugging_face():
    import torch

    model = vits.hugging_face(**CONFIG)
    batch = torch.tensor(images(BATCH).transpose(0, 3, 1, 2).copy())

    @torch.inference_mode()
    def run():
        return model(batch).logits.numpy()

    return run


CONTEST = Contest(
    f"forward pass, ViT-S/16, 224 px, {BATCH} images",
    {
        "vit_tf": lambda: _keras(vits.ours(**CONFIG)),
        "Hugging Face": hugging_face,
        "KerasHub": lambda: _keras(vits.keras_hub(**CONFIG)),
    },
    (Ratio(("Hugging Face",), 0.9), Ratio(("KerasHub",), 0.9)),
)
