"""Reports: what applies to models is planned, measured, drawn, evaluated and written."""

import logging
import os
from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType, SimpleNamespace
from typing import Any

import numpy as np
import tensorflow as tf
import xarray as xr

from vit_tf.common.errors import explain
from vit_tf.common.names import format_list, join_words
from vit_tf.data.any_images import ImagesLike, as_images, is_raw
from vit_tf.data.batches import BatchRule, LazyRows, batch_arrays
from vit_tf.data.known_forms import in_known_form
from vit_tf.data.preprocessing import Preprocessing, check_values
from vit_tf.features.conversion import ModelLike, facts_of, name_models
from vit_tf.features.features import ModelFacts
from vit_tf.features.preprocessed import to_common_range

from ..engine.class_scores import as_probabilities
from ..engine.pictures import THUMBNAIL, as_pictures
from ..engine.results import Results
from ..engine.store import has_own_digest, load_unchanged, save
from ..engine.stream import first_batch
from ..figures.data import TEST_RULE, TRAIN_RULE, Data, make_data
from ..figures.figure import (
    MAIN,
    Figure,
    Picture,
    by_figure,
    describe_figure,
    lookup_figures,
    plan_pictures,
    select_pictures,
    without_failures,
)
from ..figures.measure import measure_all
from ..figures.models import (
    LoadedModel,
    StudyModel,
    open_model,
    prepare_models,
    require_distinct,
    shared_framing,
)
from ..figures.supervision import require_supervisions, supervision_of, training_images_of
from ..plots.similarity_plots import plot_runs
from ..plots.style import figure_of
from ..statistics.claims import Outcome, Tested, images_to_decide
from ..statistics.estimates import accuracy_of
from .claim_rows import brief, count_sentence
from .drawing import Drawer, draw, draw_measured
from .first_screen import (
    Comparison,
    LeftOut,
    compare,
    draw_overview,
    main_results,
    model_colours,
)
from .page import (
    FurtherFigures,
    ModelSummary,
    Prediction,
    ReportFigure,
    Section,
    ShownImage,
    in_frame,
    require_own,
    write_report,
)
from .printed_code import FITTED, Setup, example_code
from .rendering import drawing_process, save_figure
from .scorecard import (
    Row,
    claims_over_runs,
    evaluate,
    scorecard_dataset,
    scorecard_of_runs,
    untrained_measurements,
    with_measured_claims,
)

log = logging.getLogger(__name__)

PLACE = Path("results", "scorecard.nc")  # in the folder of a report


@dataclass(frozen=True)
class Report:
    """A report that was written to a file; a notebook displays it in a frame.

    Attributes:
        path: path of the HTML file.
        results: dict from result name to labelled result.
        claims: the scorecard, a list with a `Tested` or a `NotTested` for each claim.
        left_out: the figures that are missing, as a list of pairs: what the figure shows, and a
            list of sentences that give the reasons.
    """

    path: Path
    results: dict[str, Any] = field(repr=False)
    claims: list[Row] = field(repr=False)
    left_out: LeftOut = field(repr=False)

    def _repr_html_(self) -> str:
        return in_frame(self.path)


