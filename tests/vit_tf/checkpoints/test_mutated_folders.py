"""Folders that are not what they seem: they load as they say, or say why not in one error."""

import shutil

import numpy as np
import pytest
from archive_files import helper_or_skip
from checkpoint_families import arrays
from mutants import SLOW, Tally, is_traced, load, mutate_file, mutate_json, values_of

import vit_tf

INDEX = "model.safetensors.index.json"
# Values that a sound file may have, which either fit the tensors or do not.
LIKELY = {
    "num_attention_heads": (1, 2, 4, 6, 8, 5),
    "num_hidden_layers": (1, 3),
    "patch_size": (2, 5, 8),
    "image_size": (16, 24, 40, [16, 24], [20, 20]),
    "hidden_size": (12, 48),
    "intermediate_size": (20, 41),
    "hidden_act": ("gelu", "gelu_new", "quick_gelu", "relu", "silu"),
    "layer_norm_eps": (1e-12, 1e-2, 0.5),
    "qkv_bias": (False, True),
    "num_labels": (3,),
    "model_type": ("vit", "deit", "dinov2", "clip", "beit", "swin"),
    "size": (30, {"height": 10, "width": 30}, {"shortest_edge": 50}),
    "crop_size": (10, {"height": 10, "width": 12}),
    "resample": (0, 2, 3, 7),
    "image_mean": ([0.1, 0.2, 0.3], [0.5]),
    "do_resize": (False,),
    "rescale_factor": (1.0, 1 / 127.5),
}
# One of each way to read a family's names.
NAMES = ("vit", "deit-teacher", "dinov2-swiglu", "registers", "dinov3", "dinov3-gated")
NAMES += ("clip", "clip-vision", "beit", "beit-shared", "bit", "mae", "siglip-whole")
LONG, FAST = 200, 8
# Of the table, what is read by rules of its own: parts, two encoders, a network of convolutions.
READ_APART = ("vit", "siglip-whole", "clip", "bit")
IN_PARTS = ("vit", "siglip-whole")  # which are read alike for all families
CASES = [(name, parts) for name in NAMES for parts in (False, True)[: 1 + (name in IN_PARTS)]]


def written(name, folder, **options):
    """A valid folder of the table, its model of transformers and the function of its taps."""
    models = helper_or_skip("hugging_face_models", "transformers")
    model = models.make(name)
    return models.write(model, folder, models.processor(name), **options), model, models.taps


def read_by_transformers(folder, kind):
    """The model that transformers makes of a folder, or None where it does not fit."""
    import transformers

    transformers.logging.set_verbosity_error()
    try:
        model, report = kind.from_pretrained(folder, output_loading_info=True)
    except Exception:  # Whatever it finds wrong, which is told in many ways.
        return None
    unfit = [*report["missing_keys"], *report["mismatched_keys"], *report["unexpected_keys"]]
    return None if unfit or report["error_msgs"] else model.eval()


def check_like_transformers(model, folder, reference, taps, tally):
    """What a model of changed fields puts out is what transformers makes of them."""
    theirs = read_by_transformers(folder, type(reference))
    if theirs is None:
        return
    shape = (1, *model.image_shape)
    images = np.random.default_rng(0).normal(size=shape).astype("float32")
    try:
        expected = taps(theirs, images)
    except (ValueError, RuntimeError, TypeError):
        return  # Of images that its own fields forbid, or fields that it does not check.
    actual = model.intermediates(images)
    for tap, value in expected.items():
        if tap in actual:
            off = np.abs(np.asarray(actual[tap]) - value).max() / np.abs(value).max()
            assert off < 1e-4, (tap, off, (folder / "config.json").read_text())
    tally.compared += 1


def check(name, count, tmp_path, parts=False, compared=True):
    """Mutates a sound folder so many times."""
    numpy_files = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    load_file, save_file = numpy_files.load_file, numpy_files.save_file

    options = {"max_shard_size": "30KB"} if parts else {}
    source, reference, taps = written(name, tmp_path / "whole", **options)
    intact = arrays(vit_tf.load_pretrained(source))
    size = sum(path.stat().st_size for path in source.iterdir())
    weights = {path.name: load_file(path) for path in source.glob("*.safetensors")}
    values = values_of({n: x for tensors in weights.values() for n, x in tensors.items()}, intact)
    rng, tally = np.random.default_rng(len(name) + count), Tally()
    for i in range(count):
        tally.traced = is_traced(name, i, count)
        folder = tmp_path / "mutated"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(source, folder)
        kind, sound = rng.random(), True
        if kind < 0.02:
            (folder / str(rng.choice(sorted(p.name for p in folder.iterdir())))).unlink()
        elif kind < 0.45:
            part = str(rng.choice(sorted(weights)))
            sound = mutate_file(folder / part, weights[part], save_file, rng)
        else:
            files = [folder / "config.json"] * 2 + [folder / "preprocessor_config.json"]
            files = [path for path in files if path.exists()]
            files += [folder / INDEX] * parts
            mutate_json(files[rng.integers(len(files))], rng, LIKELY)
        model = load(folder, intact, values, size, sound, tally)
        if compared and model is not None and kind >= 0.45:
            check_like_transformers(model, folder, reference, taps, tally)
    return tally


@pytest.mark.parametrize(
    ("name", "parts", "count"),
    [
        *(pytest.param(*c, SLOW, marks=pytest.mark.slow) for c in CASES if c[0] in READ_APART),
        *(pytest.param(*c, LONG, marks=pytest.mark.long) for c in CASES),
    ],
)
def test_mutated_folders_load_as_they_say_or_end_in_one_error(
    name, parts, count, tmp_path, record_property
):
    tally = check(name, count, tmp_path, parts)
    record_property("mutants", str(tally))
    assert tally.read > 0 and tally.refused > count / 4 and tally.compared > 0


@pytest.mark.parametrize("name", ["vit", "siglip-whole"])
def test_a_few_mutated_folders(name, tmp_path):
    tally = check(name, FAST, tmp_path, compared=False)
    assert tally.read + tally.refused == FAST and tally.refused > FAST / 4
