# The public names: read by `lazy_loader` in `__init__.py`, and by editors.
from .attention.attention_distance import (
    attention_distance as attention_distance,
    attention_rows as attention_rows,
)
from .attention.attention_patterns import (
    attention_patterns as attention_patterns,
    mean_patterns as mean_patterns,
)
from .attention.image_attention import attention as attention
from .attention.mean_attention import (
    aligned_attention as aligned_attention,
    attention_maps as attention_maps,
    attention_offset as attention_offset,
    head_classes as head_classes,
    mean_attention as mean_attention,
    mean_distance as mean_distance,
)
from .attention.rollout import (
    attention_rollout as attention_rollout,
    gradient_attention as gradient_attention,
    rollout_of_images as rollout_of_images,
)
from .attention.saliency import (
    attention_saliency as attention_saliency,
)
from .engine.estimates import images_needed as images_needed
from .engine.feature_taps import choose as choose
from .engine.features import features_of as features_of
from .engine.matching import match_maps as match_maps
from .engine.noise import gaussian_like as gaussian_like
from .engine.pooling import Pooled as Pooled, pooled_statistic as pooled_statistic
from .engine.stream import (
    Statistic as Statistic,
    accumulate as accumulate,
    collect as collect,
    one_pass as one_pass,
)
from .engine.training_recorder import Recorder as Recorder
from .flow.ablation import (
    activation_patching as activation_patching,
    head_ablation as head_ablation,
    skip_ablation as skip_ablation,
    token_ablation as token_ablation,
)
from .flow.attribution import grad_cam as grad_cam, input_gradients as input_gradients
from .flow.embeddings import (
    patch_filters as patch_filters,
    position_similarity as position_similarity,
)
from .flow.equivariance import equivariance_error as equivariance_error
from .flow.frequency import frequency_amplitude as frequency_amplitude
from .flow.logit_lens import lens_accuracy as lens_accuracy, logit_lens as logit_lens
from .flow.receptive_field import (
    position_attribution as position_attribution,
    receptive_field as receptive_field,
)
from .flow.robustness import robustness as robustness
from .flow.skips import (
    branch_norms as branch_norms,
    skip_ratio as skip_ratio,
)
from .flow.stitching import stitching as stitching
from .objects.dense_features import dense_features as dense_features, dense_size as dense_size
from .objects.keypoints import (
    correct_keypoints as correct_keypoints,
    keypoint_correspondence as keypoint_correspondence,
    token_similarity as token_similarity,
)
from .objects.propagation import (
    boundary_accuracy as boundary_accuracy,
    follow_masks as follow_masks,
    label_propagation as label_propagation,
    propagate as propagate,
    propagate_masks as propagate_masks,
    region_similarity as region_similarity,
    write_masks as write_masks,
)
from .plots.attention_plots import (
    plot_aligned_attention as plot_aligned_attention,
    plot_attention as plot_attention,
    plot_attention_distance as plot_attention_distance,
    plot_attention_maps as plot_attention_maps,
    plot_attention_offset as plot_attention_offset,
    plot_attention_patterns as plot_attention_patterns,
    plot_attention_rollout as plot_attention_rollout,
    plot_attention_rows as plot_attention_rows,
    plot_attention_saliency as plot_attention_saliency,
    plot_gradient_attention as plot_gradient_attention,
    plot_head_classes as plot_head_classes,
    plot_mean_attention as plot_mean_attention,
    plot_mean_distance as plot_mean_distance,
    plot_mean_patterns as plot_mean_patterns,
    plot_rollout_of_images as plot_rollout_of_images,
)
from .plots.dispatch import plot as plot
from .plots.flow_plots import (
    plot_activation_patching as plot_activation_patching,
    plot_branch_norms as plot_branch_norms,
    plot_grad_cam as plot_grad_cam,
    plot_head_ablation as plot_head_ablation,
    plot_head_effects as plot_head_effects,
    plot_input_gradients as plot_input_gradients,
    plot_lens_accuracy as plot_lens_accuracy,
    plot_logit_lens as plot_logit_lens,
    plot_overlay as plot_overlay,
    plot_patch_filters as plot_patch_filters,
    plot_position_attribution as plot_position_attribution,
    plot_position_similarity as plot_position_similarity,
    plot_receptive_field as plot_receptive_field,
    plot_skip_ablation as plot_skip_ablation,
    plot_skip_ratio as plot_skip_ratio,
    plot_skip_ratio_lines as plot_skip_ratio_lines,
    plot_token_ablation as plot_token_ablation,
    plot_token_similarity as plot_token_similarity,
)
from .plots.interactive import cka_heatmap as cka_heatmap, distance_lines as distance_lines
from .plots.picture_plots import (
    plot_mistakes as plot_mistakes,
    plot_neighbours as plot_neighbours,
    plot_projection as plot_projection,
)
from .plots.probe_plots import (
    plot_clustering as plot_clustering,
    plot_keypoint_correspondence as plot_keypoint_correspondence,
    plot_knn_accuracy as plot_knn_accuracy,
    plot_label_propagation as plot_label_propagation,
    plot_linear_probe as plot_linear_probe,
    plot_object_clustering as plot_object_clustering,
    plot_probe_map as plot_probe_map,
    plot_probe_variants as plot_probe_variants,
    plot_retrieval as plot_retrieval,
    plot_ridge_probe as plot_ridge_probe,
)
from .plots.property_plots import (
    plot_equivariance_error as plot_equivariance_error,
    plot_frequency_amplitude as plot_frequency_amplitude,
    plot_intrinsic_dimension as plot_intrinsic_dimension,
    plot_robustness as plot_robustness,
    plot_stitching as plot_stitching,
)
from .plots.similarity_plots import (
    plot_best_matching_layer as plot_best_matching_layer,
    plot_cka as plot_cka,
    plot_cka_sensitivity as plot_cka_sensitivity,
    plot_compute as plot_compute,
    plot_depth_cka as plot_depth_cka,
    plot_formation as plot_formation,
    plot_head_similarity as plot_head_similarity,
    plot_last_layer_cka as plot_last_layer_cka,
    plot_layer_match_accuracy as plot_layer_match_accuracy,
    plot_localization as plot_localization,
    plot_residual_cka as plot_residual_cka,
    plot_similarities as plot_similarities,
    plot_trainings as plot_trainings,
)
from .probes.clustering import (
    cluster_scores as cluster_scores,
    clustering as clustering,
    masked_features as masked_features,
    object_clustering as object_clustering,
)
from .probes.knn import knn_accuracy as knn_accuracy
from .probes.linear_probe import linear_probe as linear_probe
from .probes.mistakes import mistakes as mistakes
from .probes.neighbours import neighbours as neighbours
from .probes.projection import projection as projection
from .probes.retrieval import (
    average_precision as average_precision,
    retrieval as retrieval,
)
from .probes.ridge import (
    fit_ridge_probe as fit_ridge_probe,
    ridge_probe as ridge_probe,
    score_statistic as score_statistic,
    select_l2 as select_l2,
)
from .report.page import ReportFigure as ReportFigure, write_report as write_report
from .similarity.cka import (
    best_matching_layer as best_matching_layer,
    cka as cka,
    depth_cka as depth_cka,
    last_layer_cka as last_layer_cka,
    layer_match_accuracy as layer_match_accuracy,
    residual_cka as residual_cka,
)
from .similarity.cka_sensitivity import (
    cka_sensitivity as cka_sensitivity,
)
from .similarity.dimension import (
    intrinsic_dimension as intrinsic_dimension,
)
from .similarity.formation import FormationRecorder as FormationRecorder
from .similarity.heads import head_similarity as head_similarity
from .similarity.localization import (
    localization as localization,
)
from .similarity.measures import (
    cca as cca,
    linear_predictivity as linear_predictivity,
    mutual_knn as mutual_knn,
    procrustes as procrustes,
    pwcca as pwcca,
    rbf_cka as rbf_cka,
    rsa as rsa,
    svcca as svcca,
    token_cka as token_cka,
)
from .similarity.similarities import (
    similarities as similarities,
)
from .study.assemble import (
    Report as Report,
    make_report as make_report,
    report_trainings as report_trainings,
)
from .study.claims import (
    Claim as Claim,
    Result as Result,
    scorecard as scorecard,
    scorecard_of_trainings as scorecard_of_trainings,
)
from .study.exploration import Exploration as Exploration, explore as explore
from .study.figure import Figure as Figure
