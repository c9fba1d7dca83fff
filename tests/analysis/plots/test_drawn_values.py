"""Every plot draws the numbers of its result: maps in panels, matrices, and lines by depth."""

from types import SimpleNamespace

import numpy as np
import pytest
import xarray as xr
from matplotlib.colors import to_rgb
from plot_results import BLOCKS, SUMS, WEIGHTS, results

from vit_tf import analysis
from vit_tf.analysis import plots
from vit_tf.analysis.plots.flow_plots import plot_head_effects

R = SimpleNamespace(**results())
R.mean_distance.name = "mean_distance"
IMAGE = np.random.default_rng(0).integers(0, 256, (24, 32, 3)).astype("uint8")
ROWS, RAW = R.attention_rows.attention.values, R.mean_attention.raw.values
ROLLOUT, RELEVANCE = R.attention_rollout.values, R.gradient_attention
SIMILARITY = R.token_similarity.values[1, 0, 4]
HEADS, CLASSES = [f"head {head}" for head in range(3)], ["class 3", "class 7"]
HALVES = {
    name: {"A": vars(R)[name], "B": 0.5 * vars(R)[name]}
    for name in ("clustering", "label_propagation")
}
BOXED = R.keypoint_correspondence.assign_attrs(threshold="box")


def on_grid(values):
    """Maps (panel, row, column) of values whose last axis is the token, CLS first."""
    return values[..., 1:].reshape(-1, 3, 4)


def case(result, expected, *more, **options):
    return result, options, expected, *more


def peaks(values, tokens, names=BLOCKS):
    """The titles of panels of heads: each maximum, over that of so many equal tokens."""
    largest = tokens * values.max(axis=-1)
    sizes = [[f"\N{MULTIPLICATION SIGN}{x:.2g}" for x in row] for row in largest]
    # The first panel of each column has the name of its layer.
    named = [[f"{name} {row[0]}", *row[1:]] for name, row in zip(names, sizes, strict=True)]
    return ([size for row in named for size in row],)


SPATIAL, MAPS = RAW[:, :, 1:].mean(axis=2), R.attention_maps.values
PREFIX_FREE = RELEVANCE[:, :, 1:, 1:].assign_attrs(prefix=0)
ATTENDED = R.attention.attention.values[1].reshape(-1, 3, 4)
EXAMPLES = ["example 0", "example 1"]
FIELDS = np.sqrt(R.position_attribution[0, :, 3])
CAM = {"class_label": 7, "image": IMAGE / 127.5 - 1}
ONE = {"query": 5, "layer": WEIGHTS[1], "example": 1, "image": IMAGE}
# Result, the maps of its panels in order, the titles of the first panels, and options.
PANELS = [
    case(R.attention, ATTENDED, *peaks(ATTENDED.reshape(4, 3, 12), 13), example=1),
    case(R.attention_rows, on_grid(ROWS[1, 1, :, 5]), HEADS, **ONE),
    case(R.attention_rows, on_grid(ROWS[0, -1, :, 5]), HEADS, query=np.int64(5)),
    case(R.attention_rows, on_grid(ROWS[0, -1, :, 0]), HEADS, query="CLS"),
    case(R.attention_rows, on_grid(ROWS[0, -1, :, 0]), HEADS),
    case(R.mean_attention, on_grid(RAW[:, :, 0]), *peaks(RAW[:, :, 0, 1:], 13), query="cls"),
    case(R.mean_attention, on_grid(SPATIAL), *peaks(SPATIAL[..., 1:], 13), query="spatial"),
    case(R.mean_attention, on_grid(RAW[:, :, 5]), *peaks(RAW[:, :, 5, 1:], 13), query=5),
    case(R.attention_maps, MAPS.reshape(-1, 3, 4), *peaks(MAPS.reshape(4, 3, 12), 12)),
    case(
        R.attention_maps,
        MAPS[2],
        *peaks(MAPS[2:3].reshape(1, 3, 12), 12, BLOCKS[2:3]),
        layers=WEIGHTS[2:3],
    ),
    case(R.aligned_attention, R.aligned_attention.values.reshape(-1, 5, 7), [BLOCKS[0], ""]),
    case(R.attention_rollout, on_grid(ROLLOUT[:, 0]), BLOCKS),
    case(R.rollout_of_images, on_grid(R.rollout_of_images.values[:, 5]), EXAMPLES, query=5),
    case(RELEVANCE, on_grid(RELEVANCE.values[0, :, 0]), CLASSES, image=IMAGE),
    case(PREFIX_FREE, PREFIX_FREE.values[0].mean(axis=1).reshape(-1, 3, 4), CLASSES),
    case(R.input_gradients, np.abs(R.input_gradients.values[0]).sum(-1), CLASSES, image=IMAGE),
    case(R.grad_cam, R.grad_cam.values[0, 1], SUMS[1::2], **CAM),
    case(R.position_attribution, FIELDS, SUMS, place=3),
    case(R.receptive_field, R.receptive_field.values, SUMS),
]


