"""Measurements of what a vision model has learned.

Every analysis takes `features`, a callable from a batch of images to `{tap: tensor}`, streams a
data set through it once and returns a labelled xarray result.
"""

from .attention import attention_distance
from .cka import cka
from .claims import Claim, scorecard
from .heads import head_similarity, head_subsets, subset_distances
from .interactive import cka_heatmap, distance_lines
from .localization import localization
from .matching import match_maps
from .plots import (
    plot_attention_distance,
    plot_cka,
    plot_head_similarity,
    plot_localization,
    plot_receptive_field,
    plot_ridge_probe,
    plot_skip_ratio,
    plot_skip_ratio_lines,
)
from .receptive_field import receptive_field
from .report import Figure, write_report
from .ridge import fit_ridge_probe, ridge_probe, select_l2
from .skips import skip_ratio
from .stream import accumulate, collect

__all__ = [
    "Claim",
    "Figure",
    "accumulate",
    "attention_distance",
    "cka",
    "cka_heatmap",
    "collect",
    "distance_lines",
    "fit_ridge_probe",
    "head_similarity",
    "head_subsets",
    "localization",
    "match_maps",
    "plot_attention_distance",
    "plot_cka",
    "plot_head_similarity",
    "plot_localization",
    "plot_receptive_field",
    "plot_ridge_probe",
    "plot_skip_ratio",
    "plot_skip_ratio_lines",
    "receptive_field",
    "ridge_probe",
    "scorecard",
    "select_l2",
    "skip_ratio",
    "subset_distances",
    "write_report",
]
