"""The pictures of a report: each is redrawn only when its results or its code have changed."""

import json
import logging
import re
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from vit_tf.common.names import join_words
from vit_tf.data.files import digest_files, write_whole

from ..engine.failures import explain
from ..engine.results import Results
from ..engine.store import ANALYSIS, digest_modules, fingerprint
from ..figures.rendering import Drawing, Failures, ProcessEnded, Processes, render
from .page import Panel, ReportFigure

log = logging.getLogger(__name__)
# The folders whose code draws pictures, with `figure.draw`, which may be of another module.
DRAWING = (ANALYSIS / "plots", ANALYSIS / "report")


class DrawnPicture(Protocol):
    """The attributes of a picture that drawing uses; the study defines its class."""

    figure: Any
    selection: Any

    @property
    def name(self) -> str: ...
    @property
    def panel(self) -> str: ...
    @property
    def title(self) -> str: ...
    @property
    def full_title(self) -> str: ...
    def title_with(self, others: Sequence[Any]) -> str: ...
    def caption(self, results: Results, models: Sequence[Any] | None = None) -> str: ...
    def drawing(self, results: dict[str, Any], path: Path | None = None) -> Drawing: ...
    def interactive(self, results: dict[str, Any]) -> list[dict[str, Any]]: ...


class Drawer:
    """Draws pictures as PNG in `folder / "figures"`, each when what it is made of has changed."""

    def __init__(
        self, folder: Path, processes: Processes | None = None, models: Sequence[str] = ()
    ) -> None:
        self.folder, self._processes = folder, processes
        self._models = tuple(models)  # each of which has one colour in all pictures
        self._manifest = folder / "figures" / "keys.json"
        # What other processes draw, in the order of its start: what failed of it once it is done,
        # the keys of the pictures by name, and their `Drawing`s.
        self._started: list[tuple[Future[Failures], dict[str, str], list[Drawing]]] = []
        # Keys of the pictures that are there, which are looked for again after each pass.
        self._present: dict[str, str] = {}
        # What could not be drawn, and why: reasons by the name of the picture.
        self.failures: dict[str, str] = {}

    def draw(
        self, pictures: Sequence[DrawnPicture], results: Results, meanwhile: bool = False
    ) -> None:
        """Draws those of some pictures that are not there yet, on the scales of all of them.

        Args:
            pictures: list of `Picture`.
            results: dict from result name to result.
            meanwhile: whether this process goes on with something else. Then only other processes
                draw, and without them nothing is drawn. Otherwise this process draws where the
                others are busy.
        """
        self._collect_finished(wait=False)
        stale = self._stale(pictures, results)
        if not stale:
            return
        # Pictures without a path are not written, and only set the common scales.
        drawings = [
            replace(
                picture.drawing(
                    _results_of(picture, results),
                    _path(self.folder, picture) if picture.name in stale else None,
                ),
                models=self._models,
            )
            for picture in pictures
        ]
        future = None
        if self._processes and (meanwhile or not self._started):
            future = self._processes.start(drawings)
        if future:
            self._started.append((future, stale, drawings))
        elif not meanwhile:
            log.info("drawing %s", ", ".join(stale))
            self._record(stale, render(drawings))

    def wait(self) -> None:
        """Waits for all pictures."""
        self._collect_finished(wait=True)

    def _stale(self, pictures: Sequence[DrawnPicture], results: Results) -> dict[str, str]:
        """The keys of the pictures to draw by name: those of another key than before."""
        saved = self._manifest_entries()
        started = {name: key for _, keys, _ in self._started for name, key in keys.items()}
        # The pictures share scales, so that each depends on the results of all of them.
        result_keys = {}
        for picture in pictures:
            results_by_label = _results_of(picture, results)
            result_keys[picture.name] = {
                label: result.attrs["key"] for label, result in results_by_label.items()
            }
        stale = {}
        for picture in pictures:
            code = digest_modules(*DRAWING)
            drawn = picture.full_title, picture.figure.draw, self._models
            key = fingerprint(result_keys, *drawn, code)
            is_there = started.get(picture.name) == key or (
                picture.name not in started and self._is_drawn(picture, key, saved)
            )
            if not is_there and picture.name not in self.failures:
                stale[picture.name] = key
        return stale

    def _is_drawn(self, picture: DrawnPicture, key: str, saved: dict) -> bool:
        """Whether a picture is the one that was drawn under this key."""
        path, entry = _path(self.folder, picture), saved.get(picture.name)
        if not path.is_file():
            return False
        if self._present.get(picture.name) == key:
            return True
        if not isinstance(entry, dict) or entry.get("key") != key:
            return False
        if entry.get("digest") == digest_files([path]):
            self._present[picture.name] = key
            return True
        log.warning("%s was changed after it was drawn, and is drawn again", path)
        return False

    def _manifest_entries(self) -> dict:
        """What was drawn: dict from the name of a picture to its key and the digest of its file."""
        if not self._manifest.is_file():
            return {}
        try:
            entries = json.loads(self._manifest.read_text())
        except ValueError:
            entries = None
        if not isinstance(entries, dict):
            log.warning("%s is corrupt; all pictures are drawn again", self._manifest)
            return {}
        return entries

    def _record(self, keys: dict[str, str], failures: Failures) -> None:
        """Writes the keys of what was drawn to the manifest, and keeps reasons for the rest."""
        entries = self._manifest_entries()
        for name, key in keys.items():
            path = self.folder / "figures" / f"{name}.png"
            if path not in failures:
                entries[name] = {"key": key, "digest": digest_files([path])}
                self._present[name] = key
                continue
            reason, trace = failures[path]
            if trace:
                log.error("The picture %s failed:\n%s", name, trace)
            self.failures[name] = reason
        text = json.dumps(entries, indent=1)
        write_whole(self._manifest, lambda partial: partial.write_text(text, "utf-8"))

    def _collect_finished(self, wait: bool) -> None:
        """Records what other processes have drawn by now, or, with `wait`, all that they draw."""
        while self._started and (wait or self._started[0][0].done()):
            future, keys, drawings = self._started.pop(0)
            try:
                failures = future.result()
            except ProcessEnded as error:
                log.warning("%s; they are drawn here", error)
                failures = render(drawings)
            self._record(keys, failures)


