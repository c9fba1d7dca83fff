"""Measurements of what a vision model has learned.

Every analysis takes `features`, a callable from a batch of images to `{tap: tensor}`, streams a
data set through it once and returns a labelled xarray result.
"""

from .attention import attention_distance, attention_statistic
from .cka import cka, cka_statistic
from .claims import Claim, scorecard
from .counterparts import counterparts, own_matches
from .heads import head_similarity, head_statistic
from .interactive import cka_heatmap, distance_lines
from .localization import localization, localization_statistic
from .matching import match_maps
from .mean_attention import mean_attention, mean_attention_statistic
from .plots import (
    plot_attention_distance,
    plot_cka,
    plot_cka_beside,
    plot_counterparts,
    plot_head_similarity,
    plot_localization,
    plot_matches,
    plot_probe_map,
    plot_probe_variants,
    plot_receptive_field,
    plot_ridge_probe,
    plot_skip_ratio,
    plot_skip_ratio_lines,
)
from .receptive_field import receptive_field
from .report import Figure, write_report
from .ridge import fit_ridge_probe, probe_statistic, ridge_probe, score_statistic, select_l2
from .skips import skip_ratio, skip_statistic
from .stream import Statistic, accumulate, choose, collect, one_pass

__all__ = [
    "Claim",
    "Figure",
    "Statistic",
    "accumulate",
    "attention_distance",
    "attention_statistic",
    "choose",
    "cka",
    "cka_heatmap",
    "cka_statistic",
    "collect",
    "counterparts",
    "distance_lines",
    "fit_ridge_probe",
    "head_similarity",
    "head_statistic",
    "localization",
    "localization_statistic",
    "match_maps",
    "mean_attention",
    "mean_attention_statistic",
    "one_pass",
    "own_matches",
    "plot_attention_distance",
    "plot_cka",
    "plot_cka_beside",
    "plot_counterparts",
    "plot_head_similarity",
    "plot_localization",
    "plot_matches",
    "plot_probe_map",
    "plot_probe_variants",
    "plot_receptive_field",
    "plot_ridge_probe",
    "plot_skip_ratio",
    "plot_skip_ratio_lines",
    "probe_statistic",
    "receptive_field",
    "ridge_probe",
    "score_statistic",
    "scorecard",
    "select_l2",
    "skip_ratio",
    "skip_statistic",
    "write_report",
]
