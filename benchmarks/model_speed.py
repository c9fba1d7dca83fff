"""Forward passes and training steps of a small ViT, a ViT-S/16 and a BiT-R50x1."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeAlias

from benchmarks import implementations
from benchmarks.harness import Benchmark, Ratio, Run
from benchmarks.implementations import fill, fill_torch, images, of_torch

if TYPE_CHECKING:
    import keras
    import numpy as np
    import torch

    import vit_tf

VIT_S = {"image_shape": (224, 224, 3), "patch_size": 16, "num_layers": 12, "num_heads": 6}
VIT_S |= {"hidden_dim": 384, "mlp_dim": 1536}
SMALL = {"image_shape": (32, 32, 3), "patch_size": 4, "num_layers": 6, "num_heads": 4}
SMALL |= {"hidden_dim": 128, "mlp_dim": 512, "num_classes": 10}


Config: TypeAlias = dict[str, Any]  # arguments of `vit_tf.ViT`


def keras_run(model: keras.Model, count: int, size: int = 224) -> Run:
    """A run of a Keras model, compiled, on so many images."""
    import tensorflow as tf

    batch = tf.constant(images(count, size))
    compiled = tf.function(lambda x: model(x, training=False))
    return lambda: compiled(batch).numpy()


def torch_run(model: torch.nn.Module, count: int, size: int = 224) -> Run:
    """A run of one of Hugging Face's models on so many images."""
    import torch

    batch = torch.tensor(images(count, size).transpose(0, 3, 1, 2).copy())

    @torch.inference_mode()
    def run() -> np.ndarray:
        return model(batch).logits.numpy()

    return run


def forward_of(name: str, config: Config, batch: int) -> Benchmark:
    """The `Benchmark` of forward passes of a ViT of some configuration."""
    size = config["image_shape"][0]
    return Benchmark(
        f"forward pass, {name}, {size} px, {batch} images",
        {
            "vit_tf": lambda: keras_run(implementations.vit(**config), batch, size),
            "Hugging Face": lambda: torch_run(implementations.hugging_face(**config), batch, size),
            "KerasHub": lambda: keras_run(implementations.keras_hub(**config), batch, size),
        },
        (Ratio(("Hugging Face",), 0.8), Ratio(("KerasHub",), 0.8)),
    )


def our_bit() -> vit_tf.BiT:
    import vit_tf

    return fill(vit_tf.BiT.from_variant("R50x1"))


def hugging_face_bit() -> torch.nn.Module:
    import transformers

    model = transformers.BitForImageClassification(transformers.BitConfig(num_labels=1000))
    return fill_torch(model, _bit_path)


def _bit_path(name: str) -> str:
    """This package's path of a parameter of Hugging Face's."""
    layer, _, end = name.rpartition(".")
    layer = layer.removeprefix("bit.")
    if layer.startswith("encoder.stages."):
        _, _, stage, _, unit, inside = layer.split(".", 5)
        names = {"downsample.conv": "projection"}
        layer = f"stage{int(stage) + 1}_unit{int(unit) + 1:02d}/{names.get(inside, inside)}"
    else:
        layer = {"embedder.convolution": "root", "norm": "norm", "classifier.1": "head"}[layer]
    return of_torch(layer, end)


RATE, DECAY = 1e-6, 0.1  # the loss stays that of the first step


def _data(count: int, size: int, num_classes: int) -> tuple[np.ndarray, np.ndarray]:
    import numpy as np

    return images(count, size), np.arange(count) % num_classes


def keras_step(
    model: keras.Model, count: int, size: int, num_classes: int, ours: bool = True
) -> Run:
    """A step of a Keras model on so many images, by this package's optimizer or by Keras' own."""
    import keras
    import tensorflow as tf

    from vit_tf.training.optimizers import AdamW

    optimizer = (AdamW if ours else keras.optimizers.AdamW)(RATE, weight_decay=DECAY)
    model.compile(optimizer, keras.losses.SparseCategoricalCrossentropy(from_logits=True))
    model.make_train_function()
    data = _data(count, size, num_classes)
    batches = iter(tf.data.Dataset.from_tensors(tuple(map(tf.constant, data))).repeat())

    def run() -> float:
        model.reset_metrics()
        return float(model.train_function(batches)["loss"])

    return run


def torch_step(model: torch.nn.Module, count: int, size: int, num_classes: int) -> Run:
    """A step of one of Hugging Face's models on so many images."""
    import torch

    optimizer = torch.optim.AdamW(model.train().parameters(), RATE, eps=1e-7, weight_decay=DECAY)
    pixels, labels = _data(count, size, num_classes)
    pixels = torch.tensor(pixels.transpose(0, 3, 1, 2).copy())
    labels = torch.tensor(labels)

    def run() -> float:
        optimizer.zero_grad()
        loss = model(pixels, labels=labels).loss
        loss.backward()
        optimizer.step()
        return loss.item()

    return run


def training_of(name: str, config: Config, batch: int, rounds: int) -> Benchmark:
    """The `Benchmark` of training steps of a ViT of some configuration."""
    size = config["image_shape"][0]
    data = (batch, size, config["num_classes"])
    return Benchmark(
        f"training step, {name}, {size} px, {batch} images",
        {
            "vit_tf": lambda: keras_step(implementations.vit(**config), *data),
            "Hugging Face": lambda: torch_step(implementations.hugging_face(**config), *data),
            "KerasHub": lambda: keras_step(implementations.keras_hub(**config), *data, ours=False),
        },
        (Ratio(("Hugging Face",), 0.75), Ratio(("KerasHub",), 0.75)),
        rounds=rounds,
    )


BENCHMARKS = {
    "forward_vit_small": forward_of("ViT of 6 layers x 128", SMALL, batch=256),
    "forward_vit": forward_of("ViT-S/16", VIT_S, batch=32),
    "forward_bit": Benchmark(
        "forward pass, BiT-R50x1, 224 px, 16 images",
        {
            "vit_tf": lambda: keras_run(our_bit(), 16),
            "Hugging Face": lambda: torch_run(hugging_face_bit(), 16),
        },
        (Ratio(("Hugging Face",), 0.8),),
    ),
    "training_vit": training_of("ViT of 6 layers x 128", SMALL, batch=128, rounds=15),
    "training_vit_s": training_of("ViT-S/16", VIT_S | {"num_classes": 1000}, batch=8, rounds=7),
    "training_bit": Benchmark(
        "training step, BiT-R50x1, 224 px, 8 images",
        {
            "vit_tf": lambda: keras_step(our_bit(), 8, 224, 1000),
            "Hugging Face": lambda: torch_step(hugging_face_bit(), 8, 224, 1000),
        },
        (Ratio(("Hugging Face",), 0.75),),
    ),
}
