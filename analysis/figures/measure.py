"""Plans measurements and carries them out in as few passes over the data as possible.

A `statistic` shares a pass over the data with other statistics. A `task` makes its own passes, or
only computes a result from other results. Both may use the results of other measurements. A pass
over images starts when all measurements that share it are ready, so images are read once.
"""

import inspect
import logging
import math
import operator
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from functools import cached_property, partial
from pathlib import Path
from typing import Any, TypeAlias, cast

import tensorflow as tf
from tqdm import tqdm

from vit_tf.common.errors import explain, message_of
from vit_tf.common.names import join_words
from vit_tf.features.conversion import choose

from ..engine.results import with_model_names
from ..engine.store import base_code, fingerprint, load_result, store_result
from ..engine.stream import SECONDS_BETWEEN_LINES, Copy, Statistic, pass_of_copies, this_worker
from ..engine.traces import differ_in_weights, sharing_graphs
from ..statistics.estimates import Estimate
from .data import LABELS, Data
from .models import StudyModel

# Among the inputs of a measurement: the `Data` itself.
DATA = "data"


@dataclass(frozen=True)
class Measurement:
    """The fields of `SharedPass` and `OwnPasses`."""

    name: str  # of the result: that of the analysis and the models, "cka.vit-cls.bit"
    models: tuple[StudyModel, ...]  # the models that it looks at
    # What is measured before, whose results it is fed; among them may be `DATA`.
    inputs: tuple[Any, ...]
    # The field of `Data` that it goes through; None for what only follows from its inputs.
    reads: str | None
    saved: bool  # whether it is a result of its own, or only an input of others, which may be large
    labelled: bool  # whether it needs the labels of the images that it goes through
    # Python expression of public calls that makes it, with the models in braces, unless its figure
    # has one.
    call: str = field(default="", kw_only=True)

    @property
    def before(self) -> list["Measurement"]:
        """The measurements among the inputs."""
        return [source for source in self.inputs if source is not DATA]

    @cached_property
    def identity(self) -> str:
        """`fingerprint` of what it is, of which models: all but its data and `base_code`."""
        inputs = [source if source is DATA else source.identity for source in self.inputs]
        models = [(model.name, model.key) for model in self.models]
        return fingerprint({"name": self.name, **self._parameters}, models, inputs)

    @cached_property
    def structure(self) -> str:
        """`fingerprint` of what it computes: equal for measurements of a model and its copies."""
        analysis = self.name.partition(".")[0]
        inputs = [source if source is DATA else source.structure for source in self.inputs]
        models = [model.architecture for model in self.models]
        return fingerprint(analysis, self._parameters, models, inputs, identified_by="architecture")

    @property
    def _parameters(self) -> dict[str, Any]:
        """What it is besides its name, models and inputs; printed calls change nothing."""
        others = ("name", "models", "inputs", "call")
        return {x.name: getattr(self, x.name) for x in fields(self) if x.name not in others}

    @property
    def all_reads(self) -> set[str]:
        """Every field of `Data` that it, and what it is made of, go through, and `LABELS`."""
        reads = {self.reads} if self.reads else set()
        reads |= {LABELS} if self.labelled else set()
        return reads.union(*(source.all_reads for source in self.before))


@dataclass(frozen=True)
class SharedPass(Measurement):
    """A statistic of activations; made by `statistic`."""

    # For each model, the names of the taps that the statistic looks at.
    taps: tuple[tuple[str, ...], ...]
    # It takes the features of each model, then the results of the inputs, and returns an
    # `engine.stream.Statistic`.
    make: Callable[..., Any]
    # Function of a model, its features and the `Data` to the features that the statistic looks at
    # in their place, or None.
    view: Callable[..., Any] | None = None
    # Whether untrained copies need all images too, as the value depends on the number of images.
    # Otherwise they are shown `Data.batches_of_copies`.
    needs_all: bool = False


@dataclass(frozen=True)
class OwnPasses(Measurement):
    """A measurement with passes of its own, or none; made by `task`."""

    make: Callable[..., Any]  # function of the results of the inputs to the result


Measurements: TypeAlias = dict[str, Measurement]  # by the label in a plot
MeasureModel: TypeAlias = Callable[[StudyModel], Measurement]