def draw(
    figures: Sequence[Sequence[DrawnPicture]],
    results: Results,
    folder: Path,
    progress: Callable[[int, int, str], None] | None = None,
    code_for: Callable[[Sequence[DrawnPicture]], str] | None = None,
    drawer: Drawer | None = None,
) -> list[tuple[Any, ReportFigure]]:
    """Every picture as a PNG in `folder / "figures"`; none is drawn twice.

    The panels of a figure share their axes and colours, as do figures of one `scale`. Where one
    sentence says everything that a picture would show, it replaces the picture.

    Args:
        figures: list of lists of `Picture`, the panels of each figure, from `figure.by_figure`.
        results: dict from result name to result, as `measure` returns it.
        folder: path of the report's folder, which contains `results` too.
        progress: as for `measure.measure_all`, called before each picture.
        code_for: function of the pictures of a figure to the Python code that makes it, or None.
        drawer: the `Drawer` of the folder that has started on some of them; None for a new one.

    Returns:
        List of (chapter, `ReportFigure`). What fails is left out, with the reasons in
        `drawer.failures`.
    """
    drawer = drawer or Drawer(folder)
    count, done = sum(map(len, figures)), 0
    sentences = {}
    for together in _sharing(figures):
        pictures, instead = _without_sentences(together, results, drawer)
        sentences |= instead
        if progress:
            progress(done, count, together[0].title)
        done += len(together)
        drawer.draw(pictures, results)
    drawer.wait()
    for name in (*sentences, *drawer.failures):
        (folder / "figures" / f"{name}.png").unlink(missing_ok=True)
    taken, drawn = set(), []
    for pictures in figures:
        pictures = [picture for picture in pictures if picture.name not in drawer.failures]
        if not pictures:
            continue
        name = _free_name(pictures, taken)
        try:
            code = code_for(pictures) if code_for else ""
            figure = _report_figure(name, pictures, results, sentences, folder, code)
        except Exception as error:
            reason = explain(error, f"The figure {name}")
            drawer.failures |= {picture.name: reason for picture in pictures}
        else:
            drawn.append((pictures[0].figure.chapter, figure))
    return drawn


