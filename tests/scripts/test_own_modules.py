"""Classes of the user's own: a script opens their models with `--import`, and says so otherwise."""

import sys
from importlib import import_module

import keras
import numpy as np
import pytest

import vit_tf
from vit_tf.scripts import common, export

LAYER = """
import keras

class Doubled{name}(keras.layers.Layer):
    def call(self, x):
        return 2.0 * squared_{name}(x)

def squared_{name}(x):
    return x * x
"""

SAVE = """
images = keras.Input((8, 8, 3))
x = Doubled{name}(name="doubled")(images)
x = keras.layers.GlobalAveragePooling2D(name="means")(x)
keras.Model(images, x).save("{name}.keras")
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Models saved by a program whose own class it is, and by one that imports its class."""
    folder = tmp_path_factory.mktemp("own")
    main = LAYER.format(name="main") + "if __name__ == '__main__':"
    main += SAVE.format(name="main").replace("\n", "\n    ")
    (folder / "layers_in_main.py").write_text(main)
    (folder / "layers_to_import.py").write_text(LAYER.format(name="module"))
    program = "from layers_to_import import Doubledmodule\nimport keras\n"
    with pytest.MonkeyPatch.context() as context:
        context.chdir(folder)
        context.syspath_prepend(folder)
        exec(compile(main, "layers_in_main.py", "exec"), {"__name__": "__main__"})
        exec(program + SAVE.format(name="module"), {"__name__": "__main__"})
    del sys.modules["layers_to_import"]
    return folder


@pytest.fixture
def forgotten(monkeypatch):
    """What a script imports is forgotten after a test."""
    before, path = dict(sys.modules), list(sys.path)
    reference = dict(keras.saving.get_custom_objects())
    yield
    for name in set(sys.modules) - set(before):
        if name.startswith("layers_"):
            del sys.modules[name]
    sys.path[:] = path
    keras.saving.get_custom_objects().clear()
    keras.saving.get_custom_objects().update(reference)


@pytest.mark.parametrize(
    "model, module",
    [
        ("main", "layers_in_main.py"),
        ("module", "layers_to_import.py"),
        ("module", "layers_to_import"),
    ],
)
def test_a_model_of_own_classes_opens_with_its_module(
    folder, tmp_path, monkeypatch, capsys, forgotten, model, module
):
    monkeypatch.chdir(folder)
    line = [f"{model}.keras", "--taps", "doubled", "means", "--out", str(tmp_path / "exported")]
    assert export.main(line) == 2
    assert "Keras cannot load" in capsys.readouterr().err
    assert export.main([*line, "--import", module]) == 0
    images = np.random.default_rng(0).normal(size=(3, 8, 8, 3)).astype("float32")
    taps = vit_tf.load_features(tmp_path / "exported")(images)
    np.testing.assert_allclose(taps["doubled"], 2 * images.astype(float) ** 2, rtol=1e-6)
    assert export.main([f"{model}.keras", "--list", "--import", module]) == 0


@pytest.mark.parametrize(
    "module, message",
    [
        ("layers_missing", "layers_missing: the module cannot be imported (ModuleNotFoundError"),
        ("layers_missing.py", "layers_missing.py: the module cannot be imported (ModuleNotFound"),
        ("layers_broken.py", "ZeroDivisionError: division by zero"),
        ("layers_folder/keras.py", "another module 'keras' is found first; rename the file"),
    ],
)
def test_modules_that_cannot_be_imported_are_one_line(
    tmp_path, monkeypatch, capsys, forgotten, module, message
):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "layers_broken.py").write_text("1 / 0\n")
    (tmp_path / "layers_folder").mkdir()
    (tmp_path / "layers_folder" / "keras.py").touch()
    assert export.main(["vit-cls-cifar10", "--list", "--import", module]) == 2
    (error,) = capsys.readouterr().err.strip().splitlines()
    assert error.startswith("error: --import ") and "cannot be imported" in error
    assert message in error


@pytest.mark.parametrize("script", ["analyze", "compute", "evaluate", "export", "finetune"])
def test_every_script_that_opens_a_model_takes_modules(script):
    line = {
        "analyze": ["m.keras"],
        "compute": ["run"],
        "evaluate": ["m.keras"],
        "export": ["m.keras", "--list"],
        "finetune": ["m.keras", "--out", "run"],
    }[script]
    parse = import_module(f"vit_tf.scripts.{script}").parse
    assert parse([*line, "--import", "a", "--import", "b.py"]).imports == ["a", "b.py"]
    assert parse(line).imports == []


def test_only_own_definitions_are_registered(tmp_path, forgotten):
    path = tmp_path / "layers_known.py"
    path.write_text("from collections import OrderedDict\n" + LAYER.format(name="known"))
    before = set(keras.saving.get_custom_objects())
    common.import_modules([str(path)])
    assert set(keras.saving.get_custom_objects()) - before == {"Doubledknown", "squared_known"}
