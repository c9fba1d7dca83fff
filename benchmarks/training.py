"""A training step in several packages: forward and backward pass and an update by AdamW."""

from benchmarks import vits
from benchmarks.forward import CONFIG, SMALL, hugging_face_bit, our_bit
from benchmarks.harness import Benchmark, Ratio
from benchmarks.weights import images

BIT_BATCH = 8
RATE, DECAY = 1e-6, 0.1  # the loss stays that of the first step


def _data(count, size, num_classes):
    import numpy as np

    return images(count, size), np.arange(count) % num_classes


def keras_step(model, count, size, num_classes, ours=True):
    """A step of a Keras model on so many images, by this package's optimizer or by Keras' own."""
    import keras
    import tensorflow as tf

    from vit_tf.training.optimizers import AdamW

    optimizer = (AdamW if ours else keras.optimizers.AdamW)(RATE, weight_decay=DECAY)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.make_train_function()
    data = _data(count, size, num_classes)
    batches = iter(tf.data.Dataset.from_tensors(tuple(map(tf.constant, data))).repeat())

    def run():
        model.reset_metrics()
        return float(model.train_function(batches)["loss"])

    return run


def torch_step(model, count, size, num_classes):
    """A step of one of Hugging Face's models on so many images."""
    import torch

    optimizer = torch.optim.AdamW(model.train().parameters(), RATE, eps=1e-7, weight_decay=DECAY)
    pixels, labels = _data(count, size, num_classes)
    pixels = torch.tensor(pixels.transpose(0, 3, 1, 2).copy())
    labels = torch.tensor(labels)

    def run():
        optimizer.zero_grad()
        loss = model(pixels, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def benchmark(name, config, batch, rounds):
    """The `Benchmark` of training steps of a ViT of some configuration."""
    size = config["image_shape"][0]
    data = (batch, size, config["num_classes"])
    return Benchmark(
        f"training step, {name}, {size} px, {batch} images",
        {
            "vit_tf": lambda: keras_step(vits.ours(**config), *data),
            "Hugging Face": lambda: torch_step(vits.hugging_face(**config), *data),
            "KerasHub": lambda: keras_step(vits.keras_hub(**config), *data, ours=False),
        },
        (Ratio(("Hugging Face",), 0.75), Ratio(("KerasHub",), 0.75)),
        rounds=rounds,
    )


BENCHMARKS = {
    "training_vit": benchmark("ViT of 6 layers x 128", SMALL, batch=128, rounds=15),
    "training_vit_s": benchmark("ViT-S/16", CONFIG | {"num_classes": 1000}, batch=8, rounds=7),
    "training_bit": Benchmark(
        f"training step, BiT-R50x1, 224 px, {BIT_BATCH} images",
        {
            "vit_tf": lambda: keras_step(our_bit(), BIT_BATCH, 224, 1000),
            "Hugging Face": lambda: torch_step(hugging_face_bit(), BIT_BATCH, 224, 1000),
        },
        (Ratio(("Hugging Face",), 0.75),),
    ),
}
