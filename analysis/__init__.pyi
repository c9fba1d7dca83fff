# The public names: read by `lazy_loader` in `__init__.py`, and by editors.
from . import engine as engine, plots as plots
from .engine.estimates import images_needed as images_needed
from .engine.features import features_of as features_of
from .engine.layer_table import layers as layers
from .engine.results import load as load
from .engine.training_recorder import Recorder as Recorder
from .explorer.exploration import Exploration as Exploration, explore as explore
from .figures.figure import Figure as Figure
from .flow.ablation import (
    activation_patching as activation_patching,
    head_ablation as head_ablation,
    skip_ablation as skip_ablation,
    token_ablation as token_ablation,
)
from .flow.attribution import (
    grad_cam as grad_cam,
    input_gradients as input_gradients,
    integrated_gradients as integrated_gradients,
)
from .flow.concept_erasure import concept_erasure as concept_erasure
from .flow.embeddings import (
    patch_filters as patch_filters,
    position_similarity as position_similarity,
)
from .flow.equivariance import equivariance_error as equivariance_error
from .flow.frequency import frequency_amplitude as frequency_amplitude
from .flow.logit_lens import lens_accuracy as lens_accuracy, logit_lens as logit_lens
from .flow.outliers import (
    outlier_roles as outlier_roles,
    outlier_tokens as outlier_tokens,
)
from .flow.receptive_field import (
    position_attribution as position_attribution,
    receptive_field as receptive_field,
)
from .flow.robustness import robustness as robustness
from .flow.shape_bias import shape_bias as shape_bias
from .flow.skips import branch_norms as branch_norms, skip_ratio as skip_ratio
from .flow.stitching import stitching as stitching
from .heads.attention_distance import (
    attention_distance as attention_distance,
    attention_rows as attention_rows,
)
from .heads.attention_patterns import (
    attention_patterns as attention_patterns,
    mean_patterns as mean_patterns,
)
from .heads.image_attention import attention as attention
from .heads.mean_attention import (
    aligned_attention as aligned_attention,
    attention_maps as attention_maps,
    attention_offset as attention_offset,
    head_classes as head_classes,
    mean_attention as mean_attention,
    mean_distance as mean_distance,
)
from .heads.rollout import (
    attention_rollout as attention_rollout,
    gradient_attention as gradient_attention,
    rollout_of_images as rollout_of_images,
)
from .heads.saliency import attention_saliency as attention_saliency
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
from .plots.dispatch import plot as plot
from .plots.interactive import cka_heatmap as cka_heatmap, distance_lines as distance_lines
from .probes.clustering import (
    cluster_scores as cluster_scores,
    clustering as clustering,
    masked_features as masked_features,
    object_clustering as object_clustering,
)
from .probes.features import extract_features as extract_features
from .probes.knn import knn_accuracy as knn_accuracy, neighbours as neighbours
from .probes.linear_probe import linear_probe as linear_probe
from .probes.prediction import mistakes as mistakes, predict as predict
from .probes.projection import projection as projection
from .probes.retrieval import average_precision as average_precision, retrieval as retrieval
from .probes.ridge import (
    fit_ridge_probe as fit_ridge_probe,
    ridge_probe as ridge_probe,
    score_statistic as score_statistic,
    select_l2 as select_l2,
)
from .report.assemble import (
    Report as Report,
    make_report as make_report,
    report_runs as report_runs,
)
from .report.page import ReportFigure as ReportFigure, write_report as write_report
from .report.scorecard import (
    scorecard as scorecard,
    scorecard_of_runs as scorecard_of_runs,
)
from .similarity.cka import (
    best_matching_layer as best_matching_layer,
    cka as cka,
    depth_cka as depth_cka,
    last_layer_cka as last_layer_cka,
    layer_match_accuracy as layer_match_accuracy,
    residual_cka as residual_cka,
)
from .similarity.cka_sensitivity import cka_sensitivity as cka_sensitivity
from .similarity.dimension import intrinsic_dimension as intrinsic_dimension
from .similarity.formation import FormationRecorder as FormationRecorder
from .similarity.grounded_similarity import grounded_similarity as grounded_similarity
from .similarity.heads import head_similarity as head_similarity
from .similarity.localization import localization as localization
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
from .similarity.similarities import similarities as similarities
from .statistics.claims import Claim as Claim, NotTested as NotTested, Tested as Tested