def write_figures(
    figures: Sequence[Figure],
    models: list[StudyModel],
    data: Data,
    folder: str | Path,
    *,
    # Which of the figures to draw, as for `select_pictures`, and a function from numbers of figures
    # to the command that writes the report with these.
    numbers: Sequence[str] = (),
    command: Callable[[Sequence[str]], str] | None = None,
    elsewhere: str = "",  # how to get the figures and claims of models that are missing here
    # Called before each step with "measuring" or "drawing", how many steps of that are done, of how
    # many, and what is next, in words.
    progress: Callable[[str, int, int, str], None] | None = None,
    notes: LeftOut | tuple[()] = (),  # further entries of what is not shown, as `Report.left_out`
    models_table: Sequence[dict[str, Any]] = (),  # as `models` of `write_report`
    timings: Sequence[dict[str, Any]] = (),  # rows that come before those of the passes
    # For the code of figures: what `vit_tf.load` opens, by name of the model, and the lines that
    # load the images.
    sources: Mapping[str, str] = MappingProxyType({}),
    setup: Setup = MappingProxyType(FITTED),
    introduction: str = "",  # of the page; by default what was measured
    **page: Any,  # what else `write_report` takes: title and provenance
) -> Report | None:
    """The report of these models: the figures that apply, with the scorecard.

    Results are kept in `folder / "results"`, pictures in `folder / "figures"`: a second call with
    nothing changed measures and draws nothing. A worker that is not the chief only measures, and
    returns None. What fails is listed with its reason. Raises a `ValueError` if no figure applies.
    """
    from vit_tf.distribute import is_chief

    folder = Path(folder)
    pictures, left_out = plan_pictures(figures, models, data, elsewhere)
    pictures, later = select_pictures(pictures, numbers)
    measuring = partial(progress, "measuring") if progress else None
    wanted = [m for picture in pictures for m in picture.measurements.values()]
    drawn_figures = figures
    if later:
        drawn_figures = list({id(picture.figure): picture.figure for picture in pictures}.values())
        figures = with_measured_claims(figures, wanted)
    with drawing_process(len(pictures) if is_chief() else 0) as process:
        drawer = Drawer(folder, process, [model.name for model in models if model.base is None])
        start_to_draw = partial(draw_measured, by_figure(pictures), drawer=drawer)
        claims = [claim for figure in figures for claim in figure.claims]
        nulls = untrained_measurements(drawn_figures, claims, models, data)
        results, problems = measure_all(
            [*wanted, *nulls],
            data,
            folder / "results",
            measuring,
            start_to_draw if process else None,
        )
        pictures, failed = without_failures(pictures, results, problems)
        left_out = [*left_out, *failed, *notes, *undefined(results)]
        if left_out:
            count = len(left_out)
            log.info("%d figures are not shown, or not for every model: see the report", count)
        if not pictures:
            reasons = " ".join(reason for _, reasons in left_out for reason in reasons)
            raise ValueError(f"No figure applies to these models: {reasons}")
        if not is_chief():
            return None
        results = {name: result for name, result in results.items() if result is not None}
        drawn = draw(
            by_figure(pictures),
            results,
            folder,
            partial(progress, "drawing") if progress else None,
            partial(example_code, sources=sources, setup=setup),
            drawer,
        )
        left_out += [
            (picture.full_title, [drawer.failures[picture.name]])
            for picture in pictures
            if picture.name in drawer.failures
        ]
    rows = _evaluated(figures, models, results, elsewhere, data, folder / "results")
    differences, failed = compare(pictures, models, results)
    left_out += failed
    compared = [model for model in models if model.base is None]
    overview, failed = draw_overview(pictures, compared, results)
    left_out += failed
    images, failed = _shown_images(compared, data)
    left_out += failed
    chapters, notes = _not_measured(figures, left_out)
    passes = {result.attrs["pass"]: result.attrs["seconds"] for result in results.values()}
    if not introduction:
        counts = [x.attrs["examples"] for x in results.values() if "examples" in x.attrs]
        height, width = tf.nest.flatten(data.few.element_spec)[0].shape[1:3]
        count = f"{max(counts):,} " if counts else ""
        introduction = f"Measured on {count}images of {height} x {width} pixels."
    # The first picture that is shown of the figure that tests a claim.
    shown = {panel.name for _, figure in drawn for panel in figure.panels}
    shown |= {figure.name for _, figure in drawn}
    figures_of_claims = {
        claim.name: picture.name
        for picture in reversed(pictures)
        if picture.name in shown
        for claim in picture.figure.claims
    }
    path = write_report(
        folder / "report.html",
        introduction=introduction,
        summary=_summaries(compared, models_table),
        sentences=[*main_results(differences), *_enough_images(rows, results)],
        overview=overview,
        shown_images=images,
        differences=differences,
        scorecard=rows,
        figures_of_claims=figures_of_claims,
        sections=_sections(
            drawn,
            figures,
            differences=differences,
            claims=rows,
            not_measured=chapters,
            later=later,
            numbers=numbers,
            command=command,
        ),
        not_shown=notes,
        models=models_table,
        timings=[*timings, *_timings(passes)],
        **page,
    )
    return Report(path, results, rows, left_out)


