"""Which model a folder holds: its `config.json` states the type, or that timm wrote it."""

import dataclasses

from vit_tf.checkpoints import aimv2, timm_configs
from vit_tf.checkpoints.hugging_face import beit, bit, clip, dinov3, open_clip, siglip, vits
from vit_tf.checkpoints.hugging_face.configs import class_names
from vit_tf.checkpoints.hugging_face.folder import OPEN_CLIP
from vit_tf.checkpoints.hugging_face.processing import timm_ends
from vit_tf.checkpoints.towers.released import timm_activation
from vit_tf.names import choose

FAMILIES = (vits, dinov3, clip, siglip, beit, bit)
TYPES = {kind: family.plan for family in FAMILIES for kind in family.TYPES}
TYPES |= dict.fromkeys(aimv2.TYPES, aimv2.folder_plan)


# Types of models that differ from those here in what no option expresses.
DIFFERENT = {
    "vit_hybrid": "its ResNet has group normalisations with an epsilon of 1e-5 and adds 1e-8 to "
    "the variance of kernels, where Google's, of whose .npz a hybrid opens, has 1e-6 and adds 1e-5 "
    "to their deviation",
}


def is_timms(folder):
    """Whether a folder is one of timm's, whose tensors determine the family."""
    return "model_type" not in folder.config and "pretrained_cfg" in folder.config


def plan(folder, wishes):
    """The `Plan` of a folder of transformers' or open_clip's, which states the form of GELU."""
    wishes.refuse("a folder with its configuration", "activation")
    if folder.file == OPEN_CLIP:
        return open_clip.plan(folder, wishes)
    kind = str(folder.config.get("model_type"))
    if kind in DIFFERENT:
        raise ValueError(
            f"Expected a model_type that a model here computes. Received: {kind!r}: "
            f"{DIFFERENT[kind]}"
        )
    plan = choose("model_type of config.json", kind, TYPES)(folder, wishes)
    if "head/kernel" not in plan.whole.sources:
        return plan
    names = class_names(folder.config, plan.whole.arguments["num_classes"])
    return dataclasses.replace(plan, class_names=names)


def with_timms_config(wishes, folder, trained):
    """The wishes with what timm's `config.json` states.

    Args:
        wishes, folder: those of the plan.
        trained: whether the form of GELU is that of the training, which its name states, unless
            it is an argument of its own; that of timm's architecture otherwise.
    """
    config = timm_configs.told(folder.config)
    wishes = dataclasses.replace(wishes, config=config)
    if wishes.activation is not None:
        return wishes
    if config["explicit"]:
        return dataclasses.replace(wishes, activation=config["activation"])
    if not trained:
        return wishes
    images = folder.config["pretrained_cfg"]
    tag = images.get("tag") if isinstance(images, dict) else None
    name = f"{folder.config['architecture']}.{tag}"
    return dataclasses.replace(wishes, activation=timm_activation(name))


def with_timms_ends(plan, folder, wishes):
    """The plan of a folder of timm's, of the images that its `config.json` states."""
    if wishes.preprocessing is not None:
        return plan
    ends = timm_ends(folder.config, plan.whole.arguments["image_shape"][2])
    return dataclasses.replace(plan, positions=plan.positions or plan.interpolation, **ends)
