"""What is drawn is the result: values, orientation, scales and names, as the artists have them."""

import ast
from pathlib import Path

import matplotlib
import matplotlib.pyplot as plt
import numpy as np
import pytest
import xarray as xr
from matplotlib.collections import LineCollection
from matplotlib.colors import to_hex
from matplotlib.patches import Rectangle
from paths import ROOT
from plot_results import results
from scipy import stats
from study_parts import cka_result

from vit_tf.analysis import plots
from vit_tf.analysis.plots import primitives as naming, style
from vit_tf.analysis.report.rendering import share_scales

SITES = [f"block{block:02}/{site}" for block in range(3) for site in ("attention", "mlp")]


def _vit_taps(blocks):
    attention = ["norm", "weights", "heads", "skip", "branch", "sum"]
    mlp = ["norm", "hidden", "skip", "branch", "sum"]
    return [
        "embedding",
        *(
            f"block{block:02}/{site}/{what}"
            for block in range(blocks)
            for site, whats in (("attention", attention), ("mlp", mlp))
            for what in whats
        ),
        "norm",
        "pooled",
        "logits",
    ]


def _cka(rng, x, y, **attrs):
    values = rng.uniform(0.1, 0.9, (len(x), len(y)))
    return cka_result(values, x, y, stderr=0.02 * values, **attrs)


def _distances(rng, layers=3, heads=4):
    names = [f"block{block:02}/attention/weights" for block in range(layers)]
    values = rng.uniform(5, 20, (layers, heads))
    return xr.DataArray(values, dims=("layer", "head"), coords={"layer": names})


def _fields(rng, names=("root", "stage1/unit01/sum", "norm")):
    scale = 10.0 ** -np.arange(len(names))[:, None, None]
    values = scale * rng.uniform(0, 1, (len(names), 6, 8))
    return xr.DataArray(values, dims=("layer", "row", "column"), coords={"layer": list(names)})


def _skips(rng, layers=SITES, tokens=20, **attrs):
    dims = ("layer", "token")
    return xr.Dataset(
        {
            "norm_ratio": (dims, np.exp(rng.normal(0, 1, (len(layers), tokens)))),
            "cosine": (dims, rng.uniform(-1, 1, (len(layers), tokens))),
        },
        coords={"layer": list(layers)},
        attrs={"prefix": 1} | attrs,
    )


def _probe(rng, l2=(0.1,), layers=SITES, tokens=None, **attrs):
    dims, shape = ["layer", "l2"], [len(layers), len(l2)]
    if tokens:
        dims, shape = [*dims, "token"], [*shape, tokens]
    coords = {"layer": list(layers), "l2": list(l2)}
    return xr.DataArray(rng.uniform(0.1, 0.9, shape), dims=dims, coords=coords, attrs=attrs)


def _ticks(ax, which="x"):
    """Dict from name to position of all named ticks."""
    axis = getattr(ax, f"{which}axis")
    names = axis.get_ticklabels(which="both")
    places = [*axis.get_majorticklocs(), *axis.get_minorticklocs()]
    pairs = zip((text.get_text() for text in names), places, strict=True)
    return {name: place for name, place in pairs if name}


def _legend(ax):
    return [text.get_text() for text in ax.get_legend().get_texts()]


def _overlap(*axes, which="xy"):
    """Whether any two names of an axis of a figure overlap once drawn."""
    axes[0].figure.draw_without_rendering()
    for axis in (getattr(ax, f"{letter}axis") for ax in axes for letter in which):
        labels = axis.get_ticklabels(which="both")
        boxes = [text.get_window_extent() for text in labels if text.get_text()]
        if any(a.overlaps(b) for i, a in enumerate(boxes) for b in boxes[:i]):
            return True
    return False


WORDS = ("names",)


def test_plots_import_neither_tensorflow_nor_matplotlib_eagerly():
    # Modules about words, which import nothing further.
    words = {f"vit_tf.common.{name}": ROOT / f"vit_tf/common/{name}.py" for name in WORDS}
    for path in [*Path(plots.__file__).parent.glob("*.py"), *words.values()]:
        tree = ast.parse(path.read_text())
        imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
        names = [getattr(node, "module", None) or node.names[0].name for node in imports]
        roots = {name.partition(".")[0] for name in names if name not in words}
        assert not roots & {"tensorflow", "keras", "vit_tf"}
        top = [node for node in imports if node in tree.body]
        assert not any("matplotlib" in ast.unparse(node) for node in top)


def test_cka_has_layer_x_rightwards_and_layer_y_upwards(rng):
    x, y = ["a", "b", "c"], ["d", "e"]
    result = _cka(rng, x, y, model_x="ViT", model_y="BiT")
    ax = plots.plot_cka(result)
    (image,) = ax.get_images()
    for i, name_x in enumerate(x):
        for j, name_y in enumerate(y):
            expected = result.cka.sel(layer_x=name_x, layer_y=name_y).item()
            assert image.get_array()[j, i] == expected
    assert _ticks(ax) == {"a": 0, "b": 1, "c": 2}
    assert _ticks(ax, "y") == {"d": 0, "e": 1}
    assert ax.get_ylim() == (-0.5, 1.5)
    assert image.origin == "lower"
    assert ax.get_title() == "CKA between layers: ViT and BiT"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("layer of ViT", "layer of BiT")
    assert ax.get_aspect() == "auto"


def test_cka_colours_are_fixed_with_arrows_for_values_beyond(rng):
    result = _cka(rng, SITES, SITES, model_x="ViT", model_y="ViT")
    ax = plots.plot_cka(result)
    bar = ax.get_images()[0].colorbar
    assert ax.get_images()[0].get_clim() == (0, 1)
    assert bar.extend == "neither"
    assert f"standard error at most {result.stderr.max().item():.1g}" in bar.ax.get_ylabel()
    assert ax.get_aspect() == 1
    result["cka"][0, 1], result["cka"][2, 3] = -0.05, np.nan
    for unknown in (result[["cka"]], result.assign(stderr=np.nan * result.stderr)):
        image = plots.plot_cka(unknown).get_images()[0]
        assert image.get_clim() == (0, 1)
        assert image.colorbar.extend == "min"
        assert image.colorbar.ax.get_ylabel() == "CKA"
        assert image.get_array()[1, 0] == -0.05
        assert image.get_array().mask.sum() == 1 and image.get_array().mask[3, 2]


