"""BiT in the `.npz` files of Google's big_transfer, named as its `bit_pytorch/models.py` reads."""

from vit_tf.checkpoints.filling import Source
from vit_tf.checkpoints.plans import Part, Plan, count_units, dims, head_part, norm_part, square

FAMILY = "Google's BiT"
ROOT = "resnet/root_block/standardized_conv2d/kernel"
# That of the pretraining, as the files do not state it.
SIZE = 224


def recognise(tensors):
    """Whether the names are those of this family."""
    return any(name.startswith(("resnet/root_block/", "resnet/block1/")) for name in tensors)


def plan(tensors, wishes):
    """The `Plan` of a file's tensors."""
    wishes.refuse(FAMILY, "pooling", "num_heads")
    *size, channels, width = dims(tensors, ROOT, 4)
    units = count_units(tensors, r"resnet/block(\d+)/unit(\d+)/")
    _check_width(tensors, width)
    arguments = {
        "image_shape": (SIZE, SIZE, channels),
        "units": units,
        "width_factor": width / 64 if width % 64 else width // 64,
        "stem": "imagenet" if square(tensors, ROOT, *size) == 7 else "small",
    }
    sources = {"root/kernel": Source({ROOT: (*size, channels, width)})}
    before = width
    for stage, depth in enumerate(units, 1):
        inner = width * 2 ** (stage - 1)
        for unit in range(1, depth + 1):
            sources |= _unit(stage, unit, before, inner)
            before = 4 * inner
    norm = norm_part("norm", "resnet/group_norm/gamma", "resnet/group_norm/beta", before)
    head = head_part(
        tensors,
        before,
        wishes,
        "resnet/head/conv2d/kernel",
        "resnet/head/conv2d/bias",
        shape=lambda classes: (1, 1, before, classes),
        convert=_only_place,
    )
    return Plan("BiT", Part(arguments, sources) | norm | head, any_size=True)


def _check_width(tensors, width):
    """Raises a ValueError for units of another width factor than the root's."""
    name = "resnet/block1/unit01/a/standardized_conv2d/kernel"
    inner = tensors[name].shape[-1:] if name in tensors else (width,)
    if inner != (width,):
        raise ValueError(
            f"Expected the units of the first stage to be as wide as the root, {width} channels, "
            f"as one width factor makes them. Received: {name!r} of {tensors[name].shape}"
        )


def _only_place(kernel):
    return kernel[0, 0]


def _unit(stage, unit, before, inner):
    """Sources of a unit from `before` to four times `inner` channels."""
    name = f"resnet/block{stage}/unit{unit:02d}"
    layer = f"stage{stage}_unit{unit:02d}"
    convs = {
        "conv1": ("a", (1, 1, before, inner)),
        "conv2": ("b", (3, 3, inner, inner)),
        "conv3": ("c", (1, 1, inner, 4 * inner)),
    }
    sources = {}
    for weight, (part, shape) in convs.items():
        sources[f"{layer}/{weight}/kernel"] = Source(
            {f"{name}/{part}/standardized_conv2d/kernel": shape}
        )
        for end in ("gamma", "beta"):
            sources[f"{layer}/{weight.replace('conv', 'norm')}/{end}"] = Source(
                {f"{name}/{part}/group_norm/{end}": shape[2:3]}
            )
    if unit == 1:
        kernel = f"{name}/a/proj/standardized_conv2d/kernel"
        sources[f"{layer}/projection/kernel"] = Source({kernel: (1, 1, before, 4 * inner)})
    return sources