def _evaluated(
    figures: Sequence[Figure],
    models: list[StudyModel],
    results: dict[str, Any],
    elsewhere: str,
    data: Data,
    folder: Path,
) -> list[Row]:
    """The claims that figures test, which are logged, and saved unless the same are there."""
    claims = evaluate(list(figures), models, results, elsewhere, data)
    if claims:
        path, scorecard = folder / PLACE.name, scorecard_dataset(claims, models, data)
        saved = load_unchanged(path)
        if saved is None or not saved.identical(scorecard):
            save(scorecard, path)
    for row in claims:
        if isinstance(row, Tested):
            names = ", ".join(row.models)
            log.info("%-18s %s (%s)", row.outcome.value, row.claim.statement, names)
    if claims:
        log.info("%s", count_sentence(claims))
    return claims


def make_report(
    models: Mapping[str, ModelLike] | Sequence[ModelLike] | ModelLike,
    images: ImagesLike,
    labels: Sequence[int] | None = None,
    folder: str | Path = "report",
    *,
    figures: str | int | Sequence[str | int] = MAIN,
    train: Any = None,
    num_classes: int | None = None,
    class_names: Sequence[str] = (),
    roles: dict[str, str] | None = None,
    supervision: dict[str, str] | None = None,
    taps: Sequence[str] = (),
    patch_size: int | None = None,
    prefix: int | None = None,
    optional: dict[str, Any] | None = None,
    title: str | None = None,
    introduction: str = "",
    seed: int = 0,
    untrained: int = 2,
) -> Report | None:
    """Writes an HTML report on models: the figures of papers that apply to them, and the scorecard.

    The scorecard tests the claims of these papers on the models.

    Examples:
        analysis.make_report(model, "photos/")  # writes report/report.html
        analysis.make_report({"ViT": vit, "ResNet": resnet}, test, train=train, folder="digits")

    Args:
        models: one model, a list of models, or a dict from name to model. A model is a built Keras
            model, a PyTorch module, the path of a model, the name of a pretrained model, or a
            function from images to a dict from layer to tensor. All models get the same images,
            with the pixel values that each model expects. If all models expect the same cropping
            and resizing, images are cropped and resized in this way. Otherwise, whole images are
            resized bilinearly.
        images: images for all measurements, as in `vit_tf.analysis`, with or without labels.
            Files and 8-bit values are preprocessed. Floats must already be preprocessed as the
            models expect.
        labels: labels of the images, if `images` has none: `make_report(model, x, y)`.
        folder: folder of the report, its figures and its results. An ending `.html` is removed from
            the name. If the report is written again for the same arrays and Keras models, the
            results are reused.
        figures: number of the figure to draw, such as `"W.3"`, or a list of numbers. `"main"`, the
            default, selects the leading figure of each chapter, and `"all"` all figures. The report
            lists the other figures, and `["main", "W.3"]` adds one of them. A claim is tested if
            the results that it needs are measured.
        train: labelled images, in any form that `images` may have. Probes are fitted on the images
            of `train`, and nearest neighbours are searched among these images. Without `train`, the
            report has no figures that need these images.
        num_classes: number of classes; labels start at 0. By default, it is inferred from `train`.
        class_names: names of the classes of `images`, in the order of their labels. By default, the
            class names of the data set or folder are used. If the data set or folder has no class
            names, the class names of the models are used, provided that all models that have class
            names have the same. For models with a score for each of these classes, the report
            includes the test accuracy and measurements that need class scores, such as the effect
            of each head.
        roles: dict from the name of a model to its role in the scorecard. The roles `"vit"`,
            `"gap"`, `"resnet"` and `"mixer"` are needed only if the model's layers do not determine
            the role. The following roles are for variants of these models:

            * `"fraction:0.1"`: trained on a tenth of the data
            * `"without:block03"`: without the skips of a block
            * `"seed:1"`, `"larger"` or `"hybrid"`: from another seed, larger, or a hybrid ViT
            * `"finer"` or `"positions"`: with smaller patches, or other position embeddings
            * `"masked"`: pre-trained by masked patch prediction
            * `"tuned"`: pre-trained by masked patch prediction, then fine-tuned
            * `"before"`, `"after"`: before and after fine-tuning
            * `"far"`: after fine-tuning on a far domain
        supervision: dict from the name of a model to how it was trained: `"labels"`,
            `"image-text"`, `"contrastive"`, `"self-distillation"` or `"reconstruction"`. For most
            released models, this package knows the supervision. For other models, the default is
            `"labels"` if the head of the model classifies the images better than chance. Claims
            about supervised ViTs are tested only on models that were trained with labels or
            image-text pairs.
        taps: shell patterns of the layers to measure, for models whose layers are unknown.
        patch_size, prefix: side of a patch in pixels, and number of prefix tokens (such as CLS),
            for models whose tokens are unknown.
        optional: dict from a key of `figures.data.OPTIONAL` to annotated images, or to a function
            that loads them. `figures.data.Data` describes the form of these images.
        title, introduction: title and introduction of the page.
        seed: seed of the random baselines.
        untrained: number of randomly initialized copies of each model: 0, 1 or 2. The mean effect
            on these copies is subtracted from the effect of a claim. One copy takes less time.
            Without copies, claims about the effect of training are not tested.

    Returns:
        The `Report`, which a notebook displays.

    Raises:
        ValueError: if no figure applies, if two model names give the same file name, or if class
            names are given without labels.
        ValueError: if images are floats, and either the models expect different values or the
            floats are far outside the expected range.
        ValueError: if the folder contains a report.html that this package did not write.
    """
    # `make_report(model, x, y, "report.html")` writes report/report.html.
    folder = Path(folder)
    folder = folder.with_suffix("") if folder.suffix == ".html" else folder
    require_own(folder / "report.html")
    if labels is not None:
        images = (images, np.asarray(labels))
    numbers = list(map(str, [figures] if isinstance(figures, str | int) else figures))
    chosen_figures = lookup_figures(numbers)
    given_models = name_models(models)
    sources = {
        name: str(model)
        for name, model in given_models.items()
        if isinstance(model, str | os.PathLike)
    }
    models = {name: open_model(model, images) for name, model in given_models.items()}
    require_distinct(models)
    for name, model in models.items():
        if not callable(model):
            raise ValueError(
                "Expected models, or functions from images to a dict from layer to tensor. "
                f"Received: {name}={model!r}"
            )
    facts = {name: facts_of(model) for name, model in models.items()}
    expectations = {name: each.expected_images for name, each in facts.items()}
    framing = shared_framing(list(expectations.values()))
    setup = dict(SETUP)
    if isinstance(images, np.ndarray | tuple):
        setup["images",] = "images = batch_test(images)"
    images, train = in_known_form(images), in_known_form(train)
    if any(given is not None and not is_raw(given) for given in (images, train)):
        expectations |= _one_range(facts, expectations)
    images = _in_common_range(images, framing, expectations, TEST_RULE)
    if train is not None:
        train = _in_common_range(train, framing, expectations, TRAIN_RULE)
    data = make_data(images, train, num_classes, optional or {})
    if class_names and not data.labelled:
        raise ValueError(
            "class_names= needs labels of two or more classes. Received: images without "
            "labels, or all with the same label"
        )
    class_names = class_names or _class_names(images, data, facts)
    given = {"taps": tuple(taps), "patch_size": patch_size, "prefix": prefix}
    supervision = {name: supervision_of(path) for name, path in sources.items()} | (
        supervision or {}
    )
    require_supervisions(supervision.values())
    opened = [
        LoadedModel(
            name,
            model,
            expectations[name],
            role=(roles or {}).get(name),
            supervision=supervision.get(name, ""),
            training_images=training_images_of(sources[name]) if name in sources else None,
            **given,
        )
        for name, model in models.items()
    ]
    study_models, rows, notes = prepare_models(
        opened, data, folder, class_names, seed, copies=untrained
    )
    return write_figures(
        chosen_figures,
        study_models,
        data,
        folder,
        numbers=numbers,
        command=lambda numbers: f"analysis.make_report(..., figures={list(numbers)})",
        notes=notes,
        title=title or f"What is inside {few_words(models)}",
        introduction=introduction,
        models_table=rows,
        sources=sources,
        setup=setup,
    )


