"""Trains vision models, measures what they have learned and writes a report.

Three models of similar size are trained on one data set and measured on its test images: a Vision
Transformer with a CLS token, one with average pooling, and a BiT ResNet. --full trains all models
of the papers' figures: also an MLP-Mixer, a larger ViT, a hybrid and a ViT that is pre-trained by
masked patch prediction; models without the skips of a block, with fractions of the data and with
other seeds; and models before and after fine-tuning on the other half of the classes and on
--far-data. --figures trains only the models that the selected figures need. The report, its figures
(PNG), the results (netCDF) and the models (.keras) are in the output folder. The same command
resumes a run that was stopped; nothing is trained or measured again unless it has changed.

Examples:
    vit-tf study
    vit-tf study --full
    vit-tf study --list
    vit-tf study --figures 1,7,9
    vit-tf study --data fashion_mnist --data-dir ~/tensorflow_datasets
    vit-tf study --data path/to/folder/of/class/folders --image-size 64 --epochs 20
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import logging
import math
import multiprocessing
import os
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor, wait
from functools import cache, cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, cast

import vit_tf
from vit_tf.scripts import common, report_commands
from vit_tf.scripts.common import Arguments, Options, integer, named
from vit_tf.scripts.report_commands import Progress

if TYPE_CHECKING:
    import keras
    import tensorflow as tf

    from vit_tf.analysis.figures.figure import Figure
    from vit_tf.analysis.figures.models import StudyModel
    from vit_tf.analysis.report.assemble import Report
    from vit_tf.data.source import Description
    from vit_tf.models.model import VisionModel

log = logging.getLogger("vit_tf.study")

OPTIONS = {
    "figures": {
        **report_commands.FIGURES,
        "--full": {"action": "store_true", "help": "train all models of the papers' figures"},
    },
    "data": {
        **common.SOURCE,
        "--image-size": integer("side of the images, in pixels: a multiple of 8", default=32),
        "--take": integer(
            "number of training images (default: all, at most 24,000 unless the data are digits)"
        ),
        "--far-data": named(
            "data of a far domain to fine-tune on, with --full (default: shapes; digits for shapes)"
        ),
        **report_commands.SAMPLING,
    },
    "annotated images": report_commands.ANNOTATIONS,
    "training": {
        "--epochs": integer("epochs of the ViTs (default: 12 for digits, otherwise 9)"),
        "--bit-epochs": integer("epochs of the BiT (default: 6)"),
        "--shift": integer("largest random shift, in pixels (default: 1 for digits, otherwise 0)"),
        "--seeds": integer(
            "number of seeds of ViT-CLS, the larger ViT and BiT, with --full", default=2
        ),
        "--batch-size": integer(
            "examples per training step (default: 32 for digits, otherwise 64)"
        ),
        "--jobs": integer("models trained in parallel (default: by the number of cores)"),
    },
    "run": {
        **common.output("output folder (default: study_DATA)"),
        **common.SEED,
        **common.STRATEGY,
    },
}
MAIN = ("--figures", "--list", "--full", "--data", "--data-dir", "--image-size", "--take")
MAIN += ("--take-test", "--epochs", "--seeds", "--out")
# Defaults for two CPU cores; each is an option too.
DIGITS = {"epochs": 12, "bit_epochs": 6, "shift": 1, "batch_size": 32}
OTHERS = {"epochs": 9, "bit_epochs": 6, "shift": 0, "batch_size": 64}
Detail: TypeAlias = str | int | float | None
Row: TypeAlias = dict[str, Any]  # about a trained model, in the table of the report
ModelFacts: TypeAlias = dict[str, Any]  # the note of a trained model: key, row, taps, grid
# The roles of the models that are trained unless more are asked for.
QUICK = ("vit", "gap", "resnet")
NUM_LAYERS = 6
FRACTIONS = (0.03, 0.1, 0.3)
# Expected seconds on two CPU cores with models trained in parallel: to trace and compile one, for
# 1,000 images of 32 pixels in an epoch, and to measure a model and to draw its pictures.
COMPILING, PER_THOUSAND, MEASURING, DRAWING = 15, 6.0, 50, 16
MAX_JOBS = 4  # each takes about a gigabyte
INTRODUCTION = (
    "Small vision models were trained on {description.name} ({description.num_classes} classes, "
    "{options.image_size} pixels) and measured on its test images.{note}\n\n"
    "Linear probes are fitted on {options.shots} training images per class; their penalty is "
    "selected on as many others. What the papers report for large models on large data may not "
    "replicate on small ones."
)
DIGITS_NOTE = (
    " Digits of 8 x 8 pixels are enlarged, so attention and receptive fields show little of what "
    "photographs would; vit-tf demo measures models that were trained on photographs."
)


def main(arguments: Arguments = None) -> int:
    """Runs the command and returns its exit status."""
    return report_commands.run_logged(parse, run, arguments)


def parse(arguments: Arguments = None) -> Options:
    """The options of the command line."""
    options = common.make_parser("study", __doc__, OPTIONS, MAIN).parse_args(arguments)
    report_commands.require_figures(options)
    if options.image_size < 16 or options.image_size % 8:
        raise ValueError(
            "Expected --image-size to be a multiple of 8, at least 16. "
            f"Received: {options.image_size}"
        )
    common.require_at_least(options, seeds=1, jobs=1)
    for name, default in (DIGITS if options.data == "digits" else OTHERS).items():
        if getattr(options, name) is None:
            setattr(options, name, default)
    options.far_data = options.far_data or ("digits" if options.data == "shapes" else "shapes")
    options.out = options.out or Path(f"study_{Path(options.data).name}")
    return options


def run(options: Options) -> None:
    """List the figures, or train, measure and report."""
    numbers = report_commands.figure_numbers(options)
    if options.list:
        print(report_commands.list_figures(numbers, with_models=True))
        return
    from vit_tf.analysis.figures.figure import lookup_figures

    figures = lookup_figures(numbers)
    start = time.perf_counter()
    report = make_study(figures, options)
    if report:
        log.info("%s after %.0f seconds", report.path, time.perf_counter() - start)


def make_study(figures: Sequence[Figure], options: Options) -> Report | None:
    """Train what these figures need, measure, draw and write the report."""
    from vit_tf.analysis.report.assemble import write_figures
    from vit_tf.common.names import join_words

    description = common.describe_labelled(options)
    options.sizes = report_commands.subset_sizes(options, description)
    plans = selected_plans(make_plans(options, description.num_classes), options)
    progress = report_commands.ProgressBar(expected_seconds(plans, options))
    log.info(
        "Training %s on %d images and measuring on %d: about %d minutes on two CPU cores, less "
        "what is already done. Results: %s",
        join_words([plan.name for plan in plans]),
        options.sizes["train"],
        options.sizes["test"],
        max(1, round(progress.seconds / 60)),
        options.out,
    )
    data = report_commands.read_data(options, description, image_size=options.image_size)
    with report_commands.strategy_in(options.out, options.strategy), progress.shown():
        train_in_parallel(plans, options, progress)
        models, rows = train_all(plans, options, progress)
        return write_figures(
            figures,
            models,
            data,
            options.out,
            numbers=report_commands.figure_numbers(options),
            command=report_commands.command_with_figures(options),
            elsewhere=f'"vit-tf study --data {options.data} --full --all" measures it.',
            progress=progress,
            title=f"{len(rows)} vision models trained on {description.name}",
            introduction=introduction(options, description),
            models_table=rows,
            timings=[
                {"step": f"training of {row['model']}", "seconds": row["training (s)"]}
                for row in rows
            ],
            provenance=report_commands.provenance(options, description),
        )


def introduction(options: Options, description: Description) -> str:
    """What the report says first: the data, the probes and what to expect of them."""
    note = DIGITS_NOTE if options.data == "digits" else ""
    return INTRODUCTION.format(options=options, description=description, note=note)


@dataclasses.dataclass(frozen=True)
class ModelPlan:
    """One model of the study: what it is, how it is trained and its role in the figures."""

    name: str  # as figures and tables show it
    # "vit", "gap", "resnet" or "mixer"; "without" (the skips of a block); "seed" (another seed),
    # "fraction" (of the training images), "larger", "finer" (smaller patches), "hybrid", "before",
    # "after" (fine-tuning) and "far" (fine-tuning on a far domain), "masked" (pre-trained by masked
    # patch prediction) and "tuned" (the same, fine-tuned).
    role: str
    model: type[VisionModel]
    config: dict[str, Any]  # the arguments of the model's class
    recipe: vit_tf.Recipe | vit_tf.Pretraining
    # What distinguishes it from others of its role: the block, the seed, the fraction.
    detail: Detail = None
    base: str | None = None  # name of the plan that it is compared with
    seed: int = 0  # added to the study's seed for the initialization
    fraction: float = 1.0  # of the training images
    # Which half of the classes it is trained and tested on, 0 or 1; None for all.
    half: int | None = None
    is_far: bool = False  # whether it is trained and tested on the data of a far domain
    # Plan whose trained weights it starts from, except for the head.
    start: ModelPlan | None = None

    @property
    def slug(self) -> str:
        """The name as a part of file names."""
        from vit_tf.analysis.figures.models import slug

        return slug(self.name)

    @property
    def repeats(self) -> int:
        """How often each training image is seen in an epoch: less data gives as many updates."""
        return round(1 / self.fraction)

    @property
    def share(self) -> float:
        """The number of images in an epoch, relative to that of the training images."""
        return 0.5 if self.is_far or self.half is not None else 1

    @cached_property
    def facts(self) -> list[Any]:
        """All that the trained model depends on, besides the data and the study's seed."""
        start = self.start and self.start.facts
        recipe = dataclasses.asdict(self.recipe)
        data = self.fraction if self.fraction == 1 else [self.fraction, self.repeats]
        changes = [self.seed, data, self.half, start]
        return [self.model.__name__, self.config, recipe, *changes]


