"""Keras for pyright: its classes as they are, and all else as anything, see pyproject.toml."""

from typing import Any

from keras.src import layers as layers
from keras.src.backend import KerasTensor as KerasTensor, Variable as Variable
from keras.src.layers.core.input_layer import Input as Input
from keras.src.layers.layer import Layer as Layer
from keras.src.models.model import Model as Model
from keras.src.models.sequential import Sequential as Sequential
from keras.src.ops.operation import Operation as Operation

from . import saving as saving

def __getattr__(name: str) -> Any: ...
