# The public names: read by `lazy_loader` in `__init__.py`, and by editors.
from .attention.aligned_attention import (
    aligned_attention as aligned_attention,
)
from .attention.aligned_attention import (
    attention_maps as attention_maps,
)
from .attention.aligned_attention import (
    attention_offset as attention_offset,
)
from .attention.aligned_attention import (
    mean_distance as mean_distance,
)
from .attention.attention import (
    attention_distance as attention_distance,
)
from .attention.attention import (
    attention_statistic as attention_statistic,
)
from .attention.attention_patterns import (
    attention_patterns as attention_patterns,
)
from .attention.attention_patterns import (
    mean_patterns as mean_patterns,
)
from .attention.attention_patterns import (
    pattern_statistic as pattern_statistic,
)
from .attention.attention_rows import attention_rows as attention_rows
from .attention.gradient_attention import gradient_attention as gradient_attention
from .attention.head_classes import head_classes as head_classes
from .attention.mean_attention import (
    mean_attention as mean_attention,
)
from .attention.mean_attention import (
    mean_attention_statistic as mean_attention_statistic,
)
from .attention.rollout import (
    attention_rollout as attention_rollout,
)
from .attention.rollout import (
    rollout_of_images as rollout_of_images,
)
from .attention.rollout import (
    rollout_statistic as rollout_statistic,
)
from .attention.saliency import (
    attention_saliency as attention_saliency,
)
from .attention.saliency import (
    saliency_statistic as saliency_statistic,
)
from .engine.derived import (
    choose as choose,
)
from .engine.derived import (
    gaussian_like as gaussian_like,
)
from .engine.derived import (
    match_maps as match_maps,
)
from .engine.front import features_of as features_of
from .engine.pooling import Pooled as Pooled
from .engine.pooling import pooled_statistic as pooled_statistic
from .engine.stream import (
    Statistic as Statistic,
)
from .engine.stream import (
    accumulate as accumulate,
)
from .engine.stream import (
    collect as collect,
)
from .engine.stream import (
    one_pass as one_pass,
)
from .flow.embeddings import (
    patch_filters as patch_filters,
)
from .flow.embeddings import (
    position_similarity as position_similarity,
)
from .flow.grad_cam import grad_cam as grad_cam
from .flow.input_gradients import input_gradients as input_gradients
from .flow.interventions.heads import head_ablation as head_ablation
from .flow.interventions.patching import activation_patching as activation_patching
from .flow.interventions.skips import skip_ablation as skip_ablation
from .flow.interventions.tokens import token_ablation as token_ablation
from .flow.logit_lens import lens_accuracy as lens_accuracy
from .flow.logit_lens import logit_lens as logit_lens
from .flow.place_fields import place_fields as place_fields
from .flow.receptive_field import receptive_field as receptive_field
from .flow.skips import path_norms as path_norms
from .flow.skips import skip_ratio as skip_ratio
from .flow.skips import skip_statistic as skip_statistic
from .objects.correspondence import token_similarity as token_similarity
from .objects.dense_features import dense_features as dense_features
from .objects.dense_features import dense_size as dense_size
from .objects.keypoints import (
    correct_keypoints as correct_keypoints,
)
from .objects.keypoints import (
    keypoint_correspondence as keypoint_correspondence,
)
from .objects.propagation import (
    follow_masks as follow_masks,
)
from .objects.propagation import (
    label_propagation as label_propagation,
)
from .objects.propagation import (
    propagate as propagate,
)
from .objects.propagation import (
    propagate_masks as propagate_masks,
)
from .objects.video_scores import (
    boundary_accuracy as boundary_accuracy,
)
from .objects.video_scores import (
    region_similarity as region_similarity,
)
from .objects.video_scores import (
    write_masks as write_masks,
)
from .plots.attention import plot_aligned_attention as plot_aligned_attention
from .plots.attention import plot_attention_distance as plot_attention_distance
from .plots.attention import plot_attention_maps as plot_attention_maps
from .plots.attention import plot_attention_offset as plot_attention_offset
from .plots.attention import plot_attention_patterns as plot_attention_patterns
from .plots.attention import plot_attention_rollout as plot_attention_rollout
from .plots.attention import plot_attention_rows as plot_attention_rows
from .plots.attention import plot_attention_saliency as plot_attention_saliency
from .plots.attention import plot_gradient_attention as plot_gradient_attention
from .plots.attention import plot_head_classes as plot_head_classes
from .plots.attention import plot_mean_attention as plot_mean_attention
from .plots.attention import plot_mean_distance as plot_mean_distance
from .plots.attention import plot_mean_patterns as plot_mean_patterns
from .plots.attention import plot_rollout_of_images as plot_rollout_of_images
from .plots.dispatch import plot as plot
from .plots.features import plot_clustering as plot_clustering
from .plots.features import plot_keypoint_correspondence as plot_keypoint_correspondence
from .plots.features import plot_knn_accuracy as plot_knn_accuracy
from .plots.features import plot_label_propagation as plot_label_propagation
from .plots.features import plot_linear_probe as plot_linear_probe
from .plots.features import plot_object_clustering as plot_object_clustering
from .plots.features import plot_retrieval as plot_retrieval
from .plots.flow import plot_lens_accuracy as plot_lens_accuracy
from .plots.flow import plot_logit_lens as plot_logit_lens
from .plots.flow import plot_patch_filters as plot_patch_filters
from .plots.flow import plot_path_norms as plot_path_norms
from .plots.flow import plot_position_similarity as plot_position_similarity
from .plots.flow import plot_receptive_field as plot_receptive_field
from .plots.flow import plot_skip_ratio as plot_skip_ratio
from .plots.flow import plot_skip_ratio_lines as plot_skip_ratio_lines
from .plots.images import plot_grad_cam as plot_grad_cam
from .plots.images import plot_input_gradients as plot_input_gradients
from .plots.images import plot_overlay as plot_overlay
from .plots.images import plot_place_fields as plot_place_fields
from .plots.images import plot_token_similarity as plot_token_similarity
from .plots.interactive import cka_heatmap as cka_heatmap
from .plots.interactive import distance_lines as distance_lines
from .plots.interventions import plot_activation_patching as plot_activation_patching
from .plots.interventions import plot_head_ablation as plot_head_ablation
from .plots.interventions import plot_head_effects as plot_head_effects
from .plots.interventions import plot_skip_ablation as plot_skip_ablation
from .plots.interventions import plot_token_ablation as plot_token_ablation
from .plots.localization import plot_head_similarity as plot_head_similarity
from .plots.localization import plot_localization as plot_localization
from .plots.probes import plot_probe_map as plot_probe_map
from .plots.probes import plot_probe_variants as plot_probe_variants
from .plots.probes import plot_ridge_probe as plot_ridge_probe
from .plots.similarity import plot_cka as plot_cka
from .plots.similarity import plot_counterparts as plot_counterparts
from .plots.similarity import plot_depth_cka as plot_depth_cka
from .plots.similarity import plot_last_layer_cka as plot_last_layer_cka
from .plots.similarity import plot_own_matches as plot_own_matches
from .plots.similarity import plot_residual_cka as plot_residual_cka
from .plots.similarity import plot_similarities as plot_similarities
from .plots.training import plot_compute as plot_compute
from .plots.training import plot_formation as plot_formation
from .plots.training import plot_trainings as plot_trainings
from .probes.clustering import (
    cluster_scores as cluster_scores,
)
from .probes.clustering import (
    clustering as clustering,
)
from .probes.clustering import (
    clustering_statistic as clustering_statistic,
)
from .probes.clustering import (
    masked_features as masked_features,
)
from .probes.clustering import (
    object_clustering as object_clustering,
)
from .probes.clustering import (
    object_statistic as object_statistic,
)
from .probes.knn import knn_accuracy as knn_accuracy
from .probes.knn import knn_statistic as knn_statistic
from .probes.linear_probe import linear_probe as linear_probe
from .probes.retrieval import (
    average_precision as average_precision,
)
from .probes.retrieval import (
    retrieval as retrieval,
)
from .probes.retrieval import (
    retrieval_statistic as retrieval_statistic,
)
from .probes.ridge import (
    fit_ridge_probe as fit_ridge_probe,
)
from .probes.ridge import (
    probe_statistic as probe_statistic,
)
from .probes.ridge import (
    ridge_probe as ridge_probe,
)
from .probes.ridge import (
    score_statistic as score_statistic,
)
from .probes.ridge import (
    select_l2 as select_l2,
)
from .report.page import ReportFigure as ReportFigure
from .report.page import write_report as write_report
from .similarity.cka import cka as cka
from .similarity.cka import cka_statistic as cka_statistic
from .similarity.counterparts import counterparts as counterparts
from .similarity.counterparts import own_matches as own_matches
from .similarity.formation import FormationRecorder as FormationRecorder
from .similarity.heads import head_similarity as head_similarity
from .similarity.heads import head_statistic as head_statistic
from .similarity.last_layer import (
    last_layer_cka as last_layer_cka,
)
from .similarity.last_layer import (
    last_layer_statistic as last_layer_statistic,
)
from .similarity.localization import (
    localization as localization,
)
from .similarity.localization import (
    localization_statistic as localization_statistic,
)
from .similarity.measures.alignment import rbf_cka as rbf_cka
from .similarity.measures.alignment import token_cka as token_cka
from .similarity.measures.correlations import cca as cca
from .similarity.measures.correlations import pwcca as pwcca
from .similarity.measures.correlations import svcca as svcca
from .similarity.measures.geometry import mutual_knn as mutual_knn
from .similarity.measures.geometry import procrustes as procrustes
from .similarity.measures.geometry import rsa as rsa
from .similarity.measures.predictivity import linear_predictivity as linear_predictivity
from .similarity.measures.similarities import similarities as similarities
from .similarity.measures.similarities import (
    similarities_statistic as similarities_statistic,
)
from .similarity.residual import (
    depth_cka as depth_cka,
)
from .similarity.residual import (
    depth_statistic as depth_statistic,
)
from .similarity.residual import (
    residual_cka as residual_cka,
)
from .similarity.residual import (
    residual_statistic as residual_statistic,
)
from .study.assemble import Report as Report
from .study.assemble import make_report as make_report
from .study.explorer.explore import Exploration as Exploration
from .study.explorer.explore import explore as explore
from .study.figure import Figure as Figure
from .study.judge import Claim as Claim
from .study.judge import Finding as Finding
from .study.judge import scorecard as scorecard
from .study.trainings.scorecard import report_trainings as report_trainings
from .study.trainings.scorecard import scorecard_of_trainings as scorecard_of_trainings
