"""Files and runs at addresses, in the file systems in memory of TensorFlow and of fsspec."""

import errno
import io
import logging
import signal
from pathlib import Path

import fsspec
import numpy as np
import pytest
import tensorflow as tf
from PIL import Image
from resume_worker import Kill
from training_runs import make_data, make_model

import vit_tf
from vit_tf.files import write_whole
from vit_tf.remote import RemotePath, as_path, local_copy
from vit_tf.scripts import option_groups
from vit_tf.scripts import train as train_script
from vit_tf.training import callbacks
from vit_tf.training.locks import only_process
from vit_tf.training.recipes import Recipe

PLACES = ("ram://bucket", "memory://bucket")  # TensorFlow's and fsspec's


@pytest.fixture(params=PLACES)
def place(request, tmp_path):
    """A folder in memory that no other test uses."""
    return f"{request.param}/{tmp_path.name}"


def test_paths_are_as_those_of_pathlib(place):
    folder = as_path(place)
    assert not folder.exists() and list(folder.glob("*")) == []
    write_whole(f"{place}/a/one.npz", lambda local: local.write_bytes(b"old"))
    write_whole(folder / "a" / "one.npz", lambda local: local.write_bytes(b"new"))
    (folder / "a" / "two.txt").write_text("2 \u00b0")
    one = folder / "a" / "one.npz"
    assert (one.name, one.stem, str(one.parent)) == ("one.npz", "one", f"{place}/a")
    assert one.is_file() and not one.is_dir() and one.parent.is_dir() and not one.parent.is_file()
    assert one.read_bytes() == b"new" and (folder / "a/two.txt").read_text() == "2 \u00b0"
    assert list((folder / "a").glob("*.npz")) == [one]
    with local_copy(one) as copy:
        assert Path(copy).read_bytes() == b"new"
    assert not Path(copy).exists()
    one.unlink()
    one.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError) as caught:
        one.read_bytes()
    assert caught.value.errno == errno.ENOENT and caught.value.filename == str(one)


def test_a_file_that_cannot_be_written_leaves_the_older_one(place):
    def fail(local):
        local.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "full")

    write_whole(f"{place}/file", lambda local: local.write_bytes(b"whole"))
    with pytest.raises(OSError, match="full"):
        write_whole(f"{place}/file", fail)
    assert RemotePath(f"{place}/file").read_bytes() == b"whole"


def test_an_unknown_scheme_is_refused():
    with pytest.raises(ValueError, match=r"TensorFlow or fsspec can open.*Received: 'nowhere://'"):
        as_path("nowhere://bucket/run")
    assert as_path("here/run") == Path("here/run")


def test_the_last_process_takes_a_folder_over(place, caplog):
    with only_process(place) as first:
        first()
        with caplog.at_level(logging.WARNING), only_process(place) as second:
            assert f"'{place}' is taken over from process" in caplog.text
            second()
            with pytest.raises(ValueError, match=r"no other process.*has taken over; this one"):
                first()
    assert not (as_path(place) / ".lock").exists()
    with caplog.at_level(logging.WARNING), only_process(place):
        assert len(caplog.records) == 1


def test_a_run_that_was_taken_over_saves_no_more(place):
    model, recipe = make_model(), Recipe(epochs=2)
    taken = f"{place}/.lock"
    take = callbacks.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: as_path(taken).write_text("7 on another")
    )
    with pytest.raises(ValueError, match=r"Received: process 7 on another, which has taken over"):
        vit_tf.train(model, recipe, *make_data(), place, verbose=0, callbacks=[take])
    assert list((as_path(place) / "state").glob("*")) == []
    assert as_path(taken).read_text() == "7 on another"


TINY = "--image-size 8 --take 40 --epochs 3 --batch-size 12 --patch-size 8 --num-layers 1"
TINY += " --num-heads 1 --hidden-dim 16 --mlp-dim 16 --dropout-rate 0.1 --ema 0.9 --mixup 0.2"
TINY += " --strategy none --save-every 2"


@pytest.fixture
def photos(tmp_path, rng):
    """A folder of two classes with 30 images each, in memory."""
    folder = f"ram://photos/{tmp_path.name}"
    for number in range(60):
        pixels, file = rng.integers(0, 256, (8, 8, 3)).astype("uint8"), io.BytesIO()
        Image.fromarray(pixels).save(file, "PNG")
        path = as_path(folder) / ("ape", "bee")[number % 2] / f"{number}.png"
        path.write_from(io.BytesIO(file.getvalue()))
    return folder


@pytest.mark.slow
def test_a_whole_training_at_an_address_is_stopped_and_resumed(
    place, photos, tmp_path, monkeypatch, capsys
):
    def run(out, *kills):
        real = vit_tf.train

        def train(*args, callbacks=(), **kwargs):
            return real(*args, callbacks=[*callbacks, *kills], **kwargs)

        with monkeypatch.context() as context:
            context.setattr(vit_tf, "train", train)
            return train_script.main([*TINY.split(), "--data", photos, "--out", str(out)])

    assert run(tmp_path / "whole") == 0
    capsys.readouterr()
    assert run(place, Kill(5, signal.SIGTERM)) == 143  # of 4 steps in each epoch
    kept = f"stopped: {place} holds the state after epoch 1 and 1 steps of the next"
    assert capsys.readouterr().err.splitlines()[-1].startswith(kept)
    assert run(place) == 0
    names = {path.name for path in as_path(place).iterdir()}
    expected = {path.name for path in (tmp_path / "whole").iterdir()}
    assert names == expected and "model.keras" in names
    for name in ("model.keras", "best.keras"):
        found = vit_tf.load_model(f"{place}/{name}").get_weights()
        wanted = vit_tf.load_model(tmp_path / "whole" / name).get_weights()
        for one, other in zip(found, wanted, strict=True):
            np.testing.assert_array_equal(one, other)
    log = (as_path(place) / "log.csv").read_text()
    assert log == (tmp_path / "whole" / "log.csv").read_bytes().decode()
    assert len(list((as_path(place) / "tensorboard" / "train").glob("*tfevents*"))) == 2
    with pytest.raises(ValueError, match=r"\.keras file. Received: .*/none.keras', no such file"):
        vit_tf.load_model(f"{place}/none.keras")


def test_scripts_read_paths_and_addresses():
    assert option_groups.a_path("runs/one") == Path("runs/one")
    assert option_groups.a_path("ram://runs/one") == RemotePath("ram://runs/one")


def test_the_file_systems_are_those_meant():
    assert "ram" in tf.io.gfile.get_registered_schemes()
    assert "memory" not in tf.io.gfile.get_registered_schemes()
    assert fsspec.filesystem("memory") is not None