def statistic(
    analysis: str | Callable[..., Any],
    models: StudyModel | Sequence[StudyModel],
    taps: Sequence[Any],
    make: Callable[..., Any] | None = None,
    *,
    name: str | None = None,
    detail: str | None = None,
    options: Mapping[str, Any] | None = None,
    reads: str = "test",
    inputs: Sequence[Any] = (),
    saved: bool = True,
    labelled: bool = False,
    view: Callable[..., Any] | None = None,
    needs_all: bool = False,
    call: str = "",
) -> SharedPass:
    """A measurement that shares a pass over the data with other measurements.

    Args:
        analysis: a measurement such as `cka`, whose declaration determines the name, the statistic
            and the printed call; or a name, if `make` returns the statistic.
        models: a `StudyModel`, or a tuple of several.
        taps: names of the layers to measure; for several models, a list of names for each model.
        name: first part of the name of the result, before the names of the models; by default, the
            name of the measurement.
        detail: the argument `detail` with which the printed call selects the same layers as `taps`.
        options: further arguments of the measurement.
        make, inputs, reads, saved, labelled, view, needs_all, call: as the attributes of
            `SharedPass`.
    """
    if isinstance(models, StudyModel):
        models, taps = (models,), (taps,)
    options = dict(options or {})
    if not isinstance(analysis, str):
        measure: Any = analysis
        call = call or measure.declaration.expression(len(models), **options, detail=detail)
        make = make or (partial(measure.statistic, **options) if options else measure.statistic)
        analysis = measure.declaration.name
    return SharedPass(
        name_of(name or cast(str, analysis), *models),
        tuple(models),
        tuple(inputs),
        reads,
        saved,
        labelled,
        tuple(map(tuple, taps)),
        cast(Callable[..., Any], make),
        view,
        needs_all,
        call=call,
    )


def task(
    analysis: str,
    models: StudyModel | Sequence[StudyModel],
    make: Callable[..., Any],
    *,
    reads: str | None = None,
    inputs: Sequence[Any] = (),
    saved: bool = True,
    labelled: bool = False,
    call: str = "",
) -> OwnPasses:
    """A measurement that makes its own passes over the data; no pass if `reads` is None."""
    models = (models,) if isinstance(models, StudyModel) else tuple(models)
    name = name_of(analysis, *models)
    return OwnPasses(name, models, tuple(inputs), reads, saved, labelled, make, call=call)


def name_of(analysis: str, *models: StudyModel) -> str:
    """The name of a result: `"cka.vit-cls.bit"`."""
    return ".".join([analysis, *(model.slug for model in models)])


def with_inputs(measurements: Iterable[Measurement]) -> dict[str, Measurement]:
    """Measurements by name, each after the measurements that it uses."""
    table = {}
    for measurement in measurements:
        for needed in [*with_inputs(measurement.before).values(), measurement]:
            existing = table.setdefault(needed.name, needed)
            if existing is not needed and existing.identity != needed.identity:
                functions = [cast(OwnPasses, m).make for m in (existing, needed)]
                made = join_words(f"{make.__module__}.{make.__qualname__}" for make in functions)
                raise ValueError(
                    f"Two results are called {needed.name!r}, which {made} make with different "
                    "parameters: give one of them another name"
                )
    return table


@dataclass(frozen=True)
class Quantity:
    """A number by which a report compares its models; `quantity` makes it from a function."""

    label: str  # what it is, in words
    explanation: str  # how it is made
    result: str  # name of the result, with `{model}`, and `{other}` for one of two models
    unit: str  # what the number is, in a few words
    estimator: Callable[[Any], Estimate]
    more: str = ""  # what a model with a higher value does, before "than": "attends more globally"

    @property
    def of_pairs(self) -> bool:
        """Whether it is a number about two models."""
        return "{other}" in self.result


def quantity(
    result: str, *, unit: str, more: str = ""
) -> Callable[[Callable[[Any], Estimate]], Quantity]:
    """Returns a decorator that makes a `Quantity` from a function of a result.

    The docstring of the function has two paragraphs, the label and the explanation.
    """

    def make(estimator: Callable[[Any], Estimate]) -> Quantity:
        text = inspect.getdoc(estimator)
        paragraphs = (text or "").split("\n\n")
        if len(paragraphs) != 2:
            raise ValueError(
                f"Expected the docstring of {estimator.__qualname__!r} to be two paragraphs, the "
                f"label and the explanation. Received: {text!r}"
            )
        label, explanation = (" ".join(part.split()) for part in paragraphs)
        return Quantity(label, explanation, result, unit, estimator, more)

    return make


