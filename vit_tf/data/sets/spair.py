"""SPair-71k: pairs of images of one kind of object, with the keypoints that are seen in both."""

import json
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from vit_tf.common.names import file_error, format_list, lookup
from vit_tf.data.folder import decode_file
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.data.resizing import resize_image, scale_values
from vit_tf.data.source import ImageSize, check_numbers, checked_size

SPLITS = ("trn", "val", "test")
SIZES = ("large", "small")
SIDES = {"source": "src", "target": "trg"}
# The centre of the pixel that a keypoint numbers.
CENTRE = 0.5


def load_spair(
    root: str | os.PathLike,
    split: str = "test",
    *,
    size: str = "large",
    pairs_per_category: int | None = 20,
    seed: int = 0,
    image_size: ImageSize | None = None,
    preprocessing: Preprocessing | None = None,
) -> list[dict[str, Any]]:
    """Pairs of images of SPair-71k with their keypoints, from its released layout.

        root/Layout/large/test.txt
        root/PairAnnotation/test/000001-2008_000585-2008_001221:aeroplane.json
        root/JPEGImages/aeroplane/2008_000585.jpg

    The files store a keypoint as the (x, y) of a pixel, counted from 0. This function returns the
    (row, column) of the centre of this pixel. Keypoints and bounding boxes are scaled with the
    image. A keypoint outside either image is omitted from its pair, and counted. Each image is read
    once, and pairs with the same image share one array. In float32, all 1,800 images take about 0.8
    GB with a longer side of 224 pixels, and 4 GB in their original sizes.

    Args:
        root: the folder with this layout.
        split: "trn", "val" or "test".
        size: list of pairs, "large" or "small".
        pairs_per_category: number of pairs of each category that are drawn, without replacement.
            None returns all pairs. Walmer et al. 2023 draw 20 pairs (appendix E.1), and their code
            draws with replacement. If a category has fewer pairs, all its pairs are returned, and a
            `UserWarning` names the category.
        seed: seed of the selection. A larger `pairs_per_category` keeps the pairs of a smaller one.
        image_size: longer side to which images are resized, in pixels. Use the longer side of the
            model's input. None keeps the size of each image.
        preprocessing: preprocessing of the model, `model.preprocessing`: its size, interpolation,
            mean and std replace `image_size` and [-1, 1].

    Returns:
        List of dicts, in the order of the list of pairs, as
        `vit_tf.analysis.keypoint_correspondence` takes them. Each dict has `category`, `source`,
        `target`, `source_points` and `target_points`. `name` is the pair's line in the list, and
        `left_out` is the number of its keypoints that were omitted. If the files have boxes,
        `source_box` and `target_box` are float arrays (top, left, bottom, right) in pixels.

    Raises:
        ValueError: if a file is missing or corrupt, if the size of an image differs from its
            annotation, if a pair has no keypoints, or if an argument is out of range.
    """
    lookup("split", split, dict.fromkeys(SPLITS))
    lookup("size", size, dict.fromkeys(SIZES))
    if pairs_per_category is not None:
        check_numbers(1, pairs_per_category=pairs_per_category)
    check_numbers(0, seed=seed)
    longer, wider = checked_size(image_size, preprocessing, (3,)) or (None, None)
    if longer != wider:
        raise ValueError(
            "Expected a square image_size: images are resized and padded to a square. "
            f"Received: {(longer, wider)}"
        )
    root = Path(root).expanduser()
    lines = _lines(root / "Layout" / size / f"{split}.txt")
    images, pairs = {}, []
    for line in _draw(lines, pairs_per_category, seed):
        pair = _annotation(root / "PairAnnotation" / split / f"{line}.json")
        for side, short in SIDES.items():
            path = root / "JPEGImages" / pair["category"] / pair[f"{short}_imname"]
            if path not in images:
                images[path] = _read(path, longer, preprocessing)
            size, annotated = images[path][1], pair.get(f"{short}_imsize")
            if annotated is not None and tuple(annotated[1::-1]) != size:
                raise ValueError(
                    f"Expected an image of the annotated size, {tuple(annotated[1::-1])}. "
                    f"Received: {str(path)!r} of {size}"
                )
            pair[side] = images[path]
        pairs.append({"name": line, **_measured(line, pair)})
    return pairs