def make_plans(options: Options, num_classes: int) -> list[ModelPlan]:
    """All models of the study; those that others start from or are compared with come first."""
    size = options.image_size
    shared = {"image_shape": (size, size, 3), "num_classes": num_classes}
    sizes = {"patch_size": size // 8, "num_layers": NUM_LAYERS, "hidden_dim": 64}
    vit = shared | sizes | {"num_heads": 4, "mlp_dim": 256, "pooling": "cls"}
    mixer = shared | sizes | {"tokens_mlp_dim": 32, "channels_mlp_dim": 256}
    bit = shared | {"units": (2, 2, 2), "width_factor": 0.5, "stem": "imagenet"}

    def recipe(epochs: int, learning_rate: float = 2e-3) -> vit_tf.Recipe:
        return vit_tf.Recipe(
            epochs=epochs,
            learning_rate=learning_rate,
            warmup_epochs=epochs / 10,
            weight_decay=0.05,
            label_smoothing=0.1,
            shift=options.shift,
        )

    long, short = recipe(options.epochs), recipe(options.bit_epochs)
    cls = ModelPlan("ViT-CLS", "vit", vit_tf.ViT, vit, long)
    resnet = ModelPlan("BiT", "resnet", vit_tf.BiT, bit, short)
    plans = [
        cls,
        ModelPlan("ViT-GAP", "gap", vit_tf.ViT, vit | {"pooling": "gap"}, long),
        resnet,
        ModelPlan("Mixer", "mixer", vit_tf.Mixer, mixer, long),
    ]

    def variant(
        plan: ModelPlan, name: str, role: str, detail: Detail = None, **changes: Any
    ) -> ModelPlan:
        changes = {"role": role, "detail": detail, "base": plan.name} | changes
        return dataclasses.replace(plan, name=f"{plan.name} {name}", **changes)

    for block in ("block01", "block03", "block05"):
        config = vit | {"without_skips": (block,)}
        name = f"without skips in {block}"
        plans.append(variant(cls, name, "without", block, config=config))
    config = vit | {"hidden_dim": 128, "num_heads": 8, "mlp_dim": 512}
    larger = variant(cls, "of twice the width", "larger", config=config)
    config = vit | {"patch_size": max(1, vit["patch_size"] // 2)}
    plans += [larger, variant(cls, "with smaller patches", "finer", config=config)]
    fractions = [(plan, fraction) for plan in (cls, resnet) for fraction in FRACTIONS]
    for plan, fraction in [*fractions, (larger, min(FRACTIONS))]:
        name = f"on {100 * fraction:g}% of the data"
        plans.append(variant(plan, name, "fraction", fraction, fraction=fraction))
    # The root of a ResNet, with stride 4, in place of patches of about the same stride.
    hybrid = {
        "model": vit_tf.HybridViT,
        "config": vit | {"stem_units": (), "patch_size": max(1, size // 32)},
    }
    plans.append(variant(cls, "with a convolutional stem", "hybrid", **hybrid))
    masking = vit_tf.Pretraining(
        epochs=options.epochs,
        learning_rate=2e-3,
        warmup_epochs=options.epochs / 10,
        weight_decay=0.05,
    )
    masked = variant(cls, "on masked patches", "masked", recipe=masking)
    tuned = variant(cls, "on masked patches and fine-tuned", "tuned", start=masked)
    plans += [masked, tuned]
    for seed in range(1, options.seeds):
        for plan in (cls, resnet, larger):
            plans.append(variant(plan, f"seed {seed}", "seed", seed, seed=seed))
    # Fine-tuning on the other half of the classes, and on a far domain.
    before = variant(cls, "on half the classes", "before", half=0)
    tuning = {
        "recipe": recipe(math.ceil(options.epochs / 2), learning_rate=5e-4),
        "start": before,
        "base": before.name,
    }
    after = variant(cls, "fine-tuned on the others", "after", half=1, **tuning)
    far_data = vit_tf.data.describe(options.far_data, options.data_dir)
    config = vit | {"num_classes": far_data.num_classes}
    name = f"fine-tuned on {far_data.name}"
    far = variant(cls, name, "far", is_far=True, config=config, **tuning)
    return [*plans, before, after, far]


def selected_plans(plans: Sequence[ModelPlan], options: Options) -> list[ModelPlan]:
    """The plans of all models, of the three models, or of those that the selected figures need."""
    from vit_tf.analysis.figures.figure import ALL, MAIN, lookup_figures

    numbers = report_commands.figure_numbers(options)
    named = [number for number in numbers if number not in (MAIN, ALL)]
    if options.full:
        return needed_plans(plans, lookup_figures(numbers))
    of_figures = needed_plans(plans, lookup_figures(named)) if named else []
    is_quick = len(named) < len(numbers)
    return [plan for plan in plans if plan in of_figures or (is_quick and plan.role in QUICK)]


def needed_plans(plans: Sequence[ModelPlan], figures: Iterable[Figure]) -> list[ModelPlan]:
    """The plans that figures need: those of their roles, and what these are variants of."""
    roles = {role for figure in figures for role in figure.models.all_roles}
    selected = [plan for plan in plans if plan.role in roles]
    origins = {plan.base for plan in selected if plan.role != "before"}
    origins |= {plan.start.name for plan in selected if plan.start}
    return [plan for plan in plans if plan in selected or plan.name in origins]


def expected_seconds(plans: Sequence[ModelPlan], options: Options) -> dict[str, float]:
    """Expected seconds of training, of the measurements and the pictures on two cores: dict."""
    per_thousand = PER_THOUSAND * (options.image_size / 32) ** 2
    stages: dict[str, float] = {}
    for plan in plans:
        thousands = options.sizes["train"] * plan.share / 1000
        stages[plan.name] = COMPILING + plan.recipe.epochs * thousands * per_thousand
    return stages | {"measuring": MEASURING * len(plans), "drawing": DRAWING * len(plans)}


def train_all(
    plans: Sequence[ModelPlan], options: Options, progress: Progress
) -> tuple[list[StudyModel], list[Row]]:
    """The models of these plans, trained: list of `StudyModel`, and rows about them."""
    from vit_tf.analysis.figures.models import baselines_of

    models, rows = {}, []
    for number, plan in enumerate(plans, start=1):
        log.info("[model %d/%d] %s", number, len(plans), plan.name)
        progress(plan.name, 0, 1, f"training {plan.name}")
        callback = report_commands.progress_callback(partial(progress, plan.name))
        facts = train_plan(plan, options, [callback])
        progress(plan.name, 1, 1)
        if (accuracy := facts["row"]["test accuracy (%)"]) is not None:
            log.info("%s: test accuracy %s %%", plan.name, accuracy)
        models[plan.name] = study_model(plan, facts, models.get(plan.base), options)
        rows.append(facts["row"])
    baselines = [
        baseline
        for model in models.values()
        for baseline in baselines_of(
            model,
            [untrained(model, options, options.seed + number) for number in range(2)],
            options.seed,
        )
    ]
    return [*models.values(), *baselines], rows


def load_trained(plan: ModelPlan, options: Options) -> VisionModel:
    """The trained model of a plan."""
    return cast("VisionModel", vit_tf.load_model(model_path(plan, options)))


def study_model(
    plan: ModelPlan, facts: ModelFacts, origin: StudyModel | None, options: Options
) -> StudyModel:
    """A trained model of the study as a `StudyModel`, which is loaded when it is first needed."""
    from vit_tf.analysis.figures.models import StudyModel
    from vit_tf.features.conversion import as_features
    from vit_tf.features.features import ModelFacts
    from vit_tf.features.lazy_features import LazyFeatures
    from vit_tf.features.structure import ModelGraph

    load = cache(partial(load_trained, plan, options))
    accuracy = facts["row"]["test accuracy (%)"]
    first_layer = {
        vit_tf.ViT: ("patch_kernel", "position_embedding"),
        vit_tf.HybridViT: ("patch_kernel", "position_embedding"),
        vit_tf.Mixer: ("patch_kernel",),
    }.get(plan.model, ())
    taps = tuple(facts["taps"])
    features_facts = ModelFacts(
        plan.name, taps, structure=ModelGraph.from_names(taps), grid=facts["grid"]
    )
    # The head of a model that was pre-trained on masked patches is untrained.
    class_names = common.describe_data(data_options(plan, options)).class_names
    return StudyModel(
        plan.name,
        plan.role,
        facts["key"],
        LazyFeatures(features_facts, lambda: as_features(load())),
        plan.detail,
        origin,
        None if accuracy is None else (accuracy / 100, facts["row"]["tested on"]),
        class_names=() if accuracy is None else tuple(class_names),
        supervision="reconstruction" if plan.role == "masked" else "labels",
        training_images=options.sizes["train"],
        training_flops=lambda: training_flops(plan, options, load()),
        configuration={
            "class": plan.model.__name__,
            "config": plan.config,
            "recipe": dataclasses.asdict(plan.recipe),
        },
        keras_model=load,
        first_layer=first_layer,
    )


def training_flops(plan: ModelPlan, options: Options, model: VisionModel) -> float:
    """Floating-point operations of the training of a plan and of those that it starts from."""
    from vit_tf.features.flops import training_flops as flops_of_images

    images = options.sizes["train"] * plan.share * plan.recipe.epochs
    before = training_flops(plan.start, options, model) if plan.start else 0
    return before + flops_of_images(vit_tf.count_flops(model), images)


def untrained(model: StudyModel, options: Options, seed: int) -> Callable[[], keras.Model]:
    """Function that makes a copy of a model of the study with randomly initialized weights."""
    path = options.out / "models" / f"{model.slug}.keras"
    return lambda: vit_tf.reinitialize(vit_tf.load_model(path), seed)


def load_data(
    options: Options,
    batch_size: int,
    splits: Sequence[str] = ("train", "validation", "test"),
    **changes: Any,
) -> Sequence[tf.data.Dataset]:
    """Batches of the splits; each call restarts the order of the training images."""
    arguments = {
        "image_size": options.image_size,
        "take": {split: options.sizes[split] for split in splits if split in options.sizes},
        "seed": options.seed,
        "data_dir": options.data_dir,
        **common.chosen_classes(options),
    }
    return vit_tf.data.load(
        options.data, batch_size=batch_size, splits=splits, **arguments | changes
    )


def model_key(plan: ModelPlan, options: Options) -> str:
    """`fingerprint` of everything that the trained model of a plan depends on."""
    from vit_tf.analysis.engine.store import fingerprint

    options = data_options(plan, options)
    if getattr(options, "digests", None) is None:  # once for all plans
        options.digests = [split.identify() for split in load_data(options, options.batch_size)]
    source = [options.data, options.image_size, options.sizes, options.digests]
    source += common.chosen_classes(options).values()
    return fingerprint(plan.facts, source, options.batch_size, options.seed)


def model_path(plan: ModelPlan, options: Options) -> Path:
    """The file of the trained model of a plan."""
    return options.out / "models" / f"{plan.slug}.keras"


def load_facts(plan: ModelPlan, options: Options) -> ModelFacts | None:
    """What `train_plan` returns for a model that was already trained; None if it was not."""
    from vit_tf.analysis.engine.store import fingerprint
    from vit_tf.data.files import digest_files

    path = model_path(plan, options)
    note = path.with_suffix(".json")
    if not (note.is_file() and path.is_file()):
        return None
    weights = digest_files([path])
    try:
        facts = json.loads(note.read_text(encoding="utf-8"))
        key, digest, *described = (facts[n] for n in ("key", "digest", "row", "taps", "grid"))
        is_intact = digest == fingerprint(described, weights)
    except (ValueError, KeyError, TypeError):
        is_intact = False
    if not is_intact:
        log.warning("%s or its .json file was changed: %s is trained again", path, plan.name)
        return None
    if key != model_key(plan, options):
        return None
    grid = facts["grid"] and vit_tf.TokenGrid(**facts["grid"])
    return facts | {"grid": grid, "key": fingerprint(key, weights)}


def train_plan(
    plan: ModelPlan, options: Options, callbacks: Sequence[keras.callbacks.Callback] = ()
) -> ModelFacts:
    """Facts about the trained model of a plan, which is trained now unless it already was."""
    from vit_tf.analysis.engine.store import fingerprint
    from vit_tf.data.files import digest_files
    from vit_tf.training import checkpointing

    if facts := load_facts(plan, options):
        return facts
    path, key = model_path(plan, options), model_key(plan, options)
    row, model = _train_model(plan, options, key, callbacks)
    note = path.with_suffix(".json")
    note.unlink(missing_ok=True)  # a run that stops here must not leave it next to another model
    checkpointing.write_on_chief(path, model.save)
    grid = model.token_grid and dataclasses.asdict(model.token_grid)
    facts = {"key": key, "row": row, "taps": model.taps, "grid": grid}
    facts["digest"] = fingerprint([row, model.taps, grid], digest_files([path]))
    text = json.dumps(facts, indent=1)
    checkpointing.write_on_chief(note, lambda partial: partial.write_text(text, encoding="utf-8"))
    return cast(ModelFacts, load_facts(plan, options))


def _train_model(
    plan: ModelPlan, options: Options, key: str, callbacks: Sequence[keras.callbacks.Callback]
) -> tuple[Row, VisionModel]:
    """The line of a plan in the report's table, and its trained model."""
    import keras

    start = time.perf_counter()
    keras.utils.set_random_seed(options.seed + plan.seed)
    train, validation, test = training_data(plan, options)
    is_masked = isinstance(plan.recipe, vit_tf.Pretraining)
    with vit_tf.distribute.strategy(options.strategy).scope():
        model = plan.model(**plan.config, name=plan.slug)
        description = common.describe_data(data_options(plan, options))
        model.class_names = None if is_masked else description.class_names
        if plan.start is not None:
            source = load_trained(plan.start, options)
            for old, new in zip(source.layers, model.layers, strict=True):
                if new is not model.head:
                    new.set_weights(old.get_weights())
        directory = options.out / "training" / f"{plan.slug}-{key}"
        trained = vit_tf.MaskedPatchPrediction(model) if is_masked else model
        if is_masked:
            masks = {"grid": model.token_grid, "seed": options.seed + plan.seed}
            train = vit_tf.data.mask_patches(train, **masks)
            validation = vit_tf.data.mask_patches(validation, fixed=True, **masks)
        vit_tf.train(
            trained, plan.recipe, train, validation, directory, verbose=0, callbacks=callbacks
        )
        accuracy = None  # its head is untrained
        if not is_masked:
            silent = cast(Any, 0)  # Keras declares a text
            accuracy = model.evaluate(test, verbose=silent, return_dict=True)["accuracy"]
    row = {
        "model": plan.name,
        "parameters": model.count_params(),
        "test accuracy (%)": None if accuracy is None else round(100 * accuracy, 2),
        "tested on": None if accuracy is None else sum(len(labels) for _, labels in test),
        "epochs": plan.recipe.epochs,
        "training (s)": round(time.perf_counter() - start),
    }
    return row, model


def training_data(plan: ModelPlan, options: Options) -> list[tf.data.Dataset]:
    """The images that a plan is trained, validated and tested on.

    A fraction f of the images is repeated 1 / f times in an epoch: models trained on less data get
    as many updates as those trained on all, so that a difference is due to the data.
    """
    options = data_options(plan, options)
    count = max(1, round(plan.fraction * options.sizes["train"]))
    take = options.sizes | {"train": count}
    data = load_data(options, min(options.batch_size, count), take=take)
    if plan.half is not None:
        data = [_half_of_classes(split, plan, options.batch_size) for split in data]
    train, *others = data
    return [train.repeat(options.far_repeats if plan.is_far else plan.repeats), *others]


def data_options(plan: ModelPlan, options: Options) -> Options:
    """The options of the study, with the data that a plan is trained on.

    On a far domain there are as many updates as in fine-tuning on the other half of the classes, so
    that a difference is due to the domain.
    """
    if not plan.is_far:
        return options
    if not hasattr(options, "of_far_domain"):
        changes = {"data": options.far_data, "classes": None, "take": None, "digests": None}
        far = argparse.Namespace(**vars(options) | changes)
        sizes = report_commands.subset_sizes(far, common.describe_labelled(far))
        half = options.sizes["train"] // 2
        count = min(half, sizes["train"])
        far.sizes, far.far_repeats = sizes | {"train": count}, round(half / count)
        options.of_far_domain = far
    return options.of_far_domain


def _half_of_classes(data: tf.data.Dataset, plan: ModelPlan, batch_size: int) -> tf.data.Dataset:
    """The images of the first or the second half of the classes, with unchanged labels."""
    import tensorflow as tf

    middle, first = plan.config["num_classes"] // 2, plan.half == 0
    images = data.unbatch().filter(lambda image, label: (label < middle) == first)
    batches = images.batch(batch_size)
    count = sum(1 for _ in batches)  # Keras warns of data of unknown length as if they had run out
    return batches.apply(tf.data.experimental.assert_cardinality(count))


def train_in_parallel(plans: Sequence[ModelPlan], options: Options, progress: Progress) -> None:
    """Trains the models that are not yet trained, several at a time, the longest first."""
    missing = [plan for plan in plans if not load_facts(plan, options)]
    jobs = min(options.jobs or default_jobs(), len(missing))
    if jobs < 2:
        return
    expected = expected_seconds(missing, options)
    missing.sort(key=lambda plan: -expected[plan.name])
    context = multiprocessing.get_context("spawn")
    threads, reports = max(1, (os.cpu_count() or 1) // jobs), context.Queue()
    running = {}
    with ProcessPoolExecutor(jobs, context, _start_process, (threads, reports)) as processes:
        try:
            while missing or running:
                # A model that starts from another is trained after it.
                untrained_names = {plan.name for plan in [*missing, *running.values()]}
                for plan in missing[:]:
                    if plan.start is None or plan.start.name not in untrained_names:
                        running[processes.submit(train_in_process, plan, options)] = plan
                        missing.remove(plan)
                finished, _ = wait(running, timeout=0.2, return_when=FIRST_COMPLETED)
                while not reports.empty():
                    progress(*reports.get())
                for future in finished:
                    future.result()
                    log.info("%s is trained", running.pop(future).name)
        except BaseException:
            # Their runs save their states; otherwise the pool would wait for them.
            for process in multiprocessing.active_children():
                process.terminate()
            raise


def train_in_process(plan: ModelPlan, options: Options) -> None:
    """Train one model in a process that reports its progress to the one that started it."""

    def report(done: float, total: float) -> None:
        _reports.put((plan.name, done, total))

    train_plan(plan, options, [report_commands.progress_callback(report)])
    report(1, 1)


def default_jobs() -> int:
    """How many models to train in parallel: one where an accelerator does the work."""
    import tensorflow as tf

    cores = os.cpu_count() or 1
    alone = cores == 1 or tf.distribute.has_strategy() or tf.config.list_physical_devices("GPU")
    return 1 if alone else min(cores + 1, MAX_JOBS)


_reports: multiprocessing.Queue  # to the process that started this one, for training


def _start_process(threads: int, reports: multiprocessing.Queue) -> None:
    """Limits the threads of a new process, which ends with the one that started it."""
    import tensorflow as tf

    global _reports
    _reports = reports
    tf.config.threading.set_intra_op_parallelism_threads(threads)
    tf.config.threading.set_inter_op_parallelism_threads(threads)
    threading.Thread(target=_exit_with_parent, daemon=True).start()


def _exit_with_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
    os._exit(1)
