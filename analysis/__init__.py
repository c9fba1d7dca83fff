"""Measurements of what a vision model has learned.

Every analysis takes `features`, a callable from a batch of images to `{tap: tensor}`, streams a
data set through it once and returns a labelled xarray result.
"""

from .aligned_attention import (
    aligned_attention,
    attention_maps,
    attention_offset,
    mean_distance,
)
from .attention import attention_distance, attention_statistic
from .attention_patterns import attention_patterns, mean_patterns, pattern_statistic
from .cka import cka, cka_statistic
from .claims import Claim, scorecard
from .counterparts import counterparts, own_matches
from .head_classes import head_classes
from .heads import head_similarity, head_statistic
from .interactive import cka_heatmap, distance_lines
from .localization import localization, localization_statistic
from .matching import match_maps
from .mean_attention import mean_attention, mean_attention_statistic
from .plots import (
    plot_aligned_attention,
    plot_attention_distance,
    plot_attention_patterns,
    plot_cka,
    plot_cka_beside,
    plot_counterparts,
    plot_head_classes,
    plot_head_similarity,
    plot_localization,
    plot_matches,
    plot_offsets,
    plot_probe_map,
    plot_probe_variants,
    plot_receptive_field,
    plot_ridge_probe,
    plot_rollout,
    plot_saliency_iou,
    plot_skip_ratio,
    plot_skip_ratio_lines,
)
from .receptive_field import receptive_field
from .report import Figure, write_report
from .ridge import fit_ridge_probe, probe_statistic, ridge_probe, score_statistic, select_l2
from .rollout import attention_rollout, rollout_of_images, rollout_statistic
from .saliency import attention_saliency, saliency_statistic
from .skips import skip_ratio, skip_statistic
from .stream import Statistic, accumulate, choose, collect, one_pass

__all__ = [
    "Claim",
    "Figure",
    "Statistic",
    "accumulate",
    "aligned_attention",
    "attention_distance",
    "attention_maps",
    "attention_offset",
    "attention_patterns",
    "attention_rollout",
    "attention_saliency",
    "attention_statistic",
    "choose",
    "cka",
    "cka_heatmap",
    "cka_statistic",
    "collect",
    "counterparts",
    "distance_lines",
    "fit_ridge_probe",
    "head_classes",
    "head_similarity",
    "head_statistic",
    "localization",
    "localization_statistic",
    "match_maps",
    "mean_attention",
    "mean_attention_statistic",
    "mean_distance",
    "mean_patterns",
    "one_pass",
    "own_matches",
    "pattern_statistic",
    "plot_aligned_attention",
    "plot_attention_distance",
    "plot_attention_patterns",
    "plot_cka",
    "plot_cka_beside",
    "plot_counterparts",
    "plot_head_classes",
    "plot_head_similarity",
    "plot_localization",
    "plot_matches",
    "plot_offsets",
    "plot_probe_map",
    "plot_probe_variants",
    "plot_receptive_field",
    "plot_ridge_probe",
    "plot_rollout",
    "plot_saliency_iou",
    "plot_skip_ratio",
    "plot_skip_ratio_lines",
    "probe_statistic",
    "receptive_field",
    "ridge_probe",
    "rollout_of_images",
    "rollout_statistic",
    "saliency_statistic",
    "score_statistic",
    "scorecard",
    "select_l2",
    "skip_ratio",
    "skip_statistic",
    "write_report",
]
