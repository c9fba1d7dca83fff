"""Every figure of the table, measured on tiny models of every role."""

import dataclasses
from functools import partial

import keras
import matplotlib.pyplot as plt
import numpy as np
import pytest
import tensorflow as tf
import xarray as xr
from study_models import study_model_of

import vit_tf
from vit_tf import analysis
from vit_tf.analysis.figures import data as study_data, measure as measuring
from vit_tf.analysis.figures.data import Data
from vit_tf.analysis.figures.figure import all_figures, plan_pictures
from vit_tf.analysis.figures.measure import (
    OwnPasses,
    SharedPass,
    measure_all,
    name_of,
    with_inputs,
)
from vit_tf.analysis.figures.models import baselines_of
from vit_tf.analysis.papers.raghu import section5_locality
from vit_tf.analysis.papers.raghu.section4_structure import cka_of_two
from vit_tf.analysis.papers.raghu.section6_skips import skip_ratio_of
from vit_tf.analysis.papers.raghu.section7_tokens import ridge_probe_of
from vit_tf.analysis.papers.walmer.section5_clusters import clustering_of
from vit_tf.analysis.papers.walmer.section6_tasks import knn_accuracy_of
from vit_tf.analysis.report.drawing import as_drawing
from vit_tf.analysis.similarity.cka import best_matching_layer
from vit_tf.features.structure import block_outputs


@pytest.fixture(scope="module")
def data():
    rng = np.random.default_rng(0)

    def batches(count):
        labels = rng.integers(0, 3, count)
        images = rng.normal(size=(count, 16, 16, 3)) + labels[:, None, None, None]
        data = tf.data.Dataset.from_tensor_slices((images.astype("float32"), labels))
        return data.batch(16)

    train, validation, test, few = batches(48), batches(32), batches(48), batches(4)
    existing = {"gallery": batches(40), **annotated(rng)}
    optional = {name: lambda value=value: value for name, value in existing.items()}
    return Data(test, few, train, validation, 3, {"shots": 16}, optional)


def annotated(rng):
    """A bright square in each image, its two halves, in videos and in pairs."""
    places = rng.integers(0, 9, (24, 2))
    masks = np.zeros((24, 16, 16), bool)
    for mask, (row, column) in zip(masks, places, strict=True):
        mask[row : row + 8, column : column + 8] = True
    images = rng.normal(size=(24, 16, 16, 3)) + 3 * masks[..., None]
    images = images.astype("float32")
    left = masks & (np.arange(16) < places[:, 1, None, None] + 4)
    labels = np.arange(24, dtype="int32")[:, None] % 3
    halves = np.stack([left, masks & ~left], axis=1)
    half_labels = np.concatenate([2 * labels, 2 * labels + 1], axis=1)
    index = masks.astype("uint8")
    pairs = [
        {
            "category": category,
            "source": images[m],
            "target": images[m + 1],
            "source_points": places[m : m + 1] + 4.0,
            "target_points": places[m + 1 : m + 2] + 4.0,
        }
        for category, m in (("square", 0), ("other square", 2))
    ]
    truth = [{"easy": [q], "hard": [q + 5], "junk": [q + 9]} for q in range(3)]
    queries = images[:3] + rng.normal(size=(3, 16, 16, 3)).astype("float32")
    return {
        "objects": batched(images, masks[:, None], labels),
        "parts": batched(images, halves, half_labels),
        "videos": [(images[:4], index[:4]), (images[4:8], index[4:8])],
        "pairs": pairs,
        "landmarks": ((queries, np.arange(3)), images[3:], truth),
    }


SHAPE = {"image_shape": (16, 16, 3), "num_classes": 3}
VIT = SHAPE | {"patch_size": 8, "num_layers": 2, "num_heads": 2, "hidden_dim": 8, "mlp_dim": 8}


