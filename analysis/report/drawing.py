"""The pictures of a report: each is redrawn only when its results or its code have changed."""

import json
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from itertools import chain, count
from pathlib import Path
from typing import Any

from vit_tf.common.errors import explain
from vit_tf.common.names import join_words
from vit_tf.data.files import digest_files, write_whole

from ..engine.results import Results
from ..engine.store import ANALYSIS, digest_modules, fingerprint
from ..figures.figure import TEXT_FIELDS, Picture
from .page import Panel, ReportFigure
from .rendering import Drawing, DrawingProcess, Failures, ProcessEnded, render

log = logging.getLogger(__name__)
# The folders whose code draws pictures, with `figure.draw`, which may be of another module.
DRAWING = (ANALYSIS / "plots", ANALYSIS / "report")


class Drawer:
    """Draws pictures as PNG in `folder / "figures"`, each when what it is made of has changed."""

    def __init__(
        self, folder: Path, process: DrawingProcess | None = None, models: Sequence[str] = ()
    ) -> None:
        self.folder, self._process = folder, process
        self._models = tuple(models)  # each of which has one colour in all pictures
        self._manifest = folder / "figures" / "keys.json"
        # What the other process draws, in the order of its start: what failed once it is done,
        # the keys of the pictures by name, and their `Drawing`s.
        self._started: list[tuple[Future[Failures], dict[str, str], list[Drawing]]] = []
        # Names of the pictures that are drawn, or are being drawn: they are not looked at again.
        self._settled: set[str] = set()
        # By the name of the picture: the sentences that replace pictures, and why others could not
        # be drawn.
        self.sentences: dict[str, str] = {}
        self.failures: dict[str, str] = {}

    def draw(self, pictures: Sequence[Picture], results: Results, meanwhile: bool = False) -> None:
        """Draws the images that do not exist yet, on colour scales shared by all given images.

        Args:
            pictures: list of `Picture`.
            results: dict from result name to result.
            meanwhile: whether this process continues with other work. If so, only the drawing
                process draws, and nothing is drawn without it. Otherwise, this process also draws
                while the drawing process is busy.
        """
        self.collect()
        pictures = self._without_sentences(pictures, results)
        stale = self._stale(pictures, results)
        if not stale:
            return
        drawings = []
        for picture in pictures:
            # Pictures without a path are not written, and only set the common scales.
            path = _path(self.folder, picture.name) if picture.name in stale else None
            drawings.append(as_drawing(picture, _results_of(picture, results), path, self._models))
        future = None
        if self._process and (meanwhile or not self._started):
            future = self._process.start(drawings)
        if future:
            self._started.append((future, stale, drawings))
        elif meanwhile:
            return
        else:
            log.info("drawing %s", ", ".join(stale))
            self._record(stale, render(drawings))
        self._settled |= stale.keys()

    def _without_sentences(self, pictures: Sequence[Picture], results: Results) -> list[Picture]:
        """The pictures to draw: the others are replaced by a sentence, or failed."""
        drawn = []
        for picture in pictures:
            instead, name = picture.figure.instead, picture.name
            if instead and name not in self._settled and name not in self.sentences:
                try:
                    sentence = instead(_results_of(picture, results))
                except Exception as error:
                    self.failures[name] = explain(error, f"The picture {name}")
                    continue
                if sentence:
                    self.sentences[name] = sentence
            if name not in self.sentences:
                drawn.append(picture)
        return drawn

    def _stale(self, pictures: Sequence[Picture], results: Results) -> dict[str, str]:
        """The keys of the pictures to draw by name: those of another key than before."""
        unsettled = [picture for picture in pictures if picture.name not in self._settled]
        if not unsettled:
            return {}
        # The pictures share scales, so that each depends on the results of all of them.
        result_keys = {
            picture.name: {
                label: result.attrs["key"]
                for label, result in _results_of(picture, results).items()
            }
            for picture in pictures
        }
        saved, code, stale = self._manifest_entries(), digest_modules(*DRAWING), {}
        for picture in unsettled:
            title, draw = picture.full_title, picture.figure.draw
            key = fingerprint(result_keys, title, draw, self._models, code)
            path, entry = _path(self.folder, picture.name), saved.get(picture.name)
            if path.is_file() and isinstance(entry, dict) and entry.get("key") == key:
                if entry.get("digest") == digest_files([path]):
                    self._settled.add(picture.name)
                    continue
                log.warning("%s was changed after it was drawn, and is drawn again", path)
            stale[picture.name] = key
        return stale

    def _manifest_entries(self) -> dict:
        """What was drawn: dict from the name of a picture to its key and the digest of its file."""
        try:
            return dict(json.loads(self._manifest.read_text()))
        except FileNotFoundError:
            return {}
        except (ValueError, TypeError):
            log.warning("%s is corrupt; all pictures are drawn again", self._manifest)
            return {}

    def _record(self, keys: dict[str, str], failures: Failures) -> None:
        """Writes the keys of what was drawn to the manifest, and keeps reasons for the rest."""
        entries = self._manifest_entries()
        for name, key in keys.items():
            path = _path(self.folder, name)
            if path not in failures:
                entries[name] = {"key": key, "digest": digest_files([path])}
                continue
            self.failures[name], trace = failures[path]
            if trace:
                log.error("The picture %s failed:\n%s", name, trace)
        text = json.dumps(entries, indent=1)
        write_whole(self._manifest, lambda partial: partial.write_text(text, "utf-8"))

    def collect(self, wait: bool = False) -> None:
        """Records what the other process has drawn by now, or, with `wait`, all that it draws."""
        while self._started and (wait or self._started[0][0].done()):
            future, keys, drawings = self._started.pop(0)
            try:
                failures = future.result()
            except ProcessEnded as error:
                log.warning("%s; its pictures are drawn in the main process", error)
                failures = render(drawings)
            self._record(keys, failures)