@pytest.mark.parametrize(("result", "options", "maps", "titles"), PANELS)
def test_panels_are_maps_over_the_image_scaled_to_their_maximum(result, options, maps, titles):
    panels = analysis.plot(result, **options).panels.ravel()
    assert [panel.get_title() for panel in panels[: len(titles)]] == titles
    for panel, values in zip(panels, np.asarray(maps), strict=True):
        drawn = panel.images[-1]
        np.testing.assert_allclose(drawn.get_array(), values / values.max())
        assert drawn.get_clim() == (0, 1)
        if "image" in options:
            below = panel.images[0]
            np.testing.assert_allclose(below.get_array(), IMAGE / 255, atol=1e-12)
            assert below.get_extent() == drawn.get_extent() == [-0.5, 31.5, 23.5, -0.5]


def frames(ax):
    """The (column, row) of the upper left corner of the frame of each panel, or None."""
    return [panel.patches[0].get_xy() if panel.patches else None for panel in ax.panels]


def test_frames_mark_the_query_and_the_most_similar_token():
    rows = R.attention_rows
    ax = analysis.plot(rows, query=6, image=IMAGE)  # token 6 is in row 1, column 1
    assert frames(ax) == [(7.5, 7.5)] * 3 and ax.get_title().startswith("Attention of token 6 in")
    registers = rows.assign_attrs(prefix=2).isel(query=slice(14), key=slice(13))
    registers = registers.assign_attrs(rows=1, columns=11)
    ax = analysis.plot(registers, query=1)
    assert frames(ax) == [None] * 3 and ax.get_title().startswith("Attention of register 1 in")
    ax = analysis.plot(R.token_similarity, token=4, images=[IMAGE, IMAGE])
    for panel, values in zip(ax.panels, SIMILARITY, strict=True):
        np.testing.assert_allclose(panel.images[-1].get_array(), values.reshape(3, 4))
        assert panel.images[-1].get_clim() == (SIMILARITY.min(), 1)
    cells = [divmod(cell, 4) for cell in (4, int(SIMILARITY[1].argmax()))]
    assert frames(ax) == [(8 * column - 0.5, 8 * row - 0.5) for row, column in cells]


def test_an_overlay_lies_over_all_of_the_image():
    values = np.array([[0.0, 1.0, 2.0], [3.0, np.nan, 5.0]])
    below, above = plots.plot_overlay(IMAGE, values, label="gradient").images
    assert below.get_extent() == above.get_extent()
    np.testing.assert_array_equal(above.get_array().filled(np.nan), values)
    assert (*above.get_clim(), above.get_alpha()) == (0, 5, 0.7)
    own = plots.plot_overlay(2 * (IMAGE / 255) - 1, values, low=-1, high=10)
    np.testing.assert_allclose(own.images[0].get_array(), IMAGE / 255, atol=1e-12)
    assert own.images[1].get_clim() == (-1, 10)
    for image, wrong in ((IMAGE[..., 0], values), (IMAGE * 2.0, values), (IMAGE, np.ones(4))):
        with pytest.raises(ValueError, match=r"Expected an? (image|map)"):
            plots.plot_overlay(image, wrong)


