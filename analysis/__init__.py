"""Measurements of what a vision model has learned.

Every analysis takes `features`, a callable from a batch of images to `{tap: tensor}`, streams a
data set through it once and returns a labelled xarray result.
"""

from .attention import attention_distance
from .cka import cka
from .receptive_field import receptive_field
from .ridge import ridge_probe
from .skips import skip_ratio
from .stream import accumulate, collect

__all__ = [
    "accumulate",
    "attention_distance",
    "cka",
    "collect",
    "receptive_field",
    "ridge_probe",
    "skip_ratio",
]
