"""Measuring: every missing result of a set of measurements, with as few passes as they need.

All statistics of activations take one pass over the test images, together with those of the models
that they are compared with; receptive fields take one over a few of them for each model, and
probes one over each of the images that they are fitted on, chosen with and tested on.
"""

import logging
import time
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

from .derived import choose
from .matching import match_maps
from .measurements import Derived, Field, Forward, Probe
from .receptive_field import receptive_field
from .results import name_subjects
from .ridge import L2, probe_statistic, score_statistic, select_l2
from .store import fingerprint, keep, load
from .stream import first_batch, one_pass

log = logging.getLogger(__name__)

# Sampled for each receptive field: all of a wide layer's channels cost a gradient each.
CHANNELS = 16


@dataclass(frozen=True)
class Data:
    """Batched `tf.data.Dataset`s of (images, labels) that the measurements read.

    Attributes:
        train: images that probes are fitted on.
        validation: images that choose the strength of their penalty.
        test: images that everything is measured on.
        few: some of the test images, for what costs a gradient each.
        num_classes: number of classes.
        facts: JSON facts that tell these images from others, besides those in the models' keys.
    """

    train: Any
    validation: Any
    test: Any
    few: Any
    num_classes: int
    facts: dict = field(default_factory=dict)


def measure(wanted, data, folder):
    """Every measurement wanted, kept in a folder so that none is made twice.

    Arguments and the dict are those of `attempt`.

    Raises:
        ValueError: at the end, naming the measurements that failed and why.
    """
    results, problems = attempt(wanted, data, folder)
    failed = {}
    for name, reason in problems.items():
        failed.setdefault(reason, []).append(name)
    if failed:
        raise ValueError("; ".join(f"{', '.join(names)}: {why}" for why, names in failed.items()))
    return results


def attempt(wanted, data, folder):
    """Every measurement wanted that can be made, kept in a folder so that none is made twice.

    What one pass measures is saved as soon as the pass is over. A measurement that fails does not
    keep the others from being made.

    Args:
        wanted: list of measurements, from the functions of `measurements`.
        data: the `Data`.
        folder: path of the folder of netCDF files.

    Returns:
        Pair of a dict from result name to result, those that others are derived from included and
        None for what failed, and a dict from the names of these to the reason.
    """
    table = {}
    for one in wanted:
        inputs = one.inputs if isinstance(one, Derived) else ()
        table |= {measurement.name: measurement for measurement in (*inputs, one)}
    keys = {name: _key(measurement, data) for name, measurement in table.items()}
    results = {name: load(folder / f"{name}.nc", key) for name, key in keys.items()}
    missing = [table[name] for name, kept in results.items() if kept is None]
    log.info("%d of %d results are there already", len(table) - len(missing), len(table))
    problems = {}
    groups = _groups(missing)
    for number, (title, group) in enumerate(groups.items(), start=1):
        log.info("[%d/%d] %s: %d results", number, len(groups), title, len(group))
        start = time.perf_counter()
        try:
            finishes = _MAKE[type(group[0])](group, data, results)
        except ValueError as error:
            problems |= dict.fromkeys((one.name for one in group), str(error))
            continue
        seconds = round(time.perf_counter() - start, 2)
        log.info("[%d/%d] took %.1f s", number, len(groups), seconds)
        notes = {"pass": title, "seconds": seconds}
        for name, finish in finishes.items():
            try:
                result = finish()
            except ValueError as error:
                problems[name] = str(error)
                continue
            if not isinstance(table[name], Derived):  # which have their inputs' names
                result = name_subjects(result, table[name].subjects)
            results[name] = keep(result, folder / f"{name}.nc", keys[name], notes)
    return results, problems


def _key(measurement, data):
    subjects = [subject.key for subject in measurement.subjects]
    return fingerprint(measurement.name, version("vit_tf"), subjects, data.facts)


