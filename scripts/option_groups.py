"""What all scripts say of their options alike: sections, defaults, examples, shared options."""

import argparse
import shlex
import sys
from pathlib import Path

from vit_tf.names import near_names
from vit_tf.remote import is_remote, without_password
from vit_tf.scripts.own_modules import add_imports

# Where each strategy of `vit_tf.distribute` trains.
STRATEGIES = {
    "auto": "multiworker or mirrored where there are several workers or GPUs",
    "none": "one device",
    "mirrored": "all GPUs of a machine",
    "multiworker": "GPUs of several machines",
    "tpu": "a TPU",
}
STATUS = """exit status:
  0    done{more}
  2    a mistake, such as an option or a file that does not fit: one line says which
  130  stopped by Ctrl-C (143: by SIGTERM); one line says what is kept and how to go on"""
# What stands for a value of each type in usage and help.
METAVARS = {int: "N", float: "X", Path: "PATH"}


class _Formatter(argparse.RawDescriptionHelpFormatter):
    """Help that shows the default of each option that has one and does not tell it in words."""

    def _get_help_string(self, action):
        text, default = action.help, action.default
        told = default is None or default is False or default is argparse.SUPPRESS
        told = told or default in ("", (), []) or "(default: " in text
        if told or not action.option_strings:
            return text
        shown = " ".join(default) if isinstance(default, tuple) else default
        return f"{text} (default: {shown})"

    def _get_default_metavar_for_optional(self, action):
        return METAVARS.get(action.type) or super()._get_default_metavar_for_optional(action)


class Parser(argparse.ArgumentParser):
    """A parser whose options stand in titled sections, and which notes the command that it read."""

    def __init__(self, **kwargs):
        super().__init__(formatter_class=_Formatter, **kwargs)
        self._titled = {}

    def group(self, title):
        """The function that adds an option to the section of a title."""
        if title not in self._titled:
            self._titled[title] = self.add_argument_group(title)
        return self._titled[title].add_argument

    def parse_args(self, args=None, namespace=None):
        self._words = words = sys.argv[1:] if args is None else list(args)
        options = super().parse_args(words, namespace)
        options.command = without_password(shlex.join([*self.prog.split(), *map(str, words)]))
        return options

    def error(self, message):
        """Ends the command with a line that suggests near matches of mistyped options."""
        actions = self._option_string_actions.items()
        known = [name.lstrip("-") for name, action in actions if action.help != argparse.SUPPRESS]
        hints = []
        for word in self._words:
            typed = word.partition("=")[0]
            near = near_names(typed.lstrip("-"), known) if typed.startswith("--") else []
            if near and not any(name.startswith(typed) for name in self._option_string_actions):
                hints.append(f"did you mean --{near[0]} in place of {typed}?")
        super().error(without_password("; ".join([message, *hints])))


def make_parser(name, docstring, more=""):
    """The parser of a script: its help is the script's docstring with the examples at the end.

    Args:
        name: of the command.
        docstring: text that ends in a part `Examples:`.
        more: what to add to the meaning of the exit status 0.
    """
    description, _, examples = docstring.partition("\nExamples:\n")
    epilog = f"{STATUS.format(more=more)}\n\nexamples:\n{examples}"
    return Parser(prog=f"vit-tf {name}", description=description, epilog=epilog.rstrip())


def add_alias(add, old, new, **reading):
    """Adds an older name of an option, which is read as before and not shown."""
    add(old, dest=new, default=argparse.SUPPRESS, help=argparse.SUPPRESS, **reading)


def add_strategy(add):
    """Adds the option that tells where a model is trained and measured."""
    meanings = "; ".join(f"{name}: {where}" for name, where in STRATEGIES.items())
    add("--strategy", metavar="NAME", default="auto", help=meanings)


def add_source(add):
    """Adds the options that tell which data set it is."""
    add("--data", metavar="NAME", default="digits", help="digits, shapes, a TFDS name or a folder")
    add_data_dir(add)
    add("--classes", metavar="FILE", help="text file that lists the classes to use, one to a line")


