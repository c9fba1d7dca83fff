"""The pictures of a report: each is redrawn only when its results or its code have changed."""

import json
import logging
import re
from functools import partial

from vit_tf.files import write_whole
from vit_tf.names import join_words

from ..engine.store import code_of, fingerprint
from .page import Panel, ReportFigure

log = logging.getLogger(__name__)


def draw(figures, results, folder, progress=None, code_for=None):
    """Every picture as a PNG in `folder / "figures"`; none is drawn twice.

    The panels of a figure share their axes and colours, as do figures of one `scale`. Where one
    sentence says everything that a picture would show, it replaces the picture.

    Args:
        figures: list of lists of `Picture`, the panels of each figure, from `plan.by_figure`.
        results: dict from result name to result, as `measure` returns it.
        folder: path of the report's folder, which contains `results` too.
        progress: as for `measure.attempt`, called before each picture.
        code_for: function of the pictures of a figure to the Python code that makes it, or None.

    Returns:
        List of (chapter, `ReportFigure`).
    """
    count, done = sum(map(len, figures)), 0
    sentences = {}
    for together in _sharing(figures):
        pictures = []
        for picture in together:
            instead = picture.figure.instead
            if sentence := instead and instead(_results_of(picture, results)):
                sentences[picture.name] = sentence
                (folder / "figures" / f"{picture.name}.png").unlink(missing_ok=True)
            else:
                pictures.append(picture)
        if progress:
            progress(done, count, together[0].title)
        done += len(together)
        _draw_together(pictures, results, folder)
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


def _draw_together(pictures, results, folder):
    """Draws those of some pictures that are not there yet, on the scales of all of them."""
    manifest = folder / "figures" / "keys.json"
    keys = json.loads(manifest.read_text()) if manifest.exists() else {}
    made_of = {
        picture.name: {
            label: result.attrs["key"] for label, result in _results_of(picture, results).items()
        }
        for picture in pictures
    }
    stale = {}
    for picture in pictures:
        draws = [picture.figure.draw, __name__]
        code = code_of(draws, without=["vit_tf.analysis.report.page"])
        key = fingerprint(made_of, picture.full_title, draws, code)
        if keys.get(picture.name) != key or not _path(folder, picture).exists():
            stale[picture.name] = key
    if not stale:
        return
    log.info("drawing %s", ", ".join(stale))
    drawn = [picture.draw(_results_of(picture, results)) for picture in pictures]
    share_scales(drawn)
    for picture, figure in zip(pictures, drawn, strict=True):
        if picture.name in stale:
            save_figure(figure, _path(folder, picture))
            keys[picture.name] = stale[picture.name]
            write_whole(manifest, lambda partial: partial.write_text(json.dumps(keys, indent=1)))
        else:
            close(figure)


def _path(folder, picture):
    return folder / "figures" / f"{picture.name}.png"


def _results_of(picture, results):
    """Dict from label to the result that a picture draws."""
    return {label: results[one.name] for label, one in picture.of.measurements.items()}


def share_scales(figures):
    """Gives several Matplotlib figures one colour scale and one range of the axes of one label.

    Args:
        figures: list of Matplotlib figures of the same plot, which are changed.
    """
    images, lines = {}, {}
    for figure in figures:
        for axes in figure.axes:
            mapped = [*axes.images, *axes.collections]
            for image in mapped:
                if bar := getattr(image, "colorbar", None):
                    images.setdefault(bar.ax.get_ylabel() or bar.ax.get_xlabel(), []).append(
                        (figure, image)
                    )
            if not axes.images and axes.has_data() and axes.get_label() != "<colorbar>":
                for which in "xy":
                    axis = getattr(axes, f"{which}axis")
                    if label := axis.get_label_text():
                        scale = axis.get_scale(), label, which
                        lines.setdefault(scale, []).append((figure, axes))
    for mapped in images.values():
        if len(mapped) > 1:
            _share_colours(mapped)
    for (_, _, which), sharing in lines.items():
        limits = [getattr(axes, f"get_{which}lim")() for _, axes in sharing]
        numeric = all(_is_numeric(getattr(axes, f"{which}axis")) for _, axes in sharing)
        if numeric and len({figure for figure, _ in sharing}) > 1:
            low, high = min(map(min, limits)), max(map(max, limits))
            for _, axes in sharing:
                getattr(axes, f"set_{which}lim")(low, high)


def _share_colours(mapped):
    """Gives the images with a colour bar, and others with their scale, the range of all."""
    ranges = [(image.norm.vmin, image.norm.vmax) for _, image in mapped]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    for (figure, image), own in zip(mapped, ranges, strict=True):
        for axes in figure.axes:
            for other in [*axes.images, *axes.collections]:
                alike = type(other.norm) is type(image.norm) and other.cmap.name == image.cmap.name
                if alike and (other.norm.vmin, other.norm.vmax) == own and other is not image:
                    other.set_clim(low, high)
        image.set_clim(low, high)


def _is_numeric(axis):
    """Whether an axis shows numbers, no names of layers."""
    from matplotlib.ticker import FixedFormatter, FuncFormatter

    formatter = axis.get_major_formatter()
    return not isinstance(formatter, FixedFormatter) or isinstance(formatter, FuncFormatter)


def save_figure(figure, path):
    """Writes a Matplotlib figure as a PNG, whole or not at all, and closes it."""
    write_whole(path, partial(figure.savefig, dpi=150))
    close(figure)


def close(figure):
    """Closes a Matplotlib figure."""
    import matplotlib.pyplot as plt

    plt.close(figure)


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
    chosen = [_results_of(picture, results) for picture in pictures]
    by_name = {model.name: model for picture in pictures for model in picture.of.models}
    models = list(by_name.values())
    shown = [picture for picture in pictures if picture.name not in sentences]
    if not shown:
        said = [sentences[picture.name] for picture in pictures]
        caption = " ".join(dict.fromkeys(said))
    else:
        merged = {
            f"{picture.name}: {label}": result
            for picture, of in zip(pictures, chosen, strict=True)
            for label, result in of.items()
        }
        own = chosen[0] if len(pictures) == 1 else merged
        caption = first.caption(own, models)
        for picture in pictures:
            if picture.name in sentences:
                caption += f" {picture.panel}: {sentences[picture.name]}"
    references = [*dict.fromkeys(picture.figure.reference for picture in pictures)]
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
                _path(folder, picture),
                f"{picture.full_title}. {caption}",
                picture.name,
            )
            for picture in shown
        ),
        results=tuple(
            dict.fromkeys(
                f"results/{one.name}.nc"
                for picture in pictures
                for one in picture.of.measurements.values()
            )
        ),
        interactive=tuple(
            payload
            for picture, of in zip(pictures, chosen, strict=True)
            for payload in picture.interactive(of)
        ),
        code=code,
    )
