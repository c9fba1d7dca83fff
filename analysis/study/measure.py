"""Measuring: every missing result of a set of measurements, with as few passes as they need.

All statistics of activations take one pass over the test images, together with those of the models
that they are compared with, and those of images with masks one over these; receptive fields take
one over a few images for each model, and probes one over each of the images that they are fitted
on, chosen with and tested on. Tasks read what they need.
"""

import logging
import time
from dataclasses import dataclass, field
from functools import partial
from importlib.metadata import version
from typing import Any

from ..engine.derived import choose
from ..engine.matching import match_maps
from ..engine.results import name_subjects
from ..engine.store import fingerprint, keep, load
from ..engine.stream import first_batch, one_pass
from ..flow.receptive_field import receptive_field
from ..probes.ridge import L2, probe_statistic, score_statistic, select_l2
from .measurement_kinds import Derived, Field, Forward, Probe, Task, with_inputs

log = logging.getLogger(__name__)

# Sampled for each receptive field: all of a wide layer's channels cost a gradient each.
CHANNELS = 16
# What statistics of activations go through, and words for it.
READS = {
    "test": "",
    "objects": " on images with masks of objects",
    "parts": " on images with masks of parts",
}


@dataclass(frozen=True)
class Data:
    """What the measurements read: batched `tf.data.Dataset`s of (images, labels), and others.

    Attributes:
        train: images that probes are fitted on.
        validation: images that choose the strength of their penalty.
        test: images that everything is measured on.
        few: some of the test images, for what costs a gradient each.
        num_classes: number of classes.
        facts: JSON facts that tell these images from others, besides those in the models' keys.
        gallery: training images, more than `train`, that neighbours are looked for among.
        objects: batches of (images, masks, labels), as for `object_clustering`.
        parts: the same, of parts of objects.
        videos: list of (frames, masks), as for `label_propagation`.
        pairs: list of pairs, as for `keypoint_correspondence`.
        landmarks: (queries, database, truth), as for `retrieval`.
        optional_facts: dict from the name of each of the last ones that is there to JSON facts that
            tell it from others.
    """

    train: Any
    validation: Any
    test: Any
    few: Any
    num_classes: int
    facts: dict = field(default_factory=dict)
    gallery: Any = None
    objects: Any = None
    parts: Any = None
    videos: Any = None
    pairs: Any = None
    landmarks: Any = None
    optional_facts: dict = field(default_factory=dict)

    def has(self, name):
        """Whether there is what a measurement reads."""
        return getattr(self, name) is not None


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
    table = with_inputs(wanted)
    keys = {name: _key(measurement, data) for name, measurement in table.items()}
    results = {
        name: load(folder / f"{name}.nc", keys[name]) if one.kept else None
        for name, one in table.items()
    }
    made = [table[name] for name, result in results.items() if result is None and table[name].kept]
    missing = [one for one in with_inputs(made).values() if results[one.name] is None]
    log.info("%d of %d results are there already", len(table) - len(missing), len(table))
    problems = {}
    groups = _groups(missing)
    for number, (title, group) in enumerate(groups.items(), start=1):
        log.info("[%d/%d] %s: %d results", number, len(groups), title, len(group))
        start = time.perf_counter()
        try:
            finishes = _MAKE[type(group[0])](group, data, results, problems)
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
            if not table[name].kept:
                results[name] = result
                continue
            if not isinstance(table[name], Derived):  # which have their inputs' names
                result = name_subjects(result, table[name].subjects)
            results[name] = keep(result, folder / f"{name}.nc", keys[name], notes)
    return {name: result for name, result in results.items() if table[name].kept}, problems


def _key(measurement, data):
    subjects = [subject.key for subject in measurement.subjects]
    facts = data.facts | data.optional_facts.get(measurement.reads, {})
    return fingerprint(measurement.name, version("vit_tf"), subjects, facts)


def _groups(missing):
    """Measurements that are made together: dict from a title to the list of them."""
    groups = {}
    forward = [one for one in missing if isinstance(one, Forward)]
    for reads, where in READS.items():
        for connected in _connected([one for one in forward if one.reads == reads]):
            subjects = dict.fromkeys(s.name for one in connected for s in one.subjects)
            groups[f"activations of {', '.join(subjects)}{where}"] = connected
    for kind, words in ((Field, "receptive fields"), (Probe, "probes")):
        for one in missing:
            if isinstance(one, kind):
                groups.setdefault(f"{words} of {one.subjects[0].name}", []).append(one)
    for one in missing:
        if isinstance(one, Task):
            what = one.name.partition(".")[0].replace("_", " ")
            groups[f"{what} of {one.subjects[0].name}"] = [one]
    derived = [one for one in missing if isinstance(one, Derived)]
    return groups | ({"what follows from these": derived} if derived else {})


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


def _make_forward(group, data, results, problems):
    """One pass over the images that all of them read."""
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
    images = getattr(data, group[0].reads)
    totals = one_pass(requests, images, description="activations")
    return {name: partial(requests[name][0].finish, totals[name]) for name in requests}


def _make_fields(group, data, results, problems):
    """One pass of gradients over a few images."""
    (subject,) = group[0].subjects
    taps = dict.fromkeys(tap for one in group for tap in one.taps)
    features = subject.features(*taps)
    fields = receptive_field(features, data.few, channels=CHANNELS, grid=subject.grid)
    return {one.name: partial(fields.sel, layer=list(one.taps)) for one in group}


def _make_probes(group, data, results, problems):
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


def _make_task(group, data, results, problems):
    """Passes of its own, after those of its inputs."""
    (one,) = group
    result = one.compute(data, _inputs(one, results, problems))
    return {one.name: lambda: result}


def _make_derived(group, data, results, problems):
    """What follows from other results, which are there when it is finished."""
    return {one.name: partial(_derive, one, results, problems) for one in group}


def _derive(one, results, problems):
    return one.compute(_inputs(one, results, problems))


def _inputs(one, results, problems):
    """The results that a measurement is made of; a `ValueError` says why one is not there."""
    for other in one.inputs:
        if other.name in problems:
            raise ValueError(problems[other.name])
    return [results[other.name] for other in one.inputs]


_MAKE = {
    Forward: _make_forward,
    Field: _make_fields,
    Probe: _make_probes,
    Task: _make_task,
    Derived: _make_derived,
}
