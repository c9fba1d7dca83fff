"""Pictures of results as PNG files, drawn here or in another process without TensorFlow."""

import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self, TypeAlias

from vit_tf.common.errors import describe_failure
from vit_tf.data.files import write_whole

from ..plots.style import fixed_colours, plain_log

if TYPE_CHECKING:
    from matplotlib.figure import Figure

DPI = 150
FEW_PICTURES = 8  # that are drawn sooner than another process starts


@dataclass(frozen=True, eq=False)
class Drawing:
    """A picture before it is drawn."""

    # Function of the results that draws them in new axes, which it returns.
    plot: Callable[..., Any]
    results: dict[str, Any]  # dict from label to result
    is_single: bool  # whether `plot` takes the only result itself, and no dict
    # Labels of results that are drawn as baselines; None where `plot` knows none.
    baselines: tuple[str, ...] | None
    # Where the PNG is written; None for a picture that only shares its scales with others.
    path: Path | None = None
    # The models of the report, of which each has one colour in all pictures.
    models: tuple[str, ...] = ()

    def figure(self) -> "Figure":
        """The Matplotlib figure."""
        first_result = next(iter(self.results.values()))
        single = getattr(first_result, "attrs", {}).get("model", "") if self.is_single else ""
        options = {} if self.baselines is None else {"baselines": list(self.baselines)}
        with fixed_colours(self.models, single):
            axes = self.plot(first_result if self.is_single else self.results, **options)
        # The report shows the first line as text.
        axes.title.set_text(axes.get_title().partition("\n")[2])
        return axes.figure


Failures: TypeAlias = dict[Path, tuple[str, str]]  # by PNG, as `describe_failure` returns them


def render(drawings: list[Drawing]) -> Failures:
    """Draws some `Drawing`s on common scales and writes those that have a path.

    A plot that fails does not keep the others from being drawn; a full disk does.
    """
    import matplotlib.pyplot as plt

    figures, failures = {}, {}
    for drawing in drawings:
        try:
            figures[drawing] = drawing.figure()
        except Exception as error:
            failures[drawing.path] = describe_failure(error)
    try:
        share_scales(list(figures.values()))
    except Exception as error:
        failures |= {drawing.path: describe_failure(error) for drawing in figures}
    for drawing, figure in figures.items():
        try:
            if drawing.path and drawing.path not in failures:
                save_figure(figure, drawing.path)
        except OSError:
            raise
        except Exception as error:
            failures[drawing.path] = describe_failure(error)
        plt.close(figure)
    return failures


def share_scales(figures: Sequence["Figure"]) -> None:
    """Gives several Matplotlib figures one colour scale and one range of the axes of one label."""
    from matplotlib.ticker import FixedFormatter  # of names

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
        formatters = [getattr(axes, f"{which}axis").get_major_formatter() for _, axes in sharing]
        are_numbers = not any(isinstance(each, FixedFormatter) for each in formatters)
        if are_numbers and len({figure for figure, _ in sharing}) > 1:
            low, high = min(map(min, limits)), max(map(max, limits))
            for _, axes in sharing:
                getattr(axes, f"set_{which}lim")(low, high)


def _share_colours(mapped: Sequence[tuple["Figure", Any]]) -> None:
    """Gives the images with a colour bar, and others with their scale, the range of all."""
    from matplotlib.colors import LogNorm

    ranges = [(image.norm.vmin, image.norm.vmax) for _, image in mapped]
    low, high = min(low for low, _ in ranges), max(high for _, high in ranges)
    for (figure, image), own in zip(mapped, ranges, strict=True):
        for axes in figure.axes:
            for other in [*axes.images, *axes.collections]:
                same = type(other.norm) is type(image.norm) and other.cmap.name == image.cmap.name
                if same and (other.norm.vmin, other.norm.vmax) == own and other is not image:
                    other.set_clim(low, high)
        image.set_clim(low, high)
        if isinstance(image.norm, LogNorm):  # whose ticks it resets
            bar = image.colorbar.ax
            plain_log(bar.yaxis if bar.get_ylabel() else bar.xaxis)


def save_figure(figure: "Figure", path: Path) -> None:
    """Writes a Matplotlib figure as a PNG, whole or not at all, and closes it."""
    import matplotlib.pyplot as plt

    write_whole(path, partial(figure.savefig, dpi=DPI))
    plt.close(figure)


def drawing_process(count: int) -> "AbstractContextManager[DrawingProcess | None]":
    """A process that draws so many pictures; none for few, and on a single processor."""
    is_worth_it = count > FEW_PICTURES and (os.cpu_count() or 1) > 1
    return DrawingProcess() if is_worth_it else nullcontext()


class ProcessEnded(Exception):
    """A process that draws was ended, as where there is too little memory."""


PLOTS = "vit_tf.analysis.plots."  # which another process can import without TensorFlow
CODE = "import sys; sys.path[:] = {path!r}; from {module} import serve; serve()"


class DrawingProcess:
    """A process that renders while this one does something else: a context."""

    def __init__(self) -> None:
        self._process: Any = None  # a `subprocess.Popen` once there is something to render
        self._thread = ThreadPoolExecutor(1)  # which waits for one list of drawings after another

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *error: object) -> None:
        """Ends the process: at once after an error, otherwise when it has rendered everything."""
        if kind and self._process:
            self._process.kill()
        self._thread.shutdown(cancel_futures=kind is not None)
        if self._process:
            self._process.communicate()

    def start(self, drawings: Sequence[Drawing]) -> Future[Failures] | None:
        """Starts to render some `Drawing`s: a future, or None for plots of other packages."""
        if not all(drawing.plot.__module__.startswith(PLOTS) for drawing in drawings):
            return None
        import matplotlib

        settings = {key: value for key, value in matplotlib.rcParams.items() if key != "backend"}
        return self._thread.submit(self._render, pickle.dumps((settings, drawings)))

    def _render(self, message: bytes) -> Failures:
        if self._process is None:
            self._process = subprocess.Popen(
                [sys.executable, "-c", CODE.format(path=sys.path, module=__name__)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                env=os.environ | {"MPLBACKEND": "Agg"},
                start_new_session=True,  # Ctrl-C reaches this process, which ends that one
            )
        try:
            self._process.stdin.write(message)
            self._process.stdin.flush()
            error, failures = pickle.load(self._process.stdout)
        except (EOFError, BrokenPipeError) as lost:
            status, self._process = self._process.wait(), None
            raise ProcessEnded(
                f"A process that draws pictures ended with status {status}"
            ) from lost
        if error is not None:
            raise error
        return failures


def serve() -> None:
    """Renders the lists of `Drawing`s that come in; answers are pairs of an error and failures."""
    received, answers = sys.stdin.buffer, os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a plot may print is no answer
    import matplotlib

    while True:
        try:
            settings, drawings = pickle.load(received)
        except EOFError:
            return
        error, failures = None, {}
        try:
            matplotlib.rcParams.update(settings)
            failures = render(drawings)
        except Exception as raised:
            error = raised
        pickle.dump((error, failures), answers)
        answers.flush()