def _groups(missing):
    """Measurements that are made together: dict from a title to the list of them."""
    groups = {}
    for connected in _connected([one for one in missing if isinstance(one, Forward)]):
        subjects = dict.fromkeys(s.name for one in connected for s in one.subjects)
        groups[f"activations of {', '.join(subjects)}"] = connected
    for kind, words in ((Field, "receptive fields"), (Probe, "probes")):
        for one in missing:
            if isinstance(one, kind):
                groups.setdefault(f"{words} of {one.subjects[0].name}", []).append(one)
    for one in missing:
        if isinstance(one, Derived):
            groups[f"{one.name} from {len(one.inputs)} comparisons"] = [one]
    return groups


def _connected(measurements):
    """Lists of measurements that share models, directly or through others."""
    lists = []
    for one in measurements:
        touching, apart = [], []
        for other in lists:
            shared = any(set(one.subjects) & set(m.subjects) for m in other)
            (touching if shared else apart).append(other)
        lists = [*apart, [*(m for other in touching for m in other), one]]
    return lists


def _make_forward(group, data, results):
    """One pass over the test images."""
    taps = {}
    for one in group:
        for subject, names in zip(one.subjects, one.taps, strict=True):
            taps.setdefault(subject, {}).update(dict.fromkeys(names))
    features = {subject: subject.features(*names) for subject, names in taps.items()}
    requests = {}
    for one in group:
        pairs = zip(one.subjects, one.taps, strict=True)
        chosen = [choose(features[subject], names) for subject, names in pairs]
        requests[one.name] = (one.statistic(*chosen), *chosen)
    totals = one_pass(requests, data.test, description="activations")
    return {name: partial(requests[name][0].finish, totals[name]) for name in requests}


def _make_fields(group, data, results):
    """One pass of gradients over a few images."""
    (subject,) = group[0].subjects
    taps = dict.fromkeys(tap for one in group for tap in one.taps)
    features = subject.features(*taps)
    fields = receptive_field(features, data.few, channels=CHANNELS, grid=subject.grid)
    return {one.name: partial(fields.sel, layer=list(one.taps)) for one in group}


def _make_probes(group, data, results):
    """One pass over the images to fit on, one over those to choose with, one over the test images.

    Maps of a ResNet are brought to the size of its last stage.
    """
    (subject,) = group[0].subjects
    taps = dict.fromkeys(tap for one in group for tap in one.taps)
    features = subject.features(*taps)
    if subject.stages:
        channels = features(first_batch(data.train)[:1])[list(taps)[-1]].shape[-1]
        features = match_maps(features, channels, subject.grid)
    probed = {one.name: choose(features, one.taps) for one in group}
    fits = {
        one.name: probe_statistic(probed[one.name], data.train, data.num_classes, L2, one.tokens)
        for one in group
    }
    totals = _pass(fits, probed, data.train, "probes: fitting")
    scores = {
        name: score_statistic(probed[name], statistic.finish(totals[name]))
        for name, statistic in fits.items()
    }
    chosen = _pass(scores, probed, data.validation, "probes: choosing l2")
    tested = _pass(scores, probed, data.test, "probes: testing")
    return {
        name: partial(_select, statistic, chosen[name], tested[name])
        for name, statistic in scores.items()
    }


def _pass(statistics, features, images, description):
    requests = {name: (statistic, features[name]) for name, statistic in statistics.items()}
    return one_pass(requests, images, description=description)


def _select(statistic, chosen, tested):
    return select_l2(statistic.finish(chosen), statistic.finish(tested))


def _make_derived(group, data, results):
    """What follows from other results, which were made before."""
    (one,) = group
    absent = [other.name for other in one.inputs if results[other.name] is None]
    if absent:
        raise ValueError(f"Expected the results {', '.join(absent)}. Received none")
    return {one.name: lambda: one.compute([results[other.name] for other in one.inputs])}


_MAKE = {
    Forward: _make_forward,
    Field: _make_fields,
    Probe: _make_probes,
    Derived: _make_derived,
}
