# The names of the room: read by `lazy_loader` in `__init__.py`, and by editors.
from .attention import (
    plot_aligned_attention as plot_aligned_attention,
)
from .attention import (
    plot_attention_maps as plot_attention_maps,
)
from .attention import (
    plot_head_classes as plot_head_classes,
)
from .attention import (
    plot_offsets as plot_offsets,
)
from .features import (
    plot_clustering as plot_clustering,
)
from .features import (
    plot_knn as plot_knn,
)
from .features import (
    plot_last_layer_cka as plot_last_layer_cka,
)
from .features import (
    plot_linear_probe as plot_linear_probe,
)
from .features import (
    plot_retrieval as plot_retrieval,
)
from .flow import (
    plot_patch_filters as plot_patch_filters,
)
from .flow import (
    plot_position_similarity as plot_position_similarity,
)
from .flow import (
    plot_receptive_field as plot_receptive_field,
)
from .flow import (
    plot_skip_ratio as plot_skip_ratio,
)
from .lines import (
    plot_attention_distance as plot_attention_distance,
)
from .lines import (
    plot_attention_distances as plot_attention_distances,
)
from .lines import (
    plot_distance_by_depth as plot_distance_by_depth,
)
from .lines import (
    plot_skip_ratio_lines as plot_skip_ratio_lines,
)
from .localization import (
    plot_head_similarity as plot_head_similarity,
)
from .localization import (
    plot_localization as plot_localization,
)
from .localization import (
    plot_localization_by_layer as plot_localization_by_layer,
)
from .objects import (
    plot_keypoints as plot_keypoints,
)
from .objects import (
    plot_propagation as plot_propagation,
)
from .probes import (
    plot_probe_map as plot_probe_map,
)
from .probes import (
    plot_probe_variants as plot_probe_variants,
)
from .probes import (
    plot_probes as plot_probes,
)
from .probes import (
    plot_ridge_probe as plot_ridge_probe,
)
from .probes import (
    plot_summary_probes as plot_summary_probes,
)
from .probes import (
    plot_token_probes as plot_token_probes,
)
from .saliency import (
    plot_attention_patterns as plot_attention_patterns,
)
from .saliency import (
    plot_rollout as plot_rollout,
)
from .saliency import (
    plot_saliency_iou as plot_saliency_iou,
)
from .similarity import (
    plot_cka as plot_cka,
)
from .similarity import (
    plot_cka_beside as plot_cka_beside,
)
from .similarity import (
    plot_counterparts as plot_counterparts,
)
from .similarity import (
    plot_data_scale as plot_data_scale,
)
from .similarity import (
    plot_matches as plot_matches,
)
from .training import (
    plot_compute as plot_compute,
)
from .training import (
    plot_formation as plot_formation,
)
