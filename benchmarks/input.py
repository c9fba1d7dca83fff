"""Photographs read for training and for evaluation, compared with a pipeline written by hand.

The reference is `tf.data` after big_vision's recipe (google-research/big_vision,
`pp/ops_image.py`: `decode_jpeg_and_inception_crop`, `resize_small`, `central_crop`), tuned, with
the cosine transform and the antialiasing that this package uses, so that both do the same work.

The photographs are those of the folder that VIT_TF_PHOTOS names, or made up, repeated until there
are `COUNT`; they are written once to the folder for temporary files.
"""

from __future__ import annotations

import functools
import io
import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from benchmarks.harness import Benchmark, Growth, Ratio, Run

if TYPE_CHECKING:
    import tensorflow as tf
    import tensorflow_datasets as tfds

COUNT, SIZE, BATCH, CLASSES, FILES = 4352, 224, 128, 4, 16
AREA = (0.05, 1.0)
STRONG = {"magnitude": 0.5, "augmentations_per_image": 2}


Example: TypeAlias = tuple[int, dict[str, Any]]  # an image and its label, with a key
Totals: TypeAlias = "tuple[tf.Tensor, tf.Tensor]"  # number of images, and sum of their values


def _photographs() -> list[bytes]:
    """The contents of JPEG files."""
    folder = os.environ.get("VIT_TF_PHOTOS")
    if folder:
        files = sorted(p for p in Path(folder).rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
        return [path.read_bytes() for path in files]
    from PIL import Image

    rng = np.random.default_rng(0)
    contents = []
    for _ in range(64):
        coarse = Image.fromarray(rng.integers(0, 256, (24, 32, 3), np.uint8))
        file = io.BytesIO()
        coarse.resize((341, 256), Image.Resampling.BICUBIC).save(file, "JPEG", quality=88)
        contents.append(file.getvalue())
    return contents


def _builder(root: Path) -> tfds.core.DatasetBuilder:
    """A TFDS builder of the photographs of a folder."""
    import tensorflow_datasets as tfds

    keys = "image", "label"

    class SpeedPhotographs(tfds.core.GeneratorBasedBuilder):
        """Photographs with their labels."""

        VERSION = tfds.core.Version("1.0.0")

        def _info(self) -> tfds.core.DatasetInfo:
            label = tfds.features.ClassLabel(num_classes=CLASSES)
            features = {"image": tfds.features.Image(encoding_format="jpeg"), "label": label}
            features = tfds.features.FeaturesDict(features)
            return tfds.core.DatasetInfo(builder=self, features=features, supervised_keys=keys)

        def _split_generators(
            self, manager: tfds.download.DownloadManager
        ) -> dict[str, Iterator[Example]]:
            return {split: self._generate_examples() for split in ("train", "test")}

        def _generate_examples(self) -> Iterator[Example]:
            for number, path in enumerate(sorted((root / "folder" / "train").rglob("*.jpg"))):
                yield number, {"image": path, "label": number % CLASSES}

    return SpeedPhotographs(data_dir=root / "tfds")


def _files() -> Path:
    """The folder of the files, which are written if they are not there: `folder/` and `tfds/`."""
    kind = "photos" if os.environ.get("VIT_TF_PHOTOS") else "made"
    name = f"vit_tf_input_{COUNT}_{kind}"
    root = Path(tempfile.gettempdir()) / name
    if not root.is_dir():
        partial = Path(tempfile.mkdtemp(prefix=name))
        contents = _photographs()
        for number in range(COUNT):
            path = partial / "folder" / "train" / str(number % CLASSES) / f"{number:05}.jpg"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(contents[number % len(contents)])
        (partial / "folder" / "test").symlink_to("train")
        try:
            partial.rename(root)
        except OSError:  # another process was first
            shutil.rmtree(partial)
    return root


@functools.cache
def _prepared() -> tfds.core.DatasetBuilder:
    """The builder, prepared on `FILES` files."""
    import tensorflow_datasets as tfds

    builder = _builder(_files())
    if not builder.is_prepared():
        config = tfds.download.DownloadConfig(num_shards=FILES)
        builder.download_and_prepare(download_config=config)
    return builder


def _load(tfds: bool, train: bool) -> tf.data.Dataset:
    from vit_tf import Preprocessing, data
    from vit_tf.data import reading

    reading.CACHE_BYTES = 0  # as for a data set that does not fit into memory
    where = {"data_dir": _prepared().data_dir_root} if tfds else {}
    name = "speed_photographs" if tfds else _files() / "folder"
    settings = {"batch_size": BATCH, "preprocessing": Preprocessing((SIZE, SIZE), crop=0.875)}
    settings |= {"splits": ("train" if train else "test",), "random_resized_crop": AREA}
    return data.load(name, **settings, **where)[0]


def batches_of_training(tfds: bool, rand_augment: float | bool = False) -> tf.data.Dataset:
    """Batches for training, by this package."""
    from vit_tf import data

    return data.augment(_load(tfds, True), CLASSES, flip=True, rand_augment=rand_augment)


def ours(tfds: bool, train: bool, rand_augment: float | bool = False) -> Run:
    """A function that reads an epoch with this package."""
    dataset = batches_of_training(tfds, rand_augment) if train else _load(tfds, False)
    return _reader(dataset, train)


def reference(tfds: bool, train: bool) -> Run:
    """A function that reads an epoch with the pipeline written by hand."""
    import tensorflow as tf

    exact = {"dct_method": "INTEGER_ACCURATE"}

    def crop_at_random(contents: tf.Tensor) -> tf.Tensor:
        shape = tf.image.extract_jpeg_shape(contents)
        start, size, _ = tf.image.sample_distorted_bounding_box(
            shape,
            tf.zeros([0, 0, 4], tf.float32),
            area_range=AREA,
            min_object_covered=0,
            use_image_if_no_bounding_boxes=True,
        )
        window = tf.concat([start[:2], size[:2]], 0)
        image = tf.image.decode_and_crop_jpeg(contents, window, 3, **exact)
        image = tf.image.resize(image, (SIZE, SIZE), antialias=True)
        return tf.image.random_flip_left_right(image)

    def crop_centre(contents: tf.Tensor) -> tf.Tensor:
        image = tf.io.decode_jpeg(contents, 3, **exact)
        own = tf.cast(tf.shape(image)[:2], tf.float32)
        scale = SIZE / 0.875 / tf.reduce_min(own)
        image = tf.image.resize(image, tf.cast(own * scale, tf.int32), antialias=True)
        start = tf.cast(tf.round((tf.cast(tf.shape(image)[:2], tf.float32) - SIZE) / 2), tf.int32)
        return tf.image.crop_to_bounding_box(image, start[0], start[1], SIZE, SIZE)

    crop = crop_at_random if train else crop_centre

    def prepare(contents: tf.Tensor, label: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        image = tf.ensure_shape(crop(contents), (SIZE, SIZE, 3))
        return image / 127.5 - 1.0, tf.one_hot(label, CLASSES)

    contents = _tfds_contents(train) if tfds else _folder_contents(train)
    examples = contents.map(prepare, num_parallel_calls=tf.data.AUTOTUNE, deterministic=True)
    return _reader(examples.batch(BATCH).prefetch(tf.data.AUTOTUNE), train)


def _folder_contents(train: bool) -> tf.data.Dataset:
    import tensorflow as tf

    paths = sorted((_files() / "folder" / "train").rglob("*.jpg"))
    labels = [int(path.parent.name) for path in paths]
    files = tf.data.Dataset.from_tensor_slices(([str(path) for path in paths], labels))
    files = files.shuffle(COUNT) if train else files
    return files.map(lambda path, label: (tf.io.read_file(path), label))


def _tfds_contents(train: bool) -> tf.data.Dataset:
    import tensorflow_datasets as tfds

    how = {"decoders": {"image": tfds.decode.SkipDecoding()}, "shuffle_files": train}
    how["read_config"] = tfds.ReadConfig(try_autocache=False)
    examples = _prepared().as_dataset(split="train" if train else "test", **how)
    examples = examples.map(lambda example: (example["image"], example["label"]))
    return examples.shuffle(COUNT) if train else examples


def _reader(dataset: tf.data.Dataset, train: bool) -> Run:
    """A function that reads an epoch; its answer is the mean of some of its rows of pixels."""
    import tensorflow as tf

    @tf.function
    def read() -> Totals:
        def add(sums: Totals, batch: tuple[tf.Tensor, tf.Tensor]) -> Totals:
            images = batch[0]
            return sums[0] + tf.size(images[:, 0, 0, 0]), sums[1] + tf.reduce_sum(images[:, ::16])

        return dataset.reduce((0, 0.0), add)

    def run() -> np.ndarray | None:
        count, total = (float(x) for x in read())
        if count != COUNT:
            raise ValueError(f"Expected {COUNT} images. Received: {count}")
        return None if train else np.array([total / count])

    return run


def benchmark_of(tfds: bool) -> Benchmark:
    """The benchmark of reading from a folder, or from a TFDS data set."""
    origin = "TFDS" if tfds else "a folder"
    return Benchmark(
        f"{COUNT} photographs at {SIZE} px from {origin}",
        {
            "train": lambda: ours(tfds, True),
            "train, reference": lambda: reference(tfds, True),
            "evaluate": lambda: ours(tfds, False),
            "evaluate, reference": lambda: reference(tfds, False),
            "train, RandAugment": lambda: ours(tfds, True, STRONG),
        },
        (
            Ratio(("train, reference",), 1 / 0.95, name="train"),
            Ratio(("evaluate, reference",), 1 / 0.95, name="evaluate"),
            Ratio(("train",), 2.0, name="train, RandAugment"),
        ),
        rounds=5,
    )


IMAGES, FIRST = 50_000, 5_000
# Batches whose memory is read at either end, as some are in the making at any time.
READINGS = 10


def resident_memory() -> float:
    """Memory of this process that is in use now, in MB."""
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def growth(batches: tf.data.Dataset, images: int, first: int, readings: int) -> float:
    """By how many MB memory grows from the `first` images on, medians of so many `readings`."""
    memory, counts = [], [0]
    while counts[-1] < images:
        for batch, _ in batches:
            counts.append(counts[-1] + len(batch))
            memory.append(resident_memory())
    start = np.searchsorted(counts[1:], first)
    return np.median(memory[-readings:]) - np.median(memory[start : start + readings])


def train_at_length() -> Run:
    """A function that reads `IMAGES` images of the folder for training."""
    batches = batches_of_training(tfds=False)
    return lambda: Growth(growth(batches, IMAGES, FIRST, READINGS))


BENCHMARKS = {
    "input": benchmark_of(tfds=False),
    "input_tfds": benchmark_of(tfds=True),
    "input_memory": Benchmark(
        f"{IMAGES:,} photographs at {SIZE} px from a folder in batches of {BATCH}, "
        f"after the first {FIRST:,}",
        {"train": train_at_length},
        (Ratio((), 200, "growth", name="train"),),
        once=("train",),
        rounds=1,
    ),
}