@pytest.mark.slow
@pytest.mark.parametrize("blocks", [1, 6, 12, 24])
def test_many_layers_are_named_by_block_without_overlap(blocks, rng):
    taps = _vit_taps(blocks)
    ax = plots.plot_cka(_cka(rng, taps, taps))
    assert not _overlap(ax)
    ticks = _ticks(ax)
    assert set(ticks) == set(_ticks(ax, "y"))
    if blocks == 1:
        assert list(ticks) == taps
    else:
        assert ticks["embedding"] == 0
        assert ticks["norm … logits"] == len(taps) - 2
        assert ticks["block01"] == pytest.approx(1 + 11 + 5)
        assert 11.5 in ax.get_xticks()


@pytest.mark.slow
def test_small_panels_drop_names_rather_than_smear_them(rng):
    taps = _vit_taps(12)
    _, axes = plt.subplots(1, 4, figsize=(14, 3.6), layout="constrained")
    for ax in axes:
        plots.plot_cka(_cka(rng, taps, taps), ax=ax)
    assert not _overlap(*axes)


def test_group_layers_chooses_a_level_of_the_hierarchy():
    taps = [f"stage{stage}/unit{unit:02}/sum" for stage in range(1, 5) for unit in range(1, 4)]
    taps = ["root", *[tap.replace("sum", what) for tap in taps for what in ("skip", "sum")]]
    units = naming.group_layers(taps, 20)
    assert units[:3] == [("root", 0, 1), ("stage1/unit01", 1, 3), ("stage1/unit02", 3, 5)]
    assert units[-1][2] == len(taps)
    stages = naming.group_layers(taps, 10)
    assert [name for name, _, _ in stages] == ["root", "stage1", "stage2", "stage3", "stage4"]
    assert naming.group_layers(taps, 4) is None
    assert naming.group_layers([f"layer{index}" for index in range(99)], 20) is None


def test_flat_names_without_hierarchy_are_thinned(rng):
    names = [f"layer{index}" for index in range(200)]
    ax = plots.plot_cka(_cka(rng, names, names))
    ticks = _ticks(ax)
    assert 10 < len(ticks) < 60
    assert all(name == f"layer{place:.0f}" for name, place in ticks.items())
    assert not _overlap(ax, which="x")


@pytest.mark.parametrize(
    ("names", "short", "cut"),
    [
        (["block0/mlp/sum", "block1/mlp/sum"], ["block0", "block1"], "…/mlp/sum"),
        (["vit/block0/mha", "vit/block1/mha"], ["block0", "block1"], "vit/…/mha"),
        (["vit/a", "vit/b/c"], ["a", "b/c"], "vit/…"),
        (["a/sum", "sum"], ["a/sum", "sum"], ""),
        (["a/b"], ["a/b"], ""),
    ],
)
def test_shorten_cuts_what_all_names_share(names, short, cut):
    assert naming.shorten(names) == (short, cut)


def test_attention_distance_sorts_heads_within_each_layer(rng):
    result = _distances(rng)
    ax = plots.plot_attention_distance(result)
    assert len(ax.lines) == 3
    for line, heads in zip(ax.lines, result.values, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), [1, 2, 3, 4])
        np.testing.assert_array_equal(line.get_ydata(), sorted(heads))
    assert _legend(ax) == ["block00", "block01", "block02"]
    assert ax.get_legend().get_title().get_text() == "layer (…/attention/weights)"
    assert "pixels" in ax.get_ylabel()
    assert ax.get_ylim()[0] == 0
    assert len({to_hex(line.get_color()) for line in ax.lines}) == 3


def test_attention_distance_of_many_layers_and_of_one_head(rng):
    ax = plots.plot_attention_distance(_distances(rng, layers=40))
    bar = ax.figure.axes[1]
    assert ax.get_legend() is None
    assert _ticks(bar, "y")["block02"] == 2
    assert not _overlap(bar, which="y")
    ax = plots.plot_attention_distance(_distances(rng, heads=1))
    assert [len(line.get_xdata()) for line in ax.lines] == [1, 1, 1]


def test_receptive_fields_are_coloured_by_the_square_root(rng):
    ax = plots.plot_receptive_field(_fields(rng))
    assert ax.panels[0].get_ylim() == (5.5, -0.5)
    assert ax.panels[0].images[0].norm(0.25) == pytest.approx(0.5)
    (bar,) = (other for other in ax.figure.axes[1:] if other not in ax.panels)
    assert bar.get_ylabel() == "|gradient| / panel maximum (√ scale)"
    assert "own maximum" in ax.get_title()


def test_receptive_field_that_is_zero_stays_zero(rng):
    axes = plots.plot_receptive_field(0 * _fields(rng)).panels
    assert all((ax.get_images()[0].get_array() == 0).all() for ax in axes)


def test_skip_ratio_heatmap_shows_first_tokens_in_colours_centred_on_one(rng):
    result = _skips(rng, tokens=20, model="ViT")
    ax = plots.plot_skip_ratio(result)
    (image,) = ax.get_images()
    np.testing.assert_array_equal(image.get_array(), result.norm_ratio.values[:, :16].T)
    assert image.norm(1) == pytest.approx(0.5)
    assert image.norm.vmin * image.norm.vmax == pytest.approx(1)
    shown = result.norm_ratio.values[:, :16]
    assert image.norm.vmax == pytest.approx(max(shown.max(), 1 / shown.min()), rel=1e-5)
    assert image.colorbar.extend == "neither"
    assert list(_ticks(ax)) == SITES
    assert [*_ticks(ax, "y")][:3] == ["0 (CLS)", "1", "2"]
    assert ax.get_ylim() == (15.5, -0.5)
    assert ax.get_title() == "Skip-to-branch norm ratio, first 16 of 20 tokens: ViT"
    assert ax.get_ylabel() == "token (first 16 of 20)"
    assert "1" in _ticks(image.colorbar.ax, "y")
    registers = plots.plot_skip_ratio(result.assign_attrs(prefix=3))
    assert [*_ticks(registers, "y")][:4] == ["0 (CLS)", "1 (prefix)", "2 (prefix)", "3"]
    every_token = plots.plot_skip_ratio(result.assign_attrs(prefix=0), tokens=99)
    assert every_token.get_images()[0].get_array().shape == (20, 6)
    assert "all tokens" in every_token.get_title()
    assert "0" in _ticks(every_token, "y")


