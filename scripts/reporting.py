"""What the scripts that write a report share: the images they read, the report's common parts."""

import contextlib
import logging
import os
import platform
from datetime import date
from functools import partial
from importlib.metadata import version
from pathlib import Path

import vit_tf
from vit_tf.remote import without_password
from vit_tf.scripts import annotations, common, option_groups
from vit_tf.scripts.progress import lines_while_working
from vit_tf.training.locks import only_process

LARGEST = {"train": 24_000, "validation": 2_000, "test": 2_000}  # of data other than the digits
GALLERY = 2_000  # training images that neighbours are looked for among, at most


def run_logged(parse, run, arguments=None):
    """Parse and run with progress on the standard error; the exit status."""
    logging.basicConfig(format="%(asctime)s %(message)s", datefmt="%H:%M:%S")
    logger = logging.getLogger("vit_tf")
    logger.setLevel(logging.INFO)

    def run_with_lines(options):
        with lines_while_working(logger):
            return run(options)

    return common.run_script(parse, run_with_lines, arguments, results_kept)


def results_kept(options):
    """What a stopped run leaves in a report's folder, and how to go on."""
    kinds = {"trained model": "models/*.json", "result": "results/*.nc"}
    counts = {what: len(list(options.out.glob(files))) for what, files in kinds.items()}
    words = [f"{count} {what}{'s'[: count > 1]}" for what, count in counts.items() if count]
    found = " and ".join(words)
    if not found:
        return common.NOTHING_KEPT
    return f"{options.out} holds {found}; the same command goes on from there"


def add_figures(parser):
    """Adds the options that choose figures."""
    add = parser.group("figures")
    numbers = "numbers of the papers' figures, such as 1,7,C.4 (default: all that apply)"
    add("--figures", metavar="NUMBERS", default="", help=numbers)
    add("--list", action="store_true", help="list the figures, and stop")


def add_sampling(parser):
    """Adds the options of the images that are measured."""
    add = parser.group("data")
    option_groups.add_take_test(add, "all, of large data 2,000")
    add("--shots", type=int, default=10, help="images of each class, for probes")
    annotations.add_annotations(parser.group("annotated images"))


def add_run(parser, folder):
    """Adds the options of a run that writes a report."""
    add = parser.group("run")
    add("--out", type=Path, metavar="FOLDER", help=f"for the report (default: {folder})")
    add("--seed", type=int, default=0, help="of all that is random")
    option_groups.add_strategy(add)


@contextlib.contextmanager
def strategy_in(folder, name):
    """The scope of a strategy, while no other run works in a report's folder, which is made.

    Of several workers, which share the folder, only the chief may write there.
    """
    from vit_tf.analysis.report.page import require_own

    require_own(folder / "report.html")
    strategy = vit_tf.distribute.strategy(name)
    alone = only_process(folder) if vit_tf.distribute.is_chief() else contextlib.nullcontext()
    with alone, strategy.scope():
        yield
        vit_tf.distribute.wait_for_workers()


def figure_numbers(options):
    """The numbers that `--figures` names."""
    return [number for number in options.figures.split(",") if number]


def list_figures(figures, roles=True):
    """A table of figures and of the study's models that they need, as text."""
    rows = {}
    for figure in figures:
        needed = rows.setdefault((",".join(figure.choices), figure.shows), {})
        needed |= dict.fromkeys(figure.models.all_roles)
    if not roles:
        return "\n".join(f"{numbers:24} {shows}" for numbers, shows in rows)
    lines = ["figures                  what they show                                       models"]
    lines += [f"{n:24} {shows:52} {', '.join(needed)}" for (n, shows), needed in rows.items()]
    return "\n".join(lines)


def subset_sizes(options, description):
    """How many examples of each split to use: as asked for, by default all or the largest."""
    sizes = dict(description.num_examples)
    if "validation" not in sizes:
        sizes["validation"] = round(0.1 * sizes["train"])
        sizes["train"] -= sizes["validation"]
    if options.data != "digits":
        sizes = {split: min(count, LARGEST[split]) for split, count in sizes.items()}
    asked = {"train": options.take, "test": options.take_test}
    return sizes | {split: count for split, count in asked.items() if count is not None}


