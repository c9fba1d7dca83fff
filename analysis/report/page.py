"""Self-contained HTML pages with figures, tables and provenance."""

import base64
import hashlib
import json
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from html import escape
from importlib.resources import files
from io import BytesIO
from numbers import Integral, Real
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, unquote

import numpy as np

from vit_tf.common.errors import as_reason
from vit_tf.common.names import without_password
from vit_tf.data.files import write_whole

from ..engine.results import encode_picture
from .claim_rows import (
    brief,
    count_sentence,
    decided_sentences,
    interval_text,
    method_text,
    rows_by_paper,
    scale_of,
    shown_unit,
)

CSS_DOTS = 96  # per inch: figures of one font size show their text at the same size
MOST_EMBEDDED = 150_000  # bytes of a result that the page holds; larger ones are links
FAMILIES = ("vit", "resnet", "mixer", "other")


@dataclass(frozen=True)
class Panel:
    """One of the pictures of a figure."""

    title: str  # what sets it apart from the other panels, such as the name of a model
    png: str | os.PathLike | bytes  # path or bytes of the PNG
    alt: str  # alternative text of the picture
    name: str = ""  # id of the panel, unique on the page; may be empty


@dataclass(frozen=True)
class ReportFigure:
    """One figure of the report, as a single image or as several panels.

    Attributes:
        name: short and unique name of the figure. The link "#figure-cka" leads to the figure "cka".
        title: title of the figure, which states what it shows.
        caption: text below the figure, which states how to interpret it.
        paper: the corresponding figures of a paper, such as "Figures 1 and 2"; may be empty.
        alt: alternative text of the image.
        png: path of a PNG file. If the file is in the report's folder, the image links to it. None
            if the figure has `panels` or consists of its caption only.
        results: links to the netCDF files of the results in the figure, relative to the report.
            Files in the report's folder are embedded in the page if they have at most
            `MOST_EMBEDDED` bytes.
        interactive: interactive panels, one dict for each panel, as the functions of `interactive`
            return them. On screen, these panels replace the image. The image is used in print, and
            in browsers without scripts.
        source: name and address of the paper; None if the figure belongs to no paper.
        panels: list of `ReportFigure`, the panels of a figure with several images, such as one for
            each model. A figure with `panels` has no `png`.
        code: Python code that makes the figure; may be empty.
    """

    name: str
    title: str
    caption: str
    paper: str
    alt: str
    png: str | os.PathLike | None
    results: tuple[str, ...] = ()
    interactive: tuple[dict, ...] = ()
    source: tuple[str, str] | None = None
    panels: tuple[Panel, ...] = ()
    code: str = ""

    @property
    def shown_panels(self) -> tuple[Panel, ...]:
        """The panels, or the single image as one without a title."""
        return self.panels or ((Panel("", self.png, self.alt),) if self.png is not None else ())


@dataclass(frozen=True)
class FurtherFigures:
    """The figures of a chapter that were not selected."""

    rows: tuple[tuple[str, str], ...]  # (number of the figure, what it shows)
    command: str = ""  # that adds all of them; may be empty


@dataclass(frozen=True)
class Section:
    """One chapter of the report."""

    heading: str
    text: str  # the question that its figures answer
    figures: Sequence[ReportFigure] = ()
    result: str = ""  # the answer, as a sentence with numbers; may be empty
    # List of (what a figure shows, list of sentences on what it would take).
    not_measured: Sequence[tuple[str, Sequence[str]]] = ()
    further: FurtherFigures | None = None


@dataclass(frozen=True)
class ModelSummary:
    """One model on the first screen of the report."""

    name: str  # as figures show it
    kind: str  # what it is, in words, "ViT with a CLS token"
    family: str = "other"  # its thumbnail, one of `FAMILIES`
    parameters: int | None = None  # number of parameters; None where it is not known
    accuracy: Any = None  # test accuracy as an `Estimate`; None where it is not known
    colour: str = ""  # of the model in the overview, as CSS writes it; may be empty


@dataclass(frozen=True)
class Prediction:
    """What a model predicts for an image."""

    model: str
    class_name: str
    probability: float
    is_correct: bool | None = None  # None where the image has no label
    colour: str = ""  # of the model, as CSS writes it; may be empty


@dataclass(frozen=True)
class ShownImage:
    """One of the measured images, as the page shows it."""

    picture: np.ndarray  # 8-bit array of shape (row, column, 3)
    label: str = ""  # name of its class; empty where it has none
    predictions: Sequence[Prediction] = ()


@dataclass(frozen=True)
class LinkedPage:
    """Another page in the folder of the report, to which the first screen links."""

    heading: str
    text: str  # what the page and the panels show
    link: str  # words of the link
    address: str  # relative to the report
    panels: Sequence[Panel] = ()


