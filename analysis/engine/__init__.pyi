# The public names: read by `lazy_loader` in `__init__.py`, and by editors.
from .features import choose as choose
from .features import features_of as features_of
from .features import gaussian_like as gaussian_like
from .features import measurement as measurement
from .features import statistic_of as statistic_of
from .pooling import Pooled as Pooled
from .pooling import match_maps as match_maps
from .pooling import pooled_statistic as pooled_statistic
from .stream import Statistic as Statistic
from .stream import accumulate as accumulate
from .stream import collect as collect
from .stream import one_pass as one_pass
