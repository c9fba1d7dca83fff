"""Small files in the layout of SPair-71k."""

import json

import numpy as np
from PIL import Image


def write_image(root, category, name, pixels):
    """Pixels as they are, under the name of a JPEG file."""
    folder = root / "JPEGImages" / category
    folder.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.uint8(pixels)).save(folder / f"{name}.jpg", "PNG")


def write_pairs(root, pairs, size="large", split="test", **other):
    """Pairs (category, source, target, source points, target points) of images that there are."""
    annotations = root / "PairAnnotation" / split
    layout = root / "Layout" / size
    for folder in (annotations, layout):
        folder.mkdir(parents=True, exist_ok=True)
    lines = []
    for number, (category, source, target, source_points, target_points) in enumerate(pairs, 1):
        lines.append(f"{number:06}-{source}-{target}:{category}")
        content = {
            "filename": lines[-1],
            "category": category,
            "src_imname": f"{source}.jpg",
            "trg_imname": f"{target}.jpg",
            "src_kps": source_points,
            "trg_kps": target_points,
            "kps_ids": [str(place) for place in range(len(source_points))],
        }
        for short, name in (("src", source), ("trg", target)):
            with Image.open(root / "JPEGImages" / category / f"{name}.jpg") as image:
                content[f"{short}_imsize"] = [*image.size, 3]
                content[f"{short}_bndbox"] = [0, 0, *image.size]
        content |= other
        (annotations / f"{lines[-1]}.json").write_text(json.dumps(content))
    (layout / f"{split}.txt").write_text("\n".join(lines) + "\n")
    return lines
