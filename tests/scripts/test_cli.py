"""The command `vit-tf`, and the options and help that all its commands have in common."""

import argparse
import os
import re
import shlex
import subprocess
import sys
from importlib import import_module

import pytest
from paths import ROOT

import vit_tf
from vit_tf.scripts import analyze, cli, common, compute as chosen_command, evaluate, study

# Options that mean another thing in one script than in another, or come in other numbers.
DIFFERENT = {
    "MODEL": "analyze takes several",
    "--shots": "evaluate fits to several numbers of images",
    "--out": "a file where one file is written",
}


class Built(Exception):
    """A parser that is ready to parse."""


@pytest.fixture
def parsers(monkeypatch):
    """The parser of each command, by name."""

    def stop(self, args=None, namespace=None):
        raise Built(self)

    outputs = {}
    with monkeypatch.context() as patch:
        patch.setattr(common.Parser, "parse_args", stop)
        for name in cli.COMMANDS:
            with pytest.raises(Built) as built:
                import_module(f"vit_tf.scripts.{name}").parse([])
            outputs[name] = built.value.args[0]
    return outputs


def shown(parser):
    """The options and arguments that a help shows, each with the title of its section."""
    for group in parser._action_groups:
        for action in group._group_actions:
            if argparse.SUPPRESS not in (action.help, action.dest) and action.dest != "help":
                yield group.title, action


def examples(parser):
    """The commands of a help's examples."""
    text = parser.epilog.partition("examples:\n")[2].replace("\\\n", " ")
    return [shlex.split(line, comments=True) for line in text.splitlines()]


def test_without_a_command_all_are_listed(capsys):
    assert cli.main([]) == 0
    listed = capsys.readouterr().out
    for name in cli.COMMANDS:
        sentence = import_module(f"vit_tf.scripts.{name}").__doc__.splitlines()[0]
        assert re.search(rf"^  {name} +{re.escape(sentence)}$", listed, re.M)
    assert cli.main(["--help"]) == 0 and capsys.readouterr().out == listed
    assert cli.main(["--version"]) == 0
    assert capsys.readouterr().out == f"vit-tf {vit_tf.__version__}\n"


def test_arguments_and_status_are_those_of_the_command(monkeypatch):
    monkeypatch.setattr(
        chosen_command, "main", lambda words: 7 if words == ["a", "--out", "b"] else 1
    )
    assert cli.main(["compute", "a", "--out", "b"]) == 7


def names_of_modules(*calls):
    """The modules in a process that made these calls of the command, each a list of words."""
    code = "import sys, contextlib; from vit_tf.scripts.cli import main\n"
    code += f"for words in {calls}:\n    with contextlib.suppress(SystemExit): main(words)\n"
    code += "print(*sys.modules, file=sys.stderr)"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    return set(done.stderr.split()), done.stdout


def test_only_the_module_of_the_command_is_imported():
    for words, there in ([], set()), (["--help"], set()), (["export", "--help"], {"export"}):
        names, _ = names_of_modules(words)
        assert {name for name in cli.COMMANDS if f"vit_tf.scripts.{name}" in names} == there
        assert not names & {"keras", "tensorflow"}


def test_help_does_not_wait_for_tensorflow():
    names, printed = names_of_modules(*[[name, "--help"] for name in cli.COMMANDS])
    assert all(f"usage: vit-tf {name} " in printed for name in cli.COMMANDS)
    assert {"vit_tf.scripts.analyze", "vit_tf.scripts.train"} <= names
    assert not names & {"keras", "tensorflow", "matplotlib", "xarray"}


def test_the_list_of_some_figures_is_one_line_for_each(capsys):
    assert analyze.main(["--list", "--figures", "W.9,1"]) == 0
    printed = capsys.readouterr().out
    assert re.match(r"1,B\.1 +CKA .*\nW\.9,W\.28 +k-NN .*\nW\.9,W\.29 .*\n$", printed)
    # Those of a study name the models, of figures with the same numbers together.
    assert study.main(["--list", "--figures", "W.9,1"]) == 0
    printed = capsys.readouterr().out
    assert re.search(r"^1,B\.1 +CKA .* vit, gap, resnet\nW\.9,W\.28 +k-NN .* vit, ", printed, re.M)


def test_python_m_vit_tf_is_the_command():
    command = [sys.executable, "-m", "vit_tf", "--version"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, f"vit-tf {vit_tf.__version__}\n")


def test_every_option_is_in_a_section_with_its_default(parsers):
    titles = {}
    for name, parser in parsers.items():
        for title, action in shown(parser):
            assert title not in ("options", "positional arguments"), (name, action.dest)
            titles.setdefault(title, set()).add(name)
            text = parser._get_formatter()._get_help_string(action)
            assert text
            if action.default not in (None, False, "", (), []) and action.option_strings:
                assert "(default: " in text, (name, action.dest)
        text = parser.format_help()
        for status in (0, 2, 130):
            assert re.search(rf"\b{status}\b", text.partition("exit status:")[2])
    assert {"study", "analyze", "train", "finetune", "pretrain", "evaluate"} <= titles["data"]