def test_aligned_maps_are_in_pixels_from_the_query():
    panels = analysis.plot(R.aligned_attention).panels
    assert panels[0, 0].images[0].get_extent() == [-28, 28, 20, -20]
    # Layers run from left to right.
    assert [panel.get_title() for panel in panels[:, 0]] == BLOCKS
    assert [panel.get_ylabel() for panel in panels[0]] == HEADS
    assert panels[0, 0].get_position().x0 < panels[1, 0].get_position().x0
    assert panels[0, -1].get_xlabel() == "offset (pixels)"


REPETITION = R.attention_patterns.repetition.values[0]
CHANGE = R.head_ablation.accuracy_change.where(R.head_ablation["head"] > 0)
ABLATED, CHANGES = R.head_ablation.assign(accuracy_change=CHANGE), {"change": "accuracy_change"}
# From 0 to at least 0.2: no repetition is dark, however small the largest is.
SPAN, LABEL = (min(REPETITION.min(), 0), max(REPETITION.max(), 0.2)), "repetition, CLS"
# Result, values (layer, other), limits of the colours, label of the colour bar, and options.
MATRICES = [
    case(ABLATED, CHANGE.values, None, "change in accuracy (percentage points)", **CHANGES),
    case(R.activation_patching, R.activation_patching.transfer.values, None, "transfer"),
    case(R.attention_patterns, REPETITION, SPAN, LABEL, query="cls"),
]


@pytest.mark.parametrize(("result", "options", "values", "limits", "label"), MATRICES)
def test_matrices_have_layers_rightwards(result, options, values, limits, label):
    ax = analysis.plot(result, **options)
    (image,) = ax.images
    np.testing.assert_array_equal(np.ma.filled(image.get_array(), np.nan), values.T)
    largest = np.nanmax(np.abs(values))
    assert image.get_clim() == (limits or (-largest, largest))  # centred on 0 unless given
    assert image.colorbar.ax.get_ylabel().startswith(label)
    assert image.origin == ("lower" if limits else "upper")
    assert ax.get_title().endswith("ViT-Ti/16")


def test_heads_are_coloured_by_type_with_the_sign_of_their_direction():
    result = R.head_classes
    ax = analysis.plot(result)
    kinds = np.array(list(plots.attention_plots.KIND_COLOURS))
    np.testing.assert_array_equal(kinds[ax.images[0].get_array()], result.kind.values.T)
    signs = {"": "", "row": "—", "up-left": "↖"}
    expected = [signs[name] for name in result.direction.values.T.ravel()]
    assert [text.get_text() for text in ax.texts] == expected
    assert "offset (arrow): 2" in [text.get_text() for text in ax.get_legend().get_texts()]


def test_offsets_are_points_with_down_downwards():
    result = R.attention_offset
    ax = analysis.plot(result)
    points = np.concatenate([layer.get_offsets() for layer in ax.collections])
    expected = np.stack([result.column_offset, result.row_offset], axis=-1).reshape(-1, 2)
    np.testing.assert_array_equal(points, expected)
    assert ax.get_ylim()[0] > ax.get_ylim()[1]
    assert ax.get_xlabel() == "column offset (pixels)" and "downwards" in ax.get_ylabel()


def by_name(result, dim, names):
    return {name: result.sel({dim: value}) for value, name in names.items()}