def add_split(add, default="test", otherwise=None):
    """Adds the option that tells which images are measured, with a default that words may tell."""
    told = f" (default: {otherwise})" if otherwise else ""
    add("--split", metavar="NAME", default=default, help=f"test, validation, train or all{told}")


def add_take(add, default="all"):
    """Adds the option that tells how many images are trained on."""
    add("--take", type=int, help=f"train on only so many images (default: {default})")


def add_take_test(add, default="all"):
    """Adds the option that tells how many images are measured."""
    add("--take-test", type=int, help=f"measure only so many images (default: {default})")


def add_data_dir(add, otherwise="TFDS' own"):
    """Adds the option that tells where TFDS keeps its data."""
    text = "where TFDS keeps its data, such as ~/tensorflow_datasets"
    add("--data-dir", metavar="FOLDER", help=f"{text} (default: {otherwise})")


def add_model(parser):
    """Adds the argument that names one model, and the modules that its classes are in."""
    text = "a .keras file, a checkpoint file or a public name"
    parser.group("model")("model", metavar="MODEL", help=text)
    add_imports(parser.group("model"))


def add_layers(add):
    """Adds the options that tell what a model does not tell of its layers and tokens."""
    add(
        "--image-size",
        type=int,
        help="side of the images, in pixels, where models take any (default: the model's)",
    )
    add("--taps", nargs="+", metavar="PATTERN", help="layers of other models, such as 'block*_out'")
    add(
        "--patch-size",
        type=int,
        help="side of a patch, in pixels, of a model that does not tell its tokens",
    )
    text = "tokens of such a model that have no place, as CLS (default: those the patches leave)"
    add("--prefix", type=int, help=text)


def check_layers(options):
    """Raises a `ValueError` for options of `add_layers` that no model has use for."""
    if options.prefix is not None and not options.patch_size:
        raise ValueError(f"Expected --patch-size with --prefix. Received: {options.prefix} alone")
    require_at_least(options, image_size=1, patch_size=1, prefix=0)


def a_path(text):
    """A path of the command line, which may be an address such as `gs://bucket/run`."""
    if not is_remote(text):
        return Path(text)
    from vit_tf.remote import as_path

    return as_path(text)


def add_training(parser, image_size):
    """Adds the options of the images that a model is trained on, and of the run.

    Args:
        parser: a `Parser`.
        image_size: dict with the `help` of `--image-size` and, if there is one, its `default`.
    """
    data, run = parser.group("data"), parser.group("run")
    add_source(data)
    data("--image-size", type=int, **image_size)
    add_take(data)
    data("--validation", type=float, default=0.1, help="share held out to validate")
    text = "another part of each training image in each epoch, of at least this share of its area"
    data("--random-resized-crop", type=float, metavar="LEAST", help=f"{text}, such as 0.08")
    text = "how often each training image is repeated in an epoch, differently augmented"
    data("--repeats", type=int, default=1, help=f"{text}, 3 in DeiT")
    data("--batch-size", type=int, default=128, help="examples of a step, over all devices")
    run("--out", type=a_path, metavar="FOLDER", required=True, help="of the run; it is made")
    run("--seed", type=int, default=0, help="of all that is random")
    add_strategy(run)
    run("--mixed-precision", action="store_true", help="compute in bfloat16")
    text = "steps in one call of TensorFlow, at most (default: 50 on a TPU and 1 elsewhere)"
    run("--steps-per-execution", type=int, help=text)
    text = "save the state every so many steps too; it is after each epoch and on SIGTERM"
    run("--save-every", type=int, help=text)
    run("--keep-states", type=int, default=2, help="number of the last states that stay")


def require_at_least(options, **least):
    """Raises a `ValueError` for an option below its least value; those not given are let be."""
    for name, bound in least.items():
        value = getattr(options, name)
        if value is not None and value < bound:
            flag = f"--{name.replace('_', '-')}"
            raise ValueError(f"Expected {flag} to be at least {bound}. Received: {value}")
