"""Shared by `study` and `analyze`: their options, the data they measure, progress, provenance."""

from __future__ import annotations

import contextlib
import gc
import logging
import os
import platform
from collections.abc import Callable, Iterator, Sequence
from datetime import date
from functools import cache, partial
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from tqdm.auto import tqdm
from tqdm.contrib.logging import logging_redirect_tqdm

import vit_tf
from vit_tf.common.names import unknown_name, without_password
from vit_tf.data.files import digest_tree, only_process
from vit_tf.scripts import common
from vit_tf.scripts.common import Arguments, Options, ParseOptions, RunCommand, integer, named

if TYPE_CHECKING:
    import keras

    from vit_tf.analysis.figures.data import Data
    from vit_tf.data.source import Description

LARGEST = {"train": 24_000, "validation": 2_000, "test": 2_000}  # of data other than the digits
# Training images among which nearest neighbours are found: as many as are tested, in this range.
GALLERY = 500, 2_000
ANNOTATED_BATCH = 60
# Allocations between collections of garbage. Python's own are so few that collections go through
# the objects of all traced graphs again and again, which takes 4 s of a report on 200 images. All
# objects, models that are no longer used among them, are considered every 2 million allocations.
GARBAGE_THRESHOLDS = 50_000, 20, 1
SHAPE_VIDEOS, SHAPE_PAIRS = 16, 160  # generated for `--data shapes`
log = logging.getLogger("vit_tf.report")
# Functions that load annotated images, by what these are for: "objects", "parts", "videos" ...
Loaders: TypeAlias = dict[str, Callable[[], Any]]
Facts: TypeAlias = dict[str, dict[str, Any]]  # what identifies these images, for their digest

FIGURES = {
    "--figures": named(
        "figure numbers of the papers, such as 1,7,C.4; main is the leading figure of each chapter "
        "(default: main)",
        "NUMBERS",
        default="main",
    ),
    "--all": {
        "dest": "figures",
        "action": "store_const",
        "const": "all",
        "help": "draw all figures that apply",
    },
    "--list": {"action": "store_true", "help": "list the figures and exit"},
}
# The images that are measured.
SAMPLING = {
    "--take-test": integer(
        "number of images to measure (default: all, at most 2,000 unless the data are digits)"
    ),
    "--shots": integer("training images per class for probes", default=10),
}
_COCO = {"nargs": 2, "metavar": ("JSON", "FOLDER")}
ANNOTATIONS = {
    "--objects": {**_COCO, "help": "object masks in COCO format, and the folder of their images"},
    "--parts": {**_COCO, "help": "part masks in COCO format (PartImageNet), and their images"},
    "--take-objects": integer("number of images with objects and with parts (default: all)"),
    "--videos": named("videos with masks: the folder of DAVIS 2017", "FOLDER"),
    "--pairs": named("image pairs with keypoints: the folder of SPair-71k", "FOLDER"),
    "--landmarks": {
        "nargs": 2,
        "metavar": ("FOLDER", "NAME"),
        "help": "images for retrieval: a folder, and roxford5k or rparis6k",
    },
}


class Progress(Protocol):
    """Reports that `done` of `total` steps of a stage are done, and what is next, in words."""

    def __call__(self, stage: str, done: float, total: float, words: str = "", /) -> None: ...


def run_logged(parse: ParseOptions, run: RunCommand, arguments: Arguments = None) -> int:
    """Parse, check and run with progress on the standard error; the exit status."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logging.getLogger("vit_tf").setLevel(logging.INFO)
    gc.set_threshold(*GARBAGE_THRESHOLDS)
    return common.run_command(parse, run, arguments, describe_results)


def describe_results(options: Options) -> str:
    """What a stopped run saved in a report's folder, and how to resume."""
    kinds = {"trained model": "models/*.json", "result": "results/*.nc"}
    counts = {kind: len(list(options.out.glob(files))) for kind, files in kinds.items()}
    words = [f"{count} {kind}{'s'[: count > 1]}" for kind, count in counts.items() if count]
    text = f"{options.out} holds {' and '.join(words)}; {common.RESUMES}"
    return text if words else common.NOTHING_SAVED


@contextlib.contextmanager
def strategy_in(folder: Path, name: str) -> Iterator[None]:
    """The scope of a strategy; the chief creates a report's folder and locks it for others."""
    from vit_tf.analysis.report.page import require_own

    require_own(folder / "report.html")
    strategy = vit_tf.distribute.strategy(name)
    lock = only_process(folder) if vit_tf.distribute.is_chief() else contextlib.nullcontext()
    with lock, strategy.scope():
        yield
        vit_tf.distribute.wait_for_workers()


