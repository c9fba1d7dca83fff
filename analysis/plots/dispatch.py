"""`plot`: the plot of any result, found by its variables and dims."""

import inspect
from typing import TYPE_CHECKING

import xarray as xr

from ..engine.results import describe, expect_results

if TYPE_CHECKING:
    from matplotlib.axes import Axes

# The plot of a result with this variable ("" for a DataArray itself) of these dims.
PLOTS = {
    ("without", "part layer_x layer_y"): "cka_sensitivity",
    ("cka", "layer_x layer_y"): "cka",
    ("cka", "layer"): "best_matching_layer",
    ("cka", "model_x model_y part"): "last_layer_cka",
    ("cka", "order subset layer"): "head_similarity",
    ("similarity", "measure layer_x layer_y"): "similarities",
    ("", "layer_x layer_y"): "cka",
    ("", "layer token row column"): "localization",
    ("dimension", "measure layer"): "intrinsic_dimension",
    ("cka_to_start", "epoch layer"): "formation",
    ("", "layer head"): "attention_distance",
    ("raw", "layer head query key"): "mean_attention",
    ("", "layer head row column"): "attention_maps",
    ("", "layer head row_offset column_offset"): "aligned_attention",
    ("row_offset", "layer head"): "attention_offset",
    ("kind", "layer head"): "head_classes",
    ("repetition", "query layer layer_other"): "attention_patterns",
    ("iou", "query layer head"): "attention_saliency",
    ("", "layer query key"): "attention_rollout",
    ("", "example query key"): "rollout_of_images",
    ("attention", "example layer head query key"): "attention_rows",
    ("", "example class query key"): "gradient_attention",
    ("", "layer row column"): "receptive_field",
    ("norm_ratio", "layer token"): "skip_ratio",
    ("skip", "example layer token"): "branch_norms",
    ("", "component row column channel"): "patch_filters",
    ("", "row column other_row other_column"): "position_similarity",
    ("", "example layer place row column"): "position_attribution",
    ("", "example class row column channel"): "input_gradients",
    ("", "example class layer row column"): "grad_cam",
    ("", "example layer class"): "logit_lens",
    ("agreement", "layer"): "lens_accuracy",
    ("output_change", "layer head"): "head_ablation",
    ("accuracy_change", "layer head"): "head_ablation",
    ("accuracy_change", "layer path"): "skip_ablation",
    ("accuracy_change", "tokens share"): "token_ablation",
    ("transfer", "layer token"): "activation_patching",
    ("", "layer example token other_example other_token"): "token_similarity",
    **{("", f"layer l2{dims}"): "ridge_probe" for dims in ("", " token", " seed", " token seed")},
    ("", "layer token"): "probe_map",
    ("", "layer"): "ridge_probe",
    ("", "layer tokens batch_norm"): "linear_probe",
    ("", "layer k top"): "knn_accuracy",
    ("score", "layer difficulty"): "retrieval",
    ("purity", "layer"): "clustering",
    ("score", "layer"): "label_propagation",
    ("score", "average layer threshold"): "keypoint_correspondence",
    ("training_flops", "run"): "compute",
    ("values", "claim training"): "trainings",
}


def plot(
    result: xr.DataArray | xr.Dataset | dict[str, xr.DataArray | xr.Dataset],
    ax: "Axes | None" = None,
    **options,
) -> "Axes":
    """Draw any result of a measurement, by the plot named `plot_<measurement>`.

    Args:
        result: what a measurement returns; or a dict from label to several results of one
            measurement, where its plot compares several.
        ax: Matplotlib axes to draw in; those of a new figure if None.
        **options: further arguments of that plot, such as `query="cls"` or `layers=[...]`.

    Returns:
        The Matplotlib axes. A plot of several panels has them as the array `ax.panels`.

    Raises:
        ValueError: if no plot draws such a result, and as that plot.
        TypeError: for an option that the plot does not have.

    Examples:
        >>> rollout = analysis.attention_rollout(model, images)
        >>> ax = analysis.plot(rollout, query="cls")

    See also:
        `plot_cka`, `plot_attention_distance` and the other plots by name.
    """
    from .. import plots

    several = isinstance(result, dict)
    results = expect_results(result).values() if several else [result]
    names = {_plot_of(each) for each in results}
    if len(names) > 1:
        raise ValueError(f"Expected results of one measurement. Received: {sorted(names)}")
    (name,) = names
    draw = getattr(plots, f"plot_{name}")
    parameters = list(inspect.signature(draw).parameters)
    if several and parameters[0] != "results":
        raise ValueError(
            f"plot_{name} draws one result at a time. Received: {len(result)} results; draw each "
            "with its own ax="
        )
    if unknown := sorted(set(options) - set(parameters)):
        raise TypeError(
            f"Expected options of plot_{name} among {parameters[1:]}. Received: {unknown}"
        )
    return draw(result, ax=ax, **options)


def _plot_of(result):
    """The measurement of a result."""
    if isinstance(result, xr.DataArray):
        dims = {"": set(result.dims)}
        if result.name == "mean_distance":  # of the dims of `attention_distance`
            return result.name
    elif isinstance(result, xr.Dataset):
        dims = {name: set(variable.dims) for name, variable in result.data_vars.items()}
    else:
        dims = {}
    for (variable, wanted), name in PLOTS.items():
        if dims.get(variable) == set(wanted.split()):
            return name
    raise ValueError(f"Expected a result of a measurement. Received: {describe(result)}")
