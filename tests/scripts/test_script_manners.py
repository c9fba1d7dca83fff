"""What every script does alike: help at once, one line when it is stopped, plain logs."""

import argparse
import dataclasses
import importlib
import os
import re
import signal
import subprocess
import sys
import time

import pytest
from paths import ROOT, SCRIPTS

import vit_tf
from vit_tf.common.names import join_words
from vit_tf.scripts import cli, common, report_commands, study

# Each script, and arguments that it can parse.
NAMES = {
    "analyze": "vit-cls-cifar10 --out {out}",
    "compute": "{out}",
    "demo": "--out {out}",
    "evaluate": "model.keras",
    "explore": f"vit-cls-cifar10 {__file__} --out {{out}}",
    "export": "model.keras --list",
    "finetune": "model.keras --out {out}",
    "pretrain": "--out {out}",
    "scorecard": "report --out {out}",
    "study": "--out {out}",
    "train": "--out {out}",
}
TINY = "--image-size 16 --patch-size 8 --num-layers 1 --num-heads 1 --hidden-dim 16 --mlp-dim 16"


@pytest.fixture(autouse=True)
def interruptible():
    """Ctrl-C works, here and in what is started: a shell lets its background ignore it."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_help_is_there_without_tensorflow(name):
    command = [sys.executable, "-X", "importtime", "-m", "vit_tf", name, "--help"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0 and "--help" in done.stdout
    lines = done.stderr.splitlines()
    assert [line for line in lines if not line.startswith("import time:")] == []
    names = {line.rpartition("|")[2].strip() for line in lines}
    assert "vit_tf.scripts.common" in names
    imported = {name.partition(".")[0] for name in names}
    slow = {"tensorflow", "keras", "absl", "xarray", "matplotlib", "scipy", "sklearn"}
    assert not imported & slow


def test_every_script_is_here():
    there = [path for path in SCRIPTS.glob("*.py") if "\ndef main(" in path.read_text()]
    assert {path.stem for path in there} - {"cli"} == set(cli.COMMANDS) == set(NAMES)


@pytest.mark.parametrize("command, recipe", [("train", "Recipe"), ("finetune", "FineTuning")])
def test_options_of_a_recipe_are_the_fields_of_its_class(command, recipe, capsys):
    with pytest.raises(SystemExit):
        cli.main([command, "--help-all"])
    shown = " ".join(capsys.readouterr().out.split())
    fields = {field.name: field for field in dataclasses.fields(getattr(vit_tf, recipe))}
    # Layers to augment with are objects.
    for name in {*fields} - {"seed", "crop", "resize", "validations", "augment"}:
        text = common.field_texts(getattr(vit_tf, recipe))[name].partition(";")[0]
        assert f"--{name.replace('_', '-')} " in shown and text in shown.replace("- ", "-")
    assert "peak learning rate (default: 0.001)" in shown or command == "finetune"


def test_help_names_the_strategies():
    assert list(common.STRATEGIES) == list(vit_tf.distribute.STRATEGIES)


@pytest.mark.parametrize("name", NAMES)
def test_a_stopped_script_reports_it_in_one_line(name, tmp_path, monkeypatch, capsys):
    script = importlib.import_module(f"vit_tf.scripts.{name}")
    arguments = NAMES[name].format(out=tmp_path / "out").split()
    monkeypatch.chdir(tmp_path)
    (tmp_path / "model.keras").touch()  # whose name is checked before the command runs
    before = signal.getsignal(signal.SIGTERM)
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):

        def stopped(options, number=number):
            os.kill(os.getpid(), number)
            time.sleep(10)

        monkeypatch.setattr(script, "run", stopped)
        assert script.main(arguments) == status
        error = capsys.readouterr().err
        assert error == "stopped: nothing is saved; the same command starts again\n"
    assert signal.getsignal(signal.SIGTERM) is before


def test_an_unexpected_error_reports_its_location(capsys):
    def run(options):
        return join_words([])  # a mistake of the package, not of the user

    assert common.run_command(lambda arguments: argparse.Namespace(), run) == 2
    (error,) = capsys.readouterr().err.splitlines()
    assert re.search(r"got 0\) \(in vit_tf\.common\.names, line \d+\)$", error)

    def refuse(options):
        raise ValueError("Expected 1. Received: 2")

    assert common.run_command(lambda arguments: argparse.Namespace(), refuse) == 2
    assert capsys.readouterr().err == "error: Expected 1. Received: 2\n"


def test_a_stopped_run_reports_what_is_saved(tmp_path):
    options = study.parse(["--out", str(tmp_path)])
    for name in ("models/a.json", "results/a.nc", "results/b.nc", "state/epoch-0009.npz"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text("")
    assert report_commands.describe_results(options) == (
        f"{tmp_path} holds 1 trained model and 2 results; the same command resumes from there"
    )
    (tmp_path / "state" / "epoch-0010.npz").write_text("")
    expected = f"{tmp_path} holds the state after epoch 10; the same command resumes from there"
    assert common.describe_epochs(options) == expected


@pytest.mark.slow
def test_a_training_is_stopped_and_its_log_can_be_read(tmp_path):
    recipe = "--epochs 5000 --batch-size 500 --strategy none"
    command = [sys.executable, "-m", "vit_tf", "train", *TINY.split(), *recipe.split()]
    log, done = tmp_path / "log", 0
    for number, status in ((signal.SIGINT, 130), (signal.SIGTERM, 143)):
        with open(log, "w") as file:
            run = subprocess.Popen(
                [*command, "--out", tmp_path / "run"],
                stdout=file,
                stderr=subprocess.PIPE,
                text=True,
            )
        deadline = time.monotonic() + 120
        while "Epoch" not in log.read_text() or log.read_text().count("\n") < 9:
            assert run.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        run.send_signal(number)
        error = run.communicate(timeout=60)[1]
        assert run.returncode == status and "Traceback" not in error
        (line,) = [line for line in error.splitlines() if line.startswith("stopped: ")]
        printed_text = re.fullmatch(
            rf"stopped: {re.escape(str(tmp_path / 'run'))} holds the state after epoch (\d+)"
            r"( and \d+ steps of the next)?; the same command resumes from there",
            line,
        )
        # Only SIGTERM has the state of the step saved.
        assert int(printed_text[1]) > done and not (printed_text[2] and number == signal.SIGINT)
        text = log.read_text()
        assert f"Epoch {done + 1}/5000" in text  # it went on after the last whole epoch
        assert not set("\b\r\x1b") & set(text)
        done = int(printed_text[1])


@pytest.mark.slow
def test_a_command_prints_nothing_of_tensorflow_unless_asked(tmp_path):
    model = tmp_path / "model.keras"
    vit_tf.ViT((8, 8, 3), 4, 1, 1, 8, 8, 10).save(model)
    command = [sys.executable, "-m", "vit_tf", "evaluate", model, "--data", "digits"]
    unasked = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    done = subprocess.run(command, env=unasked, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "top-1 accuracy" in done.stdout
    assert done.stderr == ""
    asked = unasked | {"TF_CPP_MIN_LOG_LEVEL": "0"}
    done = subprocess.run(command, env=asked, capture_output=True, text=True, cwd=ROOT)
    assert done.returncode == 0 and "I0000" in done.stderr


@pytest.mark.slow
def test_an_error_of_the_import_itself_is_shown(tmp_path):
    (tmp_path / "tensorflow.py").write_text(
        "import os\nos.write(2, b'I0000 00:00:1 port.cc:1] x\\nkept\\n')\nraise OSError('bad')\n"
    )
    code = "import vit_tf.scripts\nvit_tf.scripts.import_tensorflow()"
    environment = {k: v for k, v in os.environ.items() if k != "TF_CPP_MIN_LOG_LEVEL"}
    environment |= {"PYTHONPATH": f"{tmp_path}{os.pathsep}{ROOT}"}
    done = subprocess.run(
        [sys.executable, "-c", code], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 1 and done.stderr.startswith("kept\n")
    assert "OSError: bad" in done.stderr