def test_skip_ratio_cosine_and_missing_tokens(rng):
    result = _skips(rng, tokens=8, prefix=0)
    result["cosine"][4:, 3:] = np.nan
    image = plots.plot_skip_ratio(result, variable="cosine").get_images()[0]
    assert image.get_clim() == (-1, 1)
    assert image.get_array().mask.sum() == 10
    assert "grey: no such token" in image.colorbar.ax.get_ylabel()


@pytest.mark.parametrize("variable", ["norm_ratio", "cosine"])
def test_skip_lines_split_kinds_of_token_and_sites(variable, rng):
    result = _skips(rng)
    ax = plots.plot_skip_ratio_lines(result, variable=variable)
    lines = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
    assert list(lines) == [
        "CLS token, attention",
        "CLS token, mlp",
        "spatial tokens, attention",
        "spatial tokens, mlp",
    ]
    values = result[variable].values
    np.testing.assert_allclose(lines["CLS token, mlp"].get_ydata(), values[1::2, 0])
    spatial = lines["spatial tokens, attention"]
    np.testing.assert_allclose(spatial.get_ydata(), values[::2, 1:].mean(1))
    np.testing.assert_array_equal(spatial.get_xdata(), [0, 2, 4])
    assert list(_ticks(ax)) == SITES
    assert ax.get_yscale() == ("log" if variable == "norm_ratio" else "linear")
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines.values()}
    assert len(looks) == 4
    assert sorted(_legend(ax)) == sorted(lines)


def test_skip_lines_of_several_models_share_a_normalised_depth(rng):
    units = [f"stage{stage}/unit{unit:02}" for stage in (1, 2) for unit in (1, 2)]
    bit = _skips(rng, layers=units, tokens=16, prefix=0)
    bit["norm_ratio"][2:, 4:] = np.nan
    ax = plots.plot_skip_ratio_lines({"ViT": _skips(rng), "BiT": bit})
    lines = {line.get_label(): line for line in ax.lines}
    line = lines["BiT: spatial tokens"]
    np.testing.assert_allclose(line.get_xdata(), [0, 1 / 3, 2 / 3, 1])
    np.testing.assert_allclose(line.get_ydata()[3], bit.norm_ratio.values[3, :4].mean())
    np.testing.assert_allclose(lines["ViT: CLS token, mlp"].get_xdata(), [0.2, 0.6, 1])
    assert not set(_ticks(ax)) & {*SITES, *units}
    assert "normalised depth" in ax.get_xlabel()
    registers = plots.plot_skip_ratio_lines(_skips(rng, prefix=3))
    assert {"CLS token, mlp", "other prefix tokens, mlp"} < set(_legend(registers))


def test_lines_of_many_models_differ_in_their_style(rng):
    ax = plots.plot_skip_ratio_lines({f"ViT {index}": _skips(rng) for index in range(8)})
    lines = [line for line in ax.lines if not line.get_label().startswith("_")]
    looks = {(line.get_color(), line.get_linestyle(), line.get_marker()) for line in lines}
    assert len(looks) == len(lines) == 32
    ax = plots.plot_ridge_probe({str(index): _probe(rng) for index in range(15)})
    assert len({(line.get_color(), line.get_marker()) for line in ax.lines}) == 15


def test_skip_lines_require_the_prefix(rng):
    result = _skips(rng)
    del result.attrs["prefix"]
    with pytest.raises(ValueError, match=r"a result with the attribute 'prefix'\. Received: \[\]"):
        plots.plot_skip_ratio_lines({"ViT": result})


def test_ridge_probe_draws_every_l2_and_chooses_none(rng):
    result = _probe(rng, l2=(0.01, 1.0, 100.0))
    ax = plots.plot_ridge_probe({"ViT": result})
    assert len(ax.lines) == 3
    for line, column in zip(ax.lines, result.values.T, strict=True):
        np.testing.assert_array_equal(line.get_xdata(), np.arange(6))
        np.testing.assert_array_equal(line.get_ydata(), column)
    assert _legend(ax) == ["ViT, l2 = 0.01", "ViT, l2 = 1", "ViT, l2 = 100"]
    assert len({line.get_linestyle() for line in ax.lines}) == 3
    assert list(_ticks(ax)) == SITES
    ax.figure.draw_without_rendering()
    assert ax.yaxis.get_major_formatter()(0.55) == "55"


def test_ridge_probe_of_one_chosen_l2(rng):
    result = _probe(rng, l2=(0.01, 1.0), model="BiT")
    ax = plots.plot_ridge_probe(result.sel(l2=1.0))
    (line,) = ax.lines
    np.testing.assert_array_equal(line.get_ydata(), result.values[:, 1])
    assert _legend(ax) == ["BiT"]
    unnamed = plots.plot_ridge_probe(_probe(rng))
    assert _legend(unnamed) == ["l2 = 0.1"]


def test_ridge_probe_overlays_models(rng):
    results = {"CLS": _probe(rng), "GAP": _probe(rng)}
    ax = plots.plot_ridge_probe(results)
    assert list(_ticks(ax)) == SITES
    assert len({(line.get_color(), line.get_marker()) for line in ax.lines}) == 2
    ax = plots.plot_ridge_probe(results | {"BiT": _probe(rng, layers=["root", "norm"])})
    np.testing.assert_array_equal(ax.lines[2].get_xdata(), [0, 1])
    ax.figure.draw_without_rendering()
    assert not set(_ticks(ax)) & set(SITES)
    assert "normalised depth" in ax.get_xlabel()
    assert _legend(ax) == ["CLS", "GAP", "BiT"]
    assert len({line.get_color() for line in ax.lines}) == 3


def _several(rng, count, layers=SITES):
    return {
        f"model {index}\n9{index} % accuracy": _cka(rng, layers, layers) for index in range(count)
    }