def figure_numbers(options: Options) -> list[str]:
    """The numbers in `--figures`."""
    return [number for number in options.figures.split(",") if number]


def command_with_figures(options: Options) -> Callable[[Sequence[str]], str]:
    """A function from numbers of figures to this command with these figures."""
    return lambda numbers: f"{options.command} --figures {','.join(numbers)}"


def require_figures(options: Options) -> None:
    """Raises a `ValueError` for unknown figures, before TensorFlow is imported."""
    from vit_tf.analysis.papers import known_figures

    choices = ["main", "all", *known_figures()]
    for number in figure_numbers(options):
        if number not in choices:
            raise unknown_name("figure in --figures", number, choices)


def list_figures(numbers: Sequence[str], with_models: bool = False) -> str:
    """A table of the figures with these numbers, or of all, as text.

    `with_models` adds the models in a study that each figure needs.
    """
    from vit_tf.analysis.figures.figure import lookup_figures

    # Figures of the same numbers that show the same are one line, with the models of all.
    roles_of_lines: dict[tuple[str, str], dict[str, None]] = {}
    for figure in lookup_figures(numbers):
        roles = roles_of_lines.setdefault((",".join(figure.choices), figure.shows), {})
        roles |= dict.fromkeys(figure.models.all_roles)
    if not with_models:
        return "\n".join(f"{choices:24} {shows}" for choices, shows in roles_of_lines)
    lines = ["figures                  what they show                                       models"]
    lines += [f"{n:24} {shows:52} {', '.join(r)}" for (n, shows), r in roles_of_lines.items()]
    return "\n".join(lines)


def subset_sizes(options: Options, description: Description) -> dict[str, int]:
    """Number of examples of each split to use: as specified, by default all or the largest."""
    sizes = dict(description.num_examples)
    if "validation" not in sizes:
        sizes["validation"] = round(0.1 * sizes["train"])
        sizes["train"] -= sizes["validation"]
    if options.data != "digits":
        sizes = {split: min(count, LARGEST[split]) for split, count in sizes.items()}
    specified = {"train": options.take, "test": options.take_test}
    return sizes | {split: count for split, count in specified.items() if count is not None}


def measured_sizes(options: Options, description: Description, split: str) -> dict[str, int]:
    """Number of images of a split to measure, as a dict; one batch where its size is unknown."""
    from vit_tf.data.batches import BATCH_SIZE

    counts = description.num_examples
    available = sum(counts.values()) if split == "all" else counts.get(split)
    tested = options.take_test or available
    if tested and not options.take_test and options.data != "digits":
        tested = min(tested, LARGEST["test"])
    return {"test": tested or BATCH_SIZE}


def read_data(
    options: Options, description: Description, split: str = "test", **images: Any
) -> Data:
    """The `Data` that is measured, `options.sizes` of it; `images` are arguments of `data.load`."""
    from vit_tf.analysis.figures.data import (
        Data,
        batch_size_of,
        field_sizes,
    )
    from vit_tf.data.batches import BATCH_SIZE
    from vit_tf.data.pipeline import TooFewImages

    classes = common.chosen_classes(options)
    source = {"seed": options.seed, "data_dir": options.data_dir, **classes, **images}
    load = partial(vit_tf.data.load, options.data, **source)
    # The images that everything is measured on, and few of them for what costs a gradient each.
    tested = options.sizes["test"]
    size = batch_size_of(tested)
    (test,) = load(splits=(split,), batch_size=size, take=tested, shuffle_once=True)
    at_once, fields = (min(number, tested) for number in field_sizes(test))
    (few,) = load(splits=(split,), batch_size=at_once, take=fields, shuffle_once=True)
    pixels = tuple(few.element_spec[0].shape[1:3])
    annotated, annotation_facts = read_annotations(options, pixels, images.get("preprocessing"))
    facts = {
        "batch": size,
        "field_images": fields,
        "size": pixels,
        "data": without_password(str(options.data)),
        "seed": options.seed,
        "test": test.identify(),
    }
    # The images that probes are fitted on, and those among which neighbours are found.
    train, held_out, num_classes = None, None, None
    reasons: dict[str, str] = {}
    if can_fit(description, split):
        num_classes = description.num_classes
        few_shot = {"batch_size": BATCH_SIZE, "held_out": options.shots, **source}
        try:
            train, held_out = vit_tf.data.few_shot(options.data, options.shots, **few_shot)
            facts |= {"train": train.identify(), "validation": cast(Any, held_out).identify()}
        except TooFewImages as error:
            reason = (
                f"Probes need {2 * options.shots} training images of each class for --shots "
                f"{options.shots}, half of them to choose their penalty; class "
                f"{error.class_name!r} has {error.count}."
            )
            reasons = {"train": reason, "validation": reason}
            log.warning("%s", reason)
        count = gallery_size(description, tested)
        (gallery,) = load(splits=("train",), batch_size=BATCH_SIZE, take=count)
        annotated = {"gallery": lambda: gallery, **annotated}
        annotation_facts = {"gallery": {"gallery": gallery.identify()}, **annotation_facts}
    return Data(
        test,
        few,
        train,
        held_out,
        num_classes,
        facts,
        optional=annotated,
        optional_facts=annotation_facts,
        labelled=description.num_classes > 1,
        reasons=reasons,
    )


