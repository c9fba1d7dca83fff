"""A training step of a small ViT."""

from vit_tf.scripts.benchmarks import vits
from vit_tf.scripts.benchmarks.contest import Contest, Ratio
from vit_tf.scripts.benchmarks.training import keras_step, torch_step

SMALL = {
    "image_shape": (32, 32, 3),
    "patch_size": 4,
    "num_layers": 6,
    "num_heads": 4,
    "hidden_dim": 128,
    "mlp_dim": 512,
    "num_classes": 10,
}


def contest(name, config, batch, rounds):
    """The `Contest` of training steps of a ViT of some configuration."""
    size = config["image_shape"][0]
    data = (batch, size, config["num_classes"])
    return Contest(
        f"training step, {name}, {size} px, {batch} images",
        {
            "vit_tf": lambda: keras_step(vits.ours(**config), *data),
            "Hugging Face": lambda: torch_step(vits.hugging_face(**config), *data),
            "KerasHub": lambda: keras_step(vits.keras_hub(**config), *data, ours=False),
        },
        (Ratio(("Hugging Face",), 0.75), Ratio(("KerasHub",), 0.75)),
        rounds=rounds,
    )


CONTEST = contest("ViT of 6 layers x 128", SMALL, batch=128, rounds=15)