@pytest.mark.slow
def test_cka_of_several_draws_every_result_at_one_size_and_scale(rng):
    results = _several(rng, 7)
    results["model 1\n91 % accuracy"].cka[0, 0] = -0.1
    axes = plots.plot_cka(results).panels
    assert axes.shape == (7,)
    assert [ax.get_title() for ax in axes] == list(results)
    for ax, result in zip(axes, results.values(), strict=True):
        (image,) = ax.get_images()
        np.testing.assert_array_equal(image.get_array(), result.cka.values.T)
        assert image.get_clim() == (0, 1)
        assert image.origin == "lower"
    figure = axes[0].figure
    figure.draw_without_rendering()
    boxes = [ax.get_window_extent() for ax in axes]
    sizes = [side for box in boxes for side in (box.width, box.height)]
    np.testing.assert_allclose(sizes, sizes[0], rtol=0.01)
    assert sizes[0] > 1.8 * figure.dpi
    assert boxes[3].y0 == pytest.approx(boxes[0].y0)
    assert boxes[4].y1 < boxes[0].y0
    assert boxes[4].x0 == pytest.approx(boxes[0].x0)
    (bar,) = (ax for ax in figure.axes[1:] if ax not in axes)
    worst = max(result.stderr.max().item() for result in results.values())
    assert bar.get_ylabel() == f"CKA (standard error at most {worst:.1g})"
    assert axes[-1].get_images()[0].colorbar.extend == "min"


@pytest.mark.slow
def test_measures_are_drawn_next_to_their_disagreement_at_fixed_scales(rng):
    values = rng.uniform(-0.2, 0.9, (3, 4, 6))
    values[1, 2] = np.nan
    apart = rng.uniform(0, 0.5, (4, 6))
    dims = ("measure", "layer_x", "layer_y")
    coords = {"measure": ["cka", "rsa_pearson", "own"], "layer_x": SITES[:4], "layer_y": SITES}
    data = {"similarity": (dims, values), "disagreement": (dims[1:], apart)}
    attrs = {"model": "ViT", "model_x": "ViT", "model_y": "BiT"}
    axes = plots.plot_similarities(xr.Dataset(data, coords, attrs)).panels
    assert axes[0].figure.axes[0].get_title() == "Similarity measures between layers: ViT"
    titles = ["CKA", "RSA, Pearson", "own", "disagreement of the measures"]
    assert [ax.get_title() for ax in axes] == titles
    for ax, drawn in zip(axes, [*values, apart], strict=True):
        (image,) = ax.images
        np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), drawn.T)
        assert image.get_clim() == (0, 1)
    maps = [ax.images[0].get_cmap().name for ax in axes]
    assert maps == ["magma"] * 3 + ["cividis"]
    bars = [ax for ax in axes[0].figure.axes[1:] if ax not in list(axes)]
    assert [bar.get_ylabel() for bar in bars] == [
        "similarity",
        "disagreement in the order of pairs",
    ]


def test_measures_that_differ_from_1_for_a_layer_with_itself_say_so(rng):
    values = rng.uniform(0.2, 0.9, (2, 6, 6))
    for number, own in enumerate((1.0, 0.6)):
        np.fill_diagonal(values[number], own)
    dims = ("measure", "layer_x", "layer_y")
    coords = {"measure": ["cka", "own"], "layer_x": SITES, "layer_y": SITES}
    data = {"similarity": (dims, values), "disagreement": (dims[1:], values[0])}
    result = xr.Dataset(data, coords, {"model_x": "ViT", "model_y": "ViT"})
    titles = [ax.get_title() for ax in plots.plot_similarities(result).panels]
    assert titles[:2] == ["CKA", "own\n(a layer with itself: 0.60 or more)"]
    other = plots.plot_similarities(result.assign_attrs(model_y="another run")).panels
    assert other[1].get_title() == "own"


def test_a_measure_that_finds_no_layer_similar_to_itself_is_named_and_not_drawn(rng):
    values = np.stack([np.eye(6), rng.uniform(-0.2, 0.3, (6, 6))])
    values[1, 2, 2] = np.nan
    dims = ("measure", "layer_x", "layer_y")
    measures = ["cka", "linear_predictivity"]
    coords = {"measure": measures, "layer_x": SITES, "layer_y": SITES}
    data = {"similarity": (dims, values), "disagreement": (dims[1:], values[0])}
    result = xr.Dataset(data, coords, {"model_x": "ViT", "model_y": "ViT"})
    ax = plots.plot_similarities(result)
    assert [panel.get_title() for panel in ax.panels] == ["CKA", "disagreement of the measures"]
    most = np.nanmax(np.diag(values[1]))
    note = f"not drawn: linear predictivity, which is at most {most:.2f} for a layer with itself"
    assert ax.get_title().split("\n")[1] == note


def test_cka_of_several_names_shared_layers_at_the_outer_panels(rng):
    axes = plots.plot_cka(_several(rng, 7)).panels
    assert [bool(_ticks(ax)) for ax in axes] == [False] * 4 + [True] * 3
    assert [bool(_ticks(ax, "y")) for ax in axes] == [True, *[False] * 3, True, *[False] * 2]
    assert _ticks(axes[4]) == _ticks(axes[4], "y") == {name: i for i, name in enumerate(SITES)}
    assert axes[4].get_xlabel() == axes[4].get_ylabel() == "layer"
    assert not _overlap(*axes)
    axes = plots.plot_cka(_several(rng, 6)).panels
    assert [bool(_ticks(ax)) for ax in axes] == [False] * 3 + [True] * 3
    assert [bool(_ticks(ax, "y")) for ax in axes] == [True, False, False] * 2


@pytest.mark.slow
def test_cka_of_several_names_layers_at_every_panel_where_they_differ(rng):
    results = {"all skips": _cka(rng, SITES, SITES), "fewer": _cka(rng, SITES[1:], SITES[1:])}
    axes = plots.plot_cka(results).panels
    for ax, names in zip(axes, (SITES, SITES[1:]), strict=True):
        assert list(_ticks(ax)) == list(_ticks(ax, "y")) == names
    results = {name: _cka(rng, SITES, [name], model_x="ViT", model_y=name) for name in ("BiT", "R")}
    axes = plots.plot_cka(results).panels
    assert [ax.get_ylabel() for ax in axes] == ["layer of BiT", "layer of R"]
    assert [ax.get_xlabel() for ax in axes] == ["layer of ViT"] * 2


def _marks(ax):
    """Dict from marker to the list of the (column, row) that it marks."""
    lines = [line for line in ax.lines if line.get_marker() != "None"]
    return {
        line.get_marker(): list(zip(*map(list, line.get_data()), strict=True)) for line in lines
    }


