"""Which model a folder holds: its `config.json` tells the type, or that timm wrote it."""

import dataclasses

from vit_tf.checkpoints.hugging_face import beit, bit, clip, dinov3, siglip, vits
from vit_tf.checkpoints.hugging_face.configs import class_names
from vit_tf.checkpoints.hugging_face.processing import timm_ends
from vit_tf.names import choose

FAMILIES = (vits, dinov3, clip, siglip, beit, bit)
TYPES = {kind: family for family in FAMILIES for kind in family.TYPES}


def is_timms(folder):
    """Whether a folder is one of timm's, whose tensors tell the family."""
    return "model_type" not in folder.config and "pretrained_cfg" in folder.config


def plan(folder, wishes):
    """The `Plan` of a folder of transformers'."""
    family = choose("model_type of config.json", str(folder.config.get("model_type")), TYPES)
    plan = family.plan(folder, wishes)
    if "head/kernel" not in plan.whole.sources:
        return plan
    names = class_names(folder.config, plan.whole.arguments["num_classes"])
    return dataclasses.replace(plan, class_names=names)


def with_timms_ends(plan, folder, wishes):
    """The plan of a folder of timm's, of the images that its `config.json` tells."""
    if wishes.preprocessing is not None:
        return plan
    ends = timm_ends(folder.config, plan.whole.arguments["image_shape"][2])
    return dataclasses.replace(plan, positions=plan.positions or plan.interpolation, **ends)
