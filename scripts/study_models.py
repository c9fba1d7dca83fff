"""The models of the study: which there are, what training them takes, their part in figures."""

import dataclasses
import logging
import math
from functools import cache, cached_property, partial

import vit_tf
from vit_tf.analysis.study.models import StudyModel, slug
from vit_tf.analysis.study.opening.study_model import baselines_of
from vit_tf.names import joined
from vit_tf.scripts.progress import told_to
from vit_tf.scripts.study_training import model_path, trained

log = logging.getLogger("vit_tf.study")

NUM_LAYERS = 6
FRACTIONS = (0.03, 0.1, 0.3)


@dataclasses.dataclass(frozen=True)
class Plan:
    """One model of the study: what it is, how it is trained and its part in the figures.

    Attributes:
        name: as figures and tables show it.
        role: its part: "vit", "gap", "resnet" or "mixer"; "without" (the skips of a block);
            "seed" (other first weights), "fraction" (of the training images), "before" and
            "after" (fine-tuning).
        model, config: its class and the arguments of that.
        recipe: the `vit_tf.Recipe`.
        detail: what sets it apart from others of its role: the block, the seed, the fraction.
        of: name of the plan that it is compared with.
        seed: added to the study's seed for the first weights.
        fraction: share of the training images.
        half: which half of the classes it is trained and tested on, 0 or 1; None for all.
        start: plan whose trained weights it starts from, its head apart.
    """

    name: str
    role: str
    model: type
    config: dict
    recipe: vit_tf.Recipe
    detail: str | int | float | None = None
    of: str | None = None
    seed: int = 0
    fraction: float = 1.0
    half: int | None = None
    start: "Plan | None" = None

    @property
    def slug(self):
        """The name as a part of file names."""
        return slug(self.name)

    @cached_property
    def facts(self):
        """All that the trained model depends on, besides the data and the study's seed."""
        start = self.start and self.start.facts
        recipe = dataclasses.asdict(self.recipe)
        changes = [self.seed, self.fraction, self.half, start]
        return [self.model.__name__, self.config, recipe, *changes]