KNN, PROBE, KEYPOINTS = R.knn_accuracy, R.linear_probe, R.keypoint_correspondence.score
TOKENS = {"cls": "CLS token", "spatial": "mean of the spatial tokens"}
SALIENCY, DISTANCE = R.attention_saliency.iou, R.mean_distance
LENS, SKIPS, NORMS = R.lens_accuracy, R.skip_ablation, R.branch_norms.isel(example=0)
QUERIES = {"cls": "CLS", "spatial": "mean of the spatial tokens"}
LENS_LINES = {"accuracy": LENS.accuracy, "agreement with the last layer": LENS.agreement}
LENS_ERRORS = [LENS.accuracy_stderr, LENS.agreement_stderr]
PATHS = {"skip": "without skip", "branch": "without branch"}
ERASURE = R.concept_erasure
ERASED = {"concept": "concept erased", "random": "random subspace erased"}
ERASED = by_name(ERASURE.accuracy_change, "erased", ERASED)
INTERVAL = (ERASURE.accuracy_change_high - ERASURE.accuracy_change_low) / 2 / 1.96
PLAIN = by_name(PROBE.sel(batch_norm=False), "tokens", TOKENS)
NORMED = {name: f"{text}, batch norm" for name, text in TOKENS.items()}
NORMED = by_name(PROBE.sel(batch_norm=True), "tokens", NORMED)
NEIGHBOURS = by_name(KNN.sel(top=5), "k", {5: "ViT: k = 5", 20: "ViT: k = 20"})
RETRIEVED = by_name(R.retrieval.score, "difficulty", {"easy": "easy", "hard": "hard"})
CLUSTERED = {name: result.nmi for name, result in HALVES["clustering"].items()}
PROPAGATED = {name: result.score for name, result in HALVES["label_propagation"].items()}
FOUND = [{"A": KEYPOINTS.sel(threshold=t, average=a)} for t, a in ((0.05, "point"), (0.1, "image"))]
SCORES = by_name(R.logit_lens[1], "class", {0: "class 0", 3: "class 3"})
BEST_CLASSES = np.argsort(-R.logit_lens.values[0, -1])[:5]
PREDICTED = by_name(R.logit_lens[0], "class", {x: f"class {x}" for x in BEST_CLASSES})
MEANS = {name: NORMS[name].mean("token") for name in ("skip", "branch")}
EFFECTS = by_name(SKIPS.accuracy_change, "path", PATHS)
BEST, FAR = (
    by_name(SALIENCY.max("head"), "query", QUERIES),
    {"mean over heads": DISTANCE.mean("head")},
)
AT_POINTS = {"threshold": 0.05, "average": "point"}
ACCURACY, BOX = "test accuracy (%)", "PCK@0.1 of the object's box (%)"
# Result or several, the values of each line by its name, the label of the y axis, and options.
LINES = {
    "knn": case({"ViT": KNN}, NEIGHBOURS, ACCURACY, top=5),
    "linear": case(PROBE, PLAIN | NORMED, ACCURACY),
    "retrieval": case(R.retrieval, RETRIEVED, "mean average precision (%)"),
    "clustering": case(
        HALVES["clustering"], CLUSTERED, "normalised mutual information", score="nmi"
    ),
    "propagation": case(HALVES["label_propagation"], PROPAGATED, "J&F score"),
    "keypoints": case({"A": R.keypoint_correspondence}, FOUND[0], "PCK@0.05 (%)", **AT_POINTS),
    "boxes": case({"A": BOXED}, FOUND[1], BOX),
    "lens": case(R.logit_lens, SCORES, "class score", example=1, classes=[0, 3]),
    "best classes": case(R.logit_lens, PREDICTED, "class score"),
    "lens accuracy": case(LENS, LENS_LINES, "images (%)"),
    "skips": case(SKIPS, EFFECTS, "change in accuracy (percentage points)"),
    "erasure": case(ERASURE, ERASED, "change in accuracy (percentage points)"),
    "norms": case(R.branch_norms, MEANS, "Euclidean norm (band: token range)"),
    "distance": case(DISTANCE, FAR, "attention distance (sides of the grid)"),
    "saliency": case(R.attention_saliency, BEST, "IoU of attention and mask"),
}


@pytest.mark.parametrize("name", LINES)
def test_lines_are_the_values_by_layer(name):
    result, options, lines, label = LINES[name]
    ax = analysis.plot(result, **options)
    drawn = {line.get_label(): line for line in ax.lines if not line.get_label().startswith("_")}
    assert list(drawn) == list(lines) and ax.get_ylabel() == label
    for line, values in zip(drawn.values(), lines.values(), strict=True):
        np.testing.assert_allclose(line.get_ydata(), values.values)
    looks = {(str(line.get_color()), line.get_linestyle()) for line in drawn.values()}
    assert len(looks) == len(lines)
    assert ("%" in label or "percentage" in label) == (ax.yaxis.get_major_formatter()(0.25) == "25")


