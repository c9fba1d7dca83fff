"""Small files in the layout of DAVIS."""

import numpy as np
from image_folders import turned
from PIL import Image

# As the PNG files of DAVIS 2017 hold it: 22 colours, then greys.
COLOURS = (
    "0 0 0 128 0 0 0 128 0 128 128 0 0 0 128 128 0 128 0 128 128 128 128 128 64 0 0 191 0 0 "
    "64 128 0 191 128 0 64 0 128 191 0 128 64 128 128 191 128 128 0 64 0 128 64 0 0 191 0 "
    "128 191 0 0 64 128 128 64 128"
)


PALETTE = [*map(int, COLOURS.split()), *np.repeat(range(22, 256), 3).tolist()]


def write_mask(path, mask):
    image = Image.fromarray(np.uint8(mask))
    image.putpalette(PALETTE)
    image.save(path)


def write_video(root, name, masks, rng, resolution="480p"):
    """A video of noise with these masks; returns its frames as they decode."""
    frames = root / "JPEGImages" / resolution / name
    indices = root / "Annotations" / resolution / name
    for folder in (frames, indices):
        folder.mkdir(parents=True)
    decoded = []
    for number, mask in enumerate(masks):
        noise = rng.integers(0, 256, (*mask.shape, 3)).astype(np.uint8)
        # The orientation would turn the frame away from its mask.
        Image.fromarray(noise).save(frames / f"{number:05}.jpg", quality=95, exif=turned())
        decoded.append(np.asarray(Image.open(frames / f"{number:05}.jpg")))
        write_mask(indices / f"{number:05}.png", mask)
    return np.stack(decoded)


def write_list(root, names, year="2017", split="val"):
    folder = root / "ImageSets" / year
    folder.mkdir(parents=True, exist_ok=True)
    (folder / f"{split}.txt").write_bytes("".join(f"{name}\r\n" for name in names).encode())
