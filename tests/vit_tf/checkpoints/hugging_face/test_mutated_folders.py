"""Folders that are not what they seem: they load, or say why not in one error."""

import json
import shutil

import numpy as np
import pytest

import vit_tf

VALUES = (None, 0, -1, 1.5, 10**12, "a", [], {}, True, [1, 2, 3], float("nan"))


def mutate(folder, rng):
    """Changes one field of a JSON file, or some bytes of any file."""
    path = rng.choice(sorted(folder.iterdir()))
    if path.suffix == ".json" and rng.random() < 0.7:
        fields = json.loads(path.read_text())
        name = rng.choice(list(fields))
        fields[name] = VALUES[rng.integers(len(VALUES))]
        path.write_text(json.dumps(fields))
        return
    data = bytearray(path.read_bytes())
    kind, at = rng.integers(4), rng.integers(len(data))
    if kind == 0:
        data = data[:at]
    elif kind == 1:
        path.unlink()
        return
    else:
        # Where the header of the tensors lies, or anywhere.
        at = at if kind == 2 else at % min(len(data), 4000)
        data[at : at + 4] = rng.bytes(4)
    path.write_bytes(bytes(data))


@pytest.mark.slow
@pytest.mark.parametrize("name", ["vit", "deit-teacher", "registers-swiglu", "siglip"])
@pytest.mark.parametrize("parts", [False, True])
def test_mutated_folders_end_in_one_error(name, parts, tmp_path):
    pytest.importorskip("torch", reason="torch is not installed")
    pytest.importorskip("transformers", reason="transformers is not installed")
    import hugging_face_models as models
    import tower_models

    options = {"max_shard_size": "30KB"} if parts else {}
    if name == "siglip":
        whole = tower_models.write(tower_models.siglip("whole"), tmp_path / "whole", **options)
    else:
        made = models.make(name), tmp_path / "whole", models.processor(name)
        whole = models.write(*made, **options)
    rng = np.random.default_rng(int(parts))
    loaded = 0
    for _ in range(35):
        folder = tmp_path / "mutated"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(whole, folder)
        mutate(folder, rng)
        try:
            model = vit_tf.load_pretrained(folder)
        except ValueError as error:
            assert "Expected" in str(error) and "Received" in str(error), error
        else:
            loaded += 1
            assert all(np.isfinite(weight).all() for weight in model.get_weights())
    assert 0 < loaded < 35
