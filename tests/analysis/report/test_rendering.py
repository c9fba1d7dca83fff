"""Pictures that another process draws: the same as here, on common scales, with their errors."""

import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from study_parts import cka_result

from vit_tf.analysis.plots.attention_plots import plot_attention_distance
from vit_tf.analysis.plots.flow_plots import plot_skip_ratio
from vit_tf.analysis.plots.similarity_plots import plot_cka
from vit_tf.analysis.report.rendering import (
    Drawing,
    DrawingProcess,
    ProcessEnded,
    drawing_process,
    render,
    share_scales,
)

LAYERS = ["embedding", "block00", "norm"]


@pytest.fixture(scope="module")
def process():
    with DrawingProcess() as process:
        yield process


def drawing(largest, path, plot=plot_cka):
    """A drawing of CKA up to `largest`."""
    result = cka_result(np.linspace(0, largest, 9).reshape(3, 3), LAYERS)
    return Drawing(plot, {"ViT": result}, True, None, path)


def test_another_process_draws_the_same_pictures_on_the_scales_of_all(process, tmp_path):
    def drawings(name):
        paths = [tmp_path / f"{name}-{number}.png" for number in range(2)]
        return [drawing(0.5, paths[0]), drawing(1.0, paths[1]), drawing(0.9, None)]

    future = process.start(drawings("there"))
    render(drawings("here"))
    future.result()
    for number in range(2):
        here, existing = (tmp_path / f"{name}-{number}.png" for name in ("here", "there"))
        assert here.read_bytes() == existing.read_bytes()


def test_logarithmic_colours_on_a_common_scale_keep_their_plain_ticks():
    figures = []
    for largest in (3.0, 20.0):
        ratios = np.geomspace(0.5, largest, 9).reshape(3, 3)
        dims, coords = ("layer", "token"), {"layer": [f"block{n:02}/mlp" for n in range(3)]}
        values = {"norm_ratio": (dims, ratios), "cosine": (dims, np.zeros((3, 3)))}
        result = xr.Dataset(values, coords, {"prefix": 1, "rows": 1, "columns": 2})
        figures.append(plot_skip_ratio(result).figure)
    share_scales(figures)
    for figure in figures:
        image = figure.axes[0].images[0]
        assert image.get_clim() == (pytest.approx(1 / 20, rel=1e-4), pytest.approx(20, rel=1e-4))
        figure.draw_without_rendering()
        ticks = [label.get_text() for label in image.colorbar.ax.get_yticklabels()]
        assert {"0.1", "0.5", "1", "2", "10"} <= set(ticks)
        plt.close(figure)


def test_a_plot_that_fails_costs_no_other_picture(process, tmp_path):
    paths = [tmp_path / "wrong.png", tmp_path / "right.png"]
    drawings = [drawing(1.0, paths[0], plot_attention_distance), drawing(1.0, paths[1])]
    failures = process.start(drawings).result()
    ((path, (reason, trace)),) = failures.items()
    assert path == paths[0] and reason.startswith("It needs ") and "dims" in reason and not trace
    assert [path.name for path in tmp_path.iterdir()] == ["right.png"]


@pytest.mark.slow
def test_a_process_that_ends_early_is_an_error(tmp_path):
    with DrawingProcess() as process:
        process.start([drawing(1.0, tmp_path / "first.png")]).result()
        process._process.kill()
        with pytest.raises(ProcessEnded, match="ended with status -9"):
            process.start([drawing(1.0, tmp_path / "second.png")]).result()
        process.start([drawing(1.0, tmp_path / "third.png")]).result()
    assert (tmp_path / "third.png").stat().st_size


def test_plots_of_other_packages_and_few_pictures_are_drawn_here(process, tmp_path):
    assert process.start([drawing(1.0, tmp_path / "own.png", lambda result: None)]) is None
    with drawing_process(8) as none:
        assert none is None
