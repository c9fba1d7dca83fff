"""What all plots share: checks of the result, new axes, colours, colour bars and legends."""

import numpy as np
import xarray as xr

SKIP_LABELS = {
    "norm_ratio": "norm of skip / norm of branch",
    "cosine": "cosine of skip and branch",
}
LONG_ENTRY = 26


def expect_array(result, dims, optional=()):
    """Return a DataArray of these dims, in this order, or raise a `ValueError`."""
    wanted = f"({', '.join(dims)}{''.join(f'[, {name}]' for name in optional)})"
    if not isinstance(result, xr.DataArray):
        raise ValueError(f"Expected a DataArray of dims {wanted}. Received: {_describe(result)}")
    rest = set(result.dims) - set(dims)
    if set(dims) - set(result.dims) or rest - set(optional) or not result.size:
        raise ValueError(f"Expected a DataArray of dims {wanted}. Received: {_describe(result)}")
    return result.transpose(*dims, *(name for name in optional if name in rest))


def expect_variable(result, name, dims):
    """Return variable `name` of a Dataset, of dims `dims`, or raise a `ValueError`."""
    if not isinstance(result, xr.Dataset) or name not in result.data_vars:
        raise ValueError(
            f"Expected a Dataset with {name}({', '.join(dims)}). Received: {_describe(result)}"
        )
    return expect_array(result[name], dims)


def _describe(result):
    if isinstance(result, xr.Dataset):
        return f"Dataset with variables {sorted(map(str, result.data_vars))}"
    if isinstance(result, xr.DataArray):
        return f"DataArray of dims ({', '.join(map(str, result.dims))}) and shape {result.shape}"
    return type(result).__name__


def expect_skip_variable(variable):
    """Return `variable` if `skip_ratio` has it, or raise a `ValueError`."""
    if variable not in SKIP_LABELS:
        raise ValueError(f"Expected variable in {list(SKIP_LABELS)}. Received: {variable!r}")
    return variable


def layer_names(result, dim="layer"):
    """Names along a dim of layers; their indices where it has no coordinate."""
    return [str(name) for name in result[dim].values]


def select_layers(result, layers):
    """The named layers, in the order asked for; all if `layers` is None."""
    if layers is None:
        return result
    known = layer_names(result)
    unknown = [name for name in layers if name not in known]
    if unknown or not len(layers):
        raise ValueError(f"Expected layers among {known}. Received: {list(layers)}")
    return result.isel(layer=[known.index(name) for name in layers])


def titled(text, result):
    """The title of a plot, with the model's name where the result has one."""
    model = result.attrs.get("model", "")
    return f"{text}: {model}" if model else text


def new_axes(width, height):
    """Axes of a new figure of a size in inches."""
    import matplotlib.pyplot as plt

    return plt.subplots(figsize=(width, height), layout="constrained")[1]


def shrink_wrap(ax, width, height):
    """Size a new figure so that its axes get this many inches, whatever their labels take."""
    figure = ax.figure
    figure.draw_without_rendering()
    whole = figure.get_tightbbox()
    inner = ax.get_window_extent().transformed(figure.dpi_scale_trans.inverted())
    figure.set_size_inches(
        width + whole.width - inner.width + 0.1, height + whole.height - inner.height + 0.1
    )


def side(layers):
    """Length in inches of an axis that has to name so many layers."""
    return float(np.clip(0.16 * layers, 3.2, 6))


def colours(name):
    """A colour map that shows missing values as grey."""
    import matplotlib

    return matplotlib.colormaps[name].with_extremes(bad="0.85")


def depth_colours(count):
    """Colours from dark (first) to bright (last layer), none too pale for white paper."""
    return list(colours("viridis")(np.linspace(0, 0.9, count)))


def distinct_colours(count):
    """Colours to tell lines apart, as many as 20 of them."""
    palette = colours("tab10" if count <= 10 else "tab20")
    return [palette(index % palette.N) for index in range(count)]


def colour_bar(ax, image, label):
    """A colour bar whose ends are pointed where values lie beyond them."""
    values, norm = image.get_array(), image.norm
    low, high = bool((values < norm.vmin).any()), bool((values > norm.vmax).any())
    extend = {(0, 0): "neither", (1, 0): "min", (0, 1): "max", (1, 1): "both"}[low, high]
    return ax.figure.colorbar(
        image, ax=ax, label=label, extend=extend, fraction=0.046, pad=0.03, aspect=30
    )


def plain_log(axis):
    """Ticks at 1, 2 and 5 of each decade, written out; closer where there is less than one."""
    from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

    low, high = axis.get_view_interval()
    decades = np.log10(high / low)
    steps = (1, 1.25, 1.5, 2, 3, 5, 6.5, 8) if decades < 1 else (1, 2, 5) if decades < 4 else (1,)
    axis.set_major_locator(LogLocator(subs=steps, numticks=20))
    axis.set_minor_locator(NullLocator())
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))


def tidy(ax):
    """Leave of a line plot's frame what its values need."""
    ax.spines[["top", "right"]].set_visible(False)
    ax.grid(axis="y", color="0.9", linewidth=0.8)
    ax.set_axisbelow(True)


def legend(ax, title=None):
    """A legend beside the axes, where it covers nothing; long entries break after the model."""
    handles, labels = ax.get_legend_handles_labels()
    if max(map(len, labels)) > LONG_ENTRY:
        labels = [label.replace(": ", ":\n", 1) for label in labels]
    return ax.legend(
        handles,
        labels,
        title=title,
        loc="upper left",
        bbox_to_anchor=(1.01, 1),
        borderaxespad=0,
        frameon=False,
        fontsize=8,
        title_fontsize=8,
        handlelength=3.2,
        alignment="left",
    )