def edges(band):
    """The lowest and the highest y of a band at each x, in order: shape (2, x)."""
    heights = {}
    for x, y in band.get_paths()[0].vertices:
        heights.setdefault(x, []).append(y)
    return np.array([(min(heights[x]), max(heights[x])) for x in sorted(heights)]).T


@pytest.mark.parametrize(
    ("name", "errors"),
    [
        ("lens accuracy", LENS_ERRORS),
        ("skips", [SKIPS.accuracy_change_stderr.sel(path=path) for path in PATHS]),
        ("erasure", [ERASURE.accuracy_change_stderr.sel(erased="concept"), INTERVAL]),
    ],
)
def test_bands_are_95_percent_intervals(name, errors):
    result, options, lines, _ = LINES[name]
    bands = analysis.plot(result, **options).collections
    for band, middle, error in zip(bands, lines.values(), errors, strict=True):
        expected = [(middle + sign * 1.96 * error).values for sign in (-1, 1)]
        np.testing.assert_allclose(edges(band), expected, atol=1e-12)


def test_correlations_have_their_intervals_and_are_filled_where_significant():
    result = R.grounded_similarity
    ax = analysis.plot(result)
    _, *lines = ax.lines  # after the line at zero
    functions = result.function.values
    for name, bars, outline, filled in zip(
        functions, ax.collections, lines[::2], lines[1::2], strict=True
    ):
        own = result.sel(function=name)
        np.testing.assert_array_equal(outline.get_ydata(), own.correlation)
        significant = own.correlation.where(own.p_value < 0.05)
        np.testing.assert_array_equal(filled.get_ydata(), significant)
        ends = [segment[:, 1] for segment in bars.get_segments()]
        np.testing.assert_array_equal(ends, np.c_[own.correlation_low, own.correlation_high])
    assert [text.get_text() for text in ax.get_xticklabels()] == result.measure.values.tolist()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == functions.tolist()


@pytest.mark.parametrize("name, heads", [("distance", [DISTANCE]), ("saliency", SALIENCY)])
def test_points_are_the_heads_of_each_layer(name, heads):
    for points, values in zip(analysis.plot(LINES[name][0]).collections, heads, strict=True):
        depth = np.repeat(np.arange(len(values)), values.sizes["head"])
        np.testing.assert_array_equal(points.get_offsets(), np.c_[depth, values.values.ravel()])


def test_norms_lie_in_the_range_of_their_tokens():
    bands = analysis.plot(R.branch_norms).collections
    for band, norms in zip(bands, NORMS.values(), strict=True):
        np.testing.assert_allclose(edges(band), [norms.min("token"), norms.max("token")])


def test_baselines_are_grey_and_depth_is_relative_where_layers_differ():
    results = dict.fromkeys("ABCD", HALVES["label_propagation"]["A"])
    ax = analysis.plot(results, baselines=["C", "D"])
    colours = [to_rgb(line.get_color()) for line in ax.lines]
    assert [len(set(colour)) == 1 for colour in colours] == [False, False, True, True]
    assert len(set(colours)) == 4
    ax = analysis.plot({"A": results["A"], "B": results["B"].isel(layer=slice(3))})
    assert ax.lines[1].get_xdata().tolist() == [0, 0.5, 1]


def test_results_in_other_units_do_not_share_axes():
    pixels = R.mean_distance.assign_attrs(units="pixels")
    with pytest.raises(ValueError, match=r"different units.*'pixels', 'sides of the grid'"):
        analysis.plot({"A": R.mean_distance, "B": pixels})
    with pytest.raises(ValueError, match=r"of one kind\. Received: box and image"):
        analysis.plot({"A": R.keypoint_correspondence, "B": BOXED})


