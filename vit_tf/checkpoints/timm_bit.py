"""BiT in timm's names (`resnetv2.py`, models `*_bit`)."""

from vit_tf.checkpoints.hugging_face.bit import SIZE, units_part
from vit_tf.checkpoints.plans import Part, Plan, dims, head_part, norm_part

FAMILY = "BiT in timm's names"
ROOT = "stem.conv.weight"


def recognise(tensors):
    """Whether the names are those of this family: no other has a bare convolution as its stem."""
    return ROOT in tensors and "stages.0.blocks.0.downsample.conv.weight" in tensors


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    wishes.refuse(FAMILY, "pooling", "num_heads", "activation")
    width, channels = dims(tensors, ROOT, 4)[:2]
    size = wishes.config.get("input_size") or (SIZE, SIZE)
    units, read = units_part(tensors, ROOT, width, channels, "stages.{}.blocks.{}")
    whole = units | Part({"image_shape": (*size, channels)})
    whole |= norm_part("norm", "norm.weight", "norm.bias", read)
    names = ("head.fc.weight", "head.fc.bias")
    whole |= head_part(tensors, read, wishes, *names, lambda n: (n, read, 1, 1), _only_place)
    return Plan("BiT", whole, any_size=True)


def _only_place(kernel):
    return kernel[:, :, 0, 0].T
