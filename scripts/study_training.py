"""Training one model of the study, and keeping it: made once, found again by a key."""

import dataclasses
import json
import time
from pathlib import Path

import keras
import tensorflow as tf

import vit_tf
from vit_tf import TokenGrid
from vit_tf.analysis.engine.store import fingerprint
from vit_tf.files import digest_files
from vit_tf.scripts import common
from vit_tf.training import checkpointing


def load_data(options, batch_size, splits=("train", "validation", "test"), **changes):
    """Batches of the splits; the order of the training images starts anew with each call."""
    arguments = {
        "image_size": options.image_size,
        "take": {split: options.sizes[split] for split in splits if split in options.sizes},
        "seed": options.seed,
        "data_dir": options.data_dir,
        **common.chosen_classes(options),
    }
    return vit_tf.data.load(
        options.data, batch_size=batch_size, splits=splits, **arguments | changes
    )


def model_key(plan, options):
    """`fingerprint` of everything that the trained model of a plan depends on."""
    if not hasattr(options, "digests"):  # once for all plans
        options.digests = [split.identify() for split in load_data(options, options.batch_size)]
    source = [options.data, options.image_size, options.sizes, options.digests]
    source += common.chosen_classes(options).values()
    return fingerprint(plan.facts, source, options.batch_size, options.seed)


def model_path(plan, options):
    """Where the trained model of a plan is kept."""
    return options.out / "models" / f"{plan.slug}.keras"


def kept(plan, options):
    """What `trained` returns of a model that was trained before; None if it was not.

    The `key` among it changes with the file, whose weights are what is measured.
    """
    note = model_path(plan, options).with_suffix(".json")
    if note.exists() and model_path(plan, options).exists():
        facts = json.loads(note.read_text())
        if facts["key"] == model_key(plan, options):
            weights = digest_files([model_path(plan, options)])
            grid = facts["grid"] and TokenGrid(**facts["grid"])
            return facts | {"grid": grid, "key": fingerprint(facts["key"], weights)}
    return None


def trained(plan, options, callbacks=()):
    """Facts about the trained model of a plan, which is made now unless it was before.

    Returns:
        dict of `row`, the model's line in the report's table, `taps` and `grid`, those of the
        model, and the `key` of its weights.
    """
    if found := kept(plan, options):
        return found
    path, key = model_path(plan, options), model_key(plan, options)
    row, model = _train(plan, options, key, callbacks)
    note = path.with_suffix(".json")
    note.unlink(missing_ok=True)  # lest a run that stops here leave it beside another model
    checkpointing.save_model(model, path)
    grid = model.token_grid and dataclasses.asdict(model.token_grid)
    text = json.dumps({"key": key, "row": row, "taps": model.taps, "grid": grid}, indent=1)
    checkpointing.write_on_chief(note, lambda partial: Path(partial).write_text(text))
    return kept(plan, options)


def _train(plan, options, key, callbacks):
    """The model of a plan, trained, and its line in the report's table."""
    start = time.perf_counter()
    keras.utils.set_random_seed(options.seed + plan.seed)
    train, validation, test = _training_data(plan, options)
    with vit_tf.distribute.strategy(options.strategy).scope():
        model = plan.model(**plan.config, name=plan.slug)
        model.class_names = common.describe_data(options).class_names
        if plan.start is not None:
            _copy_body(vit_tf.load_model(model_path(plan.start, options)), model)
        directory = options.out / "training" / f"{plan.slug}-{key}"
        vit_tf.train(
            model, plan.recipe, train, validation, directory, verbose=0, callbacks=callbacks
        )
        accuracy = model.evaluate(test, verbose=0, return_dict=True)["accuracy"]
    row = {
        "model": plan.name,
        "parameters": model.count_params(),
        "test accuracy (%)": round(100 * accuracy, 2),
        "tested on": sum(len(labels) for _, labels in test),
        "epochs": plan.recipe.epochs,
        "training (s)": round(time.perf_counter() - start),
    }
    return row, model


def _training_data(plan, options):
    """The images that a plan is trained, validated and tested on.

    A fraction f of the images is gone through 1 / sqrt(f) times in an epoch: more often than the
    whole, since there are fewer, but not for as many steps, to avoid overfitting.
    """
    count = max(1, round(plan.fraction * options.sizes["train"]))
    take = options.sizes | {"train": count}
    data = load_data(options, min(options.batch_size, count), take=take)
    if plan.half is not None:
        data = [_only_half(split, plan, options.batch_size) for split in data]
    train, *others = data
    return [train.repeat(round(plan.fraction**-0.5)), *others]


def _only_half(data, plan, batch_size):
    """The images of the first or the second half of the classes, with the labels they have."""
    middle, first = plan.config["num_classes"] // 2, plan.half == 0
    images = data.unbatch().filter(lambda image, label: (label < middle) == first)
    chosen = images.batch(batch_size)
    count = sum(1 for _ in chosen)  # Keras takes data of unknown length for data that ran out
    return chosen.apply(tf.data.experimental.assert_cardinality(count))


def _copy_body(source, model):
    """Gives a model the weights of another of the same kind, except those of the head."""
    for old, new in zip(source.layers, model.layers, strict=True):
        if new is not model.head:
            new.set_weights(old.get_weights())
