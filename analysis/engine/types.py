"""Types of the arguments that measurements share, described in `vit_tf.analysis`."""

import os
from collections.abc import Callable, Mapping, Sequence

import keras
import numpy as np
import tensorflow as tf

from vit_tf.tokens import TokenGrid

Path = str | os.PathLike
# A model, its path or bundled name, a function from images to layers, or activations by layer.
Model = keras.Model | Path | Callable | Mapping[str, np.ndarray]
# An array, paths, PIL images or a list of these, a folder, or a data set.
Images = np.ndarray | tf.Tensor | tf.data.Dataset | Path | Sequence
# A data set, a tuple of arrays, or a folder of class folders.
LabelledImages = tf.data.Dataset | tuple | Path
Grid = TokenGrid | tuple[int, int]
Classes = int | str | Sequence[int | str]