@pytest.fixture(scope="module")
def subjects():
    """Models of every role, tiny and with random weights, so that no layer is constant."""
    keras.utils.set_random_seed(0)
    shape, vit = SHAPE, VIT
    without = vit | {"without_skips": ("block01",)}
    mixer = vit | {"tokens_mlp_dim": 4, "channels_mlp_dim": 8}
    mixer = {key: value for key, value in mixer.items() if key not in ("num_heads", "mlp_dim")}
    bit = shape | {"units": (1, 2), "width_factor": 0.5}  # two layers on the last grid
    cast = [
        ("ViT-CLS", "vit", vit_tf.ViT(**vit), None, None),
        ("ViT-GAP", "gap", vit_tf.ViT(**vit, pooling="gap"), None, None),
        ("BiT", "resnet", vit_tf.BiT(**bit), None, None),
        ("Mixer", "mixer", vit_tf.Mixer(**mixer), None, None),
        ("No skips", "without", vit_tf.ViT(**without), "block01", "ViT-CLS"),
        ("Some", "fraction", vit_tf.ViT(**vit), 0.3, "ViT-CLS"),
        ("Few", "fraction", vit_tf.ViT(**vit), 0.1, "ViT-CLS"),
        ("Again", "seed", vit_tf.ViT(**vit), 1, "ViT-CLS"),
        ("Before", "before", vit_tf.ViT(**vit), None, "ViT-CLS"),
        ("After", "after", vit_tf.ViT(**vit), None, "Before"),
        ("Untrained", "untrained", vit_tf.ViT(**vit), None, "ViT-CLS"),
    ]
    actual = []
    for name, role, model, detail, base_name in cast:
        taps, grid, features = model.taps, model.token_grid, partial(vit_tf.submodel, model)
        origin = next((m for m in actual if m.name == base_name), None)
        facts = (detail, origin, (0.9, 48))
        actual.append(
            study_model_of(name, role, name, taps, grid, features, *facts, **keras_facts(model))
        )
    return actual


def keras_facts(model):
    names = ("patch_kernel", "position_embedding")
    first_layer = tuple(name for name in names if getattr(model, name) is not None)
    return {"first_layer": first_layer, "keras_model": lambda: model}


def batched(*arrays):
    return tf.data.Dataset.from_tensor_slices(arrays).batch(12)


def named(subjects, name):
    return next(subject for subject in subjects if subject.name == name)


@pytest.fixture(scope="module")
def measured(subjects, data, tmp_path_factory):
    """Every figure's rows and results, and how many passes each data set took."""
    pictures, _ = plan_pictures(all_figures(), subjects, data)
    wanted = [m for picture in pictures for m in picture.measurements.values()]
    passes, one_pass = [], measuring.pass_of_copies

    def counted(requests, images, copies, **options):
        passes.append((images, len(requests)))
        return one_pass(requests, images, copies, **options)

    folder = tmp_path_factory.mktemp("results")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(measuring, "pass_of_copies", counted)
        results, problems = measure_all(wanted, data, folder)
    assert not problems
    return pictures, wanted, results, passes, folder


@pytest.mark.slow
def test_every_figure_finds_its_results_and_draws_them(measured):
    pictures, _, results, _, _ = measured
    shown = {id(picture.figure) for picture in pictures}
    others = [figure for figure in all_figures() if id(figure) not in shown]
    # These are of models of the user, and of models whose training operations are known.
    assert [figure.name for figure in others] == ["counterparts", "accuracy-by-compute"]
    names = [picture.name for picture in pictures]
    assert len(set(names)) == len(names)
    for picture in pictures:
        choice = {label: results[m.name] for label, m in picture.measurements.items()}
        figure = as_drawing(picture, choice).figure()
        assert figure.axes, picture.name
        plt.close(figure)
        assert picture.caption(choice).endswith(".") and "{" not in picture.title


