"""Files and runs at addresses; file systems of fsspec in memory and at a server answer to gs://."""

import errno
import logging
import os
import re
import signal
import subprocess
import sys
import threading
from pathlib import Path

import buckets
import numpy as np
import pytest
import remote_run
import tensorflow as tf
from remote_run import run, write_photos
from resume_worker import Kill
from training_runs import make_data, make_model

import vit_tf
from vit_tf.common.names import without_password
from vit_tf.data.any_images import as_images
from vit_tf.data.files import PARTIAL, as_path, local_copy, only_process, write_whole
from vit_tf.scripts import evaluate
from vit_tf.training import checkpointing
from vit_tf.training.recipes import Recipe

pytestmark = pytest.mark.usefixtures("without_xla")


@pytest.fixture(scope="module", autouse=True)
def buckets_in_memory():
    buckets.serve_buckets(buckets.MemoryBucket)


@pytest.fixture
def place(tmp_path):
    """A folder in memory that no other test uses."""
    return f"gs://bucket/{tmp_path.name}"


def test_paths_are_as_those_of_pathlib(place):
    folder = as_path(place)
    assert not folder.exists() and list(folder.glob("*")) == []
    write_whole(f"{place}/a/one.npz", lambda local: local.write_bytes(b"old"))
    write_whole(folder / "a" / "one.npz", lambda local: local.write_bytes(b"new"))
    (folder / "a" / "two.txt").write_text("2 \u00b0")
    one = folder / "a" / "one.npz"
    assert (one.name, one.stem, str(one.parent)) == ("one.npz", "one", f"{place}/a")
    assert one.is_file() and not one.is_dir() and one.parent.is_dir() and not one.parent.is_file()
    assert os.fspath(one) == str(one) == f"{place}/a/one.npz"
    assert one.read_bytes() == b"new" and (folder / "a/two.txt").read_text() == "2 \u00b0"
    assert list((folder / "a").glob("*.npz")) == [one]
    with local_copy(one) as copy:
        assert Path(copy).read_bytes() == b"new"
    assert not Path(copy).exists()
    one.unlink()
    one.unlink(missing_ok=True)
    with pytest.raises(FileNotFoundError):
        one.read_bytes()


def test_a_file_that_cannot_be_written_leaves_the_older_one(place):
    def fail(local):
        local.write_bytes(b"half")
        raise OSError(errno.ENOSPC, "full")

    write_whole(f"{place}/file", lambda local: local.write_bytes(b"whole"))
    with pytest.raises(OSError, match="full"):
        write_whole(f"{place}/file", fail)
    assert as_path(f"{place}/file").read_bytes() == b"whole"


def test_what_others_have_in_an_output_folder_stays_as_it_is(tmp_path):
    """Links lead to a file that must not change, at every name that is written."""
    mine = tmp_path / "mine" / "thesis.txt"
    mine.parent.mkdir()
    mine.write_text("years of work")
    out = tmp_path / "out"
    out.mkdir()
    for name in (".partial-report.html", "report.html", ".partial-own"):
        (out / name).symlink_to(mine)
    write_whole(out / "report.html", lambda partial: partial.write_text("page"))
    assert (out / "report.html").read_text() == "page" and not (out / "report.html").is_symlink()
    assert (out / ".partial-report.html").is_symlink()

    os.mkfifo(out / "pipe")
    with pytest.raises(ValueError, match="not a file"):
        write_whole(out / "pipe", lambda partial: partial.write_text(""))
    assert (out / "pipe").is_fifo()

    assert mine.read_text() == "years of work" and os.listdir(mine.parent) == [mine.name]


def test_an_error_of_the_system_names_the_file_that_was_asked_for(tmp_path):
    def write(partial):
        raise OSError(errno.ENOSPC, "No space left", str(partial))

    with pytest.raises(OSError) as caught:
        write_whole(tmp_path / "b.nc", write)
    assert caught.value.errno == errno.ENOSPC and caught.value.filename == str(tmp_path / "b.nc")
    assert not list(tmp_path.iterdir())


def test_what_a_killed_process_left_is_removed_and_nothing_else(tmp_path):
    own = f"{PARTIAL}{'0a' * 8}.npz"
    (tmp_path / "state").mkdir()
    for folder in (tmp_path, tmp_path / "state"):
        (folder / own).write_bytes(b"half")
        (folder / f"{PARTIAL}notes").write_bytes(b"mine")
        (folder / f"{PARTIAL}{'0b' * 8}.npz").symlink_to(tmp_path / f"{PARTIAL}notes")
    (tmp_path / "link").symlink_to(tmp_path / "state")
    (tmp_path / ".lock").write_text("")  # of a process that was killed
    before = set(tmp_path.rglob("*"))
    with only_process(tmp_path):
        assert (tmp_path / ".lock").is_file()
    removed = {tmp_path / own, tmp_path / "state" / own, tmp_path / ".lock"}
    assert before - set(tmp_path.rglob("*")) == removed