def gallery_size(description: Description, tested: int) -> int:
    """Number of training images among which nearest neighbours are found."""
    fewest, most = GALLERY
    return min(description.num_examples["train"], max(fewest, min(tested, most)))


def can_fit(description: Description, split: str) -> bool:
    """Whether there are training images of several classes outside a split."""
    labelled = description.num_classes > 1 and "train" in description.num_examples
    return labelled and split not in ("train", "all")


def example_setup(
    options: Options,
    description: Description,
    split: str,
    images: vit_tf.Preprocessing,
    fitted: bool,
) -> dict[tuple[str, ...], str]:
    """Python code that loads what `read_data` reads, by the variables that it assigns."""
    from vit_tf.analysis.figures.data import batch_size_of

    data, tested = repr(without_password(options.data)), options.sizes["test"]
    is_resized = images == vit_tf.Preprocessing(images.size)
    shaped = f"image_size={images.size}" if is_resized else f"preprocessing=vit_tf.{images!r}"
    seed = [f"seed={options.seed}"] if options.seed else []  # 0 is the default
    source = [*seed, shaped]
    source += [f"data_dir={str(options.data_dir)!r}"] if options.data_dir else []
    source += [f"classes=data.read_class_list({options.classes!r})"] if options.classes else []

    def call(name: str, *arguments: object) -> str:
        return f"data.{name}({', '.join(map(str, arguments))})"

    taken = [f"take={tested}", f"batch_size={batch_size_of(tested)}", "shuffle_once=True"]
    test = call("load", data, f"splits=({split!r},)", *taken, *source)
    lines: dict[tuple[str, ...], str] = {("images",): f"(images,) = {test}"}
    if fitted:
        shots = options.shots, f"held_out={options.shots}"
        lines["fitted", "validation"] = (
            f"fitted, validation = {call('few_shot', data, *shots, *source)}"
        )
    if can_fit(description, split):
        gallery = "splits=('train',)", f"take={gallery_size(description, tested)}"
        lines["train",] = f"(train,) = {call('load', data, *gallery, *source)}"
    if options.data == "shapes":
        sized = f"image_size={images.size}"
        shapes = call("load_shapes", "'test'", f"take={tested}", *seed, shaped)
        for name, masks in (("objects", "shape_masks"), ("parts", "half_masks")):
            lines[name,] = (
                f"from vit_tf.data.shapes import {masks}\n"
                f"{name} = {masks}({shapes}, {ANNOTATED_BATCH})"
            )
        lines["videos",] = (
            f"shapes = {call('load_shape_videos', SHAPE_VIDEOS, sized, *seed)}\n"
            "videos = list(zip(shapes['image'], shapes['index'], strict=True))"
        )
        lines["pairs",] = f"pairs = {call('load_shape_pairs', SHAPE_PAIRS, *seed, shaped)}"
    batch = f"batch_size={ANNOTATED_BATCH}"
    coco = [f"take={options.take_objects}", batch, *seed, shaped]
    calls = {
        "objects": ("load_coco", coco),
        "parts": ("load_coco", coco),
        "videos": ("load_davis", []),
        "pairs": ("load_spair", [*seed, shaped]),
        "landmarks": ("load_revisited", [batch, shaped]),
    }
    for name, (function, arguments) in calls.items():
        if source := getattr(options, name):
            paths = [source] if isinstance(source, str) else source
            names = ("queries", "database", "truth") if name == "landmarks" else (name,)
            lines[names] = f"{', '.join(names)} = {call(function, *map(repr, paths), *arguments)}"
    return lines


