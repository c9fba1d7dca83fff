"""The 1,797 handwritten digits of 8 x 8 pixels that come with scikit-learn."""

import numpy as np
import tensorflow as tf

from vit_tf.data.source import TEST_FRACTION, Source, hold_out


def open_digits():
    """The digits, with grey values 0..16 stretched to [0, 255] and a fixed test split.

    One fifth of the images (360), stratified and the same whatever the seed, are the test split.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = (digits.images[..., None] * (255 / 16)).astype(np.float32)
    labels = digits.target.astype(np.int32)
    train, test = hold_out(labels, TEST_FRACTION, np.random.default_rng(0))
    members = {"train": train, "test": test}

    def read(split, indices):
        chosen = members[split][indices]
        return tf.data.Dataset.from_tensor_slices((images[chosen], labels[chosen]))

    return Source(
        class_names=tuple(str(name) for name in digits.target_names),
        num_examples={split: len(chosen) for split, chosen in members.items()},
        labels=lambda split: labels[members[split]],
        image_size=lambda split, indices: images.shape[1:3],
        read=read,
        decode=lambda image: (image, ""),
        shuffle_buffer=len(labels),
        version=lambda: "digits",
    )