def _sharing(figures: Sequence[Sequence[DrawnPicture]]) -> list[list[DrawnPicture]]:
    """Lists of the pictures that share colours and axes."""
    shared = {}
    for number, pictures in enumerate(figures):
        shared.setdefault(pictures[0].figure.scale or number, []).extend(pictures)
    return list(shared.values())


def draw_measured(
    figures: Sequence[Sequence[DrawnPicture]], results: Results, drawer: Drawer
) -> None:
    """Starts to draw the pictures with complete results while other results are measured."""
    for together in _sharing(figures):
        measurements = [m for picture in together for m in picture.selection.measurements.values()]
        if all(results.get(m.name) is not None for m in measurements):
            drawer.draw(_without_sentences(together, results, drawer)[0], results, meanwhile=True)


def _without_sentences(
    pictures: Sequence[DrawnPicture], results: Results, drawer: Drawer
) -> tuple[list[DrawnPicture], dict[str, str]]:
    """The pictures to draw, and a dict from the name of each other one to the sentence instead."""
    drawn, sentences = [], {}
    for picture in pictures:
        instead = picture.figure.instead
        try:
            sentence = instead and instead(_results_of(picture, results))
        except Exception as error:
            drawer.failures[picture.name] = explain(error, f"The picture {picture.name}")
            continue
        if sentence:
            sentences[picture.name] = sentence
        else:
            drawn.append(picture)
    return drawn, sentences


def _path(folder: Path, picture: DrawnPicture) -> Path:
    return folder / "figures" / f"{picture.name}.png"


def _results_of(picture: DrawnPicture, results: Results) -> dict[str, Any]:
    """Dict from label to the result that a picture draws."""
    return {
        label: results[measurement.name]
        for label, measurement in picture.selection.measurements.items()
    }


def _free_name(pictures: Sequence[DrawnPicture], taken: set[str]) -> str:
    """A unique name of a figure: that of its picture, without the models if there are several."""
    name = pictures[0].name
    if len(pictures) > 1:
        name = re.sub(r"-?\{\w+\}", "", pictures[0].figure.name)
    number, free = 1, name
    while free in taken:
        number += 1
        free = f"{name}-{number}"
    taken.add(free)
    return free


def _report_figure(
    name: str,
    pictures: Sequence[DrawnPicture],
    results: Results,
    sentences: dict[str, str],
    folder: Path,
    code: str,
) -> ReportFigure:
    """The figure of some pictures, the panels, with one title and one caption."""
    first, title = pictures[0], pictures[0].title_with(pictures[1:])
    results_of_pictures = [_results_of(picture, results) for picture in pictures]
    by_name = {model.name: model for picture in pictures for model in picture.selection.models}
    models = list(by_name.values())
    shown = [picture for picture in pictures if picture.name not in sentences]
    if not shown:
        caption = " ".join(dict.fromkeys(sentences[picture.name] for picture in pictures))
    else:
        merged = {
            f"{picture.name}: {label}": result
            for picture, by_label in zip(pictures, results_of_pictures, strict=True)
            for label, result in by_label.items()
        }
        results_of_figure = results_of_pictures[0] if len(pictures) == 1 else merged
        replaced = [picture for picture in pictures if picture.name in sentences]
        notes = [f"{picture.panel}: {sentences[picture.name]}" for picture in replaced]
        caption = " ".join([first.caption(results_of_figure, models), *notes])
    references = dict.fromkeys(picture.figure.reference for picture in pictures)
    references = list(filter(None, references))
    panels = []
    for picture in shown:
        alt = f"{picture.full_title}. {caption}"
        panels.append(Panel(picture.panel, _path(folder, picture), alt, picture.name))
    return ReportFigure(
        name=name,
        title=title,
        caption=caption,
        paper=join_words(references) if references else "",
        source=first.figure.paper.source,
        alt=f"{title}. {caption}",
        png=None,
        panels=tuple(panels),
        results=tuple(
            dict.fromkeys(
                f"results/{measurement.name}.nc"
                for picture in pictures
                for measurement in picture.selection.measurements.values()
            )
        ),
        interactive=tuple(
            payload
            for picture, by_label in zip(pictures, results_of_pictures, strict=True)
            for payload in picture.interactive(by_label)
        ),
        code=code,
    )
