"""TFDS data sets of as many tiny images as wanted, written in a second."""

import io
import json
import os

import numpy as np
import tensorflow_datasets as tfds
from PIL import Image

SHARD = 1000  # training examples of a file, and all test examples
SIDE = 8


class TinyRecords(tfds.core.GeneratorBasedBuilder):
    """A thousand pictures of noise in four classes, in each split."""

    VERSION = tfds.core.Version("1.0.0")

    def _info(self):
        features = {
            "image": tfds.features.Image(shape=(SIDE, SIDE, 3)),
            "label": tfds.features.ClassLabel(num_classes=4),
        }
        return tfds.core.DatasetInfo(
            builder=self,
            features=tfds.features.FeaturesDict(features),
            supervised_keys=("image", "label"),
        )

    def _split_generators(self, manager):
        return {"train": self._generate_examples(0), "test": self._generate_examples(1)}

    def _generate_examples(self, seed):
        rng = np.random.default_rng(seed)
        for number in range(SHARD):
            file = io.BytesIO()
            pixels = rng.integers(0, 256, (SIDE, SIDE, 3), np.uint8)
            Image.fromarray(pixels).save(file, "PNG", compress_level=0)
            yield number, {"image": io.BytesIO(file.getvalue()), "label": number % 4}


def write(folder, examples):
    """Writes the data set `tiny_records` of so many training examples to a folder of TFDS.

    Args:
        folder: `pathlib.Path`, the `data_dir`.
        examples: a multiple of `SHARD`. All files of the train split are one and the same.
    """
    builder = TinyRecords(data_dir=folder)
    builder.download_and_prepare()
    root, count = folder / "tiny_records" / "1.0.0", examples // SHARD
    (first,) = root.glob("*-train.*")
    name = first.name.removesuffix("00000-of-00001")
    if count > 1:
        for number in range(count):
            os.link(first, root / f"{name}{number:05d}-of-{count:05d}")
        first.unlink()
    info = json.loads((root / "dataset_info.json").read_text())
    (train,) = (split for split in info["splits"] if split["name"] == "train")
    train["shardLengths"] = [str(SHARD)] * count
    train["numBytes"] = str(int(train["numBytes"]) * count)
    (root / "dataset_info.json").write_text(json.dumps(info))