SETUP = {
    (): "# models, images, train: the arguments of make_report; objects and others: optional[...]",
    **FITTED,
}


def _one_range(
    facts: dict[str, ModelFacts], expectations: dict[str, Preprocessing]
) -> dict[str, Preprocessing]:
    """What models expect of float images, which they are all given as they are.

    Those that declare nothing get the values of the others; a `ValueError` if these differ.
    """
    values = {
        name: {"mean": found.mean, "std": found.std, "channel_order": found.channel_order}
        for name, each in facts.items()
        if (found := each.preprocessing)
    }
    different = {tuple(each.items()): name for name, each in values.items()}
    if len(different) > 1:
        ranges = [f"{name!r}: {expectations[name].describe()}" for name in different.values()]
        raise ValueError(
            "The models expect different pixel values, so the same float images cannot serve "
            "all of them. Pass files or 8-bit images, which are prepared for each model. "
            f"Received: floats for {'; '.join(ranges)}"
        )
    if not values:
        return {}
    common = next(iter(values.values()))
    return {name: replace(expects, **common) for name, expects in expectations.items()}


def _in_common_range(
    images: Any,
    framing: Preprocessing,
    expectations: dict[str, Preprocessing],
    rule: BatchRule,
) -> Any:
    """Images with values in [-1, 1], which figures show and `LoadedModel.features` brings back.

    By the rule of calls, files and 8-bit images are prepared and floats are what models expect.
    """
    made: Any = as_images(images, framing, rule)
    name, expects = next(iter(expectations.items()))
    if is_raw(images) or expects == expects.framing():
        return made
    described: Any = SimpleNamespace(name=name, preprocessing=expects)
    check = partial(check_values, described)
    convert = partial(to_common_range, preprocessing=expects)
    # Rows that are too large for memory are prepared batch after batch.
    if isinstance(made[0] if isinstance(made, tuple) else made, LazyRows):
        made = batch_arrays(made, rule)
    if isinstance(made, tf.data.Dataset):
        check(first_batch(made))
        mapped = made.map(
            lambda images, *others: (convert(images), *others) if others else convert(images)
        )
        if hasattr(images, "class_names"):
            mapped.class_names = images.class_names
        return mapped
    pixels, *labels = made if isinstance(made, tuple) else (made,)
    check(pixels)
    return (convert(np.asarray(pixels)), *labels) if labels else convert(np.asarray(pixels))


