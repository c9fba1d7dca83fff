"""Forward pass of a ViT-S/16."""

from vit_tf.scripts.benchmarks import vits
from vit_tf.scripts.benchmarks.contest import Contest, Ratio
from vit_tf.scripts.benchmarks.weights import images

CONFIG = {
    "image_shape": (224, 224, 3),
    "patch_size": 16,
    "num_layers": 12,
    "num_heads": 6,
    "hidden_dim": 384,
    "mlp_dim": 1536,
}
BATCH = 32


def keras_run(model, count, size=224):
    """A run of a Keras model, compiled, on so many images."""
    import tensorflow as tf

    batch = tf.constant(images(count, size))
    compiled = tf.function(lambda x: model(x, training=False))
    return lambda: compiled(batch).numpy()


def torch_run(model, count, size=224):
    """A run of one of Hugging Face's models on so many images."""
    import torch

    batch = torch.tensor(images(count, size).transpose(0, 3, 1, 2).copy())

    @torch.inference_mode()
    def run():
        return model(batch).logits.numpy()

    return run


def contest(name, config, batch):
    """The `Contest` of forward passes of a ViT of some configuration."""
    size = config["image_shape"][0]
    return Contest(
        f"forward pass, {name}, {size} px, {batch} images",
        {
            "vit_tf": lambda: keras_run(vits.ours(**config), batch, size),
            "Hugging Face": lambda: torch_run(vits.hugging_face(**config), batch, size),
            "KerasHub": lambda: keras_run(vits.keras_hub(**config), batch, size),
        },
        (Ratio(("Hugging Face",), 0.8), Ratio(("KerasHub",), 0.8)),
    )


CONTEST = contest("ViT-S/16", CONFIG, BATCH)
