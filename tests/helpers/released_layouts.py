"""Folders of images laid out as Tiny ImageNet and ImageNet are released, of colours that tell."""

import numpy as np
from PIL import Image
from scipy.io import savemat

TINY = ("n01443537", "n01629819", "n02124075")
# Numbers of the development kit, which follow no order of names.
KIT = {1: "n02119789", 2: "n02100735", 3: "n01440764"}


def picture(path, red, green=0):
    """An image of 4 x 4 pixels of one colour; lossless, since readers look at the content."""
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", (4, 4), (red, green, 0)).save(path, "png")


def tiny_imagenet(root, train=3, val=2):
    """Tiny ImageNet: red tells the class, green the split (0, 100, 200)."""
    for label, name in enumerate(TINY):
        for number in range(train):
            picture(root / "train" / name / "images" / f"{name}_{number}.JPEG", 50 * label)
        boxes = "".join(f"{name}_{number}.JPEG\t0\t10\t63\t58\n" for number in range(train))
        (root / "train" / name / f"{name}_boxes.txt").write_text(boxes)
    lines = []
    for number in range(val * len(TINY)):
        label = (number * 2 + 1) % len(TINY)
        picture(root / "val" / "images" / f"val_{number}.JPEG", 50 * label, 100)
        lines.append(f"val_{number}.JPEG\t{TINY[label]}\t0\t32\t44\t62\n")
        picture(root / "test" / "images" / f"test_{number}.JPEG", 250, 200)
    (root / "val" / "val_annotations.txt").write_text("".join(lines))
    (root / "wnids.txt").write_text("".join(f"{name}\n" for name in reversed(TINY)))
    (root / "words.txt").write_text("n00001740\tentity\n" + "".join(f"{n}\ta, b\n" for n in TINY))
    return root


def imagenet_val(folder, labels):
    """`ILSVRC2012_img_val`: one image for each label, whose red tells it."""
    for number, label in enumerate(labels, 1):
        picture(folder / f"ILSVRC2012_val_{number:08}.JPEG", 50 * label)
    return folder


def development_kit(folder, numbers, with_meta=True):
    """The files of the development kit of ImageNet: a number for each image, and what it means."""
    folder.mkdir(parents=True, exist_ok=True)
    text = "".join(f"{number}\n" for number in numbers)
    (folder / "ILSVRC2012_validation_ground_truth.txt").write_text(text)
    if with_meta:
        fields = [("ILSVRC2012_ID", "f8"), ("WNID", "O"), ("words", "O"), ("num_children", "f8")]
        rows = [(number, wnid, "a, b", 0) for number, wnid in KIT.items()]
        rows.append((1001, "n00001740", "entity", 3))
        synsets = np.array(rows, dtype=fields)[:, None]
        savemat(folder / "meta.mat", {"synsets": synsets})
