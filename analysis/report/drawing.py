"""The pictures of a report: each is redrawn only when its results or its code have changed."""

import json
import logging
import re

from vit_tf.files import write_whole
from vit_tf.names import join_words

from ..engine.store import code_of, fingerprint
from .page import Panel, ReportFigure
from .rendering import render

log = logging.getLogger(__name__)


class Drawer:
    """Draws pictures as PNG in `folder / "figures"`, each when what it is made of has changed."""

    def __init__(self, folder, processes=None):
        self.folder, self._processes = folder, processes
        self._manifest = folder / "figures" / "keys.json"
        self._started = []  # list of (future, keys of the pictures by name)

    def draw(self, pictures, results, meanwhile=False):
        """Draws those of some pictures that are not there yet, on the scales of all of them.

        Args:
            pictures: list of `Picture`.
            results: dict from result name to result.
            meanwhile: whether this process has something else to do and others draw; otherwise it
                draws when they are busy.
        """
        self._store_keys(wait=False)
        stale = self._stale(pictures, results)
        if not stale:
            return
        drawings = [
            picture.drawing(
                _results_of(picture, results),
                _path(self.folder, picture) if picture.name in stale else None,
            )
            for picture in pictures
        ]
        future = None
        if self._processes and (meanwhile or not self._started):
            future = self._processes.start(drawings)
        if future:
            self._started.append((future, stale))
        elif not meanwhile:
            log.info("drawing %s", ", ".join(stale))
            render(drawings)
            self._write_keys(stale)

    def wait(self):
        """Waits for all pictures; raises the error of the first that failed."""
        self._store_keys(wait=True)

    def _stale(self, pictures, results):
        """The keys of the pictures to draw by name: those of another key than before."""
        keys = self._keys()
        for _, started in self._started:
            keys |= started
        made_of = {}
        for picture in pictures:
            own = _results_of(picture, results).items()
            made_of[picture.name] = {label: result.attrs["key"] for label, result in own}
        stale, names = {}, {name for _, started in self._started for name in started}
        for picture in pictures:
            draws = [picture.figure.draw, __name__]
            code = code_of(draws, without=["vit_tf.analysis.report.page"])
            key = fingerprint(made_of, picture.full_title, draws, code)
            is_drawn = picture.name in names or _path(self.folder, picture).exists()
            if keys.get(picture.name) != key or not is_drawn:
                stale[picture.name] = key
        return stale

    def _keys(self):
        return json.loads(self._manifest.read_text()) if self._manifest.exists() else {}

    def _write_keys(self, keys):
        keys = self._keys() | keys
        text = json.dumps(keys, indent=1)
        write_whole(self._manifest, lambda partial: partial.write_text(text), own_folders=1)

    def _store_keys(self, wait):
        """Stores the keys of what is drawn by now, or, with `wait`, of all that was started."""
        while self._started and (wait or self._started[0][0].done()):
            future, keys = self._started.pop(0)
            future.result()
            self._write_keys(keys)


def draw(figures, results, folder, progress=None, code_for=None, drawer=None):
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
        List of (chapter, `ReportFigure`).
    """
    drawer = drawer or Drawer(folder)
    count, done = sum(map(len, figures)), 0
    sentences = {}
    for together in _sharing(figures):
        pictures, instead = _without_sentences(together, results)
        sentences |= instead
        if progress:
            progress(done, count, together[0].title)
        done += len(together)
        drawer.draw(pictures, results)
    drawer.wait()
    for name in sentences:
        (folder / "figures" / f"{name}.png").unlink(missing_ok=True)
    taken, drawn = set(), []
    for pictures in figures:
        name = _free_name(pictures, taken)
        code = code_for(pictures) if code_for else ""
        figure = _report_figure(name, pictures, results, sentences, folder, code)
        drawn.append((pictures[0].figure.chapter, figure))
    return drawn


def _sharing(figures):
    """Lists of the pictures that share colours and axes."""
    shared = {}
    for number, pictures in enumerate(figures):
        shared.setdefault(pictures[0].figure.scale or number, []).extend(pictures)
    return list(shared.values())


def draw_measured(figures, results, drawer):
    """Starts to draw the pictures of which everything is measured, while the rest is."""
    for together in _sharing(figures):
        measurements = [m for picture in together for m in picture.selection.measurements.values()]
        if all(results.get(m.name) is not None for m in measurements):
            drawer.draw(_without_sentences(together, results)[0], results, meanwhile=True)


def _without_sentences(pictures, results):
    """The pictures to draw, and a dict from the name of each other one to the sentence instead."""
    drawn, sentences = [], {}
    for picture in pictures:
        instead = picture.figure.instead
        if sentence := instead and instead(_results_of(picture, results)):
            sentences[picture.name] = sentence
        else:
            drawn.append(picture)
    return drawn, sentences


def _path(folder, picture):
    return folder / "figures" / f"{picture.name}.png"


def _results_of(picture, results):
    """Dict from label to the result that a picture draws."""
    return {
        label: results[measurement.name]
        for label, measurement in picture.selection.measurements.items()
    }


def _free_name(pictures, taken):
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


def _report_figure(name, pictures, results, sentences, folder, code):
    """The figure of some pictures, the panels, with one title and one caption."""
    first, title = pictures[0], pictures[0].title_with(pictures[1:])
    results_by_label = [_results_of(picture, results) for picture in pictures]
    by_name = {model.name: model for picture in pictures for model in picture.selection.models}
    models = list(by_name.values())
    shown = [picture for picture in pictures if picture.name not in sentences]
    if not shown:
        caption = " ".join(dict.fromkeys(sentences[picture.name] for picture in pictures))
    else:
        merged = {
            f"{picture.name}: {label}": result
            for picture, by_label in zip(pictures, results_by_label, strict=True)
            for label, result in by_label.items()
        }
        own = results_by_label[0] if len(pictures) == 1 else merged
        replaced = [picture for picture in pictures if picture.name in sentences]
        notes = [f"{picture.panel}: {sentences[picture.name]}" for picture in replaced]
        caption = " ".join([first.caption(own, models), *notes])
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
            for picture, by_label in zip(pictures, results_by_label, strict=True)
            for payload in picture.interactive(by_label)
        ),
        code=code,
    )
