"""What interventions do to a model's answers: accuracy, loss and output, with standard errors."""

import warnings

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf import edits
from vit_tf.names import listed
from vit_tf.taps.interventions import each_alone

from ...engine.features import require_scores
from ...engine.results import provenance, require_finite, require_word
from ...engine.stream import Statistic, accumulate, as_dataset, evaluate

TOGETHER = 256  # images, those of all runs of a batch, whose activations are in memory at once
ZERO, MEAN, RESAMPLE = "zero", "mean", "resample"
INTERVENTION = ("intervention",)
REPLACEMENTS = (ZERO, MEAN, RESAMPLE)
CHANGES = {
    "accuracy_change": ("accuracy with the intervention minus without", "1"),
    "loss_change": ("cross-entropy with the intervention minus without", "nat"),
    "output_change": ("divergence of the predicted classes from those without", "nat"),
}


def effects(features, interventions, images, scores, count, *, description, least=1, **facts):
    """The mean effects of some interventions on the answers to images with labels.

        accuracy_change = mean over examples of [argmax s' = y] - [argmax s = y]
        loss_change     = mean over examples of log p(y) - log p'(y)
        output_change   = mean over examples of sum_c p(c) log(p(c) / p'(c))

    of scores `s` and `s'` without and with an intervention and of `p = softmax(s)`. Standard errors
    are those of the means of these differences over the examples, which are paired.

    Args:
        features: a submodel that has the taps of the interventions and the scores.
        interventions: as for `vit_tf.taps.interventions.each_alone`.
        images: batched `tf.data.Dataset` of (images, labels), or a pair of arrays.
        scores: the tap that holds the scores, of shape (example, class).
        count: number of interventions.
        description: of the progress bar.
        least: number of examples that a batch must have.
        **facts: attributes of the result.

    Returns:
        Dataset with `accuracy_change`, `loss_change` and `output_change` of shape (intervention,),
        each with its standard error in `..._stderr`, and with `accuracy` and `loss`, numbers of the
        model as it is. Attributes: `num_classes`, and `remainder`, the number of images of a last
        batch of fewer than `least`, which are left out with a warning.

    Raises:
        ValueError: for scores that are not there or not finite, labels that are not among their
            classes, and as `one_pass`.
    """
    size, num_classes = max(TOGETHER // (count + 1), least), {}

    def step(batch, labels):
        taps, found = each_alone(features, interventions, scores, batch, TOGETHER // size)
        classes = num_classes["num_classes"] = require_scores(taps, scores, [0])
        intact = tf.cast(taps[scores], tf.float32)
        edited = tf.cast(found, tf.float32)
        changes, plain = _changes(intact, edited, labels)
        return {
            "changes": {
                name: tf.stack([tf.reduce_sum(x, axis=1), tf.reduce_sum(tf.square(x), axis=1)])
                for name, x in changes.items()
            },
            "intact": {name: tf.reduce_sum(x) for name, x in plain.items()},
            "unknown": tf.math.count_nonzero((labels < 0) | (labels >= classes)),
            "examples": tf.shape(batch)[0],
            "batches": 1,
        }

    def finish(totals):
        if totals["unknown"]:
            raise ValueError(
                f"Expected labels among the classes of {scores!r}. "
                f"Received: {int(totals['unknown'])} others"
            )
        left_out = int(totals.get("remainder", 0))
        if left_out:
            warnings.warn(
                f"{left_out} of {int(totals['examples']) + left_out} images are left out: the last "
                f"batch has fewer than {least}. Use another batch size.",
                stacklevel=2,
            )
        return _result(totals, features, scores, facts | num_classes | {"remainder": left_out})

    statistic = Statistic(step, finish, min_batch=least, with_labels=True)
    return evaluate(
        statistic, in_batches(images, size), description=description, checked=(features,)
    )


def effects_of_cells(features, cells, images, scores, names, interventions=None, **facts):
    """The `effects` of interventions that are the cells of a table, NaN where there is none.

    Args:
        features, images, scores: as for `effects`.
        cells: dict from the coordinates of a cell, one for each name, to its intervention.
        names: of the dims of the table.
        interventions: function of the taps of the model as it is to the list of interventions, for
            those that follow from it; the values of `cells` then do not count.
        **facts: as for `effects`, with the `description` of the progress bar.
    """
    interventions = interventions or list(cells.values())
    result = effects(features, interventions, images, scores, len(cells), **facts)
    return in_table(result, cells, names)


def in_table(result, cells, names):
    """A result along `intervention` as a table of these names; coordinates stand as they came."""
    columns = dict(zip(names, zip(*cells, strict=True), strict=True))
    result = result.assign_coords(
        {name: ("intervention", list(column)) for name, column in columns.items()}
    )
    table = result.set_index(intervention=list(names)).unstack("intervention")
    order = {name: list(dict.fromkeys(column)) for name, column in columns.items()}
    return table.reindex(order).transpose(*names)


def replacing(features, images, taps, replacement, description):
    """The edit of each tap that a word stands for: dict from tap to function.

    Args:
        features: a submodel that has the taps.
        images: the data over which means are taken.
        taps: names of the taps.
        replacement: `"zero"`; `"mean"`, over the examples, at each place of the tap; or
            `"resample"`, the value of another image of the batch.
        description: of the progress bar of the pass that takes the means.

    Raises:
        ValueError: for another word.
    """
    require_word(replacement, REPLACEMENTS, "replacement")
    if replacement != MEAN:
        edit = edits.zero if replacement == ZERO else edits.resampled()
        return dict.fromkeys(taps, edit)

    def step(batch):
        found = features(tf.cast(batch, tf.float32))
        sums = {tap: tf.reduce_sum(tf.cast(found[tap], tf.float32), axis=0) for tap in taps}
        return {"sums": sums, "examples": tf.shape(batch)[0]}

    totals = accumulate(step, images, description=description, checked=(features,))
    means = {tap: total / totals["examples"] for tap, total in totals["sums"].items()}
    return {tap: edits.constant(mean.astype("float32")) for tap, mean in means.items()}


def require_submodel(features, scores):
    """The taps of a submodel beside its scores, to intervene at; symbolic tensors by name.

    Raises:
        ValueError: for what is no submodel, one without the scores, or one of nothing else.
    """
    if not hasattr(features, "segments"):
        raise ValueError(
            "Expected features to be a submodel, such as vit_tf.submodel(vit, '*/heads', "
            f"'logits'), which can be run with interventions. Received: {type(features).__name__}"
        )
    if scores not in features.taps or len(features.taps) < 2:
        raise ValueError(
            f"Expected a submodel of the scores, scores={scores!r}, and of taps to intervene at. "
            f"Received: {listed(features.taps)}"
        )
    return {tap: x for tap, x in features.output.items() if tap != scores}


def least_batch(replacement):
    """Number of examples that a batch must have: 2 where values come from another image."""
    return 2 if replacement == RESAMPLE else 1


def in_batches(images, size):
    """A data set of batches of at most so many examples, which many runs of each make larger."""
    if not isinstance(images, tf.data.Dataset):
        return as_dataset(images, batch_size=size)
    dataset = as_dataset(images)
    spec = tf.nest.flatten(dataset.element_spec)[0]
    return dataset if spec.shape[0] is not None and spec.shape[0] <= size else dataset.rebatch(size)


def _changes(intact, edited, labels):
    """Changes of each example, of shape (intervention, example), and its values without."""
    labels = tf.cast(labels, tf.int64)

    def right(scores):
        return tf.cast(tf.argmax(scores, axis=-1) == labels, tf.float32)

    before, after = tf.nn.log_softmax(intact), tf.nn.log_softmax(edited)
    true = tf.one_hot(labels, intact.shape[-1])
    losses = -tf.reduce_sum(true * before, axis=-1), -tf.reduce_sum(true * after, axis=-1)
    changes = {
        "accuracy_change": right(edited) - right(intact),
        "loss_change": losses[1] - losses[0],
        "output_change": tf.reduce_sum(tf.exp(before) * (before - after), axis=-1),
    }
    return changes, {"accuracy": right(intact), "loss": losses[0]}


def _result(totals, features, scores, facts):
    """The Dataset of `effects`, from what its steps add up to."""
    count = totals["examples"]
    names = list(totals["changes"])
    require_finite("effects of interventions", totals["changes"].values(), names)
    variables = {}
    for name, (sums, squares) in totals["changes"].items():
        mean = sums / count
        # Rounding may leave a difference of squares just below the zero that it stands for.
        variance = np.maximum(squares / count - mean**2, 0)
        error = np.sqrt(variance / (count - 1)) if count > 1 else np.full_like(mean, np.nan)
        words, units = CHANGES[name]
        meta = {"long_name": words, "units": units}
        variables[name] = (INTERVENTION, mean, meta)
        meta = {"long_name": f"standard error of {name}", "units": units}
        variables[f"{name}_stderr"] = (INTERVENTION, error, meta)
    intact = {name: total / count for name, total in totals["intact"].items()}
    variables["accuracy"] = ((), intact["accuracy"], {"long_name": "accuracy", "units": "1"})
    variables["loss"] = ((), intact["loss"], {"long_name": "cross-entropy", "units": "nat"})
    return xr.Dataset(
        variables,
        attrs=provenance(
            features,
            count,
            totals["batches"],
            estimator="mean of paired differences between runs with and without an intervention",
            scores=scores,
            **facts,
        ),
    )