def test_heads_are_points_of_their_distance_and_effect():
    distance = R.attention_distance
    # Which head is which follows from the coordinates, not from their order.
    result = R.head_ablation.assign(distance=distance.isel(layer=slice(None, None, -1)))
    ax = plot_head_effects({"A": result, "B": result}, change="accuracy_change")
    expected = np.stack([distance, result.accuracy_change], axis=-1).reshape(-1, 2)
    for points in ax.collections:
        np.testing.assert_array_equal(points.get_offsets(), expected)
    reach = 1.96 * result.accuracy_change_stderr.values.ravel()
    for bars in ax.lines:
        low, high = bars.get_ydata()[::3], bars.get_ydata()[1::3]
        np.testing.assert_allclose([low, high], [expected[:, 1] - reach, expected[:, 1] + reach])
    assert len(ax.lines) == 2 and ax.get_xlabel() == "mean attention distance (pixels)"


def ablation(values, tokens=("cls", "random")):
    variables = {"accuracy_change": values, "accuracy_change_stderr": np.full((2, 2), 0.1)}
    variables = {name: (("tokens", "share"), array) for name, array in variables.items()}
    return xr.Dataset(variables, {"tokens": list(tokens), "share": [0.5, 1.0]}, {"model": "vit"})


def test_orders_of_tokens_are_lines_without_missing_shares_on_one_scale():
    values = np.array([[np.nan, -0.5], [-0.1, -0.2]])
    drawn = [
        bars.lines[0].get_xydata().tolist() for bars in analysis.plot(ablation(values)).containers
    ]
    assert drawn == [[[1.0, -0.5]], [[0.5, -0.1], [1.0, -0.2]]]
    other = ablation(4 * values[:, ::-1], ("new", "random"))
    ax = analysis.plot({"A": ablation(values), "B": other})
    first, second = ax.panels
    assert first.get_ylim() == second.get_ylim() and second.get_ylim()[0] < -1.9
    random = [panel.containers[1].lines[0] for panel in ax.panels]
    # Colour is the model, and line style the order.
    assert random[0].get_color() == first.containers[0][0].get_color() != random[1].get_color()
    assert random[0].get_linestyle() == random[1].get_linestyle()
    assert random[0].get_linestyle() != first.containers[0][0].get_linestyle()
    assert [text.get_text() for text in ax.get_legend().get_texts()] == ["cls", "random", "new"]


def test_pictures_are_drawn_in_their_order_with_their_numbers():
    result = R.neighbours
    layers = list(result.layer.values[[1, 4]])
    panels = analysis.plot(result, query=1, layers=layers).panels
    assert panels.shape == (2, 5)
    for row, layer in zip(panels, layers, strict=True):
        chosen = result.sel(layer=layer, query=1)
        pictures = [chosen.query_picture, *chosen.picture]
        for panel, picture in zip(row, pictures, strict=True):
            np.testing.assert_array_equal(panel.images[0].get_array(), picture)
        assert [panel.get_title() for panel in row[1:]] == [
            f"{x.item():.3f}" for x in chosen.similarity
        ]
    wrong = R.mistakes
    for panel, rank in zip(analysis.plot(wrong).panels, range(4), strict=True):
        each = wrong.sel(rank=rank)
        np.testing.assert_array_equal(panel.images[0].get_array(), each.picture)
        share = f"{100 * each.probability.item():.0f} %"
        words = [f"predicted {each.predicted.item()} ({share})", f"label {each.label.item()}"]
        assert panel.get_title().split("\n") == words


def test_points_of_a_projection_have_the_colours_of_their_classes():
    panels = analysis.plot(R.projection).panels
    legend = {
        h.get_label(): to_rgb(h.get_color()) for h in panels[0].figure.legends[0].legend_handles
    }
    for panel, layer in zip(panels, R.projection, strict=True):
        (points,) = panel.collections
        drawn = {
            tuple(xy): tuple(c[:3])
            for xy, c in zip(points.get_offsets().tolist(), points.get_facecolors(), strict=True)
        }
        assert len(drawn) == 12
        for point, label in zip(layer.values.tolist(), layer.label.values, strict=True):
            assert drawn[tuple(point)] == pytest.approx(legend[str(label)])