log = logging.getLogger(__name__)

# Most models that share a pass without being compared with each other.
MOST_MODELS = 4
# What a shared pass goes through, in words.
DATA_DESCRIPTIONS = {
    "train": "images that probes are fitted on",
    "validation": "images that select their penalty",
    "gallery": "images for the search of nearest neighbours",
    "objects": "images with masks of objects",
    "parts": "images with masks of parts",
}


@dataclass(frozen=True)
class Pass:
    """Measurements that are made together, and their description in words.

    Each dict in `copies` contains the same measurements for other models with the same layers, by
    the names of `measurements`. They share the graphs.
    """

    title: str
    measurements: list[Measurement]
    copies: list[dict[str, Measurement]] = field(default_factory=list)

    @property
    def every_measurement(self) -> list[Measurement]:
        """All measurements, those of copies last."""
        return [*self.measurements, *(m for copy in self.copies for m in copy.values())]


def measure_all(
    wanted: Iterable[Measurement],
    data: Data,
    folder: Path,
    progress: Callable[[int, int, str], None] | None = None,
    meanwhile: Callable[[dict[str, Any]], None] | None = None,
) -> tuple[dict[str, Any], dict[str, str]]:
    """Makes all measurements that are possible, and saves the results in a folder for reuse.

    The results of a pass over the data are saved as soon as the pass is over. If a measurement
    raises an error, the other measurements continue; if a file cannot be written, all stop.

    Args:
        wanted: list of measurements, made by `statistic` and `task`.
        data: the `Data`.
        folder: path of the folder of netCDF files.
        progress: function that is called before each pass with the number of the pass (from 0), the
            number of passes and a description of the measurements; or None.
        meanwhile: function that is called after each pass with a dict from result name to result,
            or to None for results that are not measured yet; or None.

    Returns:
        Pair of two dicts. The first maps result names to results, including the results that other
        results are computed from; the value is None if a measurement failed. The second maps the
        names of failed measurements to the reasons.
    """
    table = with_inputs(wanted)
    keys = {}
    for name, m in table.items():
        # All that a result is made of: models, parameters, code, data and inputs.
        inputs = [keys[source.name] for source in m.before]
        facts = data.facts | data.optional_facts.get(m.reads or "", {})
        keys[name] = fingerprint(m.identity, base_code(), facts, inputs)
    results = {
        name: load_result(folder / f"{name}.nc", keys[name]) if m.saved else None
        for name, m in table.items()
    }
    missing = _missing(table, results)
    log.info("%d of %d results are reused", len(table) - len(missing), len(table))
    problems = {}
    schedule = _schedule(missing)
    if schedule:
        log.info("%s", _describe_cost(schedule, data))
    first_start = last_line = time.perf_counter()
    count_done = 0

    for number, together in enumerate(schedule, start=1):
        place = f"[{number}/{len(schedule)}]"
        if progress:
            progress(number - 1, len(schedule), together.title)
        start = time.perf_counter()
        # Many passes take less than a second: they have no line of their own.
        if number == 1 or start - last_line > SECONDS_BETWEEN_LINES:
            # Passes differ more in how many results they have than in the time that one takes.
            left = (start - first_start) / max(count_done, 1) * (len(missing) - count_done)
            about = f", about {tqdm.format_interval(left)} left" if number > 1 else ""
            count = len(together.every_measurement)
            log.info("%s %s: %d results%s", place, together.title, count, about)
            last_line = start
        count_done += len(together.every_measurement)
        finishes = _make_pass(together, data, results, problems)
        seconds = round(time.perf_counter() - start, 2)
        notes = {"pass": together.title, "seconds": seconds}
        for m in together.every_measurement:
            if m.name not in finishes:
                continue
            try:
                result = finishes[m.name]()
                if m.reads is not None and hasattr(result, "assign_attrs"):
                    result = with_model_names(
                        result, m.models
                    )  # others have the names of their inputs
                if m.saved:
                    result = store_result(result, folder / f"{m.name}.nc", keys[m.name], notes)
                results[m.name] = result
            except OSError:
                raise
            except Exception as error:
                problems[m.name] = _reason(error, m)
        if meanwhile:
            meanwhile(results)
    return {name: result for name, result in results.items() if table[name].saved}, problems