def write_report(
    path: str | os.PathLike,
    *,
    title: str,
    introduction: str,
    differences: Sequence[Any] = (),
    scorecard: Sequence[Any] = (),
    runs: int = 1,
    models: Sequence[dict[str, Any]] = (),
    sections: Sequence[Section | tuple] = (),
    not_shown: Sequence[tuple[str, Sequence[str]]] = (),
    timings: Sequence[dict[str, Any]] = (),
    provenance: dict[str, Any] | None = None,
    summary: Sequence[ModelSummary] = (),
    sentences: Sequence[str] = (),
    overview: Sequence[Panel] = (),
    shown_images: Sequence[ShownImage] = (),
    linked_page: LinkedPage | None = None,
    figures_of_claims: dict[str, str] | None = None,
) -> Path:
    """Writes a report as one self-contained HTML file, atomically.

    All texts are plain text, not HTML. A blank line in a text starts a new paragraph.

    Args:
        path: path of the HTML file that is written.
        title: heading of the page.
        introduction: text under the heading. Only the first paragraph is shown there; the other
            paragraphs are in a folded section at the end of the page.
        differences: list of `first_screen.Comparison`, which the page shows as a table.
        scorecard: list of `Tested` and `NotTested`. The first screen shows a mark for each tested
            claim, which links to the claim. The claim links to the files `results/NAME.nc` of the
            results that it uses.
        runs: number of runs that the scorecard combines.
        models: rows of a table at the end of the page, as a list of dicts from column name to text
            or number.
        sections: list of `Section`, or of tuples (heading, text, list of `ReportFigure`).
        not_shown: the figures that are missing, as a list of pairs: what the figure shows, and a
            list of sentences that give the reasons.
        timings: rows of a table of run times, in the same form as `models`.
        provenance: dict with the information that reproduces the report: command, versions, seed
            and data.
        summary: list of `ModelSummary`, the models on the first screen.
        sentences: the main results, as sentences.
        overview: list of `Panel`, the small plots on the first screen.
        shown_images: list of `ShownImage`, some of the images that were measured.
        linked_page: a `LinkedPage`, whose panels are shown after the panels of `overview`.
        figures_of_claims: dict from the name of a claim to the name of the figure that tests it.

    Returns:
        The path of the HTML file.

    Raises:
        ValueError: if an image is not a PNG, if two figures have the same name, or if a name is not
            a letter followed by letters, digits or any of ".", "_" and "-".
        OSError: if an image cannot be read or the report cannot be written.
    """
    path = Path(path)
    sections = [row if isinstance(row, Section) else Section(*row) for row in sections]
    figures = [figure for section in sections for figure in section.figures]
    names = [figure.name for figure in figures]
    if len(set(names)) < len(names):
        raise ValueError(f"Expected figures of different names. Received: {names}")
    for name in names:
        if not re.fullmatch(r"[A-Za-z][\w.-]*", name):
            raise ValueError(
                "Expected a figure's name to be a letter, then letters, digits or any of '._-'. "
                f"Received: {name!r}"
            )
    lead, *more = _paragraphs(introduction) or [""]
    return write_page(
        path,
        "report",
        bool(figures or scorecard),
        title=title,
        lead=lead,
        about=more,
        summary=summary,
        sentences=[*decided_sentences(scorecard), *sentences],
        overview=overview,
        shown_images=shown_images,
        linked_page=linked_page,
        differences=list(differences),
        compared=any(row.sentences for row in differences),
        tested=sum(row.num_tested > 0 for row in differences),
        differing=sum(row.num_different > 0 for row in differences),
        papers=rows_by_paper(scorecard, figures_of_claims or {}),
        count_of_claims=count_sentence(scorecard),
        runs=runs,
        models=_table(models),
        sections=sections,
        missing=[
            *(entry for section in sections for entry in section.not_measured),
            *not_shown,
        ],
        timings=_table(timings),
        provenance=dict(provenance or {}),
    )


def write_page(
    path: str | os.PathLike, name: str, live: bool, package: str = __package__ or "", **values: Any
) -> Path:
    """Write a page of the template, style and script of a name, whole or not at all; its path.

    These files are those of `package`; what all pages share is here.
    """
    from jinja2 import Environment, FunctionLoader, StrictUndefined

    environment = Environment(
        autoescape=True,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(partial(_resource, package)),
        undefined=StrictUndefined,
    )
    path = Path(path)
    environment.filters |= {
        "embedded_panel": partial(_embed_panel, folder=path.parent),
        "embedded_file": partial(_embed_file, folder=path.parent),
        "embedded_picture": partial(encode_picture, optimize=True),
        "json": as_json,
        "shown": _shown,
        "listed": _listed,
        "paragraphs": _paragraphs,
        "by_reason": _by_reason,
        "counted": _counted,
        "brief": brief,
        "interval": interval_text,
        "scale_of": scale_of,
        "shown_unit": shown_unit,
        "method": method_text,
    }
    script = _resource(package, "common.js") + _resource(package, f"{name}.js") if live else ""
    digest = hashlib.sha256(script.encode()).digest()
    page = environment.get_template(f"{name}.html").render(
        style=_resource(package, f"{name}.css"),
        script=script,
        script_hash=base64.b64encode(digest).decode(),
        **values,
    )
    require_own(path)
    write_whole(path, lambda partial: partial.write_text(page, encoding="utf-8"))
    return path


