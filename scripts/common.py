"""What the scripts share: how they run and stop, the model they open, training, results."""

import contextlib
import dataclasses
import json
import os
import re
import signal
import sys
import threading
import traceback
from pathlib import Path

# Here and in every script what needs TensorFlow is imported where it is used, so that it is parsed
# first: mistakes and --help are answered at once.
import vit_tf
from vit_tf.remote import without_password
from vit_tf.scripts.own_modules import import_libraries, import_modules


class Terminated(BaseException):
    """The process was asked to end, by SIGTERM."""


def run_script(
    parse, run, arguments=None, kept=lambda options: NOTHING_KEPT, backends=("tensorflow",)
):
    """Parse and run; the exit status, as shells have it.

    It is that of `run`, 0 for none; 2 and one line on the standard error for a mistake of the user;
    130 and one line for Ctrl-C, 143 and one line for SIGTERM.

    Args:
        parse: function from arguments to options.
        run: function of the options.
        arguments: those of the command line; None for this process' own.
        kept: function of the options to the line that tells what a stopped run leaves, and how to
            go on.
        backends: those of Keras that the command runs on; None for any.
    """
    options = None
    try:
        with _terminations():
            options = parse(arguments)
            if backends:
                _require_backend(backends)
            return _run(run, options) or 0
    except (KeyboardInterrupt, Terminated) as stop:
        print(f"stopped: {kept(options) if options else NOTHING_KEPT}", file=sys.stderr)
        return 128 + (signal.SIGTERM if isinstance(stop, Terminated) else signal.SIGINT)
    except Exception as error:
        if not _is_mistake(error) or isinstance(error, BrokenPipeError):
            raise
        print(f"error: {one_line(error)}{_place_of(error)}", file=sys.stderr)
        if isinstance(error, ConnectionError) and hasattr(options, "strategy"):
            from vit_tf.distribute import cluster

            if cluster.num_workers() > 1:
                cluster.leave(2)
        return 2


NOTHING_KEPT = "nothing is saved; the same command starts again"


# Of commands that train or evaluate.
TRAINING_BACKENDS = ("tensorflow", "jax")


def _require_backend(backends):
    # Before Keras is imported, which takes long and fails where the backend is not installed.
    backend = os.environ.get("KERAS_BACKEND") or "tensorflow"
    if backend not in backends:
        settings = " or ".join(f"KERAS_BACKEND={name}" for name in backends)
        raise ValueError(
            f"Expected {settings} for this command; unset, it is tensorflow. "
            f"Received: KERAS_BACKEND={backend}"
        )


def _run(run, options):
    imports = getattr(options, "imports", ())
    if not hasattr(options, "strategy"):
        if imports:
            import_modules(imports)
        return run(options)
    from vit_tf.distribute.cluster import explained_failures

    # Several workers meet before anything else of TensorFlow runs.
    vit_tf.distribute.strategy(options.strategy)
    with explained_failures():
        import_modules(imports)
        return run(options)


@contextlib.contextmanager
def _terminations():
    """SIGTERM raises `Terminated`, so that what is open is closed."""

    def stop(number, frame):
        raise Terminated

    if threading.current_thread() is not threading.main_thread():
        yield  # no other may tell what a signal does
        return
    before = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


def epochs_kept(options):
    """What a stopped training leaves, and how to go on."""
    names = [path.stem for path in (options.out / "state").glob("epoch-*.npz")]
    places = [[int(number) for number in re.findall(r"[0-9]+", name)] for name in names]
    epoch, *steps = max(places, default=[0])
    if not epoch and not steps:
        return NOTHING_KEPT
    within = f" and {steps[0]} steps of the next" if steps else ""
    kept = f"{options.out} holds the state after epoch {epoch}{within}"
    return f"{kept}; the same command goes on from there"


def _is_mistake(error):
    tensorflow = sys.modules.get("tensorflow")
    return isinstance(error, (ValueError, OSError)) or (
        tensorflow is not None and isinstance(error, tensorflow.errors.OpError)
    )


def one_line(error):
    """What went wrong, without the graph that TensorFlow adds to it."""
    text = str(error)
    if not isinstance(error, (ValueError, OSError)):
        asserted = re.search(r"assertion failed: \[(.*?)\]\s*(\[\[|$)", error.message, re.DOTALL)
        text = asserted[1] if asserted else error.message.split("available>")[-1].split("[[")[0]
    return without_password(" ".join(text.split()))


