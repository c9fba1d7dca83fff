"""Measurements of what a vision model has learned.

Every analysis takes `features`, a callable from a batch of images to `{tap: tensor}`, streams a
data set through it once and returns a labelled xarray result.
"""

from .attention.aligned_attention import (
    aligned_attention,
    attention_maps,
    attention_offset,
    mean_distance,
)
from .attention.attention import attention_distance, attention_statistic
from .attention.attention_patterns import attention_patterns, mean_patterns, pattern_statistic
from .attention.head_classes import head_classes
from .attention.mean_attention import mean_attention, mean_attention_statistic
from .attention.rollout import attention_rollout, rollout_of_images, rollout_statistic
from .attention.saliency import attention_saliency, saliency_statistic
from .engine.baselines import gaussian_like
from .engine.derived import choose
from .engine.matching import match_maps
from .engine.pooling import Pooled, pooled_statistic
from .engine.stream import Statistic, accumulate, collect, one_pass
from .flow.embeddings import patch_filters, position_similarity
from .flow.receptive_field import receptive_field
from .flow.skips import skip_ratio, skip_statistic
from .objects.dense_features import dense_features, dense_size
from .objects.keypoints import correct_keypoints, keypoint_correspondence
from .objects.propagation import follow_masks, label_propagation, propagate, propagate_masks
from .objects.video_scores import boundary_accuracy, region_similarity, write_masks
from .plots import (
    plot_aligned_attention,
    plot_attention_distance,
    plot_attention_maps,
    plot_attention_patterns,
    plot_cka,
    plot_cka_beside,
    plot_clustering,
    plot_compute,
    plot_counterparts,
    plot_distance_by_depth,
    plot_formation,
    plot_head_classes,
    plot_head_similarity,
    plot_keypoints,
    plot_knn,
    plot_last_layer_cka,
    plot_linear_probe,
    plot_localization,
    plot_matches,
    plot_offsets,
    plot_patch_filters,
    plot_position_similarity,
    plot_probe_map,
    plot_probe_variants,
    plot_propagation,
    plot_receptive_field,
    plot_retrieval,
    plot_ridge_probe,
    plot_rollout,
    plot_saliency_iou,
    plot_skip_ratio,
    plot_skip_ratio_lines,
)
from .plots.interactive import cka_heatmap, distance_lines
from .probes.clustering import (
    cluster_scores,
    clustering,
    clustering_statistic,
    masked_features,
    object_clustering,
    object_statistic,
)
from .probes.knn import knn_accuracy, knn_statistic
from .probes.linear_probe import linear_probe
from .probes.retrieval import average_precision, retrieval, retrieval_statistic
from .probes.ridge import fit_ridge_probe, probe_statistic, ridge_probe, score_statistic, select_l2
from .report.page import ReportFigure, write_report
from .similarity.cka import cka, cka_statistic
from .similarity.counterparts import counterparts, own_matches
from .similarity.formation import FormationRecorder
from .similarity.heads import head_similarity, head_statistic
from .similarity.last_layer import last_layer_cka, last_layer_statistic
from .similarity.localization import localization, localization_statistic
from .similarity.residual import depth_cka, depth_statistic, residual_cka, residual_statistic
from .study.judge import Claim, scorecard

__all__ = [
    "Claim",
    "FormationRecorder",
    "Pooled",
    "ReportFigure",
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
    "average_precision",
    "boundary_accuracy",
    "choose",
    "cka",
    "cka_heatmap",
    "cka_statistic",
    "cluster_scores",
    "clustering",
    "clustering_statistic",
    "collect",
    "correct_keypoints",
    "counterparts",
    "dense_features",
    "dense_size",
    "depth_cka",
    "depth_statistic",
    "distance_lines",
    "fit_ridge_probe",
    "follow_masks",
    "gaussian_like",
    "head_classes",
    "head_similarity",
    "head_statistic",
    "keypoint_correspondence",
    "knn_accuracy",
    "knn_statistic",
    "label_propagation",
    "last_layer_cka",
    "last_layer_statistic",
    "linear_probe",
    "localization",
    "localization_statistic",
    "masked_features",
    "match_maps",
    "mean_attention",
    "mean_attention_statistic",
    "mean_distance",
    "mean_patterns",
    "object_clustering",
    "object_statistic",
    "one_pass",
    "own_matches",
    "patch_filters",
    "pattern_statistic",
    "plot_aligned_attention",
    "plot_attention_distance",
    "plot_attention_maps",
    "plot_attention_patterns",
    "plot_cka",
    "plot_cka_beside",
    "plot_clustering",
    "plot_compute",
    "plot_counterparts",
    "plot_distance_by_depth",
    "plot_formation",
    "plot_head_classes",
    "plot_head_similarity",
    "plot_keypoints",
    "plot_knn",
    "plot_last_layer_cka",
    "plot_linear_probe",
    "plot_localization",
    "plot_matches",
    "plot_offsets",
    "plot_patch_filters",
    "plot_position_similarity",
    "plot_probe_map",
    "plot_probe_variants",
    "plot_propagation",
    "plot_receptive_field",
    "plot_retrieval",
    "plot_ridge_probe",
    "plot_rollout",
    "plot_saliency_iou",
    "plot_skip_ratio",
    "plot_skip_ratio_lines",
    "pooled_statistic",
    "position_similarity",
    "probe_statistic",
    "propagate",
    "propagate_masks",
    "receptive_field",
    "region_similarity",
    "residual_cka",
    "residual_statistic",
    "retrieval",
    "retrieval_statistic",
    "ridge_probe",
    "rollout_of_images",
    "rollout_statistic",
    "saliency_statistic",
    "score_statistic",
    "scorecard",
    "select_l2",
    "skip_ratio",
    "skip_statistic",
    "write_masks",
    "write_report",
]
