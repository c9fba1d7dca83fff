"""Forward pass of a BiT-R50x1."""

from benchmarks.contest import Contest, Ratio
from benchmarks.weights import fill, images, numbers

BATCH = 16


def ours():
    import tensorflow as tf

    import vit_tf

    model = fill(vit_tf.BiT.from_variant("R50x1"))
    batch = tf.constant(images(BATCH))
    compiled = tf.function(lambda x: model(x, training=False))
    return lambda: compiled(batch).numpy()


def hugging_face():
    import torch
    import transformers

    model = transformers.BitForImageClassification(transformers.BitConfig(num_labels=1000))
    state = {
        name: torch.tensor(_as_torch(_path(name), tuple(parameter.shape)))
        for name, parameter in model.named_parameters()
    }
    model.load_state_dict(state, strict=False)
    model.eval()
    batch = torch.tensor(images(BATCH).transpose(0, 3, 1, 2).copy())

    @torch.inference_mode()
    def run():
        return model(batch).logits.numpy()

    return run


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
    norm = "norm" in layer
    ends = {"weight": "gamma", "bias": "beta"} if norm else {"weight": "kernel", "bias": "bias"}
    return f"{layer}/{ends[end]}"


def _as_torch(path, shape):
    if len(shape) == 4:
        out, into, *sides = shape
        return numbers(path, (*sides, into, out)).transpose(3, 2, 0, 1).copy()
    return numbers(path, shape[::-1]).T.copy() if len(shape) == 2 else numbers(path, shape)


CONTEST = Contest(
    f"forward pass, BiT-R50x1, 224 px, {BATCH} images",
    {"vit_tf": ours, "Hugging Face": hugging_face},
    (Ratio(("Hugging Face",), 0.9),),
)