def _enough_images(claims: list[Row], results: dict[str, Any]) -> list[str]:
    """How many images would decide the undecided claims, as a sentence, where this is known."""
    counts = [result.attrs["examples"] for result in results.values() if "examples" in result.attrs]
    needed = [images_to_decide(row) for row in claims if isinstance(row, Tested)]
    needed = [images for images in needed if images]
    if not counts or not needed:
        return []
    claims_in_words = f"{len(needed)} undecided claim{'s' if len(needed) > 1 else ''}"
    return [
        f"About {max(needed):,} images, instead of {max(counts):,}, would probably decide "
        f"{claims_in_words}, if each true effect is the end of its 80 % CI that is nearer to 0."
    ]


def few_words(names: Collection[str]) -> str:
    """The names of at most four models, or their number."""
    return join_words(names) if len(names) <= 4 else f"{len(names)} models"


def _timings(seconds: dict[str, float]) -> list[dict[str, Any]]:
    """Rows of the steps that take a second or more, and one of all others."""
    rows = [{"step": step, "seconds": each} for step, each in seconds.items() if each >= 1]
    others = [each for each in seconds.values() if each < 1]
    if others:
        step = f"{len(others)} other steps of less than 1 s each"
        rows.append({"step": step, "seconds": round(sum(others), 2)})
    return rows


def _class_names(images: Any, data: Data, facts: dict[str, ModelFacts]) -> tuple[str, ...]:
    """Names of the classes of the labels: those of the data, or those on which models agree."""
    if not data.labelled:
        return ()
    if names := getattr(images, "class_names", None):
        return tuple(names)
    declared = {tuple(each.class_names) for each in facts.values()}
    (declared,) = declared - {()} if len(declared - {()}) == 1 else [()]
    return declared if data.num_classes is None or data.num_classes <= len(declared) else ()


KINDS = {
    "vit": "ViT with a CLS token",
    "gap": "ViT with average pooling",
    "resnet": "convolutional network",
    "mixer": "MLP-Mixer",
}


def _summaries(models: list[StudyModel], rows: Sequence[dict[str, Any]]) -> list[ModelSummary]:
    """The models of the first screen: list of `ModelSummary`."""
    colours, rows_by_model = model_colours(models), {row["model"]: row for row in rows}
    summaries = []
    for model in models:
        row, role = rows_by_model.get(model.name, {}), model.scorecard_role or ""
        kind = row.get("kind") or ""
        words = KINDS.get(role, "vision model")
        summaries.append(
            ModelSummary(
                model.name,
                f"{words} ({kind})" if kind and kind not in words else words,
                {"gap": "vit"}.get(role, role or "other"),
                row.get("parameters"),
                accuracy_of(*model.accuracy, model.correct) if model.accuracy else None,
                colours[model.name],
            )
        )
    return summaries


