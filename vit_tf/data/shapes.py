"""Synthetic shapes, eight kinds on textured grounds, with their exact masks, parts and keypoints.

Positions are (row, column) on the unit square, for any number of pixels. Each shape has a frame
of its own, (u, v) with u to its right and v to its back, in which it fits into the unit disc.
"""

import colorsys
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import tensorflow as tf

from vit_tf.common.backend import leave_gpus_to_jax
from vit_tf.data.preprocessing import Preprocessing
from vit_tf.data.reading import read_batches
from vit_tf.data.resizing import scale_values
from vit_tf.data.source import (
    Decoder,
    ImageSize,
    Indices,
    Item,
    Source,
    check_numbers,
    checked_size,
    partition,
)

SUBPIXELS = 2
# The front half shows the colour in full, the back half only so much of it.
BACK_TONE = 0.55
STRIPES, STRIPE_TONE = 12, 0.7  # per image, of a texture, and how bright the darker ones are
GRAIN = 8.0
# What is left of the colours where the light is at its weakest.
DIMMEST = 0.7
NOTCH = 0.45
WAVES = 3
KEYPOINTS = ("front", "back", "left", "right")
PARTS = ("front", "back")


def _in_star(u: np.ndarray, v: np.ndarray) -> np.ndarray:
    """A star of five points: each is a triangle from the tip down to the notches next to it."""
    sector = 2 * math.pi / 5
    angle = np.arctan2(u, -v)
    angle = np.abs(angle - sector * np.round(angle / sector))
    radius = np.hypot(u, v)
    along, across = radius * np.cos(angle), radius * np.sin(angle)
    notch = NOTCH * math.cos(sector / 2), NOTCH * math.sin(sector / 2)
    return (1 - along) * notch[1] >= across * (1 - notch[0])


# The kind, whether (u, v) lies in it, and the (u, v) of its `KEYPOINTS`.
KINDS = {
    "disc": (lambda u, v: u**2 + v**2 <= 1, ((0, -0.85), (0, 0.85), (-0.85, 0), (0.85, 0))),
    "ring": (
        lambda u, v: (u**2 + v**2 <= 1) & (u**2 + v**2 >= 0.55**2),
        ((0, -0.8), (0, 0.8), (-0.8, 0), (0.8, 0)),
    ),
    "square": (
        lambda u, v: np.maximum(np.abs(u), np.abs(v)) <= 0.7,
        ((0, -0.6), (0, 0.6), (-0.6, 0), (0.6, 0)),
    ),
    "triangle": (
        lambda u, v: (v <= 0.5) & (v >= math.sqrt(3) * np.abs(u) - 1),
        ((0, -0.75), (0, 0.4), (-0.65, 0.38), (0.65, 0.38)),
    ),
    "cross": (
        lambda u, v: (
            (np.minimum(np.abs(u), np.abs(v)) <= 0.3) & (np.maximum(np.abs(u), np.abs(v)) <= 0.95)
        ),
        ((0, -0.85), (0, 0.85), (-0.85, 0), (0.85, 0)),
    ),
    "star": (_in_star, ((0, -0.8), (0, 0.35), (-0.76, -0.247), (0.76, -0.247))),
    "dome": (
        lambda u, v: (u**2 + v**2 <= 1) & (v <= 0.3),
        ((0, -0.85), (0, 0.2), (-0.8, 0.1), (0.8, 0.1)),
    ),
    "arrow": (
        lambda u, v: (
            ((v >= -1) & (v <= 0) & (np.abs(u) <= 0.8 * (v + 1)))
            | ((v >= 0) & (v <= 0.95) & (np.abs(u) <= 0.3))
        ),
        ((0, -0.8), (0, 0.85), (-0.6, -0.1), (0.6, -0.1)),
    ),
}


