"""Small files in the layout of COCO."""

import json

import numpy as np
from PIL import Image

# As in COCO, ids have gaps and the file does not keep to their order.
CATEGORIES = [
    {"supercategory": "animal", "id": 18, "name": "dog"},
    {"supercategory": "person", "id": 1, "name": "person"},
    {"supercategory": "animal", "id": 17, "name": "cat"},
]


def box(top, left, bottom, right):
    """The polygon of a rectangle of whole pixels, x before y as COCO has it."""
    return [left, top, right, top, right, bottom, left, bottom]


def note(image_id, segmentation, category_id=1, iscrowd=0, **others):
    return {
        "image_id": image_id,
        "category_id": category_id,
        "segmentation": segmentation,
        "iscrowd": iscrowd,
        **others,
    }


def write(root, images, annotations, categories=CATEGORIES):
    """A folder of images, by name, and their JSON; image ids count from 1: (JSON path, folder)."""
    entries = []
    for number, (name, image) in enumerate(images.items(), start=1):
        path = root / "images" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if not isinstance(image, Image.Image):
            image = Image.fromarray(np.asarray(image, np.uint8))
        image.save(path, exif=image.getexif())
        width, height = image.size
        file_name = name.rpartition("/")[2]
        entries.append({"id": number, "file_name": file_name, "height": height, "width": width})
    content = {
        "info": {"year": 2017},
        "images": entries[::-1],
        "annotations": [a | {"id": 100 + i} for i, a in enumerate(annotations)],
        "categories": categories,
    }
    (root / "instances.json").write_text(json.dumps(content))
    return root / "instances.json", root / "images"
