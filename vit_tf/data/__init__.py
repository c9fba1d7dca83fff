"""Loads data sets by name as batches of images in [-1, 1] and labels, and augments them."""

from vit_tf.data.augmentation import augment, check_labels, mask_patches, random_flip, random_shift
from vit_tf.data.coco import coco_categories, load_coco, union_masks
from vit_tf.data.davis import DavisVideos, load_davis
from vit_tf.data.folder import check_images
from vit_tf.data.pipeline import describe, few_shot, load
from vit_tf.data.revisited import load_revisited
from vit_tf.data.shapes import load_shape_pairs, load_shape_videos, load_shapes
from vit_tf.data.source import Description, read_class_list
from vit_tf.data.spair import load_spair

__all__ = [
    "DavisVideos",
    "Description",
    "augment",
    "check_images",
    "check_labels",
    "coco_categories",
    "describe",
    "few_shot",
    "load",
    "load_coco",
    "load_davis",
    "load_revisited",
    "load_shape_pairs",
    "load_shape_videos",
    "load_shapes",
    "load_spair",
    "mask_patches",
    "random_flip",
    "random_shift",
    "read_class_list",
    "union_masks",
]
