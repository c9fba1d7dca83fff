"""A training step of a small ViT: forward and backward pass and an update by Adam."""

from vit_tf.scripts.benchmarks import vits
from vit_tf.scripts.benchmarks.contest import Contest, Ratio
from vit_tf.scripts.benchmarks.weights import images

CONFIG = {
    "image_shape": (28, 28, 3),
    "patch_size": 4,
    "num_layers": 6,
    "num_heads": 4,
    "hidden_dim": 128,
    "mlp_dim": 512,
    "num_classes": 10,
}
BATCH = 256
RATE = 1e-6  # the loss stays that of the first step


def _data():
    import numpy as np

    return images(BATCH, 28), np.arange(BATCH) % CONFIG["num_classes"]


def _keras(model):
    import keras
    import tensorflow as tf

    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(RATE), loss)
    model.make_train_function()
    batches = tf.data.Dataset.from_tensors(tuple(map(tf.constant, _data()))).repeat()

    def run():
        model.reset_metrics()
        return float(model.train_function(iter(batches))["loss"])

    return run


def hugging_face():
    import torch

    model = vits.hugging_face(**CONFIG).train()
    optimizer = torch.optim.Adam(model.parameters(), RATE, eps=1e-7)
    pixels, labels = _data()
    pixels = torch.tensor(pixels.transpose(0, 3, 1, 2).copy())
    labels = torch.tensor(labels)

    def run():
        optimizer.zero_grad()
        loss = model(pixels, labels=labels).loss
        loss.backward()
        optimizer.step()
        return float(loss)

    return run


CONTEST = Contest(
    f"training step, ViT of 6 layers x 128, 50 tokens, {BATCH} images",
    {
        "vit_tf": lambda: _keras(vits.ours(**CONFIG)),
        "Hugging Face": hugging_face,
        "KerasHub": lambda: _keras(vits.keras_hub(**CONFIG)),
    },
    (Ratio(("Hugging Face",), 1.0), Ratio(("KerasHub",), 1.0)),
    rounds=15,
)
