"""Files of tensors that are not what they seem: they load whole, or say why not in one error."""

import tracemalloc

import checkpoint_layouts as layouts
import numpy as np
import pytest
from archive_files import torch_or_skip, write_safetensors
from checkpoint_families import FILES, SHAPE, arrays
from mutants import (
    SLOW,
    Tally,
    is_traced,
    load,
    mutate_file,
    save_deflated,
    save_legacy,
    save_npz,
    save_torch,
    values_of,
)

import vit_tf

LONG, FAST = 200, 8


def safe(tensors, path):
    write_safetensors(path, tensors)


def siglip_of(names):
    """A function that makes the tensors of a SigLIP in timm's, open_clip's or Google's names."""

    def make():
        pytest.importorskip("transformers", reason="transformers is not installed")
        torch_or_skip()
        import tower_models

        model = tower_models.timm_siglip()
        if names == "open_clip":
            text = {"text.ln_final.bias": np.ones(3, "float32")}
            return tower_models.state_of(model, "visual.trunk.") | text
        if names == "big_vision":
            return tower_models.big_vision_siglip(tower_models.state_of(model), 3, stacked=False)
        return tower_models.state_of(model)

    return make


# What is written, how, and what does not follow from it.
FORMATS = {
    "timm safetensors": (FILES["timm"][0], safe, FILES["timm"][1]),
    "mae safetensors": (FILES["mae"][0], safe, FILES["mae"][1]),
    "beit safetensors": (FILES["beit-shared"][0], safe, {}),
    "timm pth": (FILES["timm"][0], save_torch, FILES["timm"][1]),
    "moco pth": (FILES["moco"][0], save_torch, FILES["moco"][1]),
    "clip pth": (FILES["clip"][0], save_torch, FILES["clip"][1]),
    "clip safetensors": (FILES["clip"][0], safe, FILES["clip"][1]),
    "vit npz": (FILES["vit"][0], save_npz, {}),
    "bit npz": (FILES["bit"][0], save_npz, {"image_shape": SHAPE}),
    "vit deflated": (FILES["vit"][0], save_deflated, {}),
    "timm legacy": (FILES["timm"][0], save_legacy, FILES["timm"][1]),
    "mixer npz": (FILES["mixer"][0], save_npz, {}),
    "hybrid npz": (FILES["hybrid"][0], save_npz, {}),
    "siglip safetensors": (siglip_of("timm"), safe, {"num_heads": 3}),
    "siglip open_clip": (siglip_of("open_clip"), safe, {"num_heads": 3}),
    "siglip npz": (siglip_of("big_vision"), save_npz, {}),
}
ENDS = {safe: "safetensors", save_npz: "npz", save_deflated: "npz"}


def check(name, count, tmp_path):
    make, save, options = FORMATS[name]
    tensors, path = make(), tmp_path / f"model.{ENDS.get(save, 'pth')}"
    save(tensors, path)
    sound, intact = path.read_bytes(), arrays(vit_tf.load_pretrained(path, **options))
    values = values_of(tensors, intact)
    rng, tally = np.random.default_rng(len(name) + count), Tally()
    for i in range(count):
        tally.traced = is_traced(name, i, count)
        path.write_bytes(sound)
        valid = mutate_file(path, tensors, save, rng)
        load(path, intact, values, len(sound), valid, tally, **options)
    return tally


# One of each way to write tensors: their names are read from tables.
WRITTEN = ("timm safetensors", "vit npz", "vit deflated", "clip pth", "timm legacy")


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize(
    ("name", "count"),
    [
        *(pytest.param(name, SLOW, marks=pytest.mark.slow) for name in WRITTEN),
        *(pytest.param(name, LONG, marks=pytest.mark.long) for name in FORMATS),
    ],
)
def test_mutated_files_load_whole_or_end_in_one_error(name, count, tmp_path, record_property):
    tally = check(name, count, tmp_path)
    record_property("mutants", str(tally))
    assert tally.read > 0 and tally.refused > count / 3


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("name", ["timm safetensors", "vit npz"])
def test_a_few_mutated_files(name, tmp_path):
    tally = check(name, FAST, tmp_path)
    assert tally.read + tally.refused == FAST and tally.refused > FAST / 4


@pytest.mark.slow
def test_memory_is_at_most_that_of_the_file(tmp_path, record_property, monkeypatch):
    """Above the model, whose weights Keras holds, at most 1.2 times the file."""
    for name, value in {"WIDTH": 384, "HEADS": 6, "HIDDEN": 1536, "LAYERS": 8}.items():
        monkeypatch.setattr(layouts, name, value)
    path = tmp_path / "model.npz"
    save_npz(layouts.google_vit(), path)
    size = path.stat().st_size
    assert size > 50e6
    vit_tf.load_pretrained(path)
    tracemalloc.start()
    model = vit_tf.load_pretrained(path)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert model.count_params() * 4 > 0.95 * size
    record_property("memory over the file", peak / size)
    assert peak < 1.2 * size
