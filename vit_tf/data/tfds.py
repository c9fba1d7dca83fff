"""Image classification data sets of TensorFlow Datasets."""

import functools
import os
from dataclasses import dataclass
from typing import Any, cast
from urllib.parse import urlsplit

import numpy as np
import tensorflow as tf

from vit_tf.common.names import format_list
from vit_tf.data import imaging
from vit_tf.data.files import digest_tree
from vit_tf.data.names import is_tfds_name, unknown_data
from vit_tf.data.source import (
    Decoder,
    FastDecoder,
    Indices,
    Item,
    SizesDifferError,
    Source,
    Window,
    is_contiguous,
)

LABELS_AT_MOST = 200_000
SHUFFLE_BUFFER = 10_000
BLOCK = 1024  # records that are picked from at once
_labels = {}  # of each split that was read, by its folder, version and name
SECONDS = 5  # the time that the host of a data set has to answer


def open_tfds(name: str, data_dir: str | os.PathLike | None = None) -> Source:
    """The `Source` of a TFDS data set of images with one label each, downloaded if necessary."""
    import tensorflow_datasets as tfds

    try:
        builder: Any = tfds.builder(name, data_dir=data_dir)
    except (ValueError, AssertionError, ImportError) as error:
        # TFDS lists all its names in its error, this one the near ones.
        raise _unusable(name, error) if is_tfds_name(name) else unknown_data(name) from error
    if not builder.is_prepared():
        _require_host(builder, name)
        try:
            builder.download_and_prepare()
        except Exception as error:  # downloads fail in as many ways as there are data sets
            where = f", neither found nor downloaded to {builder.data_dir}"
            raise _unusable(name, error, where) from error
    return TfdsSource(builder, name)


class TfdsSource(Source, Decoder):
    """The examples of a prepared data set of TFDS; the items are encoded images.

    It decodes images as TFDS does, of any number of channels and bits, but for 8-bit RGB images.
    """

    shuffle_buffer = SHUFFLE_BUFFER
    shuffles_files = True
    in_any_order = False

    def __init__(self, builder: Any, name: str):
        import tensorflow_datasets as tfds

        self.builder, self._name = builder, name
        keys, features = builder.info.supervised_keys, builder.info.features
        kinds = [type(features[key]) for key in keys or () if isinstance(key, str)]
        if kinds != [tfds.features.Image, tfds.features.ClassLabel]:
            raise ValueError(
                "Expected name to be a TFDS data set of images with one label each. "
                f"Received: {name!r} with features {format_list(features)}"
            )
        self.image_key, self.label_key = keys
        self._in_records = builder.info.file_format is tfds.core.FileFormat.TFRECORD
        # One file after the other, so that a position in the stream is an index into the split.
        self._config = tfds.ReadConfig(interleave_cycle_length=1, try_autocache=False)
        self._decoders = {self.image_key: tfds.decode.SkipDecoding()}
        self._feature = features[self.image_key]
        self.class_names = tuple(features[self.label_key].names)
        self.num_examples = {
            split: facts.num_examples for split, facts in builder.info.splits.items()
        }

    def image_size(self, split: str, indices: Indices) -> tuple[int, int]:
        if None in self._feature.shape[:2]:
            raise SizesDifferError(f"images of {self._name}")
        return self._feature.shape[:2]

    def decoder(self, num_channels: int) -> Decoder:
        feature = self._feature
        if feature.dtype == np.uint8 and len(feature.shape) == 3 and feature.shape[-1] == 3:
            return RgbDecoder(feature.shape, self._name)
        return self

    def decode(self, item: Item) -> tuple[tf.Tensor, tf.Tensor | str]:
        return _rgb_or_grey(decode_image(self._feature, item)), ""

    def version(self) -> str:
        return f"{self.builder.info.full_name} {digest_tree(self.builder.data_dir)}"

    def labels(self, split: str) -> np.ndarray | None:
        """The labels of a split, read once in a process; None for a large one."""
        info = self.builder.info
        if info.splits[split].num_examples > LABELS_AT_MOST:
            return None
        version = f"{info.full_name} {os.stat(self.builder.data_dir).st_mtime_ns}"
        key = self.builder.data_dir, version, split
        if key not in _labels:
            _labels[key] = np.concatenate(list(self._label_batches(split).as_numpy_iterator()))
        return _labels[key]

    def _label_batches(self, split: str) -> tf.data.Dataset:
        import tensorflow_datasets as tfds

        if self._in_records:
            spec = {self.label_key: tf.io.FixedLenFeature((), tf.int64)}
            blocks = self._stored(split).batch(BLOCK)
            return blocks.map(lambda block: tf.io.parse_example(block, spec)[self.label_key])
        only = tfds.decode.PartialDecoding({self.label_key: True})
        examples = self.builder.as_dataset(split=split, decoders=only, read_config=self._config)
        return examples.map(lambda example: example[self.label_key]).batch(BLOCK)

    def read(self, split: str, indices: Indices) -> tf.data.Dataset:
        """(image, label) of sorted indices."""
        contiguous = is_contiguous(indices)
        if contiguous or not self._in_records:
            examples = self._range(split, indices, self._config)
            return examples if contiguous else _keep(examples, indices - indices[0])
        features = self.builder.info.features
        parse = functools.partial(features.deserialize_example, decoders=self._decoders)
        # Most of the time goes into parsing: only what is kept is parsed.
        return _keep(self._stored(split), indices).map(parse).map(self._pair)

    def read_shuffled(self, split: str, indices: Indices, seed: int) -> tf.data.Dataset:
        """(image, label) of neighbours, from several files at once, in another order each time."""
        import tensorflow_datasets as tfds

        shuffled = tfds.ReadConfig(
            shuffle_seed=seed, shuffle_reshuffle_each_iteration=True, try_autocache=False
        )
        # `ReadConfig` sets them itself where it is given none.
        cast(tf.data.Options, shuffled.options).deterministic = True
        return self._range(split, indices, shuffled, shuffle_files=True)

    def _stored(self, split: str) -> tf.data.Dataset:
        return tf.data.TFRecordDataset(self.builder.info.splits[split].filepaths)

    def _range(self, split: str, indices: Indices, config: Any, **settings: Any) -> tf.data.Dataset:
        """(image, label) from the first of the indices to the last."""
        subsplit = f"{split}[{int(indices[0])}:{int(indices[-1]) + 1}]"
        examples = self.builder.as_dataset(
            split=subsplit, decoders=self._decoders, read_config=config, **settings
        )
        return examples.map(self._pair)

    def _pair(self, example: dict[str, tf.Tensor]) -> tuple[tf.Tensor, tf.Tensor]:
        return example[self.image_key], example[self.label_key]


