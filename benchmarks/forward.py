"""Forward passes of a small ViT, a ViT-S/16 and a BiT-R50x1."""

from benchmarks import vits
from benchmarks.harness import Benchmark, Ratio
from benchmarks.weights import fill, fill_torch, images, of_torch

CONFIG = {
    "image_shape": (224, 224, 3),
    "patch_size": 16,
    "num_layers": 12,
    "num_heads": 6,
    "hidden_dim": 384,
    "mlp_dim": 1536,
}
BATCH = 32
SMALL = {
    "image_shape": (32, 32, 3),
    "patch_size": 4,
    "num_layers": 6,
    "num_heads": 4,
    "hidden_dim": 128,
    "mlp_dim": 512,
    "num_classes": 10,
}


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


def benchmark(name, config, batch):
    """The `Benchmark` of forward passes of a ViT of some configuration."""
    size = config["image_shape"][0]
    return Benchmark(
        f"forward pass, {name}, {size} px, {batch} images",
        {
            "vit_tf": lambda: keras_run(vits.ours(**config), batch, size),
            "Hugging Face": lambda: torch_run(vits.hugging_face(**config), batch, size),
            "KerasHub": lambda: keras_run(vits.keras_hub(**config), batch, size),
        },
        (Ratio(("Hugging Face",), 0.8), Ratio(("KerasHub",), 0.8)),
    )


BIT_BATCH = 16


def our_bit():
    import vit_tf

    return fill(vit_tf.BiT.from_variant("R50x1"))


def hugging_face_bit():
    import transformers

    model = transformers.BitForImageClassification(transformers.BitConfig(num_labels=1000))
    return fill_torch(model, _bit_path)


def _bit_path(name):
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


BENCHMARKS = {
    "forward_vit_small": benchmark("ViT of 6 layers x 128", SMALL, batch=256),
    "forward_vit": benchmark("ViT-S/16", CONFIG, BATCH),
    "forward_bit": Benchmark(
        f"forward pass, BiT-R50x1, 224 px, {BIT_BATCH} images",
        {
            "vit_tf": lambda: keras_run(our_bit(), BIT_BATCH),
            "Hugging Face": lambda: torch_run(hugging_face_bit(), BIT_BATCH),
        },
        (Ratio(("Hugging Face",), 0.8),),
    ),
}
