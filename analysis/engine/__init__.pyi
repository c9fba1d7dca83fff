# The public names: read by `lazy_loader` in `__init__.py`, and by editors.
from .features import (
    choose as choose,
    features_of as features_of,
    gaussian_like as gaussian_like,
    measurement as measurement,
    statistic_of as statistic_of,
)
from .pooling import (
    Pooled as Pooled,
    match_maps as match_maps,
    pooled_statistic as pooled_statistic,
)
from .stream import (
    Statistic as Statistic,
    accumulate as accumulate,
    collect as collect,
    one_pass as one_pass,
)
from .training_recorder import Recorder as Recorder
