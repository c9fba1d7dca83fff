"""The pictures of a report: each is redrawn only when its results or its code have changed."""

import json
import logging
from functools import partial

from vit_tf.files import write_whole

from ..engine.store import code_of, fingerprint
from .page import ReportFigure

log = logging.getLogger(__name__)


def draw(pictures, results, folder, progress=None):
    """Every picture as a PNG in `folder / "figures"`; none is drawn twice.

    Where one sentence says everything that a picture would show, it replaces the picture.

    Args:
        pictures: list of `Picture` from `plan.plan`.
        results: dict from result name to result, as `measure` returns it.
        folder: path of the report's folder, which contains `results` too.
        progress: as for `measure.attempt`, called before each picture.

    Returns:
        List of (chapter, `ReportFigure`).
    """
    manifest = folder / "figures" / "keys.json"
    keys = json.loads(manifest.read_text()) if manifest.exists() else {}
    drawn = []
    for number, picture in enumerate(pictures):
        if progress:
            progress(number, len(pictures), picture.title)
        chosen = {label: results[one.name] for label, one in picture.of.measurements.items()}
        caption = picture.caption(chosen)
        path = folder / "figures" / f"{picture.name}.png"
        instead = picture.figure.instead
        if instead and (sentence := instead(chosen)):
            path.unlink(missing_ok=True)
            drawn.append((picture.figure.chapter, _report_figure(picture, sentence, chosen, None)))
            continue
        made_of = {label: result.attrs["key"] for label, result in chosen.items()}
        draws = [picture.figure.draw, __name__]
        code = code_of(draws, without=["vit_tf.analysis.report.page"])
        key = fingerprint(made_of, picture.title, caption, draws, code)
        if keys.get(picture.name) != key or not path.exists():
            log.info("drawing %s", picture.name)
            save_figure(picture.draw(chosen), path)
            keys[picture.name] = key
            write_whole(manifest, lambda partial: partial.write_text(json.dumps(keys, indent=1)))
        drawn.append((picture.figure.chapter, _report_figure(picture, caption, chosen, path)))
    return drawn


def save_figure(figure, path):
    """Writes a Matplotlib figure as a PNG, whole or not at all, and closes it."""
    import matplotlib.pyplot as plt

    write_whole(path, partial(figure.savefig, dpi=150))
    plt.close(figure)


def _report_figure(picture, caption, chosen, path):
    return ReportFigure(
        name=picture.name,
        title=picture.title,
        caption=caption,
        paper=picture.figure.reference,
        source=picture.figure.paper.source,
        alt=f"{picture.title}. {caption}",
        png=path,
        results=[f"results/{one.name}.nc" for one in picture.of.measurements.values()],
        interactive=picture.interactive(chosen),
    )
