"""The words of a paper's module: figures, measurements, claims, and estimates of numbers."""

from ..engine.estimates import (
    estimate_from_cka as estimate_from_cka,
    estimate_over_batches as estimate_over_batches,
)
from ..engine.pooling import Pooled as Pooled, pooled_statistic as pooled_statistic
from ..engine.results import (
    KEPT as KEPT,
    POOLED as POOLED,
    Results as Results,
    expect_array as expect_array,
    expect_variable as expect_variable,
    layer_names as layer_names,
    unpack_correct as unpack_correct,
)
from ..engine.stream import Statistic as Statistic
from ..figures.data import (
    COPY_BATCHES as COPY_BATCHES,
    Data as Data,
    first_images as first_images,
    labels_of as labels_of,
)
from ..figures.figure import (
    Figure as Figure,
    Overview as Overview,
    Paper as Paper,
    each as each,
    group as group,
    pairs as pairs,
    split as split,
    together as together,
    variants as variants,
    with_roles as with_roles,
)
from ..figures.measure import (
    DATA as DATA,
    Measurement as Measurement,
    Measurements as Measurements,
    MeasureModel as MeasureModel,
    SharedPass as SharedPass,
    quantity as quantity,
    statistic as statistic,
    task as task,
)
from ..figures.models import (
    BASELINES as BASELINES,
    NotApplicable as NotApplicable,
    StudyModel as StudyModel,
)
from ..figures.supervision import EXPLICIT as EXPLICIT
from ..statistics.claims import Claim as Claim, claim as claim
from ..statistics.estimates import (
    Accuracy as Accuracy,
    Estimate as Estimate,
    Method as Method,
    Units as Units,
    accuracy_gap as accuracy_gap,
    accuracy_of as accuracy_of,
    between as between,
    descriptive as descriptive,
    jackknife_over as jackknife_over,
    mean_over as mean_over,
    minus as minus,
    require_above_chance as require_above_chance,
    share_of as share_of,
    transformed as transformed,
    with_error as with_error,
    with_limits as with_limits,
)
from ..statistics.intervals import (
    lower as lower,
    mean_error as mean_error,
    rank_correlation as rank_correlation,
    upper as upper,
)
