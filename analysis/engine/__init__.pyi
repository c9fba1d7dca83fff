# The public names: read by `lazy_loader` in `__init__.py`, and by editors.
from .declaration import (
    measurement as measurement,
    one_pass_measurement as one_pass_measurement,
    statistic_of as statistic_of,
)
from .features import (
    DerivedFeatures as DerivedFeatures,
    Features as Features,
    ModelFacts as ModelFacts,
    choose as choose,
    features_of as features_of,
    gaussian_like as gaussian_like,
)
from .matching import match_maps as match_maps
from .pooling import Pooled as Pooled, pooled_statistic as pooled_statistic
from .roles import (
    AnnotatedImages as AnnotatedImages,
    Block as Block,
    Classes as Classes,
    Grid as Grid,
    Images as Images,
    LabelledImages as LabelledImages,
    MaskedImages as MaskedImages,
    Model as Model,
    Models as Models,
    NumClasses as NumClasses,
    Scores as Scores,
)
from .stream import (
    Statistic as Statistic,
    accumulate as accumulate,
    collect as collect,
    one_pass as one_pass,
)
from .training_recorder import Recorder as Recorder
