"""Keras opens every model of this package after `import vit_tf.models`."""

import json
import subprocess
import sys
from pathlib import Path

import keras
import numpy as np
import pytest
from oracles import randomize

import vit_tf
from vit_tf.training.objectives import SoftmaxCrossEntropy, Top1Accuracy
from vit_tf.training.optimizers import SGD, AdamW, Muon, WarmupDecay

SHAPE = (8, 8, 3)
ENCODER = {"num_layers": 1, "num_heads": 2, "hidden_dim": 4, "mlp_dim": 4, "num_classes": 3}
OPEN = """
import json, os, sys
{}
import keras
import numpy as np
folder = sys.argv[1]
images = np.load(folder + "/images.npy")
found = {{}}
for file in sorted(os.listdir(folder)):
    if file.endswith(".keras"):
        model = keras.saving.load_model(folder + "/" + file)
        outputs = keras.tree.flatten(model(images))
        total = sum(float(keras.ops.sum(keras.ops.abs(x))) for x in outputs)
        optimizer = getattr(model, "optimizer", None)
        found[file] = [type(model).__name__, type(optimizer).__name__, total]
print(json.dumps(found))
"""


def compiled(model, optimizer):
    model.compile(optimizer, SoftmaxCrossEntropy(label_smoothing=0.1), metrics=[Top1Accuracy()])
    return model


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    """A folder of a saved model of every class, three of them trained a step, and what they are."""
    folder = tmp_path_factory.mktemp("models")
    images = np.random.default_rng(0).normal(size=(2, *SHAPE)).astype("float32")
    np.save(folder / "images.npy", images)
    labels = np.eye(3)[:2]
    rate = WarmupDecay(0.01, 1, 5)
    vit = compiled(vit_tf.ViT(SHAPE, 4, **ENCODER), AdamW(rate, clipnorm=1.0))
    bit = compiled(vit_tf.BiT(SHAPE, (1,), 0.5, 3), SGD(rate, momentum=0.9))
    mixer = compiled(vit_tf.Mixer(SHAPE, 4, 1, 4, 4, 4, 3), Muon(rate))
    for model in (vit, bit, mixer):
        model.fit(images, labels, verbose=0)
    foreign = keras.Sequential(
        [keras.Input(SHAPE), keras.layers.Conv2D(2, 3), keras.layers.Flatten()]
    )
    models = {
        "vit": vit,
        "bit": bit,
        "hybrid": vit_tf.HybridViT(SHAPE, 1, **ENCODER, stem_units=()),
        "mixer": mixer,
        "clip": vit_tf.CLIPViT(SHAPE, 4, **ENCODER, projection_dim=2),
        "beit": vit_tf.BEiT(SHAPE, 4, **ENCODER),
        "taps": vit_tf.submodel(vit, "block*/*/sum"),
        "foreign": vit_tf.submodel(foreign, "*"),
    }
    expected = {}
    for name, model in models.items():
        if name not in ("vit", "bit", "mixer", "taps"):
            randomize(model)
        model.save(folder / f"{name}.keras")
        total = sum(
            float(keras.ops.sum(keras.ops.abs(x))) for x in keras.tree.flatten(model(images))
        )
        optimizer = type(getattr(model, "optimizer", None)).__name__
        expected[f"{name}.keras"] = [
            type(model).__name__,
            optimizer,
            pytest.approx(total, rel=1e-4),
        ]
    names = [expected[f"{name}.keras"][1] for name in ("vit", "bit", "mixer")]
    assert names == ["AdamW", "SGD", "Muon"]
    return folder, expected


COMPILED = "import vit_tf.models\nfrom vit_tf.training import objectives, optimizers"


@pytest.mark.slow
@pytest.mark.parametrize(
    "first", [f"import keras\n{COMPILED}", f"from vit_tf import submodel\n{COMPILED}", COMPILED]
)
def test_keras_opens_every_model(files, first):
    """Compiled too."""
    folder, expected = files
    line = [sys.executable, "-c", OPEN.format(first), str(folder)]
    done = subprocess.run(line, capture_output=True, text=True, cwd=folder)
    assert done.returncode == 0, done.stderr[-2000:]
    assert json.loads(done.stdout.splitlines()[-1]) == expected


LIGHT = """
import sys, vit_tf
assert not {'keras', 'tensorflow', 'vit_tf.models.vit'} & set(sys.modules)
assert not [x for x in sys.meta_path if type(x).__module__.startswith('vit_tf')]
import keras
assert keras.saving.get_registered_object('vit_tf>ViT') is None
import vit_tf.models
print(*sys.modules)
assert keras.saving.get_registered_object('vit_tf>ViT') is vit_tf.ViT
"""


def test_the_package_alone_is_light_and_its_models_register_every_class():
    done = subprocess.run([sys.executable, "-c", LIGHT], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    package = Path(vit_tf.__file__).parent
    registering = {
        ".".join(("vit_tf", *path.relative_to(package).with_suffix("").parts))
        for folder in ("models", "features")
        for path in (package / folder).rglob("*.py")
        if "register_keras_serializable(" in path.read_text()
    }
    assert len(registering) == 15
    assert registering <= set(done.stdout.split())


@pytest.mark.slow
def test_our_own_loader_does_not_compile(files):
    folder, _ = files
    assert keras.saving.load_model(folder / "vit.keras").compiled
    assert not vit_tf.load_model(folder / "vit.keras").compiled