def _describe_cost(schedule: Sequence["Pass"], data: Data) -> str:
    """How many images go through which models, as a sentence.

    A pass of interventions or gradients takes several forward passes for each image.
    """
    measurements = [m for together in schedule for m in together.every_measurement]
    is_copy = {model.name: bool(model.original_key) for m in measurements for model in m.models}
    reading = [reads for together in schedule if (reads := together.measurements[0].reads)]
    largest = max((math.prod(data.batches(reads)) for reads in {*reading}), default=0)
    images = f" over up to {largest:,} images" if largest else ""
    copies = sum(is_copy.values())
    passes = "1 pass" if len(reading) == 1 else f"{len(reading)} passes"
    return (
        f"{len(measurements)} results in {passes}{images}, of {len(is_copy)} models "
        f"({copies} of them untrained copies)"
    )


def _missing(table: dict[str, Measurement], results: dict[str, Any]) -> list[Measurement]:
    """The measurements to make: saved ones without a result, and their inputs that have none."""
    missing: list[Measurement] = []
    inputs: set[str] = set()  # names of what they are fed, which stands before them in the table
    for m in reversed(table.values()):
        if results[m.name] is None and (m.saved or m.name in inputs):
            missing.append(m)
            inputs |= {source.name for source in m.before}
    return missing[::-1]


def _schedule(missing: Iterable[Measurement]) -> list[Pass]:
    """The measurements to make, as a list of `Pass`, each after all that it is fed by."""
    waiting, schedule = list(missing), []
    while waiting:
        names = {m.name for m in waiting}
        ready = [m for m in waiting if not any(b.name in names for b in m.before)]
        passes = [m for m in ready if isinstance(m, SharedPass)]
        if passes:
            # The images that nothing unready is still to go through; else those of the first.
            later = {o.reads for o in waiting if isinstance(o, SharedPass) and o not in ready}
            reads = next((o.reads for o in passes if o.reads not in later), passes[0].reads)
            firsts, copies = _apart(m for m in passes if m.reads == reads)
            groups = _sharing(firsts)
        else:
            firsts, copies = _apart(ready)
            groups = [[m] for m in firsts]
        new_passes = []
        for group in groups:
            copies_of_group = _copies_of_group(group, copies)
            more = " and untrained copies" if copies_of_group else ""
            new_passes.append(Pass(f"{_title(group)}{more}", group, copies_of_group))
        schedule += new_passes
        done = {m.name for together in new_passes for m in together.every_measurement}
        waiting = [m for m in waiting if m.name not in done]
    return schedule


def _apart(
    measurements: Iterable[Measurement],
) -> tuple[list[Measurement], dict[str, list[Measurement]]]:
    """The first measurement of each structure, and the others by its name.

    What has no pass of its own shares nothing, nor do replicas.
    """
    by_structure, firsts, copies = {}, [], {}
    for m in measurements:
        is_apart = not m.reads or not m.models or tf.distribute.has_strategy()
        is_apart = is_apart or not all(model.keras_model for model in m.models)
        first = m if is_apart else by_structure.setdefault(m.structure, m)
        if first is m:
            firsts.append(m)
        else:
            copies.setdefault(first.name, []).append(m)
    return firsts, copies


def _copies_of_group(
    group: list[Measurement], copies: dict[str, list[Measurement]]
) -> list[dict[str, Measurement]]:
    """The copies of measurements that share a pass, as in a `Pass`: one model replaces another."""
    sets: list[tuple[dict, dict[str, Measurement]]] = []  # with the models that replace others
    for first in group:
        for copy in copies.get(first.name, ()):
            pairs = list(zip(first.models, copy.models, strict=True))
            for replaced, of_copy in sets:
                if first.name not in of_copy and all(replaced.get(m, c) is c for m, c in pairs):
                    break
            else:
                sets.append(({}, {}))
                replaced, of_copy = sets[-1]
            replaced.update(pairs)
            of_copy[first.name] = copy
    return [of_copy for _, of_copy in sets]


