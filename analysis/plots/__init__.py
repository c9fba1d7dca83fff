"""Draw one labelled result: `plot_*(result, ax=None)` returns axes; it neither saves nor shows.

Depth runs left to right (and bottom up where both axes are layers), so the input lies at the
origin, as in Raghu et al. 2021, "Do Vision Transformers See Like Convolutional Neural Networks?",
whose figures are named in the docstrings. Functions that are given no axes make a figure of a
fitting size; the caller saves and closes it. A title takes the model's name from the attribute
`model` of the result, or `model_x` and `model_y`.
"""

from .attention import (
    plot_aligned_attention,
    plot_attention_maps,
    plot_head_classes,
    plot_offsets,
)
from .compute import plot_compute
from .drawing import (
    plot_attention_distances,
    plot_data_scale,
    plot_localization_by_layer,
    plot_probes,
    plot_summary_probes,
    plot_token_probes,
)
from .embeddings import plot_patch_filters, plot_position_similarity
from .features import (
    plot_clustering,
    plot_knn,
    plot_last_layer_cka,
    plot_linear_probe,
    plot_retrieval,
)
from .formation import plot_formation
from .lines import plot_attention_distance, plot_distance_by_depth, plot_skip_ratio_lines
from .localization import plot_head_similarity, plot_localization
from .maps import plot_receptive_field, plot_skip_ratio
from .probes import plot_probe_map, plot_probe_variants, plot_ridge_probe
from .saliency import plot_attention_patterns, plot_rollout, plot_saliency_iou
from .similarity import plot_cka, plot_cka_beside, plot_counterparts, plot_matches
from .tasks import plot_keypoints, plot_propagation

__all__ = [
    "plot_aligned_attention",
    "plot_attention_distance",
    "plot_attention_distances",
    "plot_attention_maps",
    "plot_attention_patterns",
    "plot_cka",
    "plot_cka_beside",
    "plot_clustering",
    "plot_compute",
    "plot_counterparts",
    "plot_data_scale",
    "plot_distance_by_depth",
    "plot_formation",
    "plot_head_classes",
    "plot_head_similarity",
    "plot_keypoints",
    "plot_knn",
    "plot_last_layer_cka",
    "plot_linear_probe",
    "plot_localization",
    "plot_localization_by_layer",
    "plot_matches",
    "plot_offsets",
    "plot_patch_filters",
    "plot_position_similarity",
    "plot_probe_map",
    "plot_probe_variants",
    "plot_probes",
    "plot_propagation",
    "plot_receptive_field",
    "plot_retrieval",
    "plot_ridge_probe",
    "plot_rollout",
    "plot_saliency_iou",
    "plot_skip_ratio",
    "plot_skip_ratio_lines",
    "plot_summary_probes",
    "plot_token_probes",
]