def test_help_shows_few_options_and_help_all_the_others(parsers, capsys):
    for name, parser in parsers.items():
        flags = {flag for _, action in shown(parser) for flag in action.option_strings}
        listed = {}
        for option in ("--help", "--help-all") if parser.main_options else ("--help",):
            with pytest.raises(SystemExit):
                cli.main([name, option])
            sections = capsys.readouterr().out.partition("options:")[2].partition("exit status:")[0]
            listed[option] = set(re.findall(r"^  (--[a-z0-9-]+)", sections, re.M)) - {"--help-all"}
        if not parser.main_options:
            assert listed["--help"] == flags and len(flags) <= 8, name
            continue
        assert listed["--help"] == set(parser.main_options) and len(listed["--help"]) <= 12
        assert {flag for flag in flags if not flag.startswith("--no-")} <= listed["--help-all"]
        required = {flag for _, a in shown(parser) for flag in a.option_strings if a.required}
        assert required <= listed["--help"] < listed["--help-all"]


def test_one_name_means_one_thing(parsers):
    reference = {}
    for name, parser in parsers.items():
        for _, action in shown(parser):
            for flag in action.option_strings or [action.metavar]:
                how = (action.type, action.nargs, action.metavar, type(action))
                reference.setdefault(flag, {}).setdefault(how, []).append(name)
    different = {flag: ways for flag, ways in reference.items() if len(ways) > 1}
    assert set(different) == set(DIFFERENT), different


def test_examples_of_the_help_can_be_parsed(parsers, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for image in ("cat.jpg", "dog.jpg"):
        (tmp_path / image).touch()
    for name, parser in parsers.items():
        assert len(examples(parser)) >= 3
        for command, command_name, *words in examples(parser):
            assert command == "vit-tf" and command_name in cli.COMMANDS
            options = import_module(f"vit_tf.scripts.{command_name}").parse(words)
            assert options.command == shlex.join(["vit-tf", command_name, *words])
        assert any(other == name for _, other, *_ in examples(parser))


def test_options_are_stored_under_the_names_of_the_package():
    assert evaluate.parse(["m.keras", "--take-test", "7"]).take_test == 7
    plain = evaluate.parse(["m.keras"])
    assert plain.taps == ("pooled",) and plain.take_test is None
    finetune = import_module("vit_tf.scripts.finetune")
    options = finetune.parse(["m.keras", "--out", "run", "--num-validations", "5"])
    assert options.validations == 5


def test_what_is_trained_on_and_what_is_measured_have_one_name_each(parsers):
    flags = {
        name: {flag for _, action in shown(parser) for flag in action.option_strings}
        for name, parser in parsers.items()
    }
    takes = {
        name: {flag for flag in outputs if "--take" in flag} for name, outputs in flags.items()
    }
    trained, measured = {"--take"}, {"--take-test", "--take-objects"}
    assert takes["train"] == takes["finetune"] == takes["pretrain"] == trained
    assert takes["evaluate"] == {"--take-test"} and takes["analyze"] == measured
    assert takes["study"] == trained | measured
    valid = {flag for outputs in flags.values() for flag in outputs if "--valid" in flag}
    assert valid == {"--validation"}


@pytest.mark.parametrize("line", ["--help", "analyze --help"])
def test_a_reader_that_stops_early_leaves_no_traceback(line):
    """The pipe is closed before anything is written, as `head` may do."""
    reading, writing = os.pipe()
    os.close(reading)
    command = [sys.executable, "-m", "vit_tf", *line.split()]
    with os.fdopen(writing, "w") as pipe:
        done = subprocess.run(command, stdout=pipe, stderr=subprocess.PIPE, text=True, timeout=60)
    assert "Traceback" not in done.stderr and "BrokenPipe" not in done.stderr
    assert not any(line.startswith("error:") for line in done.stderr.splitlines())
    assert done.returncode in (0, 128 + 13)  # argparse ends as if all had been read


def test_what_an_encoding_lacks_is_printed_as_escapes():
    command = [sys.executable, "-c", "import vit_tf.scripts; print('\\xb1 1')"]
    environment = os.environ | {"PYTHONIOENCODING": "ascii"}
    result = subprocess.run(command, env=environment, capture_output=True, check=True)
    assert result.stdout.strip() == b"\\xb1 1"


def test_a_lack_of_memory_is_one_line(capsys):
    def fail(options):
        raise MemoryError

    assert common.run_command(lambda arguments: argparse.Namespace(), fail) == 2
    assert capsys.readouterr().err == "error: not enough memory\n"


@pytest.mark.slow
@pytest.mark.parametrize("command", ["train", "finetune", "pretrain", "analyze"])
def test_help_without_docstrings(command):
    """`python -OO` removes docstrings and assertions."""
    call = [sys.executable, "-OO", "-m", "vit_tf", command, "--help"]
    done = subprocess.run(call, capture_output=True, text=True)
    assert done.returncode == 0 and f"usage: vit-tf {command}" in done.stdout, done.stderr