def test_matches_mark_the_best_of_every_column(rng):
    result = _cka(rng, SITES, SITES, model_x="ViT", model_y="ViT, seed 1")
    result["cka"][:] *= 0.5
    for column, best in enumerate([0, 1, 1, 5, 4, 5]):
        result["cka"][column, best] = 0.9
    ax = plots.plot_layer_match_accuracy(result)
    assert _marks(ax) == {"o": [(0, 0), (1, 1), (4, 4), (5, 5)], "X": [(2, 1), (3, 5)]}
    np.testing.assert_array_equal(ax.get_images()[0].get_array(), result.cka.values.T)
    diagonal = ax.lines[0]
    np.testing.assert_array_equal(diagonal.get_xdata(), diagonal.get_ydata())
    heading = ax.get_legend().get_title().get_text()
    assert heading == "4 of 6 layers match the corresponding layer best"
    assert _legend(ax)[1:] == ["best match: corresponding layer", "best match: another layer"]
    assert ax.get_title() == "Best matching layers: ViT and ViT, seed 1"
    assert (ax.get_xlabel(), ax.get_ylabel()) == ("layer of ViT", "layer of ViT, seed 1")
    assert ax.get_xlim() == ax.get_ylim() == (-0.5, 5.5)
    ax.figure.draw_without_rendering()
    legend = ax.get_legend().get_window_extent()
    assert ax.title.get_window_extent().y0 > legend.y1 > legend.y0 > ax.get_window_extent().y1


def test_matches_leave_columns_without_values_unmarked_and_draw_on_given_axes(rng):
    result = _cka(rng, SITES, SITES)
    result["cka"][2] = np.nan
    result["cka"][3, 3] = np.nan
    figure, ax = plt.subplots()
    assert plots.plot_layer_match_accuracy(result, ax=ax) is ax
    assert plt.get_fignums() == [figure.number]
    marks = sorted(column for places in _marks(ax).values() for column, _ in places)
    assert marks == [0, 1, 3, 4, 5]
    assert ax.get_title() == "Best matching layers"


def test_matches_need_the_same_layers(rng):
    with pytest.raises(ValueError, match=r"same layers along both dims\. Received: \['norm'\]"):
        plots.plot_layer_match_accuracy(_cka(rng, SITES, [*SITES, "norm"]))
    with pytest.raises(ValueError, match="Received: another order"):
        plots.plot_layer_match_accuracy(_cka(rng, SITES, SITES[::-1]))


def _counterparts(rng, layers=SITES, **attrs):
    values = rng.uniform(0.2, 0.9, len(layers))
    dataset = {"cka": ("layer", values), "stderr": ("layer", 0.05 * values)}
    attrs |= {"examples": 500, "batch_size": 100}
    return xr.Dataset(dataset, coords={"layer": layers}, attrs=attrs)


def test_counterparts_draw_a_line_and_its_error_per_result(rng):
    results = {f"{share} %": _counterparts(rng, model_y="all") for share in (3, 10, 30)}
    results["10 %"]["stderr"][2:] = np.nan
    results["30 %"] = results["30 %"].drop_vars("stderr")
    ax = plots.plot_best_matching_layer(results)
    for line, (label, result) in zip(ax.lines, results.items(), strict=True):
        np.testing.assert_array_equal(line.get_data(), [np.arange(6), result.cka.values])
        assert line.get_label() == label
    brightness = [sum(to_rgb) for to_rgb in (line.get_color()[:3] for line in ax.lines)]
    assert brightness == sorted(brightness)
    band, part = ax.collections
    corners = band.get_paths()[0].vertices
    for depth, middle, error in zip(
        range(6), results["3 %"].cka.values, results["3 %"].stderr.values, strict=True
    ):
        heights = corners[corners[:, 0] == depth, 1]
        reach = stats.t.ppf(0.975, 4) * error
        np.testing.assert_allclose((heights.min(), heights.max()), (middle - reach, middle + reach))
    assert part.get_paths()[0].vertices[:, 0].max() == 1
    assert ax.get_ylim() == (0, 1)
    assert list(_ticks(ax)) == SITES
    assert _legend(ax) == list(results)
    assert ax.get_legend().get_title().get_text() == "band: 95 % CI over batches"
    assert ax.get_title() == "CKA between corresponding layers\nwith all"
    assert "CKA" in ax.get_ylabel()


def test_counterparts_beyond_the_scale_and_of_other_layers(rng):
    low, high = _counterparts(rng, model_y="a"), _counterparts(rng, SITES[:3], model_y="b")
    low["cka"][1], high["cka"][1] = -0.1, 1.05
    results = {"ViT": low.drop_vars("stderr"), "BiT": high.drop_vars("stderr")}
    ax = plots.plot_best_matching_layer(results, ax=plt.subplots()[1])
    assert ax.get_ylim()[0] < -0.1 and ax.get_ylim()[1] > 1.05
    np.testing.assert_allclose(ax.lines[1].get_xdata(), [0, 0.5, 1])
    assert "normalised depth" in ax.get_xlabel()
    assert not ax.collections and not ax.get_legend().get_title().get_text()
    assert ax.get_title() == "CKA between corresponding layers"
    (line,) = plots.plot_best_matching_layer(low.drop_vars("stderr")).lines
    np.testing.assert_array_equal(line.get_ydata(), low.cka.values)


BARS = "bars: standard deviation over seeds"


def _seeds(rng, seeds, **options):
    probes = [_probe(rng, **options) for _ in range(seeds)]
    return xr.concat(probes, "seed").assign_coords(seed=range(seeds))