def as_drawing(
    picture: Picture,
    results: dict[str, Any],
    path: Path | None = None,
    models: tuple[str, ...] = (),
) -> Drawing:
    """The `Drawing` of a dict from label to result, as a PNG at a path."""
    baselines = tuple(name for name in picture.baselines if name in results)
    known = baselines if picture.baselines else None
    return Drawing(picture.figure.draw, results, picture.single, known, path, models)


def draw(
    figures: Sequence[Sequence[Picture]],
    results: Results,
    folder: Path,
    progress: Callable[[int, int, str], None] | None = None,
    code_for: Callable[[Sequence[Picture]], str] | None = None,
    drawer: Drawer | None = None,
) -> list[tuple[Any, ReportFigure]]:
    """Draws every image as a PNG file in `folder / "figures"`; none is drawn twice.

    The panels of a figure share their axes and colours, as do figures with the same `scale`. If one
    sentence states all that an image would show, the sentence replaces the image.

    Args:
        figures: list of lists of `Picture`, the panels of each figure, from `figure.by_figure`.
        results: dict from result name to result, as `measure` returns it.
        folder: path of the report's folder, which contains `results` too.
        progress: as for `measure.measure_all`, called before each image.
        code_for: function of the images of a figure that returns the Python code of the figure, or
            None.
        drawer: the `Drawer` of the folder, which may have drawn some images; None for a new one.

    Returns:
        List of (chapter, `ReportFigure`). Figures that fail are missing; `drawer.failures` holds
        the reasons.
    """
    drawer = drawer or Drawer(folder)
    total, done = sum(map(len, figures)), 0
    for pictures in _sharing(figures):
        if progress:
            progress(done, total, pictures[0].title)
        done += len(pictures)
        drawer.draw(pictures, results)
    drawer.collect(wait=True)
    for name in (*drawer.sentences, *drawer.failures):
        _path(folder, name).unlink(missing_ok=True)
    drawn: list[tuple[Any, ReportFigure]] = []
    for pictures in figures:
        pictures = [picture for picture in pictures if picture.name not in drawer.failures]
        if not pictures:
            continue
        # The name of several panels omits their models; a number is added to a name that is taken.
        pattern = pictures[0].figure.name
        name = pictures[0].name if len(pictures) == 1 else re.sub(r"-?\{\w+\}", "", pattern)
        taken = {figure.name for _, figure in drawn}
        names = chain([name], (f"{name}-{number}" for number in count(2)))
        name = next(free for free in names if free not in taken)
        try:
            code = code_for(pictures) if code_for else ""
            figure = _report_figure(name, pictures, results, drawer, code)
        except Exception as error:
            reason = explain(error, f"The figure {name}")
            drawer.failures |= {picture.name: reason for picture in pictures}
        else:
            drawn.append((pictures[0].figure.chapter, figure))
    return drawn


