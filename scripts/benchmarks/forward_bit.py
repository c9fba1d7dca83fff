"""Forward pass of a BiT-R50x1."""

from vit_tf.scripts.benchmarks.contest import Contest, Ratio
from vit_tf.scripts.benchmarks.forward_vit import keras_run, torch_run
from vit_tf.scripts.benchmarks.weights import fill, fill_torch, of_torch

BATCH = 16


def our_model():
    import vit_tf

    return fill(vit_tf.BiT.from_variant("R50x1"))


def hugging_face_model():
    import transformers

    model = transformers.BitForImageClassification(transformers.BitConfig(num_labels=1000))
    return fill_torch(model, _path)


def _path(name):
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


CONTEST = Contest(
    f"forward pass, BiT-R50x1, 224 px, {BATCH} images",
    {
        "vit_tf": lambda: keras_run(our_model(), BATCH),
        "Hugging Face": lambda: torch_run(hugging_face_model(), BATCH),
    },
    (Ratio(("Hugging Face",), 0.8),),
)