@dataclass(frozen=True)
class Shape:
    """A shape of a kind; `centre` is (row, column), and `angle` turns it clockwise, in radians."""

    kind: str
    centre: tuple
    radius: float
    angle: float
    colour: tuple
    stripes: tuple | None = None  # darker ones, how many per image down and across

    def own_frame(self, points: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(u, v) of points of shape (..., 2)."""
        down, right = np.moveaxis((points - np.asarray(self.centre)) / self.radius, -1, 0)
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        return cos * right + sin * down, cos * down - sin * right

    def covers(self, points: np.ndarray) -> np.ndarray:
        """Whether points of shape (..., 2) lie on the shape: bool of shape (...)."""
        return KINDS[self.kind][0](*self.own_frame(points))

    def part(self, points: np.ndarray) -> np.ndarray:
        """The part of the shape at given points: 1 in front of its centre, and 2 behind it."""
        return np.where(self.own_frame(points)[1] < 0, 1, 2)

    def colours(self, points: np.ndarray) -> np.ndarray:
        """Colours at points of shape (point, 2) on the shape: (point, 3)."""
        tone = np.where(self.part(points) == 1, 1.0, BACK_TONE)
        if self.stripes is not None:
            tone *= np.where(points @ np.asarray(self.stripes) % 1 < 0.5, 1.0, STRIPE_TONE)
        return tone[:, None] * np.asarray(self.colour)

    def keypoints(self) -> np.ndarray:
        """Positions of `KEYPOINTS`: float array of shape (keypoint, 2)."""
        u, v = np.array(KINDS[self.kind][1], float).T
        cos, sin = math.cos(self.angle), math.sin(self.angle)
        turned = np.stack([sin * u + cos * v, cos * u - sin * v], axis=-1)
        return np.asarray(self.centre) + self.radius * turned


@dataclass(frozen=True)
class Scene:
    """Shapes, the last of them on top, on a ground of waves and bars that mean nothing."""

    shapes: tuple
    colour: np.ndarray  # of the ground, RGB in [0, 255]
    waves: list = field(repr=False)  # (waves per image down and across, phase, RGB amplitude)
    bars: list = field(repr=False)  # (centre, half length, half width, angle, colour)
    grain: int = 0  # seed of the noise, of a standard deviation of `GRAIN`
    light: float = 1.0  # factor of all colours, which the noise is added to

    def index(self, size: tuple[int, int], of_parts: bool = False) -> np.ndarray:
        """The shape, or its part, seen at each pixel's centre: uint8 (height, width), or 0."""
        points = pixel_centres(size)
        values = np.zeros(size, np.uint8)
        for number, shape in enumerate(self.shapes, start=1):
            on = shape.covers(points)
            values[on] = shape.part(points[on]) if of_parts else number
        return values

    def draw(self, size: tuple[int, int]) -> np.ndarray:
        """The picture, uint8 of shape (height, width, 3), as the mean colour within each pixel."""
        # Waves are computed at the centre of each pixel: they are too long to change within one.
        colours = np.tile(np.asarray(self.colour, float), (*size, 1))
        for frequency, phase, amplitude in self.waves:
            wave = np.sin(2 * math.pi * (pixel_centres(size) @ np.asarray(frequency)) + phase)
            colours += wave[..., None] * np.asarray(amplitude)
        # Bars, and then shapes, are drawn on a finer grid.
        points = pixel_centres((size[0] * SUBPIXELS, size[1] * SUBPIXELS))
        colours = colours.repeat(SUBPIXELS, axis=0).repeat(SUBPIXELS, axis=1)
        for centre, length, width, angle, colour in self.bars:
            down, right = np.moveaxis(points - np.asarray(centre), -1, 0)
            along = math.cos(angle) * right + math.sin(angle) * down
            across = math.cos(angle) * down - math.sin(angle) * right
            colours[(np.abs(along) <= length) & (np.abs(across) <= width)] = colour
        for shape in self.shapes:
            on = shape.covers(points)
            colours[on] = shape.colours(points[on])
        colours = colours.reshape(size[0], SUBPIXELS, size[1], SUBPIXELS, 3).mean((1, 3))
        noise = np.random.default_rng(self.grain).normal(0, GRAIN, colours.shape)
        return np.clip(np.round(colours * self.light + noise), 0, 255).astype(np.uint8)


def pixel_centres(size: tuple[int, int]) -> np.ndarray:
    """Centres of the pixels of an image of `size` (height, width): (height, width, 2)."""
    height, width = size
    rows, columns = (np.arange(height) + 0.5) / height, (np.arange(width) + 0.5) / width
    return np.stack(np.meshgrid(rows, columns, indexing="ij"), axis=-1)


def random_scene(kind: str, rng: np.random.Generator) -> Scene:
    """One shape of a kind, of random size, turn, colour and light, which may cross the border."""
    shape = Shape(
        kind,
        tuple(rng.uniform(0.18, 0.82, 2)),
        rng.uniform(0.22, 0.36),
        rng.uniform(0, 2 * math.pi),
        _bright_colour(rng),
    )
    return Scene((shape,), *_random_ground(rng), rng.uniform(DIMMEST, 1))


def random_motion(num_frames: int, rng: np.random.Generator) -> list[Scene]:
    """Scenes of two or three shapes of one colour that drift and turn on a still ground."""
    count = rng.integers(2, 4)
    kinds = rng.choice(list(KINDS), count, replace=False)
    ground_colour, waves, bars, grain = _random_ground(rng)
    around = rng.uniform(0, 2 * math.pi) + 2 * math.pi / count * np.arange(count)
    centres = 0.5 + 0.26 * np.stack([np.sin(around), np.cos(around)], axis=-1)
    radii, turns = rng.uniform(0.14, 0.2, count), rng.uniform(0, 2 * math.pi, count)
    colour = _bright_colour(rng)
    drifts, spins = rng.uniform(-0.3, 0.3, (count, 2)), rng.uniform(-1, 1, count)
    frequency, phase = rng.uniform(0.5, 1.5), rng.uniform(0, 2 * math.pi)
    times = np.arange(num_frames) / max(num_frames - 1, 1)
    lights = (1 + np.sin(2 * math.pi * frequency * times + phase)) / 2
    lights = DIMMEST + (1 - DIMMEST) * lights
    scenes = []
    for frame, time in enumerate(times):
        moved = zip(kinds, centres + time * drifts, radii, turns + time * spins, strict=True)
        shapes = tuple(
            Shape(str(kind), tuple(centre), radius, turn, colour)
            for kind, centre, radius, turn in moved
        )
        scenes.append(Scene(shapes, ground_colour, waves, bars, grain + frame, lights[frame]))
    return scenes


def _random_ground(rng: np.random.Generator) -> tuple[np.ndarray, list, list, int]:
    """Colour, waves, bars and grain of a `Scene`, all darker than its shapes' front halves."""
    waves = [
        (rng.uniform(-6, 6, 2), rng.uniform(0, 2 * math.pi), rng.uniform(-20, 20, 3))
        for _ in range(WAVES)
    ]
    bars = [
        (
            rng.uniform(0, 1, 2),
            rng.uniform(0.06, 0.25),
            rng.uniform(0.015, 0.05),
            rng.uniform(0, math.pi),
            rng.uniform(20, 200, 3),
        )
        for _ in range(rng.integers(2, 5))
    ]
    return rng.uniform(40, 140, 3), waves, bars, int(rng.integers(2**31))


def _bright_colour(rng: np.random.Generator) -> tuple[float, float, float]:
    hue, saturation, value = rng.uniform((0, 0.4, 0.85), (1, 1, 1))
    red, green, blue = colorsys.hsv_to_rgb(hue, saturation, value)
    return 255 * red, 255 * green, 255 * blue


def with_texture(scene: Scene, kind: str) -> Scene:
    """A scene of one shape with the texture of a kind, its own or another, on a grey ground.

    A texture is a hue and the direction of stripes, which the ground shows nothing of.
    """
    number = list(KINDS).index(kind)
    colour = tuple(255 * channel for channel in colorsys.hsv_to_rgb(number / len(KINDS), 0.9, 1))
    angle = math.pi * number / len(KINDS)
    stripes = STRIPES * math.sin(angle), STRIPES * math.cos(angle)
    (shape,) = scene.shapes
    return replace(
        scene,
        shapes=(replace(shape, colour=colour, stripes=stripes),),
        colour=np.full(3, np.mean(scene.colour)),
        waves=[(*wave, np.full(3, np.mean(amplitude))) for *wave, amplitude in scene.waves],
        bars=[(*bar, np.full(3, np.mean(colour))) for *bar, colour in scene.bars],
    )


SIDE = 64
# Many to train on, so that minutes of training show no image often.
NUM_EXAMPLES = {"train": 20_000, "test": 1000}
SEED = 0
# The number of each split's first scene: a number stands for one scene, which is in one split.
FIRST = {"train": 0, "test": NUM_EXAMPLES["train"]}


class Shapes(Source, Decoder):
    """The shapes, 64 x 64 pixels; the items are numbers, and no image depends on the others.

    `texture_of` is a function from the number of an image to the kind of its texture; without it,
    shapes have no texture.
    """

    class_names = tuple(KINDS)
    num_examples = NUM_EXAMPLES

    def __init__(self, texture_of: Callable[[int], str] | None = None):
        self._texture_of = texture_of

    def labels(self, split: str) -> np.ndarray:
        numbers = FIRST[split] + np.arange(NUM_EXAMPLES[split])
        return (numbers % len(KINDS)).astype(np.int32)

    def image_size(self, split: str, indices: Indices) -> tuple[int, int]:
        return SIDE, SIDE

    def read(self, split: str, indices: Indices) -> tf.data.Dataset:
        columns = (FIRST[split] + indices, self.labels(split)[indices])
        return tf.data.Dataset.from_tensor_slices(columns)

    def decode(self, item: Item) -> tuple[tf.Tensor, tf.Tensor | str]:
        texture_of = self._texture_of
        image = tf.numpy_function(
            lambda number: numbered_scene(number, texture_of).draw((SIDE, SIDE)),
            [item],
            tf.uint8,
            stateful=False,
        )
        return tf.ensure_shape(image, (SIDE, SIDE, 3)), ""

    def version(self) -> str:
        return "shapes" if self._texture_of is None else f"shapes, {self._texture_of.__name__}"


def numbered_scene(number: int, texture_of: Callable[[int], str] | None = None) -> Scene:
    """The `Scene` of an image; the kinds take turns."""
    scene = random_scene(own_kind(number), np.random.default_rng([SEED, number]))
    return scene if texture_of is None else with_texture(scene, texture_of(number))


def own_kind(number: int) -> str:
    """The kind of shape of an image."""
    return list(KINDS)[number % len(KINDS)]


def other_kind(number: int) -> str:
    """Another kind for each image; the pairs of kinds take turns."""
    count = len(KINDS)
    return list(KINDS)[(number + 1 + number // count % (count - 1)) % count]


BATCH_SIZE = 128
# Apart from the seed of the still images, `SEED`.
VIDEO_SEED = 1
PAIR_SEED = 2


def load_shapes(
    split: str = "test",
    *,
    image_size: ImageSize | None = None,
    take: int | None = None,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
) -> dict[str, np.ndarray]:
    """The images of `load("shapes")` with their masks, parts and keypoints.

    Masks and parts are computed at the requested size, not resized: a pixel belongs to a shape if
    its centre lies in the shape.

    Args:
        split: "train" or "test".
        image_size, take, seed, preprocessing: as for `load`; all examples if `take` is None.

    Returns:
        Dict of the following arrays, in the order of the split.

        * `image`: float32 of shape (example, height, width, 3).
        * `label`: int32 of shape (example,), the kind of shape.
        * `mask`: bool of shape (example, height, width), true on the shape.
        * `parts`: uint8 of shape (example, height, width), 1 on the front half of the shape, 2 on
          its back half, and 0 elsewhere.
        * `keypoints`: float64 of shape (example, keypoint, 2), the (row, column) in pixels of the
          shape's front, back, left and right. The centre of the first pixel is (0.5, 0.5).
        * `visible`: bool of shape (example, keypoint), whether the keypoint lies within the image.

    Raises:
        ValueError: as for `load`.
    """
    if take is not None:
        check_numbers(1, take=take)
    size = checked_size(image_size, preprocessing) or (SIDE, SIDE)
    source = Shapes()
    selection = partition(source, (split,), 0, {} if take is None else {split: take}, seed)[split]
    images, labels = _read(source, *selection, size, preprocessing)
    scenes = [numbered_scene(number) for number in FIRST[split] + selection[1]]
    places = np.stack([scene.shapes[0].keypoints() for scene in scenes])
    return {
        "image": images,
        "label": labels,
        "mask": np.stack([scene.index(size) for scene in scenes]) > 0,
        "parts": np.stack([scene.index(size, of_parts=True) for scene in scenes]),
        "keypoints": places * size,
        "visible": _seen(places),
    }


def shape_masks(shapes: Mapping[str, np.ndarray], batch_size: int) -> tf.data.Dataset:
    """Batches (images, masks, kinds of shape) of `load_shapes`, as `load_coco` gives them."""
    return _masked(shapes, shapes["mask"][:, None], shapes["label"][:, None], batch_size)


def half_masks(shapes: Mapping[str, np.ndarray], batch_size: int) -> tf.data.Dataset:
    """The same of the front (label 2 * kind) and back (2 * kind + 1) halves of each shape."""
    parts, kinds = shapes["parts"], shapes["label"]
    masks = np.stack([parts == 1, parts == 2], axis=1)
    return _masked(shapes, masks, np.stack([2 * kinds, 2 * kinds + 1], axis=1), batch_size)


def _masked(
    shapes: Mapping[str, np.ndarray], masks: np.ndarray, labels: np.ndarray, batch_size: int
) -> tf.data.Dataset:
    """Batches of (images, masks, labels)."""
    arrays = shapes["image"], masks, labels.astype(np.int32)
    return tf.data.Dataset.from_tensor_slices(arrays).batch(batch_size)


def _read(
    source: Source,
    split: str,
    indices: Indices,
    size: tuple[int, int],
    preprocessing: Preprocessing | None,
) -> tuple[np.ndarray, np.ndarray]:
    """Images and labels, as `load` gives them, of examples at sorted indices of a split."""
    leave_gpus_to_jax()
    plain = preprocessing and preprocessing.squeezed()
    batches = read_batches(source, split, indices, size, BATCH_SIZE, preprocessing=plain)
    images, labels = zip(*batches.as_numpy_iterator(), strict=True)
    return np.concatenate(images), np.concatenate(labels)


def _seen(places: np.ndarray) -> np.ndarray:
    """Whether positions on the unit square, of shape (..., 2), lie on it: bool of shape (...)."""
    return np.all((places >= 0) & (places < 1), axis=-1)


def load_cue_conflict(
    count: int = 448,
    *,
    image_size: ImageSize | None = None,
    preprocessing: Preprocessing | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """Images that show the shape of one class with the colour and stripes of another.

    In the images of `load("textured-shapes")`, the shape and the texture belong to the same class,
    so a model trained on them can classify by either (Geirhos et al. 2019,
    https://arxiv.org/abs/1811.12231).

    Args:
        count: number of images, from the scenes of the test split. The 56 pairs of different
            classes take turns.
        image_size, preprocessing: as for `load`.

    Returns:
        Pair (images, labels), as `vit_tf.analysis.shape_bias` takes it. Images are float32 of shape
        (example, height, width, 3). Labels are int32 of shape (example, 2): the class of the shape
        and the class of the texture.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_numbers(1, count=count)
    if count > NUM_EXAMPLES["test"]:
        raise ValueError(f"Expected count to be at most {NUM_EXAMPLES['test']}. Received: {count}")
    size = checked_size(image_size, preprocessing) or (SIDE, SIDE)
    indices = np.arange(count)
    images, labels = _read(Shapes(other_kind), "test", indices, size, preprocessing)
    kinds = list(KINDS)
    textures = [kinds.index(other_kind(FIRST["test"] + index)) for index in range(count)]
    return images, np.stack([labels, np.array(textures, np.int32)], axis=1)


def load_shape_pairs(
    count: int = 64,
    *,
    image_size: ImageSize | None = None,
    seed: int = 0,
    preprocessing: Preprocessing | None = None,
) -> list[dict[str, Any]]:
    """Pairs of test images of the same kind of shape, with the keypoints visible in both.

    Args:
        count: number of pairs. The kinds of shape take turns.
        image_size, preprocessing: as for `load`.
        seed: seed of the selection. With the same seed, a longer list begins with the same pairs.

    Returns:
        List of dicts, as `vit_tf.analysis.keypoint_correspondence` takes them. Each dict has
        `category`, `source`, `target`, `source_points`, `target_points`, `source_box` and
        `target_box`. A box is (top, left, bottom, right) of the visible part of the shape. It is
        accurate to one pixel of a 64 x 64 image.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_numbers(1, count=count)
    check_numbers(0, seed=seed)
    size = checked_size(image_size, preprocessing) or (SIDE, SIDE)
    source = Shapes()
    labels = source.labels("test")
    scenes = [numbered_scene(FIRST["test"] + index) for index in range(len(labels))]
    places = np.stack([scene.shapes[0].keypoints() for scene in scenes])
    visible = _seen(places)
    # With one keypoint out of sight at most, two or more are always seen in both.
    fit = visible.sum(axis=1) >= visible.shape[1] - 1
    index_pairs = [
        np.random.default_rng([PAIR_SEED, seed, number]).choice(
            np.flatnonzero(fit & (labels == number % len(KINDS))), 2, replace=False
        )
        for number in range(count)
    ]
    indices = np.unique(index_pairs)
    images, _ = _read(source, "test", indices, size, preprocessing)
    pairs = []
    for pair in index_pairs:
        both = visible[pair].all(axis=0)
        sides = dict(zip(("source", "target"), pair, strict=True))
        content: dict[str, Any] = {"category": source.class_names[labels[pair[0]]]}
        for side, index in sides.items():
            content[side] = images[np.searchsorted(indices, index)]
            content[f"{side}_points"] = places[index, both] * size
            content[f"{side}_box"] = _box(scenes[index]) * np.tile(size, 2)
        pairs.append(content)
    return pairs


def _box(scene: Scene) -> np.ndarray:
    """(top, left, bottom, right) of what is seen of the shapes, on the unit square."""
    mask = scene.index((SIDE, SIDE)) > 0
    rows, columns = (np.flatnonzero(mask.any(axis=axis)) for axis in (1, 0))
    return np.array([rows[0], columns[0], rows[-1] + 1, columns[-1] + 1]) / SIDE


def load_shape_videos(
    count: int = 8, *, num_frames: int = 12, image_size: int | Sequence[int] = SIDE, seed: int = 0
) -> dict[str, np.ndarray]:
    """Videos of two or three shapes of one colour that drift and turn, with the exact mask of each.

    Light and noise change from frame to frame; the background does not move.

    Args:
        count: number of videos.
        num_frames: number of frames of each video.
        image_size: height and width in pixels; a number or a pair.
        seed: seed of the videos. With the same seed, a longer list begins with the same videos.

    Returns:
        Dict of two arrays. `image` is float32 of shape (video, frame, height, width, 3), in [-1,
        1]. `index` is uint8 of shape (video, frame, height, width). It is 0 for the background and
        1, 2, ... for the visible parts of the shapes.

    Raises:
        ValueError: if an argument is out of range.
    """
    check_numbers(1, count=count, num_frames=num_frames)
    check_numbers(0, seed=seed)
    size = checked_size(image_size) or (SIDE, SIDE)
    videos = [
        random_motion(num_frames, np.random.default_rng([VIDEO_SEED, seed, number]))
        for number in range(count)
    ]
    images = np.stack([[scene.draw(size) for scene in scenes] for scenes in videos])
    return {
        "image": scale_values(images.astype(np.float32)),
        "index": np.stack([[scene.index(size) for scene in scenes] for scenes in videos]),
    }
