"""What is read until the first step of each script that reads images, of a million of them."""

from importlib import import_module

import pytest
import tensorflow as tf
import tiny_records

from vit_tf import ViT
from vit_tf.data import imaging, reading
from vit_tf.training import evaluation
from vit_tf.training.checkpointing import Checkpoint

MODEL = "--image-size 8 --patch-size 4 --num-layers 1 --hidden-dim 8 --num-heads 2 --mlp-dim 16"
COMMANDS = {
    "train": f"{MODEL} --epochs 2",
    "pretrain": f"{MODEL} --epochs 2",
    "finetune": "{model} --steps 4 --num-validations 1",
    "evaluate": "{model}",
}
BATCH = 32


class Reached(Exception):
    """Ends a script at its first step."""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Where TFDS finds a million examples, and a model."""
    root = tmp_path_factory.mktemp("records")
    tiny_records.write(root, 1_000_000)
    ViT((8, 8, 3), 4, 1, 2, 8, 16, 4).save(root / "model.keras")
    return root


# `pretrain` reads as `train` does, and `finetune` as both.
READ_ALIKE = ("pretrain", "finetune")


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=pytest.mark.long if name in READ_ALIKE else pytest.mark.slow)
        for name in COMMANDS
    ],
)
def test_few_of_a_million_images_are_decoded_by_the_first_step(folder, tmp_path, monkeypatch, name):
    """What TensorFlow makes ahead: some batches, whatever the number of examples."""
    decoded, decode = [], imaging.decode

    def count(contents, *args, **kwargs):
        tf.numpy_function(lambda _: decoded.append(0), [contents], [])
        return decode(contents, *args, **kwargs)

    def reach(*_, **__):
        raise Reached

    monkeypatch.setattr(imaging, "decode", count)
    reading._traced_decoders.cache_clear()
    monkeypatch.setattr(Checkpoint, "on_train_batch_end", reach)
    monkeypatch.setattr(evaluation, "_ranks", reach)
    line = COMMANDS[name].format(model=folder / "model.keras")
    line += f" --data tiny_records --data-dir {folder} --batch-size {BATCH} --strategy none"
    line += " --split train" if name == "evaluate" else f" --out {tmp_path / 'run'}"
    script = import_module(f"vit_tf.scripts.{name}")
    with pytest.raises(Reached):
        script.run(script.parse(line.split()))
    reading._traced_decoders.cache_clear()
    assert BATCH <= len(decoded) <= 40 * BATCH