@dataclass(frozen=True)
class RgbDecoder(FastDecoder):
    """Decodes 8-bit RGB images as Pillow does."""

    shape: tuple[int | None, ...]
    name: str  # of the data set

    def attempt(self, item: Item, window: Window | None) -> tf.Tensor:
        image = imaging.decode(item, window, upright=False)
        return image if window else tf.ensure_shape(image, self.shape)

    def decode(self, item: Item) -> tuple[tf.Tensor, tf.Tensor | str]:
        name = f"image of {self.name}"
        decode = functools.partial(imaging.decode, upright=False)
        read = functools.partial(imaging.pixels, name=name, upright=False)
        image, problem = imaging.decode_or_name(decode, read, item, name)
        if None in self.shape:
            return tf.ensure_shape(image, (None, None, 3)), problem
        black = tf.zeros(self.shape, tf.uint8)
        image = tf.cond(problem == "", lambda: image, lambda: black)
        return tf.ensure_shape(image, self.shape), problem


def _require_host(builder: Any, name: str) -> None:
    """Raises a `ValueError` if the host of a data set cannot be reached, where TFDS tries long."""
    import requests

    root = builder.data_dir_root
    urls = [url for url in builder.url_infos or () if "://" in url]
    downloads = root / "downloads"
    if not urls or any(next(iter(downloads.glob(kind)), None) for kind in ("*.INFO", "manual/*")):
        return
    try:
        requests.head(urls[0], timeout=SECONDS)
    except requests.exceptions.ConnectionError as error:
        where = f", not prepared in {root}, and {urlsplit(urls[0]).hostname} cannot be reached"
        raise _unusable(name, error, where) from error
    except requests.exceptions.RequestException:
        pass


def _unusable(name: str, error: BaseException, where: str = "") -> ValueError:
    reason = " ".join(str(error).split())[:300]
    return ValueError(
        "Expected name to be a TFDS data set that is prepared in data_dir (--data-dir) or can be "
        f"downloaded. Received: {name!r}{where} ({type(error).__name__}: {reason})"
    )


def _keep(examples: tf.data.Dataset, places: np.ndarray) -> tf.data.Dataset:
    """The examples at some positions of a stream."""
    wanted = np.zeros(places[-1] + 1, bool)
    wanted[places] = True
    marked = tf.data.Dataset.zip(examples, tf.data.Dataset.from_tensor_slices(wanted))

    def keep(block: tuple, mask: tf.Tensor) -> tuple:
        return tf.nest.map_structure(lambda x: tf.boolean_mask(x, mask), block)

    kept = marked.batch(BLOCK).map(keep).unbatch()  # a block costs little more than one example
    return kept.apply(tf.data.experimental.assert_cardinality(len(places)))


def decode_image(feature: Any, encoded: tf.Tensor) -> tf.Tensor:
    """The image of a file as an Image feature decodes it, but grey JPEG exactly, as Pillow does."""
    if feature.dtype != np.uint8 or len(feature.shape) != 3 or feature.shape[-1] != 1:
        return feature.decode_example(encoded)
    image = tf.cond(
        tf.io.is_jpeg(encoded),
        lambda: tf.io.decode_jpeg(encoded, 1, **imaging.EXACT),
        lambda: feature.decode_example(encoded),
    )
    return tf.ensure_shape(image, feature.shape)


def _rgb_or_grey(image: tf.Tensor) -> tf.Tensor:
    """An image of 1 to 4 channels and up to 16 bits as one of 1 or 3 channels in [0, 255]."""
    if image.dtype == tf.uint16:
        image = tf.cast(image, tf.float32) / 257
    if image.shape[-1] in (2, 4):
        image, alpha = tf.cast(image[..., :-1], tf.float32), image[..., -1:]
        image = 255 + (image - 255) * tf.cast(alpha, tf.float32) / 255
    return image