@pytest.mark.parametrize(
    ("tokens", "seeds", "heading"),
    [
        (5, 0, ["line: mean over tokens", "band: range of tokens"]),
        (0, 1, [""]),
        (0, 4, ["line: mean over seeds", BARS]),
        (5, 3, ["line: mean over tokens and seeds", "band: range of tokens", BARS]),
    ],
)
def test_ridge_probe_of_tokens_and_seeds(tokens, seeds, heading, rng):
    result = _seeds(rng, seeds, tokens=tokens) if seeds else _probe(rng, tokens=tokens)
    if tokens:  # a layer has fewer
        result = result.where(
            (result.layer != SITES[1]) | (xr.DataArray(range(5), dims="token") < 2)
        )
    ax = plots.plot_ridge_probe({"ViT": result})
    of_tokens = result.mean("seed") if seeds else result
    of_seeds = (result.mean("token") if tokens else result).isel(l2=0)
    (line,) = [line for line in ax.lines if line.get_label() == "ViT"]
    expected = of_seeds.mean("seed") if seeds else of_seeds
    np.testing.assert_allclose(line.get_ydata(), expected)
    bands = [artist for artist in ax.collections if not isinstance(artist, LineCollection)]
    assert len(bands) == bool(tokens) and len(ax.containers) == (seeds > 1)
    for band in bands:
        x, y = band.get_paths()[0].vertices.T
        for depth, values in zip(np.arange(6), of_tokens.values[:, 0], strict=True):
            ends = y[np.isclose(x, depth)].min(), y[np.isclose(x, depth)].max()
            np.testing.assert_allclose(ends, (np.nanmin(values), np.nanmax(values)))
    for bars in ax.containers:
        ends = np.array([segment[:, 1] for segment in bars.lines[2][0].get_segments()])
        np.testing.assert_allclose(np.diff(ends)[:, 0], 2 * of_seeds.std("seed", ddof=1))
    assert ax.get_legend().get_title().get_text().split("\n") == heading


def test_ridge_probe_has_no_error_bar_where_one_seed_has_a_value(rng):
    result = _seeds(rng, 3)
    result[1:, 2] = np.nan
    ax = plots.plot_ridge_probe({"ViT": result})
    caps = [line.get_ydata() for line in ax.lines if line.get_marker() == "_"]
    assert [np.flatnonzero(np.isnan(ends)).tolist() for ends in caps] == [[2], [2]]


def test_ridge_probes_of_models_with_seeds_overlay(rng):
    ax = plots.plot_ridge_probe({str(index): _seeds(rng, 1 + index) for index in range(5)})
    lines = [line for line in ax.lines if line.get_label() in "01234"]
    assert [to_hex(line.get_color()) for line in lines] == [to_hex(f"C{n}") for n in range(5)]
    assert len({line.get_marker() for line in lines}) == 5
    assert len(ax.containers) == 4
    assert _legend(ax) == list("01234")
    assert list(_ticks(ax)) == SITES


def test_probe_variants_share_colours_by_model_and_styles_by_variant(rng):
    labels = ["CLS: first", "CLS: mean", "GAP: mean", "GAP: first", "BiT"]
    results = {label: _probe(rng).isel(l2=0) for label in labels}
    results["GAP: mean"] = _seeds(rng, 3).isel(l2=0)
    ax = plots.plot_probe_variants(results)
    lines = {line.get_label(): line for line in ax.lines if line.get_label() in labels}
    assert list(lines) == labels == _legend(ax)
    for label, line in lines.items():
        expected = results[label]
        expected = expected.mean("seed") if "seed" in expected.dims else expected
        np.testing.assert_allclose(line.get_ydata(), expected.values)
    colour = {label: to_hex(line.get_color()) for label, line in lines.items()}
    assert (
        colour["CLS: first"] == colour["CLS: mean"] != colour["GAP: mean"] == colour["GAP: first"]
    )
    assert len(set(colour.values())) == 3
    look = {label: (line.get_linestyle(), line.get_marker()) for label, line in lines.items()}
    assert look["CLS: first"] == look["GAP: first"] != look["CLS: mean"] == look["GAP: mean"]
    assert look["BiT"] not in (look["CLS: first"], look["CLS: mean"])
    assert len(ax.containers) == 1
    assert list(_ticks(ax)) == SITES
    assert ax.yaxis.get_major_formatter()(0.55) == "55"


def test_probe_variants_of_other_layers_and_errors(rng):
    short = _probe(rng, layers=["a", "b", "c"]).isel(l2=0)
    results = {"ViT: mean": _probe(rng).isel(l2=0), "BiT: mean": short}
    ax = plots.plot_probe_variants(results, ax=plt.subplots()[1])
    np.testing.assert_allclose(ax.lines[1].get_xdata(), [0, 0.5, 1])
    assert "normalised depth" in ax.get_xlabel()
    with pytest.raises(ValueError, match=r"dims \(layer\[, seed\]\)\. Received: .*\(layer, l2\)"):
        plots.plot_probe_variants({"ViT: mean": _probe(rng)})
    with pytest.raises(ValueError, match="Expected at least one result"):
        plots.plot_probe_variants({})


def _token_probe(rng, layers=SITES, prefix=1, rows=2, columns=3):
    values = rng.uniform(0.1, 0.9, (len(layers), prefix + rows * columns))
    attrs = {"prefix": prefix, "rows": rows, "columns": columns, "model": "ViT"}
    return xr.DataArray(values, dims=("layer", "token"), coords={"layer": layers}, attrs=attrs)


@pytest.mark.parametrize("prefix", [0, 1, 4])
def test_probe_map_lays_tokens_out_row_by_row_on_one_scale(prefix, rng):
    result = _token_probe(rng, prefix=prefix)
    axes = plots.plot_probe_map(result).panels
    assert axes.shape == (6,)
    percent = 100 * result.values[:, prefix:].reshape(6, 2, 3)
    for ax, name, first, expected in zip(axes, SITES, result.values[:, 0], percent, strict=True):
        (image,) = ax.get_images()
        np.testing.assert_allclose(image.get_array(), expected)
        np.testing.assert_allclose(image.get_clim(), (percent.min(), percent.max()))
        assert image.origin == "upper"
        assert ax.get_title() == name + (f"\nCLS: {100 * first:.1f} %" if prefix else "")
    (bar,) = (ax for ax in axes[0].figure.axes[1:] if ax not in axes)
    scale = f"from {percent.min():.1f} to {percent.max():.1f}"
    assert bar.get_ylabel() == f"test accuracy (%)\n{scale}"
    assert axes[-1].get_images()[0].colorbar.extend == "neither"
    assert axes[0].figure.axes[0].get_title() == "Ridge-probe accuracy by token: ViT"
    assert axes[4].get_ylabel() == "row (token)"