MOST_SHOWN = 9  # images on the page, one row of a wide screen


def _shown_images(models: Sequence[StudyModel], data: Data) -> tuple[list[ShownImage], LeftOut]:
    """The first images with what models with known classes predict, and what failed."""
    batch = next(iter(data.few))
    images, given_labels = batch[:2] if isinstance(batch, tuple) else (batch, None)
    images = images[:MOST_SHOWN]
    predictions, failed = [[] for _ in images], []
    names, colours = (), model_colours(models)
    labels: list[int] = []
    if data.labelled and given_labels is not None:
        labels = given_labels[:MOST_SHOWN].numpy().tolist()
    for model in models:
        if not model.class_names:
            continue
        try:
            scores = model.select(model.scores_tap)(images)[model.scores_tap]
        except Exception as error:
            failed.append(("Predictions", [f"{model.name}: {explain(error, 'Predictions')}"]))
            continue
        is_labelled = model.accuracy is not None and bool(labels)
        names = model.class_names if is_labelled else names
        for index, shares in enumerate(as_probabilities(np.asarray(scores), model.has_sigmoids)):
            best = int(shares.argmax())
            predictions[index].append(
                Prediction(
                    model.name,
                    model.class_names[best],
                    float(shares[best]),
                    bool(best == labels[index]) if is_labelled else None,
                    colours[model.name],
                )
            )
    pictures = as_pictures(images, None, THUMBNAIL).numpy()
    words = [names[label] for label in labels] if names else [""] * len(pictures)
    return list(map(ShownImage, pictures, words, predictions)), failed


def _sections(
    drawn: Sequence[tuple[Any, ReportFigure]],
    figures: Sequence[Figure],
    *,
    differences: Sequence[Comparison],
    claims: Sequence[Row],
    not_measured: dict[Any, list[tuple[str, list[str]]]],
    later: Sequence[Picture],
    numbers: Sequence[str],
    command: Callable[[Sequence[str]], str] | None,
) -> list[Section]:
    """The chapters, in order: list of `Section`."""
    chapters = {chapter: None for chapter, _ in drawn} | dict.fromkeys(not_measured)
    # The figures that were not selected, by chapter: what each shows by its number.
    further: dict[Any, dict[str, list[str]]] = {}
    for picture in later:
        of_chapter = further.setdefault(picture.figure.chapter, {})
        of_chapter.setdefault(picture.figure.choices[0], []).append(describe_figure(picture.figure))
    # With the command that adds them.
    of_chapters = {
        chapter: FurtherFigures(
            tuple((number, what) for number, texts in of_chapter.items() for what in texts),
            command([*numbers, *of_chapter]) if command else "",
        )
        for chapter, of_chapter in further.items()
    }
    of_claims = {claim.name: figure.chapter for figure in figures for claim in figure.claims}
    return [
        Section(
            chapter.heading,
            chapter.text,
            [figure for figure_chapter, figure in drawn if figure_chapter == chapter],
            _result(
                [row for row in differences if row.chapter == chapter],
                [row for row in claims if of_claims[row.name] == chapter],
            ),
            not_measured.get(chapter, ()),
            of_chapters.get(chapter),
        )
        for chapter in sorted(chapters, key=lambda chapter: chapter.rank)
    ]


def _result(rows: Sequence[Comparison], claims: Sequence[Row]) -> str:
    """The result of a chapter as one sentence: of its quantities, otherwise of its claims."""
    differing = [row for row in rows if row.main_sentence]
    if differing:
        return max(differing, key=lambda row: row.relative_difference).main_sentence
    if rows:
        return rows[0].values_sentence
    tested = [row for row in claims if isinstance(row, Tested)]
    if not tested:
        return ""
    if len(tested) == 1:
        (row,) = tested
        return (
            f"{row.claim.statement} Outcome for these models: {row.outcome.value} "
            f"({row.claim.unit}: {brief(row.estimate.value)})."
        )
    number = sum(row.outcome is Outcome.AS_IN_PAPER for row in tested)
    verb = "is" if number == 1 else "are"
    return f"Of {len(tested)} claims tested here, {number} {verb} as in the paper."


