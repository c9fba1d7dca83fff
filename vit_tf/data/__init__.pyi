from .augmentation import (
    augment as augment,
    check_labels as check_labels,
    mask_patches as mask_patches,
    random_flip as random_flip,
    random_shift as random_shift,
)
from .folder import check_images as check_images
from .names import photographs as photographs
from .pipeline import describe as describe, few_shot as few_shot, load as load
from .sets.coco import (
    coco_categories as coco_categories,
    load_coco as load_coco,
    union_masks as union_masks,
)
from .sets.davis import DavisVideos as DavisVideos, load_davis as load_davis
from .sets.revisited import load_revisited as load_revisited
from .sets.spair import load_spair as load_spair
from .shapes import (
    load_cue_conflict as load_cue_conflict,
    load_shape_pairs as load_shape_pairs,
    load_shape_videos as load_shape_videos,
    load_shapes as load_shapes,
)
from .source import Description as Description, read_class_list as read_class_list
