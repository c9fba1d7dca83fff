"""DAVIS: videos with index masks of their objects, read one at a time."""

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from vit_tf.common.names import format_list
from vit_tf.data.folder import decode_file
from vit_tf.data.imaging import explained
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.data.resizing import scale_values
from vit_tf.data.source import checked_size


@dataclass(frozen=True)
class DavisVideos(Sequence):
    """Videos for `vit_tf.analysis.label_propagation`, each read when it is accessed.

    `videos[i]` is the pair (frames, masks) of a video. Frames are float32 of shape (frame, height,
    width, 3). Masks are uint8 of shape (frame, height, width), with 0 for the background, 1, 2, ...
    for objects and 255 for void pixels. `videos[:3]` selects the first three videos without reading
    them. A frame of a 480p video takes about 5 MB.

    Attributes:
        names: names of the videos.
        frames, masks: for each video, the paths of its frames and of their masks.
        preprocessing: the `Preprocessing` whose mean and std are used, or None for values in [-1,
            1].
    """

    names: tuple
    frames: tuple
    masks: tuple
    preprocessing: Preprocessing | None = None

    def __len__(self) -> int:
        return len(self.names)

    def __getitem__(self, number: Any) -> Any:
        """One video, or for a slice the `DavisVideos` of some.

        Raises:
            ValueError: for files that cannot be decoded or that differ in size, and masks that are
                no palette images.
        """
        if isinstance(number, slice):
            parts = (self.names[number], self.frames[number], self.masks[number])
            return replace(self, **dict(zip(("names", "frames", "masks"), parts, strict=True)))
        first = read_mask(self.masks[number][0])
        count = len(self.masks[number])
        frames = np.empty((count, *first.shape, 3), np.float32)
        masks = np.empty((count, *first.shape), np.uint8)
        for place, paths in enumerate(zip(self.frames[number], self.masks[number], strict=True)):
            frame, mask = decode_file(paths[0], upright=False), read_mask(paths[1])
            for path, pixels in zip(paths, (frame, mask), strict=True):
                if pixels.shape[:2] != first.shape:
                    raise ValueError(
                        f"Expected frames and masks of one size in a video, {first.shape} as of "
                        f"{self.masks[number][0]}. Received: {path} of {pixels.shape[:2]}"
                    )
            frames[place], masks[place] = scale_values(frame, self.preprocessing), mask
        return frames, masks


def load_davis(
    root: str | os.PathLike,
    split: str = "val",
    *,
    year: str = "2017",
    resolution: str = "480p",
    preprocessing: Preprocessing | None = None,
) -> DavisVideos:
    """The videos of a split of DAVIS, in its released layout.

        root/ImageSets/2017/val.txt
        root/JPEGImages/480p/bike-packing/00000.jpg
        root/Annotations/480p/bike-packing/00000.png

    Args:
        root: the folder with this layout.
        split: name of the list of videos: "train", "val", ...
        year: folder of the list, such as "2017". The masks always come from DAVIS 2017.
        resolution: name of the folders of frames and masks: "480p", "Full-Resolution", ...
        preprocessing: preprocessing of the model, `model.preprocessing`. Only its mean and std are
            used: frames keep their size.

    Returns:
        `DavisVideos`, in the order of the list.

    Raises:
        ValueError: if the list or a folder is missing, or if a frame or a mask of a video is
            missing. For example, "test-dev" lacks masks.
    """
    checked_size(None, preprocessing, (3,))
    root = Path(root).expanduser()
    listed = root / "ImageSets" / year / f"{split}.txt"
    if not listed.is_file():
        list_names = sorted(file.stem for file in listed.parent.glob("*.txt"))
        raise ValueError(
            f"List of videos not found: {str(listed)!r}. There are: "
            f"{format_list(list_names) or 'none'}"
        )
    names = tuple(listed.read_text(encoding="utf-8").split())
    frames = [_numbered(root / "JPEGImages" / resolution / name, ".jpg") for name in names]
    masks = [_numbered(root / "Annotations" / resolution / name, ".png") for name in names]
    # Nothing may be missing between the first and the last number of a video.
    for video in zip(frames, masks, strict=True):
        count = max(int(paths[-1].stem) for paths in video) + 1
        for paths in video:
            missing = sorted(set(range(count)) - {int(path.stem) for path in paths})
            if missing:
                absent = format_list(f"{number:05}{paths[0].suffix}" for number in missing)
                raise ValueError(
                    "Each frame of a video needs its mask. Missing in "
                    f"{str(paths[0].parent)!r}: {absent}"
                )
    return DavisVideos(names, tuple(frames), tuple(masks), preprocessing)


def read_mask(path: Path) -> np.ndarray:
    """The index mask of a palette PNG: uint8 (height, width); an error names a corrupt file."""
    from PIL import Image

    with explained(path, path, "a mask"), Image.open(path) as image:
        mode, indices = image.mode, np.array(image)
    if mode != "P":
        raise ValueError(
            f"Expected a mask with a palette (mode P), whose indices number the objects; grey "
            f"values and colours do not identify them. Received: {path} of mode {mode}"
        )
    return indices


def _numbered(folder: Path, suffix: str) -> tuple[Path, ...]:
    """Paths of the files of a video, in the order of their numbers: a tuple."""
    candidates = folder.glob(f"*{suffix}") if folder.is_dir() else ()
    paths = tuple(sorted(path for path in candidates if path.stem.isdecimal()))
    if not paths:
        raise ValueError(f"No files 00000{suffix}, 00001{suffix}, ... in {str(folder)!r}")
    return paths