def _title(measurements: Sequence[Measurement]) -> str:
    """What measurements that share a pass are, in words."""
    m = measurements[0]
    if not isinstance(m, SharedPass):
        words = m.name.partition(".")[0].replace("_", " ")
        return f"{words} of {', '.join(model.name for model in m.models)}"
    models = dict.fromkeys(model.name for m in measurements for model in m.models)
    where = f" on {DATA_DESCRIPTIONS[m.reads]}" if m.reads in DATA_DESCRIPTIONS else ""
    return f"activations of {', '.join(models)}{where}"


def _sharing(measurements: Iterable[Measurement]) -> list[list[Measurement]]:
    """Lists of measurements that share a pass: all of connected models, and of a few others."""
    # Measurements that share models, directly or through others, with these models.
    connected: list[tuple[set[StudyModel], list[Measurement]]] = []
    for m in measurements:
        models, members, apart = set(m.models), [], []
        for group in connected:
            if group[0] & models:
                models, members = models | group[0], members + group[1]
            else:
                apart.append(group)
        connected = [*apart, (models, [*members, m])]
    shared: list[tuple[set[StudyModel], list[Measurement]]] = []
    for models, members in connected:
        if shared and len(models | shared[-1][0]) <= MOST_MODELS:
            last_models, last_members = shared.pop()
            models, members = models | last_models, last_members + members
        shared.append((models, members))
    return [members for _, members in shared]


Finishes: TypeAlias = dict[str, Callable[[], Any]]  # from results to what finishes them


def _make_pass(
    together: Pass, data: Data, results: dict[str, Any], problems: dict[str, str]
) -> Finishes:
    """What finishes the measurements of a pass, with which copies of equal layers share graphs."""
    # What each measurement is fed; one that lacks an input fails for the same reason as the input.
    fed: dict[str, list[Any]] = {}
    for m in together.every_measurement:
        failures = [problems[source.name] for source in m.before if source.name in problems]
        if failures:
            problems[m.name] = failures[0]
        else:
            fed[m.name] = [data if s is DATA else results[s.name] for s in m.inputs]
    measurements = [m for m in together.measurements if m.name in fed]
    by_name = {m.name: m for m in measurements}

    # Copies share the graphs if they differ in their weights only; others have passes of their own.
    sharing, apart = [], []
    for copy in together.copies:
        able = {name: m for name, m in copy.items() if m.name in fed}
        of_able = {name: m for name, m in able.items() if name in by_name}
        pairs = {
            pair
            for name, m in of_able.items()
            for pair in zip(by_name[name].models, m.models, strict=True)
        }
        try:
            differ = [differ_in_weights(model.keras_copy(), c.keras_copy()) for model, c in pairs]
        except Exception as error:
            # A model that cannot be made anew has no copies; measuring these by themselves says
            # why.
            _require_one_worker(error)
            differ = [False]
        if of_able and all(differ):
            sharing.append(of_able)
            able = {name: m for name, m in able.items() if name not in of_able}
        apart.append(list(able.values()))

    finishes = {}
    if not sharing or isinstance(measurements[0], SharedPass):
        finishes |= _make(measurements, fed, data, problems, sharing)
    else:
        with sharing_graphs():
            for m in [*measurements, *(m for copy in sharing for m in copy.values())]:
                finishes |= _make([m], fed, data, problems)
    for copy in apart:
        finishes |= _make(copy, fed, data, problems)
    return finishes


def _make(
    measurements: list[Measurement],
    fed: dict[str, list[Any]],
    data: Data,
    problems: dict[str, str],
    copies: Sequence[dict[str, Measurement]] = (),
    parts: bool = False,
) -> Finishes:
    """Dict from each measurement, made together, to what finishes it; sets that fail are halved."""
    if not measurements:
        return {}
    is_one = len(measurements) == 1
    try:
        if isinstance(measurements[0], SharedPass):
            return _shared_pass(cast(list[Any], measurements), fed, data, cast(Any, copies))
        (m,) = cast(list[OwnPasses], measurements)
        result = m.make(*fed[m.name])
        return {m.name: lambda: result}
    except Exception as error:
        if is_one and not copies:
            problems[measurements[0].name] = _reason(error, measurements[0])
            return {}
        _require_one_worker(error)
        if not is_one and not parts:
            names = dict.fromkeys(model.name for m in measurements for model in m.models)
            log.info(
                "%d results of %s are measured in parts: %s",
                len(measurements),
                join_words(names),
                message_of(error),
            )

    # The cause may lie in one half of the measurements, or in a copy of the only one.
    if is_one:
        groups = [(measurements, ()), ([m for copy in copies for m in copy.values()], ())]
    else:
        groups, middle = [], len(measurements) // 2
        for half in (measurements[:middle], measurements[middle:]):
            names = {m.name for m in half}
            of_half = [{n: m for n, m in copy.items() if n in names} for copy in copies]
            groups.append((half, [copy for copy in of_half if copy]))
    finishes = {}
    for group, copies_of_group in groups:
        finishes |= _make(group, fed, data, problems, copies_of_group, parts=True)
    return finishes