@pytest.mark.slow
def test_images_are_gone_through_once(measured, data):
    """By all that is compared, and by models that are not in passes of a few of them."""
    _, wanted, _, passes, _ = measured
    every = [item for item in with_inputs(wanted).values() if isinstance(item, SharedPass)]
    gone = {
        reads: [count for images, count in passes if images is data.read(reads)]
        for reads in {item.reads for item in every}
    }
    for reads, counts in gone.items():
        assert sum(counts) == sum(item.reads == reads for item in every)
        models = {model for item in every for model in item.models if item.reads == reads}
        assert len(counts) <= -(-len(models) // 3), reads
    models = {m for item in every if item.reads == "test" for m in item.models}
    apart = len([m for m in models if m.name in ("No skips", "Before", "After", "Untrained")])
    assert apart == 4 and len(gone["test"]) == 2


@pytest.mark.slow
def test_saved_results_are_those_of_saved_measurements(measured):
    _, wanted, results, _, folder = measured
    assert "pooled_cls_test.vit-cls" not in results
    saved = {m.name for m in with_inputs(wanted).values() if m.saved}
    assert set(results) == saved == {path.stem for path in folder.glob("*.nc")}


@pytest.mark.slow
def test_measurements_of_classes_objects_and_tasks_are_those_of_the_analyses(
    measured, subjects, data
):
    results, vit = measured[2], named(subjects, "ViT-CLS")
    blocks = [tap for tap in block_outputs(vit.taps) if "/" in tap]
    features = vit.select(*blocks)
    direct = analysis.knn_accuracy(features, data.read("gallery"), data.test, 3)
    xr.testing.assert_equal(results["knn_accuracy.vit-cls"], direct)
    spatial = analysis.clustering(features, data.test, 3, tokens="spatial")
    np.testing.assert_allclose(
        results["clustering_rest.vit-cls"].sel(layer=blocks).purity, spatial.purity
    )

    features = vit.select("embedding", *blocks)
    purity = analysis.object_clustering(features, data.read("parts"), 6)
    xr.testing.assert_allclose(results["parts.vit-cls"], purity)
    masks = data.read("objects").map(lambda images, masks, _: (images, masks[:, 0]))
    iou = analysis.attention_saliency(vit.select("*/weights"), masks)
    xr.testing.assert_allclose(results["saliency.vit-cls"], iou)
    followed = analysis.label_propagation(features, data.read("videos"))
    xr.testing.assert_allclose(results["propagation.vit-cls"], followed)
    retrieved = analysis.retrieval(vit.select(*blocks), *data.read("landmarks"))
    xr.testing.assert_allclose(results["retrieval.vit-cls"], retrieved)
    assert list(results["linear_probe.vit-gap"].tokens.values) == ["all"]
    actual = analysis.keypoint_correspondence(features, data.read("pairs"))
    xr.testing.assert_allclose(results["keypoints.vit-cls"], actual)


@pytest.mark.slow
def test_measurements_are_those_of_the_analyses(measured, subjects, data):
    results = measured[2]
    vit, bit = named(subjects, "ViT-CLS"), named(subjects, "BiT")
    direct = analysis.skip_ratio(vit.select("*/skip", "*/branch"), data.test)
    actual = results["skip_ratio.vit-cls"]
    np.testing.assert_allclose(actual.norm_ratio, direct.norm_ratio, rtol=1e-5)
    assert actual.attrs["prefix"] == 1

    cross = analysis.cka(
        vit.select(*block_outputs(vit.taps)),
        data.test,
        named(subjects, "Few").select(*block_outputs(vit.taps)),
    )
    scale = results["data_scale.vit-cls"]
    assert list(scale.fraction.values) == [0.1, 0.3, 1.0]
    np.testing.assert_allclose(scale.cka[0], np.diagonal(cross.cka), atol=1e-5)

    tuned = best_matching_layer(results["block_cka.before.after"])
    xr.testing.assert_allclose(results["fine_tuning.before.after"].cka, tuned.cka)

    branch = analysis.receptive_field(
        vit.select("*/branch"),
        data.few,
        channels=section5_locality.CHANNELS,
        grid=vit.grid,
    )
    np.testing.assert_allclose(results["receptive_field_branch.vit-cls"], branch, rtol=1e-4)
    assert set(results["receptive_field.bit"].layer.values) == {
        tap for tap in bit.taps if tap.endswith("/sum")
    }
    assert results["cka.vit-cls.bit"].attrs["model_y"] == "BiT"


@pytest.mark.slow
@pytest.mark.parametrize("name", ["ViT-CLS", "BiT"])
def test_probes_choose_their_penalty_on_held_out_images(measured, subjects, data, name):
    results, subject = measured[2], named(subjects, name)
    features = subject.select(*block_outputs(subject.taps))
    if subject.stages:
        last = features(tf.zeros((1, 16, 16, 3)))[block_outputs(subject.taps)[-1]]
        features = analysis.engine.match_maps(features, last.shape[-1], subject.grid)
    held_out = analysis.ridge_probe(features, data.train, data.validation, 3)
    tested = analysis.ridge_probe(features, data.train, data.test, 3)
    probe = results[f"ridge_probe.{subject.slug}"]
    for layer in probe.layer.values:
        best = held_out.sel(layer=layer)
        strongest = max(best.l2.values[best.values == best.values.max()])
        assert probe.sel(layer=layer).l2 == strongest
        expected = tested.sel(layer=layer, l2=strongest)
        assert probe.sel(layer=layer).item() == pytest.approx(expected.item())
    assert results[f"ridge_probe_tokens.{subject.slug}"].dims == ("layer", "token")


@pytest.mark.slow
def test_nothing_is_measured_twice(measured, data, monkeypatch):
    _, wanted, results, _, folder = measured
    monkeypatch.setattr(measuring, "pass_of_copies", None)
    monkeypatch.setattr(section5_locality, "receptive_field", None)
    again, _ = measure_all(wanted, data, folder)
    assert again.keys() == results.keys()
    for name, result in results.items():
        assert type(again[name]) is type(result), name
        xr.testing.assert_identical(again[name], result)


def copies_of(subject):
    """A model with its two untrained copies, of which all graphs are those of the model."""
    model = subject.features.inner.source

    def copy(seed):
        return vit_tf.reinitialize(model, seed)

    original = dataclasses.replace(subject, keras_model=lambda: model)
    _, first, second = sorted(
        baselines_of(original, [partial(copy, 3), partial(copy, 4)]), key=lambda each: each.name
    )
    return [original, first, second]


@pytest.mark.slow
def test_untrained_copies_are_measured_with_the_graphs_of_their_model(
    subjects, data, tmp_path, monkeypatch
):
    """Alone and of pairs, fed and not, with shared and with own passes; the same as by itself."""
    vits, bits = (copies_of(named(subjects, name)) for name in ("ViT-CLS", "BiT"))
    wanted = [
        measurement
        for vit, bit in zip(vits, bits, strict=True)
        for measurement in (
            skip_ratio_of(vit),
            cka_of_two(vit, bit),
            ridge_probe_of(vit),
            ridge_probe_of(bit),
            knn_accuracy_of(vit),
            section5_locality.receptive_field_of(vit),
        )
    ]
    passes, run = [], measuring.pass_of_copies

    def counted(requests, images, copies, **options):
        passes.append((len(requests), len(copies)))
        return run(requests, images, copies, **options)

    monkeypatch.setattr(measuring, "pass_of_copies", counted)
    results, problems = measure_all(wanted, data, tmp_path / "shared")
    assert not problems
    # Probes are fitted and chosen, everything is read, and neighbours are found: a pass each.
    assert [copies for _, copies in passes] == [3, 3, 3, 3]
    vit, bit = vits[2], bits[2]
    actual = results[name_of("cka", vit, bit)]
    taps = actual.layer_x.values, actual.layer_y.values
    features = vit.select(*taps[0]), bit.select(*taps[1])
    direct = analysis.cka(features[0], data.test, features[1])
    np.testing.assert_allclose(actual.cka, direct.cka, atol=1e-6)
    assert (actual.attrs["model_x"], actual.attrs["model_y"]) == (vit.name, bit.name)
    skips = analysis.skip_ratio(vit.select("*/skip", "*/branch"), data.test)
    np.testing.assert_allclose(results[name_of("skip_ratio", vit)].cosine, skips.cosine, 1e-5)
    knn = results[name_of("knn_accuracy", vit)]
    features = vit.select(*knn.layer.values)
    direct = analysis.knn_accuracy(features, data.read("gallery"), data.test, 3)
    np.testing.assert_array_equal(knn, direct)
    probe = results[name_of("ridge_probe", vit)]
    features = vit.select(*probe.layer.values)
    held_out, tested = (
        analysis.ridge_probe(features, data.train, each, 3) for each in (data.validation, data.test)
    )
    np.testing.assert_allclose(probe, analysis.select_l2(held_out, tested), atol=1e-6)
    field = results[name_of("receptive_field", vit)]
    direct = analysis.receptive_field(
        vit.select(*field.layer.values),
        data.few,
        channels=section5_locality.CHANNELS,
        grid=vit.grid,
    )
    np.testing.assert_allclose(field, direct, rtol=1e-4)


@pytest.mark.slow
def test_untrained_copies_are_shown_the_first_batches_unless_they_need_all(
    subjects, data, tmp_path, monkeypatch
):
    monkeypatch.setattr(study_data, "COPY_IMAGES", 32)
    monkeypatch.setattr(study_data, "COPY_BATCHES", 2)
    vits = copies_of(named(subjects, "ViT-CLS"))
    wanted = [m for vit in vits for m in (skip_ratio_of(vit), clustering_of(vit))]
    results, problems = measure_all(wanted, data, tmp_path)
    assert not problems and len(list(data.test)) == 3
    for vit, shown in zip(vits, (data.test, data.test.take(2), data.test.take(2)), strict=True):
        skips = analysis.skip_ratio(vit.select("*/skip", "*/branch"), shown)
        found = results[name_of("skip_ratio", vit)]
        np.testing.assert_allclose(found.cosine, skips.cosine, 1e-5)
        assert found.attrs["examples"] == 16 * len(list(shown))
        clusters = results[name_of("clustering_first", vit)]
        features = vit.select(*clusters.layer.values)
        direct = analysis.clustering(features, data.test, tokens="cls")
        xr.testing.assert_allclose(clusters, direct)


def own_passes(name, inputs=()):
    """A measurement with passes of its own."""
    return OwnPasses(name, (), tuple(inputs), None, True, False, lambda *results: None)


def test_unsaved_inputs_of_saved_results_are_not_made_again():
    unsaved = dataclasses.replace(own_passes("unsaved"), saved=False)
    saved = own_passes("saved", [unsaved])
    fed, both = own_passes("fed", [saved]), own_passes("both", [unsaved, saved])
    table = with_inputs([fed, both])
    nothing = dict.fromkeys(table)
    on_disk = nothing | {"saved": "a result"}
    assert measuring._missing(table, nothing) == [unsaved, saved, fed, both]
    assert measuring._missing(table, on_disk) == [unsaved, fed, both]
    assert measuring._missing(table, on_disk | {"both": "a result"}) == [fed]


@pytest.fixture(scope="module")
def vit():
    """The first of the subjects, for what needs no other."""
    model = vit_tf.ViT(**VIT)
    features = partial(vit_tf.submodel, model)
    return study_model_of("ViT-CLS", "vit", "ViT-CLS", model.taps, model.token_grid, features)


def test_one_failure_does_not_lose_the_others(vit, data, tmp_path):
    good = skip_ratio_of(vit)

    def broken(features):
        def fail(totals):
            raise ValueError("no such thing")

        return dataclasses.replace(good.make(features), finish=fail)

    bad = dataclasses.replace(good, name="broken.vit-cls", make=broken)
    results, problems = measure_all([bad, good], data, tmp_path)
    assert problems == {"broken.vit-cls": "no such thing"} and results["broken.vit-cls"] is None
    assert [path.name for path in tmp_path.iterdir()] == ["skip_ratio.vit-cls.nc"]


@pytest.mark.slow
def test_a_statistic_that_cannot_be_made_costs_no_other_of_its_pass(vit, data, tmp_path, caplog):
    caplog.set_level("INFO")
    good = skip_ratio_of(vit)

    def refuse(features):
        raise ValueError("not of these taps")

    bad = [dataclasses.replace(good, name=f"{n}.vit-cls", make=refuse) for n in ("one", "two")]
    _, problems = measure_all([bad[0], good, bad[1]], data, tmp_path)
    assert problems == dict.fromkeys(("one.vit-cls", "two.vit-cls"), "not of these taps")
    (line,) = [line for line in caplog.messages if "not of these taps" in line]
    assert f"3 results of {vit.name} are measured in parts" in line
    assert [path.name for path in tmp_path.iterdir()] == ["skip_ratio.vit-cls.nc"]