def _place_of(error):
    """Where a `ValueError` was raised that says nothing of what was expected; else nothing.

    It may be a mistake of this package, which is found by its place.
    """
    if not isinstance(error, ValueError) or "Expected" in str(error):
        return ""
    steps = [
        (frame.f_globals.get("__name__", ""), line)
        for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    ours = [f" (in {name}, line {line})" for name, line in steps if name.startswith("vit_tf.")]
    return ours[-1] if ours else ""


def describe_data(options):
    """The `Description` of the data set that the options tell, with a test split if it serves."""
    from vit_tf.data.source import lacks_test

    found = vit_tf.data.describe(options.data, options.data_dir, **chosen_classes(options))
    if not lacks_test(found.num_examples):
        return found
    train, validation = found.num_examples["train"], found.num_examples["validation"]
    return dataclasses.replace(found, num_examples={"train": train, "test": validation})


def describe_labelled(options):
    """The `Description` of the data set that the options tell, which must have labels."""
    from vit_tf.data.source import require_labels

    described = describe_data(options)
    require_labels(described, f"--data {options.data}, images without labels")
    return described


def chosen_classes(options):
    """The argument of `vit_tf.data.load` that `--classes` stands for; none if it is not given."""
    return {"classes": vit_tf.data.read_class_list(options.classes)} if options.classes else {}


def given(options, names):
    """The options of these names that the user gave, as a dict."""
    values = {name: getattr(options, name, None) for name in names}
    return {name: value for name, value in values.items() if value is not None}


def is_saved_model(path):
    """Whether a path is a folder that TensorFlow wrote, and not a checkpoint's."""
    return os.path.isdir(path) and not os.path.isfile(os.path.join(path, "config.json"))


def open_model(name):
    """The model of a `.keras` file or of a checkpoint: a file, a folder or a public name."""
    if name.endswith(".keras"):
        import_libraries(name)
    if name.endswith(".keras") or is_saved_model(name) or not hasattr(vit_tf, "load_pretrained"):
        return vit_tf.load_model(name)
    return vit_tf.load_pretrained(name)


def prepare(options):
    """Set the precision and the seed that the options ask for, before a model is made."""
    import keras

    if options.mixed_precision:
        keras.mixed_precision.set_global_policy("mixed_bfloat16")
    keras.utils.set_random_seed(options.seed)


def data_arguments(options):
    """The arguments of `vit_tf.data.load` that tell which images a run sees."""
    take = options.take and {"train": options.take}
    chosen = {name: getattr(options, name) for name in ("batch_size", "validation", "seed")}
    if options.random_resized_crop is not None:
        chosen["random_resized_crop"] = (options.random_resized_crop, 1.0)
    if options.repeats != 1:
        chosen["repeats"] = options.repeats
    return chosen | {"take": take} | chosen_classes(options)


def train_and_test(make_model, recipe, splits, options, description, callbacks=()):
    """Train the model that a function makes, test it and write it and its result to a folder.

    Args:
        make_model: function that makes the model, called under the strategy of the options.
        recipe: the recipe of the training.
        splits: training, validation and test data, as `vit_tf.data.load` returns them.
        options: those of the command line.
        description: dict that tells this training data from other data.
        callbacks: further Keras callbacks of the training.
    """
    with vit_tf.distribute.strategy(options.strategy).scope():
        model = make_model()
        history, scores = fit_and_score(model, recipe, splits, options, description, callbacks)
    write_result(model, recipe, history, scores, options)
    say(f"test accuracy {100 * scores['accuracy']:.2f} %, {options.out / 'model.keras'}")


def fit_and_score(model, recipe, splits, options, description, callbacks=()):
    """Train a model and test it, under the strategy that it was made in.

    Returns:
        Pair of the training's history and of the test's scores, by name.
    """
    train, validation, test = splits
    history = vit_tf.train(
        model,
        recipe,
        train,
        validation,
        options.out,
        description,
        steps_per_execution=options.steps_per_execution,
        callbacks=callbacks,
        save_every=options.save_every,
        keep_states=options.keep_states,
    )
    test = vit_tf.distribute.divide_batches(test, vit_tf.distribute.strategy_of(model))
    return history, model.evaluate(test, return_dict=True, verbose=0)


def write_result(model, recipe, history, scores, options, more=None):
    """Write a trained model and the numbers about it, `more` among them, to the run's folder."""
    from vit_tf.training import checkpointing

    checkpointing.save_model(model, options.out / "model.keras")
    result = {
        "test_accuracy": scores["accuracy"],
        "test_loss": scores["loss"],
        **(more or {}),
        "best_val_accuracy": max(history["val_accuracy"]),
        "recipe": dataclasses.asdict(recipe),
        "parameters": model.count_params(),
        "options": vars(options),
    }
    write_json(result, options.out / "result.json")


def say(text):
    """Print a result, once where several workers have it."""
    if vit_tf.distribute.is_chief():
        print(without_password(text))


def write_json(result, path):
    """Write a result as JSON, whole or not at all."""
    from vit_tf.training import checkpointing

    text = without_password(json.dumps(result, indent=1, default=str))
    checkpointing.write_on_chief(path, lambda partial: Path(partial).write_text(text + "\n"))
