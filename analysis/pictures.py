"""The pictures of a report: planned figures become PNG files, each drawn once."""

import json
import logging
from functools import cache, partial
from importlib.metadata import version
from importlib.resources import files

from .report import Figure
from .store import fingerprint, write_whole

log = logging.getLogger(__name__)


def draw(planned, results, folder):
    """Every picture as a PNG in `folder / "figures"`; none is drawn twice.

    Where a sentence says all there is to see, it stands in the picture's place.

    Args:
        planned: list of (entry, `Row`) from `figures.plan_rows`.
        results: dict from result name to result, as `measure` returns it.
        folder: path of the report's folder, which holds `results` too.

    Returns:
        List of (section, report `Figure`).
    """
    manifest = folder / "figures" / "keys.json"
    keys = json.loads(manifest.read_text()) if manifest.exists() else {}
    drawn = []
    for entry, row in planned:
        chosen = {label: results[one.name] for label, one in row.measurements.items()}
        caption = row.caption(chosen) if callable(row.caption) else row.caption
        path = folder / "figures" / f"{row.name}.png"
        if row.instead and (sentence := row.instead(chosen)):
            path.unlink(missing_ok=True)
            drawn.append((entry.section, _report_figure(entry, row, sentence, chosen, None)))
            continue
        made_of = {label: result.attrs["key"] for label, result in chosen.items()}
        key = fingerprint(made_of, row.title, caption, drawing_code())
        if keys.get(row.name) != key or not path.exists():
            log.info("drawing %s", row.name)
            _save(row.draw(chosen), path)
            keys[row.name] = key
            write_whole(manifest, lambda partial: partial.write_text(json.dumps(keys, indent=1)))
        drawn.append((entry.section, _report_figure(entry, row, caption, chosen, path)))
    return drawn


@cache
def drawing_code():
    """Facts that change with the code that draws, so that old pictures are drawn again."""
    package = files(__package__)
    sources = [*(package / "plots").iterdir(), package / "drawing.py"]
    texts = {path.name: path.read_text("utf-8") for path in sources if path.name.endswith(".py")}
    return [version("vit_tf"), fingerprint(texts)]


def _save(figure, path):
    import matplotlib.pyplot as plt

    write_whole(path, partial(figure.savefig, dpi=150))
    plt.close(figure)


def _report_figure(entry, row, caption, chosen, path):
    live = [row.interactive(result) for result in chosen.values()] if row.interactive else []
    return Figure(
        name=row.name,
        title=row.title,
        caption=caption,
        paper=entry.paper,
        source=entry.source,
        alt=f"{row.title}. {caption}",
        png=path,
        results=[f"results/{one.name}.nc" for one in row.measurements.values()],
        interactive=live,
    )