def measured_sizes(options, description, split):
    """How many images of a split are measured, as a dict: a batch where its size is not known."""
    from vit_tf.analysis.study.data import MOST_IN_BATCH

    counts = description.num_examples
    there = sum(counts.values()) if split == "all" else counts.get(split)
    tested = options.take_test or there
    if tested and not options.take_test and options.data != "digits":
        tested = min(tested, LARGEST["test"])
    return {"test": tested or MOST_IN_BATCH}


def read_data(options, description, split="test", **images):
    """The images that the measurements read.

    Args:
        options: of the command line, and `sizes`, a dict from split to the number of its examples.
        description: the `vit_tf.data.Description` of the data.
        split: what is measured. Nothing is fitted where that is `"all"`, as training images are
            among it, nor where there are none or no labels.
        **images: what tells `vit_tf.data.load` the size of the images.
    """
    from vit_tf.analysis.study.data import FIELD_IMAGES, MOST_IN_BATCH, Data, batch_size_of

    classes = common.chosen_classes(options)
    source = {"seed": options.seed, "data_dir": options.data_dir, **classes, **images}
    load = partial(vit_tf.data.load, options.data, **source)
    tested = options.sizes["test"]
    size = batch_size_of(tested)
    (test,) = load(splits=(split,), batch_size=size, take=tested)
    (few,) = load(splits=(split,), batch_size=FIELD_IMAGES, take=min(FIELD_IMAGES, tested))
    pixels = tuple(few.element_spec[0].shape[1:3])
    annotated, facts = annotations.read_annotations(options, pixels, images.get("preprocessing"))
    told = {"batch": size, "field_images": FIELD_IMAGES, "size": pixels}
    told |= {
        "data": without_password(str(options.data)),
        "seed": options.seed,
        "test": test.identify(),
    }
    if not can_fit(description, split):
        return Data(test, few, facts=told, optional=annotated, optional_facts=facts)
    train, held_out = vit_tf.data.few_shot(
        options.data,
        options.shots,
        batch_size=MOST_IN_BATCH,
        held_out=options.shots,
        **source,
    )
    known = min(description.num_examples["train"], GALLERY)
    (gallery,) = load(splits=("train",), batch_size=MOST_IN_BATCH, take=known)
    return Data(
        test,
        few,
        train,
        held_out,
        description.num_classes,
        told | {"train": train.identify(), "validation": held_out.identify()},
        {"gallery": lambda: gallery, **annotated},
        {"gallery": {"gallery": gallery.identify()}, **facts},
    )


def can_fit(description, split):
    """Whether there are labelled training images that are not among those of a split."""
    labelled = description.num_classes and "train" in description.num_examples
    return bool(labelled) and split not in ("train", "all")


def example_setup(options, split, size, description):
    """Python code that loads the images of a report, for the code of its figures."""
    data = without_password(str(options.data))
    shared = [f"image_size={tuple(size)}"]
    if options.data_dir:
        shared.append(f"data_dir={str(options.data_dir)!r}")
    shared = ", ".join(shared)
    load = f"data.load({data!r}, splits=({split!r},), take={options.sizes['test']}, {shared})"
    lines = [f"(images,) = {load}"]
    if can_fit(description, split):
        lines.append(f"train, _ = data.few_shot({data!r}, {options.shots}, {shared})")
    return "\n".join(lines)


def provenance(options, description):
    """What it takes to repeat a report."""
    packages = ("tensorflow", "keras", "numpy", "xarray", "matplotlib")
    return {
        "command": options.command,
        "data": {"name": without_password(options.data), "classes": description.num_classes}
        | {f"{split} images": count for split, count in description.num_examples.items()},
        "options": _chosen(options),
        "versions": {"python": platform.python_version(), "vit_tf": vit_tf.__version__}
        | {p: version(p) for p in packages},
        "processor": f"{platform.machine()}, {os.cpu_count()} cores",
        "date": date.today().isoformat(),
    }


def _chosen(options):
    """The options that have a value, by their flags, as texts."""
    texts = {}
    for name, value in vars(options).items():
        if name == "command":
            continue
        if isinstance(value, dict):  # numbers of images
            value = ", ".join(f"{count} {split}" for split, count in value.items())
        elif isinstance(value, list | tuple):
            value = " ".join(map(str, value))
        if value not in (None, "", False):
            texts[name.replace("_", " ")] = without_password(str(value))
    return texts