def _reason(error: Exception, measurement: Measurement) -> str:
    """Why a measurement failed, as a sentence."""
    _require_one_worker(error)
    return explain(error, measurement.name)


def _require_one_worker(error: Exception) -> None:
    """Raises an error that one of several workers may have alone: the others would wait for it."""
    if not isinstance(error, ValueError) and this_worker(tf.distribute.get_strategy())[1] > 1:
        raise error


def _shared_pass(
    measurements: list[SharedPass],
    fed: dict[str, list],
    data: Data,
    copies: Sequence[dict[str, SharedPass]] = (),
) -> Finishes:
    """One pass over the images that all of the measurements, and their copies, read."""
    taps = {}
    for m in measurements:
        for model, names in zip(m.models, m.taps, strict=True):
            taps.setdefault((model, m.view), {}).update(dict.fromkeys(names))
    of_models = {}
    for (model, _), names in taps.items():
        of_models.setdefault(model, {}).update(names)
    features = {model: model.select(*names) for model, names in of_models.items()}
    views = {}
    for (model, view), names in taps.items():
        of_model = features[model]
        views[model, view] = view(model, choose(of_model, names), data) if view else of_model
    requests = {}
    for m in measurements:
        looked_at = zip(m.models, m.taps, strict=True)
        features_of_models = [choose(views[model, m.view], names) for model, names in looked_at]
        requests[m.name] = (m.make(*features_of_models, *fed[m.name]), *features_of_models)
    # Copies differ from the first models in their weights and in what their statistics are fed.
    statistics = [
        {
            name: m.make(*requests[name][1:], *fed[m.name]) if m.before else requests[name][0]
            for name, m in copy.items()
        }
        for copy in copies
    ]
    reads = cast(str, measurements[0].reads)
    images, num_batches = data.read(reads), data.batches_of_copies(reads) if copies else None
    pairs = list(zip(copies, statistics, strict=True))
    totals, *totals_of_copies = pass_of_copies(
        requests,
        images,
        [Copy(), *(replace(_as_copy(measurements, *p), num_batches=num_batches) for p in pairs)],
        description="activations",
    )
    whole = [m for m in measurements if m.needs_all and any(m.name in copy for copy in copies)]
    if num_batches is not None and whole:
        totals_of_whole = pass_of_copies(
            {m.name: requests[m.name] for m in whole},
            images,
            [_as_copy(whole, *each) for each in pairs],
            description="activations of untrained copies",
        )
        totals_of_copies = list(map(operator.or_, totals_of_copies, totals_of_whole))
    finishes = {name: partial(requests[name][0].finish, totals[name]) for name in requests}
    for copy, of_copy, totals in zip(copies, statistics, totals_of_copies, strict=True):
        for name, m in copy.items():
            finishes[m.name] = partial(of_copy[name].finish, totals[name])
    return finishes


def _as_copy(
    measurements: list[SharedPass],
    copy: dict[str, SharedPass],
    statistics: dict[str, Statistic],
) -> Copy:
    """The weights of the models of a copy, and the states of its statistics."""
    weights, states = [], {}
    for m in measurements:
        if m.name not in copy:
            continue
        for model, other in zip(m.models, copy[m.name].models, strict=True):
            pairs = zip(model.keras_copy().weights, other.keras_copy().weights, strict=True)
            weights += pairs
        state = statistics[m.name].state
        if m.before and state is None:
            raise ValueError(
                f"Expected Statistic(state=...) with the input arrays of {m.name!r}, so that "
                f"{copy[m.name].name!r} can use the same graph. Received: state=None"
            )
        states |= {} if state is None else {m.name: state}
    return Copy(weights, states)
