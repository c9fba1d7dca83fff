# The public names: read by `lazy_loader` in `__init__.py`, and by editors.
from .features import (
    DerivedFeatures as DerivedFeatures,
    Features as Features,
    ModelFacts as ModelFacts,
    choose as choose,
    features_of as features_of,
    gaussian_like as gaussian_like,
)
from .matching import match_maps as match_maps
from .measurements import (
    labels_after_images as labels_after_images,
    measurement as measurement,
    statistic_of as statistic_of,
)
from .pooling import (
    Pooled as Pooled,
    complete_grid as complete_grid,
    pool as pool,
    pooled_statistic as pooled_statistic,
)
from .preparation import (
    prepare as prepare,
    prepare_images as prepare_images,
    prepare_labelled as prepare_labelled,
    prepare_pair as prepare_pair,
    prepare_sets as prepare_sets,
    read_model as read_model,
    score_layer as score_layer,
)
from .results import (
    dataset_of as dataset_of,
    facts_of as facts_of,
    require_finite as require_finite,
    variable as variable,
)
from .standard_errors import (
    jackknife as jackknife,
    leave_one_out as leave_one_out,
)
from .stream import (
    Statistic as Statistic,
    accumulate as accumulate,
    collect as collect,
    evaluate as evaluate,
    one_pass as one_pass,
)
from .training_recorder import Recorder as Recorder