def _lines(path: Path) -> list[str]:
    """The pairs that a text file lists, `number-source-target:category`, one to a line."""
    if not path.is_file():
        raise ValueError(f"List of image pairs not found: {str(path)!r}")
    lines = path.read_text(encoding="utf-8").split()
    if not lines or not all(":" in line for line in lines):
        bad = next((line for line in lines if ":" not in line), "nothing")
        raise ValueError(
            "Expected a list of pairs such as 000001-2008_000585-2008_001221:aeroplane. "
            f"Received: {str(path)!r} with {bad!r}"
        )
    return lines


def _draw(lines: list[str], count: int | None, seed: int) -> list[str]:
    """So many lines of each category, or all it has, in their order; all if `count` is None."""
    if count is None:
        return lines
    categories = np.array([line.rpartition(":")[2] for line in lines])
    selected, scarce = [], []
    for number, category in enumerate(np.unique(categories)):
        places = np.flatnonzero(categories == category)
        if len(places) < count:
            scarce.append(f"{category} ({len(places)})")
        selected.extend(np.random.default_rng([seed, number]).permutation(places)[:count])
    if scarce:
        wanted = f"Expected {count} pairs of each category"
        warnings.warn(
            f"{wanted}. Received fewer, all of which are used: {format_list(scarce)}", stacklevel=3
        )
    return [lines[place] for place in sorted(selected)]


def _annotation(path: Path) -> dict[str, Any]:
    """What the JSON file of a pair says: a dict, with keypoints as arrays of shape (point, 2)."""
    try:
        pair = json.loads(path.read_text(encoding="utf-8"))
        wanted = [f"{short}_{field}" for short in SIDES.values() for field in ("imname", "kps")]
        missing = [key for key in ("category", *wanted) if key not in pair]
        if missing:
            raise ValueError(f"without {', '.join(missing)}")
        points = {key: np.array(pair[key], float) for key in ("src_kps", "trg_kps")}
        if len({places.shape for places in points.values()}) > 1:
            raise ValueError("with another number of source than of target keypoints")
        box_keys = [f"{short}_bndbox" for short in SIDES.values() if f"{short}_bndbox" in pair]
        boxes = {key: _box(key, pair[key]) for key in box_keys}
        return pair | {key: places.reshape(-1, 2) for key, places in points.items()} | boxes
    except (OSError, TypeError, ValueError) as error:
        raise ValueError(
            "Expected the JSON file of a pair, with its category, two images and their keypoints. "
            f"Received: {str(path)!r} ({file_error(error, path)})"
        ) from error


def _box(key: str, given: Any) -> np.ndarray:
    """The centres of the corners that (left, top, right, bottom) number, as an array (2, 2)."""
    box = np.array(given, float)
    if box.shape != (4,) or not (box[2:] > box[:2]).all():
        raise ValueError(f"with {key} {given}, which is not (left, top, right, bottom)")
    return box.reshape(2, 2)[:, ::-1] + CENTRE


def _read(
    path: Path, longer: int | None, preprocessing: Preprocessing | None
) -> tuple[np.ndarray, tuple[int, int]]:
    """An image, resized and normalised, and the (height, width) of its file."""
    image = decode_file(path, upright=False)
    given = image.shape[:2]
    if longer is not None:
        height, width = (max(1, round(side * longer / max(given))) for side in given)
        how = (preprocessing or Preprocessing((height, width))).squeezed()
        image = np.asarray(resize_image(tf.constant(image), (height, width), how))
    return scale_values(image, preprocessing), given


def _measured(line: str, pair: dict[str, Any]) -> dict[str, Any]:
    """The pair as it is returned, without its name."""
    images, points, boxes = {}, {}, {}
    within = np.array(True)
    for side, short in SIDES.items():
        images[side], given = pair[side]
        scale = np.divide(images[side].shape[:2], given)
        places = pair[f"{short}_kps"][:, ::-1] + CENTRE
        points[f"{side}_points"] = places * scale
        if f"{short}_bndbox" in pair:
            boxes[f"{side}_box"] = (pair[f"{short}_bndbox"] * scale).ravel()
        within = within & ((places > 0) & (places < given)).all(axis=1)
    if not within.any():
        raise ValueError(
            "Expected at least one keypoint that lies within both images. Received: pair "
            f"{line} with source {pair['src_kps'].tolist()} and target {pair['trg_kps'].tolist()}"
        )
    points = {name: places[within] for name, places in points.items()}
    left_out = int((~within).sum())
    return {"category": pair["category"], **images, **points, **boxes, "left_out": left_out}
