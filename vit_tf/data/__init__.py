"""Data sets by name, as batches of images in [-1, 1] and labels, and their augmentation."""

from vit_tf.data.annotated_shapes import load_shape_pairs, load_shape_videos, load_shapes
from vit_tf.data.augmentation import augment, check_labels, random_flip, random_shift
from vit_tf.data.few_shot import few_shot
from vit_tf.data.folder import check_images
from vit_tf.data.pipeline import describe, load
from vit_tf.data.source import Description

__all__ = [
    "Description",
    "augment",
    "check_images",
    "check_labels",
    "describe",
    "few_shot",
    "load",
    "load_shape_pairs",
    "load_shape_videos",
    "load_shapes",
    "random_flip",
    "random_shift",
]