def test_probe_map_chooses_layers_on_the_grid_evenly_through_the_depth(rng):
    layers = [f"block{index:02}" for index in range(15)] + ["pooled"]
    result = _token_probe(rng, layers)
    result[-1, 1:] = np.nan
    axes = plots.plot_probe_map(result).panels
    titles = [ax.get_title().split("\n")[0] for ax in axes]
    assert titles == [layers[index] for index in (0, 2, 4, 6, 8, 10, 12, 14)]
    axes = plots.plot_probe_map(result, layers=["block07", "block03"]).panels
    assert [ax.get_title().split("\n")[0] for ax in axes] == ["block07", "block03"]
    np.testing.assert_allclose(axes[0].get_images()[0].get_array().ravel(), 100 * result[7, 1:])


def test_probe_map_errors(rng):
    result = _token_probe(rng)
    result[2, 5:] = np.nan
    with pytest.raises(ValueError, match=r"1 \+ 2 x 3 tokens.*\{'block01/attention': 5\}"):
        plots.plot_probe_map(result, layers=SITES[:3])
    with pytest.raises(ValueError, match=r"4 tokens\. Received other numbers.*\{'block00"):
        plots.plot_probe_map(result.assign_attrs(rows=4, columns=4))
    with pytest.raises(ValueError, match=r"attributes \['prefix'\]\. Received: \['columns'"):
        plots.plot_probe_map(result.drop_attrs().assign_attrs(rows=2, columns=3))