def _not_measured(
    figures: Sequence[Figure], left_out: LeftOut
) -> tuple[dict[Any, list[tuple[str, list[str]]]], LeftOut]:
    """What is not measured in each chapter: dict from it to entries, and the remaining entries."""
    chapters = {figure.title: figure.chapter for figure in reversed(figures)}
    chapters |= {describe_figure(figure): figure.chapter for figure in figures}
    by_chapter, notes = {}, []
    shown_elsewhere = {figure.models.why_not for figure in figures}
    for title, reasons in left_out:
        reasons = [reason for reason in reasons if reason not in shown_elsewhere]
        if reasons:
            chapter = chapters.get(title) or chapters.get(title.partition(": ")[0])
            entries = notes if chapter is None else by_chapter.setdefault(chapter, [])
            entries.append((title, reasons))
    return by_chapter, notes


def undefined(results: Results) -> LeftOut:
    """The layers without a similarity to other layers, in the form of `Report.left_out`."""
    sentences = []
    for name, result in results.items():
        if name.startswith("cka.") and result is not None and "." not in name[4:]:
            grey = result["layer_x"].values[result["cka"].isnull().all("layer_y").values]
            constant = np.atleast_1d(result.attrs.get("constant_layers", "none")).tolist()
            layers = [*grey, *(layer for layer in constant if layer != "none")]
            if layers:
                sentences.append(f"{result.attrs['model']}: {', '.join(layers)}.")
    title = "Similarity of layers that do not vary between images"
    return [(title, sentences)] if sentences else []


def report_runs(reports: Mapping[str, str | os.PathLike], folder: str | Path) -> Report:
    """Writes an HTML report over several training runs, with their combined scorecard.

    Examples:
        report_runs({"seed 0": "report-0", "seed 1": "report-1"}, "report-over-seeds")

    Args:
        reports: dict from the name of a run to the folder of its report, as `make_report`, `vit-tf
            analyze` and `vit-tf study` write it. The models of the reports must differ only in
            their seed, and each report must contain one model for each role of the scorecard.
        folder: folder to which the report, its figure and `results/scorecard.nc` are written.

    Returns:
        The `Report`.

    Raises:
        ValueError: if a folder contains no scorecard, or if `scorecard_of_runs` cannot
            combine the scorecards.
    """
    folder = Path(folder)
    require_own(folder / "report.html")
    missing = [str(path) for path in reports.values() if not Path(path, PLACE).is_file()]
    if missing:
        raise ValueError(
            f"No scorecard ({PLACE}) in {format_list(missing)}: pass folders that vit-tf analyze "
            "or vit-tf study wrote"
        )
    cards = {}
    for name, path in reports.items():
        card = Path(path, PLACE)
        if not has_own_digest(card):
            raise ValueError(
                f"The scorecard {card} was cut off or changed after it was written: repeat the "
                "command that wrote the report"
            )
        cards[name] = xr.load_dataset(card)
    result, claims = scorecard_of_runs(cards), claims_over_runs(cards)
    save(result, folder / PLACE)
    figure = ReportFigure(
        name="runs",
        title="Claims by run",
        caption="Each row shows one claim; effects are divided by the largest effect of the row. "
        "The dashed line marks no effect; effects to the right have the direction that the paper "
        "reports. Points are runs; diamonds are means over runs, with 95 % CIs.",
        paper="",
        alt=" ".join(f"{row.claim.statement} {row.outcome.value}." for row in claims),
        png=folder / "figures" / "runs.png",
        results=(str(PLACE),),
    )
    save_figure(figure_of(plot_runs(result)), folder / "figures" / "runs.png")
    outcomes = {name: result["outcomes"].sel(training=name).values.tolist() for name in cards}
    counts = {name: Counter(words) for name, words in outcomes.items()}
    path = write_report(
        folder / "report.html",
        title=f"Claims over {len(cards)} runs",
        introduction=f"The same models were trained with {len(cards)} seeds. The results of each "
        f"run are in the reports {join_words(cards)}.",
        scorecard=claims,
        runs=len(cards),
        models=[
            {"run": name} | {outcome.value: counts[name][outcome.value] for outcome in Outcome}
            for name in cards
        ],
        sections=[("Runs", "How consistent are the outcomes over runs?", [figure])],
    )
    return Report(path, {"scorecard": result}, claims, [])