def make_plans(options, num_classes):
    """All models of the study, those that others start from or are compared with first."""
    size = options.image_size
    shared = {"image_shape": (size, size, 3), "num_classes": num_classes}
    sizes = {"patch_size": size // 8, "num_layers": NUM_LAYERS, "hidden_dim": 64}
    vit = shared | sizes | {"num_heads": 4, "mlp_dim": 256, "pooling": "cls"}
    mixer = shared | sizes | {"tokens_mlp_dim": 32, "channels_mlp_dim": 256}
    bit = shared | {"units": (2, 2, 2), "width_factor": 0.5, "stem": "imagenet"}

    def recipe(epochs, learning_rate=2e-3):
        return vit_tf.Recipe(
            epochs=epochs,
            learning_rate=learning_rate,
            warmup_epochs=epochs / 10,
            weight_decay=0.05,
            label_smoothing=0.1,
            shift=options.shift,
        )

    long, short = recipe(options.epochs), recipe(options.bit_epochs)
    plans = [
        Plan("ViT-CLS", "vit", vit_tf.ViT, vit, long),
        Plan("ViT-GAP", "gap", vit_tf.ViT, vit | {"pooling": "gap"}, long),
        Plan("BiT", "resnet", vit_tf.BiT, bit, short),
        Plan("Mixer", "mixer", vit_tf.Mixer, mixer, long),
    ]
    cls, resnet = plans[0], plans[2]

    def variant(plan, name, role, detail, **changes):
        changes |= {"role": role, "detail": detail, "of": plan.name}
        return dataclasses.replace(plan, name=f"{plan.name} {name}", **changes)

    for block in ("block01", "block03", "block05"):
        config = vit | {"without_skips": (block,)}
        name = f"without skips in {block}"
        plans.append(variant(cls, name, "without", block, config=config))
    for fraction in FRACTIONS:
        name = f"on {100 * fraction:g}% of the data"
        plans.append(variant(cls, name, "fraction", fraction, fraction=fraction))
    for seed in range(1, options.seeds):
        for plan in (cls, resnet):
            plans.append(variant(plan, f"seed {seed}", "seed", seed, seed=seed))
    before = variant(cls, "on half the classes", "before", None, half=0)
    tuning = recipe(math.ceil(options.epochs / 2), learning_rate=5e-4)
    name, changes = "fine-tuned on the others", {"recipe": tuning, "half": 1, "start": before}
    after = dataclasses.replace(variant(cls, name, "after", None, **changes), of=before.name)
    return [*plans, before, after]


def needed(plans, figures):
    """The plans that figures need: those of their roles, and what these are variants of."""
    roles = {role for figure in figures for role in figure.models.all_roles}
    chosen = [plan for plan in plans if plan.role in roles]
    origins = {plan.of for plan in chosen if plan.role != "before"}
    origins |= {plan.start.name for plan in chosen if plan.start}
    return [plan for plan in plans if plan in chosen or plan.name in origins]


# On two CPU cores with trainings side by side: to trace and compile one, for 1,000 images of 32
# pixels in an epoch of a transformer and of the ResNet, and for each model that is measured and for
# its pictures.
COMPILING, MEASURING, DRAWING = 15, 50, 16
PER_THOUSAND = {vit_tf.BiT: 4.0}
OF_OTHERS = 6.0


def expected_seconds(plans, options):
    """How long each training, the measurements and the pictures may take on two cores: dict."""
    pixels = (options.image_size / 32) ** 2
    stages = {}
    for plan in plans:
        images = plan.fraction**0.5 * options.sizes["train"] * (1 if plan.half is None else 0.5)
        each = PER_THOUSAND.get(plan.model, OF_OTHERS) * pixels
        stages[plan.name] = COMPILING + plan.recipe.epochs * images / 1000 * each
    return stages | {"measuring": MEASURING * len(plans), "drawing": DRAWING * len(plans)}


def outline(plans, options, seconds):
    """What a study will do and how long it may take, as a sentence."""
    names = joined([plan.name for plan in plans])
    sizes = options.sizes
    return (
        f"{names} {'are' if len(plans) > 1 else 'is'} trained on {sizes['train']} images and "
        f"measured on {sizes['test']}, unless they were before: about "
        f"{max(1, round(seconds / 60))} minutes on two slow cores. Results: {options.out}"
    )


def train_all(plans, options, progress):
    """The models of these plans, trained: list of `StudyModel`, and rows about them."""
    models, rows = {}, []
    for number, plan in enumerate(plans, start=1):
        log.info("[model %d/%d] %s", number, len(plans), plan.name)
        progress(plan.name, 0, 1, f"training of {plan.name}")
        found = trained(plan, options, [told_to(partial(progress, plan.name))])
        progress(plan.name, 1, 1)
        log.info("%s: %s %% of the test images", plan.name, found["row"]["test accuracy (%)"])
        models[plan.name] = under_study(plan, found, models.get(plan.of), options)
        rows.append(found["row"])
    baselines = [
        baseline
        for model in models.values()
        if model.role == "vit"
        for baseline in baselines_of(model, untrained(model, options), options.seed)
    ]
    return [*models.values(), *baselines], rows


def under_study(plan, found, origin, options):
    """A trained model of the study as a `StudyModel`, which is loaded when it is first needed.

    Args:
        plan: the `Plan`.
        found: what `trained` returned.
        origin: the `StudyModel` that it is a variant of, or None.
        options: of the command line.
    """
    load = _loader(plan, options)
    first_layer = {
        vit_tf.ViT: ("patch_kernel", "position_embedding"),
        vit_tf.Mixer: ("patch_kernel",),
    }.get(plan.model, ())
    return StudyModel(
        plan.name,
        plan.role,
        found["key"],
        tuple(found["taps"]),
        found["grid"],
        lambda *patterns: vit_tf.submodel(load(), *patterns),
        plan.detail,
        origin,
        (found["row"]["test accuracy (%)"] / 100, found["row"]["tested on"]),
        configuration={
            "class": plan.model.__name__,
            "config": plan.config,
            "recipe": dataclasses.asdict(plan.recipe),
        },
        **{name: lambda name=name: getattr(load(), name) for name in first_layer},
    )


def untrained(model, options):
    """Function that makes features of a model of the study with weights as before any training."""
    path = options.out / "models" / f"{model.slug}.keras"
    return lambda: partial(
        vit_tf.submodel, vit_tf.fresh_copy(vit_tf.load_model(path), options.seed)
    )


def _loader(plan, options):
    return cache(partial(vit_tf.load_model, model_path(plan, options)))