@pytest.mark.parametrize("scheme", ["nowhere", "ftp", "http", "memory"])
def test_an_unknown_scheme_is_refused(scheme):
    words = r"begins with one of gs://, s3://, az://, hf://. Received: "
    with pytest.raises(ValueError, match=words + re.escape(f"'{scheme}://ann:***@bucket/run'")):
        as_path(f"{scheme}://ann:word@bucket/run")
    assert as_path("here/run") == Path("here/run")


def test_the_last_process_takes_a_folder_over(place, caplog):
    with only_process(place) as first:
        first()
        with caplog.at_level(logging.WARNING), only_process(place) as second:
            assert f"Taking over '{place}' from process" in caplog.text
            second()
            with pytest.raises(ValueError, match=r"has taken over .*this process"):
                first()
    assert not (as_path(place) / ".lock").exists()
    with caplog.at_level(logging.WARNING), only_process(place):
        assert len(caplog.records) == 1


@pytest.mark.slow
def test_a_run_that_was_taken_over_saves_no_more(place):
    model, recipe = make_model(), Recipe(epochs=2)
    taken = f"{place}/.lock"
    take = checkpointing.keras.callbacks.LambdaCallback(
        on_train_batch_end=lambda batch, logs: as_path(taken).write_text("7 on another")
    )
    with pytest.raises(ValueError, match=r"Process 7 on another has taken over"):
        vit_tf.train(model, recipe, *make_data(), place, verbose=0, callbacks=[take])
    assert list((as_path(place) / "state").glob("*")) == []
    assert as_path(taken).read_text() == "7 on another"


@pytest.fixture(scope="module")
def photos():
    """A folder of two classes with 30 images each, in memory, as `remote_run.py` has it."""
    return write_photos("ram://photos", np.random.default_rng(0))


@pytest.fixture(scope="module")
def whole(photos, without_xla, tmp_path_factory):
    """The folder of a run that nothing has stopped."""
    folder = tmp_path_factory.mktemp("runs") / "whole"
    assert run(photos, folder) == 0
    return folder


@pytest.mark.slow
def test_a_run_at_an_address_is_stopped_and_resumed(place, photos, whole, capsys):
    capsys.readouterr()
    assert run(photos, place, Kill(5, signal.SIGTERM)) == 143  # of 4 steps in each epoch
    kept = f"stopped: {place} holds the state after epoch 1 and 1 steps of the next"
    assert capsys.readouterr().err.splitlines()[-1].startswith(kept)
    assert run(photos, place) == 0
    names = {path.name for path in as_path(place).iterdir()}
    expected = {path.name for path in whole.iterdir()}
    assert names == expected and "model.keras" in names
    assert_equal_models(place, whole)
    log = (as_path(place) / "log.csv").read_bytes().decode()
    assert log == (whole / "log.csv").read_bytes().decode()
    assert len(list((as_path(place) / "tensorboard" / "train").glob("*tfevents*"))) == 2
    with pytest.raises(ValueError, match=r"File not found: .*none.keras'"):
        vit_tf.load_model(f"{place}/none.keras")


def assert_equal_models(found, wanted):
    for name in ("model.keras", "best.keras"):
        weights = [vit_tf.load_model(f"{out}/{name}").get_weights() for out in (found, wanted)]
        for one, other in zip(*weights, strict=True):
            np.testing.assert_array_equal(one, other)