def _localized(rng, side, prefix, layers=("block00/mlp/sum", "block01/mlp/sum")):
    place = np.arange(prefix + side**2) - prefix
    spatial = np.where(place < 0, np.nan, place)
    return xr.DataArray(
        rng.uniform(0, 1, (len(layers), len(place), side, side)),
        dims=("layer", "token", "row", "column"),
        coords={
            "layer": list(layers),
            "token": place + prefix,
            "token_row": ("token", spatial // side),
            "token_column": ("token", spatial % side),
        },
    )


def test_localization_of_layers_has_a_row_per_layer_and_a_column_per_token(rng):
    result = _localized(rng, 8, 1)
    names = ["block01/mlp/sum", "block00/mlp/sum"]
    axes = plots.plot_localization(result, layer=names).panels
    tokens = [0, 1, 5, 33, 37, 64]
    assert axes.shape == (2, 6)
    for layer, row in zip(names, axes, strict=True):
        for token, ax in zip(tokens, row, strict=True):
            (image,) = ax.get_images()
            np.testing.assert_array_equal(image.get_array(), result.sel(layer=layer, token=token))
            drawn = result.sel(layer=names, token=tokens)
            assert image.get_clim() == (drawn.min(), drawn.max())
            frames = [patch.get_xy() for patch in ax.patches if isinstance(patch, Rectangle)]
            at_row, at_column = divmod(token - 1, 8)
            assert frames == ([] if token == 0 else [(at_column - 0.5, at_row - 0.5)])
    assert [ax.get_title() for ax in axes[0]][3:5] == ["token 33 (4, 0)", "token 37 (4, 4)"]
    assert [ax.get_ylabel() for ax in axes[:, 0]] == names
    assert "framed" in axes[0, 0].figure.axes[0].get_title()
    boxes = np.vectorize(lambda ax: ax.get_position().x0)(axes)
    np.testing.assert_allclose(boxes[0], boxes[1])
    assert (np.diff(boxes[0]) > 0).all()
    assert axes[1, 0].get_position().y1 < axes[0, 0].get_position().y0


def test_localizations_of_a_report_keep_the_range_of_their_model(rng):
    results = [factor * _localized(rng, 3, 1) for factor in (0.1, 1.0)]
    axes = [plots.plot_localization(result) for result in results]
    ranges = [ax.panels[0].images[0].get_clim() for ax in axes]
    share_scales([ax.figure for ax in axes])
    assert [ax.panels[0].images[0].get_clim() for ax in axes] == ranges
    assert 5 * ranges[0][1] < ranges[1][1]


def test_titles_wider_than_their_panels_are_not_cut(rng):
    result = _localized(rng, 2, 0, ["stage3/unit02/sum"]).assign_attrs(model="a-model-of-mine")
    ax = plots.plot_localization(result)
    ax.figure.draw_without_rendering()
    title = ax.title.get_window_extent()
    assert 0 < title.x0 < title.x1 < ax.figure.bbox.width


def test_distances_of_heads_span_the_axis(rng):
    values = xr.DataArray(rng.uniform(15.4, 16, (2, 3)), dims=("order", "subset"))
    cka = xr.DataArray(rng.uniform(0.2, 0.8, (2, 3, 2)), dims=("order", "subset", "layer"))
    result = xr.Dataset({"cka": cka, "distance": values})
    result = result.assign_coords(order=["local", "global"], layer=["root", "norm"])
    low, high = plots.plot_head_similarity(result).get_xlim()
    assert 15 < low < values.min() and values.max() < high < 17


def test_a_frame_covers_nothing_of_its_patch(rng):
    for token, layer in ((0, None), (27, ["block00/mlp/sum"]), (63, None)):
        result = _localized(rng, 8, 0)
        (ax,) = plots.plot_localization(result, layer=layer, tokens=[token]).panels.ravel()
        (image,), place = ax.get_images(), np.array(divmod(token, 8))[::-1]
        canvas = ax.figure.canvas
        canvas.draw()
        pixels = np.asarray(canvas.buffer_rgba())
        corners = ax.transData.transform([place - 0.5, place + 0.5])
        (left, right), (bottom, top) = np.sort(corners, axis=0).T
        rows = slice(int(len(pixels) - top) + 2, int(len(pixels) - bottom) - 1)
        cell = pixels[rows, int(left) + 2 : int(right) - 1].reshape(-1, 4)
        value = image.get_array()[tuple(place[::-1])]
        assert len(cell) > 20
        assert (abs(cell / 255 - image.cmap(image.norm(value))) < 0.03).all()
        edge = pixels[rows, max(int(left) - 1, 0)]
        accent = matplotlib.colors.to_rgba(plots.style.ACCENT)
        assert (abs(edge / 255 - accent) < 0.2).all()


def test_colours_that_span_the_values_are_labelled_so(rng):
    result = _localized(rng, 8, 1) * 0.1
    axes = plots.plot_localization(result).panels
    assert plots.style.SPANNED in axes[0].figure.axes[-1].get_ylabel()
    assert plots.style.span(np.array([np.nan, 0.2, 0.5])) == {"vmin": 0.2, "vmax": 0.5}
    assert plots.style.span(np.array([0.2, 0.2])) == {"vmin": 0.2, "vmax": 1.2}
    assert plots.style.span(np.array([np.nan])) == {"vmin": 0, "vmax": 1}


def test_localization_of_chosen_tokens_and_of_few(rng):
    result = _localized(rng, 8, 0)
    titles = [
        ax.get_title()
        for ax in plots.plot_localization(result, layer=["block00/mlp/sum"]).panels[0]
    ]
    assert titles == [f"token {t} ({t // 8}, {t % 8})" for t in (0, 4, 32, 36, 63)]
    axes = plots.plot_localization(result, layer=["block00/mlp/sum"], tokens=[63, 9]).panels
    assert axes.shape == (1, 2)
    np.testing.assert_array_equal(axes[0, 0].get_images()[0].get_array(), result.values[0, 63])
    (panel,) = plots.plot_localization(result, tokens=[9]).panels
    np.testing.assert_array_equal(panel.get_images()[0].get_array(), result.values[1, 9])
    few = plots.plot_localization(_localized(rng, 2, 1), layer=["block00/mlp/sum"]).panels
    assert few.shape == (1, 5)
    some = result.sel(token=range(9, 20))
    titles = [
        ax.get_title() for ax in plots.plot_localization(some, layer=["block00/mlp/sum"]).panels[0]
    ]
    places = [(9, "1, 1"), (12, "1, 4"), (15, "1, 7"), (16, "2, 0"), (19, "2, 3")]
    assert titles == [f"token {token} ({place})" for token, place in places]


def test_localization_of_one_layer_is_laid_out_like_the_grid(rng):
    axes = plots.plot_localization(_localized(rng, 3, 1)).panels
    axes[0].figure.draw_without_rendering()
    boxes = [ax.get_position() for ax in axes]
    assert boxes[0].y0 > boxes[1].y1
    assert boxes[1].x1 < boxes[2].x0 and boxes[1].y0 == pytest.approx(boxes[2].y0)
    assert boxes[1].y0 > boxes[4].y1 and boxes[1].x0 == pytest.approx(boxes[4].x0)
    result = _localized(rng, 6, 1)
    axes = plots.plot_localization(result, layer="block00/mlp/sum").panels
    titles = [ax.get_title() for ax in axes]
    assert len(titles) == 16 and titles[0] == "token 1 (0, 0)" and titles[-1] == "token 36 (5, 5)"
    few = plots.plot_localization(result.sel(token=[0, 8, 17])).panels
    expected = ["token 0 (prefix)", "token 8 (1, 1)", "token 17 (2, 4)"]
    assert [ax.get_title() for ax in few] == expected


def test_localization_reports_missing_patches_and_shows_the_lowest_values(rng):
    result = _localized(rng, 3, 1)
    result[:, :, 0, 0] = np.nan
    result[1, 2, 1, 1] = -0.1
    axes = plots.plot_localization(result).panels
    (bar,) = [ax for ax in axes[0].figure.axes if ax.get_ylabel()]
    assert "grey: patch is constant" in bar.get_ylabel()
    image = axes[-1].get_images()[0]
    assert image.get_clim()[0] == -0.1 and image.colorbar.extend == "neither"
    with pytest.raises(ValueError, match="token_row"):
        plots.plot_localization(result.drop_vars("token_row"))


def test_classes_are_drawn_by_name():
    results_by_name = results()
    named = results_by_name["grad_cam"].assign_coords(class_name=("class", ["cat", "dog"]))
    assert "Grad-CAM of dog" in plots.plot_grad_cam(named, class_label=7).get_title()
    gradients = results_by_name["input_gradients"].assign_coords(
        class_name=("class", ["cat", "dog"])
    )
    panels = plots.plot_input_gradients(gradients).panels
    assert [panel.get_title() for panel in panels] == ["cat", "dog"]
    lens = results_by_name["logit_lens"]
    lens = lens.assign_coords(class_name=("class", [f"name {n}" for n in range(10)]))
    texts = plots.plot_logit_lens(lens, classes=[3]).get_legend().get_texts()
    assert [text.get_text() for text in texts] == ["name 3"]


def test_a_divergence_is_drawn_from_0():
    results_by_name = results()
    ablation = results_by_name["head_ablation"]
    values = abs(ablation.output_change) + 0.1
    (image,) = plots.plot_head_ablation(ablation.assign(output_change=values)).images
    assert image.get_clim() == (0, float(values.max()))
    stitching = results_by_name["stitching"]
    values = abs(stitching.output_change) + 0.1
    ax = plots.plot_stitching(stitching.assign(output_change=values), change="output_change")
    assert ax.images[0].get_clim() == (0, float(values.max()))


def test_a_model_has_one_colour_whichever_models_a_plot_shows():
    both = style.line_colours(["ViT", "BiT"])
    with style.fixed_colours(["ViT", "BiT", "BiT (2)"], single="BiT"):
        alone = style.line_colours(["BiT: spatial tokens", "BiT (2)", "other", "copy"], ["copy"])
        assert style.line_colours([""])[""] == both["BiT"]
    assert alone["BiT: spatial tokens"] == both["BiT"]
    assert len(set(alone.values()) | {both["ViT"]}) == 5 and alone["copy"] == "0.35"
    assert style.line_colours(["BiT"])["BiT"] == both["ViT"]  # without fixed colours


def test_colour_is_the_model_and_line_style_the_token():
    def ratio(prefix):
        values = np.ones((2, 5)) + np.arange(5)
        coords = {"layer": ["block00/attention", "block00/mlp"]}
        ratios = xr.DataArray(values, coords, ("layer", "token"))
        return xr.Dataset({"norm_ratio": ratios, "cosine": ratios}, attrs={"prefix": prefix})

    ax = plots.plot_skip_ratio_lines({"ViT": ratio(1), "GAP": ratio(0)})
    look = {
        line.get_label(): (line.get_color(), line.get_linestyle())
        for line in ax.lines
        if ":" in str(line.get_label())
    }
    cls, spatial = look["ViT: CLS token, attention"], look["ViT: spatial tokens, attention"]
    other = look["GAP: spatial tokens, mlp"]
    assert cls[0] == spatial[0] != other[0]
    assert cls[1] != spatial[1] == other[1]
    plt.close("all")