def read_annotations(
    options: Options, size: tuple[int, int], preprocessing: vit_tf.Preprocessing | None = None
) -> tuple[Loaders, Facts]:
    """Annotated images of a size in pixels: dict of functions that load them, and their facts."""
    shaped = {"preprocessing": preprocessing} if preprocessing else {"image_size": size}
    loaders, facts = {}, {}
    if options.data == "shapes":
        loaders, facts = _annotated_shapes(options, size, shaped)
    data, seed = vit_tf.data, {"seed": options.seed}
    taken = {"take": options.take_objects, "batch_size": ANNOTATED_BATCH, **seed}
    readers = {
        "objects": lambda source: data.load_coco(*source, **taken, **shaped),
        "parts": lambda source: data.load_coco(*source, **taken, **shaped),
        "videos": lambda source: data.load_davis(source, preprocessing=preprocessing),
        "pairs": lambda source: data.load_spair(source, **seed, **shaped),
        "landmarks": lambda source: data.load_revisited(
            *source, batch_size=ANNOTATED_BATCH, **shaped
        ),
    }
    for name, read in readers.items():
        source = getattr(options, name)
        if source:
            images = read(source)  # at once, since a path may be wrong
            loaders[name] = lambda images=images: images
            paths = [source] if isinstance(source, str) else source
            digests = [digest_tree(path) for path in paths if Path(path).exists()]
            facts[name] = {name: [source, *digests], "take": options.take_objects}
    return loaders, facts


def _annotated_shapes(
    options: Options, size: tuple[int, int], shaped: dict[str, Any]
) -> tuple[Loaders, Facts]:
    """Functions that generate the annotations of the shapes, by name, and facts about these."""
    from vit_tf.data.shapes import half_masks, shape_masks

    tested = {"take": options.sizes["test"]} if "test" in options.sizes else {}
    seed = {"seed": options.seed}
    shapes = cache(partial(vit_tf.data.load_shapes, "test", **seed, **tested, **shaped))

    def videos() -> list[tuple[Any, Any]]:
        made = vit_tf.data.load_shape_videos(SHAPE_VIDEOS, image_size=cast(Any, size), **seed)
        return list(zip(made["image"], made["index"], strict=True))

    loaders = {
        "objects": lambda: shape_masks(shapes(), ANNOTATED_BATCH),
        "parts": lambda: half_masks(shapes(), ANNOTATED_BATCH),
        "videos": videos,
        "pairs": partial(vit_tf.data.load_shape_pairs, SHAPE_PAIRS, **seed, **shaped),
    }
    facts = {"videos": {"videos": SHAPE_VIDEOS}, "pairs": {"pairs": SHAPE_PAIRS}}
    return loaders, facts | dict.fromkeys(("objects", "parts"), tested)


def provenance(options: Options, description: Description) -> dict[str, Any]:
    """What it takes to reproduce a report."""
    packages = ("tensorflow", "keras", "numpy", "xarray", "matplotlib")
    # The options that were given or have a default, and not what was read for them.
    unlisted = ("command", "digests")
    given = {
        name.replace("_", " "): value if isinstance(value, list | tuple) else [value]
        for name, value in vars(options).items()
        if isinstance(value, str | int | float | Path | list | tuple)
        and value not in ("", False, [], ())
        and name not in unlisted
    }
    return {
        "command": options.command,
        "data": {"name": without_password(options.data), "classes": description.num_classes}
        | {f"{split} images": count for split, count in description.num_examples.items()},
        "options": {
            name: without_password(" ".join(map(str, values))) for name, values in given.items()
        },
        "versions": {"python": platform.python_version(), "vit_tf": vit_tf.__version__}
        | {p: version(p) for p in packages},
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": date.today().isoformat(),
    }


class ProgressBar:
    """One bar over stages, a dict from name to expected seconds; called with what is done."""

    def __init__(self, stages: dict[str, float]) -> None:
        self._stages, self._done = stages, dict.fromkeys(stages, 0.0)
        self.seconds = sum(stages.values())

    @contextlib.contextmanager
    def shown(self) -> Iterator[None]:
        """Shows the bar in this context."""
        shape = "{percentage:3.0f} %|{bar}| {elapsed} elapsed, about {remaining} left: {desc}"
        self._bar = tqdm(total=self.seconds, bar_format=shape, disable=None, leave=False)
        with self._bar, logging_redirect_tqdm():
            yield

    def __call__(self, stage: str, done: float, total: float, words: str = "") -> None:
        if words:
            self._bar.set_description_str(words, refresh=False)
        before = self._done[stage]
        self._done[stage] = self._stages[stage] * done / total
        self._bar.update(self._done[stage] - before)


def progress_callback(progress: Callable[[int, int], None]) -> keras.callbacks.Callback:
    """A Keras callback that reports the finished steps of a run, and their total, to `progress`."""
    import keras

    class Report(keras.callbacks.Callback):
        epochs = 0

        def on_epoch_begin(self, epoch: int, logs: dict[str, float] | None = None) -> None:
            self.epochs = epoch

        def on_train_batch_end(self, batch: int, logs: dict[str, float] | None = None) -> None:
            run: dict[str, int] = self.params or {}
            steps = run["steps"]
            progress(self.epochs * steps + batch + 1, run["epochs"] * steps)

    return Report()