@pytest.fixture
def server(tmp_path, monkeypatch):
    """A folder at a server of this process, which outlives those that write to it."""
    servers = pytest.importorskip("pyftpdlib.servers")
    from pyftpdlib.authorizers import DummyAuthorizer
    from pyftpdlib.handlers import FTPHandler

    class Handler(FTPHandler):
        authorizer = DummyAuthorizer()

    (tmp_path / "served").mkdir()
    Handler.authorizer.add_user("user", "word", str(tmp_path / "served"), perm="elradfmwMT")
    with servers.ThreadedFTPServer(("127.0.0.1", 0), Handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        monkeypatch.setenv("FTP_BUCKET_PORT", str(server.address[1]))
        buckets.serve_buckets(buckets.FtpBucket)
        buckets.FtpBucket.clear_instance_cache()
        yield "gs://bucket/runs"
        buckets.serve_buckets(buckets.MemoryBucket)
        server.close_all()
        thread.join()


def test_files_of_a_server_are_replaced_and_removed(server):
    write_whole(f"{server}/a/one.npz", lambda local: local.write_bytes(b"old"))
    write_whole(f"{server}/a/one.npz", lambda local: local.write_bytes(b"new"))
    [folder] = as_path(server).glob("a")
    [one] = folder.iterdir()
    assert os.fspath(one) == f"{server}/a/one.npz" and one.read_bytes() == b"new"
    one.unlink()
    assert not one.exists() and not as_path(f"{server}/none").is_dir()


@pytest.mark.slow
def test_a_killed_training_at_a_server_is_resumed_by_another_process(server, photos, whole):
    """SIGKILL in the second epoch, so that nothing but the server keeps what was done."""
    command = [sys.executable, remote_run.__file__, server, "7"]  # of 4 steps in each epoch
    killed = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    kept = [path.name for path in (as_path(server) / "state").iterdir()]
    assert kept and not (as_path(server) / "model.keras").exists()
    assert run(photos, server) == 0
    assert_equal_models(server, whole)


@pytest.mark.parametrize(
    "text, shown",
    [
        ("ftp://ann:s3cr:t@host/a.npz", "ftp://ann:***@host/a.npz"),
        ("--data 'https://:p@ss@host:80/b' --out gs://bucket/c", None),
        ("s3://bucket/a:b@c", "s3://bucket/a:b@c"),
        ("http://host:8080/a@b", "http://host:8080/a@b"),
        ("two sftp://a:1@h/x, sftp://b:2@h/y", "two sftp://a:***@h/x, sftp://b:***@h/y"),
    ],
)
def test_passwords_of_addresses_are_hidden(text, shown):
    expected = shown or "--data 'https://:***@host:80/b' --out gs://bucket/c"
    assert without_password(text) == expected


@pytest.mark.parametrize("name", ["a.keras", "a.npz", "a", "a.h5", "a.png"])
def test_errors_of_calls_hide_the_password_of_an_address(name):
    address = f"s3://ann:secret@bucket/{name}"
    features = vit_tf.submodel(vit_tf.ViT((8, 8, 3), 4, 1, 1, 4, 4, 3), "pooled")
    calls = [
        lambda: vit_tf.load(address),
        lambda: vit_tf.load_pretrained(address),
        lambda: vit_tf.load_model(address),
        lambda: vit_tf.load_features(address),
        lambda: vit_tf.data.load(address),
        lambda: vit_tf.analysis.explore(features, address),
        lambda: vit_tf.analysis.cka(address, np.zeros((4, 8, 8, 3))),
        lambda: vit_tf.analysis.cka(features, [address]),
    ]
    for call in calls:
        with pytest.raises((ValueError, tf.errors.OpError)) as caught:
            call()
        assert "secret" not in str(caught.value) and "ann:***@bucket" in str(caught.value)


@pytest.mark.slow
def test_images_at_an_address_are_measured(tmp_path, rng):
    photos = write_photos(f"ram://bucket/{tmp_path.name}/photos", rng)
    preprocessing = vit_tf.Preprocessing((8, 8))
    (one,) = as_images([f"{photos}/ape/0.png"], preprocessing)
    batches = [batch for batch, *_ in as_images(photos, preprocessing)]
    found = np.concatenate(batches)
    assert found.shape == (60, 8, 8, 3)
    assert (np.abs(found - one[0]).max(axis=(1, 2, 3)) == 0).sum() == 1


@pytest.mark.slow
def test_an_address_with_a_password_works_and_does_not_show_it(tmp_path, capsys, caplog):
    place = "gs://ann:secret@bucket"
    model = vit_tf.ViT((8, 8, 3), 4, 1, 1, 4, 4, 10)
    model.save(tmp_path / "vit.keras")
    out = f"{place}/{tmp_path.name}.json"
    assert evaluate.main([str(tmp_path / "vit.keras"), "--data", "digits", "--out", out]) == 0
    stored = as_path(out).read_text()
    assert "secret" not in stored and stored.count("ann:***@bucket") == 2  # --out and the command
    for wrong in (f"{place}/vit.keras", f"{place}/vit.npz"):
        assert evaluate.main([wrong]) == 2
    photos = "s3://ann:secret@bucket/photos"
    assert evaluate.main([str(tmp_path / "vit.keras"), "--data", photos]) == 2
    printed = capsys.readouterr()
    assert "secret" not in printed.out + printed.err + caplog.text
    assert printed.err.count("ann:***@bucket") >= 2
