"""Which measurements a set of models gets: a table from result name to computation."""

import logging
import re
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib.metadata import version
from typing import Any

from .attention import attention_distance
from .cka import cka
from .heads import head_similarity
from .localization import localization
from .receptive_field import receptive_field
from .ridge import fit_ridge_probe, select_l2
from .skips import skip_ratio
from .store import fingerprint, load, stored

log = logging.getLogger(__name__)

# Sampled for each receptive field: all of a wide layer's channels cost a gradient each.
CHANNELS = 16


@dataclass(frozen=True)
class Subject:
    """A model under study.

    Attributes:
        name: as figures and tables show it.
        taps: names of all its taps, in depth order.
        features: function from tap patterns to a callable from images to those taps.
        grid: its `TokenGrid`.
    """

    name: str
    taps: tuple[str, ...]
    features: Callable[..., Any]
    grid: Any

    @property
    def slug(self):
        """The name as a part of file names."""
        return slug(self.name)

    @property
    def has_attention(self):
        """Whether the model has attention weights."""
        return any(tap.endswith("/weights") for tap in self.taps)


@dataclass(frozen=True)
class Data:
    """Batched `tf.data.Dataset`s of (images, labels) that the measurements read.

    Attributes:
        train: images that probes are fitted on.
        validation: images that choose the strength of their penalty.
        test: images that everything is measured on.
        few: some of the test images, for what costs a gradient each.
        num_classes: number of classes.
    """

    train: Any
    validation: Any
    test: Any
    few: Any
    num_classes: int


def slug(name):
    """A model's name as a part of file names: `"ViT-B/16"` becomes `"vit-b-16"`."""
    return re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-")


def representations(taps):
    """The taps that hold representations of images: no attention weights, heads or logits.

    The skips are left out too: each is the sum of the site before it.
    """
    return [t for t in taps if t.rpartition("/")[2] not in ("weights", "heads", "skip", "logits")]


def block_outputs(taps):
    """The taps at the end of each block or unit, after its last sum, and those before the first."""
    ends = {}
    for tap in taps:
        site, _, what = tap.rpartition("/")
        if what == "sum":
            ends[re.sub(r"/(attention|mlp|token_mixing|channel_mixing)$", "", site)] = tap
    return [tap for tap in taps if tap in ends.values() or tap in ("embedding", "root")]


def sums(taps):
    """The taps after each sum of a skip and its branch."""
    return [tap for tap in taps if tap.endswith("/sum")]


def measurements(subjects, data):
    """Everything that is measured on these models: dict from result name to computation.

    A name is that of the analysis and the models, `"cka.vit-cls.bit"`. Layers are compared within
    every model, and between models with attention and models without.
    """
    table = {}
    for subject in subjects:
        table[f"cka.{subject.slug}"] = partial(_cka, subject, None, data)
        if subject.has_attention:
            table[f"attention_distance.{subject.slug}"] = partial(_distance, subject, data)
        table[f"receptive_field.{subject.slug}"] = partial(_field, subject, data)
        table[f"skip_ratio.{subject.slug}"] = partial(_skips, subject, data)
        table[f"localization.{subject.slug}"] = partial(_localization, subject, data)
        table[f"ridge_probe.{subject.slug}"] = partial(_probe, subject, data)
    for one, other in unlike(subjects):
        table[f"cka.{one.slug}.{other.slug}"] = partial(_cka, one, other, data)
        table[f"head_similarity.{one.slug}.{other.slug}"] = partial(_heads, one, other, data)
    return table


def measure(subjects, keys, data, folder):
    """Every measurement of these models, kept in a folder so that none is made twice.

    Args:
        subjects: list of `Subject`.
        keys: dict from a subject's slug to the `fingerprint` of its weights and of the data.
        data: the `Data`.
        folder: path of the folder of netCDF files.

    Returns:
        dict from result name to result.
    """
    table = measurements(subjects, data)
    results = {}
    for number, (name, compute) in enumerate(table.items(), start=1):
        path = folder / f"{name}.nc"
        key = fingerprint(name, version("vit_tf"), [keys[part] for part in name.split(".")[1:]])
        kept = load(path, key)
        log.info("[%d/%d] %s%s", number, len(table), name, "" if kept is None else " (kept)")
        results[name] = stored(path, key, compute) if kept is None else kept
    return results


def unlike(subjects):
    """Pairs of a model with attention and one without."""
    return [
        (one, other)
        for one in subjects
        if one.has_attention
        for other in subjects
        if not other.has_attention
    ]


def _named(result, **names):
    result.attrs |= {key: subject.name for key, subject in names.items()}
    return result


def _cka(one, other, data):
    x = one.features(*representations(one.taps))
    y = other and other.features(*representations(other.taps))
    other = other or one
    return _named(cka(x, data.test, y), model=one, model_x=one, model_y=other)


def _distance(subject, data):
    weights = subject.features("*/weights")
    return _named(attention_distance(weights, data.test, subject.grid), model=subject)


def _field(subject, data):
    features = subject.features(*sums(subject.taps))
    result = receptive_field(features, data.few, channels=CHANNELS, grid=subject.grid)
    return _named(result, model=subject)


def _skips(subject, data):
    features = subject.features("*/skip", "*/branch")
    return _named(skip_ratio(features, data.test, subject.grid), model=subject)


def _localization(subject, data):
    features = subject.features(block_outputs(subject.taps)[-1])
    return _named(localization(features, data.test, subject.grid), model=subject)


def _heads(one, other, data):
    block = "block00/attention"
    distance = attention_distance(one.features(f"{block}/weights"), data.test, one.grid)
    lower_half = block_outputs(other.taps)
    lower_half = other.features(*lower_half[: (len(lower_half) + 1) // 2])
    heads = one.features(f"{block}/heads")
    result = head_similarity(heads, lower_half, data.test, distance)
    return _named(result, model=one, model_x=one, model_y=other)


def _probe(subject, data):
    features = subject.features(*block_outputs(subject.taps))
    score = fit_ridge_probe(features, data.train, data.num_classes)
    return _named(select_l2(score(data.validation), score(data.test)), model=subject)
