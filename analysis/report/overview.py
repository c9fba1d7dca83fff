"""Small multiples on the first screen of a report: one panel for a quantity or a model."""

from io import BytesIO

import numpy as np

from ..plots import style
from .page import Panel

WIDTH, HEIGHT, MATRIX = 1.93, 1.62, 1.62  # inches: five panels stand in a row


def model_colours(models):
    """Colours of the models by name, as CSS writes them."""
    from matplotlib.colors import to_hex

    colours = style.distinct_colours(len(models))
    return {model.name: to_hex(colour) for model, colour in zip(models, colours, strict=True)}


def draw_overview(pictures, models, results):
    """The panels of the figures that have an `Overview`."""
    colours, shown = model_colours(models), {}
    for picture in pictures:
        view = picture.figure.overview
        for measurement in picture.selection.measurements.values() if view else ():
            (model, *others) = measurement.models
            if model in models and not others:
                values = np.asarray(view.values(results[measurement.name]), float)
                shown.setdefault((picture.figure.chapter.rank, view.label), (view, {}))
                shown[picture.figure.chapter.rank, view.label][1][model.name] = values
    panels = []
    for _, (view, by_model) in sorted(shown.items(), key=lambda item: item[0][0]):
        matrices = {name: values for name, values in by_model.items() if values.ndim == 2}
        lines = {name: values for name, values in by_model.items() if values.ndim == 1}
        for name, values in matrices.items():
            title = f"{view.label}, {name}" if len(models) > 1 else view.label
            panels.append(_panel(title, _draw_matrix, values, view.unit))
        if lines:
            panels.append(_panel(view.label, _draw_lines, lines, colours, view.unit))
    return panels


def _panel(title, draw, *values):
    """A panel that a function draws in new axes."""
    import matplotlib.pyplot as plt

    size = (WIDTH, MATRIX if draw is _draw_matrix else HEIGHT)
    figure = plt.figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02)
    draw(figure.add_subplot(), *values)
    file = BytesIO()
    figure.savefig(file, dpi=192)
    plt.close(figure)
    return Panel(title, file.getvalue(), f"{title}.")


def _draw_matrix(ax, values, unit):
    image = ax.imshow(
        values.T, origin="lower", cmap=style.colours("magma"), vmin=0, vmax=1, aspect="auto"
    )
    ax.set(xticks=[], yticks=[])
    ax.set_xlabel("layer", fontsize=7, labelpad=2)
    ax.set_ylabel("layer", fontsize=7, labelpad=2)
    bar = ax.figure.colorbar(image, ax=ax, ticks=[0, 0.5, 1], fraction=0.07, pad=0.03, aspect=18)
    bar.set_label(unit, fontsize=7, labelpad=1)
    bar.ax.tick_params(labelsize=6.5, length=2, pad=1.5)


def _draw_lines(ax, lines, colours, unit):
    for name, values in lines.items():
        depth = np.linspace(0, 1, len(values)) if len(values) > 1 else [0.5]
        ax.plot(depth, values, color=colours[name], linewidth=1.5, marker="o", markersize=2.2)
    if unit == "accuracy":
        style.percent(ax.yaxis)
        unit = "accuracy (%)"
    ax.set_xticks([0, 1], ["first", "last"])
    ax.set_xlabel("layer", fontsize=7, labelpad=-4)
    ax.set_ylabel(unit, fontsize=7, labelpad=2)
    ax.tick_params(labelsize=6.5, length=2, pad=1.5)
    ax.margins(y=0.12)
    style.tidy(ax)