MARK = '<meta name="generator" content="vit_tf">'  # which pages of this package hold


def require_own(path: str | os.PathLike) -> None:
    """Raises a `ValueError` for a file that this package did not write, or at an address."""
    if re.match(r"[A-Za-z][\w+.-]+:/", os.fspath(path)):  # a `Path` has one slash of two
        raise ValueError(
            "Expected a local path for the report; copy it elsewhere afterwards. Received: "
            f"{without_password(path)!r}"
        )
    path = Path(path)
    if not path.exists():
        return
    text = path.read_text("utf-8", errors="replace") if path.is_file() else ""
    if MARK not in text:
        raise ValueError(
            f"{str(path)!r} exists and was not written by vit_tf, so it is not replaced: "
            "choose another folder"
        )


def as_json(payload: Any) -> str:
    """A payload as JSON that may stand in a page: its `<` close no element."""
    text = json.dumps(payload, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c")


def in_frame(path: str | os.PathLike) -> str:
    """A page as HTML that a notebook shows, with a link to it."""
    page, link = escape(Path(path).read_text("utf-8"), quote=True), escape(str(path), quote=True)
    return (
        f'<iframe srcdoc="{page}" width="100%" height="800" style="border: 0"></iframe>'
        f'<p><a href="{link}">{link}</a></p>'
    )


def _resource(package: str, name: str) -> str:
    """The text of a file of a package, or else of this one."""
    own = files(package) / name
    return (own if own.is_file() else files(__package__ or "") / name).read_text("utf-8")


def _embed_panel(panel: Panel, folder: Path) -> dict[str, Any]:
    """The picture of a panel as text, its size, and a link to it where it lies in the folder."""
    from PIL import Image

    link, png = "", panel.png
    if not isinstance(png, bytes):
        file, folder = Path(png).resolve(), folder.resolve()
        link = file.relative_to(folder).as_posix() if file.is_relative_to(folder) else ""
        png = file.read_bytes()
    try:
        with Image.open(BytesIO(png), formats=["PNG"]) as image:
            dots = image.info.get("dpi", (CSS_DOTS, CSS_DOTS))
            inches = [pixels / per_inch for pixels, per_inch in zip(image.size, dots, strict=True)]
    except (OSError, Image.DecompressionBombError):  # of other files, and of far too large ones
        received = "bytes" if isinstance(panel.png, bytes) else repr(os.fspath(panel.png))
        raise ValueError(f"Expected a PNG. Received: {received}") from None
    data = base64.b64encode(png).decode("ascii")
    width, height = (round(side * CSS_DOTS) for side in inches)
    return {"data": data, "width": width, "height": height, "link": link}


def _embed_file(link: str, folder: Path) -> dict[str, Any]:
    """The name, the size and the address of a result, which is in the page where it is small."""
    path = folder / unquote(link)
    size = path.stat().st_size if path.is_file() else None
    entry = {"file": PurePosixPath(link).name, "size": size, "href": quote(link)}
    if size is not None and size <= MOST_EMBEDDED:
        data = base64.b64encode(path.read_bytes()).decode("ascii")
        entry["href"] = f"data:application/x-netcdf;base64,{data}"
    return entry


def _counted(number: int) -> str:
    """A number of parameters in thousands or millions."""
    for unit, word in ((1e9, "B"), (1e6, "M"), (1e3, "k")):
        if number >= unit:
            return f"{number / unit:.3g} {word}"
    return str(number)


def _table(rows: Sequence[dict[str, Any]]) -> dict[str, list]:
    """Columns in order of first appearance, numeric or not; rows have None for a missing cell."""
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = [(name, any(isinstance(row.get(name), Real) for row in rows)) for name in names]
    return {"columns": columns, "rows": [[row.get(name) for name in names] for row in rows]}


def _shown(value: Any) -> str:
    """A cell's text: thousands apart, four significant digits, a dash where there is nothing."""
    if value is None:
        return "\N{EN DASH}"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if not isinstance(value, Real):
        return str(value)
    is_long = isinstance(value, Integral) or 1000 <= abs(float(value)) < 1e15
    return f"{value:,.0f}" if is_long else f"{value:.4g}"


def _listed(value: Any) -> str:
    """A value of the provenance as one line."""
    return ", ".join(map(str, value)) if isinstance(value, list | tuple) else str(value)


def _by_reason(entries: Iterable[tuple[str, Sequence[str]]]) -> list[tuple[str, list[str]]]:
    """What is missing by the reason: list of (sentence, list of what it is the reason for)."""
    by_reason = {}
    for title, reasons in entries:
        for reason in map(as_reason, reasons):
            sentence = reason if reason.endswith((".", "!", "?")) else f"{reason}."
            by_reason.setdefault(sentence, {})[title] = None
    return [(reason, list(titles)) for reason, titles in by_reason.items()]


def _paragraphs(text: str) -> list[str]:
    return [part.strip() for part in re.split(r"\n\s*\n", text) if part.strip()]