def _sharing(figures: Sequence[Sequence[Picture]]) -> list[list[Picture]]:
    """Lists of the pictures that share colours and axes."""
    shared = {}
    for number, pictures in enumerate(figures):
        shared.setdefault(pictures[0].figure.scale or number, []).extend(pictures)
    return list(shared.values())


def draw_measured(figures: Sequence[Sequence[Picture]], results: Results, drawer: Drawer) -> None:
    """Starts to draw the pictures with complete results while other results are measured."""
    for pictures in _sharing(figures):
        measurements = [m for picture in pictures for m in picture.measurements.values()]
        if all(results.get(m.name) is not None for m in measurements):
            drawer.draw(pictures, results, meanwhile=True)


def _path(folder: Path, name: str) -> Path:
    return folder / "figures" / f"{name}.png"


def _results_of(picture: Picture, results: Results) -> dict[str, Any]:
    """Dict from label to the result that a picture draws."""
    return {label: results[measurement.name] for label, measurement in picture.measurements.items()}


def _report_figure(
    name: str, pictures: Sequence[Picture], results: Results, drawer: Drawer, code: str
) -> ReportFigure:
    """The figure of some pictures, the panels, with one title and one caption."""
    first, sentences = pictures[0], drawer.sentences
    measurements = [m for picture in pictures for m in picture.measurements.values()]
    models = list({m.name: m for picture in pictures for m in picture.models}.values())
    # Panels with different titles are called after all of their models.
    title = first.title
    if len({picture.title for picture in pictures}) > 1:
        names = join_words([model.name for model in models])
        title = first.figure.title.format(**dict.fromkeys(TEXT_FIELDS, names))

    # The caption is followed by the sentences that replace single panels, or consists of these.
    shown = [picture for picture in pictures if picture.name not in sentences]
    if shown:
        results_of_figure = _results_of(first, results)
        if len(pictures) > 1:
            results_of_figure = {
                f"{picture.name}: {label}": result
                for picture in pictures
                for label, result in _results_of(picture, results).items()
            }
        replaced = [picture for picture in pictures if picture.name in sentences]
        notes = [f"{picture.panel}: {sentences[picture.name]}" for picture in replaced]
        caption = " ".join([first.caption(results_of_figure, models), *notes])
    else:
        caption = " ".join(dict.fromkeys(sentences[picture.name] for picture in pictures))
    references = dict.fromkeys(picture.figure.reference for picture in pictures)
    references = list(filter(None, references))
    return ReportFigure(
        name=name,
        title=title,
        caption=caption,
        paper=join_words(references) if references else "",
        source=first.figure.paper.source,
        alt=f"{title}. {caption}",
        png=None,
        panels=tuple(
            Panel(
                picture.panel,
                _path(drawer.folder, picture.name),
                f"{picture.full_title}. {caption}",
                picture.name,
            )
            for picture in shown
        ),
        results=tuple(dict.fromkeys(f"results/{m.name}.nc" for m in measurements)),
        interactive=tuple(
            picture.figure.interactive(results[m.name])
            for picture in pictures
            if picture.figure.interactive
            for m in picture.measurements.values()
        ),
        code=code,
    )
